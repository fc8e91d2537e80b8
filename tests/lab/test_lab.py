"""The lab from its command line: experiments expand, runs are resumed cell by cell, engines agree, reports judge."""

from __future__ import annotations

import csv
import io
import json
import re
import signal
import subprocess
import sys
import time
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from fedrep.errors import DecodeError, NotFoundError, SettingsError
from fedrep.protocol.manifests import SiloName
from fedrep.protocol.messages import Phase, Submission
from fedrep.protocol.silo_effects import Accepted, GetConsensus
from fedrep.sparsify import Coordinates
from fedrep_cli.main import main
from fedrep_lab import attendance, engines, lying_server, verdicts
from fedrep_lab.catalogue import experiment_from, experiment_names, load_experiment, load_experiments
from fedrep_lab.cell import Cell
from fedrep_lab.comparisons import FAILS, HOLDS, UNTESTED
from fedrep_lab.figures import draw
from fedrep_lab.measurements import measure
from fedrep_lab.methods.interface import Seating, Vector
from fedrep_lab.report import write_report
from fedrep_lab.results import Result, ResultFolder
from fedrep_lab.running import Plan, missing_jobs, run_experiments
from fedrep_lab.verdicts import VERDICTS, judge
from tests.harness.processes import python
from tests.protocol.federation import Federation as InProcess
from tests.protocol.federation import Silo

QUIET = Console(file=io.StringIO())
REPOSITORY = Path(__file__).parents[2]
LEAK_COLUMNS = ("task", "s", "alpha", "rounds", "reshuffle_every")


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every experiment, once, as `make paper` runs it."""
    folder = tmp_path_factory.mktemp("lab")
    assert main(["lab", "run", "all", "--preset", "smoke", "--out", str(folder)]) == 0
    return folder


def test_every_experiment_runs_in_the_smoke_preset(smoke: Path) -> None:
    for experiment in load_experiments(["all"]):
        found = ResultFolder(smoke).load(experiment.name, "smoke")
        assert {result.cell.key() for result in found} == {cell.key() for cell in experiment.cells("smoke")}
        for result in found:
            if result.cell.task == "train":
                assert 0.0 <= result.metrics["best_accuracy"] <= 1.0
                assert result.history[0]["round"] == 0
                assert result.code["sources"]


def test_tables_hold_every_cell_with_settings_results_and_code(smoke: Path) -> None:
    with (smoke / "smoke" / "alpha_cclip.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {float(row["alpha"]) for row in rows} == {0.0, 0.95, 1.0}
    assert all(0 < float(row["result_gamma"]) <= 0.05 for row in rows)
    assert all(row["code_sources"] for row in rows)
    with (smoke / "smoke" / "alpha_cclip-history.csv").open() as file:
        assert {row["key"] for row in csv.DictReader(file)} == {row["key"] for row in rows}


def test_the_report_is_one_page_with_every_claim_figure_and_verdict(smoke: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    outcome = write_report(smoke, None, page, tmp_path / "pages")
    text = page.read_text()
    assert 'src="http' not in text
    assert 'href="http' not in text
    for experiment in load_experiments(["all"]):
        assert f'id="{experiment.name}"' in text
    drawn = [experiment for experiment in load_experiments(["all"]) if experiment.figure.kind != "table"]
    assert text.count("data:image/png;base64,") == len(drawn)
    assert {row["status"] for row in outcome["verdicts"]} == {UNTESTED}  # nothing is decided by a smoke run
    page_text = (tmp_path / "pages" / "verdicts.md").read_text()
    for name in re.findall(r"\]\((.*?\.png)\)", page_text):
        assert (tmp_path / "pages" / name).read_bytes().startswith(b"\x89PNG")


def test_the_same_numbers_give_the_same_figure(smoke: Path) -> None:
    experiment = load_experiment("share")
    results = ResultFolder(smoke).load("share", "smoke")
    drawn = draw(experiment, results)
    assert drawn is not None
    assert drawn == draw(experiment, results)
    assert drawn != draw(experiment, results[1:])


def test_finished_cells_are_not_run_again(smoke: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> str:
        raise AssertionError("a finished cell was run again")

    monkeypatch.setattr(engines, "work", fail)
    outcome = run_experiments(load_experiments(["rings", "share"]), Plan("smoke", smoke), QUIET)
    assert (outcome["ran"], outcome["present"]) == (0, 10)


def test_a_cell_is_repeated_exactly(smoke: Path, tmp_path: Path) -> None:
    run_experiments(load_experiments(["rings"]), Plan("smoke", tmp_path), QUIET)
    again = {result.cell.key(): result for result in ResultFolder(tmp_path).load("rings", "smoke")}
    for result in ResultFolder(smoke).load("rings", "smoke"):
        assert again[result.cell.key()].metrics == result.metrics
        assert again[result.cell.key()].history == result.history


def test_processes_give_the_same_results_as_this_one(smoke: Path, tmp_path: Path) -> None:
    run_experiments(load_experiments(["share_momentum"]), Plan("smoke", tmp_path, processes=2), QUIET)
    assert _outcomes(tmp_path, "share_momentum") == _outcomes(smoke, "share_momentum")


def test_ray_gives_the_same_results_as_this_process(smoke: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="Ray is not installed; pip install 'fedrep[ray]' to test its engine.")
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    # In a process of its own: Ray leaves threads and open sockets behind, which are warnings and so errors here.
    command = [sys.executable, "-m", "fedrep_cli.main", "lab", "run", "share_momentum", "--engine", "ray", "--jobs", "2"]
    done = subprocess.run([*command, "--out", str(tmp_path)], cwd=REPOSITORY, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert _outcomes(tmp_path, "share_momentum") == _outcomes(smoke, "share_momentum")


# `fedrep lab` as it is, but its second cell says that it has begun, and never ends.
ENDLESS_SECOND_CELL = """
import sys
from dataclasses import replace
from fedrep_cli.main import main
from fedrep_lab import engines

