"""What a silo keeps on disk, without a network: what is written, what comes back, and what it says about damaged files."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from unittest.mock import ANY

import grpc
import numpy as np
import pytest
import structlog

from fedrep.coding import encode_coordinates
from fedrep.errors import RefusedError, SettingsError
from fedrep.privacy import CoordinateRelease, Ledger
from fedrep.protocol.error_memory import ErrorMemory
from fedrep.protocol.manifests import RunHash
from fedrep.protocol.messages import Outcome, Update
from fedrep.protocol.model_state import ModelState, ServerModel
from fedrep.protocol.silo_effects import Save
from fedrep.protocol.silo_rules import STATEMENT_ROUNDS
from fedrep.protocol.silo_state import Journal, SiloState, TrainerState
from fedrep_silo.audit import Audit
from fedrep_silo.config import SiloSettings
from fedrep_silo.connection import ServerAwayError, connect
from fedrep_silo.ledgers import LONGEST_FILE, LedgerFolder
from fedrep_silo.reports import Reports
from fedrep_silo.state import StateFolder, Written
from tests.harness.federation import PARAMETERS, StubTrainer


def loaded(folder: Path) -> SiloState:
    return StateFolder(folder).load(StubTrainer())


def test_the_journal_on_disk_keeps_the_last_reveals_and_statements(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path)
    kept = Journal(run="aa", last_round=2000, revealed=tuple(range(500, 500 + STATEMENT_ROUNDS + 7)))
    folder.save_journal(kept)
    journal = loaded(tmp_path).journal
    assert len(journal.revealed) == STATEMENT_ROUNDS
    assert not journal.may_renounce(506), "forgotten: a lying server could ask about a round in which the silo did reveal"
    assert not journal.may_renounce(1)
    assert journal.may_renounce(1999)


def test_a_training_that_was_not_submitted_leaves_the_trainers_state_on_disk_as_it_was(tmp_path: Path) -> None:
    trainer = StubTrainer()
    folder = StateFolder(tmp_path)
    state = folder.load(trainer)
    before = trainer.state()["momentum"].copy()
    result = trainer.train(trainer.initial(), 1)
    assert np.any(trainer.state()["momentum"] != before)
    assert np.any(result.model != trainer.initial())
    folder.write(Save(replace(state, journal=Journal(run="aa"), memory=replace(state.memory, given_up=1))))
    again = StubTrainer()
    after = StateFolder(tmp_path).load(again)
    assert np.array_equal(again.state()["momentum"], before)
    assert after.memory.given_up == 1


def test_only_what_changed_is_written_and_a_receipt_comes_last(tmp_path: Path) -> None:
    written: list[str] = []

    class Watched(StateFolder):
        def save_journal(self, journal: Journal) -> None:
            super().save_journal(journal)
            written.append("journal")

        def save_memory(self, memory: ErrorMemory, trainer: TrainerState, before: SiloState | None = None) -> None:
            super().save_memory(memory, trainer, before)
            written.append("memory")

        def save_model(self, model: ModelState, before: SiloState | None = None) -> None:
            super().save_model(model, before)
            written.append("model")

    folder = Watched(tmp_path)
    state = folder.load(StubTrainer())
    model = ModelState.initial(np.zeros(PARAMETERS, np.float32))
    everything = replace(state, journal=Journal(run="aa"), memory=replace(state.memory, given_up=1), model=model)
    save = Save(everything)
    assert folder.write(save) == Written(save)
    assert written == ["journal", "memory", "model"]
    folder.write(save)
    folder.write(Save(replace(everything, journal=Journal(run="bb"))))
    assert written == ["journal", "memory", "model", "journal"]


def test_damaged_files_are_explained_and_a_damaged_model_is_fetched_again(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path)
    folder.save_journal(Journal())
    folder.save_memory(ErrorMemory(np.ones(PARAMETERS, np.float32)), {"momentum": np.zeros(PARAMETERS, np.float32)})
    folder.save_model(ModelState.initial(np.ones(PARAMETERS, np.float32)))
    (tmp_path / "model.safetensors").write_bytes(b"half a file")
    assert folder.model() is None
    (tmp_path / "memory.safetensors").write_bytes(b"half a file")
    with pytest.raises(SettingsError, match="without the residual"):
        loaded(tmp_path)
    (tmp_path / "memory.safetensors").unlink()
    for damage in (
        b"{",
        b"[]",
        b'{"run": 1}',
        b'{"run":"","last_round":0,"revealed":[],"renounced":[],"ledger":{},"proposal":null}',
    ):
        (tmp_path / "journal.json").write_bytes(damage)
        with pytest.raises(SettingsError, match="in which rounds this silo spoke"):
            loaded(tmp_path)


def test_a_state_for_another_model_or_trainer_is_explained(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path)
    folder.save_journal(Journal())
    folder.save_memory(ErrorMemory(np.ones(7, np.float32)), {})
    with pytest.raises(SettingsError, match="7 parameters, not 200"):
        loaded(tmp_path)
    folder.save_memory(ErrorMemory(np.ones(PARAMETERS, np.float32)), {"velocity": np.ones(1)})
    with pytest.raises(SettingsError, match="does not take back its state"):
        loaded(tmp_path)


def test_a_line_cut_short_by_a_crash_does_not_hide_the_rest_of_the_audit(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "audit.jsonl")
    audit.sent("Join", 10, 0)
    with (tmp_path / "audit.jsonl").open("a") as file:
        file.write('{"at": 1, "wha')
    audit = Audit(tmp_path / "audit.jsonl")
    audit.sent("RevealShares", 20, 1, mates=["a"])
    kinds = [entry["what"] for entry in audit.entries()]
    assert kinds == ["Join", "RevealShares"]
    assert (tmp_path / "audit.jsonl").stat().st_mode & 0o777 == 0o600


def test_a_server_that_stays_away_is_mentioned_once_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = connect(SiloSettings(run="run", state=tmp_path, give_up_after=1000))
    nothing = grpc.aio.Metadata()
    error = grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, nothing, nothing, "connection refused", None)
    with structlog.testing.capture_logs() as lines:
        for second in range(0, 125, 5):
            with monkeypatch.context() as clock:
                clock.setattr("fedrep_silo.connection.time.monotonic", lambda second=second: 10.0 + second)
                connection._note_away(second, error)
    assert [line["seconds"] for line in lines] == [0, 60, 120]
    assert connection.lost
    with pytest.raises(ServerAwayError, match="fedrep doctor"):
        connection._note_away(1001, error)


def test_a_memory_without_its_journal_is_not_taken_for_a_new_folder(tmp_path: Path) -> None:
    """The journal says where the silo spoke and revealed; without it everything could be said again."""
    StateFolder(tmp_path).save_memory(ErrorMemory(np.ones(PARAMETERS, np.float32)), {})
    with pytest.raises(SettingsError, match="a memory and no journal"):
        loaded(tmp_path)


def test_what_was_spent_outlasts_a_purge_and_counts_in_the_next_run(tmp_path: Path) -> None:
    release = CoordinateRelease(1, 100, 2, 0.5)
    ledgers = LedgerFolder(tmp_path / "ledger", "silo-0")
    folder = StateFolder(tmp_path / "state", ledgers)
    state = folder.load(StubTrainer())
    folder.write(Save(replace(state, journal=Journal(run="aa", ledger=Ledger().charge(release)))))
    (tmp_path / "state" / ".memory.safetensors.part").write_bytes(b"half")
    folder.purge()
    assert list((tmp_path / "state").iterdir()) == []
    assert ledgers.of("aa").rounds == 1, "the same run goes on from there"
    assert ledgers.elsewhere("bb") == pytest.approx(release.epsilon), "and another run over the data adds to it"
    assert ledgers.elsewhere("aa") == 0.0


def test_a_folder_that_is_older_than_its_ledger_is_refused_and_one_that_crashed_twice_is_not(tmp_path: Path) -> None:
    """A copy that is put back would send values again; a crash may leave one charge behind that the journal does not know."""
    ledgers, folder = LedgerFolder(tmp_path / "ledger", "silo-0"), tmp_path / "state"
    state = StateFolder(folder, ledgers).load(StubTrainer())
    ledger = state.journal.ledger

    def charge() -> Ledger:
        return ledger.charge(CoordinateRelease(ledger.rounds + 1, 100, 4, 0.5))

    ledger = charge()
    opened = StateFolder(folder, ledgers)
    opened.load(StubTrainer())
    opened.write(Save(replace(state, journal=Journal(run="ab" * 32, last_round=1, ledger=ledger))))
    for _ in range(3):  # each time between the ledger and the journal
        ledger = charge()
        ledgers.write("ab" * 32, ledger)
        assert StateFolder(folder, ledgers).load(StubTrainer()).journal.ledger == ledger
    for _ in range(2):
        ledger = charge()
        ledgers.write("ab" * 32, ledger)
    with pytest.raises(SettingsError, match=r"knows nothing of 2 proposals .*--purge") as refused:
        StateFolder(folder, ledgers).load(StubTrainer())
    assert refused.value.reason == "STATE_TOO_OLD"


def test_a_ledger_that_knows_less_than_the_folder_of_its_run_is_refused(tmp_path: Path) -> None:
    """Its disk is away, or an old copy was put back: other runs' charges are lost with it."""
    ledgers = LedgerFolder(tmp_path / "ledger", "silo-0")
    folder = StateFolder(tmp_path / "state", ledgers)
    state = folder.load(StubTrainer())
    spent = Ledger().charge(CoordinateRelease(1, 100, 2, 0.5))
    folder.write(Save(replace(state, journal=Journal(run="ab" * 32, ledger=spent))))
    with pytest.raises(SettingsError, match=r"counts 0 proposals, and .* 1, so what has been spent") as refused:
        StateFolder(tmp_path / "state", LedgerFolder(tmp_path / "another", "silo-0")).load(StubTrainer())
    assert refused.value.reason == "LEDGER_LOST"


