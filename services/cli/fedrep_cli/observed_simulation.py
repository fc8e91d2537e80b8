"""`fedrep simulate --dashboard`: the simulated run in the store of a real server, which a real dashboard watches.

The server takes no part in the simulation. Whatever the simulated one would write is written to its database, and its observer
interface shows that, to viewers only: nobody steers a simulation. All of it lies in a temporary folder and ends with the command.
"""

from __future__ import annotations

import asyncio
import secrets
import tempfile
import threading
import time
from collections.abc import Coroutine
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

from fedrep.protocol.run_effects import CommitRound, OpenRound, Save
from fedrep.wire.v1 import federation_pb2 as pb
from fedrep_cli.free_ports import free_ports
from fedrep_cli.processes import Processes
from fedrep_identity.certificates import CERTIFICATE_FILE, KEY_FILE, ROOT_FILE, PeerCertificate
from fedrep_runtime.files import write_atomically
from fedrep_runtime.run_config import sign_run
from fedrep_runtime.toml_text import toml_document
from fedrep_server.config import ServerSettings
from fedrep_server.operations.app import RunningServer, start
from fedrep_server.rounds.round_row import Clock, round_row
from fedrep_server.rounds.run_driver import RunDriver
from fedrep_server.store import Traffic
from fedrep_simulator.folder import Row
from fedrep_simulator.people import People, Person
from fedrep_simulator.server import Written
from fedrep_simulator.simulation import Simulation
from fedrep_simulator.terms import Terms, names_of

T = TypeVar("T")
FIGURES = ("accuracy", "loss")


class ObservedSimulation:
    """`url` signs a viewer in. `watch` a simulation before it is played, and tell every row to `show`."""

    def __init__(self, terms: Terms) -> None:
        self._people = People.enrol(names_of(terms.run.silos))
        self._simulation: Simulation | None = None
        self._driver: RunDriver | None = None
        self._opened_at = 0.0
        self._before: dict[str, tuple[int, int]] = {}
        with ExitStack() as stack:
            self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedrep-dashboard-")))
            self._loop = asyncio.new_event_loop()
            thread = threading.Thread(target=self._loop.run_forever, name="dashboard", daemon=True)
            thread.start()
            stack.callback(self._loop.close)
            stack.callback(thread.join)
            stack.callback(self._loop.call_soon_threadsafe, self._loop.stop)
            self._server = self._started(stack)
            self.url = self._dashboard(stack)
            self._open = stack.pop_all()

    def __enter__(self) -> ObservedSimulation:
        return self

    def __exit__(self, *_: object) -> None:
        if self._driver is not None:
            self._driver.machine.open = None  # nobody is left to end it
        self._open.close()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _started(self, stack: ExitStack) -> RunningServer:
        settings = ServerSettings(
            host="127.0.0.1",
            port=0,
            health_port=None,
            metrics_port=None,
            data=self._folder / "data",
            credentials=self._identity("server", self._people.server),
            grace_seconds=0.1,
        )
        settings.data.mkdir()
        running = self._wait(start(settings, lambda *_: None))
        stack.callback(lambda: self._wait(_stopped(running)))
        return running

    def _dashboard(self, stack: ExitStack) -> str:
        (port,) = free_ports(1)
        token = secrets.token_urlsafe(24)
        document = {
            "port": port,
            "server": f"localhost:{self._server.port}",
            "credentials": str(self._identity("viewer", self._people.viewer)),
            "viewer_token": token,
        }
        config = self._folder / "dashboard.toml"
        write_atomically(config, toml_document(document).encode())
        self.processes = stack.enter_context(Processes(self._folder / "logs"))
        self.processes.start("dashboard", ["dashboard", "--config", str(config)])
        return f"http://127.0.0.1:{port}/#token={token}"

    def _identity(self, name: str, person: Person) -> Path:
        folder, own = self._folder / name, person.credentials
        for file, data in ((KEY_FILE, own.key_pem), (CERTIFICATE_FILE, own.chain), (ROOT_FILE, own.root)):
            write_atomically(folder / file, data)
        return folder

    def watch(self, simulation: Simulation) -> Written:
        """From here on this run is shown, from where it stands: rounds of an earlier sitting are in the history's files."""
        manifest, admin = simulation.scene.run, self._people.admin
        signed = sign_run(manifest, "admin", admin.credentials.chain, admin.signing_key)
        vector = simulation.initial.astype("<f4").tobytes()
        coordinator = self._server.coordinator
        self._wait(coordinator.create_run(signed, simulation.terms.run.options(simulation.layout.described), vector))
        self._simulation, self._driver = simulation, coordinator.run_named(manifest.name)
        self._before, self._opened_at = dict(simulation.sitting.traffic), time.time()
        return self._write

    def show(self, row: Row, _rounds: int) -> None:
        """What the evaluator of a federation would report about the round, and what its attackers are."""
        assert self._driver is not None
        assert self._simulation is not None
        number, version = row["round"], self._driver.model.state.version
        run = self._driver.run
        told = {name: row[name] for name in FIGURES if row[name] is not None}
        if told:
            request = pb.ReportMetricsRequest(run=run, round=number, model_version=version, **told)
            self._report(self._people.evaluator, request)
        coalition = self._simulation.scene.coalition
        for name in coalition.members:
            drill = pb.ReportMetricsRequest(run=run, round=number, model_version=version, drill=coalition.attack.name)
            self._report(self._people.silos[name], drill)

    def _report(self, person: Person, request: pb.ReportMetricsRequest) -> None:
        assert self._driver is not None
        peer: PeerCertificate = person.credentials.trust_store().verify(person.credentials.chain)
        self._wait(self._server.coordinator.report(self._driver, peer, request))

    def _write(self, save: Save) -> None:
        assert self._driver is not None
        machine, records = self._driver.machine, self._driver.records
        if isinstance(save, CommitRound):
            ended, traffic = time.time(), self._traffic()
            row = round_row(save.closed, Clock(self._opened_at, (self._opened_at, ended)), traffic)
            records.commit(save, row, traffic)
            self._opened_at = ended
        else:
            records.write(save)
        machine.progress = save.progress
        machine.open = save.round if isinstance(save, OpenRound) else None if isinstance(save, CommitRound) else machine.open

    def _traffic(self) -> dict[str, Traffic]:
        """Of every silo since the last round."""
        assert self._simulation is not None
        now = {name: (own.up, own.down) for name, own in self._simulation.traffic.silos.items()}
        before, self._before = self._before, now
        return {
            name: Traffic(up - before.get(name, (0, 0))[0], down - before.get(name, (0, 0))[1])
            for name, (up, down) in now.items()
        }


async def _stopped(running: RunningServer) -> None:
    await running.stop()
