"""The log of small changes, and the state folder that is whole after a crash at every call to the system."""

from __future__ import annotations

import gc
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrep.coding import encode_coordinates
from fedrep.errors import SettingsError
from fedrep.protocol.error_memory import Fate, Pending, Place
from fedrep.protocol.manifests import RunHash, SiloName
from fedrep.protocol.messages import Outcome, Update
from fedrep.protocol.model_state import ModelState, ServerModel, model_hash
from fedrep.protocol.silo_effects import Save
from fedrep.protocol.silo_state import Journal, SiloState
from fedrep_silo.change_log import AHEAD, HEADER_SIZE, ChangeLog, Record, read_log
from fedrep_silo.state import StateFolder
from tests.harness.federation import PARAMETERS, StubTrainer


def filled(path: Path, records: int = 3) -> ChangeLog:
    log = ChangeLog.started(path)
    for number in range(records):
        log.append(Record({"journal": {"number": number}}, {"values": np.full(4, number, np.float32)}))
    return log


def numbers(path: Path) -> list[int]:
    return [record.notes["journal"]["number"] for record in read_log(path)]


def test_records_come_back_as_they_were(tmp_path: Path) -> None:
    filled(tmp_path / "log").close()
    records = read_log(tmp_path / "log")
    assert [record.notes for record in records] == [{"journal": {"number": number}} for number in range(3)]
    assert np.array_equal(records[2].arrays["values"], np.full(4, 2, np.float32))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="Open files are listed in /proc.")
def test_a_folder_that_is_let_go_holds_no_file_open(tmp_path: Path) -> None:
    """A silo that takes one run after the other has a folder for each, and simulations many at once."""
    folder = StateFolder(tmp_path)
    state = folder.load(StubTrainer())
    folder.write(Save(replace(state, journal=replace(state.journal, last_round=1))))
    assert _open_below(tmp_path) == ["changes-1.log"]
    del folder, state
    gc.collect()
    assert _open_below(tmp_path) == []


def _open_below(folder: Path) -> list[str]:
    files = (each.resolve() for each in Path("/proc/self/fd").iterdir())
    return sorted(file.name for file in files if folder in file.parents)


def test_any_pages_of_the_last_record_may_be_missing_after_a_power_cut_and_none_of_an_earlier_one(tmp_path: Path) -> None:
    """Pages reach a disk in any order: what had not been synced may lie there without its beginning."""
    path = tmp_path / "log"
    log, ends = ChangeLog.started(path), [0]
    for number in range(3):
        log.append(Record({"n": number}, {"values": np.arange(1, 500)}), durably=number < 2)
        ends.append(log.size)
    whole = path.read_bytes()
    assert ends[3] - ends[2] > 3 * 512
    for lost in range(1, 2**4):
        torn = bytearray(whole)
        for page in range(4):
            if lost >> page & 1:
                start = ends[2] + 512 * page
                torn[start : min(start + 512, ends[3])] = bytes(len(torn[start : min(start + 512, ends[3])]))
        path.write_bytes(torn)
        assert [record.notes["n"] for record in read_log(path)] == [0, 1]
        again = ChangeLog.continued(path)
        again.append(Record({"n": 7}))
        again.close()
        assert [record.notes["n"] for record in read_log(path)] == [0, 1, 7]
        damaged = bytearray(whole)
        damaged[ends[1] : ends[1] + 512] = bytes(512)
        path.write_bytes(damaged)
        with pytest.raises(SettingsError, match="is damaged"):
            read_log(path)


