"""Rates are chosen on images held out of training, long cells go on where they were, and published cells are taken up again."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from threadpoolctl import threadpool_info, threadpool_limits

from fedrep.errors import SettingsError
from fedrep_lab import catalogue
from fedrep_lab.archive import restore
from fedrep_lab.catalogue import experiment_from, load_experiments
from fedrep_lab.cell import Cell
from fedrep_lab.checkpoints import Checkpoints
from fedrep_lab.engines import FAILURES, work
from fedrep_lab.methods import METHODS
from fedrep_lab.planning import planned
from fedrep_lab.results import Result, ResultFolder
from fedrep_lab.running import Plan, run_experiments
from fedrep_lab.shards import load_dataset
from fedrep_lab.silos import build_silos
from fedrep_lab.simulation import Training, play
from fedrep_lab.tuning import chosen_rate, tuning_cells

QUIET = Console(file=io.StringIO())
TINY = Cell(
    dataset="digits", model="mlp", model_options={"hidden": [8]}, m=6, f=1, s=2, ratio=0.2, attack="alie", rounds=6,
    evaluations=3, evaluation_samples=50,
)  # fmt: skip
TUNING = {"rates": [0.1, 0.5], "rounds": 2, "evaluations": 1, "evaluation_samples": 50}


def images_of(data: Any) -> set[bytes]:
    return {pixels.tobytes() for pixels in data.pixels}


def test_held_out_images_are_neither_trained_on_nor_tested_on() -> None:
    whole, split = load_dataset("digits", None), load_dataset("digits", None, "validation")
    assert len(split.train) + len(split.test) == len(whole.train)
    assert len(split.test) == len(whole.train) // 10
    assert not images_of(split.test) & images_of(split.train)
    assert images_of(split.test) | images_of(split.train) == images_of(whole.train)


def test_a_method_is_tuned_once_whatever_alpha_k_or_seed_and_one_without_defence_as_it_is_attacked() -> None:
    tried = tuning_cells(TINY, TUNING)
    assert [cell.rate for cell in tried] == [0.1, 0.5]
    assert {(cell.judged_on, cell.attack) for cell in tried} == {("validation", "alie")}
    for same in (replace(TINY, alpha=0.9), replace(TINY, ratio=0.1), replace(TINY, seed=3), replace(TINY, attack="foe")):
        assert tuning_cells(same, TUNING) == tried
    assert tuning_cells(replace(TINY, beta=0.0), TUNING) != tried
    for helpless in (replace(TINY, method="dense_mean"), replace(TINY, rule="mean", rule_settings={})):
        assert {cell.attack for cell in tuning_cells(replace(helpless, attack="none"), TUNING)} == {"none"}
        under_foe = tuning_cells(replace(helpless, attack="foe"), TUNING)
        assert {(cell.attack, cell.f) for cell in under_foe} == {("alie", TINY.f)}


def test_a_run_tunes_first_and_gives_every_cell_the_rate_that_was_best_on_held_out_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    presets = catalogue.load_presets()
    presets["smoke"]["tuning"] = TUNING
    monkeypatch.setattr(catalogue, "load_presets", lambda: presets)
    tables: dict[str, Any] = {"title": "t", "where": "w", "claim": "c", "verdict": "alpha", "grid": {"alpha": [0.0, 0.5]}}
    tables["variants"] = [{}, {"rate": 0.3, "beta": 0.0}]
    experiment = experiment_from("alpha_cclip", tables)
    outcome = run_experiments([experiment], Plan("smoke", tmp_path), QUIET)
    assert (outcome["tuned"], outcome["ran"]) == (2, 4)
    tuned = ResultFolder(tmp_path).load("tuning", "smoke")
    best = max(tuned, key=lambda one: (one.metrics["best_accuracy"], -one.cell.rate)).cell.rate
    rates = {(result.cell.beta, result.cell.rate) for result in ResultFolder(tmp_path).load("alpha_cclip", "smoke")}
    assert rates == {(0.9, best), (0.0, 0.3)}, "a rate that an experiment names is left alone"
    assert run_experiments([experiment], Plan("smoke", tmp_path), QUIET)["tuned"] == 0


def test_an_experiment_may_take_rates_below_those_that_were_best() -> None:
    tried = [replace(TINY, rate=rate) for rate in (1.0, 0.1, 0.5)]
    found = {0.1: 0.5, 0.5: 0.9, 1.0: 0.5}
    results = {
        cell.key(): Result("tuning", "smoke", cell, {}, 1, {"best_accuracy": found[cell.rate]}, [], 0, 0) for cell in tried
    }
    assert [chosen_rate(tried, results, below) for below in (0, 1, 2)] == [0.5, 0.1, 0.1], "and never below the grid"
    assert chosen_rate([*tried, replace(TINY, rate=5.0)], results, 1) is None


def test_a_cell_that_another_experiment_has_run_is_taken_over(tmp_path: Path) -> None:
    tables = {"title": "t", "where": "w", "claim": "c", "verdict": "alpha", "cells": {"rounds": 2}}
    first, second = (experiment_from(name, tables) for name in ("alpha_cclip", "alpha_tmean"))
    assert run_experiments([first, second], Plan("smoke", tmp_path), QUIET)["ran"] == 1
    folder = ResultFolder(tmp_path)
    (one,), (other,) = folder.load("alpha_cclip", "smoke"), folder.load("alpha_tmean", "smoke")
    assert one.metrics == other.metrics
    assert (one.experiment, other.experiment) == ("alpha_cclip", "alpha_tmean")


def test_a_cell_keeps_to_one_thread_in_numpy_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def look(*arguments: Any) -> dict[str, Any]:
        seen.extend(pool["num_threads"] for pool in threadpool_info())
        return play(*arguments)

    monkeypatch.setattr("fedrep_lab.simulation.play", look)
    with threadpool_limits(2):  # also where the machine has one core
        work(Plan("smoke", tmp_path).job("alpha_cclip", TINY))
        assert any(pool["num_threads"] == 2 for pool in threadpool_info())
    assert seen
    assert set(seen) == {1}


@pytest.mark.parametrize("method", [name for name in METHODS if name != "central"])
def test_a_cell_that_was_interrupted_goes_on_and_ends_with_the_same_bits(method: str, tmp_path: Path) -> None:
    cell = replace(TINY, method=method, ring_bits=16 if method == "fedrep" else 0, downlink_bits=8)
    whole = play(cell, None)
    checkpoints = Checkpoints(tmp_path / "cell.unfinished", "these sources", every=0.0)
    first = Training(cell, build_silos(cell, None))
    first._look(0)
    for number in (1, 2, 3):
        assert first.advance(number)
        if number == 2:
            first._look(2)
    checkpoints.save(first, 3)
    rest = play(cell, None, checkpoints=checkpoints)
    assert rest["metrics"] == whole["metrics"]
    assert rest["history"] == whole["history"]


def test_a_checkpoint_of_other_sources_is_not_gone_on_from(tmp_path: Path) -> None:
    path = tmp_path / "cell.unfinished"
    training = Training(TINY, build_silos(TINY, None))
    Checkpoints(path, "old").save(training, 3)
    assert Checkpoints(path, "new").restore(training) == 0
    assert Checkpoints(path, "old").restore(training) == 3


def test_published_tables_are_taken_up_again_with_every_setting_and_figure(tmp_path: Path) -> None:
    experiments = load_experiments(["rings", "leaks"])
    one, other = tmp_path / "one", tmp_path / "other"
    changes = {"rounds": 2}
    run_experiments(experiments, Plan("smoke", one, changes=changes), QUIET)
    restored = restore(one / "smoke", other, "smoke")
    assert restored == {name: len(ResultFolder(one).load(name, "smoke")) for name in ("rings", "leaks")}
    for name in ("rings", "leaks"):
        for before, after in zip(ResultFolder(one).load(name, "smoke"), ResultFolder(other).load(name, "smoke"), strict=True):
            assert (before.cell, before.code) == (after.cell, after.code)
            assert {key: value for key, value in before.metrics.items() if value is not None} == dict(after.metrics)
            assert [point["accuracy"] for point in before.history] == [point["accuracy"] for point in after.history]
    assert run_experiments(experiments, Plan("smoke", other, changes=changes), QUIET)["ran"] == 0


def test_a_plan_counts_what_is_left_and_takes_its_seconds_from_finished_cells(tmp_path: Path) -> None:
    experiments, plan = load_experiments(["rings"]), Plan("smoke", tmp_path, processes=2, changes={"rounds": 2})
    before = planned(experiments, plan)
    assert (before["left"], before["unknown"]) == (4, 4)
    tried = planned(experiments, plan, measure=True)
    assert (tried["left"], tried["unknown"]) == (4, 0)
    assert ResultFolder(tmp_path).load("rings", "smoke") == [], "a trial leaves nothing behind"
    run_experiments(experiments, plan, QUIET)
    after = planned(experiments, plan)
    assert (after["left"], after["core_hours"]) == (0, 0.0)


def test_a_plan_says_what_finished_cells_took_and_counts_a_shared_one_once(tmp_path: Path) -> None:
    tables = {"title": "t", "where": "w", "claim": "c", "verdict": "alpha", "grid": {"seed": [0, 1]}}
    experiments = [experiment_from(name, tables) for name in ("one", "other")]
    folder, plan = ResultFolder(tmp_path), Plan("smoke", tmp_path)
    outcome = {"parameters": 1, "metrics": {}, "history": [], "seconds": 9000.0, "cpu_seconds": 3600.0}
    for experiment in experiments:
        folder.save(experiment.name, "smoke", experiment.cells("smoke")[0], outcome)
    shown = planned(experiments, plan)
    assert (shown["left"], shown["spent_core_hours"]) == (1, 1.0)
    assert [row["spent_core_hours"] for row in shown["experiments"] if row["experiment"] != "tuning"] == [1.0, 0.0]


def test_an_update_of_eight_bits_reaches_the_model_that_real_numbers_reach_up_to_what_the_server_still_owes() -> None:
    cell = replace(TINY, f=0, attack="none", rounds=1)
    trained = {bits: Training(replace(cell, downlink_bits=bits), build_silos(cell, None)) for bits in (0, 8)}
    for training in trained.values():
        assert training.advance(1)
    owed = trained[8].method._owed  # type: ignore[attr-defined]
    np.testing.assert_allclose(trained[8].model - owed, trained[0].model, atol=1e-6)
    assert np.abs(owed).max() > 0


@pytest.mark.parametrize("processes", [1, 2])
def test_a_cell_that_cannot_be_run_does_not_keep_the_others_from_it_and_is_named(tmp_path: Path, processes: int) -> None:
    tables: dict[str, Any] = {"title": "t", "where": "w", "claim": "c", "verdict": "alpha", "cells": {"rounds": 1}}
    tables["grid"] = {"attack": ["nothing such", "none"], "alpha": [0.0, 0.5]}
    experiment = experiment_from("alpha_cclip", tables)
    with pytest.raises(SettingsError) as caught:
        run_experiments([experiment], Plan("smoke", tmp_path, processes=processes), QUIET)
    broken = [cell.key()[:6] for cell in experiment.cells("smoke", None, {}) if cell.attack != "none"]
    assert "There is no attack 'nothing such'" in str(caught.value)
    assert str(caught.value).count("nothing such") == 1
    assert all(f"alpha_cclip {key}" in str(caught.value) for key in broken)
    assert {result.cell.attack for result in ResultFolder(tmp_path).load("alpha_cclip", "smoke")} == {"none"}


def test_cells_that_all_fail_are_not_all_tried(tmp_path: Path) -> None:
    tables: dict[str, Any] = {"title": "t", "where": "w", "claim": "c", "verdict": "alpha", "cells": {"attack": "nothing such"}}
    tables["grid"] = {"seed": list(range(FAILURES + 5))}
    with pytest.raises(SettingsError, match=f"and {FAILURES - 3} more"):
        run_experiments([experiment_from("alpha_cclip", tables)], Plan("smoke", tmp_path), QUIET)
