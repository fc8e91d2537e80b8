"""Layouts and model files, which the server side reads without torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from fedrep.errors import DecodeError, InvalidInputError, NonFiniteError
from fedrep_runtime.model_files import read_flat_vector, read_model
from fedrep_trainers.layout import ModelLayout, write_model

LAYOUT = ModelLayout.of([("b.weight", (2, 3)), ("a.bias", (2,)), ("scale", ())])

shapes = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), min_size=1, max_size=6)


def test_size_counts_all_values_and_a_scalar_is_one() -> None:
    assert LAYOUT.size == 2 * 3 + 2 + 1


@given(shapes)
def test_splitting_and_joining_a_vector_gives_it_back(sides: list[tuple[int, int]]) -> None:
    layout = ModelLayout.of((f"p{position}", shape) for position, shape in enumerate(sides))
    vector = np.arange(layout.size, dtype=np.float32)
    assert np.array_equal(layout.join(layout.split(vector)), vector)


def test_the_digest_depends_on_names_shapes_and_order() -> None:
    same = ModelLayout.of([("x", (2, 3)), ("y", (4,))])
    others = [
        ModelLayout.of([("y", (4,)), ("x", (2, 3))]),
        ModelLayout.of([("x", (3, 2)), ("y", (4,))]),
        ModelLayout.of([("z", (2, 3)), ("y", (4,))]),
    ]
    assert same.digest == ModelLayout.of([("x", [2, 3]), ("y", [4])]).digest
    assert same.digest not in {other.digest for other in others}


def test_the_first_difference_to_the_run_is_named() -> None:
    assert LAYOUT.difference(LAYOUT) is None
    other = ModelLayout.of([("b.weight", (2, 3)), ("a.bias", (5,)), ("scale", ())])
    assert LAYOUT.difference(other) == "parameter 1 is a.bias [2] here and a.bias [5] in the run"
    shorter = ModelLayout.of([("b.weight", (2, 3))])
    assert LAYOUT.difference(shorter) == "the model here has 3 parameters, the run's has 1"


@pytest.mark.parametrize("parameters", [[], [("x", (1,)), ("x", (2,))], [("x", (0, 3))]])
def test_a_layout_without_sense_is_refused(parameters: list[tuple[str, tuple[int, ...]]]) -> None:
    with pytest.raises(InvalidInputError):
        ModelLayout.of(parameters)


def test_a_vector_of_another_kind_is_refused() -> None:
    good = np.zeros(LAYOUT.size, dtype=np.float32)
    LAYOUT.require_vector(good)
    for bad in (good[:-1], good.astype(np.float64), good.reshape(1, -1)):
        with pytest.raises(InvalidInputError):
            LAYOUT.require_vector(bad)
    good[3] = np.inf
    with pytest.raises(NonFiniteError, match="position 3"):
        LAYOUT.require_vector(good)


def test_arrays_that_do_not_fit_are_not_joined() -> None:
    arrays = LAYOUT.split(np.zeros(LAYOUT.size, dtype=np.float32))
    with pytest.raises(InvalidInputError, match="scale"):
        LAYOUT.join({name: array for name, array in arrays.items() if name != "scale"})
    with pytest.raises(InvalidInputError, match=r"a\.bias"):
        LAYOUT.join({**arrays, "a.bias": np.zeros(3, dtype=np.float32)})


def test_a_model_file_keeps_values_and_order(tmp_path: Path) -> None:
    vector = np.random.default_rng(0).standard_normal(LAYOUT.size).astype(np.float32)
    write_model(tmp_path / "m.safetensors", LAYOUT, vector)
    layout, read = read_model(tmp_path / "m.safetensors")
    assert layout == LAYOUT
    assert np.array_equal(read, vector)
    assert [path.name for path in tmp_path.iterdir()] == ["m.safetensors"]


def test_a_foreign_safetensors_file_is_read_in_the_order_of_its_bytes(tmp_path: Path) -> None:
    save_file({"w": np.ones((2, 2), np.float32)}, tmp_path / "m.safetensors")
    layout, vector = read_model(tmp_path / "m.safetensors")
    assert layout.size == 4
    assert vector.tolist() == [1, 1, 1, 1]


def test_model_files_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="no model file"):
        read_model(tmp_path / "nowhere.safetensors")
    (tmp_path / "junk").write_bytes(b"not a model")
    with pytest.raises(DecodeError):
        read_model(tmp_path / "junk")
    save_file({"w": np.ones(2, np.float64)}, tmp_path / "double")
    with pytest.raises(InvalidInputError, match="float64"):
        read_model(tmp_path / "double")
    save_file({"w": np.full(2, np.nan, np.float32)}, tmp_path / "nan")
    with pytest.raises(NonFiniteError):
        read_model(tmp_path / "nan")
    for order in ('["v"]', "{", "3"):
        save_file({"w": np.ones(2, np.float32)}, tmp_path / "order", metadata={"fedrep.order": order})
        with pytest.raises(DecodeError, match="order"):
            read_model(tmp_path / "order")


def test_a_flat_vector_is_read_from_npy_and_anything_else_is_refused_in_words(tmp_path: Path) -> None:
    vector = np.arange(5, dtype=np.float32)
    np.save(tmp_path / "good.npy", vector)
    assert np.array_equal(read_flat_vector(tmp_path / "good.npy", "good.npy"), vector)
    for array, words in (
        (vector.astype(np.float64), "holds float64 of shape"),
        (vector.reshape(5, 1), r"shape \[5, 1\]; a .npy model is one flat"),
        (np.array([1.0, np.inf], np.float32), "not finite at position 1"),
        (np.array([{}], object), "mine.npy is not a .npy file of numbers"),
    ):
        np.save(tmp_path / "bad.npy", array, allow_pickle=True)
        with pytest.raises(InvalidInputError, match=words):
            read_flat_vector(tmp_path / "bad.npy", "mine.npy")
    np.savez(tmp_path / "archive.npz", vector)
    with pytest.raises(InvalidInputError, match="an archive"):
        read_flat_vector(tmp_path / "archive.npz", "mine.npy")
    (tmp_path / "junk.npy").write_bytes(b"junk")
    with pytest.raises(DecodeError, match=r"mine\.npy"):
        read_flat_vector(tmp_path / "junk.npy", "mine.npy")


def test_layout_settings_and_protocol_import_no_torch() -> None:
    modules = "fedrep_runtime.model_files, fedrep_trainers.layout, fedrep_trainers.trainer, fedrep_trainers.contract"
    code = f"import sys, {modules}, fedrep_trainers.settings; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
