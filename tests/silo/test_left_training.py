"""A process whose training nobody waits for any more: it ends with its own exit code, and not in the middle of a library."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.harness.processes import REPOSITORY

ENDING = """
import asyncio, atexit, sys, threading
from fedrep_cli.main import end_over_training
from fedrep_silo.training import in_thread, is_under_way

atexit.register(print, "Python has ended")
begun, over = threading.Event(), threading.Event()

def train():
    begun.set()
    over.wait()

async def leave():
    training = asyncio.create_task(in_thread(train))
    await asyncio.to_thread(begun.wait)
    if sys.argv[1] == "waited for":
        over.set()
        await training
    else:
        training.cancel()

asyncio.run(leave())
print(is_under_way())
end_over_training(3)
sys.exit(4)
"""


@pytest.mark.parametrize(
    ("training", "code", "said"),
    [("left behind", 3, ["True"]), ("waited for", 4, ["False", "Python has ended"])],
    ids=["left behind", "waited for"],
)
def test_a_process_ends_at_once_over_a_training_that_was_left_behind(training: str, code: int, said: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENDING, training], cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout.split("\n")[:-1], done.stderr) == (code, said, "")
