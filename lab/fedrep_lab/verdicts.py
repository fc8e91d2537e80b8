"""The paper's claims as tests on numbers: holds, does not hold, undecided, or not tested at this scale.

Every verdict comes with the numbers it rests on; those about the privacy of records are in `record_verdicts`, those about what
attacks take from a method in `robustness_verdicts`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from statistics import fmean
from typing import Any

from fedrep.theory import consensus_dimension
from fedrep_lab.catalogue import load_experiment
from fedrep_lab.comparisons import FAILS, HOLDS, MARGIN, UNDECIDED, UNTESTED, Checks, Interval, Verdict, judged, paired, seeds_of
from fedrep_lab.grids import Grid
from fedrep_lab.price import price, traffic_row
from fedrep_lab.record_verdicts import membership, record_selection, records
from fedrep_lab.results import Result
from fedrep_lab.robustness_verdicts import noniid, strong_attacks, table1
from fedrep_lab.scores import METHOD_NAMES, by_seed, grouped, label, score, select, values_of, varying

CALM_ALPHA = 0.95
SILENCE_COSTS = {3: 0.03, 4: 0.02}  # by the size of buffers, at most


def with_traffic(results: Sequence[Result], found: Verdict) -> Verdict:
    """Realised shares of the coordinates whose values travel, which a claim of equal Gamma rests on."""
    names = ["method", "ratio", *varying(results, ("alpha", "interval", "beta"))]
    rows = [
        {
            "comparison": f"{name}: share of values sent up, and received",
            "left": round(_traffic(alike, "gamma"), 4),
            "right": round(_traffic(alike, "gamma_down"), 4),
        }
        for name, alike in sorted(grouped(results, lambda result: label(result, names)).items())
    ]
    return Verdict(found.status, found.sentence, [*found.rows, *rows])


def _traffic(results: Sequence[Result], metric: str) -> float:
    """The mean over trainings that were not cut short, if there is any."""
    whole = [result for result in results if not result.metrics.get("diverged")]
    return fmean(float(result.metrics[metric]) for result in whole or results)


def alpha(results: Sequence[Result]) -> Verdict:
    checks = Checks(results)
    for attack in values_of(results, "attack"):
        for value in values_of(results, "alpha"):
            if 0 < value <= CALM_ALPHA:
                right = {"attack": attack, "alpha": 0.0}
                checks.compare(f"{attack}: alpha = {value} and 0", {"attack": attack, "alpha": value}, right, "similar")
        calm, one = {"attack": attack, "alpha": CALM_ALPHA}, {"attack": attack, "alpha": 1.0}
        checks.compare(f"{attack}: alpha = {CALM_ALPHA} above 1", calm, one, "above")
    return checks.verdict()


def rcgd_ef(results: Sequence[Result]) -> Verdict:
    checks = Checks(results)
    for attack in values_of(results, "attack"):
        for beta in values_of(select(results, method="rcgd_ef"), "beta"):
            ours, rival = {"method": "fedrep", "attack": attack}, {"method": "rcgd_ef", "attack": attack, "beta": beta}
            claim = "higher" if attack == "alie" else "not_below"
            for steps in values_of(results, "interval"):
                what = f"{attack}, I = {steps}: FedREP and RCGD-EF (beta = {beta})"
                checks.compare(what, {**ours, "interval": steps}, {**rival, "interval": steps}, claim)
    return with_traffic(results, checks.verdict())


def coordinates(results: Sequence[Result]) -> Verdict:
    checks = Checks(results)
    for attack in values_of(results, "attack"):
        for lie in values_of(results, "coordinate_attack"):
            if lie != "none":
                right = {"attack": attack, "coordinate_attack": "none"}
                checks.compare(f"{attack}: {lie} and honest", {"attack": attack, "coordinate_attack": lie}, right, "similar")
    return checks.verdict()


def momentum(results: Sequence[Result]) -> Verdict:
    checks = Checks(results)
    for rule in values_of(results, "rule"):
        checks.compare(f"{rule}: beta = 0.9 and 0", {"rule": rule, "beta": 0.9}, {"rule": rule, "beta": 0.0}, "higher")
    return checks.verdict()


def sparse_secagg(results: Sequence[Result]) -> Verdict:
    checks = Checks(results)
    for ratio in values_of(results, "ratio"):
        for size in values_of(select(results, method="fedrep"), "s"):
            ours, rival = {"method": "fedrep", "ratio": ratio, "s": size}, {"method": "sparse_secagg", "ratio": ratio}
            checks.compare(f"Gamma <= {ratio}: FedREP with s = {size} and the best SparseSecAgg", ours, rival, "above")
    return with_traffic(results, checks.verdict())


def share(results: Sequence[Result]) -> Verdict:
    checks = Checks(results)
    for attack in values_of(results, "attack"):
        for ratio in values_of(select(results, method="fedrep"), "ratio"):
            ours, rival = {"method": "fedrep", "attack": attack, "ratio": ratio}, {"method": "share", "attack": attack}
            claim = "higher" if attack == "alie" else "not_below"
            if cells := select(results, **ours):
                checks.compare(f"{attack}: FedREP at Gamma = {_traffic(cells, 'gamma'):.3f} and SHARE", ours, rival, claim)
    return with_traffic(results, checks.verdict())


def clt_k(results: Sequence[Result]) -> Verdict:
    """The least share of |g|^2 that a round of any seed kept, against the d'_cons / d that Proposition 2 promises."""
    rows: list[dict[str, Any]] = []
    kept: list[bool] = []  # FedREP at or above its bound
    broken: list[bool] = []  # CLT-K with lying leaders below it
    for same in _alike(results, "method", "method_settings", "coordinate_attack"):
        cell, parameters = same[0].cell, same[0].parameters
        k = cell.per_silo(parameters)
        bound = consensus_dimension(parameters, k, cell.m, cell.alpha, cell.f / cell.m) / parameters
        least = min(float(result.metrics["least_kept"]) for result in same)
        if cell.method == "fedrep":
            kept.append(least >= bound)
        elif cell.coordinate_attack != "none":
            broken.append(least < bound)
        rows.append(
            {
                "method": METHOD_NAMES[cell.method],
                "leaders": "always Byzantine" if cell.method_settings.get("byzantine_leader") else "in turn",
                "coordinates of attackers": cell.coordinate_attack,
                "least |C(g)|^2/|g|^2": round(least, 6),
                "d'_cons/d": round(bound, 6),
                "best accuracy, mean": round(fmean(float(result.metrics["best_accuracy"]) for result in same), 4),
                "seeds": len({result.cell.seed for result in same}),
            }
        )
    if not kept or not broken:
        return Verdict(UNTESTED, "The cells that this claim needs have not been run.", rows)
    if all(kept) and any(broken):
        return Verdict(HOLDS, "With Byzantine leaders some rounds of CLT-K keep less than the bound; FedREP never does.", rows)
    return Verdict(FAILS, "Either FedREP fell below its bound, or CLT-K never did.", rows)


