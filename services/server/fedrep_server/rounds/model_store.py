"""Where model files live: a folder, or rows of the database when several servers share it. An object store could be a third.

A version is put before the transaction of its round. If the server dies in between, the file is an orphan that no row
refers to, and `prune` removes it; the other order could leave a row without a model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from sqlalchemy import Connection, delete, insert, select

from fedrep.errors import NotFoundError, StoreUnavailableError
from fedrep.protocol.model_state import model_hash
from fedrep_runtime.files import sync_folder, write_atomically
from fedrep_server.store.database import Database
from fedrep_server.store.tables import model_chunks, model_files
from fedrep_server.store.values import whole

SUFFIX = ".safetensors"
CHUNK = 1 << 20

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

    def get(self, run: str, version: int) -> StoredModel:
        """Checked against its hash; NotFoundError if there is none."""
        ...

    def versions(self, run: str) -> list[int]: ...
    def delete(self, run: str, version: int) -> None: ...
    def prune(self, run: str, keep: AbstractSet[int]) -> list[int]:
        """Delete every version that is not in `keep`; returns the deleted ones."""
        ...


def missing(run: str, version: int) -> NotFoundError:
    return NotFoundError(f"Version {version} of the model of {run!r} is not kept on this server.", reason="UNKNOWN_MODEL")


def damaged(where: str) -> StoreUnavailableError:
    return StoreUnavailableError(
        f"The stored model {where} is damaged: its bytes do not have its hash. Restore it from a backup or roll back.",
        reason="MODEL_DAMAGED",
    )


def checksum(model: StoredModel) -> bytes:
    """Over all that the model's own hash does not cover."""
    label = f"{model.version}/{model.hash.hex()}/{model.chain.hex()}/"
    return hashlib.sha256(label.encode() + little_endian(model.residual)).digest()


def little_endian(vector: Vector) -> bytes:
    return np.ascontiguousarray(vector, dtype="<f4").tobytes()


class FolderModelStore:
    """One safetensors file per version: `<folder>/<run>/<version>.safetensors`, tensors `model` and `residual`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, run: str, version: int) -> Path:
        return self._run_folder(run) / f"{version}{SUFFIX}"

    def put(self, run: str, version: int, vector: Vector, residual: Vector, hash: bytes, chain: bytes) -> int:
        data = to_safetensors(StoredModel(version, vector, residual, hash, chain))
        path = self.path(run, version)
        try:
            write_atomically(path, data)
        except OSError as error:
            raise StoreUnavailableError(f"The model cannot be written to {path}: {error.strerror}.") from error
        return len(data)

    def get(self, run: str, version: int) -> StoredModel:
        path = self.path(run, version)
        if not path.exists():
            raise missing(run, version)
        return read_safetensors(path, version)

    def versions(self, run: str) -> list[int]:
        stems = (path.name.removesuffix(SUFFIX) for path in self._run_folder(run).glob(f"*{SUFFIX}"))
        return sorted(int(stem) for stem in stems if stem.isdecimal())

    def delete(self, run: str, version: int) -> None:
        path = self.path(run, version)
        try:
            path.unlink(missing_ok=True)
            if path.parent.exists():
                sync_folder(path.parent)
        except OSError as error:
            raise StoreUnavailableError(f"The model {path} cannot be deleted: {error.strerror}.") from error

    def prune(self, run: str, keep: AbstractSet[int]) -> list[int]:
        gone = [version for version in self.versions(run) if version not in keep]
        for version in gone:
            self.delete(run, version)
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
            for tensor, data in tensors.items():
                for number, start in enumerate(range(0, len(data), CHUNK)):
                    row = {
                        "run": run,
                        "version": version,
                        "tensor": tensor,
                        "number": number,
                        "data": data[start : start + CHUNK],
                    }
                    connection.execute(insert(model_chunks).values(row))
        return sum(map(len, tensors.values()))

    def get(self, run: str, version: int) -> StoredModel:
        with self._database.read() as connection:
            wanted = (model_files.c.run == run) & (model_files.c.version == whole(version))
            file = connection.execute(select(model_files).where(wanted)).one_or_none()
            if file is None:
                raise missing(run, version)
            chunks = connection.execute(
                select(model_chunks.c.tensor, model_chunks.c.data)
                .where(model_chunks.c.run == run, model_chunks.c.version == version)
                .order_by(model_chunks.c.tensor, model_chunks.c.number)
            ).all()
        where = f"version {version} of {run!r} in the database"
        try:
            vector, residual = (
                np.frombuffer(b"".join(row.data for row in chunks if row.tensor == tensor), dtype="<f4").astype(np.float32)
                for tensor in ("model", "residual")
            )
        except ValueError as error:
            raise damaged(where) from error
        return verified(StoredModel(version, vector, residual, file.hash, file.chain), version, file.checksum, where)

    def versions(self, run: str) -> list[int]:
        with self._database.read() as connection:
            found = connection.execute(select(model_files.c.version).where(model_files.c.run == run)).scalars()
            return sorted(found)

    def delete(self, run: str, version: int) -> None:
        with self._database.write() as connection:
            self._remove(connection, run, [version])

    def prune(self, run: str, keep: AbstractSet[int]) -> list[int]:
        with self._database.write() as connection:
            found = connection.execute(select(model_files.c.version).where(model_files.c.run == run)).scalars()
            gone = sorted(version for version in found if version not in keep)
            self._remove(connection, run, gone)
        return gone

    def _remove(self, connection: Connection, run: str, versions: list[int]) -> None:
        for table in (model_chunks, model_files):
            connection.execute(delete(table).where(table.c.run == run, table.c.version.in_(versions)))


def open_model_store(kind: str, folder: Path, database: Database) -> ModelStore:
    """`kind` is the setting `models`: folder or database."""
    return DatabaseModelStore(database) if kind == "database" else FolderModelStore(folder)


def to_safetensors(model: StoredModel) -> bytes:
    tensors = {
        "model": np.ascontiguousarray(model.vector, dtype=np.float32),
        "residual": np.ascontiguousarray(model.residual, dtype=np.float32),
    }
    metadata = {
        "version": str(model.version),
        "hash": model.hash.hex(),
        "chain": model.chain.hex(),
        "checksum": checksum(model).hex(),
    }
    return save(tensors, metadata)


def read_safetensors(path: Path, version: int) -> StoredModel:
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            vector, residual = file.get_tensor("model"), file.get_tensor("residual")
        model = StoredModel(
            int(metadata["version"]), vector, residual, bytes.fromhex(metadata["hash"]), bytes.fromhex(metadata["chain"])
        )
        expected = bytes.fromhex(metadata["checksum"])
    except OSError as error:
        raise StoreUnavailableError(f"The model {path} cannot be read: {error.strerror or error}.") from error
    except (SafetensorError, KeyError, ValueError) as error:
        raise damaged(str(path)) from error
    return verified(model, version, expected, str(path))


def verified(model: StoredModel, version: int, expected: bytes, where: str) -> StoredModel:
    intact = (
        model.version == version
        and model.vector.dtype == model.residual.dtype == np.float32
        and model.vector.shape == model.residual.shape
        and model_hash(model.vector) == model.hash
        and checksum(model) == expected
    )
    if not intact:
        raise damaged(where)
    return model
