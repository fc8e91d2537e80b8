"""Learning rates: chosen for each method on images that are neither trained on nor tested on, from one grid for all.

A method is its algorithm with its own settings: method, rule and pre-steps, momentum, local steps, and the batch. Its rate is
the one with the best accuracy on held-out training images, in a shorter training of a seed that no experiment uses, under ALIE.
A method that defends itself against nothing has two: this one for cells with attackers at work, so that no loss is due to a rate
that suits peace alone, and for the others the best one without attack. So no rate is chosen by the test images, by the attack
that a cell then plays, or more carefully for one method than for another; and none is chosen for the way in which data are
split, nor for a value of alpha, K or s, unless an experiment says so (`also`). Where the best rate of a short training is one at
which longer ones leave the finite numbers by chance, an experiment takes all its methods some steps of the grid lower (`below`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedrep_lab.cell import Cell
from fedrep_lab.results import Result

NAME = "tuning"  # its results lie beside those of the experiments
_OWN = ("method", "method_settings", "rule", "rule_settings", "pre", "beta", "interval", "batch_size")
_DEFENCELESS = ("sparse_secagg", "dense_mean", "fedavg", "central")
_SEED = 100


def tuning_cells(cell: Cell, table: Mapping[str, Any], also: Sequence[str] = ()) -> list[Cell]:
    """The trainings that decide the rate of this cell's method, one for each rate of the preset's grid."""
    shared = {name: value for name, value in table.items() if name != "rates"}
    kept = {name: getattr(cell, name) for name in (*_OWN, *also, "dataset", "model", "model_options", "precision", "m")}
    defenceless = cell.method in _DEFENCELESS or cell.rule == "mean"
    attacked = cell.attackers if defenceless else cell.f
    fixed = {"attack": "alie" if attacked else "none", "f": cell.f, "seed": _SEED, "judged_on": "validation"}
    base = Cell(**{**kept, **fixed, **shared})
    if cell.method in _DEFENCELESS:
        base = replace(base, rule="mean", rule_settings={}, pre=(), f=attacked)
    return [replace(base, rate=float(rate)) for rate in table["rates"]]


def chosen_rate(tried: Sequence[Cell], results: Mapping[str, Result], below: int = 0) -> float | None:
    """None until all of the grid has been tried; among equals the lower rate, which is the safer one.

    `below` is how many steps of the grid to go down from it, as far as there are any.
    """
    found = [(results[cell.key()].metrics["best_accuracy"], cell.rate) for cell in tried if cell.key() in results]
    if len(found) < len(tried):
        return None
    best = max(found, key=lambda one: (one[0], -one[1]))[1]
    grid = sorted(rate for _, rate in found)
    return grid[max(grid.index(best) - below, 0)]


def by_key(results: Iterable[Result]) -> dict[str, Result]:
    return {result.cell.key(): result for result in results}
