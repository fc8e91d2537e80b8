"""How each system plays the benchmark's task: Flower simulated and deployed, NVFlare simulated, and FedREP over gRPC and TLS.

Each peer runs in an environment of its own, on the loopback interface alone, with telemetry and update checks off. Flower's
deployment engine is a SuperLink and one SuperNode per silo, all processes of their own, without TLS; FedREP is a server
process and its silos' daemons over mutual TLS. Whatever a system needs to start is not in its rounds' time.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.environment import ROOT, peer_python
from benchmarks.idle_silos import IdleSilo, Shape, play
from benchmarks.peers import digits
from fedrep_cli.free_ports import free_ports
from fedrep_trainers import Evaluation, ModelLayout, TrainResult

PEERS = ROOT / "benchmarks" / "peers"
# flwr 1.42.0 asks for a certifi that no registry had when it came out; the newest one stands in for it.
FLOWER = ("flwr==1.42.0",)
FLOWER_NEEDS = (
    "certifi==2026.10.18", "numpy==2.4.6", "grpcio==1.85.1", "grpcio-health-checking==1.81.1", "protobuf==6.33.6",
    "cryptography==50.0.2", "pycryptodome==3.24.1", "iterators==0.0.2", "typer==0.20.1", "uv==0.13.7", "tomli==2.5.0",
    "tomli-w==1.2.0", "pathspec==1.1.1", "prompt-toolkit==3.0.53", "rich==14.3.4", "pyyaml==6.0.3", "requests==2.34.2",
    "httpx==0.28.1", "click==8.5.1", "packaging==25.0", "sqlalchemy[asyncio]==2.1.8", "alembic==1.20.1",
    "uvicorn[standard]==0.49.0", "fastapi==0.138.2", "starlette==1.3.1", "ray==2.55.1",
)  # fmt: skip
NVFLARE = ("nvflare==2.9.0", "numpy==2.4.6", "grpcio==1.85.1")
SILOS, PARAMETERS = digits.SILOS, 270_000
FRACTION, BUFFER, BYZANTINE = 0.05, 2, digits.POISONED
SECONDS = 900
START_SECONDS = 240


class PeerFailedError(RuntimeError):
    """A peer did not play what it was asked to."""


def flower_python() -> Path:
    return peer_python("flwr", FLOWER_NEEDS, FLOWER)


def nvflare_python() -> Path:
    return peer_python("nvflare", NVFLARE)


def write_data(folder: Path) -> Path:
    """scikit-learn's digits as every system reads them: a fifth for the test, the rest dealt out in turn."""
    from sklearn.datasets import load_digits

    bunch: Any = load_digits()
    images, labels = bunch.data / 16.0, bunch.target
    order = np.random.default_rng(0).permutation(len(labels))
    images, labels = images[order], labels[order]
    cut = len(labels) * 4 // 5
    path = folder / "digits.npz"
    np.savez(path, images=images[:cut], labels=labels[:cut], test_images=images[cut:], test_labels=labels[cut:])
    return path


def quiet_environment(folder: Path) -> dict[str, str]:
    """No telemetry, no look for updates, no home but the folder; what the peers share with us is on the path."""
    return {
        **os.environ,
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "FLWR_HOME": str(folder / "flower"),
        "PYTHONPATH": str(PEERS),
        "PIP_CONSTRAINT": "",
        digits.DATA: str(write_data(folder)),
    }


