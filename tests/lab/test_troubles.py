"""What goes wrong with a run of the lab gets a sentence, and nothing that is finished is lost."""

from __future__ import annotations

import io
import json
import multiprocessing
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedrep.errors import DecodeError, FedrepError, SettingsError
from fedrep_lab import running
from fedrep_lab.archive import restore
from fedrep_lab.catalogue import experiment_from, load_experiment, load_experiments
from fedrep_lab.cell import Cell, cell_from
from fedrep_lab.checkpoints import Checkpoints
from fedrep_lab.figures import draw
from fedrep_lab.results import ResultFolder
from fedrep_lab.running import Plan, run_experiments
from fedrep_lab.silos import build_silos
from fedrep_lab.simulation import Training
from fedrep_runtime.files import lock_folder
from fedrep_runtime.ray_cluster import ray_cluster

QUIET = Console(file=io.StringIO())
TABLES = {"title": "t", "where": "w", "claim": "c", "verdict": "alpha", "grid": {"seed": [0, 1, 2]}}
TINY = Cell(dataset="digits", model="mlp", model_options={"hidden": [8]}, m=6, f=1, s=2, ratio=0.2, rounds=6)


@pytest.mark.parametrize("found", [b"", b"junk", pickle.dumps({"sources": "these"})[:-3], pickle.dumps({}), pickle.dumps(3)])
def test_a_damaged_checkpoint_starts_the_cell_anew(found: bytes, tmp_path: Path) -> None:
    path = tmp_path / "cell.unfinished"
    path.write_bytes(found)
    assert Checkpoints(path, "these").restore(Training(TINY, build_silos(TINY, None))) == 0


def test_a_worker_that_is_killed_ends_the_run_with_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def kill_all(*_: object) -> None:  # called as soon as a worker tells how far it is
        for child in multiprocessing.active_children():
            child.kill()

    monkeypatch.setattr(running.Bars, "report", kill_all)
    plan = Plan("smoke", tmp_path, processes=2, changes={"rounds": 100_000})
    with pytest.raises(FedrepError, match="killed, as systems do that run out of memory"):
        run_experiments([experiment_from("alpha_cclip", TABLES)], plan, QUIET)


def test_a_folder_is_filled_by_one_run_at_a_time(tmp_path: Path) -> None:
    with lock_folder(tmp_path), pytest.raises(SettingsError, match="in use by another process"):
        run_experiments([experiment_from("alpha_cclip", TABLES)], Plan("smoke", tmp_path), QUIET)


@pytest.mark.parametrize("name", ["rings", "membership"])
def test_data_that_nobody_named_are_asked_for_before_anything_is_run(name: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"on fashion_mnist: say with --data-dir"):
        run_experiments(load_experiments([name]), Plan("laptop", tmp_path), QUIET)


