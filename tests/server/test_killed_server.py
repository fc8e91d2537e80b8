"""The real store and model files, copied after every single write as a kill would leave them, and started again."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from fedrep.errors import FedrepError
from fedrep.protocol.goals import Totals
from fedrep.protocol.manifests import SignedRunManifest
from fedrep.protocol.messages import Update
from fedrep.protocol.run_effects import Save
from fedrep.protocol.run_progress import RunProgress, RunState
from fedrep.wire.v1 import observer_pb2
from fedrep_identity.authority import CertificateAuthority, issue_credentials
from fedrep_identity.certificates import Credentials, Identity, Role
from fedrep_server.config import ServerSettings
from fedrep_server.rounds.coordinator import Coordinator
from fedrep_server.rounds.model_store import FolderModelStore, ModelStore
from fedrep_server.rounds.records import RunRecords
from fedrep_server.rounds.run_driver import RunDriver
from fedrep_server.store import Store, open_store, sqlite_url
from tests.protocol.played_run import Interpreter, PlayedRun, copied
from tests.protocol.run_crashes import Past, check_restart, play_commands, play_rounds

WRITES = frozenset(
    {"create_run", "append_events", "set_run_state", "save_progress", "open_round", "commit_round", "retire_models"}
    | {"put", "delete", "prune"}
)


class Watched:
    """Passes every call on, except one kind if asked to, and says when something was written."""

    def __init__(self, inner: object, moment: Callable[[], None], lost: str) -> None:
        self._inner, self._moment, self._lost = inner, moment, lost

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)
        if name not in WRITES:
            return method

        def write(*args: Any) -> Any:
            done = None if name == self._lost else method(*args)
            self._moment()
            return done

        return write


class RecordsDisk:
    """The disk of an interpreter: a run's records, written as the server writes them."""

    def __init__(self, records: RunRecords) -> None:
        self.records = records

    def write(self, save: Save) -> Iterator[None]:
        self.records.write(save)
        yield

    def read(self) -> tuple[RunProgress, int]:
        stored = self.records.store.run(self.records.name)
        return self.records.read(stored), stored.open_round

    def update(self, number: int) -> Update | None:
        try:
            return self.records.update(number)
        except FedrepError:
            return None

    def totals(self) -> Totals:
        return self.records.totals()


class Server:
    """As much of a server as decides and keeps: store, model files and coordinator, without ports."""

    def __init__(self, folder: Path, credentials: Path, moment: Callable[[], None] = lambda: None, lost: str = "") -> None:
        self.store = open_store(sqlite_url(folder))
        settings = ServerSettings(data=folder, credentials=credentials)
        store = cast(Store, Watched(self.store, moment, lost))
        models = cast(ModelStore, Watched(FolderModelStore(folder / "models"), moment, lost))
        self.coordinator = Coordinator(settings, store, models, Credentials.load(credentials))

    def create(self, run: PlayedRun, **options: Any) -> RunDriver:
        signed = SignedRunManifest(run.run, "admin", b"", b"")
        return self.coordinator._created(signed, observer_pb2.RunOptions(**options), run.model)

    def resume(self, run: PlayedRun) -> RunDriver:
        return self.coordinator._restored(self.store.run(run.run.name))


def interpreter_of(driver: RunDriver) -> Interpreter:
    return Interpreter(driver.machine, RecordsDisk(driver.records))


@pytest.fixture(scope="module")
def credentials(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("identity")
    authority = CertificateAuthority.create(folder / "ca", "federation", "a passphrase for tests")
    issue_credentials(authority, folder / "server", Identity("server", Role.SERVER, "federation"))
    return folder / "server"


def four_silos() -> PlayedRun:
    made = PlayedRun.of(4, parameters=32, quorum=3)
    assert isinstance(made, PlayedRun)
    return made


def kill_everywhere(run: PlayedRun, script: Callable[[PlayedRun], None], credentials: Path, folder: Path, lost: str = "") -> int:
    """Plays the script, and restarts from copies of the folder: after every write, and after every word to anybody."""
    live, first = folder / "live", copied(run.model)
    kills: list[tuple[Path, Past]] = []

    def moment() -> None:
        if hasattr(run, "interpreter"):
            shutil.copytree(live, folder / str(len(kills)))
            kills.append((folder / str(len(kills)), Past.of(run.interpreter, first)))

    server = Server(live, credentials, moment, lost)
    run.interpreter = interpreter_of(server.create(run))
    run.interpreter.moment = moment
    script(run)
    server.store.close()
    for left, past in kills:
        again = Server(left, credentials)
        try:
            check_restart(run, past, interpreter_of(again.resume(run)))
        finally:
            again.store.close()
    return len(kills)


def rounds(run: PlayedRun) -> None:
    play_rounds(run, {})


@pytest.mark.parametrize(("script", "at_least"), [(rounds, 20), (play_commands, 40)])
def test_a_server_killed_after_any_write_goes_on_and_takes_nothing_back(
    script: Callable[[PlayedRun], None], at_least: int, credentials: Path, tmp_path: Path
) -> None:
    assert kill_everywhere(four_silos(), script, credentials, tmp_path) >= at_least


@pytest.mark.parametrize(
    ("script", "lost"),
    [(rounds, "open_round"), (rounds, "put"), (play_commands, "set_run_state"), (play_commands, "save_progress")],
)
def test_the_check_notices_a_write_that_never_reached_the_disk(
    script: Callable[[PlayedRun], None], lost: str, credentials: Path, tmp_path: Path
) -> None:
    with pytest.raises((AssertionError, FedrepError)):
        kill_everywhere(four_silos(), script, credentials, tmp_path, lost)


def test_a_server_killed_after_the_round_that_used_the_budget_up_opens_no_other(credentials: Path, tmp_path: Path) -> None:
    run, live = four_silos(), tmp_path / "live"
    kills: list[Path] = []

    def moment() -> None:
        if hasattr(run, "interpreter"):
            kills.append(Path(shutil.copytree(live, tmp_path / str(len(kills)))))

    server = Server(live, credentials, moment)
    run.interpreter = interpreter_of(server.create(run, epsilon_budget=0.1))
    run.play_all()
    server.store.close()
    after = 0
    for left in kills:
        again = Server(left, credentials)
        stored = again.store.run(run.run.name)
        if (stored.progress.last_round, stored.state) == (1, "running"):
            after += 1
            assert again.resume(run).state is RunState.FINISHED
        again.store.close()
    assert after
