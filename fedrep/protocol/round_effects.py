"""What a round on the server asks of whoever drives it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedrep.protocol.attendance import RoundReport
from fedrep.protocol.clip_range import RangeBits
from fedrep.protocol.manifests import SiloName
from fedrep.protocol.messages import Assignment, Outcome, Phase, Signatures, SurvivorSet
from fedrep.protocol.opening import Combined

Severity = Literal["info", "warning", "alert"]


@dataclass(frozen=True, slots=True)
class PhaseStarted:
    """The driver arms the phase's timer and wakes whoever waited for what the previous phase produced."""

    phase: Phase


@dataclass(frozen=True, slots=True)
class Noted:
    """A line for the event log. Never a value, a share or a seed."""

    kind: str
    text: str
    silo: SiloName | None = None
    severity: Severity = "warning"
    round: int = 0  # 0: about no round, or about the one it came from


@dataclass(frozen=True, slots=True, eq=False)
class RoundResult:
    """What is committed: the aggregate on I if the round was applied, and what happened either way.

    `proposals` holds a hash of each proposer's I_k. `bits` is what the proposers said about R.
    """

    outcome: Outcome
    reason: str
    indices: NDArray[np.int64]
    coordinates: bytes
    survivors: SurvivorSet | None
    confirmations: Signatures
    opened: tuple[int, ...]
    combined: Combined | None
    report: RoundReport
    assignment: Assignment
    discarded: Mapping[int, str]
    proposals: Mapping[SiloName, bytes]
    bits: Mapping[SiloName, RangeBits]

    @classmethod
    def skipped(cls, reason: str) -> RoundResult:
        """Of a round nothing else is known about."""
        report = RoundReport((), frozenset(), frozenset(), frozenset(), frozenset(), {})
        return cls(Outcome.SKIPPED, reason, np.empty(0, np.int64), b"", None, (), (), None, report, (), {}, {}, {})

    @property
    def survivor_names(self) -> frozenset[SiloName]:
        return self.survivors.names() if self.survivors is not None else frozenset()


@dataclass(frozen=True, slots=True)
class RoundEnded:
    """The last effect of a round; its timer is of no use any more."""

    result: RoundResult


Effect = PhaseStarted | Noted | RoundEnded
