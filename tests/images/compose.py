"""Plays deploy/compose.yaml with the images that these tests build, in the order and with the checks that it asks for.

All services share one network of their own, in which each other's names lead to the loopback; how compose parts its networks is
therefore not seen here. The database's image cannot be built here: Debian's PostgreSQL stands in, started as that image would be.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.images.containers import REPOSITORY, Builder, Container, end

DEPLOY = REPOSITORY / "deploy"
MOVED = {"ca": ("8553", "8563")}  # two services that share a loopback cannot share a port
DATABASE = "localhost/fedrep-test-database"
START_DATABASE = """#!/bin/sh
# As the official image does with POSTGRES_USER, POSTGRES_DB and POSTGRES_PASSWORD_FILE.
set -eu
data=/var/lib/postgresql/data
if [ ! -e $data/PG_VERSION ]; then
  initdb --pgdata=$data --username="$POSTGRES_USER" --pwfile="$POSTGRES_PASSWORD_FILE" --auth=scram-sha-256 >/dev/null
  echo "host all all all scram-sha-256" >> $data/pg_hba.conf
  PGPASSWORD="$(cat "$POSTGRES_PASSWORD_FILE")"
  export PGPASSWORD
  pg_ctl --pgdata=$data --wait --options="-c listen_addresses= -k /tmp" start >/dev/null
  createdb --host=/tmp --username="$POSTGRES_USER" "$POSTGRES_DB" 2>/dev/null || true
  pg_ctl --pgdata=$data --wait stop >/dev/null
fi
exec postgres -D $data -c listen_addresses='*' -k /tmp
"""


def make_database(builder: Builder) -> None:
    more = builder.folder / "database"
    start = more / "usr" / "local" / "bin" / "start-database"
    start.parent.mkdir(parents=True, exist_ok=True)
    start.write_text(START_DATABASE)
    start.chmod(0o755)
    (more / "var" / "lib" / "postgresql" / "data").mkdir(parents=True, exist_ok=True)
    builder.debian(DATABASE, "FEDREP_TEST_DATABASE_TAR", ["postgresql"], more)
    builder.said.append("database: no registry is reached, so Debian's PostgreSQL stands in for the official image")


@dataclass
class Federation:
    builder: Builder
    folder: Path
    network: int
    images: Mapping[str, str]  # by build target, and "database"
    profiles: frozenset[str] = frozenset()
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        loaded = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
        self.services: dict[str, dict[str, Any]] = {
            name: service
            for name, service in loaded.items()
            if not service.get("profiles") or self.profiles & set(service["profiles"])
        }
        self._hosts = self.folder / "hosts"
        self._hosts.write_text("127.0.0.1 localhost " + " ".join(self.services) + "\n")

    def container(self, name: str) -> Container:
        service = self.services[name]
        tag = self._image(service)
        config = self.builder.config(tag)
        environment = dict(entry.split("=", 1) for entry in config.get("Env") or [])
        environment |= {key: str(value) for key, value in (service.get("environment") or {}).items()}
        if name in MOVED:
            environment = {key: value.replace(*MOVED[name]) for key, value in environment.items()}
        mounts = {"/etc/hosts": self._hosts}
        root = self.builder.unpack(tag)
        for volume in service.get("volumes", []):
            source, target = volume.split(":")[:2]
            mounts[target] = DEPLOY / source if source.startswith(".") else self._volume(source, root / target.lstrip("/"))
        user = service.get("user") or config.get("User") or "0:0"
        if "build" not in service:
            user = self._database_user(root)
            os.chown(mounts["/var/lib/postgresql/data"], *map(int, user.split(":")))
            mounts["/var/lib/postgresql/data"].chmod(0o700)
            environment |= {
                "PATH": "/usr/lib/postgresql/15/bin:/usr/local/bin:/usr/bin:/bin",
                "LANG": "C.UTF-8",
                "PGHOST": "127.0.0.1",
            }
        return Container(root, environment, mounts, self.network, user)

    def _image(self, service: Mapping[str, Any]) -> str:
        return self.images[service["build"]["target"] if "build" in service else "database"]

    def _volume(self, name: str, inside: Path) -> Path:
        """A named volume takes owner and mode of what lies at its place in the first image that mounts it, as with Docker."""
        folder = self.folder / "volumes" / name
        if not folder.exists():
            folder.mkdir(parents=True)
            if inside.is_dir():
                state = inside.stat()
                os.chown(folder, state.st_uid, state.st_gid)
                folder.chmod(state.st_mode & 0o7777)
        return folder

    @staticmethod
    def _database_user(root: Path) -> str:
        known = (root / "etc" / "passwd").read_text()
        (found,) = re.findall(r"^postgres:x:(\d+:\d+):", known, re.MULTILINE)
        return str(found)

    def words(self, name: str) -> list[str]:
        """What the container runs: compose's entrypoint or command instead of the image's."""
        service = self.services[name]
        if "build" not in service:
            return ["start-database"]
        config = self.builder.config(self._image(service))
        entrypoint = service.get("entrypoint") or config["Entrypoint"]
        command = service.get("command") or ([] if "entrypoint" in service else config["Cmd"])
        return [word.replace("$$", "$") for word in [*entrypoint, *command]]

    def check(self, name: str) -> list[str]:
        """The health check, compose's or the image's."""
        service = self.services[name]
        given = service.get("healthcheck", {}).get("test")
        kind, *words = given or self.builder.config(self._image(service))["Healthcheck"]["Test"]
        if name in MOVED:
            words = [word.replace(*MOVED[name]) for word in words]
        return words if kind == "CMD" else ["sh", "-c", *words]

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def start(self, name: str, seconds: float) -> None:
        """Once what it depends on is as compose wants it."""
        if name in self.running:
            return
        for other, wait in self.services[name].get("depends_on", {}).items():
            self.start(other, seconds)
            if wait["condition"] == "service_healthy":
                self.until_healthy(other, seconds)
            else:
                assert self.running[other].wait(seconds) == 0, f"{other}: {self.log(other)}"
        with (self.folder / f"{name}.log").open("wb") as output:
            command = self.container(name).command(self.words(name))
            self.running[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)

    def until_healthy(self, name: str, seconds: float) -> None:
        inside, words, limit = self.container(name), self.check(name), time.monotonic() + seconds
        while inside.run(*words).returncode != 0:
            assert self.running[name].poll() is None, f"{name}: {self.log(name)}"
            assert time.monotonic() < limit, f"{name}: {self.log(name)}"

    def listening(self) -> set[int]:
        """Ports on which anything listens in the federation's network."""
        found = subprocess.run(
            ["nsenter", f"--net=/proc/{self.network}/ns/net", "cat", "/proc/net/tcp", "/proc/net/tcp6"],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        return {int(port, 16) for port in re.findall(r"^\s*\d+: [0-9A-F]+:([0-9A-F]{4}) \S+ 0A ", found, re.MULTILINE)}


@contextmanager
def playing(federation: Federation, seconds: float = 300) -> Iterator[Federation]:
    try:
        for name in federation.services:
            federation.start(name, seconds)
        yield federation
    finally:
        for process in reversed(federation.running.values()):
            end(process)
