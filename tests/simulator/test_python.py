"""`fedrep.simulate` as people use it from Python."""

from __future__ import annotations

import hashlib
import linecache
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedrep
from fedrep_simulator import SimulationResult
from fedrep_simulator.code_mark import code_mark, user_build
from fedrep_simulator.folder import told
from fedrep_trainers import TorchTrainer, TrainerSettings
from fedrep_trainers.build import build_trainer
from tests.simulator import problem
from tests.simulator.problem import RUN, build


@pytest.fixture(scope="module")
def result() -> SimulationResult:
    return fedrep.simulate(build, silos=10, byzantine=2, attack="alie", run={**RUN, "byzantine_count": 1}, rounds=5, compare=True)


def test_the_library_alone_loads_nothing_of_the_simulator() -> None:
    code = "import sys, fedrep; assert fedrep.__version__; print([m for m in sys.modules if m.startswith('fedrep_')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_history_is_flat_and_has_a_row_for_every_round(result: SimulationResult) -> None:
    assert [row["round"] for row in result.history] == [1, 2, 3, 4, 5]
    assert {type(value) for row in result.history for value in row.values()} <= {int, float, str, type(None)}
    assert result.accuracy == result.history[-1]["accuracy"]
    assert result.summary["notes"] == []


def test_the_plot_has_a_line_for_each_rule_and_one_for_the_central_model(result: SimulationResult, tmp_path: Path) -> None:
    figure = result.plot("loss")
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["geometric_median", "mean", "all data in one place"]  # type: ignore[union-attr]
    figure.savefig(tmp_path / "plot.png")


def test_a_frame_needs_pandas_and_says_so(result: SimulationResult, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(fedrep.errors.SettingsError, match="pip install pandas"):
        result.frame()


def test_the_model_of_a_torch_trainer_is_a_state_dict_that_its_module_takes(tmp_path: Path) -> None:
    def digits(settings: TrainerSettings) -> TorchTrainer:
        made = build_trainer(settings)
        assert isinstance(made, TorchTrainer)
        return made

    settings = {"model": "logistic", "threads": 1}
    ended = fedrep.simulate(digits, silos=4, rounds=2, settings=settings, fast=True, central=False, out=tmp_path)
    assert all(isinstance(tensor, torch.Tensor) for tensor in ended.model.values())
    module = digits(TrainerSettings(**settings))._module  # type: ignore[arg-type]
    module.load_state_dict(ended.model)
    from safetensors.torch import load_file

    kept = load_file(tmp_path / "model.safetensors")
    assert all(np.array_equal(kept[name], tensor) for name, tensor in ended.model.items())


def test_the_code_of_a_function_is_known_by_its_file_or_its_text_or_not_at_all(tmp_path: Path) -> None:
    settings = TrainerSettings()
    text = "def made(settings):\n    return {}\n"

    def from_cell(value: int) -> Any:
        """As a notebook defines a function: its text is known, and there is no file."""
        name, source, space = f"<cell-{value}>", text.format(value), dict[str, Any]()
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        exec(compile(source, name, "exec"), space)
        return space["made"]

    assert code_mark(build, settings) == hashlib.sha256(Path(problem.__file__).read_bytes()).hexdigest()
    assert code_mark(partial(build), settings) == code_mark(build, settings)
    (tmp_path / "marked_code.py").write_text(text.format(1))
    named = code_mark(user_build("marked_code:made"), TrainerSettings(user_code_dir=tmp_path))
    assert named == code_mark(from_cell(1), settings) != code_mark(from_cell(2), settings)
    assert code_mark(eval("lambda settings: settings"), settings) == ""


def test_no_guarantee_is_a_word_and_no_point_of_a_plot() -> None:
    heard: list[Any] = []
    ended = fedrep.simulate(
        build, run=RUN, alpha=0.0, rounds=2, fast=True, central=False, on_round=lambda row, _: heard.append(row["epsilon"])
    )
    assert [row["epsilon"] for row in ended.history] == heard == ["none"] * 2
    (axes,) = ended.plot("epsilon").axes
    assert [len(line.get_xdata()) for line in axes.lines] == [0]  # type: ignore[arg-type]


def test_records_without_guarantee_are_said_to_have_none() -> None:
    row = {"round": 1, "epsilon": None, "record_epsilon": None, "accuracy": None}
    assert told([row]) == [row | {"epsilon": "none", "record_epsilon": "none"}]


def test_a_run_without_name_and_silos_is_the_simulations_own() -> None:
    ended = fedrep.simulate(
        build, silos=6, run={"fraction": 0.2, "aggregator": {"name": "mean"}}, rounds=1, fast=True, central=False
    )
    assert (ended.summary["run"], ended.summary["silos"], ended.summary["aggregator"]) == ("simulation", 6, "mean")


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        ({"engine": "spark"}, "there is no engine 'spark'; choose local or ray"),
        ({"run": {"rouns": 3}}, r"`rouns` \(as asked for\) is not a setting. Did you mean `rounds`\?"),
        ({"settings": {"learning_rate": -1}}, r"`learning_rate` \(as asked for\): input should be greater than or equal to 0"),
    ],
)
def test_what_cannot_be_asked_for_is_told_before_anything_is_built(wish: dict[str, Any], said: str) -> None:
    def unwanted(_settings: TrainerSettings) -> TorchTrainer:
        raise AssertionError("nothing should be built")

    with pytest.raises(fedrep.errors.SettingsError, match=said):
        fedrep.simulate(unwanted, **wish)


def test_again_plays_anew_from_python(tmp_path: Path) -> None:
    heard: list[int] = []
    for again in (False, False, True):
        fedrep.simulate(
            build,
            run=RUN,
            rounds=2,
            fast=True,
            central=False,
            out=tmp_path,
            again=again,
            on_round=lambda row, _: heard.append(row["round"]),
        )
    assert heard == [1, 2, 1, 2]
