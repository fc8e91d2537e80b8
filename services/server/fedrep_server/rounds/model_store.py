"""Where model files live: a folder, or rows of the database when several servers share it. An object store could be a third.

A version is a whole file, a checkpoint, or the steps that lead to it from the last one (`model_steps`). Both are put before the
transaction of their round. If the server dies in between, the file is an orphan that no row refers to, and `prune` removes it;
the other order could leave a row without a model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray
from sqlalchemy import Connection, Select, delete, insert, select

from fedrep.errors import NotFoundError, StoreUnavailableError
from fedrep.protocol.model_state import BLAKE3, SHA256_SIZE, model_hash
from fedrep_runtime.files import sync_folder
from fedrep_runtime.tensor_files import read_metadata, read_tensors, write_tensors
from fedrep_server.rounds.model_steps import TENSORS, StoredStep, needed_for, step_from, version_number, way_to
from fedrep_server.store.database import Database
from fedrep_server.store.tables import model_chunks, model_files
from fedrep_server.store.values import whole

SUFFIX = ".safetensors"
STEP_SUFFIX = ".step"
STEP = "step"
CHUNK = 1 << 20
MEND = "Restore it from a backup and start the server again, or roll the run back to an intact version (fedrep run rollback)."
UNUSABLE = frozenset({"MODEL_DAMAGED", "MODEL_UNREADABLE", "UNKNOWN_MODEL"})  # reasons that concern one model, not the database

Vector = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class StoredModel:
    """A model version with the server's downlink residual, the part of past updates that 16 bits could not carry."""

    version: int
    vector: Vector
    residual: Vector
    hash: bytes
    chain: bytes


class ModelStore(Protocol):
    def put(self, run: str, version: int, vector: Vector, residual: Vector, hash: bytes, chain: bytes) -> int:
        """Durable when it returns; an older put of the same version is replaced. Returns the size in bytes."""
        ...

    def put_step(self, run: str, step: StoredStep) -> None:
        """Durable when it returns, like `put`."""
        ...

    def get(self, run: str, version: int) -> StoredModel:
        """Checked against its hash; NotFoundError if there is none."""
        ...

    def step(self, run: str, version: int) -> StoredStep | None: ...
    def versions(self, run: str) -> list[int]:
        """Of the checkpoints."""
        ...

    def steps(self, run: str) -> list[int]: ...
    def delete(self, run: str, version: int) -> None: ...
    def prune(self, run: str, keep: AbstractSet[int], steps: AbstractSet[int] = frozenset()) -> list[int]:
        """Delete all that no version in `keep` needs, except for `steps`; returns the versions of deleted checkpoints."""
        ...


def missing(run: str, version: int) -> NotFoundError:
    return NotFoundError(f"Version {version} of the model of {run!r} is not kept on this server.", reason="UNKNOWN_MODEL")


def damaged(where: str) -> StoreUnavailableError:
    return StoreUnavailableError(
        f"The stored model {where} is damaged: its bytes do not have its hash. {MEND}", reason="MODEL_DAMAGED"
    )


def unreadable(path: Path, error: OSError) -> StoreUnavailableError:
    return StoreUnavailableError(f"The model {path} cannot be read: {error.strerror or error}.", reason="MODEL_UNREADABLE")


def another_model(run: str, version: int) -> StoreUnavailableError:
    return StoreUnavailableError(
        f"The stored model of version {version} of {run!r} is not the one that the database names. {MEND}",
        reason="MODEL_DAMAGED",
    )


def checksum(model: StoredModel, like: bytes = BLAKE3) -> bytes:
    """Over all that the model's own hash does not cover. 32 bytes are SHA-256, by earlier releases."""
    label = f"{model.version}/{model.hash.hex()}/{model.chain.hex()}/".encode()
    residual = little_endian(model.residual)
    if len(like) == SHA256_SIZE:
        made = hashlib.sha256(label)
        made.update(residual)
        return made.digest()
    tree = blake3(label, max_threads=blake3.AUTO)
    tree.update(residual)
    return BLAKE3 + tree.digest()


def little_endian(vector: Vector) -> memoryview:
    return np.ascontiguousarray(vector, dtype="<f4").view(np.uint8).data


