"""Built-in data: the file formats on tiny files, the cache, splits, augmentation. Nothing is downloaded."""

from __future__ import annotations

import gzip
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from fedrep.errors import DecodeError, InvalidInputError, SettingsError
from fedrep_trainers import datasets
from fedrep_trainers.array_cache import cache_folder, cached_array
from fedrep_trainers.batches import ImageBatches, OrderedImages
from fedrep_trainers.build import build_trainer, shard_indices
from fedrep_trainers.datasets import load_cifar10, load_digits, load_fashion_mnist
from fedrep_trainers.files import decode_images, read_cifar_batch, read_idx
from fedrep_trainers.images import Images, Preparation
from fedrep_trainers.settings import TrainerSettings
from fedrep_trainers.splits import dirichlet_split, iid_split

CPU = torch.device("cpu")


def idx_bytes(array: NDArray[np.uint8]) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_fashion(folder: Path, *, zipped: bool) -> NDArray[np.uint8]:
    folder.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(0).integers(0, 256, (12, 28, 28), dtype=np.uint8)
    for part in ("train", "t10k"):
        files = {"images-idx3": pixels, "labels-idx1": np.arange(12, dtype=np.uint8) % 10}
        for kind, array in files.items():
            content = idx_bytes(array)
            path = folder / f"{part}-{kind}-ubyte{'.gz' if zipped else ''}"
            path.write_bytes(gzip.compress(content) if zipped else content)
    return pixels


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("place", [".", "FashionMNIST/raw"])
def test_fashion_mnist_is_read_from_idx_files(tmp_path: Path, zipped: bool, place: str) -> None:
    pixels = write_fashion(tmp_path / place, zipped=zipped)
    data = load_fashion_mnist(tmp_path, None)
    assert data.input_shape == (1, 28, 28)
    assert np.array_equal(data.train.pixels[:, 0], pixels)
    assert data.test.labels.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert len(data.classes) == 10


def test_idx_files_that_are_cut_short_or_something_else_are_refused(tmp_path: Path) -> None:
    good = idx_bytes(np.zeros((2, 3, 3), dtype=np.uint8))
    for name, content in {"cut": good[:-1], "header": good[:6], "other": b"PK\3\4" + good, "empty": b""}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DecodeError, match=name):
            read_idx(tmp_path / name)
    (tmp_path / "cut.gz").write_bytes(gzip.compress(good)[:-9])
    with pytest.raises(DecodeError, match="fetch it again"):
        read_idx(tmp_path / "cut.gz")


def write_cifar_batches(folder: Path) -> dict[str, NDArray[np.uint8]]:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    written = {}
    for name in [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]:
        written[name] = rng.integers(0, 256, (4, 3072), dtype=np.uint8)
        content = {b"data": written[name], b"labels": [1, 2, 3, 9], b"filenames": [b"x"] * 4}
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
    return written


@pytest.mark.parametrize("place", [".", "cifar-10-batches-py"])
def test_cifar10_is_read_from_torchvisions_batches(tmp_path: Path, place: str) -> None:
    root = tmp_path / "data"
    written = write_cifar_batches(root / place if place != "." else root)
    data = load_cifar10(root, None)
    assert data.input_shape == (3, 32, 32)
    assert len(data.train) == 20
    assert np.array_equal(data.train.pixels[4:8], written["data_batch_2"].reshape(4, 3, 32, 32))
    assert data.test.labels.tolist() == [1, 2, 3, 9]
    assert data.classes[9] == "truck"


class Malicious:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (exec, ("raise SystemExit('ran')",))


def test_a_batch_cannot_bring_code_along(tmp_path: Path) -> None:
    (tmp_path / "batch").write_bytes(pickle.dumps({b"data": Malicious(), b"labels": []}))
    with pytest.raises(DecodeError, match=r"builtins\.exec"):
        read_cifar_batch(tmp_path / "batch")


def test_batches_as_they_were_published_name_numpys_old_modules(tmp_path: Path) -> None:
    content = pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": [7]}, protocol=2)
    (tmp_path / "batch").write_bytes(content.replace(b"numpy._core", b"numpy.core"))
    assert read_cifar_batch(tmp_path / "batch").labels.tolist() == [7]