def _alike(results: Sequence[Result], *names: str) -> list[list[Result]]:
    """Cells that agree in these settings, in order of the settings."""
    choices = product(*(values_of(results, name) for name in names))
    return [found for values in choices if (found := select(results, **dict(zip(names, values, strict=True))))]


def residual(results: Sequence[Result]) -> Verdict:
    """By how much the largest entry grows from CALM_ALPHA to 1: a ratio, so the interval is that of its logarithm.

    Training that left the finite numbers before its first evaluation has a memory that nobody looked at, and gives no ratio.
    """
    metric = "peak_largest_residual"
    rows = [
        {
            "alpha": value,
            "largest entry": round(score(results, metric, alpha=value) or 0, 4),
            "length": round(score(results, "peak_residual", alpha=value) or 0, 3),
            "seeds": len(by_seed(results, metric, alpha=value)),
        }
        for value in values_of(results, "alpha")
    ]
    pairs = paired(results, {"alpha": 1.0}, {"alpha": CALM_ALPHA}, metric)
    if pairs is None:
        return Verdict(UNTESTED, "The cells that this claim needs have not been run.", rows)
    grown = [math.log(one / calm) for one, calm in pairs if one > 0 and calm > 0]
    without = len(pairs) - len(grown)
    left_out = f" Left out: {without} seed{'s' * (without > 1)} that diverged before the memory was looked at." if without else ""
    if not grown:
        return Verdict(UNDECIDED, f"No seed gives a ratio.{left_out}", rows)
    growth = Interval.of(grown)
    span = f"95 % {math.exp(growth.low):.1f} to {math.exp(growth.high):.1f}, {len(grown)} seeds" if len(grown) > 1 else "one seed"
    sentence = f"At alpha = 1 the memory's largest entry is {math.exp(growth.mean):.1f} times that at {CALM_ALPHA} ({span})."
    return Verdict(growth.within(math.log(2), math.inf), sentence + left_out, rows)