def test_a_charge_that_the_journal_missed_stays_charged(tmp_path: Path) -> None:
    """kill -9 between the two files: the ledger is written first."""
    ledgers = LedgerFolder(tmp_path / "ledger", "silo-0")
    folder = StateFolder(tmp_path / "state", ledgers)
    folder.save_journal(Journal(run="aa"))
    ledgers.write("aa", Ledger().charge(CoordinateRelease(1, 100, 2, 0.5)))
    assert folder.load(StubTrainer()).journal.ledger.rounds == 1


def test_a_charge_that_a_crash_cut_short_does_not_count_and_the_next_one_does(tmp_path: Path) -> None:
    ledgers = LedgerFolder(tmp_path, "silo-0")
    charged = [Ledger().charge(CoordinateRelease(1, 100, 4, 0.5))]
    for number in (2, 3):
        charged.append(charged[-1].charge(CoordinateRelease(number, 100, 4, 0.5)))
    for ledger in charged[:2]:
        ledgers.write("run", ledger)
    (path,) = tmp_path.glob("silo-0-*.json")
    whole = path.read_bytes()
    assert LedgerFolder(tmp_path, "silo-0").of("run") == charged[1]
    for cut in range(len(whole.splitlines()[1])):
        path.write_bytes(whole.splitlines(keepends=True)[0] + whole.splitlines()[1][:cut])
        assert LedgerFolder(tmp_path, "silo-0").of("run") == charged[0], "what it would have paid for never left"
    lost_pages = b"\0" * (len(whole.splitlines()[1]) - 5) + whole[-6:]
    path.write_bytes(whole.splitlines(keepends=True)[0] + lost_pages)
    assert LedgerFolder(tmp_path, "silo-0").of("run") == charged[0], "its end reached the disk, and its beginning did not"
    after_the_crash = LedgerFolder(tmp_path, "silo-0")
    after_the_crash.of("run")
    after_the_crash.write("run", charged[2])
    assert after_the_crash.of("run") == charged[2]


