"""Reading finished cells: which belong together, and what a group of them comes to.

A score is the mean over seeds. Rates are chosen before, on other images (`tuning`); where an experiment names several rates, or
several settings of its method, itself, the best of them counts, as in the paper.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from fedrep_lab.results import Result


def select(results: Iterable[Result], **settings: Any) -> list[Result]:
    return [result for result in results if all(_same(getattr(result.cell, name), value) for name, value in settings.items())]


def score(results: Iterable[Result], metric: str = "best_accuracy", **settings: Any) -> float | None:
    """None if no such cell has been run."""
    best = best_rate(select(results, **settings))
    return statistics.fmean(float(result.metrics[metric]) for result in best) if best else None


def by_seed(results: Iterable[Result], metric: str = "best_accuracy", **settings: Any) -> dict[int, float]:
    """The figure of every seed that such a cell has been run with."""
    found: dict[int, list[float]] = {}
    for result in best_rate(select(results, **settings)):
        found.setdefault(result.cell.seed, []).append(float(result.metrics[metric]))
    return {seed: statistics.fmean(values) for seed, values in found.items()}


def as_attacked(results: Iterable[Result]) -> list[Result]:
    """For the question what attacks take: a training counts with what it ends with, as its best may have come before it fell.

    Whoever an attack drove out of the finite numbers is left with nothing that was learnt: the model that nobody trained, whose
    accuracy is the first one, stands for it, or the last accuracy if that is less. Whoever left them without attack keeps its
    best: losses are measured from it.
    """
    return [replace(one, metrics={**one.metrics, "best_accuracy": _in_the_end(one)}) for one in results]


def _in_the_end(result: Result) -> float:
    metrics, last = result.metrics, float(result.metrics["final_accuracy"])
    if not metrics.get("diverged"):
        return last
    return (
        min([last, *(float(point["accuracy"]) for point in result.history[:1])])
        if result.cell.attackers
        else float(metrics["best_accuracy"])
    )


def best_rate(results: Sequence[Result]) -> list[Result]:
    """All seeds of the rate, and of the method's own settings, with the best mean accuracy."""
    tried = grouped(results, lambda result: json.dumps([result.cell.rate, _plain(result.cell.method_settings)]))
    if len(tried) < 2:
        return list(results)
    return max(tried.values(), key=lambda group: statistics.fmean(float(one.metrics["best_accuracy"]) for one in group))


def values_of(results: Iterable[Result], name: str) -> list[Any]:
    """The distinct values of a setting, in order."""
    found = {json.dumps(_plain(getattr(result.cell, name))): _plain(getattr(result.cell, name)) for result in results}
    return sorted(found.values(), key=_order)


def varying(results: Sequence[Result], names: Sequence[str]) -> list[str]:
    return [name for name in names if len(values_of(results, name)) > 1]


def places_of(results: Iterable[Result], name: str) -> list[Any]:
    """The values of a setting as an axis has them: where 0 stands for no limit at all, it comes last."""
    found = values_of(results, name)
    return found if name not in _ZERO_IS_NONE else [value for value in found if value] + [value for value in found if not value]


def place_name(name: str, value: Any) -> str:
    return "none" if name in _ZERO_IS_NONE and not value else str(value)


def label(result: Result, names: Sequence[str]) -> str:
    told = [name for name in names if name not in _OF_SOME or result.cell.method in _OF_SOME[name]]
    return ", ".join(text for name in told if (text := shown(name, getattr(result.cell, name))))


def shown(name: str, value: Any) -> str:
    value = _plain(value)
    if name == "method":
        return METHOD_NAMES.get(value, str(value))
    if isinstance(value, dict):
        return ", ".join(f"{key} = {item}" for key, item in value.items())
    if isinstance(value, list):
        return f"{name} = {' + '.join(map(str, value)) or 'none'}"
    return f"{SYMBOLS.get(name, name)} = {value}"


METHOD_NAMES = {
    "fedrep": "FedREP",
    "rcgd_ef": "RCGD-EF",
    "share": "SHARE",
    "sparse_secagg": "SparseSecAgg",
    "f2ed": "F2ed-Learning",
    "fedavg": "FedAvg",
    "dense_mean": "dense mean",
    "central": "central training",
    "clt_k": "CLT-K",
}
_OF_SOME = {  # settings that other methods do nothing with
    "selection": ("fedrep",),
    "alpha": ("fedrep",),
    "ratio": ("fedrep", "rcgd_ef", "sparse_secagg", "clt_k"),
    "s": ("fedrep", "share", "f2ed"),
}
_ZERO_IS_NONE = {"record_epsilon"}
SYMBOLS = {
    "ratio": "K/d",
    "interval": "I",
    "ring_bits": "ring bits",
    "record_epsilon": "record epsilon",
    "coordinate_attack": "coordinates",
    "dirichlet_alpha": "Dirichlet",
}


def grouped(results: Sequence[Result], key: Callable[[Result], str]) -> dict[str, list[Result]]:
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(key(result), []).append(result)
    return groups


def _same(left: Any, right: Any) -> bool:
    return bool(_plain(left) == _plain(right))


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else dict(value) if hasattr(value, "items") else value


def _order(value: Any) -> tuple[int, Any]:
    return (0, value) if isinstance(value, int | float) else (1, json.dumps(value))
