"""Model files: what is put comes back bit for bit, and damage never does. One suite for the folder and the database."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file
from sqlalchemy import delete, update

from fedrep.coding import encode_coordinates
from fedrep.errors import NotFoundError, StoreUnavailableError
from fedrep.protocol.model_state import SHA256_SIZE, ModelState, ServerModel
from fedrep_server.rounds import model_store
from fedrep_server.rounds.model_steps import StoredStep
from fedrep_server.rounds.model_store import (
    CHUNK,
    DatabaseModelStore,
    FolderModelStore,
    ModelStore,
    StoredModel,
    open_model_store,
)
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


def history(models: ModelStore, versions: int, size: int = 1000) -> list[ServerModel]:
    """A checkpoint of version 0 and a step to each later one; what every version is."""
    rng = np.random.default_rng(5)
    server = ServerModel.initial(rng.standard_normal(size).astype(np.float32))
    models.put("run", 0, server.state.vector, server.residual, server.state.hash, server.state.chain)
    known = [server]
    for _ in range(versions):
        indices = np.sort(rng.choice(size, size // 10, replace=False))
        coded = encode_coordinates(indices, size)
        server, descent = server.apply(indices, coded, rng.standard_normal(indices.size).astype(np.float32), 16)
        state = server.state
        models.put_step("run", StoredStep(state.version, descent, server.residual[indices], state.hash, state.chain))
        known.append(server)
    return known


def same(found: StoredModel, wanted: ServerModel) -> bool:
    vectors = (found.vector.tobytes(), found.residual.tobytes()) == (wanted.state.vector.tobytes(), wanted.residual.tobytes())
    return vectors and (found.version, found.hash, found.chain) == (wanted.state.version, wanted.state.hash, wanted.state.chain)


def test_every_version_is_reached_from_the_checkpoint_before_it_bit_for_bit(models: ModelStore) -> None:
    known = history(models, 5)
    third = known[3]
    models.put("run", 3, third.state.vector, third.residual, third.state.hash, third.state.chain)
    assert all(same(models.get("run", version), wanted) for version, wanted in enumerate(known))
    assert (models.versions("run"), models.steps("run")) == ([0, 3], [1, 2, 3, 4, 5])


def test_pruning_keeps_what_a_kept_version_is_reached_by(models: ModelStore) -> None:
    """An older one that was the best, and the newest; and the steps that silos may still ask for."""
    known = history(models, 6)
    fourth = known[4]
    models.put("run", 4, fourth.state.vector, fourth.residual, fourth.state.hash, fourth.state.chain)
    assert models.prune("run", {2, 6}, frozenset({3})) == []
    assert (models.versions("run"), models.steps("run")) == ([0, 4], [1, 2, 3, 5, 6])
    assert same(models.get("run", 2), known[2])
    assert same(models.get("run", 6), known[6])
    assert models.prune("run", {6}) == [0]
    assert (models.versions("run"), models.steps("run")) == ([4], [5, 6])
    with pytest.raises(NotFoundError, match="is not kept"):
        models.get("run", 2)


def test_a_version_behind_a_missing_step_is_not_found_and_a_lost_orphan_leads_nowhere(models: ModelStore) -> None:
    known = history(models, 3)
    models.delete("run", 2)
    assert same(models.get("run", 1), known[1])
    with pytest.raises(NotFoundError, match="is not kept"):
        models.get("run", 3)
    assert models.step("run", 2) is None
    assert models.step("nobody", 1) is None


def test_what_a_failed_commit_left_gives_way_to_the_version_that_was_committed(models: ModelStore) -> None:
    known = history(models, 2)
    other = ServerModel.initial(np.ones(1000, np.float32))
    models.put("run", 2, other.state.vector, other.residual, other.state.hash, other.state.chain)
    assert models.step("run", 2) is None, "it led to another model"
    step = models.step("run", 1)
    assert step is not None
    again = StoredStep(2, step.descent, step.residual, known[2].state.hash, known[2].state.chain)
    models.put_step("run", again)
    assert models.versions("run") == [0], "the checkpoint was of another model"


def test_a_step_that_was_changed_is_noticed(tmp_path: Path) -> None:
    models = FolderModelStore(tmp_path)
    history(models, 2)
    path = models.step_path("run", 1)
    whole = path.read_bytes()
    for where in (0, 60, len(whole) // 2, -1):
        data = bytearray(whole)
        data[where] ^= 1
        path.write_bytes(data)
        with pytest.raises(StoreUnavailableError, match="damaged"):
            models.get("run", 2)
    path.write_bytes(whole[: len(whole) // 2])  # half written is never under this name, but disks lie
    with pytest.raises(StoreUnavailableError, match="damaged"):
        models.get("run", 2)


def test_a_model_of_an_earlier_release_is_read_with_its_own_hashes(tmp_path: Path) -> None:
    vector, residual = np.arange(8, dtype=np.float32), np.ones(8, np.float32)
    state = ModelState.initial(vector, bytes(SHA256_SIZE))
    label = f"0/{state.hash.hex()}/{state.chain.hex()}/".encode()
    notes = {"version": "0", "hash": state.hash.hex(), "chain": state.chain.hex()}
    models = FolderModelStore(tmp_path)
    models.path("run", 0).parent.mkdir(parents=True)
    checksum = hashlib.sha256(label + residual.tobytes()).hexdigest()
    save_file({"model": vector, "residual": residual}, models.path("run", 0), notes | {"checksum": checksum})
    assert models.get("run", 0).hash == state.hash


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
        patch.setattr(model_store, "write_tensors", no_space)
        with pytest.raises(StoreUnavailableError, match="No space left on device"):
            put(models, seed=5)
    assert models.get("run", 0).hash == state.hash


def test_the_setting_chooses_where_models_live(tmp_path: Path) -> None:
    store = open_store(sqlite_url(tmp_path))
    assert isinstance(open_model_store("folder", tmp_path, store.database), FolderModelStore)
    assert isinstance(open_model_store("database", tmp_path, store.database), DatabaseModelStore)
    store.close()
