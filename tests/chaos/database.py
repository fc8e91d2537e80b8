"""PostgreSQL of the `pgserver` wheel, which can be stopped, crashed and started again, on a disk that can be full."""

from __future__ import annotations

import logging
import shutil
import subprocess
import tempfile
import warnings
from pathlib import Path
from typing import Any

import psycopg

from tests.chaos.disks import SmallDisk

DISK_MB = 320


class Postgres:
    def __init__(self, *, small_disk: bool) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # where no XDG_RUNTIME_DIR is set, its import says which folder it takes instead
            from pgserver.postgres_server import get_server
        logging.getLogger("pgserver").setLevel(logging.CRITICAL)  # a database that is down is no news here
        # Not a folder of ours: under root the server runs as another user, who must be able to enter it.
        self.folder = Path(tempfile.mkdtemp(prefix="fedrep-pg-"))
        self.folder.chmod(0o755)
        self.disk = SmallDisk(self.folder, DISK_MB) if small_disk else None
        self._server: Any = get_server(self.folder / "data", cleanup_mode="stop")
        self.uri: str = self._server.get_uri()
        with psycopg.connect(self.uri, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET max_wal_size = '64MB'")
            connection.execute("SELECT pg_reload_conf()")

    def stop(self, how: str) -> None:
        """`fast` as an administrator does, `immediate` as a crash."""
        self._control("-m", how, "stop")

    def start(self) -> None:
        if not self._control("status"):
            self._control("-l", str(self._server.log), "-w", "start")

    def close(self) -> None:
        self.stop("immediate")  # `cleanup` knows only the process that it started itself
        self._server.cleanup()
        if self.disk is not None:
            self.disk.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _control(self, *arguments: str) -> bool:
        from pgserver._commands import pg_ctl  # type: ignore[attr-defined]

        # What it was started with stands in its folder, for `restart` alone; said again here for `start`.
        options = ["-o", '-h ""', "-o", f"-k {self._socket_folder}"] if arguments[-1] == "start" else []
        try:
            pg_ctl([*options, *arguments], pgdata=self._server.pgdata, user=self._server.system_user, timeout=60)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
            return False
        return True

    @property
    def _socket_folder(self) -> str:
        return str(self._server.get_postmaster_info().socket_dir)
