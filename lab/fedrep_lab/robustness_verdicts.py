"""Verdicts on what attacks take: the measured Table 1, data that differ between silos, attacks that seek a rule's weak spot."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from fedrep_lab.comparisons import FAILS, HOLDS, UNDECIDED, UNTESTED, Checks, Interval, Verdict, judged, paired, seeds_of
from fedrep_lab.methods import METHODS
from fedrep_lab.results import Result
from fedrep_lab.scores import METHOD_NAMES, as_attacked, by_seed, score, select, values_of

_TICKS = {  # Table 1: robust, efficient, private
    "rcgd_ef": (True, True, False),
    "f2ed": (True, False, True),
    "share": (True, False, True),
    "sparse_secagg": (False, True, True),
    "fedrep": (True, True, True),
}


def table1(results: Sequence[Result]) -> Verdict:
    """Robust: loses less than ten points to its worst attack. Efficient: sends at most a fifth of the values."""
    results = as_attacked(results)
    rows, outcomes = [], []
    counts: list[int] = []  # seeds of the comparisons
    attacks = set(values_of(results, "attack")) - {"none"}
    for method in values_of(results, "method"):
        cells = select(results, method=method)
        clean = by_seed(cells, attack="none")
        lost = {attack: found for attack in values_of(cells, "attack") if (found := _lost(cells, attack)) is not None}
        if not clean:
            continue
        gamma = score(cells, "gamma", attack="none") or 0.0
        view = METHODS[method].view
        robust = _worst_of([found.within(-math.inf, LOST) for found in lost.values()])
        if robust == HOLDS and (not lost or set(lost) != attacks):  # the worst attack may be one that was not run
            robust = UNDECIDED
        efficient, private = 0 < gamma <= 0.2, view.startswith(("sums", "the sum"))
        if method in _TICKS and lost:
            said = _TICKS[method]
            counts += [found.seeds for found in lost.values()]
            seen = robust if said[0] else _OPPOSITE[robust]
            outcomes.append((f"{METHOD_NAMES[method]}, robust", seen))
            agrees = (efficient, private) == said[1:]
            outcomes.append((f"{METHOD_NAMES[method]}, efficient and private", HOLDS if agrees else FAILS))
        taken = {f"lost to {attack}": _taken(found, len(clean)) for attack, found in lost.items()}
        row = {"method": METHOD_NAMES[method], "seeds": len(clean), "no attack": round(fmean(clean.values()), 4), **taken}
        ticks = {"robust": _TICK[robust], "efficient": "yes" if efficient else "no", "private": "yes" if private else "no"}
        rows.append({**row, "Gamma": round(gamma, 4), "the server sees": view, **ticks})
    if not counts or not set(_TICKS) <= {result.cell.method for result in results}:
        return Verdict(UNTESTED, "Not all methods of the table have been run.", rows)
    return judged(outcomes, rows, 0, seeds_of(counts))


LOST = 0.1  # of accuracy: a rule that loses more to an attack has not withstood it
_OPPOSITE = {HOLDS: FAILS, FAILS: HOLDS, UNDECIDED: UNDECIDED}
_TICK = {HOLDS: "yes", FAILS: "no", UNDECIDED: "undecided"}


def _lost(cells: Sequence[Result], attack: str) -> Interval | None:
    """What this attack takes from the accuracy without attack, seed by seed."""
    if attack == "none":
        return None
    pairs = paired(cells, {"attack": "none"}, {"attack": attack}, "best_accuracy")
    return None if pairs is None else Interval.of([clean - attacked for clean, attacked in pairs])


def _taken(lost: Interval, seeds: int) -> str:
    """With the number of its seeds, where the attack was run with fewer than the row says."""
    fewer = f", {seeds_of([lost.seeds])}" if 1 < lost.seeds != seeds else ""
    return f"{lost.mean:.4f} ({lost.shown()}{fewer})"


def _worst_of(outcomes: Sequence[str]) -> str:
    return next((outcome for outcome in (FAILS, UNDECIDED) if outcome in outcomes), HOLDS)


def noniid(results: Sequence[Result]) -> Verdict:
    checks = Checks(results)
    rows = []
    for attack in values_of(results, "attack"):
        for skew in values_of(results, "dirichlet_alpha"):
            plain = {"attack": attack, "dirichlet_alpha": skew, "pre": []}
            both = {**plain, "pre": ["arc", "nnm"]}
            checks.compare(f"{attack}, Dirichlet {skew}: ARC and NNM against none", both, plain, "higher")
            means = {
                f"after {' + '.join(pre) or 'nothing'}": round(found, 4)
                for pre in values_of(results, "pre")
                if (found := score(results, **{**plain, "pre": pre})) is not None
            }
            rows.append({"comparison": f"{attack}, Dirichlet {skew}", **means})
    verdict = checks.verdict()
    return Verdict(verdict.status, verdict.sentence, [*verdict.rows, *rows])


def strong_attacks(results: Sequence[Result]) -> Verdict:
    results = as_attacked(results)
    rows, outcomes = [], []
    counts: list[int] = []  # seeds of the comparisons
    for rule in values_of(results, "rule"):
        for f in values_of(results, "f"):
            for pre in values_of(results, "pre"):
                cells = select(results, rule=rule, f=f, pre=pre)
                if not select(cells, attack="none"):
                    continue
                name = f"{rule}, f = {f}{', after ' + ' + '.join(pre) if pre else ''}"
                lost = {attack: found for attack in values_of(cells, "attack") if (found := _lost(cells, attack)) is not None}
                rows.append({"rule": name, **_accuracies(cells), **_most_lost(lost)})
                if rule != "mean":
                    outcomes += [(f"{name} under {attack}", found.within(-math.inf, LOST)) for attack, found in lost.items()]
                    counts += [found.seeds for found in lost.values()]
    if not outcomes:
        return Verdict(UNTESTED, "The cells that this claim needs have not been run.", rows)
    return judged(outcomes, rows, 0, seeds_of(counts))


def _most_lost(lost: Mapping[str, Interval]) -> dict[str, str]:
    """The worst attack's, on average over seeds."""
    if not lost:
        return {}
    attack = max(lost, key=lambda each: lost[each].mean)
    return {"most lost": f"{lost[attack].mean:.4f} to {attack}"}


def _accuracies(cells: Sequence[Result]) -> dict[str, Any]:
    """The mean over the cells of each attack, with the number of their seeds where the attacks differ in it."""
    found = {attack: by_seed(cells, attack=attack) for attack in ("none", *values_of(cells, "attack"))}
    counts = [len(seeds) for seeds in found.values()]
    alike = min(counts) == max(counts)
    shown = {
        attack: round(fmean(seeds.values()), 4) if alike else f"{fmean(seeds.values()):.4f} ({seeds_of([len(seeds)])})"
        for attack, seeds in found.items()
    }
    return {"seeds": seeds_of(counts).partition(" seed")[0], **shown}
