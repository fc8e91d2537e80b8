"""The server as a process: killed at any moment and started again, stopped politely, and started where it cannot run."""

from __future__ import annotations

import re
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fedrep.wire.v1 import federation_pb2 as pb
from fedrep.wire.v1 import observer_pb2
from fedrep_cli.free_ports import free_port
from fedrep_cli.main import main
from fedrep_runtime.files import lock_folder
from fedrep_runtime.settings import load_settings
from fedrep_server.config import ServerSettings
from fedrep_server.store import Store, open_store
from tests.harness.live_server import SILOS, STEP, LiveServer, connect, create_run, stage, wait_until
from tests.harness.mini_silo import SECONDS, MiniSilo, play_round
from tests.harness.people import People
from tests.harness.processes import ServerProcess


@dataclass
class Server:
    """A server that is killed and started again where silos find it."""

    people: People
    settings: ServerSettings
    running: ServerProcess | None = None

    def start(self) -> ServerProcess:
        running = self.running = ServerProcess.start(self.settings, self.settings.data.parent / "server.toml")

        def serving() -> bool:
            assert running.process.poll() is None, running.log.read_text()
            return running.health() == "SERVING"

        wait_until(serving)
        return running

    def health(self) -> str:
        assert self.running is not None
        return self.running.health()

    def kill(self) -> None:
        assert self.running is not None
        self.running.kill()

    @property
    def address(self) -> str:
        return f"localhost:{self.settings.port}"

    def silos(self) -> list[MiniSilo]:
        known = [(name, self.people.credentials[name]) for name in SILOS]
        return [MiniSilo(name, own.key_pem, connect(self.people, self.address, own)) for name, own in known]

    def create_run(self, name: str) -> None:
        create_run(self.people, self.address, name)

    def store(self) -> Store:
        return open_store(f"sqlite:///{self.settings.data / 'fedrep.sqlite3'}")


@pytest.fixture
def process(people: People, tmp_path: Path) -> Iterator[Server]:
    settings = ServerSettings(
        host="127.0.0.1",
        port=free_port(),
        health_port=free_port(),
        metrics_port=free_port(),
        data=tmp_path / "data",
        credentials=people.folder / "server",
        gather_seconds=60.0,
        grace_seconds=2.0,
    )
    made = Server(people, settings)
    yield made
    if made.running is not None:
        made.kill()


def next_round(silos: list[MiniSilo], run: str) -> pb.RoundManifest:
    """Everyone joins, and the round they are all in is open."""
    limit = time.monotonic() + SECONDS
    while time.monotonic() < limit:
        answers = [silo.join(run) for silo in silos]
        if len(answers[-1].round.manifest.roster) == len(silos):
            for silo, answer in zip(silos, answers, strict=True):
                if silo.version != answer.model_version:
                    silo.fetch_model(answer.model_version)
            return answers[-1].round.manifest
        time.sleep(0.05)
    raise AssertionError("no round with everyone was opened")


def go_as_far_as(phase: str, silos: list[MiniSilo], manifest: pb.RoundManifest) -> None:
    for number, silo in enumerate(silos):
        silo.enter(manifest)
        if phase != "propose" or number < 3:
            silo.propose(*silo.proposal(range(number, 10 * manifest.per_silo, 10)))
    if phase == "propose":
        return
    for number, silo in enumerate(silos):
        silo.consensus()
        if phase != "submit" or number < 3:
            silo.submit(*silo.submission(STEP[silo.name]))
    if phase == "submit":
        return
    for silo in silos:
        silo.survivors()
    some = silos[: 3 if phase == "reveal" else 2]
    calls = [silo.stub.ConfirmSurvivors.future(silo.confirmation(), timeout=SECONDS) for silo in some]
    if phase == "reveal":
        for call in calls:
            call.result()
        silos[0].stub.RevealShares(silos[0].reveal(), timeout=SECONDS)
    else:
        time.sleep(0.1)


