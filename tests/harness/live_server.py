"""A real server on an ephemeral port, in a thread of its own; tests call it with blocking stubs."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import grpc
import numpy as np

from fedrep.protocol.model_state import model_hash
from fedrep.protocol.run_events import TimedOut
from fedrep.wire import codec
from fedrep.wire.v1 import federation_pb2 as pb
from fedrep.wire.v1 import observer_pb2
from fedrep_identity.certificates import Credentials
from fedrep_runtime.observer_client import ObserverClient
from fedrep_runtime.run_config import AggregatorConfig, RunConfig, sign_run
from fedrep_runtime.run_orders import rollback_request
from fedrep_runtime.status import reason_of
from fedrep_runtime.tls import channel_options, client_channel_credentials
from fedrep_server.config import ServerSettings
from fedrep_server.operations.app import RunningServer, start
from fedrep_server.rounds.run_driver import RunDriver
from fedrep_silo.config import SiloSettings
from tests.harness.deadlines import NEVER
from tests.harness.mini_silo import SECONDS, MiniSilo
from tests.harness.people import People

T = TypeVar("T")
PARAMETERS = 200
SILOS = ("silo-a", "silo-b", "silo-c", "silo-d")
STEP = dict.fromkeys(SILOS, [0.01] * PARAMETERS)  # an update of each silo
OUTSIDER = "silo-z"
PHASES = ("propose", "submit", "confirm", "reveal", "done")


class LiveServer:
    """The server's event loop runs in a thread; `ask` runs a coroutine there."""

    def __init__(self, people: People, data: Path, **options: Any) -> None:
        """With a `loop` that runs already the server lives there, and leaves it as it is."""
        loop: asyncio.AbstractEventLoop | None = options.pop("loop", None)
        self.people = people
        given: dict[str, Any] = {
            "host": "127.0.0.1",
            "port": 0,
            "health_port": 0,
            "metrics_port": None,
            "data": data,
            "credentials": people.folder / "server",
            "gather_seconds": 60.0,  # a limit: a round starts when everyone is there
            "wait_seconds": 5.0,
            "grace_seconds": 0.05,  # most servers stop in mid-round, and nobody is there who would end it
            "pace_factor": 0.0,
            "line_grace_seconds": 3600.0,  # tests hang up on purpose; whoever asks what follows sets it
        }
        self.settings = ServerSettings(**(given | options))
        self._borrowed = loop is not None
        self.loop = loop or asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._channels: dict[str, grpc.Channel] = {}
        self.running: RunningServer

    def __enter__(self) -> LiveServer:
        if not self._borrowed:
            self._thread.start()
        self.running = self.ask(start(self.settings))
        return self

    def __exit__(self, *_: object) -> None:
        for channel in self._channels.values():
            channel.close()
        self.ask(self.running.stop())
        if self._borrowed:
            return
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()

    def ask(self, work: Awaitable[T], seconds: float = 120.0) -> T:
        async def wait() -> T:
            return await work

        return asyncio.run_coroutine_threadsafe(wait(), self.loop).result(seconds)

    @property
    def address(self) -> str:
        return f"localhost:{self.running.port}"

    def silo_settings(self, name: str, run: str, folder: Path) -> SiloSettings:
        credentials = self.people.folder / name
        return SiloSettings(server=self.address, run=run, credentials=credentials, state=folder, ledger=folder / "ledger")

    def channel(self, name: str, options: Sequence[tuple[str, Any]] = ()) -> grpc.Channel:
        """One for each name; `options` are those of its first call."""
        if name not in self._channels:
            self._channels[name] = self.connect(self.people.credentials[name], options)
        return self._channels[name]

    def connect(self, credentials: Credentials, options: Sequence[tuple[str, Any]] = ()) -> grpc.Channel:
        return connect(self.people, self.address, credentials, options)

    def observer(self, name: str = "admin") -> ObserverClient:
        return observer(self.people, self.address, name)

    def driver(self, run: str) -> RunDriver:
        return next(driver for driver in self.running.coordinator.drivers if driver.manifest.name == run)

    def pass_deadline(self, run: str) -> None:
        """The deadline of the phase that the open round is in passes now."""
        driver = self.driver(run)
        current = driver.open
        assert current is not None
        self.ask(driver._interpreter.tell(TimedOut(current.number, current.machine.phase)))

    def waiting(self, run: str) -> int:
        """How many calls wait for the run to move on."""
        return len(self.driver(run)._interpreter.bell._ring._waiters)

    def waiting_streams(self) -> int:
        """How many streams of silos are on their way in."""
        return len(self.running.gate.alone)

    @property
    def thread_name(self) -> str:
        """Of the thread that runs the server's event loop."""
        return self._thread.name

    def tasks(self) -> int:
        """How much goes on in the server's event loop."""

        async def count() -> int:
            return len(asyncio.all_tasks())

        return self.ask(count())

    def silo(self, name: str) -> MiniSilo:
        return MiniSilo(name, self.people.credentials[name].key_pem, self.channel(name))

    def signed_run(self, name: str, **options: Any) -> tuple[Any, RunConfig, Any]:
        return signed_run(self.people, name, **options)

    def create_run(self, name: str, **options: Any) -> bytes:
        return create_run(self.people, self.address, name, **options)

    def rollback_request(self, run: str, version: int, signer: str = "admin") -> observer_pb2.RollBackRunRequest:
        client, own = self.observer(), self.people.credentials[signer]
        status = client.call("GetRun", observer_pb2.GetRunRequest(name=run))
        client.close()
        return rollback_request(status, version, own.identity.name, own.chain, own.signing_key)

    def snapshot(self, run: str) -> Mapping[str, Any]:
        """Everything the store and the driver hold about a run. Equal before and after means: nothing has changed."""
        store = self.running.coordinator.store
        driver = self.driver(run)
        self.ask(_quiet(driver))
        stored = store.run(run)
        held: dict[str, Any] = {
            "run": stored,
            "figures": store.summary(run),
            "rounds": store.rounds(run, 0, 1000),
            "silos": store.silo_rows(run),
            "models": store.models(run),
            "events": store.events(run, 0, 1000),
            "ledger": [store.ledger(run, silo) for silo in SILOS],
            "statements": [store.statements(run, number) for number in range(driver.last_round + 2)],
            "runs": [known.name for known in store.runs()],
            "state": (driver.state, driver.state_reason, driver.last_round, driver.clip_range, driver.attendance),
            "rollback": driver.rollback,
            "model": (driver.model.state.hash, driver.model.state.version),
        }
        if driver.open is not None:
            machine = driver.open.machine
            held["round"] = {
                key: _frozen(value)
                for key, value in vars(machine).items()
                if key not in ("_keys", "_rng", "_book", "run", "manifest")
            }
            held["book"] = {key: _frozen(value) for key, value in vars(machine._book).items() if key != "_proposals"}
        return held


