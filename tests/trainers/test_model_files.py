"""The model out: files that plain torch, ONNX and safetensors take, with what identifies the model inside."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

from fedrep.errors import SettingsError
from fedrep.protocol.model_state import model_hash
from fedrep_cli.model_files import Form, shown, write_form
from fedrep_trainers.torch_files import write_onnx
from tests.trainers.small_trainers import slope_trainer, small_trainer
from tests.trainers.test_contract import Toy

BATCH_NORM = {"model": "resnet20", "model_options": {"width": 8}}


def fresh_module() -> nn.Module:
    """As a person would make it who has nothing but the model's code."""
    from fedrep_trainers.models import build_model

    return build_model("resnet20", (1, 8, 8), 10, 99, {"width": 8})


@pytest.mark.parametrize("form", [Form.SAFETENSORS, Form.TORCH])
def test_an_exported_file_is_a_state_dict_of_the_model_with_its_statistics(form: Form, tmp_path: Path) -> None:
    trainer = small_trainer(**BATCH_NORM)
    model = trainer.train(trainer.initial(), 0).model
    target = tmp_path / "model"
    write_form(trainer, model, target, form, {"fedrep.round": "7"})
    state = load_file(target) if form is Form.SAFETENSORS else torch.load(target, weights_only=True)
    module = fresh_module()
    module.load_state_dict(state)
    inputs = torch.randn(5, 1, 8, 8)
    with trainer.module_at(model) as own, torch.no_grad():
        assert torch.equal(module.eval()(inputs), own(inputs))


def test_a_safetensors_file_says_which_model_it_is(tmp_path: Path) -> None:
    trainer = small_trainer(model="logistic")
    model = trainer.train(trainer.initial(), 0).model
    write_form(trainer, model, tmp_path / "model", Form.SAFETENSORS, {"fedrep.run": "first", "fedrep.round": "7"})
    with safe_open(tmp_path / "model", "np") as file:
        notes = file.metadata()
    assert json.loads(notes["fedrep.layout"]) == [["1.weight", [10, 64]], ["1.bias", [10]]]
    assert (notes["fedrep.run"], notes["fedrep.round"]) == ("first", "7")
    assert notes["fedrep.hash"] == model_hash(model).hex()
    assert notes["fedrep.layout_hash"] == trainer.layout.digest


@pytest.mark.skipif(find_spec("onnxscript") is None, reason="the extra onnx is not installed")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")  # torch's own exporter
def test_an_onnx_file_computes_what_the_model_does_for_any_number_of_samples(tmp_path: Path) -> None:
    from onnx import load
    from onnx.reference import ReferenceEvaluator

    trainer = small_trainer(model="mlp", model_options={"hidden": [16]})
    model = trainer.train(trainer.initial(), 0).model
    write_form(trainer, model, tmp_path / "model.onnx", Form.ONNX, {})
    graph = load(str(tmp_path / "model.onnx"))
    inputs = np.random.default_rng(0).standard_normal((7, 1, 8, 8)).astype(np.float32)
    (computed,) = ReferenceEvaluator(graph).run(None, {graph.graph.input[0].name: inputs})
    with trainer.module_at(model) as module, torch.no_grad():
        assert np.allclose(computed, module(torch.from_numpy(inputs)).numpy(), atol=1e-5)


def test_without_its_packages_onnx_is_refused_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedrep_trainers.torch_files.find_spec", lambda _: None)
    trainer = slope_trainer()
    with pytest.raises(SettingsError, match="ONNX needs onnx and onnxscript"):
        write_onnx(trainer, trainer.initial(), tmp_path / "model.onnx")


@pytest.mark.parametrize(
    ("form", "text"),
    [(Form.SAFETENSORS, "no method `export`"), (Form.TORCH, "no method `export`"), (Form.ONNX, "this trainer is a Toy")],
)
def test_a_trainer_that_cannot_give_a_form_says_so(form: Form, text: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=text):
        write_form(Toy(), Toy().initial(), tmp_path / "model", form, {})
    assert list(tmp_path.iterdir()) == []


def test_a_model_without_adapters_is_not_exported_as_adapters(tmp_path: Path) -> None:
    trainer = slope_trainer()
    with pytest.raises(SettingsError, match="no adapters"):
        write_form(trainer, trainer.initial(), tmp_path / "folder", Form.ADAPTER, {})


@pytest.mark.parametrize("form", [Form.SAFETENSORS, Form.TORCH])
def test_a_file_that_cannot_be_written_is_named_as_it_was_asked_for(form: Form, tmp_path: Path) -> None:
    trainer, target = small_trainer(), tmp_path / "nowhere" / "model"
    with pytest.raises(FileNotFoundError) as refused:
        write_form(trainer, trainer.initial(), target, form, {})
    assert refused.value.filename == str(target)


def test_a_person_without_torch_is_not_told_to_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    result = {"format": "safetensors", "file": "model.safetensors"}
    assert shown(result) == 'load_state_dict(safetensors.torch.load_file("model.safetensors"))'
    monkeypatch.delitem(sys.modules, "torch")
    assert shown(result) == 'safetensors.numpy.load_file("model.safetensors")'
