"""The paper's claims as tests on numbers: holds, does not hold, or not tested at this scale.

Every verdict comes with the numbers it rests on; those about the privacy of records are in `record_verdicts`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from fedrep.theory import consensus_dimension
from fedrep_lab.catalogue import load_experiment
from fedrep_lab.comparisons import FAILS, HOLDS, MARGIN, UNTESTED, Checks, Verdict
from fedrep_lab.methods import METHODS
from fedrep_lab.record_verdicts import membership, record_selection, records
from fedrep_lab.results import Result
from fedrep_lab.scores import METHOD_NAMES, score, select, values_of

CALM_ALPHA = 0.95
SILENCE_COSTS = {3: 0.03, 4: 0.02}  # by the size of buffers, at most


def with_traffic(results: Sequence[Result], found: Verdict) -> Verdict:
    """Realised shares of the coordinates whose values travel, which a claim of equal Gamma rests on."""
    rows = []
    for method in values_of(results, "method"):
        for ratio in values_of(select(results, method=method), "ratio"):
            up = score(results, "gamma", method=method, ratio=ratio)
            down = score(results, "gamma_down", method=method, ratio=ratio)
            if up is not None and down is not None:
                name = METHOD_NAMES[method] if method == "share" else f"{METHOD_NAMES[method]}, K/d = {ratio}"
                rows.append(
                    {
                        "comparison": f"{name}: share of values sent up, and received",
                        "left": round(up, 4),
                        "right": round(down, 4),
                    }
                )
    return Verdict(found.status, found.sentence, [*found.rows, *rows])


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
            claim = "above" if attack == "alie" else "not_below"
            checks.compare(f"{attack}: FedREP and RCGD-EF (beta = {beta})", ours, rival, claim)
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
            gamma = score(results, "gamma", **ours)
            claim = "higher" if attack == "alie" else "not_below"
            what = f"{attack}: FedREP at Gamma = {gamma:.3f} and SHARE" if gamma is not None else attack
            checks.compare(what, ours, rival, claim)
    return with_traffic(results, checks.verdict())


def clt_k(results: Sequence[Result]) -> Verdict:
    """The least share of |g|^2 that a round kept, against the d'_cons / d that Proposition 2 promises."""
    rows: list[dict[str, Any]] = []
    kept: list[bool] = []  # FedREP at or above its bound
    broken: list[bool] = []  # CLT-K with lying leaders below it
    for result in results:
        cell = result.cell
        k = cell.per_silo(result.parameters)
        bound = consensus_dimension(result.parameters, k, cell.m, cell.alpha, cell.f / cell.m) / result.parameters
        least = float(result.metrics["least_kept"])
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
                "best accuracy": round(float(result.metrics["best_accuracy"]), 4),
            }
        )
    if not kept or not broken:
        return Verdict(UNTESTED, "The cells that this claim needs have not been run.", rows)
    if all(kept) and any(broken):
        return Verdict(HOLDS, "With Byzantine leaders some rounds of CLT-K keep less than the bound; FedREP never does.", rows)
    return Verdict(FAILS, "Either FedREP fell below its bound, or CLT-K never did.", rows)


def residual(results: Sequence[Result]) -> Verdict:
    by_alpha = {value: score(results, "peak_largest_residual", alpha=value) for value in values_of(results, "alpha")}
    lengths = {value: score(results, "peak_residual", alpha=value) for value in by_alpha}
    rows = [
        {"alpha": value, "largest entry": round(entry or 0, 4), "length": round(lengths[value] or 0, 3)}
        for value, entry in by_alpha.items()
    ]
    calm, one = by_alpha.get(CALM_ALPHA), by_alpha.get(1.0)
    if calm is None or one is None:
        return Verdict(UNTESTED, "The cells that this claim needs have not been run.", rows)
    sentence = f"At alpha = 1 the largest entry of the memory is {one / calm:.1f} times that at {CALM_ALPHA}, in typical updates."
    return Verdict(HOLDS if one >= 2 * calm else FAILS, sentence, rows)


_TICKS = {  # Table 1: robust, efficient, private
    "rcgd_ef": (True, True, False),
    "f2ed": (True, False, True),
    "share": (True, False, True),
    "sparse_secagg": (False, True, True),
    "fedrep": (True, True, True),
}


