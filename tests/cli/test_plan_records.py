"""`fedrep plan --records`: noise for a budget, and when a set is too small to learn from."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from fedrep.record_privacy import Budget, RecordLedger, SampledGaussian
from fedrep_cli.main import main
from fedrep_cli.plan_records import lines
from fedrep_trainers.record_accountant import fitting

ASKED = ["plan", "--records", "5000", "--batch", "256", "--steps", "5", "--rounds", "300", "--epsilon", "8"]


def records(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)["records"]


def test_the_noise_that_plan_names_lasts_for_the_rounds_of_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    found = records(capsys, *ASKED)
    training = SampledGaussian(found["noise"], 256 / 5000, 5)
    assert 300 <= fitting(RecordLedger(), "run", training, Budget(8.0, 1e-5)) <= 302
    assert 7.9 < found["epsilon"] <= 8.0
    assert found["epsilon_tight"] < found["epsilon"]


def test_noise_is_compared_with_the_longest_gradient_that_clipping_allows(capsys: pytest.CaptureFixture[str]) -> None:
    found = records(capsys, *ASKED, "--d", "10000", "--K", "400")
    assert found["noise_per_coordinate"] == pytest.approx(found["noise"] / 256)
    assert found["noise_norm"] == pytest.approx(found["noise"] * 20 / 256)
    assert found["noise_norm_all"] == pytest.approx(found["noise"] * 100 / 256)
    assert found["signal_to_noise_step"] == pytest.approx(1 / found["noise_norm"])
    assert found["signal_to_noise_run"] == pytest.approx(math.sqrt(5 * 300 * 25) / found["noise_norm"])
    assert found["verdict"] == "enough"


def test_a_set_that_is_too_small_is_called_so_and_the_number_of_records_that_would_do_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    small = ["plan", "--silos", "4", "--byzantine", "0", "--epsilon", "0.5", "--records"]
    assert main([*small, "200", "--batch", "20"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "This set is too small to learn from: take about 1,379 records at the same rate" in shown
    assert records(capsys, *small, "200", "--batch", "20")["verdict"] == "too small"
    assert records(capsys, *small, "1400", "--batch", "140")["verdict"] == "enough"
    assert records(capsys, *small, "900", "--batch", "90")["verdict"] == "little"


def test_no_epsilon_of_the_plan_is_rounded_down(capsys: pytest.CaptureFixture[str]) -> None:
    found = records(capsys, *ASKED) | {"epsilon": 7.9912, "epsilon_tight": 7.3421, "epsilon_budget": 7.99121}
    text = "epsilon reached 7.992 at delta = 1e-05 (7.343 by its loss distribution), of a budget of 7.992"
    assert text in lines(found, 400, 10_000)[1]


def test_a_delta_that_would_let_records_be_published_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--records", "200", "--delta", "0.01"]) == 0
    assert "delta = 0.01 is not below 1 / 200" in capsys.readouterr().out


def test_beside_a_run_file_the_records_of_a_silo_may_be_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.toml"
    names = json.dumps([f"silo-{number}" for number in range(10)])
    path.write_text(f'name = "first"\nsilos = {names}\nrounds = 300\nbyzantine_count = 2\n')
    found = records(capsys, "plan", "--config", str(path), "--d", "5000", "--records", "5000", "--batch", "256", "--steps", "5")
    assert found["noise"] == records(capsys, *ASKED)["noise"]
    assert found["silos"] == 8


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--batch", "64"], "give --records too: without it --batch"),
        (["--records", "100", "--epsilon", "0"], "--epsilon must be above 0"),
        (["--records", "100", "--delta", "1"], "--delta must lie between"),
    ],
)
def test_options_that_say_nothing_are_refused(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *arguments]) != 0
    assert text in capsys.readouterr().err


def test_without_records_the_plan_says_nothing_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--json"]) == 0
    assert "records" not in json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("asked", [("--epsilon", "1e9"), ("--delta", "1e-16")])
def test_extreme_budgets_are_answered_without_the_closer_figure(
    capsys: pytest.CaptureFixture[str], asked: tuple[str, str]
) -> None:
    assert records(capsys, "plan", "--records", "5000", *asked)["epsilon_tight"] is None
    assert main(["plan", "--records", "5000", *asked]) == 0
