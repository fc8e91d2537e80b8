"""Model files that an admin uploads for a run: taken in pieces onto disk, limited, checked, and kept for a while.

A replica of the dashboard knows only what was uploaded to it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryDirectory
from typing import Annotated

import numpy as np
import structlog
from fastapi import APIRouter, Query, Request
from pydantic import Field

from fedrep.errors import InvalidInputError, NotFoundError
from fedrep.model_layout import ModelLayout, Vector
from fedrep.protocol.model_state import model_hash
from fedrep_dashboard import schema
from fedrep_dashboard.actions import Admin, Signing
from fedrep_dashboard.api import PROBLEMS
from fedrep_runtime.model_files import read_flat_vector, read_model

MOST_KEPT = 2
MEGABYTE = 1_000_000
FLAT = ".npy"

log = structlog.get_logger()
ROUTE = "/models"
router = APIRouter(prefix="/api/v1", tags=["actions"], responses=PROBLEMS)
ADDRESS = f"{router.prefix}{ROUTE}"


class TooLargeError(InvalidInputError):
    default_reason = "TOO_LARGE"


@dataclass(frozen=True)
class Upload:
    """`path` holds the checked parameters alone, as one flat vector; a .npy file comes without a layout."""

    token: str
    file: str
    path: Path
    parameters: int
    model_hash: bytes
    layout: ModelLayout | None

    def vector(self) -> Vector:
        return read_flat_vector(self.path, self.file)


class Uploads:
    def __init__(self, largest_mb: int) -> None:
        self.largest = largest_mb * MEGABYTE
        self._folder: TemporaryDirectory[str] | None = None
        self._kept: dict[str, Upload] = {}

    def close(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    @property
    def folder(self) -> Path:
        if self._folder is None:
            self._folder = TemporaryDirectory(prefix="fedrep-models-")
        return Path(self._folder.name)

    def get(self, token: str) -> Upload:
        found = self._kept.get(token)
        if found is None:
            raise NotFoundError(
                f"This dashboard no longer has that model file: it keeps {MOST_KEPT}, until it restarts. Choose it again."
            )
        return found

    async def take(self, name: str, claimed: int, parts: AsyncIterator[bytes]) -> Upload:
        self.require_fits(name, claimed)
        with NamedTemporaryFile(dir=self.folder, prefix="incoming-") as file:
            size = 0
            async for part in parts:
                size += len(part)
                self.require_fits(name, size)
                await asyncio.to_thread(file.write, part)
            file.flush()
            upload = await asyncio.to_thread(self._checked, Path(file.name), name)
        self._kept[upload.token] = upload
        for token in list(self._kept)[:-MOST_KEPT]:
            self._kept.pop(token).path.unlink(missing_ok=True)
        return upload

    def require_fits(self, name: str, size: int) -> None:
        if size > self.largest:
            raise TooLargeError(
                f"{name} is larger than the {self.largest // MEGABYTE:,} MB that this dashboard takes. Raise `largest_model_mb` "
                "in its settings, or create the run on the command line: fedrep run create --config run.toml --model FILE."
            )

    def _checked(self, path: Path, name: str) -> Upload:
        layout: ModelLayout | None = None
        if name.lower().endswith(FLAT):
            vector = read_flat_vector(path, name)
        else:
            layout, vector = read_model(path, name)
        token = secrets.token_hex(16)
        kept = self.folder / f"{token}{FLAT}"
        np.save(kept, vector)
        return Upload(token, name, kept, vector.size, model_hash(vector), layout)


class UploadedModel(schema.Shape):
    upload: str = Field(description="Names the file when a run is created from it.")
    file: str
    parameters: int
    tensors: int | None = Field(description="Named tensors in it; null for .npy, which has no names.")
    hash: str


@router.post(
    ROUTE,
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        }
    },
)
async def upload_model(
    request: Request,
    who: Admin,
    _key: Signing,
    name: Annotated[str, Query(min_length=1, max_length=200, description="The file's name; .npy is a flat vector.")],
) -> UploadedModel:
    """Take a model file, safetensors or a flat float32 vector as .npy, and say what is in it."""
    claimed = request.headers.get("content-length", "0")
    uploads: Uploads = request.app.state.uploads
    found = await uploads.take(name, int(claimed) if claimed.isdigit() else 0, request.stream())
    log.info("model uploaded", file=name, parameters=found.parameters, user=who.user)
    return UploadedModel(
        upload=found.token,
        file=found.file,
        parameters=found.parameters,
        tensors=len(found.layout.parameters) if found.layout is not None else None,
        hash=found.model_hash.hex(),
    )
