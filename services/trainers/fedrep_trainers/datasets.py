"""The built-in data sets. `digits` comes with scikit-learn; the others lie in a folder, are decoded once and cached."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedrep.errors import SettingsError
from fedrep_trainers.array_cache import cache_folder, cached_array, fingerprint
from fedrep_trainers.files import decode_images, list_image_folder, read_cifar_batch, read_idx
from fedrep_trainers.images import Images

_CIFAR10_CLASSES: tuple[str, ...] = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
_FASHION_CLASSES: tuple[str, ...] = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)


@dataclass(frozen=True)
class ImageDataset:
    train: Images
    test: Images
    classes: tuple[str, ...]
    full_scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def input_shape(self) -> tuple[int, int, int]:
        _, channels, height, width = self.train.pixels.shape
        return channels, height, width


def load_digits(data_dir: Path | None, cache_dir: Path | None) -> ImageDataset:  # noqa: ARG001  registry signature
    """1797 images of 8 x 8 with values 0..16. They are sorted by writer, hence the fixed shuffle before the cut."""
    rows = _digits_table()
    rows = rows[np.random.default_rng(0).permutation(len(rows))]
    pixels = np.ascontiguousarray(rows[:, :-1].reshape(-1, 1, 8, 8))
    labels = rows[:, -1].astype(np.int64)
    cut = len(labels) * 4 // 5
    return ImageDataset(
        train=Images(pixels[:cut], labels[:cut]),
        test=Images(pixels[cut:], labels[cut:]),
        classes=tuple(str(digit) for digit in range(10)),
        full_scale=16.0,
        mean=(0.3053,),
        std=(0.3763,),
    )


def _digits_table() -> NDArray[np.uint8]:
    """64 pixels and the label in each row, read from scikit-learn's file: importing scikit-learn takes seconds at every start."""
    found = find_spec("sklearn")
    if found is None or not found.submodule_search_locations:
        raise SettingsError("the digits come with scikit-learn, which is not installed: pip install 'fedrep[client]'")
    path = Path(found.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    if not path.is_file():
        raise SettingsError("this release of scikit-learn keeps its digits elsewhere; install the one that constraints.txt names")
    with gzip.open(path, "rt") as lines:
        return np.loadtxt(lines, delimiter=",", dtype=np.uint8)


def load_fashion_mnist(data_dir: Path | None, cache_dir: Path | None) -> ImageDataset:
    """The four idx files, plain or gzipped, in the folder itself or in torchvision's `FashionMNIST/raw`."""
    root = _require_folder("fashion_mnist", data_dir)
    places = [root, root / "FashionMNIST" / "raw", root / "fashion-mnist"]
    folder = next((place for place in places if _idx_file(place, "train-images-idx3-ubyte")), None)
    if folder is None:
        raise SettingsError(f"no train-images-idx3-ubyte(.gz) in any of {', '.join(map(str, places))}")
    cache = cache_folder(root, cache_dir)
    return ImageDataset(
        train=_idx_images(folder, "train", cache),
        test=_idx_images(folder, "t10k", cache),
        classes=_FASHION_CLASSES,
        full_scale=255.0,
        mean=(0.2860,),
        std=(0.3530,),
    )


def load_cifar10(data_dir: Path | None, cache_dir: Path | None) -> ImageDataset:
    """torchvision's `cifar-10-batches-py`, or image folders `train/<class>/*.jpg` and `test/<class>/*.jpg`."""
    root = _require_folder("cifar10", data_dir)
    cache = cache_folder(root, cache_dir)
    places = [root, root / "cifar10", root / "cifar-10-batches-py"]
    for place in places:
        if (place / "data_batch_1").is_file():
            train, test = _cifar_batches(place, cache)
            classes = _CIFAR10_CLASSES
            break
        if (place / "train").is_dir() and (place / "test").is_dir():
            train, test, classes = _image_folders(place, cache)
            break
    else:
        raise SettingsError(
            f"no CIFAR-10 in any of {', '.join(map(str, places))}: expected data_batch_1 ... test_batch, "
            "or folders train/<class> and test/<class> of images"
        )
    return ImageDataset(train, test, classes, 255.0, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))


DATASETS: dict[str, Callable[[Path | None, Path | None], ImageDataset]] = {
    "digits": load_digits,
    "fashion_mnist": load_fashion_mnist,
    "cifar10": load_cifar10,
}


def _require_folder(dataset: str, data_dir: Path | None) -> Path:
    if data_dir is None:
        raise SettingsError(f"dataset = {dataset!r} needs data_dir, the folder that holds its files")
    if not data_dir.is_dir():
        raise SettingsError(f"data_dir = {str(data_dir)!r} is not a folder")
    return data_dir


def _idx_file(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def _idx_images(folder: Path, part: str, cache: Path) -> Images:
    pixels_file = _idx_file(folder, f"{part}-images-idx3-ubyte")
    labels_file = _idx_file(folder, f"{part}-labels-idx1-ubyte")
    if pixels_file is None or labels_file is None:
        raise SettingsError(f"{folder} lacks {part}-images-idx3-ubyte(.gz) or {part}-labels-idx1-ubyte(.gz)")
    name = f"fashion-mnist-{part}-{fingerprint([pixels_file], folder)}"
    pixels = cached_array(cache, name, lambda: read_idx(pixels_file)[:, None])
    return Images(pixels, read_idx(labels_file).astype(np.int64))


def _cifar_batches(folder: Path, cache: Path) -> tuple[Images, Images]:
    train = [folder / f"data_batch_{number}" for number in range(1, 6)]
    parts: list[Images] = []
    for part, files in {"train": train, "test": [folder / "test_batch"]}.items():
        missing = [path.name for path in files if not path.is_file()]
        if missing:
            raise SettingsError(f"{folder} lacks {', '.join(missing)}")
        parts.append(_cifar_part(f"cifar10-{part}-{fingerprint(files, folder)}", files, cache))
    return parts[0], parts[1]


def _cifar_part(name: str, files: list[Path], cache: Path) -> Images:
    def pixels() -> NDArray[np.uint8]:
        return np.concatenate([read_cifar_batch(path).pixels for path in files])

    def labels() -> NDArray[np.int64]:
        return np.concatenate([read_cifar_batch(path).labels for path in files])

    return Images(cached_array(cache, name, pixels), np.array(cached_array(cache, f"{name}-labels", labels)))


def _image_folders(folder: Path, cache: Path) -> tuple[Images, Images, tuple[str, ...]]:
    train, classes = _image_folder(folder / "train", cache)
    test, test_classes = _image_folder(folder / "test", cache)
    if classes != test_classes:
        odd = sorted(set(classes) ^ set(test_classes))
        raise SettingsError(f"train and test in {folder} must have the same classes; they differ in {odd[:5]}")
    return train, test, classes


def _image_folder(folder: Path, cache: Path) -> tuple[Images, tuple[str, ...]]:
    files, labels, classes = list_image_folder(folder)
    name = f"cifar10-{folder.name}-{fingerprint(files, folder)}"
    return Images(cached_array(cache, name, lambda: decode_images(files, 32)), labels), classes
