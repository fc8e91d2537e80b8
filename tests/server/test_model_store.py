"""Model files: what is put comes back bit for bit, and damage never does. One suite for the folder and the database."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from sqlalchemy import delete, update

from fedrep.errors import NotFoundError, StoreUnavailableError
from fedrep.protocol.model_state import ModelState
from fedrep_server.rounds import model_store
from fedrep_server.rounds.model_store import CHUNK, DatabaseModelStore, FolderModelStore, ModelStore, open_model_store
from fedrep_server.store import SqlStore, open_store, sqlite_url
from fedrep_server.store.tables import model_chunks
from tests.harness.store_fixtures import emptied


@pytest.fixture(params=["folder", "sqlite", "postgresql"])
def models(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ModelStore]:
    if request.param == "folder":
        yield FolderModelStore(tmp_path / "models")
        return
    postgres = request.param == "postgresql"
    store = open_store(emptied(request.getfixturevalue("postgres_url_with_tables")) if postgres else sqlite_url(tmp_path))
    yield DatabaseModelStore(store.database)
    store.close()


def put(
    models: ModelStore, run: str = "run", version: int = 0, seed: int = 0, size: int = 1000
) -> tuple[ModelState, NDArray[np.float32]]:
    rng = np.random.default_rng(seed)
    state = ModelState.initial(rng.standard_normal(size).astype(np.float32))
    residual = rng.standard_normal(size).astype(np.float32)
    assert models.put(run, version, state.vector, residual, state.hash, state.chain) >= 8 * size
    return state, residual


def test_a_model_comes_back_bit_for_bit(models: ModelStore) -> None:
    state, residual = put(models, version=7)
    found = models.get("run", 7)
    assert (found.version, found.hash, found.chain) == (7, state.hash, state.chain)
    assert found.vector.tobytes() == state.vector.tobytes()
    assert found.residual.tobytes() == residual.tobytes()


def test_a_model_larger_than_a_chunk_comes_back_in_order(models: ModelStore) -> None:
    state, residual = put(models, size=CHUNK // 2 + 3)
    found = models.get("run", 0)
    assert found.vector.tobytes() == state.vector.tobytes()
    assert found.residual.tobytes() == residual.tobytes()


def test_a_later_put_of_a_version_replaces_the_earlier(models: ModelStore) -> None:
    put(models, seed=1, size=2000)
    state, _ = put(models, seed=2)
    assert models.get("run", 0).hash == state.hash
    assert models.versions("run") == [0]


def test_versions_are_numbers_in_order_and_belong_to_their_run(models: ModelStore) -> None:
    for version in (10, 9, 2):
        put(models, version=version)
    put(models, run="other", version=5)
    assert models.versions("run") == [2, 9, 10]
    assert models.versions("nobody") == []


def test_a_version_that_is_not_there_is_not_found(models: ModelStore) -> None:
    put(models)
    for run, version in (("run", 1), ("other", 0), ("run", 2**64 - 1)):
        with pytest.raises(NotFoundError, match="is not kept"):
            models.get(run, version)


def test_a_deleted_version_is_gone_and_may_be_deleted_again(models: ModelStore) -> None:
    put(models)
    models.delete("run", 0)
    models.delete("run", 0)
    models.delete("nobody", 0)
    assert models.versions("run") == []


def test_pruning_removes_orphans_of_this_run_only(models: ModelStore) -> None:
    for version in range(4):
        put(models, version=version)
    put(models, run="other", version=9)
    assert models.prune("run", {1, 3}) == [0, 2]
    assert models.versions("run") == [1, 3]
    assert models.versions("other") == [9]
    assert models.prune("nobody", set()) == []


def test_a_model_whose_bytes_do_not_have_its_hash_is_never_handed_out(models: ModelStore) -> None:
    vector = np.arange(4, dtype=np.float32)
    models.put("run", 0, vector, vector, b"x" * 32, b"c" * 32)
    with pytest.raises(StoreUnavailableError, match="damaged"):
        models.get("run", 0)


@pytest.mark.parametrize("where", [0, 60, -1, -4004])
def test_any_changed_byte_of_a_file_is_noticed(tmp_path: Path, where: int) -> None:
    """In the header, in the metadata, in the residual and in the model."""
    models = FolderModelStore(tmp_path)
    put(models)
    path = models.path("run", 0)
    data = bytearray(path.read_bytes())
    data[where] ^= 1
    path.write_bytes(data)
    with pytest.raises(StoreUnavailableError, match="damaged"):
        models.get("run", 0)


def test_a_truncated_file_is_noticed(tmp_path: Path) -> None:
    models = FolderModelStore(tmp_path)
    put(models)
    path = models.path("run", 0)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StoreUnavailableError, match="damaged"):
        models.get("run", 0)


@pytest.mark.parametrize("tensor", ["model", "residual"])
def test_a_changed_or_missing_chunk_is_noticed(store: SqlStore, tensor: str) -> None:
    models = DatabaseModelStore(store.database)
    put(models)
    one = model_chunks.c.tensor == tensor
    with store.database.write() as connection:
        connection.execute(update(model_chunks).where(one).values(data=b"\0" * 4000))
    with pytest.raises(StoreUnavailableError, match="damaged"):
        models.get("run", 0)
    with store.database.write() as connection:
        connection.execute(update(model_chunks).where(one).values(data=b"\0" * 4001))
    with pytest.raises(StoreUnavailableError, match="damaged"):
        models.get("run", 0)
    with store.database.write() as connection:
        connection.execute(delete(model_chunks).where(one))
    with pytest.raises(StoreUnavailableError, match="damaged"):
        models.get("run", 0)


def test_a_put_that_fails_half_way_leaves_the_rows_as_they_were(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    models = DatabaseModelStore(store.database)
    state, _ = put(models, seed=1)
    monkeypatch.setattr(model_store, "CHUNK", 0)  # the old rows are gone and the new file's row is there when this fails
    with pytest.raises(ValueError, match="must not be zero"):
        put(models, seed=2)
    assert models.get("run", 0).hash == state.hash


@pytest.mark.parametrize("run", ["..", ".", "a/b", "/etc", "a\\b", "ä b", "%2E%2E", ".hidden"])
def test_no_run_name_leads_out_of_the_folder_or_into_another_run(tmp_path: Path, run: str) -> None:
    models = FolderModelStore(tmp_path / "models")
    put(models, run="plain", version=1)
    put(models, run=run, version=2)
    assert models.path(run, 2).parent.parent == tmp_path / "models"
    assert (models.versions(run), models.versions("plain")) == ([2], [1])
    assert [path.name for path in tmp_path.iterdir()] == ["models"]


def test_a_write_that_was_killed_leaves_no_version_and_pruning_sweeps_it_up(tmp_path: Path) -> None:
    models = FolderModelStore(tmp_path)
    put(models)
    part = models.path("run", 0).parent / ".1.safetensors.abc.part"
    part.write_bytes(b"half a model")
    assert models.versions("run") == [0]
    models.prune("run", {0})
    assert not part.exists()


def test_a_full_disk_is_one_sentence_and_the_old_model_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = FolderModelStore(tmp_path)
    state, _ = put(models)

    def no_space(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(model_store, "write_atomically", no_space)
        with pytest.raises(StoreUnavailableError, match="No space left on device"):
            put(models, seed=5)
    assert models.get("run", 0).hash == state.hash


def test_the_setting_chooses_where_models_live(tmp_path: Path) -> None:
    store = open_store(sqlite_url(tmp_path))
    assert isinstance(open_model_store("folder", tmp_path, store.database), FolderModelStore)
    assert isinstance(open_model_store("database", tmp_path, store.database), DatabaseModelStore)
    store.close()