def table1(results: Sequence[Result]) -> Verdict:
    """Robust: loses less than ten points to its worst attack. Efficient: sends at most a fifth of the values."""
    rows, wrong = [], []
    for method in values_of(results, "method"):
        cells = select(results, method=method)
        clean = score(cells, attack="none")
        attacked = {a: s for a in values_of(cells, "attack") if a != "none" and (s := score(cells, attack=a)) is not None}
        if clean is None:
            continue
        gamma = score(cells, "gamma", attack="none") or 0.0
        view = METHODS[method].view
        found = (bool(attacked) and clean - min(attacked.values()) < 0.1, 0 < gamma <= 0.2, view.startswith(("sums", "the sum")))
        if method in _TICKS and attacked and found != _TICKS[method]:
            wrong.append(METHOD_NAMES[method])
        attacks = {f"under {attack}": round(value, 4) for attack, value in attacked.items()}
        ticks = {name: "yes" if tick else "no" for name, tick in zip(("robust", "efficient", "private"), found, strict=True)}
        row = {"method": METHOD_NAMES[method], "no attack": round(clean, 4), **attacks, "Gamma": round(gamma, 4)}
        rows.append({**row, "the server sees": view, **ticks})
    if not set(_TICKS) <= {result.cell.method for result in results}:
        return Verdict(UNTESTED, "Not all methods of the table have been run.", rows)
    if wrong:
        return Verdict(FAILS, f"Measured ticks differ from the table for {', '.join(wrong)}.", rows)
    return Verdict(HOLDS, "The measured ticks are those of the table.", rows)


def noniid(results: Sequence[Result]) -> Verdict:
    checks = Checks(results)
    for attack in values_of(results, "attack"):
        for skew in values_of(results, "dirichlet_alpha"):
            plain = {"attack": attack, "dirichlet_alpha": skew, "pre": []}
            both = {**plain, "pre": ["arc", "nnm"]}
            checks.compare(f"{attack}, Dirichlet {skew}: ARC and NNM against none", both, plain, "higher")
    return checks.verdict()


def strong_attacks(results: Sequence[Result]) -> Verdict:
    rows, failed, tried = [], [], 0
    for rule in values_of(results, "rule"):
        clean = score(results, rule=rule, attack="none")
        if clean is None:
            continue
        row: dict[str, Any] = {"rule": rule, "none": round(clean, 4)}
        for attack in values_of(results, "attack"):
            found = score(results, rule=rule, attack=attack)
            if attack == "none" or found is None:
                continue
            row[attack] = round(found, 4)
            if rule != "mean":
                tried += 1
                if clean - found > 0.1:
                    failed.append(f"{rule} under {attack}")
        rows.append(row)
    if not tried:
        return Verdict(UNTESTED, "The cells that this claim needs have not been run.", rows)
    if failed:
        return Verdict(FAILS, f"More than ten points lost by {', '.join(failed)} ({len(failed)} of {tried} pairs).", rows)
    return Verdict(HOLDS, f"In none of {tried} pairs of robust rule and attack more than ten points were lost.", rows)


def rings(results: Sequence[Result]) -> Verdict:
    checks = Checks(results)
    for bits in (8, 16):
        checks.compare(f"{bits}-bit ring and real numbers", {"ring_bits": bits}, {"ring_bits": 0}, "similar")
    return checks.verdict()


def dropouts(results: Sequence[Result]) -> Verdict:
    """The margins are the claim's own: more spread over seeds does not make silence cheaper."""
    checks = Checks(results)
    for size in values_of(results, "s"):
        for chance in values_of(results, "dropout"):
            if chance:
                silent, heard = {"s": size, "dropout": chance}, {"s": size, "dropout": 0.0}
                what, within = f"s = {size}: dropouts of {chance:.0%} and none", SILENCE_COSTS.get(size, MARGIN)
                checks.compare(what, silent, heard, "not_below", within=within)
    return checks.verdict()


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
    "leaks": leaks,
    "attendance": attendance,
    "private_leaks": private_leaks,
    "membership": membership,
    "records": records,
    "record_selection": record_selection,
}


def judge(name: str, preset: str, results: Sequence[Result]) -> Verdict:
    """A smoke run is too small to decide anything; its numbers are shown all the same."""
    if not results:
        return Verdict(UNTESTED, "No cell of this experiment has been run.")
    found = VERDICTS[name](results)
    if preset == "smoke":
        return Verdict(UNTESTED, "A smoke run only shows that the experiment works.", found.rows)
    return found
