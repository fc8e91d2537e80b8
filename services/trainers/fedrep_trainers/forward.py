"""One batch through a module: what the module is given, what comes back, and which loss that is.

Batches come as tensors, tuples or dicts (as Hugging Face's collators make them), and modules return logits, a tuple, a dict or
an object with `.loss` and `.logits`, or the loss itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedrep.errors import SettingsError

Loss = Callable[[Any, Any], Tensor]

TARGET_KEYS = ("labels", "label", "targets", "target")


@dataclass(frozen=True, eq=False)
class Forward:
    """`logits` and `targets` where they can be told from the rest; accuracy and metrics are made from them."""

    loss: Tensor
    logits: Tensor | None
    targets: Any


def run_forward(module: nn.Module, batch: Any, loss: Loss | None) -> Forward:
    """With a loss the module gets the inputs and the loss the targets; without one the module gets all and returns the loss."""
    inputs, targets = split_batch(batch)
    outputs = call_module(module, inputs if loss is not None else batch)
    logits = _logits(outputs)
    if loss is None:
        return Forward(_own_loss(outputs), logits, targets)
    named = _part(outputs, "logits")
    return Forward(loss(outputs if named is None else named, inputs if targets is None else targets), logits, targets)


def split_batch(batch: Any) -> tuple[Any, Any]:
    """Inputs and targets: the last of a tuple, or the entry of a dict that is named like one; None where there are none."""
    if isinstance(batch, Mapping):
        key = next((name for name in TARGET_KEYS if name in batch), None)
        return {name: value for name, value in batch.items() if name != key}, batch[key] if key is not None else None
    if isinstance(batch, tuple | list):
        if len(batch) == 1:
            return batch[0], None
        inputs = batch[0] if len(batch) == 2 else tuple(batch[:-1])
        return inputs, batch[-1]
    return batch, None


def call_module(module: nn.Module, inputs: Any) -> Any:
    try:
        if isinstance(inputs, Mapping):
            return module(**inputs)
        if isinstance(inputs, tuple | list):
            return module(*inputs)
        return module(inputs)
    except Exception as error:
        where = failing_layer(module, error)
        if where is not None:
            error.add_note(where)
        raise


def failing_layer(module: nn.Module, error: BaseException) -> str | None:
    """The innermost layer that the error passed through, with the shapes of its parameters and of what it was given."""
    names = {id(layer): name for name, layer in module.named_modules()}
    layer: Any = None
    given: list[Tensor] = []
    trace = error.__traceback__
    while trace is not None:
        seen = trace.tb_frame.f_locals
        if trace.tb_frame.f_code.co_name == "forward" and id(seen.get("self")) in names:
            layer, given = seen["self"], [value for value in seen.values() if isinstance(value, Tensor)]
        trace = trace.tb_next
    if layer is None or not given:
        return None
    own = ", ".join(f"{name} {list(p.shape)}" for name, p in layer.named_parameters(recurse=False))
    inputs = ", ".join(str(list(tensor.shape)) for tensor in given)
    return f"in layer {names[id(layer)]!r} ({type(layer).__name__}{': ' if own else ''}{own}), which was given {inputs}"


def to_device(batch: Any, device: torch.device) -> Any:
    """The tensors of a batch on the device; anything else in it stays as it is."""
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {name: to_device(value, device) for name, value in batch.items()}
    if isinstance(batch, tuple | list):
        return tuple(to_device(value, device) for value in batch)
    return batch


def sample_count(batch: Any) -> int:
    """The length of the first tensor: the first dimension of a batch counts its samples."""
    first = _first_tensor(batch)
    if first is None or first.ndim == 0:
        raise SettingsError(
            f"a batch of the data is a {type(batch).__name__} without a tensor; batches are tensors, tuples of tensors "
            "(the last one the targets), or dicts of tensors"
        )
    return len(first)


def _first_tensor(batch: Any) -> Tensor | None:
    if isinstance(batch, Tensor):
        return batch
    values = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, tuple | list) else ()
    return next((found for value in values if (found := _first_tensor(value)) is not None), None)


def _part(outputs: Any, name: str) -> Any:
    return outputs.get(name) if isinstance(outputs, Mapping) else getattr(outputs, name, None)


def _logits(outputs: Any) -> Tensor | None:
    """The first output that is no single number, where the module does not name its logits."""
    candidates = [_part(outputs, "logits"), *(outputs if isinstance(outputs, tuple | list) else [outputs])]
    return next((tensor for tensor in candidates if isinstance(tensor, Tensor) and tensor.ndim > 0), None)


def _own_loss(outputs: Any) -> Tensor:
    candidates = [_part(outputs, "loss"), *(outputs[:1] if isinstance(outputs, tuple | list) else [outputs])]
    found = next((tensor for tensor in candidates if isinstance(tensor, Tensor) and tensor.numel() == 1), None)
    if found is None:
        raise SettingsError(
            f"the model returned a {_described(outputs)} and no loss; give TorchTrainer a `loss`, let the model return its own "
            "(a number, `.loss`, a dict with 'loss', or first in a tuple), or put 'labels' into the batches"
        )
    return found.reshape(())


def _described(outputs: Any) -> str:
    if isinstance(outputs, Tensor):
        return f"tensor of shape {list(outputs.shape)}"
    if isinstance(outputs, Mapping):
        return f"{type(outputs).__name__} with {', '.join(map(repr, outputs)) or 'nothing in it'}"
    return type(outputs).__name__
