"""A torch module, batches and a loss as a Trainer: local SGD and momentum SGD of the paper, or any torch.optim.

All trainable parameters are views into one flat tensor, and their gradients into another. The vector then goes in and
out with one copy, and clipping, weight decay and momentum are single operations on it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader

from fedrep.errors import InvalidInputError, NonFiniteError, SettingsError
from fedrep.record_privacy import TrainingPrivacy
from fedrep_trainers import secure_random
from fedrep_trainers.batches import Batch, BatchSource, LoaderBatches, derived_seed
from fedrep_trainers.devices import choose_device
from fedrep_trainers.forward import Loss, run_forward, sample_count, split_batch, to_device
from fedrep_trainers.frozen import frozen_digest
from fedrep_trainers.layout import ModelLayout, Vector
from fedrep_trainers.normalization import reestimate, tracked_norms
from fedrep_trainers.optimizers import build_optimizer, copy_into, to_numpy
from fedrep_trainers.predictions import Metrics, Predictions, checked
from fedrep_trainers.private_steps import PrivateSteps
from fedrep_trainers.schedule import learning_rate
from fedrep_trainers.settings import TrainerSettings
from fedrep_trainers.trainer import Allowance, Evaluation, TrainerState, TrainResult


class TorchTrainer:
    """`loss` returns the mean over a batch; without one the module gets whole batches and returns its own (see `forward`).

    Targets of class indices also give an accuracy, and `metrics` whatever else it makes of all outputs and targets.

    `calibration`, if given, re-estimates batch-norm statistics before each evaluation and export; without it evaluation
    uses the statistics of this silo's own training. Frozen parameters stay as the module has them.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        train: BatchSource | DataLoader[Any],
        evaluation: Iterable[Batch],
        loss: Loss | None = None,
        settings: TrainerSettings,
        calibration: Iterable[Batch] | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        if settings.threads is not None:
            torch.set_num_threads(settings.threads)
        self._settings = settings
        self._device = choose_device(settings.device)
        self._module = module.to(self._device)
        self._seed = derived_seed(settings.seed, settings.shard_index)
        self._source = LoaderBatches(train, self._seed) if isinstance(train, DataLoader) else train
        self._evaluation = evaluation
        self._calibration = calibration
        self._loss = loss
        self._metrics = metrics
        self._step = 0
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        self._layout = ModelLayout.of(((name, p.shape) for name, p in named), frozen_digest(module))
        self._parameters = [p for _, p in named]
        self._flat, self._gradient = _flatten(named, self._device)
        self._initial = None if self._device.type == "meta" else self._vector()
        self._optimizer = build_optimizer(settings, self._parameters, self._flat, self._gradient)
        self._private = (
            PrivateSteps(self._module, named, self._gradient, train, self._loss_of, settings, settings.privacy)
            if settings.privacy is not None
            else None
        )

    @property
    def layout(self) -> ModelLayout:
        return self._layout

    @property
    def device(self) -> torch.device:
        return self._device

    def initial(self) -> Vector:
        if self._initial is None:
            raise SettingsError("device = 'meta' holds no values; it only checks shapes and devices")
        return self._initial.copy()

    def privacy(self, allowance: Allowance | None) -> TrainingPrivacy | None:
        """With `[privacy]` in the settings, the steps of DP-SGD that the next training makes; the noise is fixed here."""
        return None if self._private is None else self._private.statement(allowance)

    def train(self, model: Vector, round_number: int) -> TrainResult:
        return self._train(model, round_number, None)

    def train_on(self, model: Vector, round_number: int, coordinates: NDArray[np.int64]) -> TrainResult:
        """With `[privacy]` every record's gradient is cut to these coordinates before it is clipped, and they alone get noise."""
        return self._train(model, round_number, coordinates)

    def _train(self, model: Vector, round_number: int, coordinates: NDArray[np.int64] | None) -> TrainResult:
        self._layout.require_vector(model)
        if self._private is not None:
            self._private.begin(coordinates)
        before = self.state()
        try:
            self._load(model)
            losses, samples = self.local_steps(round_number)
            return self._result(losses, samples, round_number)
        except BaseException:
            self.load_state(before)
            raise

    def local_steps(self, round_number: int) -> tuple[Tensor, int]:
        """The round's I local steps, reading nothing back from the device: every step's loss, and the sample count."""
        rate = learning_rate(self._settings, round_number)
        losses: list[Tensor] = []
        samples = 0
        self._module.train()
        with self._own_randomness():
            for _ in range(self._settings.interval):
                if self._private is not None:
                    secure_random.reseed_others()
                    losses.append(self._private.fill(self._step))
                    self._optimizer.step(rate)
                    self._step += 1
                    continue
                torch.manual_seed(derived_seed(self._seed, 2, self._step))
                batch = self._source.batch(self._step)
                samples += sample_count(batch)
                losses.append(self._one_step(to_device(batch, self._device), rate))
                self._step += 1
        return torch.stack(losses), samples if self._private is None else self._private.samples

    def evaluate(self, model: Vector) -> Evaluation:
        with self.module_at(model):
            return self._measure()

    def export(self, model: Vector) -> dict[str, NDArray[np.generic]]:
        """The whole state dict, with batch-norm statistics from the calibration data."""
        if tracked_norms(self._module) and self._calibration is None:
            raise SettingsError(
                "this model has batch-norm layers, whose statistics are not part of the federation's vector, and there "
                "is no calibration data to estimate them from; export from a trainer with calibration data"
            )
        with self.module_at(model) as module:
            return {name: to_numpy(tensor) for name, tensor in module.state_dict().items()}

    @contextlib.contextmanager
    def module_at(self, model: Vector) -> Iterator[nn.Module]:
        """The module with these parameters, in evaluation mode and calibrated, for as long as the block lasts."""
        self._layout.require_vector(model)
        buffers = self._buffers()
        try:
            self._load(model)
            self._calibrate()
            self._module.eval()
            yield self._module
        finally:
            self._load_buffers(buffers)

    def example_inputs(self) -> Any:
        """What the module takes: the inputs of the first batch it is evaluated on."""
        first = next(iter(self._evaluation), None)
        if first is None:
            raise SettingsError("the evaluation data is empty, so nothing shows what the model takes")
        return to_device(first if self._loss is None else split_batch(first)[0], self._device)

    def state(self) -> dict[str, NDArray[np.generic]]:
        state: dict[str, NDArray[np.generic]] = {"step": np.array(self._step, dtype=np.int64)}
        if self._private is not None:
            state["private"] = np.array(1, dtype=np.int64)
        state.update({f"buffers/{name}": array for name, array in self._buffers().items()})
        state.update({f"optimizer/{name}": array for name, array in self._optimizer.state().items()})
        return state

    def load_state(self, state: TrainerState) -> None:
        if "step" not in state:
            raise InvalidInputError("the saved trainer state has no step number; it was written by another trainer")
        if self._private is not None and "private" not in state:
            raise InvalidInputError(
                "the saved trainer state was made without [privacy], so its momentum holds records without noise; leave with "
                "`fedrep client leave --purge` and join with an empty state folder"
            )
        self._load_buffers(_below("buffers/", state))
        self._optimizer.load_state(_below("optimizer/", state))
        self._step = int(state["step"])

    def _one_step(self, batch: Any, rate: float) -> Tensor:
        self._gradient.zero_()
        loss = self._loss_of(self._module, batch)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward without annotations
        if self._settings.clip_norm is not None:
            norm = torch.linalg.vector_norm(self._gradient)
            self._gradient.mul_(torch.clamp(self._settings.clip_norm / (norm + 1e-6), max=1.0))
        self._optimizer.step(rate)
        return loss.detach().float()

    def _loss_of(self, module: nn.Module, batch: Any) -> Tensor:
        with self._autocast():
            return run_forward(module, batch, self._loss).loss

    def _result(self, losses: Tensor, samples: int, round_number: int) -> TrainResult:
        values = np.asarray(to_numpy(losses), dtype=np.float32)
        finite = np.isfinite(values)
        if self._private is not None:  # a failed training would tell that a record was drawn; 0 where none was
            values = values[finite] if finite.any() else np.zeros(1, dtype=np.float32)
            finite = np.ones(values.shape, dtype=np.bool_)
        advice = "lower the learning rate, set clip_norm, or look for bad samples"
        if not finite.all():
            step = int(np.argmin(finite))
            raise NonFiniteError(
                f"the training loss became {values[step]} at local step {step + 1} of round {round_number} "
                f"(learning rate {learning_rate(self._settings, round_number):g}); {advice}"
            )
        trained = self._vector()
        if not np.isfinite(trained).all():
            raise NonFiniteError(f"the model became infinite or NaN while training in round {round_number}; {advice}")
        return TrainResult(model=trained, loss=float(np.mean(values)), samples=samples)

    @torch.no_grad()
    def _measure(self) -> Evaluation:
        self._module.eval()
        total, hits, samples = 0.0, 0, 0
        classifies = True
        outputs: list[NDArray[Any]] = []
        targets: list[NDArray[Any]] = []
        for batch in self._evaluation:
            with self._autocast():
                done = run_forward(self._module, to_device(batch, self._device), self._loss)
            count = sample_count(batch)
            total, samples = total + float(done.loss) * count, samples + count
            classifies = classifies and _are_class_indices(done.logits, done.targets)
            if classifies and done.logits is not None:
                hits += int((done.logits.argmax(dim=1) == done.targets).sum())
            if self._metrics is not None:
                outputs += [to_numpy(done.logits.float())] if done.logits is not None else []
                targets += [to_numpy(done.targets)] if isinstance(done.targets, Tensor) else []
        if not samples:
            raise SettingsError("the evaluation data is empty; give this silo at least one sample to evaluate on")
        loss, accuracy = total / samples, hits / samples if classifies else None
        if self._metrics is None:
            return Evaluation(loss, accuracy, samples)
        return Evaluation(loss, accuracy, samples, checked(self._metrics(Predictions(loss, outputs, targets))))

    def _calibrate(self) -> None:
        if self._calibration is not None and tracked_norms(self._module):
            reestimate(self._module, self._calibration, self._device, whole=self._loss is None)

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self._settings.autocast == "off":
            return contextlib.nullcontext()
        return torch.autocast(self._device.type, dtype=torch.bfloat16)

    def _own_randomness(self) -> contextlib.AbstractContextManager[Any]:
        """Dropout and the like draw from seeds of ours, and leave the process's generators as they were."""
        devices = [self._device] if self._device.type == "cuda" else []
        return torch.random.fork_rng(devices=devices)

    def _load(self, model: Vector) -> None:
        with torch.no_grad():
            self._flat.copy_(torch.from_numpy(np.array(model)))

    def _vector(self) -> Vector:
        return np.asarray(to_numpy(self._flat), dtype=np.float32)

    def _buffers(self) -> dict[str, NDArray[np.generic]]:
        return {name: to_numpy(buffer) for name, buffer in self._module.named_buffers()}

    def _load_buffers(self, arrays: TrainerState) -> None:
        buffers = dict(self._module.named_buffers())
        if set(arrays) != set(buffers):
            odd = sorted(set(arrays) ^ set(buffers))[:5]
            raise InvalidInputError(f"the saved trainer state does not fit this model; differing buffers: {odd}")
        for name, buffer in buffers.items():
            copy_into(buffer, arrays[name], name)


def _flatten(named: list[tuple[str, nn.Parameter]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Move the parameters into one tensor and let them and their gradients be views."""
    for name, parameter in named:
        if parameter.dtype != torch.float32:
            raise SettingsError(f"parameter {name} is {parameter.dtype}; keep parameters float32 and use autocast for less")
    flat = torch.cat([p.detach().reshape(-1) for _, p in named])
    gradient = torch.zeros_like(flat, device=device)
    start = 0
    for _, parameter in named:
        end = start + parameter.numel()
        parameter.data = flat[start:end].view(parameter.shape)
        parameter.grad = gradient[start:end].view(parameter.shape)
        start = end
    return flat, gradient


def _below(prefix: str, state: TrainerState) -> dict[str, NDArray[np.generic]]:
    return {key.removeprefix(prefix): array for key, array in state.items() if key.startswith(prefix)}


def _are_class_indices(outputs: Any, targets: Any) -> bool:
    both = isinstance(outputs, Tensor) and isinstance(targets, Tensor)
    return both and bool(outputs.ndim == 2 and targets.ndim == 1 and not targets.is_floating_point())
