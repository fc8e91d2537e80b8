"""The model that a new run starts from: a kept one of a run that exists, or an uploaded file."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Annotated

from pydantic import BaseModel, Field, model_validator

from fedrep.errors import InvalidInputError, NotFoundError
from fedrep.model_layout import Vector
from fedrep.wire.v1 import observer_pb2 as pb
from fedrep_dashboard import schema
from fedrep_dashboard.observer import Observer
from fedrep_dashboard.uploads import Upload, Uploads
from fedrep_runtime.model_files import read_model

LARGEST_KEPT = 2 * 2**30


class ModelSource(BaseModel):
    run: schema.Name | None = Field(default=None, description="Whose kept model is taken, or whose layout an uploaded .npy has.")
    version: int | None = Field(default=None, ge=0, le=2**53 - 1, description="A kept version of that run's model.")
    upload: Annotated[str, Field(pattern="^[0-9a-f]{32}$")] | None = Field(default=None, description="An uploaded file.")

    @model_validator(mode="after")
    def _one_of_both(self) -> ModelSource:
        if (self.upload is None) == (self.run is None or self.version is None):
            raise ValueError("name either a run and a version, or an upload")
        return self


@dataclass(frozen=True)
class StartingModel:
    """Known before the parameters are fetched, which a rehearsal does without."""

    parameters: int
    layout: str
    layout_hash: bytes
    model_hash: bytes
    fetch: Callable[[], Awaitable[Vector]]


async def starting_model(source: ModelSource, observer: Observer, uploads: Uploads) -> StartingModel:
    run = await observer.run(source.run) if source.run is not None else None
    if source.upload is not None:
        return _uploaded(uploads.get(source.upload), run)
    assert run is not None  # a source names one of both
    assert source.version is not None
    return _kept(run, source.version, observer, uploads)


def _uploaded(upload: Upload, run: pb.GetRunResponse | None) -> StartingModel:
    async def fetch() -> Vector:
        return await asyncio.to_thread(upload.vector)

    if upload.layout is not None:
        layout = upload.layout
        return StartingModel(layout.size, layout.described, bytes.fromhex(layout.digest), upload.model_hash, fetch)
    if run is None:
        raise InvalidInputError(
            f"{upload.file} has no names and shapes, which silos compare with their model. Choose the run whose layout it has, "
            "or upload the safetensors file that fedrep run model writes."
        )
    template = run.manifest.manifest
    if template.parameters != upload.parameters:
        raise InvalidInputError(
            f"{upload.file} has {upload.parameters:,} parameters, the model of run {run.summary.name} {template.parameters:,}: "
            "they do not have the same layout."
        )
    return StartingModel(upload.parameters, run.options.layout, template.layout_hash, upload.model_hash, fetch)


def _kept(run: pb.GetRunResponse, version: int, observer: Observer, uploads: Uploads) -> StartingModel:
    name = run.summary.name
    kept = next((model for model in run.models if model.version == version), None)
    if kept is None:
        raise NotFoundError(f"Run {name} keeps no model version {version}; choose one of the kept ones.")

    async def fetch() -> Vector:
        called = f"version {version} of run {name}"
        with NamedTemporaryFile(dir=uploads.folder, prefix="fetched-") as file:
            size = 0
            async for part in observer.download(name, version):
                size += len(part.chunk)
                if size > LARGEST_KEPT:
                    raise InvalidInputError(
                        f"The file of {called} is larger than {LARGEST_KEPT:,} bytes. Create the run on the command line, from "
                        "the file that fedrep run export writes."
                    )
                await asyncio.to_thread(file.write, part.chunk)
            file.flush()
            return (await asyncio.to_thread(read_model, Path(file.name), called))[1]

    template = run.manifest.manifest
    return StartingModel(template.parameters, run.options.layout, template.layout_hash, kept.model_hash, fetch)