def test_of_two_daemons_in_one_run_the_one_that_finds_a_charge_of_the_other_stops(tmp_path: Path) -> None:
    """Each would write a sum of its own, and the last line would hide what the other has spent."""
    one, other = (LedgerFolder(tmp_path, "silo-0") for _ in range(2))
    assert one.of("run") == other.of("run") == Ledger()
    charged = [Ledger().charge(CoordinateRelease(number, 100, 4, 0.5)) for number in (1, 2)]
    one.write("run", charged[0])
    with pytest.raises(SettingsError, match="another daemon of 'silo-0'"):
        other.write("run", charged[1])
    assert LedgerFolder(tmp_path, "silo-0").of("run") == charged[0]


def test_two_runs_over_the_same_data_do_not_spend_the_rest_of_a_budget_twice(tmp_path: Path) -> None:
    release = CoordinateRelease(1, 100, 4, 0.5)
    assert release.epsilon is not None
    one, other = (LedgerFolder(tmp_path, "silo-0", 1.5 * release.epsilon) for _ in range(2))
    assert one.elsewhere("one") == other.elsewhere("other") == 0.0, "both see enough left"
    one.write("one", Ledger().charge(release))
    with pytest.raises(RefusedError, match="epsilon budget"):
        other.write("other", Ledger().charge(release))
    assert other.of("other") == Ledger()
    assert other.elsewhere("other") == release.epsilon
    poor = LedgerFolder(tmp_path, "silo-0", 0.5 * release.epsilon)
    poor.write("a run that it joins", Ledger())  # which costs nothing: it abstains there, or proposes what everybody knows


