"""A finished round turned into what is committed and answered: the next model, attendance and range, and the update.

The server's updates are built here and nowhere else, the one for a round that a restart cut off included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

import numpy as np

from fedrep.errors import FedrepError
from fedrep.privacy import coordinate_epsilon
from fedrep.protocol.attendance import Attendance
from fedrep.protocol.manifests import RoundManifest, RunManifest, SiloName
from fedrep.protocol.messages import Descent, Evidence, Outcome, Statement, Update
from fedrep.protocol.model_state import ServerModel
from fedrep.protocol.round_effects import Noted, RoundResult
from fedrep.protocol.run_progress import RunProgress


class Fate(Enum):
    """What became of a silo of the run in one round."""

    ON_TIME = "on_time"
    LATE = "late"
    ABSTAINED = "abstained"
    DROPPED = "dropped"
    SITTING_OUT = "sitting_out"
    EXCLUDED = "excluded"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class Charge:
    """What the proposals of a round cost, and whom; never less than the silos themselves count."""

    parameters: int
    per_silo: int
    alpha: float
    silos: tuple[SiloName, ...]

    @property
    def epsilon(self) -> float | None:
        return coordinate_epsilon(self.parameters, self.per_silo, self.alpha)


@dataclass(frozen=True, slots=True, eq=False)
class ClosedRound:
    """Everything a round changed, before any of it is on disk. `manifest` is None for a round that a restart cut off.

    `clip_rate` is the share of proposers that said "clips".
    """

    manifest: RoundManifest | None
    result: RoundResult
    update: Update
    progress: RunProgress
    charge: Charge
    clip_rate: float | None = None
    update_norm: float | None = None
    fates: Mapping[SiloName, Fate] = field(default_factory=dict)

    @property
    def failed_to_reveal(self) -> int:
        """Silos that submitted, and then kept back shares that were waited for or had dealt wrong ones."""
        report = self.result.report
        return len(self.result.survivor_names & (report.failed | report.missed))

    def line(self) -> Noted:
        """For the event log."""
        update = self.update
        if update.outcome is Outcome.APPLIED:
            text = f"round {update.round} applied with {len(self.result.survivor_names)} silos"
            return Noted("round_applied", text, severity="info", round=update.round)
        return Noted("round_skipped", f"round {update.round} skipped: {update.reason}", round=update.round)


def close_round(
    rules: RunManifest,
    manifest: RoundManifest,
    result: RoundResult,
    progress: RunProgress,
    *,
    in_place: bool = False,
) -> ClosedRound:
    """With `in_place` the model of `progress` may be gone: whoever wants that keeps nothing of it but its name."""
    result, model, descent = _descend(result, progress.model, rules.downlink_bits, in_place=in_place)
    applied = result.combined.vector if result.combined is not None else None
    bits = result.bits.values()
    after = replace(
        progress,
        last_round=manifest.round,
        model=model,
        attendance=progress.attendance.after_round(manifest.round, result.report),
        clip_range=progress.clip_range.after_round(bits, rules.byzantine, rules),
        unsent=_unsent(result, progress),
    )
    return ClosedRound(
        manifest,
        result,
        _update(rules, after, result, descent),
        after,
        Charge(manifest.parameters, manifest.per_silo, manifest.alpha, _charged(result, progress)),
        clip_rate=sum(each.clips for each in bits) / len(bits) if bits else None,
        update_norm=float(np.linalg.norm(applied)) if applied is not None else None,
        fates={silo: _fate(silo, manifest, result, progress.attendance) for silo in rules.silos},
    )


def _charged(result: RoundResult, progress: RunProgress) -> tuple[SiloName, ...]:
    return tuple(sorted(silo for silo, coded in result.proposals.items() if progress.unsent.get(silo) != coded))


def _unsent(result: RoundResult, progress: RunProgress) -> dict[SiloName, bytes]:
    """Whose proposal, by its hash, comes again for the same training: nobody's whose values may have been submitted (N1).

    A silo that was assigned may have trained again even where the round was skipped, and the same coordinates of another training
    cost it as much as others: then they are counted, though some silos have proof and train no more.
    """
    if result.outcome is Outcome.APPLIED:
        return {}  # another version: everybody trains
    assigned = {place.silo for buffer in result.assignment for place in buffer}
    known = {**progress.unsent, **result.proposals}
    return {silo: coded for silo, coded in known.items() if silo not in assigned}


def skip_after_restart(rules: RunManifest, number: int, progress: RunProgress) -> ClosedRound:
    """The round that was open when the server died: nobody knows more about it than that.

    So everybody who may have proposed is charged, at the largest epsilon, which is that of the whole list: the fewest each.
    """
    result = RoundResult.skipped("the server restarted during the round")
    after = replace(progress, last_round=number)
    attendance = progress.attendance
    here = tuple(silo for silo in sorted(rules.silos) if silo in attendance.standings and silo not in attendance.excluded)
    charge = Charge(rules.parameters, rules.coordinates // len(rules.silos), rules.alpha, here)
    return ClosedRound(None, result, _update(rules, after, result, None), after, charge)


def with_statements(update: Update, statements: tuple[Statement, ...]) -> Update:
    """The update as it is answered: statements come in for as long as silos ask about the round."""
    return replace(update, evidence=replace(update.evidence, statements=statements))


def _update(rules: RunManifest, after: RunProgress, result: RoundResult, descent: Descent | None) -> Update:
    evidence = Evidence(result.survivors, result.confirmations, (), result.opened)
    name = after.model.state.name
    return Update(rules.digest(), after.last_round, result.outcome, result.reason, name, evidence, descent)


def _descend(
    result: RoundResult, model: ServerModel, bits: int, *, in_place: bool
) -> tuple[RoundResult, ServerModel, Descent | None]:
    """A model that the update would make infinite stays as it is: the round is skipped, and the run goes on."""
    if result.combined is None:
        return result, model, None
    try:
        return result, *model.apply(result.indices, result.coordinates, result.combined.vector, bits, in_place=in_place)
    except FedrepError as error:
        reason = f"the update cannot be applied: {error}"
        return replace(result, outcome=Outcome.SKIPPED, reason=reason, combined=None, opened=()), model, None


def _fate(silo: SiloName, manifest: RoundManifest, result: RoundResult, attendance: Attendance) -> Fate:
    """`attendance` as it was before this round counted."""
    if silo in attendance.excluded:
        return Fate.EXCLUDED
    if manifest.entry(silo) is None:
        standing = attendance.standings.get(silo)
        waits = standing is not None and standing.back_in_round > manifest.round
        return Fate.SITTING_OUT if waits else Fate.ABSENT
    if silo in result.report.abstained:
        return Fate.ABSTAINED
    if silo not in result.proposals:
        return Fate.LATE
    if result.survivors is not None and silo in result.report.missed - result.survivor_names:
        return Fate.DROPPED  # not one whose buffer had too few proposers: it had nothing to submit
    return Fate.ON_TIME