def replayed(run: str, version: int, store: ModelStore) -> StoredModel:
    """From the checkpoint before it."""
    way = way_to(version, store.versions(run), frozenset(store.steps(run)))
    if way is None:
        raise missing(run, version)
    start, steps = way
    model = store.get(run, start)
    step = None
    for number in steps:
        step = store.step(run, number)
        if step is None:
            raise missing(run, version)
        step.apply_to(model.vector, model.residual)
    if step is None:
        return model
    found = StoredModel(version, model.vector, model.residual, step.hash, step.chain)
    if model_hash(found.vector, found.hash) != found.hash:
        raise damaged(f"version {version} of {run!r}, from version {start} and the steps since,")
    return found


class FolderModelStore:
    """One safetensors file per version: `<folder>/<run>/<version>.safetensors`, tensors `model` and `residual`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, run: str, version: int) -> Path:
        return self._file(run, version, SUFFIX)

    def put(self, run: str, version: int, vector: Vector, residual: Vector, hash: bytes, chain: bytes) -> int:
        path = self.path(run, version)
        model = StoredModel(version, vector, residual, hash, chain)
        with _explained(path):
            self._make_folders(path.parent)
            size = write_tensors(path, {"model": vector, "residual": residual}, model_metadata(model))
            self._drop_if_other(self.step_path(run, version), hash)
        return size

    def put_step(self, run: str, step: StoredStep) -> None:
        path = self.step_path(run, step.version)
        with _explained(path):
            self._make_folders(path.parent)
            write_tensors(path, step.tensors(), {"step": json.dumps(step.notes())})
            self._drop_if_other(self.path(run, step.version), step.hash)

    def _make_folders(self, run: Path) -> None:
        for folder in (self._folder, run):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def _drop_if_other(self, path: Path, hash: bytes) -> None:
        """A checkpoint and a step may lead to one version. What a commit that failed left of another model must not."""
        if not path.exists():
            return
        try:
            metadata = read_metadata(path)
            found = json.loads(metadata["step"])["hash"] if "step" in metadata else metadata["hash"]
        except (ValueError, KeyError):
            found = ""
        if found != hash.hex():
            path.unlink()
            sync_folder(path.parent)

    def get(self, run: str, version: int) -> StoredModel:
        path = self.path(run, version)
        if not path.exists():
            return replayed(run, version, self)
        return read_safetensors(path, version)

    def step(self, run: str, version: int) -> StoredStep | None:
        path = self.step_path(run, version)
        try:
            metadata, tensors = read_tensors(path)
            return step_from(json.loads(metadata["step"]), tensors)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise unreadable(path, error) from error
        except (ValueError, KeyError, TypeError) as error:
            raise damaged(str(path)) from error

    def versions(self, run: str) -> list[int]:
        return self._numbers(run, SUFFIX)

    def steps(self, run: str) -> list[int]:
        return self._numbers(run, STEP_SUFFIX)

    def _numbers(self, run: str, suffix: str) -> list[int]:
        stems = (path.name.removesuffix(suffix) for path in self._run_folder(run).glob(f"*{suffix}"))
        return sorted(int(stem) for stem in stems if stem.isdecimal())

    def step_path(self, run: str, version: int) -> Path:
        return self._file(run, version, STEP_SUFFIX)

    def _file(self, run: str, version: int, suffix: str) -> Path:
        """SQLite keeps text in a column of numbers: a row of a backup could name any file."""
        try:
            return self._run_folder(run) / f"{version_number(version)}{suffix}"
        except (TypeError, ValueError) as error:
            raise StoreUnavailableError(
                f"{version!r} is no version of the model of {run!r}: versions are whole numbers from 0 on. "
                "The database was changed; restore it from a backup that you trust.",
                reason="MODEL_DAMAGED",
            ) from error

    def delete(self, run: str, version: int) -> None:
        self._unlink(self._run_folder(run), [self.path(run, version), self.step_path(run, version)])

    def _unlink(self, folder: Path, paths: list[Path]) -> None:
        try:
            for path in paths:
                path.unlink(missing_ok=True)
            if paths and folder.exists():
                sync_folder(folder)
        except OSError as error:
            raise StoreUnavailableError(f"A model in {folder} cannot be deleted: {error.strerror}.") from error

    def prune(self, run: str, keep: AbstractSet[int], steps: AbstractSet[int] = frozenset()) -> list[int]:
        checkpoints, taken = frozenset(self.versions(run)), frozenset(self.steps(run))
        needed, needed_steps = needed_for(keep, checkpoints, taken)
        gone = sorted(checkpoints - needed)
        paths = [self.path(run, version) for version in gone]
        paths += [self.step_path(run, version) for version in taken - needed_steps - steps]
        self._unlink(self._run_folder(run), paths)
        # A server killed while writing leaves its temporary file; only the one writer of this folder calls prune.
        for part in self._run_folder(run).glob(".*.part"):
            part.unlink(missing_ok=True)
        return gone

    def _run_folder(self, run: str) -> Path:
        """A name such as `..` or `a/b` must not lead out of the folder."""
        return self._folder / quote(run, safe=" ").replace(".", "%2E")


class DatabaseModelStore:
    """Rows instead of files, so that every replica reaches them. Writes ask the database's fence, as all writes do."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put(self, run: str, version: int, vector: Vector, residual: Vector, hash: bytes, chain: bytes) -> int:
        tensors = {"model": little_endian(vector), "residual": little_endian(residual)}
        with self._database.write() as connection:
            self._remove(connection, run, [version])
            values = {"hash": hash, "chain": chain, "checksum": checksum(StoredModel(version, vector, residual, hash, chain))}
            connection.execute(insert(model_files).values(run=run, version=version, **values))
            self._insert(connection, run, version, tensors)
            step = self._step_notes(connection, run, version)
            if step is not None and step["hash"] != hash.hex():
                self._remove_steps(connection, run, [version])
        return sum(map(len, tensors.values()))

    def put_step(self, run: str, step: StoredStep) -> None:
        tensors: dict[str, bytes | memoryview] = {STEP: json.dumps(step.notes()).encode()}
        tensors |= {f"{STEP}.{name}": tensor.view(np.uint8).data for name, tensor in step.tensors().items()}
        with self._database.write() as connection:
            self._remove_steps(connection, run, [step.version])
            self._insert(connection, run, step.version, tensors)
            other = connection.execute(self._file(run, step.version)).one_or_none()
            if other is not None and other.hash != step.hash:
                self._remove(connection, run, [step.version])

    def _insert(self, connection: Connection, run: str, version: int, tensors: Mapping[str, bytes | memoryview]) -> None:
        for tensor, data in tensors.items():
            for number, start in enumerate(range(0, len(data), CHUNK)):
                place = {"run": run, "version": version, "tensor": tensor, "number": number}
                connection.execute(insert(model_chunks).values(data=bytes(data[start : start + CHUNK]), **place))

    def _file(self, run: str, version: int) -> Select[Any]:
        return select(model_files).where((model_files.c.run == run) & (model_files.c.version == whole(version)))

    def get(self, run: str, version: int) -> StoredModel:
        with self._database.read() as connection:
            file = connection.execute(self._file(run, version)).one_or_none()
            tensors = self._tensors(connection, run, version, ("model", "residual")) if file is not None else {}
        if file is None:
            return replayed(run, version, self)
        where = f"version {version} of {run!r} in the database"
        try:
            vector, residual = (np.frombuffer(tensors.pop(name, bytearray()), "<f4") for name in ("model", "residual"))
        except ValueError as error:
            raise damaged(where) from error
        return verified(StoredModel(version, vector, residual, file.hash, file.chain), version, file.checksum, where)

    def _tensors(self, connection: Connection, run: str, version: int, names: Sequence[str]) -> dict[str, bytearray]:
        found: dict[str, bytearray] = {}
        chunks = connection.execute(
            select(model_chunks.c.tensor, model_chunks.c.data)
            .where(model_chunks.c.run == run, model_chunks.c.version == whole(version), model_chunks.c.tensor.in_(names))
            .order_by(model_chunks.c.tensor, model_chunks.c.number)
            .execution_options(yield_per=8)
        )
        for row in chunks:
            found.setdefault(row.tensor, bytearray()).extend(row.data)
        return found

    def _step_notes(self, connection: Connection, run: str, version: int) -> dict[str, Any] | None:
        found = self._tensors(connection, run, version, (STEP,)).get(STEP)
        return dict(json.loads(found)) if found is not None else None

    def step(self, run: str, version: int) -> StoredStep | None:
        names = [f"{STEP}.{name}" for name in TENSORS]
        try:
            with self._database.read() as connection:
                notes = self._step_notes(connection, run, version)
                if notes is None:
                    return None
                found = self._tensors(connection, run, version, names)
            arrays = {name: np.frombuffer(found.get(f"{STEP}.{name}", b""), np.uint8) for name in TENSORS}
            return step_from(notes, arrays)
        except (ValueError, KeyError, TypeError) as error:
            raise damaged(f"version {version} of {run!r} in the database") from error

    def steps(self, run: str) -> list[int]:
        with self._database.read() as connection:
            return self._step_versions(connection, run)

    def _step_versions(self, connection: Connection, run: str) -> list[int]:
        query = select(model_chunks.c.version).where(model_chunks.c.run == run, model_chunks.c.tensor == STEP)
        return sorted(connection.execute(query).scalars())

    def versions(self, run: str) -> list[int]:
        with self._database.read() as connection:
            found = connection.execute(select(model_files.c.version).where(model_files.c.run == run)).scalars()
            return sorted(found)

    def delete(self, run: str, version: int) -> None:
        with self._database.write() as connection:
            self._remove(connection, run, [version])
            self._remove_steps(connection, run, [version])

    def prune(self, run: str, keep: AbstractSet[int], steps: AbstractSet[int] = frozenset()) -> list[int]:
        with self._database.write() as connection:
            found = connection.execute(select(model_files.c.version).where(model_files.c.run == run)).scalars()
            checkpoints, taken = frozenset(found), frozenset(self._step_versions(connection, run))
            needed, needed_steps = needed_for(keep, checkpoints, taken)
            gone = sorted(checkpoints - needed)
            self._remove(connection, run, gone)
            self._remove_steps(connection, run, sorted(taken - needed_steps - steps))
        return gone

    def _remove(self, connection: Connection, run: str, versions: list[int]) -> None:
        """Of the checkpoints; a step to the same version stays."""
        these = model_chunks.c.tensor.in_(("model", "residual"))
        connection.execute(delete(model_chunks).where(model_chunks.c.run == run, model_chunks.c.version.in_(versions), these))
        connection.execute(delete(model_files).where(model_files.c.run == run, model_files.c.version.in_(versions)))

    def _remove_steps(self, connection: Connection, run: str, versions: list[int]) -> None:
        these = model_chunks.c.tensor.in_((STEP, *(f"{STEP}.{name}" for name in TENSORS)))
        connection.execute(delete(model_chunks).where(model_chunks.c.run == run, model_chunks.c.version.in_(versions), these))