def test_killed_in_mid_round_the_run_goes_on_from_the_last_applied_round(process: Server) -> None:
    process.start()
    process.create_run("long")
    skipped = []
    for applied, phase in enumerate(("propose", "submit", "confirm", "reveal"), start=1):
        silos = process.silos()
        manifest = next_round(silos, "long")
        number = 2 * applied
        assert (manifest.round, manifest.model_version) == (number - 1, applied - 1)
        assert play_round(silos, manifest, STEP).outcome == pb.OUTCOME_APPLIED
        manifest = next_round(silos, "long")
        assert manifest.round == number
        go_as_far_as(phase, silos, manifest)
        process.kill()
        skipped.append(number)
        process.start()
        header, _ = asking(process, silos[0]).update(number)
        assert (header.outcome, header.reason) == (pb.OUTCOME_SKIPPED, "the server restarted during the round")
        assert header.model_version == applied
    process.kill()
    store = process.store()
    figures = store.summary("long")
    assert (figures.rounds_applied, figures.rounds_skipped) == (4, 4)
    assert [entry.round for entry in store.ledger("long", "silo-a")] == list(range(1, 9)), "it may have proposed before each kill"
    events = store.events("long", 0, 1000)
    assert [stored.position for stored in events] == list(range(1, len(events) + 1))
    assert [stored.event.round for stored in events if stored.event.kind == "round_skipped"] == skipped
    store.close()


def asking(process: Server, before: MiniSilo) -> MiniSilo:
    """The same silo over a new connection, without joining."""
    fresh = next(silo for silo in process.silos() if silo.name == before.name)
    fresh.run = before.run
    return fresh


def test_told_to_stop_it_says_so_skips_the_round_and_ends_with_zero(process: Server) -> None:
    running = process.start()
    process.create_run("short")
    silos = process.silos()
    manifest = next_round(silos, "short")
    go_as_far_as("submit", silos, manifest)
    with ThreadPoolExecutor() as threads:
        asked = threads.submit(silos[0].update, 1)
        running.process.send_signal(signal.SIGTERM)
        wait_until(lambda: process.health() != "SERVING")
        header, _ = asked.result(SECONDS)
    assert (header.outcome, header.reason) == (pb.OUTCOME_SKIPPED, "the server is shutting down")
    assert running.process.wait(SECONDS) == 0
    store = process.store()
    assert store.summary("short").rounds_skipped == 1
    store.close()


def test_a_round_that_can_end_within_the_grace_period_is_applied(people: People, tmp_path: Path) -> None:
    with LiveServer(people, tmp_path, grace_seconds=10.0) as live:
        at = stage(live, "graceful", "reveal")
        stopping = threading.Thread(target=lambda: live.ask(live.running.coordinator.shut_down()))
        stopping.start()
        wait_until(lambda: live.driver("graceful")._interpreter._stopping)
        for silo in at.silos[1:3]:
            silo.stub.RevealShares(at.sent[f"reveal/{silo.name}"], timeout=SECONDS)
        header, _ = at.first.update(1)
        assert header.outcome == pb.OUTCOME_APPLIED
        assert not header.HasField("next_round")
        stopping.join(SECONDS)
        assert not stopping.is_alive()


def said(capsys: pytest.CaptureFixture[str], config: Path, *options: str) -> tuple[int, str]:
    """Exit code and the one line on stderr of `fedrep server`."""
    code = main(["server", "--config", str(config), *options])
    complaint = [line for line in capsys.readouterr().err.splitlines() if line.startswith("fedrep server:")]
    assert len(complaint) == 1, complaint
    return code, complaint[0]


def config(people: People, folder: Path, **options: Any) -> Path:
    given = {"host": "127.0.0.1", "port": free_port(), "health_port": free_port(), "metrics_port": free_port()}
    given |= {"data": str(folder / "data"), "credentials": str(people.folder / "server"), "log_json": True} | options
    path = folder / "server.toml"
    lines = [f"{key} = {str(value).lower() if isinstance(value, bool) else repr(value)}" for key, value in given.items()]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("which", ["port", "health_port", "metrics_port"])
