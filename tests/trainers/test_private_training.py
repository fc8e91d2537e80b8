"""DP-SGD as a silo trains with it: every condition of its guarantee, one test each."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, WeightedRandomSampler

from fedrep.errors import InvalidInputError, SettingsError
from fedrep.record_privacy import Budget, RecordLedger, SampledGaussian
from fedrep_trainers import Allowance, Trainer, secure_random
from fedrep_trainers.batches import ImageBatches
from fedrep_trainers.contract import check_trainer, failures
from fedrep_trainers.images import Images, Preparation
from fedrep_trainers.record_accountant import noise_for
from fedrep_trainers.record_gradients import RecordGradients
from fedrep_trainers.records import LoaderRecords
from fedrep_trainers.settings import PrivacySettings, TrainerSettings
from fedrep_trainers.torch_trainer import TorchTrainer
from tests.trainers.private_trainers import PRIVACY, Dot, dot_trainer, drawing, gradient, without_noise
from tests.trainers.small_trainers import Counting, small_trainer, vector

ROWS = [[0.3, 0.0], [0.0, 0.4], [0.1, 0.1], [-0.2, 0.5]]


def test_every_records_gradient_is_cut_to_the_clip_norm_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    without_noise(monkeypatch)
    trainer = dot_trainer([[30.0, 40.0], [0.3, 0.0], [-6.0, 8.0], [0.0, 0.1]], PRIVACY.model_copy(update={"clip_norm": 0.5}))
    # 0.5 * (0.6, 0.8) + (0.3, 0) + 0.5 * (-0.6, 0.8) + (0, 0.1), over 4
    assert gradient(trainer) == pytest.approx([0.3 / 4, 0.9 / 4])


def test_the_sum_is_divided_by_the_expected_size_and_not_by_the_one_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    without_noise(monkeypatch)
    drawing(monkeypatch, 0)
    assert gradient(dot_trainer(ROWS, batch_size=2)) == pytest.approx([0.3 / 2, 0.0])


def test_an_empty_batch_gets_noise_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    drawing(monkeypatch)
    trainer = dot_trainer(np.zeros((10, 4000)), PRIVACY.model_copy(update={"noise": 3.0, "clip_norm": 0.5}), batch_size=2)
    found = gradient(trainer)
    assert found.std() == pytest.approx(3.0 * 0.5 / 2, rel=0.1)
    assert np.isfinite(trainer.train(trainer.initial(), 0).loss)


def test_noise_is_added_in_every_coordinate_and_at_every_step() -> None:
    one = gradient(dot_trainer(np.zeros((10, 4000)), batch_size=1))
    many = gradient(dot_trainer(np.zeros((10, 4000)), batch_size=1, interval=9))
    assert one.std() == pytest.approx(1.0, rel=0.1)
    assert many.std() == pytest.approx(3.0, rel=0.1)
    assert np.count_nonzero(one) == one.size


def test_what_will_not_be_sent_is_cut_off_before_clipping_and_gets_no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    drawing(monkeypatch, 0, 1)
    trainer = dot_trainer([[3.0, 40.0, 4.0], [0.3, 9.0, 0.4]], batch_size=2)
    trainer.privacy(None)
    start = trainer.initial()
    moved = start - trainer.train_on(start, 0, np.array([0, 2])).model
    assert moved[1] == 0.0
    assert moved[0] != 0.0
    assert np.count_nonzero(start - trainer.train(start, 0).model) == 3, "the next training is whole again"
    without_noise(monkeypatch)
    moved = start - trainer.train_on(start, 0, np.array([0, 2])).model
    # (3, 4) cut to norm 1 and (0.3, 0.4) as it is, over 2: the 40 and the 9 between them cost nothing
    assert moved == pytest.approx([0.9 / 2, 0.0, 1.2 / 2])


def test_every_step_draws_a_poisson_batch_of_its_own_at_the_same_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, float]] = []
    sizes: list[int] = []
    real = secure_random.chosen

    def noted(records: int, rate: float) -> Any:
        drawn = real(records, rate)
        asked.append((records, rate))
        sizes.append(drawn.size)
        return drawn

    without_noise(monkeypatch)
    monkeypatch.setattr(secure_random, "chosen", noted)
    found = gradient(dot_trainer(np.full((40, 1), 0.5), batch_size=10, interval=100))
    assert asked == [(40, 0.25)] * 100
    assert len(set(sizes)) > 3
    assert found[0] == pytest.approx(0.5 * sum(sizes) / 10), "what was drawn, and nothing else, is in the gradients"


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e38])
def test_a_record_whose_gradient_is_not_finite_neither_fails_the_training_nor_shows(
    bad: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_noise(monkeypatch)
    trainer = dot_trainer([*ROWS, [bad, bad]], batch_size=5)
    assert gradient(trainer) == pytest.approx(gradient(dot_trainer([*ROWS, [0.0, 0.0]], batch_size=5)))
    drawing(monkeypatch, 4)
    result = trainer.train(trainer.initial(), 0)
    assert np.isfinite(result.loss)
    assert result.model.tolist() == [0.0, 0.0]


def test_the_same_state_and_model_train_to_other_bits_and_no_randomness_is_saved() -> None:
    first, second = (small_trainer(privacy=PRIVACY) for _ in range(2))
    first.privacy(None)
    second.privacy(None)
    state = first.state()
    plain = set(small_trainer().state())
    assert set(state) - plain == {"private"}
    second.load_state(state)
    torch.manual_seed(4)
    one = first.train(first.initial(), 0).model
    torch.manual_seed(4)
    assert not np.array_equal(one, second.train(first.initial(), 0).model)
    first.load_state(state)
    assert not np.array_equal(one, first.train(first.initial(), 0).model)


def test_the_count_of_samples_is_the_expected_one() -> None:
    trainer = small_trainer(privacy=PRIVACY, interval=3, batch_size=8)
    trainer.privacy(None)
    assert {trainer.train(trainer.initial(), number).samples for number in range(5)} == {24}


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm1d(2),
        nn.BatchNorm1d(2, track_running_stats=False),
        nn.SyncBatchNorm(2),
        nn.InstanceNorm1d(2, track_running_stats=True),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_layers_that_mix_the_records_of_a_batch_are_refused_and_group_norm_is_named(layer: nn.Module) -> None:
    with pytest.raises(SettingsError, match=r"inner\.1 is a .*GroupNorm"):
        _trainer_of(nn.Sequential(nn.Flatten(), layer))


def test_layers_that_keep_to_one_record_are_trained() -> None:
    inner = nn.Sequential(nn.Unflatten(1, (1, 2)), nn.GroupNorm(1, 1), nn.InstanceNorm1d(1), nn.Flatten(), nn.Dropout(0.5))
    trainer = _trainer_of(inner)
    trainer.privacy(None)
    assert np.isfinite(trainer.train(trainer.initial(), 0).model).all()


class Remembers(nn.Module):
    """Keeps the last record that it saw."""

    last: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.zeros(2))

    def forward(self, inputs: Tensor) -> Tensor:
        self.last.copy_(inputs.detach()[-1])
        return inputs


def test_a_buffer_that_training_changes_is_refused_and_stays_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    drawing(monkeypatch, 0, 1)
    trainer = _trainer_of(Remembers())
    trainer.privacy(None)
    with pytest.raises(SettingsError, match=r"buffer inner\.last"):
        trainer.train(trainer.initial(), 0)
    assert trainer.state()["buffers/inner.last"].tolist() == [0.0, 0.0]


class Codebook(nn.Module):
    """A frozen parameter that follows the records."""

    def __init__(self) -> None:
        super().__init__()
        self.code = nn.Parameter(torch.zeros(2), requires_grad=False)

    def forward(self, inputs: Tensor) -> Tensor:
        self.code.data.add_(inputs.detach()[-1])
        return inputs


class Renormed(nn.Module):
    """Moves its own trained parameter, as an embedding with `max_norm` does."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, inputs: Tensor) -> Tensor:
        self.scale.data.clamp_(max=float(inputs.detach().abs().max()))
        return inputs * self.scale


