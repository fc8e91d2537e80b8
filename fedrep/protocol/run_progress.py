"""Where a run stands between rounds: frozen, so that what is not on disk yet cannot be believed by half."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from fedrep.protocol.attendance import Absence, Attendance
from fedrep.protocol.clip_range import ClipRange
from fedrep.protocol.manifests import RunManifest, SignedRunManifest, SiloName
from fedrep.protocol.messages import SignedRollback
from fedrep.protocol.model_state import ServerModel
from fedrep.secagg.keys import VerifyKey


class RunState(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    PAUSED = "paused"
    FINISHED = "finished"
    STOPPED = "stopped"

    @property
    def is_over(self) -> bool:
        return self in (RunState.FINISHED, RunState.STOPPED)


@dataclass(frozen=True, slots=True, eq=False)
class RunProgress:
    """What the next round starts from.

    A restart finds all of it on disk but what silos bring when they join again: who is present, `keys`, and `unsent`, hashes of
    the coordinates of silos that proposed and had nothing to submit: until they train again they propose these, at no new cost.
    `rollback` is the latest an admin signed. Of the `amendments` of the run's list, oldest first, so many as `amended` says are
    in force; at most one more waits for its epoch.
    """

    state: RunState
    reason: str
    last_round: int
    model: ServerModel
    attendance: Attendance
    clip_range: ClipRange
    keys: Mapping[SiloName, VerifyKey] = field(default_factory=dict)
    unsent: Mapping[SiloName, bytes] = field(default_factory=dict, repr=False)
    rollback: SignedRollback | None = None
    amendments: tuple[SignedRunManifest, ...] = ()
    amended: int = 0

    @classmethod
    def first(cls, rules: RunManifest, model: ServerModel) -> RunProgress:
        reason = "waiting for silos to join"
        return cls(RunState.WAITING, reason, 0, model, Attendance(), ClipRange(rules.initial_range))

    @property
    def in_force(self) -> tuple[SignedRunManifest, ...]:
        """Amendments that have come into force, oldest first."""
        return self.amendments[: self.amended]

    @property
    def pending(self) -> SignedRunManifest | None:
        return self.amendments[self.amended] if len(self.amendments) > self.amended else None

    def amended_for(self, number: int) -> RunProgress:
        """Before round `number`: a list whose epoch has come counts, and everyone joins again under its hash."""
        if self.pending is None or number < self.pending.manifest.from_round:
            return self
        return replace(self.after_restart(), unsent=self.unsent, amended=self.amended + 1)

    def after_restart(self) -> RunProgress:
        """Penalties and exclusions outlast a restart; presence does not: silos join again."""
        standings = self.attendance.standings.items()
        absent = {name: replace(standing, present=False, absence=Absence.NOT_BACK) for name, standing in standings}
        return replace(self, attendance=replace(self.attendance, standings=absent), keys={}, unsent={})
