"""What a run on the server asks of whoever drives it.

Everything durable is a save, one transaction each. `progress` is what the run believes once the save is written, and what
others may hear then is made of the save it needs.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedrep.protocol.manifests import SignedRoundManifest, SiloName
from fedrep.protocol.messages import Phase, Update
from fedrep.protocol.round_closing import ClosedRound
from fedrep.protocol.round_effects import Noted
from fedrep.protocol.run_progress import RunProgress
from fedrep.protocol.server_round import ServerRound


@dataclass(frozen=True, slots=True, eq=False)
class KeepLine:
    """Nothing but a line in the event log: who is present is not on disk."""

    progress: RunProgress
    line: Noted


@dataclass(frozen=True, slots=True, eq=False)
class KeepState:
    progress: RunProgress
    line: Noted


@dataclass(frozen=True, slots=True, eq=False)
class KeepAttendance:
    """Who may take part: whom an admin excluded, and the list of silos from some round on."""

    progress: RunProgress
    line: Noted


@dataclass(frozen=True, slots=True, eq=False)
class KeepModel:
    """The model's file first, then what names it: a crash in between leaves an orphan file and nothing else."""

    progress: RunProgress
    line: Noted


@dataclass(frozen=True, slots=True, eq=False)
class OpenedRound:
    machine: ServerRound
    signed: SignedRoundManifest

    @property
    def number(self) -> int:
        return self.signed.manifest.round


@dataclass(frozen=True, slots=True, eq=False)
class OpenRound:
    """Give the number out for good. `line` says that the run is no longer waiting, if it was."""

    progress: RunProgress
    round: OpenedRound
    line: Noted | None


@dataclass(frozen=True, slots=True, eq=False)
class CommitRound:
    """All of a round or nothing: model, outcome, U with its signatures, ledger, downlink residual. The file as in KeepModel."""

    closed: ClosedRound
    lines: tuple[Noted, ...]

    @property
    def progress(self) -> RunProgress:
        return self.closed.progress


Save = KeepLine | KeepState | KeepAttendance | KeepModel | OpenRound | CommitRound


@dataclass(frozen=True, slots=True)
class Announced:
    """Silos may be told of the round."""

    opening: OpenRound

    @property
    def signed(self) -> SignedRoundManifest:
        return self.opening.round.signed


@dataclass(frozen=True, slots=True)
class Answered:
    """Whoever waits for the outcome may be told."""

    commit: CommitRound

    @property
    def update(self) -> Update:
        return self.commit.closed.update


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Hand in TimedOut after so many seconds; an older timer is of no use any more."""

    round: int
    phase: Phase
    seconds: float


@dataclass(frozen=True, slots=True)
class StartGrace:
    """Hand in GraceOver with the same number when the silo had its time to come back."""

    silo: SiloName
    loss: int


@dataclass(frozen=True, slots=True)
class Gather:
    """Hand in RoundDue: at once, or when silos that are still away had their time to come."""

    at_once: bool


@dataclass(frozen=True, slots=True)
class Count:
    """Hand in Counted, or CountUnknown."""


RunEffect = Save | Announced | Answered | SetTimer | StartGrace | Gather | Count | Noted