work, begun = engines.work, []

def work_or_never_end(job, report=None):
    begun.append(job)
    if len(begun) == 2:
        print("the second cell has begun", flush=True)
        job = replace(job, cell=replace(job.cell, rounds=100_000_000))
    return work(job, report)

engines.work = work_or_never_end
sys.exit(main(sys.argv[1:]))
"""


def test_an_interrupted_run_keeps_what_is_finished_and_goes_on(tmp_path: Path) -> None:
    command = ["-c", ENDLESS_SECOND_CELL, "lab", "run", "strong_attacks", "--out", str(tmp_path)]
    with python(*command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert any("the second cell has begun" in line for line in process.stdout)
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 130
    experiments = load_experiments(["strong_attacks"])
    kept = len(ResultFolder(tmp_path).load("strong_attacks", "smoke"))
    jobs, present = missing_jobs(experiments, Plan("smoke", tmp_path))
    assert kept == present == 1
    assert len(jobs) + present == len(experiments[0].cells("smoke"))
    assert (tmp_path / "smoke" / "strong_attacks.csv").is_file()


# `fedrep lab` as it is, but every word of a worker to its parent is printed.
TALKATIVE_PARENT = """
import sys
from fedrep_cli.main import main
from fedrep_lab.running import Bars

Bars.report = lambda self, key, done, total: print("working on", key, flush=True)
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
def test_workers_end_when_the_run_is_killed(tmp_path: Path) -> None:
    slow = ["--jobs", "2", "--set", "rounds=100000", "--out", str(tmp_path)]
    with python("-c", TALKATIVE_PARENT, "lab", "run", "rings", *slow, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        cells: set[str] = set()
        while len(cells) < 2:
            line = process.stdout.readline()
            assert line, "the run ended"
            cells |= {line} if line.startswith("working on") else set()
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        process.kill()
    assert len(children) == 3, "two workers, and what tracks their resources"
    limit = time.monotonic() + 120
    while any(_alive(child) for child in children):
        assert time.monotonic() < limit, "a worker goes on without its parent"
        time.sleep(0.2)


def _alive(process: str) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_damaged_result_is_named(tmp_path: Path) -> None:
    bad = tmp_path / "smoke" / "rings" / "0123.json"
    bad.parent.mkdir(parents=True)
    bad.write_text("{}")
    with pytest.raises(DecodeError, match=r"0123\.json is not the result of a cell .* remove it"):
        ResultFolder(tmp_path).load("rings", "smoke")


def test_presets_have_the_sizes_they_promise() -> None:
    for name in experiment_names():
        experiment = load_experiment(name)
        assert experiment.verdict in VERDICTS
        for cell in experiment.cells("laptop"):
            if cell.task == "train":
                assert (cell.dataset, cell.m) == ("fashion_mnist", 32)
        for cell in experiment.cells("paper"):
            if cell.task == "train":
                assert (cell.dataset, cell.model, cell.epochs, cell.batch_size) == ("cifar10", "resnet20", 120, 25)
    assert {cell.rate for cell in load_experiment("alpha_cclip").cells("paper")} == {0.1, 0.2, 0.5, 1.0, 2.0, 5.0}
    assert {cell.alpha for cell in load_experiment("alpha_tmean").cells("laptop")} == {0.0, 0.2, 0.5, 0.8, 0.95, 0.99, 1.0}


def test_a_change_on_the_command_line_wins_over_grids_and_variants() -> None:
    cells = load_experiment("sparse_secagg").cells("laptop", {"ratio": 0.3, "rounds": 5})
    assert {(cell.ratio, cell.rounds) for cell in cells} == {(0.3, 5)}


def test_mistakes_in_an_experiment_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    tables = {"title": "t", "where": "w", "claim": "c", "verdict": "alpha", "cells": {"alhpa": 1}}
    with pytest.raises(SettingsError, match="sets alhpa, which no cell has"):
        experiment_from("mine", tables).cells("smoke")
    with pytest.raises(SettingsError, match="lacks claim, verdict"):
        experiment_from("mine", {"title": "t", "where": "w"})
    assert main(["lab", "run", "alpha_ccilp"]) == 1
    assert "Did you mean 'alpha_cclip'?" in capsys.readouterr().err


def test_a_data_folder_that_is_missing_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "run", "rings", "--preset", "laptop", "--out", str(tmp_path)]) == 1
    assert "say with --data-dir" in capsys.readouterr().err
    with pytest.raises(NotFoundError, match="There are no results at all"):
        write_report(tmp_path / "nothing", None, tmp_path / "report.html")


