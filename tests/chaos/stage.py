"""A whole federation on this machine, made to be broken: two servers on PostgreSQL, an authority, twelve silos, an evaluator and
a dashboard, each a process of its own, with links (tests/harness/link.py) between them.

Silos, evaluator and dashboard reach whichever server is ready, as through the service of a cluster. Whatever ends is started
again, as a supervisor does. Faults are in faults.py, what must hold in invariants.py.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import psycopg

from fedrep.wire.v1 import observer_pb2 as pb
from fedrep_cli.free_ports import free_ports
from fedrep_identity.certificates import Role
from fedrep_identity.folder import FederationAddresses
from fedrep_runtime.observer_client import ObserverClient
from fedrep_runtime.run_config import AggregatorConfig, DeadlineConfig
from fedrep_runtime.toml_text import toml_document
from fedrep_silo.training import in_thread
from tests.chaos.clocks import Clock, compiled
from tests.chaos.database import Postgres
from tests.chaos.disks import SmallDisk, can_mount
from tests.chaos.members import MARK, Member
from tests.harness.federation import Federation
from tests.harness.link_process import LinkProcess
from tests.harness.people import FEDERATION
from tests.harness.processes import ServerProcess

SILOS, ATTACKERS, BUFFER_SIZE = 12, 2, 2
RUN = "chaos"
SERVERS = ("server-a", "server-b")
STATE_DISK_MB = 8
PROBE_SECONDS = 0.5
PASSPHRASE = "a passphrase for tests"
# Without them two attackers of twelve could not play these, and the silo says so before it starts.
ATTACK_OPTIONS: dict[str, dict[str, Any]] = {"alie": {"z": 1.5}, "nonfinite": {"kind": "huge"}}


class Stage:
    """`open` builds it, `close` leaves nothing behind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = os.environ[MARK] = secrets.token_hex(8)  # every process from here on inherits it, the database's too
        self.missing: list[str] = []  # what this machine does not let us do, each a sentence
        self.members: dict[str, Member] = {}
        self.clocks: dict[str, Clock] = {}
        self.disks: dict[str, SmallDisk] = {}
        self._stack = ExitStack()
        self._ports: dict[str, int] = {}
        self.ready: tuple[str, ...] = ()
        self._probed = 0.0
        self.drills: dict[str, str] = {}

    async def open(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        mounts = can_mount(self.folder)
        if not mounts:
            self.missing.append("disks do not fill up: this user may not mount a tmpfs")
        self._library = compiled(self.folder)
        if self._library is None:
            self.missing.append("clocks do not jump: there is no C compiler (cc)")
        self.postgres = Postgres(small_disk=mounts)
        self._stack.callback(self.postgres.close)
        self.federation = Federation.create(self.folder, SILOS)
        self.names = self.federation.names
        self.attackers = self.names[:ATTACKERS]
        for name in ("dashboard", *SERVERS):
            role = Role.SERVER if name in SERVERS else Role.VIEWER
            hosts = {"dns_names": ("localhost",), "ips": ("127.0.0.1",)} if name in SERVERS else {}
            self.federation.issue(name, role, **hosts)
        process = LinkProcess.start()
        self._stack.callback(process.stop)
        self.links = process.control
        self._open_links()
        for name in self.names if mounts else ():
            disk = SmallDisk(self.folder / "state" / RUN / name, STATE_DISK_MB)
            self._stack.callback(disk.close)
            self.disks[name] = disk
        self._make_members()
        await self._start()

    def _open_links(self) -> None:
        wanted = ["authority", "enrolment", "dashboard", *SERVERS, *(f"{name} health" for name in SERVERS)]
        self._ports = dict(zip(wanted, free_ports(len(wanted)), strict=True))
        server = self._ports[SERVERS[0]]
        for name in (*self.names, "evaluator", "dashboard", "admin"):
            self._ports[f"link {name}"] = self.links.open(name, server)
        self._ports["link authority"] = self.links.open("authority", self._ports["authority"])
        self.federation.port = self._ports["link admin"]
        everybody = (*self.names, "evaluator", "dashboard", *SERVERS)
        at = f"localhost:{self._ports['link authority']}"
        for name in everybody:
            addresses = FederationAddresses(FEDERATION, "", f"localhost:{self._ports['enrolment']}", at)
            addresses.save(self.federation.identity_folder(name))

    def _make_members(self) -> None:
        folder = self.federation.people.folder / "ca"
        ports = ["--enrolment-port", str(self._ports["enrolment"]), "--certificate-port", str(self._ports["authority"])]
        self._add("authority", lambda: ["ca", "serve", "--folder", str(folder), *ports], {"FEDREP_CA_PASSPHRASE": PASSPHRASE})
        for name in SERVERS:
            self._add(name, partial(self._server_command, name))
        for name in self.names:
            self._add(name, partial(self._silo_command, name))
        self._add("evaluator", partial(self._silo_command, "evaluator"))
        self._add("dashboard", self._dashboard_command)

    def _add(self, name: str, command: Callable[[], list[str]], environment: dict[str, str] | None = None) -> None:
        variables = dict(environment or {})
        if self._library is not None and name != "authority":
            clock = self.clocks[name] = Clock(self.folder / "clocks" / name, self._library)
            variables |= clock.environment()
        trace, log = self.folder / "traces" / name, self.folder / "logs" / f"{name}.log"
        log.parent.mkdir(exist_ok=True)
        self.members[name] = Member(name, command, log, trace, variables)

    def _server_command(self, name: str) -> list[str]:
        document = {
            "host": "127.0.0.1",
            "port": self._ports[name],
            "advertise": f"localhost:{self._ports[name]}",
            "health_port": self._ports[f"{name} health"],
            "metrics_port": 0,
            "data": str(self.folder / name),
            "database": self.postgres.uri,
            "credentials": str(self.federation.identity_folder(name)),
            "authority": f"localhost:{self._ports['link authority']}",
            "gather_seconds": 2.0,
            "line_grace_seconds": 1.0,
            "pace_floor": 4.0,
            "wait_seconds": 5.0,
            "grace_seconds": 3.0,
            "log_json": True,
        }
        return ["server", "--config", str(self._write(name, document))]

    def _silo_command(self, name: str) -> list[str]:
        options: dict[str, Any] = {"server": f"localhost:{self._ports[f'link {name}']}", "give_up_after": 3600.0}
        if name != "evaluator":
            options["policy"] = {"allow_drills": True}
        if attack := self.drills.get(name):
            told = {"attack": attack, "options": ATTACK_OPTIONS.get(attack, {}), "channel": str(self.folder / "attackers")}
            options["drill"] = told
        return ["client", "--config", str(self.federation.write_client_toml(name, RUN, **options))]

    def _dashboard_command(self) -> list[str]:
        document = {
            "port": self._ports["dashboard"],
            "server": f"localhost:{self._ports['link dashboard']}",
            "credentials": str(self.federation.identity_folder("dashboard")),
            "viewer_token": "a token that is long enough for tests",
        }
        return ["dashboard", "--config", str(self._write("dashboard", document))]

    def _write(self, name: str, document: dict[str, Any]) -> Path:
        path = self.folder / f"{name}.toml"
        path.write_text(toml_document(document))
        return path

    async def _start(self) -> None:
        for name in ("authority", *SERVERS):
            self.members[name].start()
        await self.until(lambda: bool(self.ready), "no server became ready")
        await self._insist(self._create_run)
        for name in (*self.names, "evaluator", "dashboard"):
            self.members[name].start()

    async def _create_run(self) -> None:
        await self.federation.create_run(
            RUN,
            rounds=1_000_000,
            byzantine_count=ATTACKERS,
            buffer_size=BUFFER_SIZE,
            drills=True,
            keep_models=50,
            aggregator=AggregatorConfig(name="geometric_median"),
            deadlines=DeadlineConfig(propose=10, submit=6, confirm=5, reveal=5),
        )

    async def _insist(self, call: Callable[[], Awaitable[None]]) -> None:
        """An admin asks again while the servers are finding a leader; what was done already is done."""
        while True:
            try:
                return await call()
            except grpc.RpcError as error:
                if error.code() in (grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.FAILED_PRECONDITION):
                    return None
                await self.tend()
                await asyncio.sleep(0.5)

    async def until(self, condition: Callable[[], bool], otherwise: str, seconds: float = 120.0) -> None:
        """Tends the federation until then."""
        limit = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > limit:
                raise AssertionError(otherwise)
            await self.tend()
            await asyncio.sleep(0.1)

    async def tend(self) -> None:
        """What supervisors and the cluster's service do all the time."""
        for member in self.members.values():
            member.tend()
        if time.monotonic() - self._probed < PROBE_SECONDS:
            return
        self._probed = time.monotonic()
        ready = [name for name in SERVERS if self.members[name].alive and await in_thread(partial(self._is_ready, name))]
        if ready and tuple(ready) != self.ready:
            for number, name in enumerate((*self.names, "evaluator", "dashboard", "admin")):
                self.links.lead_to(name, self._ports[ready[number % len(ready)]])
            self.ready = tuple(ready)

    def _is_ready(self, name: str) -> bool:
        process = self.members[name].process
        assert process is not None
        probed = ServerProcess(process, self._ports[name], self._ports[f"{name} health"], self.members[name].log)
        return probed.health(seconds=0.5) == "SERVING"

    async def leader(self) -> str:
        """By the database's word; the first server where it does not answer."""
        holder = await in_thread(lambda: self.query("SELECT holder FROM leadership"))
        at = str(holder[0][0]).rpartition(":")[2] if holder else ""
        return next((name for name in SERVERS if str(self._ports[name]) == at), SERVERS[0])

    def query(self, text: str) -> list[tuple[Any, ...]]:
        """Nothing, where the database is away."""
        try:
            with psycopg.connect(self.postgres.uri, autocommit=True, connect_timeout=2) as connection:
                return connection.execute(text).fetchall()
        except psycopg.Error:
            return []

    async def stop_run(self) -> None:
        admin = self.federation.credentials("admin")

        def stop() -> None:
            client = ObserverClient(self.federation.address, admin.root, admin.key_pair)
            try:
                client.call("StopRun", pb.StopRunRequest(name=RUN))
            finally:
                client.close()

        await self._insist(lambda: in_thread(stop))

    def end(self) -> None:
        """All processes of ours; disks stay, to be looked at."""
        for member in self.members.values():
            member.wanted = False
            member.signal(signal.SIGCONT)
            member.signal(signal.SIGTERM)
        for member in self.members.values():
            member.end()

    def close(self) -> None:
        self._stack.close()

    def clean(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
