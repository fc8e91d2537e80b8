"""`fedrep simulate` as a person meets it: its files, what it prints, Ctrl-C, and the commands that deploy the run."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedrep_cli.main import main
from fedrep_cli.simulate_view import SimulationView, picture
from fedrep_runtime.model_files import read_model
from fedrep_runtime.run_config import RunConfig
from fedrep_simulator.api import Listeners, run_simulation
from fedrep_simulator.terms import Wishes
from fedrep_trainers.settings import TrainerSettings
from tests.simulator.problem import RUN as PROBLEM
from tests.simulator.problem import build

TRAINER = """
from tests.harness.federation import StubTrainer

def build(settings):
    return StubTrainer(settings.shard_index if settings.shard_count > 1 else 1000, **settings.options)
"""
HELD_TRAINER = """
import time
from pathlib import Path
from tests.harness.federation import StubTrainer

def hold(number):
    while number > 12 and not Path("interrupted").exists():
        time.sleep(0.01)

def build(settings):
    return StubTrainer(settings.shard_index if settings.shard_count > 1 else 1000, before_training=hold)
"""
CLIENT = """
[trainer]
user_code = "simulated_trainer:build"

[policy]
epsilon_budget = 1000.0
"""
RUN = """
name = "least-squares"
silos = ["north", "east", "south", "west"]
rounds = 3
fraction = 0.2
initial_range = 1.0

