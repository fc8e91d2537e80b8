"""Servers and silos as processes of their own, and the one event loop of a test that plays with them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fedrep_cli.free_ports import free_port
from fedrep_runtime.toml_text import toml_document
from fedrep_server.config import ServerSettings
from fedrep_silo.training import in_thread

T = TypeVar("T")
SCENARIO_SECONDS = 240.0
REPOSITORY = Path(__file__).parents[2]
_processes: list[subprocess.Popen[bytes]] = []


@dataclass
class RunningProcess:
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        """kill -9, and nothing is left of it."""
        self.process.kill()
        self.process.wait()

    def terminate(self, seconds: float = 120.0) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)

    async def wait(self, seconds: float = 120.0) -> int:
        """The exit code; negative is the number of the signal that ended it."""
        return await in_thread(lambda: self.process.wait(seconds))


@dataclass
class ServerProcess(RunningProcess):
    """`fedrep server --config ...`. Starting one again with the same settings is a restart: silos find it where it was."""

    port: int
    health_port: int
    log: Path

    @classmethod
    def start(cls, settings: ServerSettings, config: Path) -> ServerProcess:
        """Returns at once; `until_serving` waits. Ports for probes and metrics are chosen where the settings name none."""
        ports = {"health_port": settings.health_port or free_port(), "metrics_port": settings.metrics_port or free_port()}
        plain = settings.model_dump(exclude_none=True, exclude={"retention", "alerts"})
        config.write_text(toml_document(plain | ports | {"log_json": True}))
        log = config.with_suffix(".log")
        process = start_process(["-m", "fedrep_cli.main", "server", "--config", str(config)], log)
        return cls(process, settings.port, ports["health_port"], log)

    def health(self, service: str = "", seconds: float = 30.0) -> str:
        """SERVING, NOT_SERVING, or the gRPC status of a process that does not answer."""
        with grpc.insecure_channel(f"127.0.0.1:{self.health_port}") as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            try:
                answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=seconds)
            except grpc.RpcError as error:
                return str(error.code().name)
        return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))

    async def until(self, wanted: str, service: str = "", seconds: float = 120.0) -> None:
        async with asyncio.timeout(seconds):
            while await in_thread(lambda: self.health(service)) != wanted:
                assert self.process.poll() is None, self.log.read_text()
                await asyncio.sleep(0.05)

    async def until_serving(self) -> None:
        await self.until("SERVING")

    def says(self, event: str) -> bool:
        return f'"{event}"' in self.log.read_text()


@dataclass
class SiloProcess(RunningProcess):
    name: str
    config: Path
    log: Path


def start_process(arguments: list[str], log: Path, environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """This Python, from the repository's folder, its output appended to `log`."""
    variables = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", **(environment or {})}
    with log.open("ab") as output:
        process = subprocess.Popen([sys.executable, *arguments], cwd=REPOSITORY, env=variables, stdout=output, stderr=output)
    _processes.append(process)
    return process


@contextmanager
def hearing_ctrl_c() -> Iterator[None]:
    """Processes started meanwhile obey SIGINT. A script that says `make test &` has it ignored, and children inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a handler becomes the default when a program starts
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def python(*arguments: str, stdout: int | None = None, stderr: int | None = None) -> Iterator[subprocess.Popen[str]]:
    """This Python as a program that obeys Ctrl-C; `stdout=PIPE` and the like let a test read along. Dead when the block ends."""
    with hearing_ctrl_c():
        process = subprocess.Popen([sys.executable, *arguments], cwd=REPOSITORY, text=True, stdout=stdout, stderr=stderr)
    with process:
        try:
            yield process
        finally:
            process.kill()


def run_scenario(scenario: Coroutine[Any, Any, T], seconds: float = SCENARIO_SECONDS) -> T:
    """One event loop per test, with a limit, so that a protocol that hangs fails. No process outlives it."""

    async def limited() -> T:
        async with asyncio.timeout(seconds):
            return await scenario

    try:
        return asyncio.run(limited())
    finally:
        for process in _processes:
            process.kill()
            process.wait()
        _processes.clear()
