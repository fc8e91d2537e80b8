"""A real federation on this machine, for tests: certificates, a server, silos and an evaluator, over mTLS on localhost.

The server runs in this process (`serving`) or as a process of its own (`ServerProcess`); silos run as asyncio tasks
(`daemon(...).run()`) or as processes (`silo_process`). Ports are free ones, files lie in one temporary folder. Typical use:

    federation = Federation.create(tmp_path, silos=4)

    async def scenario() -> None:
        async with federation.serving():
            await federation.create_run(rounds=3)
            await federation.run_silos(federation.daemon(n) for n in range(4))
            assert (await federation.summary()).rounds_applied == 3

    run_scenario(scenario())
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import grpc

from fedrep.protocol.messages import Phase
from fedrep.protocol.model_state import model_hash
from fedrep.protocol.run_effects import SetTimer
from fedrep.wire.v1 import observer_pb2 as pb
from fedrep_cli.free_ports import free_port
from fedrep_identity.authority import CertificateAuthority
from fedrep_identity.certificates import Credentials, Role
from fedrep_runtime.observer_client import ObserverClient
from fedrep_runtime.run_config import AggregatorConfig, RunConfig, sign_run
from fedrep_runtime.run_orders import amend_request, rollback_request
from fedrep_runtime.toml_text import toml_document
from fedrep_server.config import ServerSettings
from fedrep_server.operations.app import RunningServer, start
from fedrep_silo.config import SiloSettings
from fedrep_silo.daemon import SiloDaemon
from fedrep_silo.evaluator import Evaluator
from fedrep_silo.training import in_thread
from fedrep_trainers.trainer import Trainer
from tests.harness.deadlines import NEVER
from tests.harness.people import People
from tests.harness.processes import ServerProcess, SiloProcess, start_process
from tests.harness.stub_trainer import PARAMETERS as PARAMETERS
from tests.harness.stub_trainer import StubTrainer as StubTrainer

T = TypeVar("T")


@dataclass
class Federation:
    """Everyone's credentials under one folder, and the server's address once it runs."""

    folder: Path
    people: People
    names: tuple[str, ...]
    port: int
    server_options: dict[str, Any] = field(default_factory=dict)
    running: RunningServer | None = None

    @classmethod
    def create(cls, folder: Path, silos: int = 4, **server_options: Any) -> Federation:
        names = tuple(f"silo-{number}" for number in range(silos))
        return cls(folder, People.create(folder / "identities", names), names, free_port(), server_options)

    @property
    def authority(self) -> CertificateAuthority:
        return self.people.authority

    def issue(self, name: str, role: Role, **options: Any) -> Credentials:
        return self.people.issue(name, role, **options)

    def identity_folder(self, name: str) -> Path:
        return self.people.folder / name

    def credentials(self, name: str) -> Credentials:
        """As they lie in the folder now."""
        return Credentials.load(self.identity_folder(name))

    @property
    def address(self) -> str:
        return f"localhost:{self.port}"

    def server_settings(self) -> ServerSettings:
        options: dict[str, Any] = {
            "host": "127.0.0.1",
            "port": self.port,
            "health_port": None,
            "metrics_port": None,
            "data": self.folder / "server",
            "credentials": self.identity_folder("server"),
            "gather_seconds": 60.0,  # a limit: a round starts when everyone is there
            "wait_seconds": 5.0,
            "grace_seconds": 2.0,
            "pace_factor": 0.0,
        }
        return ServerSettings(**(options | self.server_options))

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[RunningServer]:
        """The server in this event loop. Entering it again later is a restart on the same port and data."""
        self.running = await start(self.server_settings())
        try:
            yield self.running
        finally:
            await self.running.stop()
            self.running = None

    async def create_run(
        self, name: str = "run", trainer: Trainer | None = None, *, silos: Iterable[str] | None = None, **options: Any
    ) -> bytes:
        """A run that any of `RunConfig`'s settings may change; returns its hash. Its deadlines are limits that nobody meets."""
        trainer = trainer if trainer is not None else StubTrainer()
        settings: dict[str, Any] = {
            "rounds": 3,
            "fraction": 0.2,
            "initial_range": 1.0,
            "aggregator": AggregatorConfig(name="mean"),
            "deadlines": NEVER,
        }
        config = RunConfig(name=name, silos=tuple(silos if silos is not None else self.names), **(settings | options))
        vector = trainer.initial()
        manifest = config.manifest(vector.size, bytes.fromhex(trainer.layout.digest), model_hash(vector))
        admin = self.credentials("admin")
        signed = sign_run(manifest, "admin", admin.chain, admin.signing_key)
        response = await self._observe(lambda client: client.create_run(signed, config.options(""), vector))
        assert list(response.problems) == [], list(response.problems)
        return bytes(manifest.digest())

    async def roll_back(self, version: int, run: str = "run") -> None:
        """As `fedrep run rollback` does."""
        admin = self.credentials("admin")

        def signed(client: ObserverClient) -> None:
            status = client.call("GetRun", pb.GetRunRequest(name=run))
            client.call("RollBackRun", rollback_request(status, version, "admin", admin.chain, admin.signing_key))

        await self._observe(signed)

    async def amend(self, run: str = "run", *, add: Iterable[str] = (), remove: Iterable[str] = ()) -> None:
        """As `fedrep run amend` does."""
        admin = self.credentials("admin")

        def signed(client: ObserverClient) -> None:
            status = client.call("GetRun", pb.GetRunRequest(name=run))
            signer = ("admin", admin.chain, admin.signing_key)
            client.call("AmendRun", amend_request(status, tuple(add), tuple(remove), None, signer))

        await self._observe(signed)

    def not_waiting_for(self, silo: int, run: str = "run", *, in_rounds: Iterable[int] | None = None) -> None:
        """In these rounds (in all, when none is named) the propose deadline passes as soon as everybody else has proposed, in
        the others as soon as everybody has. The server's clock would say so too early on a busy machine."""
        assert self.running is not None
        driver = self.running.coordinator.run_named(run)
        interpreter, rounds = driver._interpreter, None if in_rounds is None else set(in_rounds)
        by_the_clock = interpreter._time_out

        async def when_all_have_proposed(timer: SetTimer, cut: bool = False) -> None:
            current = driver.open
            if timer.phase is Phase.PROPOSE and current is not None:
                missed = {self.names[silo]} if rounds is None or current.number in rounds else set()
                wanted = set(current.signed.manifest.names) - missed
                while current.machine.phase is timer.phase and not wanted <= current.machine.proposed:
                    await asyncio.sleep(0.02)
                timer, cut = replace(timer, seconds=0.0), False
            await by_the_clock(timer, cut)

        interpreter._time_out = when_all_have_proposed  # type: ignore[method-assign]

    def settings(self, silo: int | str, run: str = "run", **options: Any) -> SiloSettings:
        name = silo if isinstance(silo, str) else self.names[silo]
        given: dict[str, Any] = {
            "server": self.address,
            "run": run,
            "credentials": self.identity_folder(name),
            "state": self.folder / "state" / run / name,
            "ledger": self.folder / "ledger" / run / name,
            "give_up_after": 60.0,
            "role": "evaluator" if name == "evaluator" else "silo",
        }
        return SiloSettings(**(given | options))

    def daemon(self, silo: int, run: str = "run", trainer: Trainer | None = None, **options: Any) -> SiloDaemon:
        settings = self.settings(silo, run, **options)
        credentials = Credentials.load(settings.credentials)
        trainer = trainer if trainer is not None else StubTrainer(silo)
        return SiloDaemon(settings, credentials, credentials.trust_store(), trainer)

    def evaluator(self, run: str = "run", trainer: Trainer | None = None, **options: Any) -> Evaluator:
        settings = self.settings("evaluator", run, **options)
        trust = Credentials.load(settings.credentials).trust_store()
        return Evaluator(settings, trust, trainer if trainer is not None else StubTrainer(1000))

    async def run_silos(self, daemons: Iterable[SiloDaemon]) -> None:
        """Until the run is over for all of them; the first failure ends the others too."""
        running = list(daemons)
        async with asyncio.TaskGroup() as group:
            for daemon in running:
                group.create_task(daemon.run())
        for daemon in running:
            await daemon.connection.close()

    async def summary(self, run: str = "run") -> pb.RunSummary:
        return (await self.status(run)).summary

    async def status(self, run: str = "run") -> pb.GetRunResponse:
        response: pb.GetRunResponse = await self._observe(lambda client: client.call("GetRun", pb.GetRunRequest(name=run)))
        return response

    async def rounds(self, run: str = "run") -> list[pb.Round]:
        return list((await self._observe(lambda client: client.call("ListRounds", pb.ListRoundsRequest(name=run)))).rounds)

    async def events(self, run: str = "run", kind: str | None = None) -> list[pb.Event]:
        """All events so far."""
        last = (await self.status(run)).last_event

        def read(client: ObserverClient) -> list[pb.Event]:
            events: list[pb.Event] = []
            if last:
                for response in client.watch(run):
                    events.append(response.event)
                    if response.event.position >= last:
                        break
            return events

        return [event for event in await self._observe(read) if kind is None or event.kind == kind]

    async def until(self, condition: Callable[[pb.GetRunResponse], bool], run: str = "run") -> pb.GetRunResponse:
        """Asks the server until the run's status fulfils the condition; a server that is away is asked again."""
        while True:
            try:
                status = await self.status(run)
            except grpc.RpcError:
                status = pb.GetRunResponse()
            if condition(status):
                return status
            await asyncio.sleep(0.2)  # each question is a TLS handshake

    async def _observe(self, ask: Callable[[ObserverClient], T]) -> T:
        admin = self.credentials("admin")

        def call() -> T:
            client = ObserverClient(self.address, admin.root, admin.key_pair)
            try:
                return ask(client)
            finally:
                client.close()

        return await in_thread(call)  # not the loop's own few threads, which the server in this process needs to answer

    def start_server_process(self) -> ServerProcess:
        """On the same port and data each time; returns at once, `until_serving` waits."""
        return ServerProcess.start(self.server_settings(), self.folder / "server.toml")

    def start_silo_process(self, silo: int | str, run: str = "run", **options: Any) -> SiloProcess:
        """`fedrep client --config ...`; its trainer is a StubTrainer given as user code, unless `trainer` says otherwise."""
        name = silo if isinstance(silo, str) else self.names[silo]
        config = self.write_client_toml(silo, run, **options)
        log = config.with_suffix(".log")
        process = start_process(["-m", "fedrep_cli.main", "client", "--config", str(config)], log)
        return SiloProcess(process, name, config, log)

    def write_client_toml(self, silo: int | str, run: str = "run", **options: Any) -> Path:
        name = silo if isinstance(silo, str) else self.names[silo]
        number = self.names.index(name) if name in self.names else 1000
        settings = self.settings(silo, run)
        given = {
            "server": settings.server,
            "run": run,
            "role": settings.role,
            "credentials": settings.credentials,
            "state": settings.state,
            "ledger": settings.ledger,
            "give_up_after": settings.give_up_after,
            "log_json": True,
            "trainer": {"user_code": "stub_code:build", "user_code_dir": self.folder, "options": {"number": number}},
        }
        path = self.folder / f"{run}-{name}.toml"
        path.write_text(toml_document(given | options))
        (self.folder / "stub_code.py").write_text(
            "from tests.harness.stub_trainer import StubTrainer\n\n"
            "def build(settings):\n    return StubTrainer(**settings.options)\n"
        )
        return path
