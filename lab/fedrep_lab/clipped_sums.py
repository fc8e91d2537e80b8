"""Sums of per-sample gradients, each cut to a length, without writing the gradients down one by one.

A sample's gradient in a linear layer is an outer product of two short vectors, so its length, and the sum over the samples of a
silo, follow from those vectors (Goodfellow, 2015); a convolution's is small enough to be written down. The gradient may be
projected on some coordinates before it is cut: then its length there counts, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedrep.errors import SettingsError

_TINY = 1e-12


@dataclass(frozen=True)
class _Place:
    """A layer's weight and bias in the flat vector."""

    weight: slice
    bias: slice
    shape: torch.Size  # of the weight


class ClippedSums:
    """For models made of linear layers, convolutions and functions without parameters."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._names = [(name, parameter.shape, parameter.numel()) for name, parameter in module.named_parameters()]
        self._layers = [layer for layer in module.modules() if any(True for _ in layer.parameters(recurse=False))]
        self._places: list[_Place] = []
        start = 0
        for layer in self._layers:
            plain = isinstance(layer, nn.Linear) or (isinstance(layer, nn.Conv2d) and _is_plain(layer))
            if not isinstance(layer, nn.Linear | nn.Conv2d) or not plain or layer.bias is None:
                raise SettingsError(
                    f"The lab trains with record-level privacy models of linear layers and plain convolutions with a bias, and "
                    f"{type(layer).__name__} is neither; choose small_cnn, mlp or logistic."
                )
            middle, end = start + layer.weight.numel(), start + layer.weight.numel() + layer.bias.numel()
            self._places.append(_Place(slice(start, middle), slice(middle, end), layer.weight.shape))
            start = end

    def __call__(
        self, flat: Tensor, inputs: Tensor, targets: Tensor, sizes: Sequence[int], clip: float, mask: Tensor | None = None
    ) -> Tensor:
        """One row for each run of `sizes` samples; with a mask of zeros and ones, of what the mask leaves of each gradient."""
        result = torch.zeros(len(sizes), flat.numel(), device=flat.device)
        if sum(sizes) == 0:
            return result
        seen = self._seen(flat, inputs, targets)
        squares = torch.zeros(inputs.shape[0], device=flat.device)
        written: list[Tensor | None] = []
        for layer, place, (before, after) in zip(self._layers, self._places, seen, strict=True):
            square, gradient = _squares(layer, place, before, after, mask)
            squares += square
            written.append(gradient)
        lengths = squares.sqrt()
        factor = torch.where(torch.isfinite(lengths), (clip / (lengths + _TINY)).clamp(max=1.0), torch.zeros_like(lengths))
        for place, (before, after), gradient in zip(self._places, seen, written, strict=True):
            _add(result, place, before, after, gradient, factor, sizes)
        return result if mask is None else result.mul_(mask)

    def _seen(self, flat: Tensor, inputs: Tensor, targets: Tensor) -> list[tuple[Tensor, Tensor]]:
        """What goes into every layer, and the gradient of the samples' losses in what comes out."""
        passed: dict[nn.Module, tuple[Tensor, Tensor]] = {}

        def note(layer: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            passed[layer] = (args[0].detach(), output)

        pieces = torch.split(flat.detach().requires_grad_(), [count for _, _, count in self._names])
        named = {name: piece.view(shape) for piece, (name, shape, _) in zip(pieces, self._names, strict=True)}
        hooks = [layer.register_forward_hook(note) for layer in self._layers]
        try:
            scores = functional_call(self._module, named, (inputs,))
        finally:
            for hook in hooks:
                hook.remove()
        loss = nn.functional.cross_entropy(scores, targets, reduction="sum")
        gradients = torch.autograd.grad(loss, [passed[layer][1] for layer in self._layers])
        return [(passed[layer][0], gradient) for layer, gradient in zip(self._layers, gradients, strict=True)]


def _is_plain(layer: nn.Conv2d) -> bool:
    return layer.groups == 1 and layer.dilation == (1, 1) and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)


def _squares(layer: nn.Module, place: _Place, before: Tensor, after: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The squared length of each sample's gradient in this layer, and for a convolution the gradients themselves."""
    if isinstance(layer, nn.Conv2d):
        signals = after.flatten(2)
        gradient = torch.cat([torch.bmm(signals, _patches(layer, before)).flatten(1), signals.sum(2)], dim=1)
        if mask is not None:
            gradient.mul_(mask[place.weight.start : place.bias.stop])
        return gradient.square().sum(1), gradient
    inside, outside = before.square(), after.square()
    if mask is None:
        return outside.sum(1) * (inside.sum(1) + 1.0), None
    return ((outside @ mask[place.weight].view(place.shape)) * inside).sum(1) + outside @ mask[place.bias], None


def _patches(layer: nn.Conv2d, before: Tensor) -> Tensor:
    """What each output pixel sees, as (samples, pixels, channels x height x width); `unfold` of torch.nn is a half slower."""
    (high, wide), (down, across) = layer.kernel_size, layer.stride
    top, left = int(layer.padding[0]), int(layer.padding[1])
    padded = nn.functional.pad(before, (left, left, top, top))
    windows = padded.unfold(2, high, down).unfold(3, wide, across)
    count, channels, rows, columns = windows.shape[:4]
    return windows.permute(0, 1, 4, 5, 2, 3).reshape(count, channels * high * wide, rows * columns).transpose(1, 2)


def _add(
    result: Tensor, place: _Place, before: Tensor, after: Tensor, written: Tensor | None, factor: Tensor, sizes: Sequence[int]
) -> None:
    if written is not None:
        weighted = written.mul_(factor[:, None])
        for row, rows in zip(result, torch.split(weighted, list(sizes)), strict=True):
            row[place.weight.start : place.bias.stop] = rows.sum(0)
        return
    signals = after * factor[:, None]
    for row, signal, inside in zip(result, torch.split(signals, list(sizes)), torch.split(before, list(sizes)), strict=True):
        torch.mm(signal.T, inside, out=row[place.weight].view(place.shape))
        row[place.bias] = signal.sum(0)