def connect(people: People, address: str, credentials: Credentials, options: Sequence[tuple[str, Any]] = ()) -> grpc.Channel:
    root = people.credentials["server"].root
    return grpc.secure_channel(
        address, client_channel_credentials(root, credentials.key_pair), options=[*channel_options(), *options]
    )


def observer(people: People, address: str, name: str = "admin") -> ObserverClient:
    own = people.credentials[name]
    return ObserverClient(address, own.root, own.key_pair)


def signed_run(people: People, name: str, **options: Any) -> tuple[Any, RunConfig, Any]:
    settings: dict[str, Any] = {
        "silos": SILOS,
        "rounds": 50,
        "fraction": 0.2,
        "initial_range": 1.0,
        "aggregator": AggregatorConfig(name="mean"),
        "deadlines": NEVER,
    }
    config = RunConfig(name=name, **(settings | options))
    vector = np.random.default_rng(1).normal(size=PARAMETERS).astype(np.float32)
    admin = people.credentials["admin"]
    manifest = config.manifest(PARAMETERS, bytes(32), model_hash(vector))
    return sign_run(manifest, "admin", admin.chain, admin.signing_key), config, vector


def create_run(people: People, address: str, name: str, **options: Any) -> bytes:
    signed, config, vector = signed_run(people, name, **options)
    client = observer(people, address)
    response = client.create_run(signed, config.options(""), vector)
    client.close()
    assert not response.problems, list(response.problems)
    return bytes(response.run)


