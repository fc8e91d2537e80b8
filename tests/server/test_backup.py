"""A backup round trip between every pair of homes, and every backup that must be refused."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select

from fedrep.errors import SettingsError, StoreUnavailableError
from fedrep.protocol.messages import Descent
from fedrep_runtime.tensor_files import write_tensors
from fedrep_server.operations import backup as backup_module
from fedrep_server.operations.backup import backup, restore
from fedrep_server.operations.leadership import leadership_of
from fedrep_server.rounds.model_steps import StoredStep
from fedrep_server.rounds.model_store import open_model_store
from fedrep_server.store import Database, NewModel, SqlStore, open_store, sqlite_url
from fedrep_server.store.schema import migrate
from fedrep_server.store.tables import BACKED_UP
from tests.harness.store_fixtures import NewUrl, a_commit, a_progress, a_run
from tests.server.test_model_store import put

Rewrite = Callable[[dict[str, bytes]], None]


def all_rows(store: SqlStore) -> dict[str, list[Any]]:
    with store.database.read() as connection:
        return {
            table.name: [tuple(row) for row in connection.execute(select(table).order_by(*table.primary_key))]
            for table in BACKED_UP
        }


def fill(url: str, folder: Path, kind: str) -> dict[str, list[Any]]:
    """A run with every table in use and two kept models of three."""
    store = open_store(url)
    models = open_model_store(kind, folder / "models", store.database)
    first, _ = put(models, version=0, seed=0)
    store.create_run(a_run(), NewModel(0, first.hash, first.chain, 4000))
    for number in (1, 2):
        state, _ = put(models, version=number, seed=number)
        store.commit_round(a_commit(number, model=NewModel(number, state.hash, state.chain, 4000)))
    store.add_statement("run", 1, "d", bytes(range(256)))
    store.add_metrics("run", 1, "judge", "evaluator", {"accuracy": 0.1 + 0.2, "model_version": 1})
    store.add_metrics("run", 2, "ä", "silo", {"loss": 1e-300, "problem": 'a "quoted"\nline'})
    for version in store.retire_models("run", 1):
        models.delete("run", version)
    rows = all_rows(store)
    store.close()
    assert all(rows.values())
    return rows


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, dict[str, list[Any]]]:
    """A backup of a SQLite server with models in its folder, and the rows it must hold."""
    home = tmp_path / "home"
    rows = fill(sqlite_url(home), home, "folder")
    backup(sqlite_url(home), home, tmp_path / "backup.tar")
    return tmp_path / "backup.tar", rows


@pytest.mark.parametrize("source", ["sqlite-folder", "postgresql-database"])
@pytest.mark.parametrize("target", ["sqlite-folder", "sqlite-database", "postgresql-database"])
def test_what_was_backed_up_comes_back_in_any_home(source: str, target: str, new_postgres_url: NewUrl, tmp_path: Path) -> None:
    def home(name: str, place: str) -> tuple[str, Path, str]:
        database, kind = place.split("-")
        return (new_postgres_url() if database == "postgresql" else sqlite_url(tmp_path / name)), tmp_path / name, kind

    url, folder, kind = home("old", source)
    before = fill(url, folder, kind)
    written = backup(url, folder, tmp_path / "backup.tar", kind)
    assert (written.runs, written.rows, written.models) == (1, sum(map(len, before.values())), 2)
    url, folder, kind = home("new", target)
    assert restore(tmp_path / "backup.tar", url, folder, kind) == written
    store = open_store(url)
    models = open_model_store(kind, folder / "models", store.database)
    assert all_rows(store) == before
    assert models.versions("run") == [model.version for model in store.models("run")] == [1, 2]
    assert [models.get("run", model.version).hash for model in store.models("run")] == [m.hash for m in store.models("run")]
    assert store.append_events("run", a_commit(3).events) == (3,)
    store.commit_round(a_commit(3))
    store.close()
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(".restore-") or path.suffix == ".part"]


def test_a_backup_is_for_its_owner_only_and_overwrites_nothing(saved: tuple[Path, Any], tmp_path: Path) -> None:
    path, _ = saved
    assert path.stat().st_mode & 0o777 == 0o600
    before = path.read_bytes()
    with pytest.raises(SettingsError, match="already"):
        backup(sqlite_url(tmp_path / "home"), tmp_path / "home", path)
    assert path.read_bytes() == before


def test_a_backup_of_a_running_server_sees_one_moment(tmp_path: Path, new_url: NewUrl, monkeypatch: pytest.MonkeyPatch) -> None:
    url = new_url()
    before = fill(url, tmp_path / "home", "folder")
    running = open_store(url)
    dump = backup_module._dump

    def dump_while_a_round_ends(connection: Any, table: Any, lines: Any) -> int:
        count = dump(connection, table, lines)
        if table.name == "runs":
            running.commit_round(a_commit(3, model=None, progress=a_progress(3, 2)))
        return count

    monkeypatch.setattr(backup_module, "_dump", dump_while_a_round_ends)
    backup(url, tmp_path / "home", tmp_path / "backup.tar")
    running.close()
    restore(tmp_path / "backup.tar", sqlite_url(tmp_path / "new"), tmp_path / "new")
    store = open_store(sqlite_url(tmp_path / "new"))
    assert all_rows(store) == before
    store.close()


def test_a_backup_whose_current_model_is_missing_is_refused_and_leaves_no_file(tmp_path: Path) -> None:
    home = tmp_path / "home"
    fill(sqlite_url(home), home, "folder")
    (home / "models" / "run" / "2.safetensors").unlink()
    with pytest.raises(StoreUnavailableError, match="Pause the run"):
        backup(sqlite_url(home), home, tmp_path / "backup.tar")
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


def test_a_database_without_this_schema_is_not_backed_up(new_url: NewUrl, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="does not have the schema"):
        backup(new_url(), tmp_path, tmp_path / "backup.tar")


def rewrite(path: Path, change: Rewrite) -> None:
    with tarfile.open(path) as tar:
        parts = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
    change(parts)
    with tarfile.open(path, "w") as tar:
        for name, data in parts.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))


def change_a_row(parts: dict[str, bytes]) -> None:
    parts["rows/ledger.jsonl"] = parts["rows/ledger.jsonl"].replace(b"1.5", b"0.5")


def drop_a_model(parts: dict[str, bytes]) -> None:
    del parts["models/0.safetensors"]


def add_a_stranger(parts: dict[str, bytes]) -> None:
    parts["../../etc/passwd"] = b"root"


def drop_the_manifest(parts: dict[str, bytes]) -> None:
    del parts["manifest.json"]


def empty_the_manifest(parts: dict[str, bytes]) -> None:
    parts["manifest.json"] = b"[]"


@pytest.mark.parametrize("change", [change_a_row, drop_a_model, add_a_stranger, drop_the_manifest, empty_the_manifest])
def test_a_changed_backup_is_refused_before_anything_is_written(saved: tuple[Path, Any], tmp_path: Path, change: Rewrite) -> None:
    path, _ = saved
    rewrite(path, change)
    new = tmp_path / "new"
    with pytest.raises(SettingsError, match="not a whole fedrep backup"):
        restore(path, sqlite_url(new), new)
    assert list(new.iterdir()) == []


def test_a_truncated_backup_and_a_file_that_is_none_are_refused(saved: tuple[Path, Any], tmp_path: Path) -> None:
    path, _ = saved
    new = tmp_path / "new"
    for data in (path.read_bytes()[: path.stat().st_size // 2], b"something else", b""):
        path.write_bytes(data)
        with pytest.raises(SettingsError, match="not a whole fedrep backup"):
            restore(path, sqlite_url(new), new)
    with pytest.raises(SettingsError, match="There is no backup"):
        restore(tmp_path / "nowhere.tar", sqlite_url(new), new)


@pytest.mark.parametrize("listed", [1, "../../../elsewhere/model", 1.5, -1])
def test_a_version_that_is_no_number_leads_to_no_file_elsewhere(
    saved: tuple[Path, Any], tmp_path: Path, listed: int | float | str
) -> None:
    """Whoever writes a backup can make all of its hashes right."""
    path, _ = saved
    away: Any = "../../../elsewhere/model"
    victim = tmp_path / "elsewhere" / "model.safetensors"
    write_tensors(victim, {"w": np.zeros(3, np.float32)}, {"hash": "00"})
    step = StoredStep(away, Descent(b"", b"", 1.0, 8), np.zeros(0, np.float32), bytes(32), bytes(32))
    write_tensors(tmp_path / "step", step.tensors(), {"step": json.dumps(step.notes())})

    def lead_away(parts: dict[str, bytes]) -> None:
        name = "steps/0.safetensors"
        parts[name] = (tmp_path / "step").read_bytes()
        manifest = json.loads(parts["manifest.json"])
        manifest["sha256"][name] = hashlib.sha256(parts[name]).hexdigest()
        manifest["steps"] = {name: ["run", listed]}
        parts["manifest.json"] = json.dumps(manifest).encode()

    rewrite(path, lead_away)
    with pytest.raises(SettingsError, match="Take another"):
        restore(path, sqlite_url(tmp_path / "new"), tmp_path / "new")
    assert list(victim.parent.iterdir()) == [victim]
    models: Any = open_model_store("folder", tmp_path / "new" / "models", Database(sqlite_url(tmp_path / "new")))
    with pytest.raises(StoreUnavailableError, match="whole numbers"):
        models.delete("run", away)
    assert victim.exists()


def test_a_newer_backup_is_one_sentence(saved: tuple[Path, Any], tmp_path: Path) -> None:
    def newer(parts: dict[str, bytes]) -> None:
        parts["manifest.json"] = json.dumps({**json.loads(parts["manifest.json"]), "revision": "9999"}).encode()

    rewrite(saved[0], newer)
    with pytest.raises(SettingsError, match="newer fedrep"):
        restore(saved[0], sqlite_url(tmp_path / "new"), tmp_path / "new")


def test_a_place_that_holds_runs_is_left_alone(saved: tuple[Path, Any], new_url: NewUrl, tmp_path: Path) -> None:
    url = new_url()
    store = open_store(url)
    store.create_run(a_run("mine"))
    before = all_rows(store)
    with pytest.raises(SettingsError, match="holds runs already"):
        restore(saved[0], url, tmp_path / "new")
    assert all_rows(store) == before
    store.close()


def test_a_place_that_a_server_uses_is_left_alone(saved: tuple[Path, Any], new_url: NewUrl, tmp_path: Path) -> None:
    url = new_url()
    database = Database(url)
    migrate(database)
    folder = tmp_path / "new"
    leader = leadership_of(database, folder, "server")
    assert leader.acquire(0)
    with pytest.raises(SettingsError, match="A server is using"):
        restore(saved[0], url, folder)
    leader.release()
    restore(saved[0], url, folder)
    database.close()