def open_model_store(kind: str, folder: Path, database: Database) -> ModelStore:
    """`kind` is the setting `models`: folder or database."""
    return DatabaseModelStore(database) if kind == "database" else FolderModelStore(folder)


def model_metadata(model: StoredModel) -> dict[str, str]:
    return {
        "version": str(model.version),
        "hash": model.hash.hex(),
        "chain": model.chain.hex(),
        "checksum": checksum(model).hex(),
    }


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreUnavailableError(f"The model cannot be written to {path}: {error.strerror}.") from error


def read_safetensors(path: Path, version: int) -> StoredModel:
    try:
        metadata, tensors = read_tensors(path)
        vector, residual = tensors["model"], tensors["residual"]
        model = StoredModel(
            int(metadata["version"]), vector, residual, bytes.fromhex(metadata["hash"]), bytes.fromhex(metadata["chain"])
        )
        expected = bytes.fromhex(metadata["checksum"])
    except OSError as error:
        raise unreadable(path, error) from error
    except (KeyError, ValueError, TypeError) as error:
        raise damaged(str(path)) from error
    return verified(model, version, expected, str(path))


def verified(model: StoredModel, version: int, expected: bytes, where: str) -> StoredModel:
    intact = (
        model.version == version
        and model.vector.dtype == model.residual.dtype == np.float32
        and model.vector.shape == model.residual.shape
        and model_hash(model.vector, model.hash) == model.hash
        and checksum(model, expected) == expected
    )
    if not intact:
        raise damaged(where)
    return model