def test_the_list_is_json_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in listed["experiments"]] == experiment_names()


@pytest.mark.parametrize(
    ("name", "heading", "columns"),
    [
        ("leaks", "How large the leaks of the sums are", LEAK_COLUMNS),
        ("private_leaks", "What is left of them with record-level privacy", (*LEAK_COLUMNS, "record_epsilon")),
    ],
)
def test_the_threat_model_states_the_figures_that_the_verdicts_on_leaks_compare_with(
    name: str, heading: str, columns: tuple[str, ...]
) -> None:
    experiment = load_experiment(name)
    basis = experiment.tables["stated"]
    section = (REPOSITORY / basis["page"]).read_text().partition(f"### {heading}\n")[2].partition("\n#")[0]
    _, _, *rows = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in section.splitlines() if line.startswith("|")]
    assert rows == [
        [*(str(stated.settings.get(name, "")) for name in columns), stated.metric, str(stated.figure)]
        for stated in experiment.stated()
    ]
    assert all(set(stated.settings) <= set(columns) for stated in experiment.stated())
    assert f"within {basis['within']} of this table" in section
    if name == "leaks":
        assert f"m = {basis['settings']['m']} and K = {basis['settings']['ratio']} d" in section
    else:
        shared = experiment.tables["cells"]
        silo = shared["method_settings"]
        assert f"{silo['records']:,} records and a model of {silo['parameters']:,} parameters" in section
        assert f"batches of {shared['batch_size']} and delta = 1e-5" in section
        assert {cell.record_delta for cell in experiment.cells("laptop")} == {1e-5}


