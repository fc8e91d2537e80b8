"""A backup that either database can read: rows as JSON lines and models as safetensors, in one tar with their hashes.

Rows are read in one snapshot, so a running server may be backed up. A restore goes into an empty place only; it builds the
schema of the backup's time, fills it, and then migrates, as an upgrade in place would have done. An interrupted restore
leaves a place that is not empty: clear it and restore again.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from numpy.typing import NDArray
from sqlalchemy import Connection, LargeBinary, MetaData, Table, insert, select

from fedrep.errors import NotFoundError, SettingsError, StoreUnavailableError
from fedrep_runtime.files import sync_folder
from fedrep_runtime.tensor_files import read_tensors, write_tensors
from fedrep_server.operations.leadership import leadership_of
from fedrep_server.rounds.model_steps import StoredStep, step_from, version_number
from fedrep_server.rounds.model_store import ModelStore, model_metadata, open_model_store, read_safetensors
from fedrep_server.store.database import Database
from fedrep_server.store.schema import current_revision, known_revisions, migrate
from fedrep_server.store.tables import BACKED_UP, models, runs

FORMAT = "fedrep-backup-1"
MANIFEST = "manifest.json"
MODELS_FOLDER = "models"
BATCH = 50  # rows in memory at once; a row of update_payloads can be a megabyte


@dataclass(frozen=True, slots=True)
class BackupReport:
    """What was written or read back, for the operator."""

    revision: str
    runs: int
    rows: int
    models: int


def backup(store_url: str, data_folder: Path, target: Path, models_kind: str = "folder") -> BackupReport:
    """The target appears only when it is whole. An existing file is not overwritten."""
    if target.exists():
        raise SettingsError(f"There is a file at {target} already. Give another name, or move it away.")
    with _opened(store_url) as database:
        revision = current_revision(database)
        if revision is None or revision != known_revisions()[-1]:
            raise SettingsError(
                f"The database {database.shown} does not have the schema of this version. "
                "Start the server of this version once, or back up with the version that wrote it."
            )
        store = open_model_store(models_kind, data_folder / MODELS_FOLDER, database)
        part = target.with_name(f".{target.name}.part")
        try:
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                report = _write(file, database, store, revision, target.parent)
                file.flush()
                os.fsync(file.fileno())
            part.rename(target)
            sync_folder(target.parent)
        except OSError as error:
            raise StoreUnavailableError(f"The backup cannot be written to {target}: {error.strerror or error}.") from error
        finally:
            part.unlink(missing_ok=True)
        return report


@contextmanager
def _opened(store_url: str) -> Iterator[Database]:
    database = Database(store_url)
    try:
        yield database
    finally:
        database.close()


def _write(file: IO[bytes], database: Database, store: ModelStore, revision: str, scratch: Path) -> BackupReport:
    hashes: dict[str, str] = {}
    rows: dict[str, int] = {}
    with tarfile.open(fileobj=file, mode="w") as tar:
        with database.snapshot() as connection:
            for table in BACKED_UP:
                with tempfile.TemporaryFile(dir=scratch) as lines:
                    rows[table.name] = _dump(connection, table, lines)
                    _add(tar, f"rows/{table.name}.jsonl", lines, hashes)
            kept = connection.execute(select(models.c.run, models.c.version).where(models.c.kept).order_by(*models.primary_key))
            wanted = [(row.run, row.version) for row in kept]
            current = {(row.name, row.model_version) for row in connection.execute(select(runs))}
        names: dict[str, tuple[str, int]] = {}
        for run, version in wanted:
            try:
                model = store.get(run, version)
            except NotFoundError:
                if (run, version) not in current:
                    continue  # retention let it go since the snapshot was taken
                raise StoreUnavailableError(
                    f"Version {version} of {run!r} was replaced while the backup ran. Pause the run and try again."
                ) from None
            name = f"models/{len(names)}.safetensors"
            names[name] = (run, version)
            _add_tensors(tar, name, {"model": model.vector, "residual": model.residual}, model_metadata(model), scratch, hashes)
        steps: dict[str, tuple[str, int]] = {}
        for run in sorted({run for run, _ in wanted}):
            for version in store.steps(run):
                step = store.step(run, version)
                if step is not None:  # else retention was faster
                    name = f"steps/{len(steps)}.safetensors"
                    steps[name] = (run, version)
                    _add_tensors(tar, name, step.tensors(), {"step": json.dumps(step.notes())}, scratch, hashes)
        manifest = {"format": FORMAT, "revision": revision, "sha256": hashes, "models": names, "steps": steps}
        _add(tar, MANIFEST, io.BytesIO(json.dumps(manifest, indent=1).encode()), {})
    return BackupReport(revision, rows["runs"], sum(rows.values()), len(names))


def _dump(connection: Connection, table: Table, lines: IO[bytes]) -> int:
    count = 0
    query = select(table).order_by(*table.primary_key).execution_options(yield_per=BATCH)
    for row in connection.execute(query):
        plain = {
            name: base64.b64encode(value).decode() if isinstance(value, bytes) else value for name, value in row._mapping.items()
        }
        lines.write(json.dumps(plain).encode() + b"\n")
        count += 1
    return count


def _add(tar: tarfile.TarFile, name: str, file: IO[bytes], hashes: dict[str, str]) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = file.seek(0, os.SEEK_END), 0o600
    file.seek(0)
    hashes[name] = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
    file.seek(0)
    tar.addfile(entry, file)


def _add_tensors(
    tar: tarfile.TarFile,
    name: str,
    tensors: Mapping[str, NDArray[Any]],
    metadata: Mapping[str, str],
    scratch: Path,
    hashes: dict[str, str],
) -> None:
    with tempfile.TemporaryDirectory(prefix=".backup-", dir=scratch) as folder:
        path = Path(folder) / "tensors"
        write_tensors(path, tensors, metadata)
        with path.open("rb") as file:
            _add(tar, name, file, hashes)


def restore(source: Path, store_url: str, data_folder: Path, models_kind: str = "folder") -> BackupReport:
    """All hashes are checked before the first row is written. Database and model store may be of another kind than before."""
    try:
        data_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(prefix=".restore-", dir=data_folder) as scratch, _opened(store_url) as database:
            manifest = _unpack(source, Path(scratch))
            return _fill(database, data_folder, models_kind, manifest)
    except OSError as error:
        raise StoreUnavailableError(f"The backup {source} cannot be restored: {error.strerror or error}.") from error


def _unpack(source: Path, scratch: Path) -> dict[str, Any]:
    """Only names that the manifest lists are written, under names of our own making."""
    try:
        with tarfile.open(source, "r:") as tar:
            manifest: dict[str, Any] = json.loads(_member(tar, MANIFEST).read())
            if manifest["format"] != FORMAT or manifest["revision"] not in known_revisions():
                raise SettingsError(f"The backup {source} was written by a newer fedrep. Restore it with that version.")
            listed = {MANIFEST, *manifest["sha256"]}
            if set(tar.getnames()) != listed or {*manifest["models"], *manifest.get("steps", {})} - listed:
                raise _not_whole(source)
            for run, version in [*manifest["models"].values(), *manifest.get("steps", {}).values()]:
                if version_number(version) != version or not isinstance(run, str):
                    raise _not_whole(source)
            for number, (name, expected) in enumerate(sorted(manifest["sha256"].items())):
                path = scratch / str(number)
                with path.open("wb") as file:
                    shutil.copyfileobj(_member(tar, name), file)
                with path.open("rb") as written:
                    if hashlib.file_digest(written, "sha256").hexdigest() != expected:
                        raise _not_whole(source)
            manifest["paths"] = {name: scratch / str(number) for number, name in enumerate(sorted(manifest["sha256"]))}
            return manifest
    except FileNotFoundError:
        raise SettingsError(f"There is no backup at {source}.") from None
    except (tarfile.TarError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise _not_whole(source) from error


def _not_whole(source: Path) -> SettingsError:
    return SettingsError(f"The file {source} is not a whole fedrep backup: a part is missing or changed. Take another one.")


def _member(tar: tarfile.TarFile, name: str) -> IO[bytes]:
    found = tar.extractfile(name)
    if found is None:
        raise KeyError(name)
    return found


def _fill(database: Database, data_folder: Path, models_kind: str, manifest: dict[str, Any]) -> BackupReport:
    present = current_revision(database)
    if present not in (None, manifest["revision"]):
        raise SettingsError(f"The database {database.shown} has tables of another version. Give an empty one.")
    migrate(database, manifest["revision"])
    lead = leadership_of(database, data_folder, "restore", manifest["revision"])
    try:
        if not lead.acquire(0):
            raise SettingsError(f"A server is using {database.shown}. Stop it before restoring.")
        rows = _fill_rows(database, manifest["paths"])
        migrate(database)
        store = open_model_store(models_kind, data_folder / MODELS_FOLDER, database)
        for name, (run, version) in manifest["models"].items():
            model = read_safetensors(manifest["paths"][name], version)
            store.put(run, version, model.vector, model.residual, model.hash, model.chain)
        for name, (run, version) in manifest.get("steps", {}).items():
            store.put_step(run, _step(manifest["paths"][name], name, version))
    finally:
        lead.release()
    return BackupReport(manifest["revision"], rows.get("runs", 0), sum(rows.values()), len(manifest["models"]))


def _step(path: Path, name: str, version: int) -> StoredStep:
    try:
        metadata, tensors = read_tensors(path)
        step = step_from(json.loads(metadata["step"]), tensors)
        if step.version != version:
            raise ValueError(f"it leads to version {step.version}")
        return step
    except (KeyError, ValueError, TypeError) as error:
        raise SettingsError(
            f"The step {name} of the backup, to version {version} of a model, cannot be used: {error}. Take another backup."
        ) from error


def _fill_rows(database: Database, paths: dict[str, Path]) -> dict[str, int]:
    """Into the tables as that revision has them, which need not be the ones this code queries."""
    rows: dict[str, int] = {}
    with database.write() as connection:
        then = MetaData()
        then.reflect(connection)
        if connection.execute(select(then.tables["runs"].c.name).limit(1)).first() is not None:
            raise SettingsError(f"The database {database.shown} holds runs already. Give an empty one.")
        for table in then.sorted_tables:
            path = paths.get(f"rows/{table.name}.jsonl")
            if path is None:
                continue
            binary = [column.name for column in table.columns if isinstance(column.type, LargeBinary)]
            for batch in _batches(path):
                connection.execute(insert(table), [_decoded(line, binary) for line in batch])
                rows[table.name] = rows.get(table.name, 0) + len(batch)
    return rows


def _batches(path: Path) -> Iterator[list[bytes]]:
    with path.open("rb") as lines:
        while batch := [line for _, line in zip(range(BATCH), lines, strict=False)]:
            yield batch


def _decoded(line: bytes, binary: list[str]) -> dict[str, Any]:
    row: dict[str, Any] = json.loads(line)
    return {**row, **{name: base64.b64decode(row[name]) for name in binary if row.get(name) is not None}}