@pytest.mark.parametrize("content", [b"junk", pickle.dumps([1]), pickle.dumps({b"data": np.zeros(5), b"labels": [1]})])
def test_a_file_that_is_no_batch_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "batch").write_bytes(content)
    with pytest.raises(DecodeError, match="batch"):
        read_cifar_batch(tmp_path / "batch")


def test_a_missing_batch_is_named(tmp_path: Path) -> None:
    write_cifar_batches(tmp_path / "data")
    (tmp_path / "data" / "data_batch_3").unlink()
    with pytest.raises(SettingsError, match="lacks data_batch_3"):
        load_cifar10(tmp_path / "data", None)


def write_image_folders(root: Path, side: int = 32) -> None:
    for part in ("train", "test"):
        for shade, name in enumerate(("cat", "airplane")):
            folder = root / part / name
            folder.mkdir(parents=True)
            for number in range(3):
                colour = (100 * shade, 50, 10 * number)
                Image.new("RGB", (side, side), colour).save(folder / f"{number:04}.png")


def test_image_folders_are_decoded_once_in_sorted_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_image_folders(tmp_path)
    calls: list[int] = []

    def counted(files: list[Path], side: int) -> NDArray[np.uint8]:
        calls.append(len(files))
        return decode_images(files, side)

    monkeypatch.setattr(datasets, "decode_images", counted)
    first, second = load_cifar10(tmp_path, None), load_cifar10(tmp_path, None)
    assert calls == [6, 6]  # train and test, each once
    assert first.classes == ("airplane", "cat")
    assert first.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert first.train.pixels[2, :, 0, 0].tolist() == [100, 50, 20]
    assert np.array_equal(first.train.pixels, second.train.pixels)
    assert isinstance(second.train.pixels, np.memmap)
    Image.new("RGB", (32, 32), (9, 9, 9)).save(tmp_path / "train" / "cat" / "9999.png")
    assert len(load_cifar10(tmp_path, None).train) == 7
    assert calls == [6, 6, 7]


def test_images_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    write_image_folders(tmp_path / "small", side=16)
    with pytest.raises(DecodeError, match="16 x 16"):
        load_cifar10(tmp_path / "small", None)
    write_image_folders(tmp_path / "broken")
    (tmp_path / "broken" / "train" / "cat" / "0001.png").write_bytes(b"no image")
    with pytest.raises(DecodeError, match=r"0001\.png"):
        load_cifar10(tmp_path / "broken", None)
    leftovers = [path.name for path in (tmp_path / "broken" / ".fedrep-cache").iterdir()]
    assert not [name for name in leftovers if name.endswith(".npy")]


def test_train_and_test_must_have_the_same_classes(tmp_path: Path) -> None:
    write_image_folders(tmp_path)
    (tmp_path / "test" / "cat").rename(tmp_path / "test" / "dog")
    with pytest.raises(SettingsError, match=r"\['cat', 'dog'\]"):
        load_cifar10(tmp_path, None)


@pytest.mark.parametrize("name", ["fashion_mnist", "cifar10"])
def test_missing_data_says_where_it_was_looked_for(tmp_path: Path, name: str) -> None:
    for folder, text in ((None, "data_dir"), (tmp_path / "nowhere", "not a folder"), (tmp_path, str(tmp_path))):
        with pytest.raises(SettingsError, match=text):
            datasets.DATASETS[name](folder, None)


def test_the_cache_folder_is_the_configured_one_or_beside_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data"
    data.mkdir()
    assert cache_folder(data, tmp_path / "c") == tmp_path / "c"
    assert cache_folder(data, None) == data / ".fedrep-cache"
    monkeypatch.setattr("os.access", lambda *_: False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    assert cache_folder(data, None) == tmp_path / "user" / "fedrep"
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match="cache_dir"):
        cache_folder(data, tmp_path / "file" / "c")


