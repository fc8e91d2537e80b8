"""Inputs that are kept: one file each, named by its hash, in a folder for each target."""

from __future__ import annotations

import hashlib
from pathlib import Path

FOLDER = Path(__file__).parent / "corpus"
LARGEST = 4096


def kept(target: str) -> list[Path]:
    return sorted((FOLDER / target).glob("*")) if (FOLDER / target).is_dir() else []


def add(target: str, data: bytes) -> Path:
    path = FOLDER / target / hashlib.sha256(data).hexdigest()[:16]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path
