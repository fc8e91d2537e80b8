"""The drill's checks over all books at once: an honest federation passes, and each lie, loss and leak is found."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from fedrep.coding import encode_coordinates
from fedrep.protocol.model_state import ModelState, ServerModel
from fedrep_silo.state import StateFolder
from tests.chaos import members
from tests.chaos.drill import FAULT_OF_OURS, Drill
from tests.chaos.invariants import Invariants
from tests.chaos.members import Member, Usage
from tests.chaos.plan import Plan
from tests.chaos.server_books import ServerBooks
from tests.chaos.stage import RUN, SERVERS, Stage
from tests.chaos.trace import Frame, TraceFile
from tests.chaos.written_traces import D, I, Silo

NAMES = [f"silo-{number}" for number in range(6)]
BUFFERS = [NAMES[0:2], NAMES[2:4], NAMES[4:6]]
ROUNDS = 3


class Scene:
    """A federation that was: its traces, its database, its disks, and what its processes occupied. It stands in for a stage."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names, self.attackers = NAMES, ["silo-5"]
        self.members = {name: member(folder, name) for name in (*NAMES, *SERVERS)}
        self.rounds: list[tuple[Any, ...]] = []
        self.models: list[tuple[int, bytes]] = []
        self.ledgers: list[tuple[str, float]] = [(name, 1.0) for name in NAMES]
        self.frames: dict[str, list[Frame]] = {name: [] for name in (*NAMES, *SERVERS)}
        self.silos = {name: Silo(name, self.frames[name].append, number, number // 2) for number, name in enumerate(NAMES)}
        self.server = ServerModel.initial(np.zeros(D, np.float32))
        self.models.append((0, self.server.state.hash))
        for number in range(1, ROUNDS + 1):
            self.play(number)
        for name in NAMES:
            StateFolder(folder / "state" / RUN / name).save_model(self.server.state)

    def play(self, number: int) -> None:
        """As all would write it down: everybody submits, all buffers are opened, the rule is applied."""
        pending = {name: silo.submit(number, silo.train()) for name, silo in self.silos.items()}
        means = {
            f"mean_{place}": np.mean([pending[name]["sent"].astype(float) for name in names], axis=0).astype(np.float32)
            for place, names in enumerate(BUFFERS)
        }
        before = self.server
        rule = ServerBooks("geometric_median", byzantine=2)._rule
        aggregate = rule({place: means[f"mean_{place}"] for place in range(3)}, dict(enumerate(BUFFERS)))
        self.server, _ = before.apply(I, encode_coordinates(I, D), aggregate.astype(np.float32), 16)
        state = self.server.state
        notes = {"round": number, "outcome": "applied", "survivors": BUFFERS, "opened": (0, 1, 2)}
        notes |= {"version": state.version, "hash": state.hash.hex()}
        arrays = {**means, "aggregate": aggregate, "indices": I, "model": before.state.vector, "residual": before.residual}
        self.frames["server-a"].append(Frame("closed", notes, {**arrays, "after": state.vector}))
        self.rounds.append((number, "applied", "", number, len(NAMES)))
        self.models.append((state.version, state.hash))
        for name, silo in self.silos.items():
            silo.settle(pending[name], "opened")
            silo.read("model", ({"version": state.version, "hash": state.hash.hex()}, {}))

    def query(self, text: str) -> list[tuple[Any, ...]]:
        if found := re.search(r"FROM rounds WHERE round > (\d+)", text):
            return [row for row in self.rounds if row[0] > int(found[1])]
        return list(self.models if "FROM models" in text else self.ledgers)

    def problems(self, revoked: tuple[str, ...] = ()) -> list[str]:
        return self.judged(revoked).problems

    def judged(self, revoked: tuple[str, ...] = ()) -> Invariants:
        for name, frames in self.frames.items():
            trace = TraceFile(self.folder / "traces" / name)
            for frame in frames:
                trace.note(frame.kind, frame.notes, **frame.arrays)
        invariants = Invariants(cast(Stage, self))
        invariants.read_traces()
        invariants.read_database(1.0)
        invariants.read_database(2.0)
        invariants.conclude(set(revoked))
        return invariants


def member(folder: Path, name: str) -> Member:
    log = folder / f"{name}.log"
    log.write_text("all is well\n")
    return Member(name, list, log, folder, exits=[0])


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_an_honest_federation_has_no_problem(scene: Scene) -> None:
    invariants = scene.judged()
    assert invariants.problems == []
    figures = invariants.figures()
    assert (figures["rounds_applied"], figures["values_counted_once"]) == (ROUNDS, ROUNDS * len(NAMES))
    assert figures["values_lost_with_unfinished_rounds"] == 0


def a_round_is_missing(scene: Scene) -> None:
    del scene.rounds[1]


def two_models_of_a_version(scene: Scene) -> None:
    scene.models.append((2, b"another"))


def a_version_too_many(scene: Scene) -> None:
    scene.rounds[2] = (3, "applied", "", 4, len(NAMES))


def no_trace_of_a_round(scene: Scene) -> None:
    scene.frames["server-a"].pop()


def a_submission_nobody_wrote_down(scene: Scene) -> None:
    """The silo's books begin after it."""
    scene.frames["silo-2"] = [frame for frame in scene.frames["silo-2"] if frame.notes.get("round") != 2]


def a_mean_of_other_values(scene: Scene) -> None:
    for frame in scene.frames["silo-0"]:
        if frame.notes.get("round") == 2:
            frame.arrays["sent"][:] = frame.arrays["sent"] + np.float32(0.125)


def a_training_counted_twice(scene: Scene) -> None:
    for frame in scene.frames["silo-1"]:
        if frame.notes.get("training") == 3:
            frame.notes["training"] = frame.notes["version"] = 2


def another_model_in_a_silo(scene: Scene) -> None:
    next(frame for frame in scene.frames["silo-3"] if frame.kind == "model").notes["hash"] = "00"


def an_old_model_in_the_end(scene: Scene) -> None:
    old = ModelState.initial(np.zeros(D, np.float32))
    StateFolder(scene.folder / "state" / RUN / "silo-4").save_model(old)


def both_secrets_of_a_dealer(scene: Scene) -> None:
    """By two silos, each of which told only one."""
    for name, secret in (("silo-0", "seed"), ("silo-1", "key")):
        scene.frames[name].append(Frame("sent", {"what": "reveal", "round": 2, "shares": [("silo-3", secret, "x")]}))


def a_value_that_got_lost(scene: Scene) -> None:
    next(frame for frame in scene.frames["silo-2"] if frame.kind == "trained").arrays["update"][0] += 0.5


def a_silo_that_says_nothing(scene: Scene) -> None:
    scene.names = [*NAMES, "silo-6"]
    scene.frames["silo-6"] = []
    StateFolder(scene.folder / "state" / RUN / "silo-6").save_model(scene.server.state)


def a_leak(what: str, step: float) -> Callable[[Scene], None]:
    def leaking(scene: Scene) -> None:
        usage = [Usage(7, 60.0 + 3 * n, 100.0, 40, 12) for n in range(60)]
        for number, each in enumerate(usage):
            setattr(each, what, getattr(each, what) + step * number)
        scene.members["server-a"].usage = usage

    return leaking


def tasks_that_pile_up(scene: Scene) -> None:
    scene.frames["server-a"] += [Frame("tasks", {"tasks": 40 + 8 * number}) for number in range(40)]


BROKEN: list[tuple[Callable[[Scene], None], str]] = [
    (a_round_is_missing, "values were submitted in round 2, of which the database knows nothing"),
    (two_models_of_a_version, "version 2 of the model was committed twice, differently"),
    (a_version_too_many, "round 3 has version 4 of the model, not 3"),
    (no_trace_of_a_round, "round 3 was committed, and no server's trace shows how"),
    (a_submission_nobody_wrote_down, "buffer 1 holds values that a silo did not write down"),
    (a_mean_of_other_values, "round 2: buffer 0 is not the mean of what its silos sent"),
    (a_training_counted_twice, "silo-1: training 2 was counted in rounds 2 and 3"),
    (another_model_in_a_silo, "silo-3: its model differs from the server's in versions [1]"),
    (an_old_model_in_the_end, "silo-4: holds version 0 in the end, the server version 3"),
    (both_secrets_of_a_dealer, "round 2: both secrets of silo-3 were revealed"),
    (a_value_that_got_lost, "silo-2: sent, kept and given up differ from the updates by"),
    (a_silo_that_says_nothing, "silo-6: had no part in any applied round"),
    (a_leak("mb", 1.0), "server-a: its memory grew from"),
    (a_leak("files", 1), "server-a: its files grew from"),
    (a_leak("threads", 1), "server-a: its threads grew from"),
    (tasks_that_pile_up, "server-a: its tasks grew from"),
]


@pytest.mark.parametrize(("broken", "problem"), BROKEN, ids=[problem for _, problem in BROKEN])
def test_what_is_broken_is_found(scene: Scene, broken: Callable[[Scene], None], problem: str) -> None:
    broken(scene)
    found = scene.problems()
    assert any(problem in text for text in found), found


def test_a_processes_memory_may_go_up_and_down(scene: Scene) -> None:
    scene.members["server-a"].usage = [Usage(7, 60.0 + 3 * n, 100.0 + 30 * (n % 2), 40 + n % 20, 12) for n in range(60)]
    assert scene.problems() == []


def test_a_ledger_of_the_server_that_goes_back_is_found(scene: Scene) -> None:
    invariants = scene.judged()
    scene.ledgers[2] = ("silo-2", 0.5)
    invariants.read_database(3.0)
    assert invariants.problems == ["the server's ledger for silo-2 went back from 1.0 to 0.5"]


def test_a_silo_that_takes_back_what_was_counted_is_found(scene: Scene) -> None:
    silo = scene.silos["silo-1"]
    del scene.frames["silo-1"][-3:]  # the fate of round 3: intended, saved, and the model
    pending = next(frame for frame in reversed(scene.frames["silo-1"]) if frame.notes.get("round") == 3)
    silo.residual = pending.arrays["residual"].copy()
    silo.settle({**pending.notes, **pending.arrays}, "closed")
    silo.read("model", ({"version": 3, "hash": scene.server.state.hash.hex()}, {}))
    assert "silo-1: took back what was counted in round 3" in scene.problems()


def test_what_a_silo_holds_for_opened_is_in_the_model_or_lost_with_its_round(scene: Scene) -> None:
    """The round's row says skipped: holders had signed and revealed, and then the server died."""
    scene.rounds[2] = (3, "skipped", "the server restarted during the round", 2, len(NAMES))
    del scene.models[3]
    for name in NAMES:
        scene.frames[name].pop()  # its third model
        StateFolder(scene.folder / "state" / RUN / name).purge()
        StateFolder(scene.folder / "state" / RUN / name).save_model(ModelState(*_second_model(scene)))
    invariants = scene.judged()
    assert invariants.problems == []
    assert invariants.figures()["values_lost_with_unfinished_rounds"] == len(NAMES)


def _second_model(scene: Scene) -> tuple[Any, ...]:
    frame = scene.frames["server-a"][1]
    return frame.arrays["after"], 2, bytes.fromhex(frame.notes["hash"]), b"chain"


@pytest.mark.parametrize(("buffer", "excused"), [(0, False), (2, True)])
def test_an_update_left_out_of_an_applied_round_is_found_unless_an_attacker_sat_beside_it(
    tmp_path: Path, buffer: int, excused: bool
) -> None:
    """The sum of a buffer with an attacker in it may be refused; that of honest silos never."""
    scene = Scene(tmp_path)
    invariants = scene.judged()
    opened = next(each for (number, _), each in invariants.server.opened.items() if number == 2)
    del opened.means[buffer], opened.survivors[buffer]
    invariants._compare_fates(invariants._compare_rounds())
    lost = [f"{name}: what was opened in round 2 is not in the model" for name in BUFFERS[buffer]]
    assert invariants.problems == ([] if excused else lost)


def test_a_process_that_is_left_behind_is_found_by_its_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    mark = "a mark of this test"
    sleeping = [sys.executable, "-c", "print(flush=True); import time; time.sleep(600)"]
    process = subprocess.Popen(sleeping, env={**os.environ, members.MARK: mark}, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        assert [text for text in members.orphans(mark) if "time.sleep(600)" in text]
    finally:
        process.kill()
        process.communicate()
    assert members.orphans(mark) == []


@pytest.mark.parametrize(
    ("exits", "log", "problem"),
    [
        ([0], "all is well", ""),
        ([-9, 0], "all is well", ""),
        ([FAULT_OF_OURS, 0], "", "silo-0: ended with [70, 0]: a fault of fedrep's own"),
        ([1], "", "silo-0: ended with [1] when the run was stopped"),
        ([0], "Traceback (most recent call last)\n  File x\nKeyError: 'u'\n", "silo-0: KeyError: 'u'"),
        ([0], "stops: MODEL_DIVERGED", "silo-0: its model diverged"),
    ],
)
def test_a_process_that_ends_as_none_should_is_found(scene: Scene, exits: list[int], log: str, problem: str) -> None:
    scene.members["silo-0"].exits = exits
    scene.members["silo-0"].log.write_text(log)
    drill = Drill(cast(Stage, scene), Plan(1, ()), print)
    drill.faults = cast(Any, type("Faults", (), {"revoked": set()}))
    assert drill._bad_ends() == ([problem] if problem else [])


def test_a_frame_that_a_kill_cut_short_is_left_out_and_those_before_it_are_read(scene: Scene) -> None:
    trace = TraceFile(scene.folder / "traces" / "silo-0")
    trace.note("tasks", {"tasks": 5})
    with trace.path.open("ab") as file:
        file.write(len(data := pickle.dumps(("tasks", {"tasks": 9}, {}))).to_bytes(8, "little") + data[:-1])
    invariants = Invariants(cast(Stage, scene))
    invariants.read_traces()
    assert invariants.silos["silo-0"].tasks == [5]