def measured_leaks(**changes: Any) -> list[Result]:
    cells = load_experiment("leaks").cells("laptop", changes)
    return [Result("leaks", "laptop", cell, {}, 0, measure(cell)["metrics"], [], 0.0, 0.0) for cell in cells]


def test_the_verdict_on_leaks_compares_with_the_page_and_with_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    results = measured_leaks()
    found = judge("leaks", "laptop", results)
    assert (found.status, found.sentence) == (HOLDS, "32 of 32 measured within 0.05 of the figures in docs/threat-model.md.")
    assert judge("leaks", "laptop", results[1:]).status == UNTESTED
    assert judge("leaks", "laptop", measured_leaks(m=16)).status == UNTESTED, "the page says nothing about 16 silos"
    assert [row["docs/threat-model.md"] for row in found.rows] == [stated.figure for stated in load_experiment("leaks").stated()]
    tables = deepcopy(load_experiment("leaks").tables)
    tables["variants"][0]["stated"]["correlation"] = 0.5
    monkeypatch.setattr(verdicts, "load_experiment", lambda name: experiment_from(name, tables))
    assert judge("leaks", "laptop", results).status == FAILS


def test_record_level_privacy_makes_every_leak_of_an_update_smaller_by_what_the_page_states() -> None:
    cells = load_experiment("private_leaks").cells("laptop")
    results = [Result("private_leaks", "laptop", cell, {}, 0, measure(cell)["metrics"], [], 0.0, 0.0) for cell in cells]
    found = judge("private_leaks", "laptop", results)
    assert (found.status, found.sentence) == (HOLDS, "12 of 12 measured within 0.05 of the figures in docs/threat-model.md.")
    for cell, result in zip(cells, results, strict=True):
        if cell.record_epsilon == 8.0:
            stronger = next(r for r in results if r.cell == replace(cell, record_epsilon=1.0))
            without = measure(replace(cell, record_epsilon=0.0))["metrics"]["correlation"]
            assert without > result.metrics["correlation"] > stronger.metrics["correlation"]


@pytest.mark.parametrize("task", ["tiny_range_skipped", "tiny_range_applied", "kept_closed"])
def test_lying_gives_the_server_no_more_than_fresh_trainings_do(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Cell(task=task, m=8, s=2, f=0, rounds=20, reshuffle_every=1)
    design = measure(cell)["metrics"]["by_design"]
    assert measure(cell)["metrics"]["correlation"] <= design + 0.01
    # The silos of version 1 kept all that was not sent, and trained no more after a round that was called skipped.
    for name in ("after_opening", "after_giving_up"):
        monkeypatch.setattr(lying_server, name, _kept_by_version_1)
    if task == "tiny_range_skipped":
        train = lying_server.local_updates
        monkeypatch.setattr(
            lying_server, "local_updates", lambda cell, p, number, rng: train(cell, p, 0, rng) if number == 0 else 0 * p
        )
    assert measure(cell)["metrics"]["correlation"] > design + 0.05


def _kept_by_version_1(_: Vector, g: Vector, indices: Coordinates, sent: Vector, _range: float) -> Vector:
    left = g.copy()
    left[indices] -= sent
    return left


def test_the_page_on_the_lab_states_the_figures_that_the_verdict_on_attendance_compares_with() -> None:
    experiment = load_experiment("attendance")
    basis = experiment.tables["stated"]
    section = (REPOSITORY / basis["page"]).read_text().partition("## How often rounds succeed\n")[2].partition("\n#")[0]
    head, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line.startswith("|")]
    figures: dict[tuple[str, str, str], list[str]] = {}
    for stated in experiment.stated():
        of = stated.settings
        place = f"{of['absence'] + of['dropout']:.0%}", str(of["m"]), f"s = {of['s']}"
        figures.setdefault(place, []).append(str(stated.figure))
    assert {(*row[:2], size): cell.split(" / ") for row in rows for size, cell in zip(head[2:], row[2:], strict=True)} == figures
    assert f"within {basis['within']}" in section


