"""What a silo keeps on disk, without a network: which statements it may sign, and what it says about damaged files."""

from __future__ import annotations

from pathlib import Path

import grpc
import numpy as np
import pytest
import structlog

from fedrep.errors import RefusedError, SettingsError
from fedrep.protocol.error_memory import ErrorMemory
from fedrep.protocol.model_state import ModelState
from fedrep_silo.audit import Audit
from fedrep_silo.books import Books
from fedrep_silo.config import ClientSettings
from fedrep_silo.connection import ServerAwayError, connect
from fedrep_silo.sessions import RosterWatch, Sessions
from fedrep_silo.state import KEPT_ROUNDS, Journal, StateFolder
from fedrep_silo.training import Trained
from tests.harness.federation import PARAMETERS, StubTrainer


def books(folder: Path) -> Books:
    return Books(StateFolder(folder), StubTrainer())


def test_a_silo_that_revealed_never_renounces_and_one_that_renounced_never_reveals(tmp_path: Path) -> None:
    kept = books(tmp_path)
    kept.reveal(3)
    kept.renounce(4)
    again = books(tmp_path)
    assert not again.may_renounce(3)
    with pytest.raises(RefusedError, match="has revealed in round 3"):
        again.renounce(3)
    with pytest.raises(RefusedError, match="renounced revealing anything in round 4"):
        again.reveal(4)
    assert again.journal.last_round == 4, "the round counts as spoken in, so no other message follows"


def test_about_rounds_that_the_journal_has_forgotten_nothing_is_stated(tmp_path: Path) -> None:
    """Otherwise a lying server could ask about a round long ago, in which the silo did reveal."""
    folder = StateFolder(tmp_path)
    folder.save_journal(Journal(run="aa", last_round=2000, revealed=tuple(range(500, 500 + KEPT_ROUNDS + 7))))
    kept = books(tmp_path)
    assert len(kept.journal.revealed) == KEPT_ROUNDS
    assert not kept.may_renounce(506)
    assert not kept.may_renounce(1)
    assert kept.may_renounce(1999)


def test_a_training_that_was_not_submitted_leaves_the_trainers_state_on_disk_as_it_was(tmp_path: Path) -> None:
    trainer = StubTrainer()
    kept = Books(StateFolder(tmp_path), trainer)
    before = trainer.state()["momentum"].copy()
    model = trainer.initial()
    result = trainer.train(model, 1)
    kept.trained(Trained(0, model - result.model, result.loss, result.samples, 0.0, trainer.state()))
    kept.give_up(99)  # any write of the memory
    again = StubTrainer()
    Books(StateFolder(tmp_path), again)
    assert np.array_equal(again.state()["momentum"], before)
    assert kept.state_to_train_from() is not None
    assert kept.memory.needs_training(1)


def test_damaged_files_are_explained_and_a_damaged_model_is_fetched_again(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path)
    folder.save_memory(ErrorMemory(np.ones(PARAMETERS, np.float32)), {"momentum": np.zeros(PARAMETERS, np.float32)})
    folder.save_model(ModelState.initial(np.ones(PARAMETERS, np.float32)))
    (tmp_path / "model.safetensors").write_bytes(b"half a file")
    assert folder.model() is None
    (tmp_path / "memory.safetensors").write_bytes(b"half a file")
    with pytest.raises(SettingsError, match="without the residual"):
        books(tmp_path)
    (tmp_path / "memory.safetensors").unlink()
    for damage in (
        b"{",
        b"[]",
        b'{"run": 1}',
        b'{"run":"","last_round":0,"revealed":[],"renounced":[],"ledger":{},"proposal":null}',
    ):
        (tmp_path / "journal.json").write_bytes(damage)
        with pytest.raises(SettingsError, match="privacy budget"):
            books(tmp_path)


def test_a_state_for_another_model_or_trainer_is_explained(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path)
    folder.save_memory(ErrorMemory(np.ones(7, np.float32)), {})
    with pytest.raises(SettingsError, match="7 parameters, not 200"):
        books(tmp_path)
    folder.save_memory(ErrorMemory(np.ones(PARAMETERS, np.float32)), {"velocity": np.ones(1)})
    with pytest.raises(SettingsError, match="does not take back its state"):
        books(tmp_path)


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


def test_a_silo_that_has_to_leave_its_rounds_joins_again_after_growing_pauses() -> None:
    watch = RosterWatch()
    waits = []
    for _ in range(4):
        watch.left()
        rounds = 0
        while not watch.overlooked:
            watch.absent()
            rounds += 1
        waits.append(rounds)
        watch.joined()
    assert waits == [1, 2, 4, 8]
    watch.took_part()
    watch.absent()
    assert watch.overlooked


def test_a_session_key_is_erased_once_a_manifest_lists_its_successor() -> None:
    sessions = Sessions()
    first, second = sessions.new(), sessions.new()
    sessions.forget_before(second.public)
    assert list(sessions.keys) == [second.public]
    assert first.public not in sessions.keys


def test_a_server_that_stays_away_is_mentioned_once_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = connect(ClientSettings(run="run", state=tmp_path, give_up_after=1000))
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