def test_a_failed_decode_leaves_nothing_that_looks_decoded(tmp_path: Path) -> None:
    def fail() -> NDArray[np.uint8]:
        raise DecodeError("broken")

    with pytest.raises(DecodeError):
        cached_array(tmp_path, "x", fail)
    made = cached_array(tmp_path, "x", lambda: np.arange(3, dtype=np.uint8))
    assert made.tolist() == [0, 1, 2]


@pytest.mark.parametrize("left", [0, 5, 130])
def test_a_damaged_cache_is_decoded_again(tmp_path: Path, left: int) -> None:
    wanted = np.arange(100, dtype=np.uint8)
    cached_array(tmp_path, "x", lambda: wanted)
    path = tmp_path / "x.npy"
    path.write_bytes(path.read_bytes()[:left])
    assert cached_array(tmp_path, "x", lambda: wanted).tolist() == wanted.tolist()
    assert np.load(path).tolist() == wanted.tolist()


def test_digits_have_disjoint_balanced_parts() -> None:
    data = load_digits(None, None)
    assert (len(data.train), len(data.test)) == (1437, 360)
    assert data.input_shape == (1, 8, 8)
    assert int(data.train.pixels.max()) == data.full_scale
    assert set(data.test.labels.tolist()) == set(range(10))


@given(st.integers(1, 200), st.integers(1, 20), st.integers(0, 5))
def test_an_iid_split_deals_every_sample_once_and_evenly(count: int, shards: int, seed: int) -> None:
    if shards > count:
        with pytest.raises(SettingsError):
            iid_split(count, shards, seed)
        return
    split = iid_split(count, shards, seed)
    assert sorted(np.concatenate(split).tolist()) == list(range(count))
    assert max(map(len, split)) - min(map(len, split)) <= 1


@settings(max_examples=30)
@given(st.integers(1, 6), st.floats(0.2, 100), st.integers(0, 5))
def test_a_dirichlet_split_deals_every_sample_once_and_leaves_nobody_empty(shards: int, alpha: float, seed: int) -> None:
    labels = np.arange(300, dtype=np.int64) % 10
    split = dirichlet_split(labels, shards, alpha, seed)
    assert sorted(np.concatenate(split).tolist()) == list(range(300))
    assert min(map(len, split)) >= 2


def test_a_smaller_alpha_gives_more_lopsided_shards() -> None:
    labels = np.arange(5000, dtype=np.int64) % 10

    def largest_class_share(alpha: float) -> float:
        shards = dirichlet_split(labels, 8, alpha, seed=0)
        return float(np.mean([np.bincount(labels[shard]).max() / shard.size for shard in shards]))

    assert largest_class_share(0.1) > 0.35 > 0.15 > largest_class_share(1000.0)


def test_an_impossible_dirichlet_split_is_refused() -> None:
    with pytest.raises(SettingsError, match="dirichlet_alpha"):
        dirichlet_split(np.zeros(10, dtype=np.int64), 8, 0.1, seed=0)


@pytest.mark.parametrize("split", ["iid", "dirichlet"])
def test_the_silos_of_a_run_share_out_the_data_whatever_else_differs(split: str) -> None:
    data = load_digits(None, None)
    made = [
        shard_indices(TrainerSettings.model_validate({"split": split, "shard_count": 3, "shard_index": i}), data)
        for i in range(3)
    ]
    assert sorted(np.concatenate(made).tolist()) == list(range(len(data.train)))


def numbered(count: int) -> Images:
    """Image i has all pixels i, and the label i."""
    pixels = np.broadcast_to(np.arange(count, dtype=np.uint8)[:, None, None, None], (count, 1, 4, 4))
    return Images(pixels, np.arange(count, dtype=np.int64))


def test_epochs_are_complete_reshuffled_and_batches_equal_in_size() -> None:
    plain = Preparation(1.0, (0.0,), (1.0,), CPU)
    source = ImageBatches(numbered(10), np.arange(2, 9), plain, batch_size=3, seed=0)
    stream = torch.cat([source.batch(number)[1] for number in range(7)]).tolist()
    epochs = [stream[start : start + 7] for start in (0, 7, 14)]
    assert all(sorted(epoch) == list(range(2, 9)) for epoch in epochs)
    assert epochs[0] != epochs[1]
    assert source.batch(1)[1].tolist() == stream[3:6]


