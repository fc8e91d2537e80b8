"""LoRA over a small transformer built from its configuration: nothing is downloaded, only adapters are the vector."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from fedrep.errors import SettingsError
from fedrep_trainers import huggingface
from fedrep_trainers.contract import check_trainer, failures
from fedrep_trainers.settings import TrainerSettings
from fedrep_trainers.torch_trainer import TorchTrainer

if find_spec("transformers") is None or find_spec("peft") is None:
    pytest.skip("the extra huggingface is not installed", allow_module_level=True)

KIND = "AutoModelForSequenceClassification"
SMALL = {
    "model_type": "bert",
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 16,
    "num_labels": 2,
}


class Sentences(Dataset[Any]):
    """The label is whether the first word is from the second half of the vocabulary."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        words = torch.randint(0, 40, (8,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": words, "attention_mask": torch.ones(8, dtype=torch.int64), "labels": (words[0] >= 20).long()}


def base(seed: int = 0) -> nn.Module:
    return huggingface.new_base(KIND, SMALL, seed=seed)


def lora_trainer(model: nn.Module) -> TorchTrainer:
    adapted = huggingface.with_lora(model, r=2, target_modules=["query", "value"], task_type="SEQ_CLS")
    data: DataLoader[Any] = DataLoader(Sentences(), batch_size=6, shuffle=True)
    settings = TrainerSettings(interval=2, threads=1, optimizer="torch.optim.AdamW", learning_rate=0.01)
    return TorchTrainer(adapted, train=data, evaluation=DataLoader(Sentences(), batch_size=8), settings=settings)


def test_only_adapters_and_head_are_the_vector_and_every_promise_is_kept() -> None:
    trainer = lora_trainer(base())
    names = [parameter.name for parameter in trainer.layout.parameters]
    assert all(".lora_" in name or ".classifier." in name for name in names)
    assert sum(".lora_" in name for name in names) == 8
    assert failures(check_trainer(trainer)) == []
    model = trainer.initial()
    before = trainer.evaluate(model)
    for number in range(20):
        model = trainer.train(model, number).model
    after = trainer.evaluate(model)
    assert after.loss < before.loss
    assert after.accuracy is not None


def test_silos_with_the_same_base_agree_and_another_base_is_refused_in_a_sentence(tmp_path: Path) -> None:
    one, same, other = (lora_trainer(base(seed)) for seed in (0, 0, 1))
    assert one.layout == same.layout
    assert np.array_equal(one.initial(), same.initial())
    assert "load the same base model on every silo" in str(one.layout.difference(other.layout))
    base(0).save_pretrained(tmp_path / "weights")  # type: ignore[operator]  # a method of transformers' models
    loaded = lora_trainer(huggingface.load_base(KIND, tmp_path / "weights"))
    assert loaded.layout == one.layout


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=f"no model in {tmp_path / 'absent'}.*never downloaded"):
        huggingface.load_base(KIND, tmp_path / "absent")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(SettingsError, match=f"{tmp_path} cannot be loaded"):
        huggingface.load_base(KIND, tmp_path)


def test_a_class_or_a_configuration_that_does_not_exist_is_named() -> None:
    with pytest.raises(SettingsError, match="no model class 'AutoModelForEverything'"):
        huggingface.new_base("AutoModelForEverything", SMALL)
    with pytest.raises(SettingsError, match=r"cannot build AutoModelForSequenceClassification.*no-such-model"):
        huggingface.new_base(KIND, {"model_type": "no-such-model"})


def test_adapters_that_fit_no_layer_are_refused() -> None:
    with pytest.raises(SettingsError, match="LoRA cannot be added"):
        huggingface.with_lora(base(), r=2, target_modules=["nowhere"])


def test_an_exported_adapter_makes_the_same_model_of_the_same_base(tmp_path: Path) -> None:
    from peft import PeftModel

    trainer = lora_trainer(base())
    model = trainer.train(trainer.initial(), 0).model
    huggingface.save_adapter(trainer, model, tmp_path / "adapter")
    restored = PeftModel.from_pretrained(base(), tmp_path / "adapter").eval()
    batch = next(iter(DataLoader(Sentences(), batch_size=8)))
    with trainer.module_at(model) as module, torch.no_grad():
        assert torch.equal(restored(**batch).logits, module(**batch).logits)


def test_the_whole_export_loads_into_the_module_it_came_from() -> None:
    trainer = lora_trainer(base())
    model = trainer.train(trainer.initial(), 0).model
    tensors = {name: torch.from_numpy(array) for name, array in trainer.export(model).items()}
    fresh = huggingface.with_lora(base(3), r=2, target_modules=["query", "value"], task_type="SEQ_CLS")
    fresh.load_state_dict(tensors)
    batch = next(iter(DataLoader(Sentences(), batch_size=8)))
    with trainer.module_at(model) as module, torch.no_grad():
        assert torch.equal(fresh.eval()(**batch).logits, module(**batch).logits)
