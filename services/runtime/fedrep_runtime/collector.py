"""Python's garbage collector, as a service that lives for weeks wants it."""

from __future__ import annotations

import gc

# New containers before the collector looks at the young ones, and how many such looks come before one at older ones. A call of
# gRPC makes hundreds that die by themselves: by Python's own 700 it looks again and again in every round, and finds little.
YOUNG, MIDDLE, OLD = 10_000, 20, 20


def settle_collector() -> None:
    """Once everything is loaded: modules live as long as the process, and are not looked at again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, OLD)