def test_an_interrupted_run_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "run_here", interrupted)
    said = io.StringIO()
    with pytest.raises(KeyboardInterrupt):
        run_experiments([experiment_from("alpha_cclip", TABLES)], Plan("smoke", tmp_path), Console(file=said, width=200))
    assert "the same command goes on with the rest" in said.getvalue()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("rounds", "abc", "rounds to 'abc', which is not a whole number"),
        ("rounds", True, "not a whole number"),
        ("rounds", 1.5, "not a whole number"),
        ("alpha", "abc", "alpha to 'abc', which is not a number"),
        ("rate", float("nan"), "not a number"),
        ("rule_settings", "foo", "not a table"),
        ("pre", 3, "not a list of names"),
        ("method", 3, "not a name"),
        ("seed", -1, "seed is -1"),
        ("split", "foo", "choose from iid, dirichlet"),
        ("batch_size", 0, "batch_size is 0"),
        ("interval", 0, "interval is 0"),
        ("decay", -1, "decay is -1"),
        ("evaluations", 0, "evaluations is 0"),
        ("record_delta", 2, "record_delta is 2"),
        ("initial_range", -1, "initial_range is -1"),
        ("reshuffle_every", -1, "reshuffle_every is -1"),
        ("dirichlet_alpha", 0, "dirichlet_alpha is 0"),
    ],
)
def test_a_setting_that_no_cell_can_have_is_named(name: str, value: Any, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        cell_from({name: value}, "--set")


def test_a_number_may_be_written_in_either_way() -> None:
    assert cell_from({"alpha": 1}, "--set").key() == cell_from({"alpha": 1.0}, "--set").key()
    assert cell_from({"rounds": 1e3}, "--set").key() == cell_from({"rounds": 1000}, "--set").key()


@pytest.mark.parametrize("name", ["../experiments/rings", "/rings", "rings.toml"])
def test_an_experiment_is_called_by_its_name(name: str) -> None:
    with pytest.raises(SettingsError, match="no experiment"):
        load_experiment(name)


def test_all_is_all_whatever_stands_beside_it() -> None:
    assert load_experiments(["all", "rings"]) == load_experiments(["all"])


@pytest.fixture
def published(tmp_path: Path) -> Path:
    run_experiments(load_experiments(["rings"]), Plan("smoke", tmp_path / "run", changes={"rounds": 2}), QUIET)
    return tmp_path / "run" / "smoke"


def test_tables_of_another_preset_are_not_taken_up(published: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="holds cells on digits, the preset laptop has fashion_mnist: say --preset"):
        restore(published, tmp_path / "other", "laptop")


HEAD = b"key,rounds,seconds,cpu_seconds,parameters\n"


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (b"\xff\xfe\x00", "is no table"),
        (HEAD + b"a,5,1,1\n", "more or fewer entries"),
        (HEAD + b"a,5,1,1,1,1\n", "more or fewer entries"),
        (b"key,rounds\na,5\n", "lacks one of cpu_seconds, key, parameters, seconds"),
        (HEAD + b"a,none,1,1,1\n", "rounds to 'none', which is not a whole number"),
    ],
)
def test_a_damaged_table_is_named(damage: bytes, said: str, published: Path, tmp_path: Path) -> None:
    (published / "rings.csv").write_bytes(damage)
    with pytest.raises(DecodeError, match=rf"rings\.csv .*{said}"):
        restore(published, tmp_path / "other", "smoke")


def test_cells_without_history_are_judged_but_not_drawn(published: Path, tmp_path: Path) -> None:
    (published / "rings-history.csv").unlink()
    restore(published, tmp_path / "other", "smoke")
    assert draw(load_experiment("rings"), ResultFolder(tmp_path / "other").load("rings", "smoke")) is None


@pytest.mark.parametrize("part", [{"metrics": 3}, {"history": "x"}, {"code": None}, {"cell": {"m": 0}}])
def test_a_damaged_cell_of_another_experiment_is_named_too(part: dict[str, Any], published: Path) -> None:
    folder = ResultFolder(published.parent)
    cell = folder.load("rings", "smoke")[0].cell
    path = folder.path("rings", "smoke", cell)
    path.write_text(json.dumps({**json.loads(path.read_text()), **part}))
    with pytest.raises(DecodeError, match=path.name):
        folder.adopt("price", "smoke", cell)


class FakeRay:
    @staticmethod
    def is_initialized() -> bool:
        return False

    @staticmethod
    def init(**_: object) -> None:
        raise ConnectionError("no such cluster\nand a long story")


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("auto", r"\(auto\): no such cluster Use"),
        ("ray://localhost:1", r"\(ray://localhost:1\): .*refused"),  # said at once, where Ray goes on asking for minutes
    ],
)
def test_a_cluster_that_does_not_answer_is_named(address: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", FakeRay)
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(SettingsError, match="RAY_ADDRESS names " + said), ray_cluster():
        pass


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method_settings": {"min_survivors": 2}}, "The method fedrep has no setting min_survivors .*takes memory"),
        ({"method": "share", "method_settings": {"memory": 2}}, "The method share has no setting memory .*takes none"),
        ({"task": "attendance", "method_settings": {"memory": 2}}, "The task attendance has no setting memory"),
        ({"task": "regression", "record_epsilon": 2.0}, "The task regression needs records in method_settings"),
    ],
)
def test_a_method_is_played_with_settings_of_its_own_alone(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    experiment = experiment_from("alpha_cclip", {**TABLES, "grid": {}})
    with pytest.raises(SettingsError, match=said):
        run_experiments([experiment], Plan("smoke", tmp_path, changes={"rounds": 2, **changes}), QUIET)


def test_what_a_preset_limits_may_be_asked_for_all_the_same() -> None:
    (cell,) = experiment_from("mine", {**TABLES, "grid": {}}).cells("smoke", {"f": 2})
    assert (cell.f, cell.s) == (2, 2)
    with pytest.raises(SettingsError, match="f is 8 of m = 8 silos"):
        experiment_from("mine", TABLES).cells("smoke", {"f": 8})