def rings(results: Sequence[Result]) -> Verdict:
    checks = Checks(results)
    real = {"ring_bits": 0, "downlink_bits": 0}
    run = {(one.cell.ring_bits, one.cell.downlink_bits) for one in results if one.cell.ring_bits}
    rows = []
    for bits, down in sorted(run | {(8, 8), (8, 16), (16, 16)}):
        narrow = {"ring_bits": bits, "downlink_bits": down}
        name = f"ring of {bits} bits, update in {f'{down} bits' if down else 'real numbers'}"
        checks.compare(f"{name}, and real numbers", narrow, real, "similar")
        if down and (cells := select(results, **narrow)):
            rows.append({"comparison": name, **traffic_row(cells)})
    found = checks.verdict()
    return Verdict(found.status, found.sentence, [*found.rows, *rows])


def dropouts(results: Sequence[Result]) -> Verdict:
    """The margins are the claim's own. What silence does, taken apart: rounds skipped, buffers spoilt, memory gone stale."""
    checks = Checks(results)
    rows = []
    for size in values_of(results, "s"):
        for chance in values_of(results, "dropout"):
            silent, heard = {"s": size, "dropout": chance}, {"s": size, "dropout": 0.0}
            if chance:
                what, within = f"s = {size}: dropouts of {chance:.0%} and none", SILENCE_COSTS.get(size, MARGIN)
                checks.compare(what, silent, heard, "not_below", within=within)
                rows.append({"comparison": f"s = {size}, {chance:.0%} silent", **_parts(select(results, **silent))})
    found = checks.verdict()
    return Verdict(found.status, found.sentence, [*found.rows, *rows])


def _parts(results: Sequence[Result]) -> dict[str, float]:
    names = {
        "skipped": "rounds skipped",
        "contributing": "silos opened in a round",
        "contaminated": "opened buffers with an attacker",
        "peak_residual": "longest memory, in typical updates",
    }
    return {
        text: round(fmean(float(one.metrics[name]) for one in results), 4)
        for name, text in names.items()
        if results and all(name in one.metrics for one in results)
    }


def seats(results: Sequence[Result]) -> Verdict:
    trained = select(results, task="train")
    checks = Checks(trained)
    for attack in values_of(trained, "attack"):
        for epoch in values_of(trained, "reshuffle_every"):
            if epoch != 1:
                kept, anew = {"attack": attack, "reshuffle_every": epoch}, {"attack": attack, "reshuffle_every": 1}
                checks.compare(f"{attack}: seats for {epoch} rounds, and new ones in every round", kept, anew, "not_below")
    leaked = Checks(select(results, task="regression"))
    for rounds in values_of(select(results, task="regression"), "rounds"):
        for epoch in values_of(results, "reshuffle_every"):
            if epoch != 1:
                anew, kept = {"rounds": rounds, "reshuffle_every": 1}, {"rounds": rounds, "reshuffle_every": epoch}
                what = f"leak over {rounds} rounds: new seats in every round, and for {epoch} rounds"
                leaked.compare(what, anew, kept, "higher", metric="correlation")
    done = [*checks.done, *leaked.done]
    if not done:
        return Verdict(UNTESTED, "The cells that this claim needs have not been run.")
    basis = seeds_of([check.difference.seeds for check in done])
    return judged([(one.what, one.outcome) for one in done], [one.row() for one in done], checks.missing + leaked.missing, basis)


