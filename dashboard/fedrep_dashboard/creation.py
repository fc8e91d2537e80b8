"""Create a run from the form: the settings are checked here and by the server, then signed with the dashboard's own key.

The initial model is a kept model of a run that exists; a model from a file is for the command line, which can read it.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import structlog
from fastapi import APIRouter, Request
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from fedrep.aggregators import AGGREGATORS
from fedrep.errors import DecodeError, NotFoundError
from fedrep.protocol.model_state import model_hash
from fedrep.protocol.preflight import preflight
from fedrep.wire.chunks import Assembler
from fedrep_dashboard import schema
from fedrep_dashboard.actions import Admin
from fedrep_dashboard.api import PROBLEMS, AllFeeds, Viewer
from fedrep_dashboard.auth import NotAllowedError
from fedrep_dashboard.observer import Observer
from fedrep_identity.certificates import Credentials
from fedrep_runtime.observer_client import create_run_requests
from fedrep_runtime.run_config import RunConfig, sign_run

LARGEST_MODEL = 2 * 2**30
Vector = NDArray[np.float32]

log = structlog.get_logger()
router = APIRouter(prefix="/api/v1", tags=["actions"], responses=PROBLEMS)


class ModelSource(BaseModel):
    run: schema.Name
    version: int = Field(ge=0, le=2**53 - 1, description="A kept version of that run's model.")


class NewRun(BaseModel):
    config: RunConfig
    model: ModelSource
    dry_run: bool = Field(default=False, description="Check only.")


class Created(schema.Shape):
    created: bool
    hash: str
    problems: list[str] = Field(description="What the preflight found; nothing is created unless this is empty.")


class Choices(schema.Shape):
    aggregators: list[str]


@router.get("/choices")
def get_choices(_who: Viewer) -> Choices:
    """What a run's settings may name."""
    return Choices(aggregators=sorted(AGGREGATORS))


@router.post("/runs")
async def create_run(request: Request, body: NewRun, who: Admin, feeds: AllFeeds) -> Created:
    """Check a run's settings, all problems at once, and create it if there are none."""
    credentials: Credentials | None = request.app.state.connection.credentials
    if credentials is None:
        raise NotAllowedError("This dashboard has no admin key to sign runs with. Use fedrep run create instead.")
    source = await feeds.observer.run(body.model.run)
    kept = next((model for model in source.models if model.version == body.model.version), None)
    if kept is None:
        raise NotFoundError(f"Run {body.model.run} keeps no model version {body.model.version}; choose one of the kept ones.")
    template = source.manifest.manifest
    manifest = body.config.manifest(template.parameters, template.layout_hash, kept.model_hash)
    problems = preflight(manifest)
    vector = None
    if not problems and not body.dry_run:
        vector = flat_vector(await _downloaded(feeds.observer, body.model))
        manifest = body.config.manifest(vector.size, template.layout_hash, model_hash(vector))
    if not problems:
        options = body.config.options(source.options.layout)
        signed = sign_run(manifest, credentials.identity.name, credentials.chain, credentials.signing_key)
        answer = await feeds.observer.create(create_run_requests(signed, options, vector))
        problems = list(answer.problems)
    created = not problems and not body.dry_run
    if created:
        log.info("run created", run=manifest.name, user=who.user)
    return Created(created=created, hash=manifest.digest().hex(), problems=problems)


async def _downloaded(observer: Observer, source: ModelSource) -> bytes:
    assembler = None
    async for part in observer.download(source.run, source.version):
        if assembler is None:
            assembler = Assembler(part.header.size, part.header.sha256, LARGEST_MODEL, "the model file")
        else:
            assembler.add(part.chunk)
    if assembler is None:
        raise NotFoundError(f"The server sent no model for run {source.run}, version {source.version}.")
    return assembler.finish()


def flat_vector(file: bytes) -> Vector:
    """The parameters of a safetensors file in the federation's order (its metadata says which)."""
    try:
        size = int.from_bytes(file[:8], "little")
        header: dict[str, Any] = json.loads(file[8 : 8 + size])
        metadata = header.pop("__metadata__", {})
        names = json.loads(metadata["fedrep.order"]) if "fedrep.order" in metadata else sorted(header)
        if sorted(names) != sorted(header) or any(header[name]["dtype"] != "F32" for name in names):
            raise ValueError
        data = memoryview(file)[8 + size :]
        spans = [header[name]["data_offsets"] for name in names]
        return np.concatenate([np.frombuffer(data[first:last], dtype="<f4") for first, last in spans]).astype(np.float32)
    except (ValueError, KeyError, TypeError, IndexError):
        raise DecodeError("The server's model file is not safetensors with float32 parameters only.") from None
