"""The sum of single records' gradients, each cut to a norm first, by torch.func.

The module and the loss see one record at a time (vmap puts them side by side again), so nothing in them can carry something of
one record into the gradient of another: not a loss weighted over the batch, nor a layer that looks across it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from fedrep.errors import SettingsError
from fedrep_trainers.forward import sample_count

LossOf = Callable[[nn.Module, Any], Tensor]
_BLOCK = 4096  # squares that are added in single precision
_ROUNDING = 2.0**-24  # of each addition, and of the few steps after them


class RecordGradients:
    """`loss_of(module, batch)` is the mean loss of a batch; it is given batches of one."""

    def __init__(self, module: nn.Module, named: list[tuple[str, nn.Parameter]], loss_of: LossOf) -> None:
        require_independent_records(module)
        self._module = module
        self._loss_of = loss_of
        self._parameters = [parameter for _, parameter in named]
        self._values = {f"module.{name}": parameter.detach() for name, parameter in named}
        # One record's loss as a function of the parameters; the gradients come out with a first dimension for the records.
        with_loss = _WithLoss(module, loss_of)
        self._side_by_side = vmap(
            grad_and_value(lambda values, record: functional_call(with_loss, values, (_mapped(lambda t: t[None], record),))),
            in_dims=(None, 0),
            randomness="different",
        )
        self._one_by_one = False

    def add_to(self, total: Tensor, batch: Any, clip: float, kept: Tensor | None = None) -> Tensor:
        """Add each record's clipped gradient to the flat `total`; every record's loss. What is not finite adds nothing.

        With `kept`, one where a coordinate counts and zero elsewhere, gradients are cut to those before they are clipped.
        """
        gradients, losses = self._each(batch)
        count = len(losses)
        rows = [gradient.detach().reshape(count, -1) for gradient in gradients]
        if kept is not None:
            rows = [row * part for row, part in zip(rows, torch.split(kept, [row.shape[1] for row in rows]), strict=True)]
        norms = _norms(rows)
        finite = torch.isfinite(norms)
        factor = torch.where(finite, clip / norms.clamp(min=clip), torch.zeros_like(norms))
        if not bool(finite.all()):
            rows = [torch.where(finite[:, None], row, torch.zeros_like(row)) for row in rows]
        start = 0
        for row in rows:
            end = start + row.shape[1]
            total[start:end].addmv_(row.T, factor)
            start = end
        return losses.detach().float()

    def _each(self, batch: Any) -> tuple[list[Tensor], Tensor]:
        if not self._one_by_one:
            try:
                gradients, losses = self._side_by_side(self._values, batch)
                return list(gradients.values()), losses
            except (RuntimeError, ValueError):
                # vmap has no rule for some operation (recurrent layers, a branch on values): slower, and the same sum. An error
                # of the data comes again below.
                self._one_by_one = True
        found = [self._alone(_record(batch, place)) for place in range(sample_count(batch))]
        gradients_of_each = zip(*(gradients for gradients, _ in found), strict=True)
        return [torch.stack(parts) for parts in gradients_of_each], torch.stack([loss for _, loss in found])

    def _alone(self, record: Any) -> tuple[list[Tensor], Tensor]:
        loss = self._loss_of(self._module, record)
        gradients = torch.autograd.grad(loss, self._parameters, allow_unused=True)
        pairs = zip(gradients, self._parameters, strict=True)
        return [torch.zeros_like(own) if found is None else found for found, own in pairs], loss.detach()


def _norms(rows: list[Tensor]) -> Tensor:
    """Of each record over all its tensors, never less than it is: torch adds millions of squares in single precision, where small
    ones are lost beside large ones, and a record whose norm is measured short would add more than the clip allows."""
    blocks = torch.cat([torch.linalg.vector_norm(block, dim=-1) for row in rows for block in _blocks(row)], dim=1)
    exact = blocks.to("cpu" if blocks.device.type == "mps" else blocks.device, torch.float64)  # MPS has no double precision
    slack = (min(_BLOCK, max(row.shape[1] for row in rows)) + 4) * _ROUNDING
    norms: Tensor = torch.linalg.vector_norm(exact, dim=1) * (1.0 + slack)
    return norms.to(blocks.device, blocks.dtype)


def _blocks(row: Tensor) -> Iterator[Tensor]:
    """(records, blocks, values of a block): whole blocks, and what is left as one."""
    count, size = row.shape
    whole = size - size % _BLOCK
    if whole:
        yield row[:, :whole].reshape(count, -1, _BLOCK)
    if whole < size:
        yield row[:, whole:].reshape(count, 1, -1)


class _WithLoss(nn.Module):
    def __init__(self, module: nn.Module, loss_of: LossOf) -> None:
        super().__init__()
        self.module = module
        self._loss_of = loss_of

    def forward(self, record: Any) -> Tensor:
        return self._loss_of(self.module, record)


def require_independent_records(module: nn.Module) -> None:
    for name, layer in module.named_modules():
        mixes = isinstance(layer, _BatchNorm) or (isinstance(layer, _InstanceNorm) and layer.track_running_stats)
        if mixes:
            raise SettingsError(
                f"{name or 'the model'} is a {type(layer).__name__}, whose statistics mix the records of a batch, so no record's "
                "privacy can be bounded; with [privacy] use GroupNorm in its place (model = 'resnet20_gn' has it), on every silo"
            )

        if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.max_norm is not None:
            raise SettingsError(
                f"{name or 'the model'} is a {type(layer).__name__} with max_norm, which shortens the rows of the very tokens "
                "that a silo holds, in the model that it sends; with [privacy] leave max_norm out"
            )


def _record(batch: Any, place: int) -> Any:
    return _mapped(lambda tensor: tensor[place : place + 1], batch)


def _mapped(function: Callable[[Tensor], Tensor], batch: Any) -> Any:
    """A batch of the same form, each tensor replaced by what the function makes of it."""
    if isinstance(batch, Tensor):
        return function(batch)
    if isinstance(batch, Mapping):
        return {name: _mapped(function, value) for name, value in batch.items()}
    if isinstance(batch, tuple | list):
        return tuple(_mapped(function, value) for value in batch)
    return batch