def essentials(results: Sequence[Result]) -> Verdict:
    checks = Checks(results)
    ours = {"method": "fedrep", "attack": "alie", "alpha": 0.0}
    for value in (0.8, CALM_ALPHA):
        checks.compare(f"alpha = {value} and 0", {**ours, "alpha": value}, ours, "similar")
    checks.compare(f"alpha = {CALM_ALPHA} above 1", {**ours, "alpha": CALM_ALPHA}, {**ours, "alpha": 1.0}, "above")
    for rival in ("rcgd_ef", "share"):
        checks.compare(f"FedREP and {METHOD_NAMES[rival]}", ours, {"method": rival, "attack": "alie"}, "higher")
    checks.compare(
        "FedREP under ALIE, and the mean without attack", ours, {"method": "dense_mean", "attack": "none"}, "not_below"
    )
    return with_traffic(results, checks.verdict())


def leaks(results: Sequence[Result]) -> Verdict:
    return as_stated("leaks", results)


def private_leaks(results: Sequence[Result]) -> Verdict:
    return as_stated("private_leaks", results)


def attendance(results: Sequence[Result]) -> Verdict:
    return as_stated("attendance", results)


def as_stated(name: str, results: Sequence[Result]) -> Verdict:
    """Against the figures of the documentation, which stand in the experiment's file and not here."""
    experiment = load_experiment(name)
    basis, stated = experiment.tables["stated"], experiment.stated()
    rows, off = [], 0
    for one in stated:
        cells = select(results, **{**basis["settings"], **one.settings})
        if not cells:
            continue
        found = fmean(float(cell.metrics[one.metric]) for cell in cells)
        off += abs(found - one.figure) > basis["within"]
        task = one.settings.get("task", name)
        detail = ", ".join(f"{name} = {value}" for name, value in one.settings.items() if name != "task")
        row = {"measurement": task, "settings": detail, "measured as": one.metric, "found": round(found, 3)}
        rows.append({**row, basis["page"]: one.figure})
    if len(rows) < len(stated):
        return Verdict(UNTESTED, "Not all of it has been measured.", rows)
    sentence = f"{len(rows) - off} of {len(rows)} measured within {basis['within']} of the figures in {basis['page']}."
    return Verdict(FAILS if off else HOLDS, sentence, rows)


VERDICTS: dict[str, Callable[[Sequence[Result]], Verdict]] = {
    "alpha": alpha,
    "rcgd_ef": rcgd_ef,
    "coordinates": coordinates,
    "momentum": momentum,
    "sparse_secagg": sparse_secagg,
    "share": share,
    "clt_k": clt_k,
    "residual": residual,
    "table1": table1,
    "noniid": noniid,
    "strong_attacks": strong_attacks,
    "rings": rings,
    "dropouts": dropouts,
    "price": price,
    "seats": seats,
    "essentials": essentials,
    "leaks": leaks,
    "attendance": attendance,
    "private_leaks": private_leaks,
    "membership": membership,
    "records": records,
    "record_selection": record_selection,
}


def judge(name: str, preset: str, results: Sequence[Result], grid: Grid | None = None) -> Verdict:
    """A smoke run is too small to decide anything; its numbers are shown all the same.

    A verdict sees what was run. That a claim holds takes all cells of the grid; for one that does not, a part is enough.
    """
    if not results:
        return Verdict(UNTESTED, "No cell of this experiment has been run.")
    found = VERDICTS[name](results)
    if preset == "smoke":
        return Verdict(UNTESTED, "A smoke run only shows that the experiment works.", found.rows)
    left = grid.not_run(results) if grid is not None else 0
    if grid is None or not left:
        return found
    what = f"{left} of the {len(grid)} planned cells {'have' if left > 1 else 'has'} not been run."
    if left == len(grid):
        what = f"None of the {len(grid)} planned cells has been run, only others."
    sentence = f"{found.sentence} {what}"
    return Verdict(UNDECIDED if found.status == HOLDS else found.status, sentence, found.rows)
