"""Processes forked from one that has loaded everything: they are as different, and as mortal, as plain ones."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fedrep.errors import FedrepError
from fedrep_cli.nursery import Nursery, can_fork
from tests.cli.endings import descendants, until_ended
from tests.harness.processes import python

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Only Linux forks from a nursery.")

# A process of its own: pytest's has threads, and gets no nursery.
PREPARED = """
import os, random, secrets, signal, sys, time
from pathlib import Path
os.environ["OPENBLAS_NUM_THREADS"] = "1"
import numpy, torch
from fedrep_cli.nursery import Nursery
from fedrep_cli.processes import Processes

def main(arguments):
    {child}

{first}
nursery = Nursery(["json"], main)
with Processes(Path(sys.argv[1]), dict(x=nursery)) as processes:
    {parent}
nursery.close()
"""


def prepared(child: str, parent: str, first: str = "") -> list[str]:
    child, parent = (text.replace("\n", "\n    ") for text in (child, parent))
    return ["-c", PREPARED.format(child=child, parent=parent, first=first)]


def run(folder: Path, child: str, parent: str, first: str = "") -> str:
    arguments = [sys.executable, *prepared(child, parent, first), str(folder)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_no_two_children_draw_the_same_numbers_nor_the_same_as_their_parent(tmp_path: Path) -> None:
    draw = "[random.random(), float(numpy.random.rand()), float(torch.rand(1)), secrets.token_hex(8)]"
    child = f"print(__import__('json').dumps({draw}))\nreturn 0"
    parent = (
        f"random.random(), numpy.random.rand(), torch.rand(1)\nfor name in 'abc':\n    processes.start(name, ['x'])\n"
        f"while any(processes.running(name) for name in 'abc'):\n    time.sleep(0.01)\nprint(__import__('json').dumps({draw}))"
    )
    drawn = [json.loads(run(tmp_path, child, parent))]
    drawn += [json.loads((tmp_path / f"{name}.log").read_text()) for name in "abc"]
    for kind in zip(*drawn, strict=True):
        assert len(set(kind)) == len(drawn), kind


def test_a_child_has_its_arguments_its_environment_its_log_and_a_session_of_its_own(tmp_path: Path) -> None:
    child = "print(arguments, os.environ['SAID'], os.getsid(0) == os.getpid(), sys.stdin.read() == '')\nreturn 3"
    parent = (
        "processes.start('one', ['x', 'b'], {'SAID': 'quietly'})\nprint(processes._running['one'].wait(), 'SAID' in os.environ)"
    )
    assert run(tmp_path, child, parent) == "3 False\n"
    assert (tmp_path / "one.log").read_text() == "['x', 'b'] quietly True True\n"


def test_an_error_in_a_child_is_its_last_word_and_a_signal_is_its_code(tmp_path: Path) -> None:
    child = "if arguments[1:]:\n    raise ValueError('out of ink')\nprint('up', flush=True)\nsignal.pause()"
    parent = (
        "processes.start('fails', ['x', 'y'])\nprocesses.start('dies', ['x'])\nprocesses._running['fails'].wait()\n"
        "while processes.last_words('dies') != 'up':\n    time.sleep(0.01)\n"
        "processes.kill('dies')\nprint(processes.failed(), processes.last_words('fails'), processes._running['dies'].returncode)"
    )
    assert run(tmp_path, child, parent) == "['fails'] ValueError: out of ink -9\n"


def test_a_process_with_more_open_files_than_select_can_count_has_a_nursery_too(tmp_path: Path) -> None:
    many, most = 1200, resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if most < 2 * many:
        pytest.skip(f"The system allows a process {most} open files.")
    first = (
        f"import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, ({2 * many}, {most}))\n"
        f"held = [os.open(os.devnull, os.O_RDONLY) for _ in range({many})]"
    )
    parent = "processes.start('one', ['x'])\nprint(processes._running['one'].wait())"
    assert run(tmp_path, "return 5", parent, first) == "5\n"


@pytest.mark.parametrize("whom", ["the parent", "the nursery"])
def test_children_end_with_whoever_started_them(whom: str, tmp_path: Path) -> None:
    child = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up', flush=True)\nsignal.pause()"
    parent = (
        "for name in 'ab':\n    processes.start(name, ['x'])\n"
        "while any(processes.last_words(name) != 'up' for name in 'ab'):\n    time.sleep(0.01)\n"
        "print('all up', file=sys.stderr, flush=True)\nwhile processes.running('a'):\n    time.sleep(0.01)\n"
        "print(processes._running['b'].wait())"
    )
    with python(*prepared(child, parent), str(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert any("all up" in line for line in process.stderr)
        found = descendants(process.pid)
        assert len(found) == 3
        os.kill(process.pid if whom == "the parent" else found[0], signal.SIGKILL)
        said, _ = process.communicate(timeout=120)
    until_ended(found)
    assert said == ("" if whom == "the parent" else "-9\n")


def test_a_process_with_a_second_thread_gets_no_nursery() -> None:
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        assert not can_fork()
        with pytest.raises(FedrepError, match="cannot be copied"):
            Nursery([], lambda _arguments: 0)
    finally:
        over.set()
        thread.join()
