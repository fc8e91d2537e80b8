"""LoRA adapters over a language model that sorts short texts; only the adapters leave the silo, and nothing is downloaded.

Replace `Texts` by your own texts with your tokenizer, and name a folder with real weights as `base` in client.toml.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from fedrep_trainers import TorchTrainer, TrainerSettings
from fedrep_trainers.huggingface import load_base, new_base, with_lora

KIND = "AutoModelForSequenceClassification"
WORDS, LENGTH, HELD_OUT = 200, 12, 160

# A model small enough for any laptop, with random weights, for as long as no `base` is named.
SMALL = {
    "model_type": "bert",
    "vocab_size": WORDS,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": LENGTH,
    "initializer_range": 0.2,  # wider than usual: stands in for weights that mean something
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "num_labels": 2,
}


class Texts(Dataset[Any]):
    """Made-up texts, as a tokenizer gives them: 1 if more words are from the second half of the vocabulary.

    A batch is a dict, as Hugging Face's collators make them; the model takes it by name and returns its own loss.
    """

    def __init__(self, numbers: range) -> None:
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(self._numbers[index])
        late = torch.rand((), generator=generator)
        half = (torch.rand(LENGTH, generator=generator) < late).long() * (WORDS // 2)
        words = half + torch.randint(0, WORDS // 2, (LENGTH,), generator=generator)
        return {
            "input_ids": words,
            "attention_mask": torch.ones_like(words),
            "labels": (half > 0).float().mean().round().long(),
        }


def model(settings: TrainerSettings) -> nn.Module:
    folder = settings.options.get("base")
    if folder is not None:
        base = load_base(KIND, (settings.user_code_dir or ".") / folder)  # every silo the same weights: their hash is compared
    else:
        base = new_base(KIND, SMALL, seed=settings.seed)
    return with_lora(base, seed=settings.seed, r=4, lora_alpha=16, target_modules=["query", "value"], task_type="SEQ_CLS")


def build(settings: TrainerSettings) -> TorchTrainer:
    """What client.toml names as user_code. Without a `loss`, the model's own is taken."""
    everybodys = range(HELD_OUT, 4000)
    own = Texts(everybodys[settings.shard_index % settings.shard_count :: settings.shard_count])  # each silo has its own part
    return TorchTrainer(
        model(settings),
        train=DataLoader(own, batch_size=settings.batch_size, shuffle=True),
        evaluation=DataLoader(Texts(range(HELD_OUT)), batch_size=80),
        settings=settings,
    )
