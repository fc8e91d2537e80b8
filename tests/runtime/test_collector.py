"""The collector of a service leaves loaded modules alone, and still takes what nobody holds."""

from __future__ import annotations

import subprocess
import sys

SERVICE = """
import gc, weakref
from fedrep_runtime.collector import YOUNG, settle_collector

class Knot:
    def __init__(self):
        self.self = self

settle_collector()
assert gc.get_freeze_count() > 1000, "what was loaded is frozen"
assert gc.get_threshold()[0] == YOUNG
first = weakref.ref(Knot())
held = [[] for _ in range(2 * YOUNG)]
assert first() is None, "a knot is untied without anybody asking for it"
"""


def test_a_settled_collector_leaves_what_was_loaded_and_takes_the_rest() -> None:
    """In a process of its own: what is frozen stays so."""
    subprocess.run([sys.executable, "-c", SERVICE], check=True)
