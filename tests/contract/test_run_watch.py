"""`fedrep run watch` as a program reads it: every event once, also over a restart of the server."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO

from fedrep.wire.v1 import observer_pb2 as pb
from fedrep_cli.free_ports import free_port
from tests.harness.live_server import LiveServer
from tests.harness.people import People
from tests.harness.processes import hearing_ctrl_c

SECONDS = 120.0  # for what would otherwise hang


def read_along(stream: IO[str]) -> queue.Queue[str]:
    lines: queue.Queue[str] = queue.Queue()

    def read() -> None:
        with stream:
            for line in stream:
                lines.put(line)

    threading.Thread(target=read, daemon=True).start()
    return lines


def test_a_watcher_goes_on_where_it_was_when_the_server_is_back(people: People, tmp_path: Path) -> None:
    port = free_port()
    identity = str(people.folder / "viewer")
    command = ["run", "watch", "watched", "--json", "--server", f"localhost:{port}", "--identity", identity]
    with LiveServer(people, tmp_path, port=port) as live:
        live.create_run("watched")
        with hearing_ctrl_c():
            process = subprocess.Popen(
                [sys.executable, "-m", "fedrep_cli.main", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        assert process.stdout is not None
        assert process.stderr is not None
        events, complaints = read_along(process.stdout), read_along(process.stderr)
        first = json.loads(events.get(timeout=SECONDS))
        assert (first["position"], first["kind"]) == (1, "state")
    try:
        assert "the server is away; events after 1 follow" in complaints.get(timeout=SECONDS)
        with LiveServer(people, tmp_path, port=port) as live:
            admin = live.observer()
            for request in (pb.PauseRunRequest(name="watched"), pb.ResumeRunRequest(name="watched")):
                admin.call(type(request).__name__.removesuffix("Request"), request)
            admin.close()
            later = [json.loads(events.get(timeout=SECONDS)) for _ in range(2)]
            assert [event["position"] for event in later] == [2, 3]
            process.send_signal(signal.SIGINT)
            assert process.wait(SECONDS) == 130
    finally:
        process.kill()
        process.wait()


def test_a_server_that_was_never_there_is_not_waited_for(people: People) -> None:
    identity = str(people.folder / "viewer")
    command = ["run", "watch", "watched", "--server", f"localhost:{free_port()}", "--identity", identity]
    process = subprocess.run([sys.executable, "-m", "fedrep_cli.main", *command], capture_output=True, timeout=SECONDS)
    assert process.returncode == 3
