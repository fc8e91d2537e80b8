"""The part of `fedrep plan` about training records: how much noise a budget asks for, and whether anything is learnt under it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import typer

from fedrep.privacy import shown
from fedrep.protocol.manifests import RunManifest
from fedrep.record_privacy import COVERS, Budget, RecordCharge, RecordLedger, SampledGaussian

# How far the sum of a run's gradients may stand out of the sum of its noise, at best. With one silo on the digits, and all
# coordinates, accuracy hardly suffers above 3 and breaks down below 1.
LEARNS_NOTHING, LEARNS_WELL = 1.0, 3.0

OPTIONS = {"batch": "--batch", "steps": "--steps", "budget": "--epsilon", "delta": "--delta"}
_INDENT = " " * 14


@dataclass(frozen=True)
class RecordsAsked:
    """The options about training records, which belong to a silo and to no run; without `records` nothing is asked."""

    records: int | None
    batch: int
    steps: int
    epsilon: float
    delta: float

    def require_sense(self, given: set[str]) -> None:
        if self.records is None:
            if lost := [option for name, option in OPTIONS.items() if name in given]:
                raise typer.BadParameter(f"give --records too: without it {', '.join(lost)} says nothing")
            return
        if not (math.isfinite(self.epsilon) and self.epsilon > 0.0):
            raise typer.BadParameter("--epsilon must be above 0; for no bound leave --records out")
        if not 0.0 < self.delta < 1.0:
            raise typer.BadParameter("--delta must lie between 0 and 1, well below one in the number of records")


def assess(run: RunManifest, asked: RecordsAsked) -> dict[str, Any]:
    """For a silo with so many records that trains in every round, and a federation of silos like it."""
    try:
        from fedrep_trainers.record_accountant import noise_for, spent, tight  # seconds to import
    except ModuleNotFoundError as error:
        raise typer.BadParameter(f"--records needs {error.name!r} of the extra client: pip install 'fedrep[client]'") from error
    assert asked.records is not None
    batch, steps, budget = min(asked.batch, asked.records), asked.steps, Budget(asked.epsilon, asked.delta)
    rate = batch / asked.records
    noise = noise_for(budget, rate, steps, run.rounds)
    ledger = RecordLedger((RecordCharge(run.name, SampledGaussian(noise, rate, steps), run.rounds),))
    honest = max(len(run.silos) - run.byzantine, 1)
    per_coordinate = noise / batch
    norm = per_coordinate * math.sqrt(min(run.coordinates, run.parameters))
    whole_run = math.sqrt(steps * run.rounds * honest) / norm
    return {
        "records": asked.records,
        "batch": batch,
        "steps": steps,
        "rate": rate,
        "epsilon_budget": budget.epsilon,
        "delta": budget.delta,
        "noise": noise,
        "epsilon": spent(ledger, budget.delta),
        "epsilon_tight": tight(ledger, budget.delta),
        "noise_per_coordinate": per_coordinate,
        "noise_norm": norm,
        "noise_norm_all": per_coordinate * math.sqrt(run.parameters),
        "signal_to_noise_step": 1.0 / norm,
        "signal_to_noise_run": whole_run,
        "silos": honest,
        "verdict": _verdict(whole_run),
        # At the same rate the noise is the same, so that the signal grows with the number of records.
        "records_to_learn_well": asked.records
        if whole_run >= LEARNS_WELL
        else math.ceil(asked.records * LEARNS_WELL / whole_run),
        "delta_too_large": budget.delta * asked.records >= 1.0,
        "covers": COVERS,
    }


def lines(found: Mapping[str, Any], coordinates: int, parameters: int) -> list[str]:
    closer = f" ({shown(found['epsilon_tight'])} by its loss distribution)" if found["epsilon_tight"] is not None else ""
    each, sent, everywhere = (_short(found[name]) for name in ("noise_per_coordinate", "noise_norm", "noise_norm_all"))
    text = [
        f"records       {found['records']:,}, batches of {found['batch']:,} on average (a rate of {found['rate']:.3g}), "
        f"{found['steps']:,} local step{_plural(found['steps'])} a round: sigma = {found['noise']:g}",
        f"{_INDENT}epsilon reached {shown(found['epsilon'])} at delta = {found['delta']:g}{closer}, "
        f"of a budget of {shown(found['epsilon_budget'])}",
        f"{_INDENT}noise of a step {each} C per coordinate; its norm is {sent} C over the {coordinates:,} coordinates sent "
        f"({everywhere} C over all {parameters:,}), while a step's mean of clipped gradients is at most C long",
    ]
    if found["delta_too_large"]:
        text.append(
            f"{_INDENT}delta = {found['delta']:g} is not below 1 / {found['records']:,}: publishing a record at random would "
            "pass. Choose a smaller one."
        )
    return [*text, f"{_INDENT}{_sentence(found)}", f"{_INDENT}It covers {found['covers']}."]


def _verdict(signal: float) -> str:
    if signal < LEARNS_NOTHING:
        return "too small"
    return "little" if signal < LEARNS_WELL else "enough"


def _sentence(found: Mapping[str, Any]) -> str:
    silos, step, whole = found["silos"], _short(found["signal_to_noise_step"]), _short(found["signal_to_noise_run"])
    best = (
        f"Signal to noise at best {step} in a step of one silo, {whole} over the run and {silos:,} honest silo{_plural(silos)} "
        "like it: that is, if every gradient were C long, all pointed the same way, and the rule averaged."
    )
    if found["verdict"] == "enough":
        return f"{best} Noise need not keep this from being learnt."
    said = (
        "This set is too small to learn from" if found["verdict"] == "too small" else "Little can be learnt from so small a set"
    )
    return (
        f"{best} {said}: take about {found['records_to_learn_well']:,} records at the same rate, larger batches, a smaller "
        "model, fewer coordinates, more silos, or a larger epsilon."
    )


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100.0 else f"{value:.2g}"


def _plural(count: int) -> str:
    return "" if count == 1 else "s"