def test_a_ledger_file_stays_short_and_one_of_an_earlier_release_is_read(tmp_path: Path) -> None:
    ledgers, ledger = LedgerFolder(tmp_path, "silo-0"), Ledger()
    for number in range(1, 401):
        ledger = ledger.charge(CoordinateRelease(number, 100, 4, 0.5))
        ledgers.write("run", ledger)
    (path,) = tmp_path.glob("silo-0-*.json")
    assert path.stat().st_size <= LONGEST_FILE
    assert ledgers.of("run") == ledger
    path.write_text(json.dumps(ledger.to_dict()))
    assert LedgerFolder(tmp_path, "silo-0").of("run") == ledger


def test_a_model_alone_waits_for_no_disk_and_is_safe_with_the_next_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = StateFolder(tmp_path)
    state = folder.load(StubTrainer())
    model = ModelState.initial(np.zeros(PARAMETERS, np.float32))
    state = replace(state, journal=Journal(run="aa"), model=model)
    folder.write(Save(state))
    syncs: list[int] = []
    monkeypatch.setattr(os, "fdatasync", syncs.append)
    indices = np.array([1, 3])
    server, coded = ServerModel.initial(model.vector.copy()), encode_coordinates(indices, PARAMETERS)
    moved, descent = server.apply(indices, coded, np.ones(2, np.float32), 16)
    update = Update(RunHash(b""), 1, Outcome.APPLIED, "", moved.state.name, descent=descent)
    followed = replace(state, model=model.follow(update, indices))
    assert folder.is_short(Save(followed))
    folder.write(Save(followed))
    assert syncs == []
    spoken = replace(followed, journal=Journal(run="aa", last_round=1))
    assert not folder.is_short(Save(spoken))
    folder.write(Save(spoken))
    assert len(syncs) == 1
    again = StateFolder(tmp_path).load(StubTrainer())
    assert again.model is not None
    assert again.model.version == 1
    assert again.journal.last_round == 1


def test_a_status_that_a_full_disk_does_not_take_is_said_and_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = SiloSettings(server="localhost:1", run="run", credentials=tmp_path, state=tmp_path, ledger=tmp_path)
    folder, nobody = StateFolder(tmp_path), cast(Any, None)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def scenario() -> None:
        reports = Reports(settings, nobody, folder, nobody, nobody, "silo-0", nobody)
        with monkeypatch.context() as disk:
            disk.setattr(os, "pwrite", full)
            reports.phase(1, "training")
        reports.phase(2, "training")
        reports.close()

    with structlog.testing.capture_logs() as logs:
        asyncio.run(scenario())
    assert [line["event"] for line in logs] == ["status_not_written"]
    written = json.loads((tmp_path / "status.json").read_text())
    assert written == {"silo": "silo-0", "run": "run", "server": "localhost:1", "phase": "training", "at": ANY, "round": 2}