class LooksAhead(nn.Module):
    """The recipe of adversarial training: a backward of its own for the gradient of the inputs, which fills all others too."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        moved = inputs.detach().requires_grad_(True)
        self.inner(moved).sum().backward()
        assert moved.grad is not None
        return self.inner(inputs + 0.1 * moved.grad.sign())  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("inner", "said"),
    [
        (Codebook(), r"parameter inner\.code"),
        (Renormed(), r"parameter inner\.scale"),
        (LooksAhead(), r"calls backward\(\) itself"),
    ],
)
def test_nothing_of_a_record_stays_in_a_module_beside_its_gradient(
    inner: nn.Module, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawing(monkeypatch, 0, 1)
    trainer = _trainer_of(inner)
    trainer.privacy(None)
    for _ in range(2):  # what was refused once is refused for good
        with pytest.raises(SettingsError, match=said):
            trainer.train(trainer.initial(), 0)


@pytest.mark.parametrize("layer", [nn.Embedding(4, 2, max_norm=1.0), nn.EmbeddingBag(4, 2, max_norm=1.0)])
def test_embeddings_that_shorten_the_rows_they_look_up_are_refused(layer: nn.Module) -> None:
    with pytest.raises(SettingsError, match="with max_norm"):
        RecordGradients(layer, list(layer.named_parameters()), lambda module, batch: module(batch).sum())


class Centred(nn.Module):
    """Looks across the batch."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs - inputs.mean(dim=0, keepdim=True)


