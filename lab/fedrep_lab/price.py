"""What each property costs: accuracy beside the bytes of one silo and round, as the service would send them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from fedrep.communication import RoundTraffic, bits_per_round, dense_bits
from fedrep_lab.cell import Cell
from fedrep_lab.comparisons import Checks, Verdict
from fedrep_lab.results import Result
from fedrep_lab.scores import by_seed, select, values_of

_RING, _DOWN = 16, 16  # where a cell is in real numbers: the service's defaults


def traffic(cell: Cell, parameters: int, gamma: float) -> RoundTraffic:
    """Of secure groups; the coordinates are those really agreed on, on average."""
    ring, down = cell.ring_bits or _RING, cell.downlink_bits or _DOWN
    if cell.method == "share":  # as if everybody proposed everything, but nobody has to say so
        found = bits_per_round(parameters, cell.m * parameters, cell.m, cell.s, ring, 1.0, down)
        told = (
            replace(each, payload_up=0, payload_down=0) if each.call in ("ProposeCoordinates", "GetConsensus") else each
            for each in found.exchanges
        )
        return replace(found, exchanges=tuple(told))
    k = cell.per_silo(parameters)
    most = min(1.0, cell.m * k / parameters)  # a mean over rounds may pass it by a rounding error
    return bits_per_round(parameters, cell.m * k, cell.m, cell.s, ring, min(gamma, most), down)


def traffic_row(results: Sequence[Result]) -> dict[str, Any]:
    """Bytes a silo and round, beside the paper's count for the same K and dense float32 vectors."""
    if not results:
        return {}
    first = results[0]
    found = traffic(first.cell, first.parameters, fmean(float(one.metrics["gamma"]) for one in results))
    return {
        "bytes per silo and round": round(found.total / 8),
        "of the paper's": round(found.ratio_to_paper, 3),
        "of dense float32": round(found.ratio_to_dense, 4),
    }


def _sent(results: Sequence[Result]) -> int:
    """Bytes: float32 in the clear where nothing is masked, and 32-bit coordinates where values are sparse, as in the paper."""
    first = results[0]
    cell, d = first.cell, first.parameters
    if cell.s > 1 and cell.method in ("share", "fedrep"):
        return int(traffic_row(results)["bytes per silo and round"])
    if cell.method == "fedrep":
        agreed = fmean(float(one.metrics["gamma"]) for one in results) * d
        return round(4 * (cell.per_silo(d) + 3 * agreed))  # own coordinates up, all of them down, values both ways
    return dense_bits(d) // 8


def _properties(cell: Cell) -> str:
    found = [
        name
        for name, there in (
            ("robust", cell.rule != "mean" and cell.method != "dense_mean"),
            ("secure groups", cell.s > 1 and cell.method != "dense_mean"),
            ("sparse", cell.method == "fedrep"),
            ("private records", cell.record_epsilon > 0),
        )
        if there
    ]
    return " + ".join(found) or "the mean"


def price(results: Sequence[Result]) -> Verdict:
    checks = Checks(results)
    mean = {"method": "dense_mean"}
    three = {"method": "fedrep", "s": 2, "rule": "centered_clipping", "record_epsilon": 0.0}
    for attack, where, claim in (("none", "without attack", "not_below"), ("alie", "under ALIE", "higher")):
        what = f"{where}: robust + secure groups + sparse, and the mean"
        checks.compare(what, {**three, "attack": attack}, {**mean, "attack": attack}, claim)
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(_properties(result.cell), []).append(result)
    rows = []
    for name, members in sorted(groups.items(), key=lambda item: item[0].count("+") + (item[0] != "the mean")):
        row: dict[str, Any] = {"properties": name}
        for attack in values_of(members, "attack"):
            found = list(by_seed(members, attack=attack).values())
            row["no attack" if attack == "none" else f"under {attack.upper()}"] = round(fmean(found), 4)
            row["seeds"] = len(found)
        calm = select(members, attack="none")
        rows.append({**row, "bytes per silo and round": _sent(calm or members)})
    verdict = checks.verdict()
    return Verdict(verdict.status, verdict.sentence, [*rows, *verdict.rows])
