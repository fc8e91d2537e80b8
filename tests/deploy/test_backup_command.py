"""`fedrep server backup` and `restore` as an operator uses them: a federation moves from PostgreSQL to SQLite and goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedrep.wire.v1 import observer_pb2 as pb
from fedrep_cli.main import main
from fedrep_runtime.toml_text import toml_document
from tests.harness.federation import Federation
from tests.harness.processes import run_scenario
from tests.harness.store_fixtures import NewUrl

SILOS = 4


def write_settings(federation: Federation, path: Path) -> Path:
    settings = federation.server_settings().model_dump(exclude_none=True, exclude={"retention", "alerts"})
    path.write_text(toml_document(settings))
    return path


async def play(federation: Federation, rounds: int | None) -> pb.GetRunResponse:
    """Until the run is paused or over; with `rounds` it is created first."""
    async with federation.serving():
        if rounds is not None:
            await federation.create_run(rounds=rounds)
            await federation.run_silos(federation.daemon(number) for number in range(SILOS))
        return await federation.status()


def test_a_backup_taken_from_postgresql_is_restored_to_sqlite_with_its_models(
    tmp_path: Path, new_postgres_url: NewUrl, capsys: pytest.CaptureFixture[str]
) -> None:
    federation = Federation.create(tmp_path, silos=SILOS, database=new_postgres_url())
    before = run_scenario(play(federation, rounds=2))
    assert before.summary.rounds_applied == 2
    assert not (tmp_path / "server" / "models").exists(), "with PostgreSQL the models are rows"
    saved = tmp_path / "saved.tar"
    old, new = tmp_path / "old.toml", tmp_path / "new.toml"
    capsys.readouterr()
    assert main(["server", "backup", str(saved), "--config", str(write_settings(federation, old)), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["runs"], told["models"], told["size"]) == (1, len(before.models), saved.stat().st_size)

    federation.server_options = {"data": tmp_path / "restored"}
    assert main(["server", "restore", str(saved), "--config", str(write_settings(federation, new))]) == 0
    assert capsys.readouterr().out.split() == f"Restored {saved}: runs: 1, models: {len(before.models)}.".split()
    after = run_scenario(play(federation, rounds=None))
    assert after.summary.rounds_applied == 2
    assert after.summary.state == before.summary.state
    assert [(model.version, model.model_hash) for model in after.models] == [
        (model.version, model.model_hash) for model in before.models
    ]
    kept = {path.stem for path in (tmp_path / "restored" / "models").rglob("*.safetensors")}
    assert kept == {str(model.version) for model in before.models}
