"""Timers around the kinds of work of a silo, by name: the code is not changed for being measured."""

from __future__ import annotations

from collections import Counter
from typing import Any

from benchmarks.server_process import WORK, timed

REST = "gRPC, TLS and event loop"


def install_silo_timers() -> None:
    from benchmarks.idle_silos import SubtractingTrainer
    from fedrep.protocol.silo_machine import SiloMachine
    from fedrep.secagg.keys import P256SigningKey, P256VerifyKey
    from fedrep_silo.state import StateFolder

    places: list[tuple[Any, str, str]] = [
        (SubtractingTrainer, "train", "training"),
        (P256VerifyKey, "verify", "signatures"),
        (P256SigningKey, "sign", "signatures"),
        (StateFolder, "write", "state on disk"),
        (SiloMachine, "receive", "top-k, masks, shares, update"),
    ]
    for where, name, kind in places:
        setattr(where, name, timed(kind, getattr(where, name)))


def silo_shares(cpu: float) -> Counter[str]:
    """CPU seconds of all silos by kind of work; what no timer saw is gRPC, TLS and the event loop."""
    parts: Counter[str] = Counter(WORK)
    parts[REST] = max(cpu - sum(WORK.values()), 0.0)  # type: ignore[assignment]
    return parts