def test_the_lab_counts_attendance_as_the_service_does() -> None:
    """Rounds of the real server and silos, against the lab's: who contributes, who has missed it, and who is complete."""
    rng = np.random.default_rng(2)
    outcomes = set()
    for seed in range(12):
        federation = InProcess.of(10, 40, buffer_size=3, byzantine=seed % 2, buffer_seed=bytes([seed] * 32), reshuffle_every=10)
        run = federation.run
        played = rng.choice(["here", "absent", "silent"], size=10, p=[0.8, 0.1, 0.1])
        fate = dict(zip(run.silos, played.tolist(), strict=True))
        silent_from = {name: Phase.PROPOSE if fate[name] == "absent" else Phase.SUBMIT for name in fate if fate[name] != "here"}
        _play(federation, silent_from)
        result = federation.round.result
        assert result is not None
        proposed, here = (frozenset(name for name in fate if fate[name] not in out) for out in (["absent"], ["absent", "silent"]))
        seating = Seating(run.silos, run.buffer_size, run.reshuffle_every, run.buffer_seed)
        ours = attendance.Federation(seating, run.byzantine, run.min_survivors).play(1, run.silos, proposed, here)
        opened = {each.silo for n in result.opened for each in result.survivors.buffers[n]} if result.survivors else set()
        assert ours.contributing == opened
        assert (ours.report.missed, ours.report.complete) == (result.report.missed, result.report.complete)
        assert ours.report.answered == result.report.answered
        outcomes.add(len(opened))
    assert len(outcomes) > 3
    assert 0 in outcomes


def _play(federation: InProcess, silent_from: dict[SiloName, Phase]) -> None:
    """One round of the service, in which silos of a buffer with too few proposers go on as holders."""

    def submit_if_seated(silo: Silo) -> None:
        silo.answer(GetConsensus, federation.round.consensus_for(silo.name))
        if silo.player.waits_for(Submission):
            federation.effects += federation.round.receive(silo.said(Submission))
            silo.answer(Submission, Accepted())

    federation.open_round()
    here = [silo for silo in federation.members if silo.name not in silent_from]
    proposing = [silo for silo in federation.members if silent_from.get(silo.name) is not Phase.PROPOSE]
    steps = (
        (Phase.PROPOSE, proposing, federation.propose),
        (Phase.SUBMIT, here, submit_if_seated),
        (Phase.CONFIRM, here, federation.confirm),
        (Phase.REVEAL, here, federation.reveal),
    )
    for phase, silos, act in steps:
        for silo in silos:
            if not federation.over:
                act(silo)
        if federation.round.phase is phase:
            federation.deadline()


def _outcomes(folder: Path, experiment: str) -> dict[str, Any]:
    return {result.cell.key(): (result.metrics, result.history) for result in ResultFolder(folder).load(experiment, "smoke")}


def test_the_paper_preset_trains_resnet_20_on_cifar_10_files(tmp_path: Path) -> None:
    from PIL import Image

    rng = np.random.default_rng(0)
    for part, count in (("train", 4), ("test", 1)):
        for label in range(10):
            folder = tmp_path / "cifar10" / part / f"class-{label}"
            folder.mkdir(parents=True)
            for number in range(count):
                Image.fromarray(rng.integers(0, 256, size=(32, 32, 3), dtype=np.uint8)).save(folder / f"{number}.jpg")
    changes = {
        "epochs": 0,
        "rounds": 1,
        "evaluations": 1,
        "m": 4,
        "f": 0,
        "batch_size": 4,
        "attack": "none",
        "rate": 0.1,
        "seed": 0,
    }
    experiments = load_experiments(["alpha_cclip"])
    cells = experiments[0].cells("paper", {**changes, "alpha": 0.5})
    assert len(cells) == 1
    plan = Plan("paper", tmp_path / "out", tmp_path, changes={**changes, "alpha": 0.5})
    assert run_experiments(experiments, plan, QUIET)["ran"] == 1
    (result,) = ResultFolder(tmp_path / "out").load("alpha_cclip", "paper")
    assert result.parameters == 272_474
    assert 0 < result.metrics["gamma"] <= 0.05