@contextmanager
def running(command: list[str], environment: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process and all that it starts, ended together."""
    with log.open("ab") as file:
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=file, cwd=log.parent, start_new_session=True)
    try:
        yield process
    finally:
        for end in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, end)
                process.wait(5)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue


def answered(output: Path, process: subprocess.Popen[bytes], log: Path, *, ends: bool) -> dict[str, Any]:
    """What the peer wrote, as soon as it is there. `ends`: the process ends when it has written."""
    until = time.monotonic() + SECONDS
    while not output.exists() or not output.stat().st_size:
        if time.monotonic() > until or process.poll() is not None:
            if ends and process.poll() == 0 and output.exists():
                break
            tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])
            raise PeerFailedError(f"the peer did not finish; the end of its log:\n{tail}")
        time.sleep(0.2)
    time.sleep(0.2)
    result: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    if not result["moved"]:
        raise PeerFailedError("the peer's rounds changed nothing")
    return result


def settings(task: str, rounds: int, output: Path, rule: str, *, secagg: bool) -> dict[str, Any]:
    return {
        "task": task,
        "rounds": rounds,
        "parameters": PARAMETERS,
        "silos": SILOS,
        "rule": rule,
        "secagg": secagg,
        "output": str(output),
    }


def flower_simulated(task: str, rounds: int, rule: str, *, secagg: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        asked = settings(task, rounds, folder / "out.json", rule, secagg=secagg)
        command = [str(flower_python()), str(PEERS / "flower" / "flower_app.py"), json.dumps(asked)]
        with running(command, quiet_environment(folder), folder / "log") as process:
            return answered(folder / "out.json", process, folder / "log", ends=True)


def nvflare_simulated(task: str, rounds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        asked = settings(task, rounds, folder / "out.json", "mean", secagg=False)
        command = [str(nvflare_python()), str(PEERS / "nvflare" / "nvflare_job.py"), json.dumps(asked)]
        with running(command, quiet_environment(folder), folder / "log") as process:
            return answered(folder / "out.json", process, folder / "log", ends=True)


def flower_deployed(rounds: int, *, secagg: bool) -> dict[str, Any]:
    binaries = flower_python().parent
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        environment = quiet_environment(folder)
        environment["PATH"] = f"{binaries}:{environment['PATH']}"
        port, *others = free_ports(1 + SILOS)
        (folder / "flower").mkdir()
        superlink = f'[superlink]\ndefault = "bench"\n\n[superlink.bench]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
        (folder / "flower" / "config.toml").write_text(superlink, encoding="utf-8")
        link = [f"{binaries}/flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(port)]
        log = folder / "superlink.log"
        process = stack.enter_context(running([*link, "--disable-runtime-dependency-installation"], environment, log))
        wait_for(log, "Uvicorn running", 1)
        for silo, own in enumerate(others):
            node = [f"{binaries}/flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}", "--port", str(own)]
            node += ["--node-config", f"partition-id={silo} num-partitions={SILOS}"]
            stack.enter_context(running(node, environment, folder / f"node-{silo}.log"))
        wait_for(log, "Activated node_id", SILOS)
        asked = settings("idle", rounds, folder / "out.json", "mean", secagg=secagg)
        run_config = " ".join(f"{key}={json.dumps(value)}" for key, value in asked.items())
        order = [f"{binaries}/flwr", "run", str(PEERS / "flower"), "bench", "--run-config", run_config]
        subprocess.run(order, env=environment, check=True, capture_output=True, cwd=folder)
        return answered(folder / "out.json", process, log, ends=False)


def wait_for(log: Path, text: str, count: int) -> None:
    until = time.monotonic() + START_SECONDS
    while log.read_text(encoding="utf-8", errors="replace").count(text) < count:
        if time.monotonic() > until:
            tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])
            raise PeerFailedError(f"the peer did not start; the end of its log:\n{tail}")
        time.sleep(0.5)


class DigitsTrainer:
    """The peers' task as a trainer of ours."""

    def __init__(self, silo: int) -> None:
        self.layout = ModelLayout.of([("weights", (digits.SIZE,))])
        self._silo = silo

    def initial(self) -> NDArray[np.float32]:
        vector: NDArray[np.float32] = digits.initial()
        return vector

    def train(self, model: NDArray[np.float32], round_number: int) -> TrainResult:
        return TrainResult(digits.train(model, self._silo, round_number), loss=0.0, samples=1)

    def evaluate(self, model: NDArray[np.float32]) -> Evaluation:
        return Evaluation(loss=0.0, accuracy=digits.accuracy(model), samples=1)

    def state(self) -> Mapping[str, NDArray[Any]]:
        return {}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        pass


def ours(task: str, rounds: int) -> dict[str, Any]:
    size = digits.SIZE if task == "digits" else PARAMETERS
    shape = Shape(SILOS, size, FRACTION, BUFFER, rounds, "geometric_median", byzantine=BYZANTINE)
    accuracies: list[float] = []

    def ended(_: int, silos: list[IdleSilo]) -> None:
        model = silos[-1].model
        if task == "digits":
            accuracies.append(digits.accuracy(model.vector if model is not None else digits.initial()))

    with tempfile.TemporaryDirectory() as name:
        os.environ[digits.DATA] = str(write_data(Path(name)))
        digits.data.cache_clear()
        trainers = DigitsTrainer if task == "digits" else None
        figures = asyncio.run(play(shape, warm_up=0 if task == "digits" else 1, trainers=trainers, ended=ended))
    traffic = (figures.sent + figures.received) / rounds / SILOS
    return {"seconds": figures.seconds, "accuracies": accuracies, "kb_per_silo": traffic / 1e3}


def undisturbed(rounds: int) -> dict[str, Any]:
    """The plain mean of models without anybody poisoned: what the task can reach."""
    code = "import digits, json, sys, numpy as np; digits.POISONED = 0; w = digits.initial(); a = [digits.accuracy(w)]\n"
    code += f"for r in range(1, {rounds} + 1):\n w = np.mean([digits.train(w, s, r) for s in range(digits.SILOS)], axis=0)\n"
    code += " a.append(digits.accuracy(w))\nprint(json.dumps(a))"
    with tempfile.TemporaryDirectory() as name:
        environment = quiet_environment(Path(name))
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return {"accuracies": json.loads(done.stdout)}