def test_a_port_in_use_is_one_sentence(
    people: People, tmp_path: Path, server: LiveServer, capsys: pytest.CaptureFixture[str], which: str
) -> None:
    code, line = said(capsys, config(people, tmp_path, **{which: server.running.port}))
    assert code == 1
    assert f"cannot listen on 127.0.0.1:{server.running.port}" in line


def test_a_newer_schema_is_one_sentence(people: People, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    open_store(f"sqlite:///{tmp_path / 'data' / 'fedrep.sqlite3'}").close()
    with sqlite3.connect(tmp_path / "data" / "fedrep.sqlite3") as database:
        database.execute("UPDATE alembic_version SET version_num = '9999'")
    database.close()
    code, line = said(capsys, config(people, tmp_path))
    assert code != 0
    assert "newer" in line


def test_a_folder_that_cannot_be_written_is_one_sentence(
    people: People, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("not a folder")
    code, line = said(capsys, config(people, tmp_path, data=str(tmp_path / "file" / "data")))
    assert code != 0
    assert "cannot be created" in line


def test_a_second_server_on_the_same_folder_is_one_sentence(
    people: People, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with lock_folder(tmp_path / "data"):
        code, line = said(capsys, config(people, tmp_path))
    assert code == 1
    assert "in use by another process" in line


def test_a_missing_certificate_says_how_to_get_one(people: People, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options in ([], ["--check"]):
        code, line = said(capsys, config(people, tmp_path, credentials=str(tmp_path / "nothing")), *options)
        assert code == 1
        assert "fedrep silo invite NAME --role server" in line
        assert "fedrep enroll TOKEN" in line


def test_a_silos_certificate_does_not_make_a_server(people: People, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, line = said(capsys, config(people, tmp_path, credentials=str(people.folder / "silo-a")))
    assert code == 1
    assert "role" in line


def test_bad_settings_are_shown_all_at_once(people: People, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = config(people, tmp_path, port=70000, colour="green", grace_seconds=-1.0)
    code = main(["server", "--config", str(path)])
    shown = capsys.readouterr().err
    assert code == 1
    assert "3 problems" in shown
    for name in ("port", "colour", "grace_seconds"):
        assert f"`{name}`" in shown


def test_check_says_what_a_start_would_find(people: People, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["server", "--config", str(config(people, tmp_path)), "--check"]) == 0
    shown = capsys.readouterr().out
    assert "database: reachable, empty" in shown
    assert "certificate valid until" in shown


def test_the_runs_of_a_killed_server_are_there_again(people: People, tmp_path: Path) -> None:
    """Several at once: one waiting, one paused, one stopped."""
    with LiveServer(people, tmp_path) as live:
        for name in ("waiting", "paused", "stopped"):
            live.create_run(name)
        client = live.observer()
        client.call("PauseRun", observer_pb2.PauseRunRequest(name="paused", reason="look"))
        client.call("StopRun", observer_pb2.StopRunRequest(name="stopped", reason="done"))
        client.close()
    with LiveServer(people, tmp_path) as again:
        states = {driver.manifest.name: (driver.state.value, driver.state_reason) for driver in again.running.coordinator.drivers}
    assert states["paused"] == ("paused", "look")
    assert states["stopped"] == ("stopped", "done")
    assert states["waiting"][0] == "waiting"


def test_the_file_that_init_writes_loads_as_it_is_and_with_any_line_uncommented(tmp_path: Path) -> None:
    path = tmp_path / "server.toml"
    assert main(["server", "init", str(path)]) == 0
    lines = path.read_text().splitlines()
    defaults = load_settings(ServerSettings, path, "FEDREP_SERVER", {})
    settings = [number for number, line in enumerate(lines) if re.match(r"# [a-z_]+ = ", line)]
    assert len(settings) > 10
    for number in settings:
        changed = [line.removeprefix("# ") if position == number else line for position, line in enumerate(lines)]
        path.write_text("\n".join(changed))
        assert load_settings(ServerSettings, path, "FEDREP_SERVER", {}) == defaults, lines[number]
