"""Large vectors in safetensors files, written from where they lie and read into one place: no copy on the way.

`write_tensors` replaces a file as a whole. `overwrite_tensors` writes over what is there, which costs far less than a new file
does: whoever does so has another file that stays whole meanwhile, and notes elsewhere which of the two counts.
"""

from __future__ import annotations

import json
import math
import operator
import os
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fedrep.patched import Patched
from fedrep_runtime.files import replacing, sync_folder
from fedrep_runtime.json_text import parsed

Tensor = NDArray[Any] | Patched
_NAMES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}
_TYPES = {name: np.dtype(dtype).newbyteorder("<") for dtype, name in _NAMES.items()}
_SIZE = struct.Struct("<Q")
_ALIGNED = 8
_PIECE = 1 << 24
_PAGE = 4096


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str], mode: int = 0o600) -> int:
    """All or nothing, like `write_atomically`; returns the size."""
    with replacing(path, mode) as descriptor:
        return _write(descriptor, tensors, metadata)


def overwrite_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str], mode: int = 0o600) -> None:
    """In place, durable when it returns. A crash in between leaves a file that is neither the old nor the new."""
    new = not path.exists()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, mode)
    try:
        size = _write(descriptor, tensors, metadata, _PAGE)
        os.ftruncate(descriptor, size)
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)
    if new:
        sync_folder(path.parent)


def read_tensors(path: Path) -> tuple[dict[str, str], dict[str, NDArray[Any]]]:
    """Metadata and arrays that may be written to. ValueError or KeyError for what is no such file."""
    with path.open("rb") as file:
        header, start = _header(file)
        metadata = header.pop("__metadata__", {})
        return metadata, {name: _tensor(file, start, about) for name, about in header.items()}


def read_metadata(path: Path) -> dict[str, str]:
    with path.open("rb") as file:
        return dict(_header(file)[0].get("__metadata__", {}))


def _header(file: BinaryIO) -> tuple[dict[str, Any], int]:
    head = file.read(_SIZE.size)
    whole = os.fstat(file.fileno()).st_size
    if len(head) < _SIZE.size or (size := _SIZE.unpack(head)[0]) > whole - _SIZE.size:
        raise ValueError("it is no safetensors file, or was cut short")
    header = parsed(file.read(size))
    if not isinstance(header, dict):
        raise ValueError("it is no safetensors file")
    return header, _SIZE.size + size


def _tensor(file: BinaryIO, start: int, about: Mapping[str, Any]) -> NDArray[Any]:
    """Nothing is allocated that the file is too short for."""
    dtype, (first, last) = _TYPES[about["dtype"]], about["data_offsets"]
    shape = [operator.index(length) for length in about["shape"]]
    if min((first, *shape), default=0) < 0 or dtype.itemsize * math.prod(shape) != last - first:
        raise ValueError("a tensor's shape does not fit its bytes")
    if start + last > os.fstat(file.fileno()).st_size:
        raise ValueError("it was cut short")
    array = np.empty(shape, dtype)
    file.seek(start + first)
    target = array.reshape(-1).data.cast("B")
    if array.nbytes and file.readinto(target) != array.nbytes:  # type: ignore[attr-defined]
        raise ValueError("it was cut short")
    return array


def _write(descriptor: int, tensors: Mapping[str, Tensor], metadata: Mapping[str, str], aligned: int = _ALIGNED) -> int:
    """Largest items first, so that every tensor lies aligned, as safetensors wants it."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    order = sorted(tensors, key=lambda name: (-_dtype(tensors[name]).itemsize, name))
    offset = 0
    for name in order:
        tensor = tensors[name]
        length = tensor.size * _dtype(tensor).itemsize
        shape = [tensor.size] if isinstance(tensor, Patched) else list(tensor.shape)
        header[name] = {"dtype": _NAMES[_dtype(tensor).name], "shape": shape, "data_offsets": [offset, offset + length]}
        offset += length
    text = json.dumps(header).encode()
    text += b" " * (-(_SIZE.size + len(text)) % aligned)
    position = _put(descriptor, 0, [_SIZE.pack(len(text)) + text])
    for name in order:
        position = _put(descriptor, position, _pieces(tensors[name]))
    return position


def _dtype(tensor: Tensor) -> np.dtype[Any]:
    return tensor.base.dtype if isinstance(tensor, Patched) else tensor.dtype


def _pieces(tensor: Tensor) -> Iterable[Any]:
    if isinstance(tensor, Patched):
        return (_little(tile).data.cast("B") for tile in tensor.tiles()) if tensor.patch is not None else _pieces(tensor.base)
    flat = np.ascontiguousarray(tensor).reshape(-1)
    if not flat.size:
        return ()
    return (_little(flat).data.cast("B"),)


def _little(array: NDArray[Any]) -> NDArray[Any]:
    return array.astype(array.dtype.newbyteorder("<"), copy=False)


def _put(descriptor: int, position: int, pieces: Iterable[Any]) -> int:
    for piece in pieces:
        view = memoryview(piece)
        while view:
            done = os.pwrite(descriptor, view[:_PIECE], position)
            position, view = position + done, view[done:]
    return position
