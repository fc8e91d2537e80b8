"""Verdicts on training with record-level privacy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedrep_lab.comparisons import FAILS, HOLDS, UNTESTED, Checks, Verdict, seeds_of
from fedrep_lab.results import Result
from fedrep_lab.scores import place_name, places_of, score, select, values_of

PRIVACY_COSTS = 0.1  # accuracy, at most, at PRIVACY_AT
PRIVACY_AT = 8.0
TELLS = 0.5  # an attack whose advantage is less without privacy is too weak to say anything


def records(results: Sequence[Result]) -> Verdict:
    """For every rule, attack and way of sending: epsilon = 8 against the same rule and attack without privacy."""
    checks = Checks(results)
    for rule in values_of(results, "rule"):
        for method in values_of(results, "method"):
            for attack in values_of(results, "attack"):
                same = {"rule": rule, "method": method, "attack": attack}
                if rule == "mean" and attack != "none":  # no rule at all: shown in the figure, and claimed by nobody
                    continue
                what = (
                    f"{rule}, {'all values' if method == 'share' else 'K/d = 0.05'}, {attack}: epsilon = {PRIVACY_AT:g} and none"
                )
                private, open_ = {**same, "record_epsilon": PRIVACY_AT}, {**same, "record_epsilon": 0.0}
                checks.compare(what, private, open_, "not_below", within=PRIVACY_COSTS)
    found = checks.verdict()
    return Verdict(found.status, found.sentence, [*found.rows, *_by_epsilon(results)])


def _by_epsilon(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Every accuracy, for the page: one row per rule, way of sending and attack."""
    rows = []
    for rule in values_of(results, "rule"):
        for method, selection in (("share", "top_k"), ("fedrep", "moved"), ("fedrep", "top_k")):
            for attack in values_of(results, "attack"):
                cells = select(results, rule=rule, method=method, selection=selection, attack=attack)
                sends = "all values" if method == "share" else selection
                if cells:
                    found = {epsilon: score(cells, record_epsilon=epsilon) for epsilon in places_of(results, "record_epsilon")}
                    shown = {
                        f"epsilon {place_name('record_epsilon', e)}": "" if v is None else round(v, 4) for e, v in found.items()
                    }
                    rows.append({"comparison": f"{rule}, {sends}, {attack}", **shown})
    return rows


def record_selection(results: Sequence[Result]) -> Verdict:
    """Each selection at the best of its rates; with top_k, memory kept and reset are two."""
    checks = Checks(results)
    for attack in values_of(results, "attack"):
        best = {"attack": attack, "selection": "moved"}
        for selection in values_of(results, "selection"):
            for settings in values_of(select(results, selection=selection), "method_settings"):
                if selection == "moved":
                    continue
                rival = {"attack": attack, "selection": selection, "method_settings": settings}
                kept = "" if settings.get("memory", True) else " without memory"
                checks.compare(f"{attack}: moved and {selection}{kept}", best, rival, "above")
    return checks.verdict()


def membership(results: Sequence[Result]) -> Verdict:
    rows = []
    above, weak = [], []
    private = {result.cell.record_epsilon for result in results} - {0.0}
    for result in sorted(results, key=lambda one: (one.cell.record_epsilon, one.cell.seed)):
        epsilon, found = result.cell.record_epsilon, result.metrics
        row: dict[str, Any] = {"record epsilon": f"{epsilon:g}" if epsilon else "none", "seed": result.cell.seed}
        row["bound"] = round(found["bound"], 4)
        for name in ("loss", "ratio"):
            row[f"by {name}"] = round(found[f"{name}_advantage"], 3)
            row[f"95 % of {name}"] = f"{found[f'{name}_least']:.3f} to {found[f'{name}_most']:.3f}"
        rows.append(row)
        best = max(found["loss_advantage"], found["ratio_advantage"])
        if not epsilon:
            weak += [best] if best < TELLS else []
        else:
            # The measured figure itself has to lie below, not only its lower confidence limit.
            above += [epsilon] if best > found["bound"] else []
    if not private or not any(result.cell.record_epsilon == 0 for result in results):
        return Verdict(UNTESTED, "Trainings with and without privacy are both needed.", rows)
    if above:
        return Verdict(
            FAILS, f"More than the bound was measured at epsilon {', '.join(f'{value:g}' for value in sorted(set(above)))}.", rows
        )
    if weak:
        return Verdict(FAILS, f"The attack is too weak to tell anything: without privacy its advantage is {weak[0]:.3f}.", rows)
    basis = seeds_of([len({result.cell.seed for result in results})])
    return Verdict(HOLDS, f"The advantage is below the bound for each of {len(private)} epsilons ({basis}).", rows)
