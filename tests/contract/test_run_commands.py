"""`fedrep run ...` as an admin types it, against a real server."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from fedrep.wire.v1 import federation_pb2 as pb
from fedrep_cli.main import main
from fedrep_identity.certificates import Role
from tests.harness.live_server import PARAMETERS, SILOS, STEP, LiveServer, joined, wait_for_round
from tests.harness.mini_silo import SECONDS, play_round

Fedrep = Callable[..., tuple[int, Any, str]]


@pytest.fixture
def fedrep(server: LiveServer, capsys: pytest.CaptureFixture[str]) -> Fedrep:
    """(exit code, the JSON it printed, stderr)."""

    def call(*arguments: str, who: str = "admin", as_json: bool = True) -> tuple[int, Any, str]:
        identity = ["--server", server.address, "--identity", str(server.people.folder / who)]
        code = main(["run", *arguments, *identity, *(["--json"] if as_json else [])])
        printed = capsys.readouterr()
        out = printed.out.strip().splitlines()
        found = next((line for line in out if line.startswith("{")), "")
        return code, json.loads("\n".join(out[out.index(found) :])) if found and as_json else printed.out, printed.err

    return call


def write_run(folder: Path, name: str, **options: str) -> tuple[str, ...]:
    config, model = folder / f"{name}.toml", folder / "init.safetensors"
    given = {"name": f'"{name}"', "silos": json.dumps(SILOS), "fraction": "0.2", "initial_range": "1.0"} | options
    config.write_text("\n".join(f"{key} = {value}" for key, value in given.items()) + '\n[aggregator]\nname = "mean"\n')
    save_file({"layer.weight": np.zeros((20, 10), np.float32)}, model)
    return "create", "--config", str(config), "--model", str(model)


def test_a_run_from_its_file_to_its_exported_model(server: LiveServer, fedrep: Fedrep, tmp_path: Path) -> None:
    create = write_run(tmp_path, "commands")
    code, answer, _ = fedrep(*create, "--dry-run")
    assert (code, answer["created"]) == (0, False)
    assert "commands" not in [run["name"] for run in fedrep("list")[1]["runs"]]
    code, answer, _ = fedrep(*create)
    assert (code, answer["created"], answer["plan"]["buffers"]["count"], answer["plan"]["quorum"]) == (0, True, 2, 3)
    assert answer["plan"]["privacy"]["epsilon_total"] > answer["plan"]["privacy"]["epsilon_round"] > 0
    silos = joined(server, "commands")
    for number in (1, 2):
        play_round(silos, wait_for_round(server, "commands", after=number - 1), STEP)
    code, shown, _ = fedrep("show", "commands", who="viewer")
    assert (code, shown["summary"]["rounds_applied"], len(shown["silos"])) == (0, 2, 4)
    traffic = shown["traffic"]
    assert traffic["dense"] == 2 * 4 * 8 * PARAMETERS, "two rounds, four silos, float32 up and down"
    more = f"{traffic['sent'] / traffic['dense']:.1f}x more than dense: too small a model for the fixed costs"
    assert traffic["sentence"].startswith(more)
    assert more in " ".join(fedrep("show", "commands", as_json=False)[1].split())
    assert shown["suspicion"]["silos"] == [], "two buffers are too few to compare"
    assert fedrep("tag", "commands", "night", "pilot")[1]["tags"] == ["night", "pilot"]
    assert fedrep("tag", "commands", as_json=False)[1].strip() == "commands: no tags"
    assert fedrep("pause", "commands", "--reason", "look")[1]["state"] == "paused"
    assert fedrep("resume", "commands")[1]["state"] == "running"
    assert fedrep("exclude", "commands", "silo-d")[1]["state"] == "excluded"
    assert fedrep("readmit", "commands", "silo-d")[1]["state"] == "present"
    assert fedrep("rollback", "commands", "--to", "1")[1]["model_version"] == 3
    code, exported, _ = fedrep("export", "commands", str(tmp_path / "model.safetensors"), "--version", "2")
    assert (code, exported["version"]) == (0, 2)
    tensor = load_file(tmp_path / "model.safetensors")["layer.weight"]
    assert tensor.shape == (20, 10)
    assert np.array_equal(tensor.reshape(-1), np.array(silos[0].model, np.float32))
    assert fedrep("stop", "commands", "--reason", "enough")[1]["state_reason"] == "enough"
    for arguments in (("list",), ("show", "commands")):
        code, text, _ = fedrep(*arguments, as_json=False)
        assert code == 0
        assert "commands" in text


def test_show_tells_what_each_silo_says_about_its_records_and_what_that_covers(
    server: LiveServer, fedrep: Fedrep, tmp_path: Path
) -> None:
    limits = {"record_epsilon_at_most": "8.0", "delta_at_most": "1e-5"}
    assert fedrep(*write_run(tmp_path, "half", record_epsilon_at_most="8.0"))[0] == 1
    assert fedrep(*write_run(tmp_path, "records", **limits))[0] == 0
    silos = [server.silo(name) for name in SILOS]
    for silo in silos:
        silo.promise = (8.0, 1e-5)
        silo.fetch_model(silo.join("records").model_version)
    play_round(silos, wait_for_round(server, "records"), STEP)
    first, second, *_ = silos
    figures: dict[str, Any] = {"record_epsilon": 2.00001, "record_delta": 1e-5, "record_budget": 8.0}
    first.stub.ReportMetrics(pb.ReportMetricsRequest(run=first.run, round=1, **figures), timeout=SECONDS)
    second.stub.ReportMetrics(pb.ReportMetricsRequest(run=second.run, round=1, record_none=True), timeout=SECONDS)
    _, answer, _ = fedrep("show", "records")
    assert answer["summary"]["records"] == {"epsilon": 2.00001, "delta": 1e-5, "reporting": 1, "without": 1}
    assert answer["manifest"]["manifest"]["record_epsilon_at_most"] == 8.0
    assert answer["silos"][0].items() >= figures.items()
    _, text, _ = fedrep("show", "records", as_json=False)
    text = " ".join(text.replace("│", " ").split())
    for part in ("2.001", "not reported", "none", "one training record", "which coordinates a silo proposed"):
        assert part in text, text


def test_creating_a_run_shows_what_fedrep_plan_shows(
    server: LiveServer, fedrep: Fedrep, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    create = write_run(tmp_path, "planned", alpha="0")
    plan = ["plan", "--config", create[2], "--d", str(PARAMETERS)]
    assert main([*plan, "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["privacy"]["epsilon_total"] == "none"
    code, answer, _ = fedrep(*create, "--dry-run")
    assert (code, answer["plan"]) == (0, planned)
    assert main(plan) == 0
    text = capsys.readouterr().out
    assert fedrep(*create, "--dry-run", as_json=False)[1].endswith(text)


def test_refusals_are_one_sentence_and_an_exit_code(server: LiveServer, fedrep: Fedrep, tmp_path: Path) -> None:
    assert fedrep(*write_run(tmp_path, "refused"))[0] == 0
    for expected, arguments, who in (
        ("already a run named", write_run(tmp_path, "refused"), "admin"),
        ("no run named", ("show", "nobody"), "admin"),
        ("no silo named", ("exclude", "refused", "nobody"), "admin"),
        ("not kept on this server", ("rollback", "refused", "--to", "9"), "admin"),
        ("viewer", ("stop", "refused"), "viewer"),
        ("Enrol first", ("list",), "nobody"),
        ("quorum", write_run(tmp_path, "other", quorum="2"), "admin"),
    ):
        code, _, complaint = fedrep(*arguments, who=who)
        assert code == 1, (arguments, complaint)
        # Beside what the server logs, which is in this very process here.
        assert any(line.startswith("fedrep run:") for line in complaint.splitlines())
        assert expected in complaint
    assert main(["run", "list", "--server", "localhost:1", "--identity", str(server.people.folder / "admin")]) == 3


def test_an_admin_whose_certificate_has_expired_is_told_so(server: LiveServer, fedrep: Fedrep) -> None:
    server.people.issue("late-admin", Role.ADMIN, days=-0.001)
    code, _, complaint = fedrep("list", who="late-admin")
    assert code == 1
    assert "late-admin expired on" in complaint


def test_the_file_that_init_writes_can_be_used_as_it_is(
    fedrep: Fedrep, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "init", str(tmp_path / "run.toml")]) == 0
    save_file({"weight": np.zeros(500, np.float32)}, tmp_path / "init.safetensors")
    capsys.readouterr()
    code, answer, complaint = fedrep(
        "create", "--config", str(tmp_path / "run.toml"), "--model", str(tmp_path / "init.safetensors"), "--dry-run"
    )
    assert (code, complaint) == (0, "")
    assert answer["plan"]["silos"] == 4