[aggregator]
name = "mean"
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as `fedrep simulate` expects it, and the current one."""
    (tmp_path / "simulated_trainer.py").write_text(TRAINER)
    (tmp_path / "client.toml").write_text(CLIENT)
    (tmp_path / "run.toml").write_text(RUN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "simulated_trainer", raising=False)  # another test's
    return tmp_path


def test_the_files_of_the_folder_are_played_and_the_results_written(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--json"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (result["run"], result["silos"], result["rounds_applied"]) == ("least-squares", 4, 3)
    assert result["central_accuracy"] is not None
    assert result["bytes_are"] == "counted"
    out = project / "simulation"
    rows = json.loads((out / "history.json").read_text())
    with (out / "history.csv").open(newline="") as file:
        assert [row["round"] for row in csv.DictReader(file)] == [str(row["round"]) for row in rows] == ["1", "2", "3"]
    _, vector = read_model(out / "model.safetensors")
    assert vector.any()
    assert json.loads((out / "result.json").read_text())["accuracy"] == result["accuracy"] == rows[-1]["accuracy"]


def test_the_central_model_can_be_left_out_and_the_text_says_why_the_run_ended(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "--fast", "--no-central"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "3 applied and 0 skipped rounds (all 3 rounds played)" in told
    assert "all data in one place: not known" in told
    assert not (project / "simulation" / "central.json").exists()


def test_rows_are_written_as_parquet_where_pyarrow_is_installed(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed; pip install 'fedrep[parquet]' to test it.")
    assert main(["simulate", "--json", "--fast"]) == 0
    table = parquet.read_table(project / "simulation" / "history.parquet")
    assert table.column("round").to_pylist() == [1, 2, 3]


def test_what_the_command_line_says_wins_over_the_files(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wishes = ["--silos", "8", "--rounds", "2", "--aggregator", "geometric_median", "--byzantine", "1", "--attack", "foe"]
    assert main(["simulate", "--fast", "--compare", *wishes, "--attack-option", "epsilon=10"]) == 0
    told = capsys.readouterr()
    assert "round 2 of 2" in told.err
    assert "against the plain mean: accuracy" in told.out
    assert "Played without cryptography (--fast)" in told.out
    assert "--silo silo-08" in told.out
    played = (project / "simulation" / "run.toml").read_text()
    assert "rounds = 2" in played
    assert "byzantine_count = 1" in played
    assert "drills" not in played


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--byzantine", "1", "--attack", "alie"], "take more attackers"),
        (["--attack-option", "epsilon"], "--attack-option takes name=value, for example epsilon=10, not 'epsilon'"),
        (["--engine", "spark"], "there is no engine 'spark'; choose local or ray"),
        (["--gpus-per-silo", "0.5"], "add --engine ray"),
        (["--trainer", "nowhere:build"], "there is no module 'nowhere'"),
        (["--trainer", "trainer.py"], "user_code must look like 'module:function', not 'trainer.py'"),
        (["--trainer", "digits"], "user_code must look like 'module:function', not 'digits'"),
        (["--fraction", "0"], "`fraction` (as asked for): input should be greater than 0, not 0.0"),
        (["--aggregator", "nonsense"], "aggregator 'nonsense' is unknown"),
        (["--client", "absent.toml"], "absent.toml"),
    ],
)
def test_what_cannot_be_played_is_one_line(
    project: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "--json", *arguments]) == 1
    told = capsys.readouterr()
    (line,) = [line for line in told.err.splitlines() if not line.startswith("... ")]
    assert said in line
    assert told.out == ""


def test_without_files_the_command_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["simulate"]) == 1
    assert "there is no client.toml here and no --trainer" in capsys.readouterr().err


@pytest.mark.slow
def test_after_ctrl_c_the_same_command_goes_on(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The process is interrupted when it has told of its tenth round, and plays the thirteenth only after that."""
    (project / "simulated_trainer.py").write_text(HELD_TRAINER)
    command = ["simulate", "--json", "--rounds", "100"]
    process = subprocess.Popen(
        [sys.executable, "-m", "fedrep_cli.main", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert process.stderr is not None
    assert any("round 10 of 100" in line for line in process.stderr)
    process.send_signal(signal.SIGINT)
    (project / "interrupted").touch()
    out, err = process.communicate()
    assert process.returncode == 130
    assert out == ""
    assert "the same command goes on from there" in err
    kept = json.loads((project / "simulation" / "history.json").read_text())
    assert 10 <= len(kept) < 100
    assert main([*command, "--fast"]) == 1  # another command
    assert "holds another simulation (its fast was False, now it is True)" in capsys.readouterr().err


def test_the_view_names_the_rule_of_the_run_that_is_played() -> None:
    terms = Wishes(rounds=2, byzantine=1, attack="foe", fast=True).terms(RunConfig(**PROBLEM), TrainerSettings())
    view = SimulationView(terms, quiet=True)
    titles: list[str] = []
    noted = Listeners(on_run=view.begin, on_round=lambda _row, _rounds: titles.append(view.title))
    run_simulation(terms, build, central=False, compare=True, listeners=noted)
    way = "8 silos, 1 of them attack with foe; {}, without cryptography"
    assert titles == [way.format("geometric_median")] * 2 + [way.format("mean")] * 2


def test_the_live_picture_fits_eighty_columns_and_plots_the_accuracy() -> None:
    row = {"outcome": "applied", "reason": "", "coordinates": 36, "bytes_up": 23268, "bytes_down": 149676, "seconds": 0.2}
    rows = [{**row, "round": n, "accuracy": n / 40, "loss": 1 / n, "epsilon": 5.2 * n} for n in range(1, 31)]
    rows[-1] |= {"outcome": "skipped", "reason": "too few silos proposed"}
    console = Console(file=io.StringIO(), width=80)
    console.print(picture("8 silos, nobody attacks; mean, with secure aggregation", rows, 30))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert "round 30 of 30, accuracy 0.750, epsilon 156.000 in all" in text
    assert "skipped: too" in text
    heights = [line.split("┤")[1].count("█") for line in lines if "┤" in line]
    assert heights == sorted(heights)
    assert heights[0] < heights[-1]


def test_edited_code_is_another_simulation_and_one_that_is_over_says_so(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["simulate", "--json", "--fast", "--rounds", "2"]
    said = "this simulation was over already; --again plays it anew"
    assert main(command) == 0
    assert said not in capsys.readouterr().err
    assert main(command) == 0
    told = capsys.readouterr()
    assert said in told.err
    assert json.loads(told.out)["notes"] == [said]
    (project / "simulated_trainer.py").write_text(f"{TRAINER}\n# edited\n")
    assert main(command) == 1
    assert "holds another simulation (the file with the trainer's code was another)" in capsys.readouterr().err
    assert main([*command, "--again"]) == 0
    assert said not in capsys.readouterr().err


def test_an_epsilon_without_guarantee_is_the_word_none(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "client.toml").write_text(CLIENT.partition("[policy]")[0])  # silos with a budget stay away
    assert main(["simulate", "--fast", "--alpha", "0"]) == 0
    assert "Epsilon of the proposals: none in all." in " ".join(capsys.readouterr().out.split())
    result, rows = (json.loads((project / "simulation" / name).read_text()) for name in ("result.json", "history.json"))
    assert result["epsilon_total"] == "none"
    assert [row["epsilon"] for row in rows] == ["none"] * 3
    with (project / "simulation" / "history.csv").open(newline="") as file:
        assert {row["epsilon"] for row in csv.DictReader(file)} == {"none"}
