"""What the image tests start as another user ends with them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import wait
from pathlib import Path

import pytest

from tests.deploy.chart import REPOSITORY
from tests.images.containers import AS_FIRST, CHROOT, apart, end, own_network
from tests.images.engine import engine

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None or shutil.which("setpriv") is None,
    reason="Namespaces and another user need root.",
)


def script_in(folder: Path, script: str) -> str:
    """As user 10001, who can write to `folder`."""
    folder.chmod(0o777)
    top = Path(tempfile.gettempdir())
    for above in folder.parents:
        if above.is_relative_to(top) and above != top:
            above.chmod(above.stat().st_mode | 0o055)
    return AS_FIRST % f"{CHROOT} --userspec=10001:0 / sh -c {script!r}"


def only_child(pid: int) -> int:
    (inside,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(inside)


@pytest.mark.parametrize("trap", ["", "trap '' TERM; "])
def test_a_container_ends_with_all_its_processes(trap: str, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    process = subprocess.Popen(apart(script_in(tmp_path, f"{trap}sleep 1000 & echo up > {ready}; wait; wait")))
    try:
        while not ready.exists():
            assert process.poll() is None, "namespaces cannot be had here"
            time.sleep(0.01)
        inside = only_child(process.pid)
    finally:
        end(process, 2.0)
    assert process.poll() is not None
    assert not Path(f"/proc/{inside}").exists()


def test_a_container_ends_with_whoever_started_it_even_without_a_word(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    command = apart(script_in(tmp_path, f"echo up > {ready}; sleep 1000"))
    starter = subprocess.Popen([sys.executable, "-c", f"import subprocess; subprocess.run({command!r})"], cwd=REPOSITORY)
    while not ready.exists():
        assert starter.poll() is None, "namespaces cannot be had here"
        time.sleep(0.01)
    inside = os.pidfd_open(only_child(only_child(starter.pid)))
    try:
        starter.send_signal(signal.SIGKILL)
        starter.wait()
        assert wait([inside], 60), "it lives on"
    finally:
        os.close(inside)


def test_a_container_tells_its_exit_code(tmp_path: Path) -> None:
    assert subprocess.run(apart(script_in(tmp_path, "exit 7"))).returncode == 7


def test_what_listens_in_a_network_of_its_own_is_reached_from_there_alone() -> None:
    listen = "import socket; s = socket.create_server(('0.0.0.0', 8550)); print('up', flush=True); s.accept()"
    dial = [sys.executable, "-c", "import socket; socket.create_connection(('127.0.0.1', 8550), 5)"]
    with own_network() as network:
        enter = ["nsenter", f"--net=/proc/{network}/ns/net"]
        with subprocess.Popen([*enter, sys.executable, "-c", listen], stdout=subprocess.PIPE) as listener:
            assert listener.stdout is not None
            assert listener.stdout.readline() == b"up\n"
            assert subprocess.run([*enter, *dial]).returncode == 0
            listener.wait(60)
        with own_network() as other:
            elsewhere = subprocess.run(["nsenter", f"--net=/proc/{other}/ns/net", *dial], capture_output=True)
            assert elsewhere.returncode != 0


def test_an_engine_that_cannot_start_here_is_a_reason_to_skip_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, does in (("dockerd", "echo no bridges on this machine >&2; exit 1"), ("docker", "exit 1")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    with pytest.raises(pytest.skip.Exception, match="does not start here: no bridges on this machine"), engine():
        pass
    assert list((tmp_path / "tmp").iterdir()) == []
