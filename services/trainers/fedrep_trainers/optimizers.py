"""Local optimizers over one flat parameter vector and its gradient. Their state lives from round to round.

Equation (local_mSGD) of the paper's appendix: m <- beta m + (1 - beta) grad, w <- w - eta m, with the last momentum of
a round being the first of the next. torch.optim.SGD has no (1 - beta) factor unless dampening is set, and then leaves
it out of the very first step; hence our own, which is three lines on a flat vector.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedrep.errors import InvalidInputError, SettingsError
from fedrep_trainers.settings import TrainerSettings

Arrays = Mapping[str, NDArray[np.generic]]


class LocalOptimizer(Protocol):
    def step(self, rate: float) -> None:
        """Move the parameters by one step along their present gradient."""
        ...

    def state(self) -> dict[str, NDArray[np.generic]]: ...

    def load_state(self, state: Arrays) -> None: ...


class MomentumSGD:
    """Local momentum SGD as printed; beta = 0 is local SGD. Weight decay adds to the gradient, as in torch.optim."""

    def __init__(self, flat: Tensor, gradient: Tensor, beta: float, weight_decay: float) -> None:
        self._flat = flat
        self._gradient = gradient
        self._beta = beta
        self._weight_decay = weight_decay
        self._momentum = torch.zeros_like(flat) if beta else None

    @torch.no_grad()
    def step(self, rate: float) -> None:
        if self._weight_decay:
            self._gradient.add_(self._flat, alpha=self._weight_decay)
        direction = self._gradient
        if self._momentum is not None:
            direction = self._momentum.mul_(self._beta).add_(self._gradient, alpha=1.0 - self._beta)
        self._flat.add_(direction, alpha=-rate)

    def state(self) -> dict[str, NDArray[np.generic]]:
        return {} if self._momentum is None else {"momentum": to_numpy(self._momentum)}

    def load_state(self, state: Arrays) -> None:
        if self._momentum is None:
            return
        if "momentum" not in state:
            raise InvalidInputError("the saved trainer state has no momentum; was it written with another optimizer?")
        copy_into(self._momentum, state["momentum"], "momentum")


class TorchOptimizer:
    """Any optimizer of torch.optim that needs no closure, over the module's parameters (views into the flat vector)."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._untouched = copy.deepcopy(optimizer.state_dict())

    def step(self, rate: float) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()

    def state(self) -> dict[str, NDArray[np.generic]]:
        return {
            f"{index}/{name}": to_numpy(value) if isinstance(value, Tensor) else np.asarray(value)
            for index, values in self._optimizer.state_dict()["state"].items()
            for name, value in values.items()
            if value is not None
        }

    def load_state(self, state: Arrays) -> None:
        values: dict[int, dict[str, Tensor]] = {}
        for key, array in state.items():
            index, _, name = key.partition("/")
            if not index.isdigit() or not name:
                raise InvalidInputError(f"the saved trainer state holds {key!r}; did another optimizer write it?")
            values.setdefault(int(index), {})[name] = torch.from_numpy(np.array(array))
        self._optimizer.load_state_dict({**copy.deepcopy(self._untouched), "state": values})


def build_optimizer(
    settings: TrainerSettings, parameters: list[torch.nn.Parameter], flat: Tensor, gradient: Tensor
) -> LocalOptimizer:
    own = {"momentum_sgd": settings.momentum, "sgd": 0.0}
    if settings.optimizer in own:
        return MomentumSGD(flat, gradient, own[settings.optimizer], settings.weight_decay)
    name = settings.optimizer.removeprefix("torch.optim.")
    kind = getattr(torch.optim, name, None) if name != settings.optimizer else None
    if not (inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer)) or kind is torch.optim.Optimizer:
        raise SettingsError(
            f"optimizer = {settings.optimizer!r} is unknown; use momentum_sgd, sgd or torch.optim.<Name>, "
            "for example torch.optim.AdamW"
        )
    if name == "LBFGS":
        raise SettingsError("torch.optim.LBFGS evaluates the loss many times per step; a local step does so once")
    options: dict[str, Any] = {"lr": settings.learning_rate, **settings.optimizer_options}
    if settings.weight_decay:
        options["weight_decay"] = settings.weight_decay
    factory: Callable[..., torch.optim.Optimizer] = kind
    try:
        return TorchOptimizer(factory(parameters, **options))
    except (TypeError, ValueError) as error:
        raise SettingsError(f"{settings.optimizer} does not accept these settings: {error}") from error


def to_numpy(tensor: Tensor) -> NDArray[np.generic]:
    """A copy on the host, never a view: later steps must not change what was handed out. numpy has no bfloat16."""
    tensor = tensor.float() if tensor.dtype is torch.bfloat16 else tensor
    copied: NDArray[np.generic] = tensor.detach().to("cpu", copy=True).numpy()
    return copied


def copy_into(target: Tensor, source: NDArray[np.generic], name: str) -> None:
    if source.shape != tuple(target.shape):
        raise InvalidInputError(
            f"{name} in the saved trainer state has shape {list(source.shape)}, this model needs {list(target.shape)}"
        )
    with torch.no_grad():
        target.copy_(torch.from_numpy(np.array(source)))