def test_a_batch_is_never_larger_than_the_shard_and_an_empty_shard_is_refused() -> None:
    plain = Preparation(1.0, (0.0,), (1.0,), CPU)
    source = ImageBatches(numbered(10), np.array([4, 5]), plain, batch_size=25, seed=0)
    assert sorted(source.batch(3)[1].tolist()) == [4, 5]
    with pytest.raises(SettingsError, match="empty"):
        ImageBatches(numbered(10), np.array([], dtype=np.int64), plain, batch_size=25, seed=0)


def test_evaluation_passes_over_every_image_once() -> None:
    plain = Preparation(2.0, (1.0,), (4.0,), CPU)
    batches = list(OrderedImages(numbered(5), np.arange(5), plain, batch_size=2))
    assert [labels.tolist() for _, labels in batches] == [[0, 1], [2, 3], [4]]
    assert batches[2][0][0, 0, 0, 0].item() == (4 / 2.0 - 1.0) / 4.0


def test_augmentation_crops_and_flips_each_image_on_its_own() -> None:
    rng = np.random.default_rng(0)
    images = Images(rng.integers(1, 256, (64, 3, 8, 8), dtype=np.uint8), np.zeros(64, dtype=np.int64))
    varied = Preparation(1.0, (0.0,) * 3, (1.0,) * 3, CPU, augment=True, padding=2)
    changed = varied.batch(images, np.arange(64), np.random.default_rng(1))[0].numpy()
    padded = np.pad(images.pixels, ((0, 0), (0, 0), (2, 2), (2, 2)))
    seen: set[tuple[int, int, bool]] = set()
    for image, source in zip(changed, padded, strict=True):
        windows = {
            (top, left, flip): source[:, top : top + 8, left : left + 8][:, :, :: -1 if flip else 1]
            for top in range(5)
            for left in range(5)
            for flip in (False, True)
        }
        matches = [key for key, window in windows.items() if np.array_equal(window, image)]
        assert len(matches) == 1
        seen.update(matches)
    assert {top for top, _, _ in seen} == {left for _, left, _ in seen} == set(range(5))
    assert {flip for _, _, flip in seen} == {False, True}


def test_augmentation_repeats_with_its_seed_and_spares_evaluation() -> None:
    images = Images(np.random.default_rng(0).integers(0, 256, (8, 1, 8, 8), dtype=np.uint8), np.zeros(8, np.int64))
    varied = Preparation(255.0, (0.5,), (0.5,), CPU, augment=True)
    source = ImageBatches(images, np.arange(8), varied, batch_size=4, seed=5)
    assert torch.equal(source.batch(3)[0], source.batch(3)[0])
    still = Preparation(255.0, (0.5,), (0.5,), CPU)
    every = np.arange(8)
    assert torch.equal(varied.batch(images, every, None)[0], still.batch(images, every, None)[0])


def test_pixels_and_labels_must_belong_together() -> None:
    with pytest.raises(InvalidInputError, match="3 labels"):
        Images(np.zeros((4, 1, 2, 2), np.uint8), np.zeros(3, np.int64))


def test_a_few_evaluation_samples_are_drawn_from_all_classes(tmp_path: Path) -> None:
    """Image folders are sorted by class; the first few would be of one class only."""
    for part in ("train", "test"):
        for shade, name in enumerate("ab"):
            (tmp_path / part / name).mkdir(parents=True)
            for number in range(20):
                Image.new("RGB", (32, 32), (200 * shade, 0, 0)).save(tmp_path / part / name / f"{number}.png")
    made = TrainerSettings(
        dataset="cifar10", data_dir=tmp_path, model="logistic", evaluation_samples=20, augment=False, interval=5
    )
    trainer = build_trainer(made)
    blind = np.zeros(trainer.layout.size, dtype=np.float32)
    accuracy = trainer.evaluate(blind).accuracy  # all logits equal: always the first class
    assert accuracy is not None
    assert 0.2 < accuracy < 0.8