def test_neither_module_nor_loss_ever_sees_two_records_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    without_noise(monkeypatch)
    drawing(monkeypatch, 0, 1, 2, 3)
    assert gradient(_trainer_of(Centred())).tolist() == [0.0, 0.0]
    weighted = dot_trainer(ROWS)
    across = TorchTrainer(
        Dot(2),
        train=DataLoader(_rows(), batch_size=4, collate_fn=_rolled),
        evaluation=[],
        loss=lambda outputs, _: outputs.sum() / len(outputs) ** 2,
        settings=TrainerSettings(optimizer="sgd", learning_rate=1.0, privacy=PRIVACY),
    )
    assert gradient(across) == pytest.approx(gradient(weighted))


def _rolled(rows: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """A collate function that adds each record's neighbour to it."""
    inputs = torch.stack([row for row, _ in rows])
    return inputs + 7 * (inputs.roll(1, 0) - inputs), torch.zeros(len(rows))


class Branches(nn.Module):
    """torch.func cannot put this side by side: it reads a value."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs if float(inputs.detach().sum()) > -100.0 else -inputs


@pytest.mark.parametrize("inner", [Branches(), nn.Identity()], ids=["one by one", "side by side"])
def test_a_module_that_cannot_be_put_side_by_side_gives_the_same_sum(inner: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    without_noise(monkeypatch)
    drawing(monkeypatch, 0, 1, 2, 3)
    assert gradient(_trainer_of(inner)) == pytest.approx([0.2 / 4, 1.0 / 4])


class Sequences(Dataset[Tensor]):
    """Records of different lengths, as texts are."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, place: int) -> Tensor:
        return torch.full((1 + place // 2, 2), 0.1)


def test_records_of_different_lengths_are_trained_without_padding_them_to_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    without_noise(monkeypatch)
    drawing(monkeypatch, 0, 1, 2, 3)
    trainer = TorchTrainer(
        Dot(2),
        train=DataLoader(Sequences(), batch_size=4, collate_fn=lambda rows: (torch.stack(rows), torch.zeros(len(rows)))),
        evaluation=[],
        loss=lambda outputs, _: outputs.sum(),
        settings=TrainerSettings(optimizer="sgd", learning_rate=1.0, privacy=PRIVACY),
    )
    assert gradient(trainer) == pytest.approx([0.6 / 4, 0.6 / 4])


class Named(Dataset[dict[str, Tensor]]):
    """Records as a tokenizer gives them, of two lengths."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        return {"inputs": torch.full((1 + place % 2, 2), 0.1), "labels": torch.tensor(float(place))}


class OwnLoss(Dot):
    """As transformers' models do: named inputs, and the loss in what comes back."""

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        return {"loss": (inputs @ self.weight).sum() + labels.mean()}


class ListData(Dataset[Any]):
    def __init__(self, records: list[Any]) -> None:
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, place: int) -> Any:
        return self._records[place]


def test_a_record_of_which_several_rows_are_made_is_refused() -> None:
    """Each row would be clipped by itself, and the record count as often."""

    def windows(batch: list[Tensor]) -> tuple[Tensor, Tensor]:
        rows = torch.cat([record.repeat(8, 1) for record in batch])
        return rows, torch.zeros(len(rows), dtype=torch.long)

    source = LoaderRecords(DataLoader(ListData([torch.ones(4)] * 3), batch_size=2, collate_fn=windows))
    with pytest.raises(SettingsError, match=r"shape \(8, 4\) of one record"):
        list(source.pieces(np.arange(3), 0, 16))
    scalars = LoaderRecords(DataLoader(ListData([torch.ones(4)]), batch_size=1, collate_fn=lambda batch: batch[0].sum()))
    with pytest.raises(SettingsError, match=r"shape \(\) of one record"):
        list(scalars.pieces(np.arange(1), 0, 16))


def test_records_that_hold_more_than_tensors_lie_in_one_batch_only_if_that_is_the_same() -> None:
    """Else every record of a batch would be trained with the first one's text."""
    records = [{"text": text, "label": torch.tensor(label)} for label, text in enumerate(["one", "other", "one"])]
    source = LoaderRecords(DataLoader(ListData(records), batch_size=3))
    found = [(piece["text"], piece["label"].tolist()) for piece in source.pieces(np.arange(3), 0, 16)]
    assert [(list(text), labels) for text, labels in found] == [(["one"], [0, 2]), (["other"], [1])]


def test_crops_and_masks_follow_from_no_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a known seed, the crop or mask of one record would tell whether another was drawn before it."""
    drawn: list[tuple[float, float, float]] = []

    class Noticing(ListData):
        def __getitem__(self, place: int) -> Any:
            drawn.append((float(torch.rand(1)), float(np.random.rand()), random.random()))
            return super().__getitem__(place)

    monkeypatch.setattr(secure_random, "chosen", lambda records, _: np.arange(records))
    for _ in range(2):
        torch.manual_seed(0)
        np.random.seed(0)  # as a user may
        random.seed(0)
        data = Noticing([(torch.ones(4), torch.tensor(0))])
        trainer = TorchTrainer(
            nn.Linear(4, 2),
            train=DataLoader(data, batch_size=1),
            evaluation=[],
            loss=nn.CrossEntropyLoss(),
            settings=TrainerSettings(privacy=PRIVACY, optimizer="sgd", device="cpu"),
        )
        trainer.privacy(None)
        trainer.train(trainer.initial(), 0)
    for kind in zip(*drawn, strict=True):
        assert len(set(kind)) == len(drawn) >= 2
    images = Images(np.arange(64 * 32 * 32 * 3, dtype=np.uint64).astype(np.uint8).reshape(64, 3, 32, 32), np.zeros(64, np.int64))
    varied = Preparation(255.0, (0.5,) * 3, (0.25,) * 3, torch.device("cpu"), augment=True)
    batches = ImageBatches(images, np.arange(64), varied, 8, seed=0)
    first, second = (next(batches.pieces(np.arange(64), 0, 64))[0] for _ in range(2))
    assert not torch.equal(first, second)


def test_batches_of_named_tensors_and_modules_with_a_loss_of_their_own_are_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    without_noise(monkeypatch)
    drawing(monkeypatch, 0, 1, 2, 3)
    trainer = TorchTrainer(
        OwnLoss(2),
        train=DataLoader(Named(), batch_size=4),
        evaluation=[],
        settings=TrainerSettings(optimizer="sgd", learning_rate=1.0, privacy=PRIVACY),
    )
    assert gradient(trainer) == pytest.approx([0.6 / 4, 0.6 / 4])


class Stream(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        yield torch.ones(2)

    def __len__(self) -> int:
        return 1


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (DataLoader(Stream()), "map-style"),
        (DataLoader(TensorDataset(torch.ones(3, 2)), sampler=WeightedRandomSampler([1.0, 1.0, 9.0], 3)), "sampler"),
        (DataLoader(TensorDataset(torch.ones(3, 2)), batch_sampler=[[0, 1], [0, 2]]), "sampler"),
        (DataLoader(TensorDataset(torch.ones(3, 2)), batch_size=None), "sampler"),
        (Counting(), "Counting only gives whole batches"),
    ],
    ids=["stream", "weights", "own batches", "no batches", "no records"],
)
def test_data_whose_records_cannot_be_drawn_alike_are_refused(source: Any, text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        TorchTrainer(
            Dot(2), train=source, evaluation=[], loss=lambda outputs, _: outputs.mean(), settings=TrainerSettings(privacy=PRIVACY)
        )


def test_clipping_the_noisy_gradient_once_more_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"clip_norm in \[trainer\]"):
        small_trainer(privacy=PRIVACY, clip_norm=1.0)


def test_a_state_from_before_privacy_is_refused() -> None:
    before = small_trainer()
    before.train(before.initial(), 0)
    with pytest.raises(InvalidInputError, match=r"without \[privacy\]"):
        small_trainer(privacy=PRIVACY).load_state(before.state())


def test_a_training_that_nobody_asked_the_cost_of_is_refused() -> None:
    trainer = small_trainer(privacy=PRIVACY)
    with pytest.raises(InvalidInputError, match="call privacy"):
        trainer.train(trainer.initial(), 0)


def test_a_trainer_without_privacy_states_nothing() -> None:
    assert small_trainer().privacy(None) is None


def test_the_noise_lasts_for_the_trainings_that_the_run_has_left() -> None:
    budget = PrivacySettings(epsilon=2.0, delta=1e-5)
    trainer = dot_trainer(np.zeros((100, 2)), budget, batch_size=5, interval=2)
    said = trainer.privacy(Allowance(Budget(2.0, 1e-5), RecordLedger(), "run", 50))
    assert said == SampledGaussian(noise_for(Budget(2.0, 1e-5), 0.05, 2, 50), 0.05, 2)
    fixed = dot_trainer(np.zeros((100, 2)), budget.model_copy(update={"rounds": 10}), batch_size=5, interval=2)
    fewer = fixed.privacy(Allowance(Budget(2.0, 1e-5), RecordLedger(), "run", 50))
    assert isinstance(fewer, SampledGaussian)
    assert fewer.noise < said.noise


def test_a_run_goes_on_with_the_noise_that_it_began_with_while_rate_and_steps_are_the_same() -> None:
    budget = PrivacySettings(epsilon=2.0, delta=1e-5)
    begun = RecordLedger(order=16.0).charge("run", SampledGaussian(7.5, 0.05, 2))
    allowance = Allowance(Budget(2.0, 1e-5), begun, "run", 50)
    same = dot_trainer(np.zeros((100, 2)), budget, batch_size=5, interval=2)
    assert same.privacy(allowance) == SampledGaussian(7.5, 0.05, 2)
    other = dot_trainer(np.zeros((100, 2)), budget, batch_size=5, interval=3).privacy(allowance)
    assert isinstance(other, SampledGaussian)
    assert other.noise != 7.5


def test_the_noise_that_was_stated_last_is_the_one_that_is_added() -> None:
    trainer = dot_trainer(np.zeros((10, 4000)), PrivacySettings(epsilon=8.0, delta=1e-5), batch_size=1)
    for noise in (2.0, 5.0):
        ledger = RecordLedger(order=16.0).charge("run", SampledGaussian(noise, 0.1, 1))
        trainer.privacy(Allowance(Budget(8.0, 1e-5), ledger, "run", 1))
        assert trainer.train(trainer.initial(), 0).model.std() == pytest.approx(noise, rel=0.1)


@pytest.mark.parametrize(
    "settings",
    [
        {"model": "mlp"},
        {"model": "cnn", "augment": True, "optimizer": "torch.optim.AdamW", "learning_rate": 1e-3},
        {"model": "resnet20_gn", "model_options": {"width": 8}, "autocast": "bfloat16"},
    ],
    ids=lambda settings: settings["model"],
)
def test_built_in_private_trainers_keep_every_promise(settings: dict[str, Any]) -> None:
    trainer: Trainer = small_trainer(**settings, privacy=PRIVACY)
    findings = check_trainer(trainer, trainer.layout)
    assert failures(findings) == []
    details = {finding.check: finding.detail for finding in findings}
    assert "fresh" in details["repeatable"]
    assert "noise 1 times" in details["privacy"]


def test_digits_are_learned_within_a_budget_of_epsilon_8() -> None:
    privacy = PrivacySettings(epsilon=8.0, delta=1e-5, rounds=40)
    trainer = small_trainer(privacy=privacy, interval=5, batch_size=64, learning_rate=0.5, evaluation_samples=None)
    trainer.privacy(None)
    model = trainer.initial()
    for number in range(40):
        model = trainer.train(model, number).model
    accuracy = trainer.evaluate(model).accuracy
    assert accuracy is not None
    assert accuracy > 0.8


def _rows() -> TensorDataset:
    return TensorDataset(torch.tensor(ROWS), torch.zeros(4))


def _trainer_of(inner: nn.Module) -> TorchTrainer:
    """`inner` before a dot product, on four records whose gradients lie within the clip norm."""
    module = Dot(2)
    module.add_module("inner", inner)
    module.forward = lambda inputs: inner(inputs) @ module.weight  # type: ignore[method-assign]
    return TorchTrainer(
        module,
        train=DataLoader(_rows(), batch_size=4),
        evaluation=DataLoader(_rows(), batch_size=4),
        loss=lambda outputs, _: outputs.mean(),
        settings=TrainerSettings(optimizer="sgd", learning_rate=1.0, privacy=PRIVACY),
    )


def test_the_vector_is_as_long_as_before() -> None:
    assert dot_trainer(ROWS).initial().tolist() == vector(0.0, 0.0).tolist()


def test_a_record_of_a_large_model_never_adds_more_than_the_clip() -> None:
    """Sixteen large entries and a million that are lost beside them where squares are added in single precision."""
    record = torch.full((1, 1_000_003), 5.9e-8**0.5)
    record[0, :16] = 1.0
    module = Dot(record.shape[1])
    gradients = RecordGradients(module, list(module.named_parameters()), lambda model, batch: model(batch).mean())
    total = torch.zeros(record.shape[1])
    gradients.add_to(total, record, 0.5)
    assert 0.4995 < float(torch.linalg.vector_norm(total.double())) <= 0.5
