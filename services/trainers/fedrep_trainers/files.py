"""Readers of the files in which image data sets are handed around: idx, CIFAR's pickled batches, folders of images."""

from __future__ import annotations

import gzip
import io
import pickle
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrep.errors import DecodeError, SettingsError
from fedrep_trainers.images import Images

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp"})
_IDX_UINT8 = 0x08


def read_idx(path: Path) -> NDArray[np.uint8]:
    """An idx file of bytes (LeCun's MNIST format), plain or gzipped."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DecodeError(f"{path} cannot be read: {error}; fetch it again") from error
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != _IDX_UINT8:
        raise DecodeError(f"{path} is not an idx file of bytes; fetch it again")
    start = 4 + 4 * content[3]
    if len(content) < start:
        raise DecodeError(f"{path} ends within its header; fetch it again")
    shape = tuple(int(side) for side in np.frombuffer(content[4:start], dtype=">u4"))
    if len(content) - start != int(np.prod(shape, dtype=np.int64)):
        raise DecodeError(f"{path} announces {list(shape)} values, but holds {len(content) - start} bytes of them")
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


class _ArraysOnly(pickle.Unpickler):
    """Opens CIFAR's batches, which are pickles, without running code that somebody put into one."""

    _ALLOWED = frozenset(
        {
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
            ("numpy._core.multiarray", "_reconstruct"),
            ("numpy._core.numeric", "_frombuffer"),
            ("_codecs", "encode"),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        # numpy moved its internals; the old name, which the published files use, still works but warns.
        module = module.replace("numpy.core", "numpy._core")
        if (module, name) in self._ALLOWED:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it refers to {module}.{name}, which no CIFAR batch does")


def read_cifar_batch(path: Path) -> Images:
    """One file of `cifar-10-batches-py`: 3072 bytes per image, channel after channel."""
    try:
        content = _ArraysOnly(io.BytesIO(path.read_bytes()), encoding="bytes").load()
        pixels = np.asarray(content[b"data"], dtype=np.uint8).reshape(-1, 3, 32, 32)
        labels = np.asarray(content[b"labels"], dtype=np.int64)
    except Exception as error:  # a pickle says what is done to what, and may fail at it in any way
        raise DecodeError(f"{path} is not a batch of CIFAR-10 for Python: {error}") from error
    return Images(pixels, labels)


def list_image_folder(folder: Path) -> tuple[list[Path], NDArray[np.int64], tuple[str, ...]]:
    """Files, labels and class names of `<class>/<image>`, all in sorted order, as torchvision's ImageFolder has them."""
    classes = tuple(sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and entry.name[0] != "."))
    files: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        members = sorted((p for p in (folder / name).iterdir() if p.suffix.lower() in IMAGE_SUFFIXES), key=str)
        files += members
        labels += [label] * len(members)
    if not files:
        raise SettingsError(f"{folder} holds no images; expected {folder}/<class>/<image>.jpg")
    return files, np.array(labels, dtype=np.int64), classes


def decode_images(files: list[Path], side: int) -> NDArray[np.uint8]:
    """RGB pixels of equally sized images."""
    from PIL import Image, UnidentifiedImageError

    pixels = np.empty((len(files), 3, side, side), dtype=np.uint8)
    for position, path in enumerate(files):
        try:
            with Image.open(path) as image:
                array = np.asarray(image.convert("RGB"))
        except (OSError, UnidentifiedImageError) as error:
            raise DecodeError(f"{path} cannot be decoded as an image: {error}") from error
        if array.shape != (side, side, 3):
            raise DecodeError(f"{path} is {array.shape[1]} x {array.shape[0]}; images here must be {side} x {side}")
        pixels[position] = array.transpose(2, 0, 1)
    return pixels
