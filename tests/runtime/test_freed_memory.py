"""What is freed goes back to the system, for models that are large enough."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fedrep_runtime import freed_memory
from fedrep_runtime.freed_memory import WORTHWHILE, give_back

# Many pieces, each below what the library maps on its own; the last one pins them all.
PIECES = """
from pathlib import Path
from fedrep_runtime.freed_memory import WORTHWHILE, give_back

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

pieces = [bytearray(100_000) for _ in range(2_000)]
pin = bytearray(50_000)
held = resident()
pieces.clear()
small = give_back(WORTHWHILE - 1), resident()
large = give_back(WORTHWHILE), resident()
print(held - small[1] < 50_000_000, held - large[1] > 100_000_000, small[0], large[0], bool(pin))
"""


def test_freed_pieces_are_given_back_for_a_large_model_and_kept_for_a_small_one() -> None:
    if freed_memory._trim() is None:
        pytest.skip("This C library has no malloc_trim.")
    done = subprocess.run([sys.executable, "-c", PIECES], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True", "False", "True", "True"]


def test_a_library_that_cannot_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freed_memory, "_trim", lambda: None)
    assert not give_back(WORTHWHILE)