async def _quiet(driver: RunDriver) -> None:
    """Until no event is on its way through the driver."""
    async with driver._interpreter.lock:
        return


def _frozen(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, dict):
        return {key: _frozen(item) for key, item in value.items()}
    return set(value) if isinstance(value, set) else value


@dataclass
class Stage:
    """A fresh run whose first round stands in one phase. The last silo holds back where the phase would otherwise end.

    Nobody's call is open. `silos[0]` has done its part of the phase, `silos[-1]` has not.
    """

    server: LiveServer
    run: str
    silos: list[MiniSilo]
    manifest: pb.RoundManifest
    sent: dict[str, Any] = field(default_factory=dict)

    @property
    def first(self) -> MiniSilo:
        return self.silos[0]

    @property
    def last(self) -> MiniSilo:
        return self.silos[-1]


def stage(server: LiveServer, run: str, phase: str, **options: Any) -> Stage:
    server.create_run(run, **options)
    silos = [server.silo(name) for name in SILOS]
    for silo in silos:
        silo.join(run)
    manifest = wait_for_round(server, run)
    made = Stage(server, run, silos, manifest)
    for number, silo in enumerate(silos):
        silo.enter(manifest)
        made.sent[f"proposal/{silo.name}"] = silo.proposal(range(number, 10 * manifest.per_silo, 10))
    reached = PHASES.index(phase)
    for silo in silos if reached > 0 else silos[:-1]:
        silo.propose(*made.sent[f"proposal/{silo.name}"])
    if reached == 0:
        return made
    for number, silo in enumerate(silos):
        silo.consensus()
        made.sent[f"submission/{silo.name}"] = silo.submission([0.01 * (number + 1)] * PARAMETERS)
    for silo in silos if reached > 1 else silos[:-1]:
        silo.submit(*made.sent[f"submission/{silo.name}"])
    if reached == 1:
        return made
    for silo in silos:
        silo.survivors()
        made.sent[f"confirmation/{silo.name}"] = silo.confirmation()
        made.sent[f"reveal/{silo.name}"] = silo.reveal()
    confirming = silos[:3] if reached > 2 else silos[:1]
    calls = [silo.stub.ConfirmSurvivors.future(made.sent[f"confirmation/{silo.name}"], timeout=SECONDS) for silo in confirming]
    if reached == 2:
        wait_until(lambda: len(server.driver(run).open.machine.confirmations()) == 1)  # type: ignore[union-attr]
        calls[0].cancel()
        return made
    for call in calls:
        call.result()
    for silo in silos[:1] if reached == 3 else silos[:3]:
        silo.stub.RevealShares(made.sent[f"reveal/{silo.name}"], timeout=SECONDS)
    if reached == 4:
        wait_until(lambda: server.driver(run).last_round == manifest.round)
        client = server.observer()
        client.stub.PauseRun(observer_request("PauseRunRequest", name=run))
        client.close()
        wait_until(lambda: server.driver(run).open is not None)
    return made


def observer_request(kind: str, **fields: Any) -> Any:
    return getattr(observer_pb2, kind)(**fields)


def wait_for_round(server: LiveServer, run: str, after: int = 0) -> pb.RoundManifest:
    driver = server.driver(run)
    wait_until(lambda: driver.open is not None and driver.open.number > after)
    assert driver.open is not None
    return codec.round_manifest_to_wire(driver.open.signed.manifest)


def wait_until(condition: Any, seconds: float = 120.0) -> None:
    """The limit only turns a hang into a failure."""
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "what was waited for did not happen"
        time.sleep(0.005)


def refusal(call: Any) -> tuple[str, str | None]:
    """(status code, reason) of a call that is refused."""
    try:
        result = call()
        if hasattr(result, "__next__"):
            list(result)
    except grpc.RpcError as error:
        return error.code().name, reason_of(error)
    raise AssertionError("the call was accepted")


def joined(server: LiveServer, run: str, names: tuple[str, ...] = SILOS) -> list[MiniSilo]:
    silos = [server.silo(name) for name in names]
    for silo in silos:
        silo.fetch_model(silo.join(run).model_version)
    return silos
