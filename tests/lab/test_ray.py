"""Cells on a real Ray of two workers: for this machine alone, and none is lost with a worker."""

from __future__ import annotations

import io
import os
import signal
import threading
import time
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
from rich.console import Console

from fedrep.errors import SettingsError
from fedrep_lab.catalogue import experiment_from
from fedrep_lab.results import ResultFolder
from fedrep_lab.running import Plan, run_experiments
from fedrep_runtime.ray_cluster import ray_cluster

QUIET = Console(file=io.StringIO())
TABLES = {"title": "t", "where": "w", "claim": "c", "verdict": "alpha", "grid": {"seed": [0, 1, 2]}}
LONG = {"rounds": 600}


def processes() -> Iterator[tuple[int, str]]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield int(path.parent.name), path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue


def of_ray() -> set[int]:
    """Every process of a Ray on this machine: its programs lie in the package's folder, and its workers rename themselves."""
    return {pid for pid, line in processes() if "/ray/" in line or line.startswith("ray::")}


def open_addresses(pids: set[int]) -> set[str]:
    """Where these processes listen, as the kernel writes addresses."""
    sockets = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                target = str(link.readlink())
            except OSError:
                continue
            if target.startswith("socket:["):
                sockets.add(target[8:-1])
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in sockets:
                found.add(fields[1].split(":")[0])
    return found


@pytest.mark.slow
def test_a_local_ray_listens_on_this_machine_alone_and_a_killed_workers_cell_is_run_again(tmp_path: Path) -> None:
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed; pip install 'fedrep[ray]' to test its engine.")
    import_module("ray")  # some library may have done so long before
    experiment = experiment_from("alpha_cclip", TABLES)
    others = of_ray()
    killed: list[int] = []
    done = threading.Event()

    def kill_one() -> None:
        while not done.is_set() and not killed:
            for pid, line in processes():
                if line.startswith("ray::work") and pid not in others:
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)
                    return
            time.sleep(0.02)

    with ray_cluster(2):
        loopback = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
        assert open_addresses(of_ray() - others) <= loopback
        assert open_addresses(of_ray() - others), "there is something to look at"
        killer = threading.Thread(target=kill_one)
        killer.start()
        try:
            plan = Plan("smoke", tmp_path / "ray", engine="ray", processes=2, changes=LONG)
            outcome = run_experiments([experiment], plan, QUIET)
        finally:
            done.set()
            killer.join()
        with pytest.raises(SettingsError, match="There is no rule 'foo'") as refused:
            run_experiments([experiment], Plan("smoke", tmp_path / "bad", engine="ray", changes={"rule": "foo"}), QUIET)
        assert "Traceback" not in str(refused.value)
    assert killed, "no worker was seen at work"
    assert outcome["ran"] == 3
    run_experiments([experiment], Plan("smoke", tmp_path / "here", changes=LONG), QUIET)
    here, there = (
        {result.cell.key(): result.metrics for result in ResultFolder(tmp_path / name).load("alpha_cclip", "smoke")}
        for name in ("here", "ray")
    )
    assert here == there
