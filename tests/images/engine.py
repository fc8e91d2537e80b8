"""Docker's own engine and compose, where they are installed, in a network and namespaces of their own that end with the test.

Nothing of it touches an engine that runs here already: socket, storage, processes and control groups are its own, and its bridges
lie in a network that leads nowhere.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.images.containers import REPOSITORY, Builder, apart, end, own_network

DEPLOY = REPOSITORY / "deploy"
NEEDS = ("dockerd", "containerd", "runc", "docker", "docker-compose")
MISSING = [tool for tool in NEEDS if shutil.which(tool) is None]
PROJECT = "fedrep"
GROUPS = Path("/sys/fs/cgroup")
# The database's image cannot be had here; Debian's, whose volume is root's, gives it to the one who runs it.
OWN_DATA = (
    "chown postgres {data} && chmod 700 {data} && exec setpriv --reuid=postgres --regid=postgres --clear-groups start-database"
)


@dataclass(frozen=True)
class Engine:
    folder: Path

    @property
    def _environment(self) -> Mapping[str, str]:
        return {**os.environ, "DOCKER_HOST": f"unix://{self.folder}/docker.sock", "HOME": str(self.folder)}

    def docker(self, *words: str, seconds: float = 3600) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["docker", *words], env=self._environment, capture_output=True, text=True, timeout=seconds)

    def load(self, builder: Builder, tag: str, name: str) -> None:
        archive = self.folder / "image.tar"
        builder.buildah("push", "--quiet", tag, f"docker-archive:{archive}:{name}")
        done = self.docker("load", "--quiet", "--input", str(archive))
        archive.unlink()
        assert done.returncode == 0, done.stderr

    def needs_containers(self, image: str) -> None:
        """Skips where the engine answers but the machine lets it start nothing: no fault of ours, if the image is not ours."""
        done = self.docker("run", "--rm", "--entrypoint", "true", image)
        if done.returncode != 0:
            pytest.skip(f"Docker's engine starts no container here: {_last(done.stderr)}")

    def compose(self, file: Path, *words: str, seconds: float = 3600) -> None:
        command = ["docker-compose", "--project-name", PROJECT, "--project-directory", str(DEPLOY), "--file", str(file), *words]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, timeout=seconds)
        assert done.returncode == 0, done.stdout + done.stderr + self.states_text()

    def states(self) -> dict[str, str]:
        """By service: exited with a code, or how healthy."""
        listed = self.docker("ps", "--all", "--quiet").stdout.split()
        found = json.loads(self.docker("inspect", *listed).stdout) if listed else []
        return {item["Config"]["Labels"]["com.docker.compose.service"]: _state(item["State"]) for item in found}

    def states_text(self) -> str:
        logs = {name: self.docker("logs", "--tail", "20", f"{PROJECT}_{name}_1") for name in self.states()}
        return "\n".join([str(self.states()), *(f"{name}: {log.stdout}{log.stderr}" for name, log in logs.items())])

    def run_in(self, service: str, *words: str) -> subprocess.CompletedProcess[str]:
        return self.docker("exec", f"{PROJECT}_{service}_1", *words)


def _state(state: Mapping[str, Any]) -> str:
    if state["Status"] == "exited":
        return f"exited {state['ExitCode']}"
    return str(state.get("Health", {}).get("Status", state["Status"]))


@contextmanager
def engine() -> Iterator[Engine]:
    """In a folder with a short name: sockets in it allow no long one."""
    with tempfile.TemporaryDirectory(prefix="fedrep-", ignore_cleanup_errors=True) as folder:
        yield from _engine(Path(folder))


def _engine(folder: Path) -> Iterator[Engine]:
    places = {"--host": f"unix://{folder}/docker.sock", "--data-root": folder / "data", "--exec-root": folder / "exec"}
    options = [f"{key}={value}" for key, value in {**places, "--pidfile": folder / "pid", "--userland-proxy": "false"}.items()]
    options.append(f"--cgroup-parent=/{folder.name}")
    script = f"mount -t proc proc /proc\nexec {shlex.join(['dockerd', *options])}"
    made = Engine(folder)
    with own_network() as network, (folder / "engine.log").open("wb") as log:
        process = subprocess.Popen(apart(script, network), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            limit = time.monotonic() + 120
            while made.docker("version").returncode != 0:
                if process.poll() is not None:
                    pytest.skip(f"Docker's engine does not start here: {_last((folder / 'engine.log').read_text())}")
                assert time.monotonic() < limit, (folder / "engine.log").read_text()
                time.sleep(0.3)
            yield made
        finally:
            end(process)
            _remove_groups(folder.name)


def _last(text: str) -> str:
    return (text.strip().splitlines() or ["it does not say why"])[-1]


def _remove_groups(name: str) -> None:
    """What is left of control groups whose processes have ended, in both versions of their file system."""
    for top in (*GROUPS.glob(name), *GROUPS.glob(f"*/{name}")):
        for folder, _, _ in os.walk(top, topdown=False):
            with suppress(OSError):
                Path(folder).rmdir()


def compose_file(folder: Path, database: str) -> Path:
    """deploy/compose.yaml, with the stand-in for the database; the older compose of Debian knows no `name`."""
    document = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    del document["name"]
    data = "/var/lib/postgresql/data"
    document["services"]["database"] |= {"image": database, "entrypoint": ["sh", "-c", OWN_DATA.format(data=data)]}
    document["services"]["database"]["environment"] |= {
        "PATH": "/usr/lib/postgresql/15/bin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LANG": "C.UTF-8",
        "PGHOST": "127.0.0.1",
    }
    file = folder / "compose.yaml"
    file.write_text(json.dumps(document))
    return file