def test_a_second_record_that_could_wait_is_synced_with_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a power cut may keep the later of the two and lose the earlier, which looks like damage."""
    syncs: list[int] = []
    monkeypatch.setattr(os, "fdatasync", syncs.append)
    log = ChangeLog.started(tmp_path / "log")
    for number in range(3):
        log.append(Record({"n": number}), durably=False)
        assert len(syncs) == (number + 1) // 2
    log.close()
    again = ChangeLog.continued(tmp_path / "log")
    again.append(Record({"n": 3}), durably=False)
    assert len(syncs) == 2, "nobody knows whether the last one of a process that died was waiting"


def test_a_record_cut_short_anywhere_is_left_out_and_the_next_takes_its_place(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = filled(path)
    whole, last, end = path.read_bytes(), log.size - log.size // 3, log.size
    log.close()
    for size, ahead in itertools.product(range(last, end), (0, len(whole))):
        path.write_bytes(whole[:size].ljust(ahead, b"\0"))  # as long as its bytes, or with the zeros that lay there before
        assert numbers(path) == [0, 1]
        again = ChangeLog.continued(path)
        again.append(Record({"journal": {"number": 9}}))
        again.close()
        assert numbers(path) == [0, 1, 9]


def test_a_file_that_grew_before_its_bytes_came_ends_with_its_last_whole_record(tmp_path: Path) -> None:
    path = tmp_path / "log"
    filled(path).close()
    path.write_bytes(path.read_bytes() + bytes(3 * HEADER_SIZE))
    assert numbers(path) == [0, 1, 2]


@pytest.mark.parametrize("where", [0, 5, HEADER_SIZE - 1, HEADER_SIZE + 10])
def test_damage_before_the_last_record_is_an_error_that_says_what_to_do(tmp_path: Path, where: int) -> None:
    path = tmp_path / "log"
    filled(path).close()
    data = bytearray(path.read_bytes())
    data[where] ^= 0x40
    path.write_bytes(data)
    with pytest.raises(SettingsError, match="leave the run with"):
        read_log(path)


def test_a_record_that_does_not_fit_on_the_disk_leaves_the_log_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(tmp_path / "log")
    with monkeypatch.context() as full:
        full.setattr(os, "pwritev", lambda descriptor, parts, offset: os.pwrite(descriptor, parts[0][:30], offset))
        with pytest.raises(OSError, match="took only a part of a record"):
            log.append(Record({"journal": {"number": 3}}))
    log.append(Record({"journal": {"number": 4}}))
    assert numbers(tmp_path / "log") == [0, 1, 2, 4]


def test_a_disk_with_room_for_a_record_and_not_for_the_zeros_behind_it_takes_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = ChangeLog.started(tmp_path / "log")
    monkeypatch.setattr(os, "pwritev", lambda descriptor, parts, offset: os.pwrite(descriptor, parts[0] + bytes(10), offset))
    for number in range(3):
        log.append(Record({"journal": {"number": number}}))
        assert numbers(tmp_path / "log") == list(range(number + 1))


def test_a_record_that_overwrites_zeros_leaves_the_files_length_alone(tmp_path: Path) -> None:
    log = ChangeLog.started(tmp_path / "log")
    lengths = set()
    for number in range(20):
        log.append(Record({"journal": {"number": number}}))
        lengths.add((tmp_path / "log").stat().st_size)
    assert len(lengths) == 1
    log.append(Record({"journal": {"number": 20}}, {"large": np.zeros(2 * AHEAD, np.uint8)}))
    log.append(Record({"journal": {"number": 21}}))
    assert numbers(tmp_path / "log") == list(range(22))


def place(number: int) -> Place:
    return Place(RunHash(b"r" * 32), number, SiloName("silo-0"), 0, b"b" * 32, b"c" * 32, 2, 0, 0, {})


FATES = (Fate.OPENED, Fate.CLOSED, Fate.OPENED, Fate.GIVEN_UP)


def story(state: SiloState, room: Callable[[], Any] = lambda: None, *, in_place: bool = False) -> Iterator[SiloState]:
    """What a silo saves in a few rounds: a charge, a submission, a reveal, the fate of the values, the next model."""
    generator = np.random.default_rng(1)
    server = ServerModel.initial(np.zeros(PARAMETERS, np.float32))
    own = replace(server.state, vector=server.state.vector.copy())
    yield (state := replace(state, journal=Journal(run="aa"), model=own))
    for number, fate in enumerate(FATES, 1):
        yield (state := replace(state, journal=replace(state.journal, last_round=number)))
        update = generator.normal(size=PARAMETERS).astype(np.float32)
        contribution = state.memory.contribution(number, number, update, room())
        indices = np.sort(generator.choice(PARAMETERS, PARAMETERS // 20, replace=False))
        sent = (contribution.g[indices] / 2).astype(np.float32)
        pending = Pending(place(number), contribution, 1.0, indices, sent)
        trainer = {"momentum": generator.normal(size=PARAMETERS).astype(np.float32)}
        yield (state := replace(state, memory=replace(state.memory, pending=pending), trainer=trainer))
        journal = replace(state.journal, revealed=(*state.journal.revealed, number))
        if fate is Fate.OPENED:  # told with the reveal, in one record
            yield (state := replace(state, journal=journal, memory=state.memory.settle(fate)))
        else:
            yield (state := replace(state, journal=journal))
            yield (state := replace(state, memory=state.memory.settle(fate)))
        server, descent = server.apply(indices, encode_coordinates(indices, PARAMETERS), sent, 16)
        update_down = Update(RunHash(b""), number, Outcome.APPLIED, "", server.state.name, descent=descent)
        assert state.model is not None
        yield (state := replace(state, model=state.model.follow(update_down, indices, in_place=in_place)))
    yield (state := replace(state, memory=state.memory.without_residual()))  # no record can say this


def told(state: SiloState) -> tuple[Any, ...]:
    """Each part as something that can be compared."""
    memory, model = state.memory, state.model
    pending = None if memory.pending is None else (memory.pending.place.round, memory.pending.contribution.g.tobytes())
    trainer = tuple((name, array.tobytes()) for name, array in sorted(state.trainer.items()))
    return (
        state.journal,
        (memory.residual.tobytes(), pending, memory.given_up, memory.clipped_mass, trainer),
        None if model is None else (model.version, model.hash, model.chain, model.vector.tobytes()),
    )


class Trainer(StubTrainer):
    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[str, Any] = {"momentum": np.zeros(PARAMETERS, np.float32)}

    def state(self) -> Any:
        return self.kept

    def load_state(self, state: Any) -> None:
        self.kept = dict(state)


@pytest.mark.parametrize("fold_at", [0, 3000, None])
def test_what_is_loaded_is_what_was_written_after_every_write(tmp_path: Path, fold_at: int | None) -> None:
    folder = StateFolder(tmp_path, fold_at=fold_at)
    for state in story(folder.load(Trainer())):
        folder.write(Save(state))
        assert told(StateFolder(tmp_path, fold_at=fold_at).load(Trainer())) == told(state)
        folder = StateFolder(tmp_path, fold_at=fold_at)
        state = folder.load(Trainer())


def test_g_is_put_into_memory_that_the_silo_has_and_never_where_its_state_needs_it(tmp_path: Path) -> None:
    folder, rooms = StateFolder(tmp_path), set()
    for state in story(folder.load(Trainer()), folder.room):
        folder.write(Save(state))
        memory, room = state.memory, folder.room()
        if memory.pending is not None:
            assert room is None
        else:
            assert room is not None
            assert not np.shares_memory(room, memory.base)
            rooms.add(room.ctypes.data)
        assert told(StateFolder(tmp_path).load(Trainer())) == told(state)
    assert len(rooms) <= 3, "two that take turns, and one more since the whole was written anew"


def test_small_changes_do_not_write_the_vectors_again(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path)
    states = list(story(folder.load(Trainer())))
    for state in states[:-4]:
        folder.write(Save(state))
    files = [path for path in tmp_path.iterdir() if path.suffix != ".log"]
    assert {path.name for path in files} >= {"memory-a.safetensors", "memory-b.safetensors", "model.safetensors"}
    whole = {path: path.stat().st_mtime_ns for path in files}
    for state in states[-4:-1]:  # revealed, fate, model
        folder.write(Save(state))
    assert whole == {path: path.stat().st_mtime_ns for path in files}
    assert told(StateFolder(tmp_path).load(Trainer())) == told(states[-2])


def test_a_round_writes_one_vector_and_a_training_that_was_not_opened_leaves_the_base_alone(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path)
    written: list[str] = []
    for state in story(folder.load(Trainer())):
        before = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("memory*")}
        folder.write(Save(state))
        now = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("memory*")}
        written += [name.removesuffix(".safetensors") for name in now if now[name] != before.get(name)]
    assert written == ["memory-a", "memory-b", "memory-b", "memory-a", "memory"]


class Killed(BaseException):
    pass


def dying_at(moment: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process dies just before or just after its n-th call to the system: moment 2n or 2n + 1."""
    made = 0

    def mortal(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal made
            made += 1
            if made == moment // 2 and moment % 2 == 0:
                raise Killed
            result = real(*arguments, **options)
            if made == moment // 2:
                raise Killed
            return result

        return call

    for name in ("pwrite", "replace", "ftruncate"):
        monkeypatch.setattr(os, name, mortal(getattr(os, name)))
    for name in ("fdatasync", "fsync"):  # a death of the process alone loses nothing that was written, so nothing need be synced
        monkeypatch.setattr(os, name, mortal(lambda _: None))
    monkeypatch.setattr(Path, "unlink", mortal(Path.unlink))


@pytest.mark.parametrize(("fold_at", "in_place"), [(0, False), (3000, True)])
def test_a_folder_is_whole_whatever_call_to_the_system_was_the_last(
    tmp_path: Path, fold_at: int, in_place: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part is that of before or after the write, and the story goes on from there."""
    start, die_at, died = tmp_path / "start", 1, True
    StateFolder(start)
    while died:
        die_at, died = die_at + 1, False
        place = tmp_path / "now"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(start, place)
        folder = StateFolder(place, fold_at=fold_at)
        before = folder.load(Trainer())
        with monkeypatch.context() as patched:
            dying_at(die_at, patched)
            after, old, new = before, told(before), told(before)
            try:
                for state in story(before, folder.room if in_place else lambda: None, in_place=in_place):
                    after, old, new = state, new, told(state)
                    folder.write(Save(state))
            except Killed:
                died = True
        found = StateFolder(place, fold_at=fold_at).load(Trainer())
        for part, *either in zip(told(found), old, new, strict=True):
            assert part in either
        again = StateFolder(place)  # which folds nothing yet: what it appends must count
        again.load(Trainer())
        following = replace(after, journal=replace(after.journal, last_round=99), model=_moved(after.model))
        again.write(Save(following))
        assert told(StateFolder(place).load(Trainer())) == told(following)
    assert die_at > 150


def _moved(model: ModelState | None) -> ModelState | None:
    if model is None:
        return None
    vector = model.vector.copy()
    vector[0] += 3.0
    return ModelState(vector, model.version + 1, model_hash(vector), b"m" * 32)


def test_a_log_that_is_missing_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    """It may say that a round was spoken in, or revealed, which journal.json does not know yet."""
    folder = StateFolder(tmp_path)
    for state in story(folder.load(Trainer())):
        folder.write(Save(state))
    next(tmp_path.glob("changes-*.log")).unlink()
    with pytest.raises(SettingsError, match="which goes with it, is missing"):
        StateFolder(tmp_path).load(Trainer())


def test_after_a_failed_write_nothing_is_written_until_the_folder_is_loaded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = StateFolder(tmp_path)
    state = folder.load(Trainer())
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError("no space left")))
        with pytest.raises(OSError, match="no space left"):
            folder.write(Save(replace(state, journal=Journal(run="aa"))))
    with pytest.raises(AssertionError, match="load it anew"):
        folder.write(Save(replace(state, journal=Journal(run="bb"))))
