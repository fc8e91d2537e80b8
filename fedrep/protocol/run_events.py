"""What a run on the server is told: what silos and admins do, that time passed, that something is on disk."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedrep.protocol.goals import Totals
from fedrep.protocol.manifests import RosterEntry, SignedRunManifest, SiloName
from fedrep.protocol.messages import Aborted, Abstention, Confirmation, Phase, Proposal, Reveal, SignedRollback, Submission
from fedrep.protocol.run_effects import Save
from fedrep.secagg.keys import VerifyKey


@dataclass(frozen=True, slots=True)
class Joined:
    """The session key in `entry` was verified with `key`; `kept` is the one that the silo still has agreements of."""

    entry: RosterEntry
    key: VerifyKey
    kept: bytes = b""


@dataclass(frozen=True, slots=True)
class Left:
    silo: SiloName


@dataclass(frozen=True, slots=True)
class LineLost:
    """The silo's connection broke, or ended without another in its place."""

    silo: SiloName


@dataclass(frozen=True, slots=True)
class LineBack:
    """A connection of the silo is there."""

    silo: SiloName


@dataclass(frozen=True, slots=True)
class GraceOver:
    """Of a `StartGrace`, perhaps too late to matter."""

    silo: SiloName
    loss: int


@dataclass(frozen=True, slots=True)
class Withdrew:
    """The silo asks how the open round ends: it plays no further part in it."""

    silo: SiloName
    round: int


@dataclass(frozen=True, slots=True)
class RoundDue:
    """The silos had their time to gather."""


@dataclass(frozen=True, slots=True)
class TimedOut:
    """A timer that was asked for has rung, perhaps too late to matter. `cut` if earlier than was asked for."""

    round: int
    phase: Phase
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Pause:
    reason: str


@dataclass(frozen=True, slots=True)
class Resume:
    pass


@dataclass(frozen=True, slots=True)
class Stop:
    """For good."""

    reason: str


@dataclass(frozen=True, slots=True)
class Exclude:
    silo: SiloName
    admin: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Readmit:
    silo: SiloName
    admin: str


@dataclass(frozen=True, slots=True, eq=False)
class RollBack:
    """The parameters of an older version become a new one, so that versions only go up.

    `order` is the admin's word for it, its signature verified: silos take the model for nobody else's (N5).
    """

    version: int
    vector: NDArray[np.float32] = field(repr=False)
    order: SignedRollback


@dataclass(frozen=True, slots=True)
class Amend:
    """Another list of silos from the next epoch on; the admin's signature was verified."""

    signed: SignedRunManifest


@dataclass(frozen=True, slots=True)
class Counted:
    totals: Totals


@dataclass(frozen=True, slots=True)
class CountUnknown:
    """The totals could not be read, or what they led to could not be saved: both are tried again before a round opens."""


@dataclass(frozen=True, slots=True)
class Restarted:
    """The server is back; `open_round` is the number that was given out last. `counted` if no goal can have been missed."""

    open_round: int
    counted: bool = False


@dataclass(frozen=True, slots=True)
class Saved:
    """It is on disk."""

    save: Save


RunEvent = (
    Proposal
    | Abstention
    | Submission
    | Confirmation
    | Reveal
    | Aborted
    | Joined
    | Left
    | LineLost
    | LineBack
    | GraceOver
    | Withdrew
    | RoundDue
    | TimedOut
    | Pause
    | Resume
    | Stop
    | Exclude
    | Readmit
    | RollBack
    | Amend
    | Counted
    | CountUnknown
    | Restarted
    | Saved
)
