"""Gradients of all silos in one pass, layer by layer: what a graph per silo would give, with fewer and larger products.

Activations lie as (silos, batch, height, width, channels). In the first local step all silos hold the same model, so a layer is
one product, or one convolution, over everybody's images; only the weights' gradients are taken silo by silo. Later steps have
weights of their own. With `bfloat16` the factors of linear layers' products are rounded to eight bits of mantissa; convolutions,
which are too thin here to gain by it, sums and the loss are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn


class Layer(Protocol):
    size: int  # of its part of the flat vector

    def forward(self, weights: Tensor, inputs: Tensor) -> Tensor:
        """`weights` has one row for everybody, or one for each silo."""
        ...

    def backward(self, gradient: Tensor, into: Tensor, *, further: bool) -> Tensor | None:
        """Writes the weights' gradients, one row a silo; returns that of the inputs where a layer below needs it."""
        ...


def _times(inputs: Tensor, factor: Tensor, added: Tensor | None = None) -> Tensor:
    """(m, n, k) times (1 or m, k, o), plus (1 or m, o)."""
    if len(factor) > 1:
        return torch.bmm(inputs, factor) if added is None else torch.baddbmm(added.unsqueeze(1), inputs, factor)
    silos, rows, _ = inputs.shape
    flat = inputs.reshape(silos * rows, -1)
    found = flat @ factor[0] if added is None else torch.addmm(added[0], flat, factor[0])
    return found.view(silos, rows, -1)


class LinearLayer:
    def __init__(self, module: nn.Linear, precision: torch.dtype) -> None:
        self._precision = precision
        self._in, self._out, self._bias = module.in_features, module.out_features, module.bias is not None
        self._count = self._in * self._out
        self.size = self._count + (self._out if self._bias else 0)

    def forward(self, weights: Tensor, inputs: Tensor) -> Tensor:
        self._inputs = inputs.to(self._precision)
        rounded = weights.to(self._precision)
        self._weights = rounded[:, : self._count].view(-1, self._out, self._in)
        return _times(self._inputs, self._weights.transpose(1, 2), rounded[:, self._count :] if self._bias else None).float()

    def backward(self, gradient: Tensor, into: Tensor, *, further: bool) -> Tensor | None:
        rounded = gradient.to(self._precision)
        weights = into[:, : self._count].view(-1, self._out, self._in)
        if rounded.dtype == weights.dtype:
            torch.bmm(rounded.transpose(1, 2), self._inputs, out=weights)
        else:
            weights.copy_(torch.bmm(rounded.transpose(1, 2), self._inputs))
        if self._bias:
            into[:, self._count :] = gradient.sum(dim=1)
        return _times(rounded, self._weights).float() if further else None


class ConvolutionLayer:
    """One convolution, channels last, while all silos share their weights; after that products with the images' patches (im2col).

    For patches, squares of t x t pixels, t the stride, are first folded into channels, which leaves a convolution of stride one
    with a kernel of fewer, thicker pixels: patches are then copied, and gradients sent back, in long runs of memory.
    """

    def __init__(self, module: nn.Conv2d) -> None:
        self._shape = (module.out_channels, module.in_channels, *module.kernel_size)
        self._stride, self._padding = module.stride[0], int(module.padding[0])
        self._taps = -(-module.kernel_size[0] // self._stride)
        self._bias = module.bias is not None
        self._count = module.weight.numel()
        self.size = self._count + (self._shape[0] if self._bias else 0)

    def forward(self, weights: Tensor, inputs: Tensor) -> Tensor:
        self._inputs = inputs.shape
        self._shared = len(weights) == 1
        return self._convolved(weights[0], inputs) if self._shared else self._multiplied(weights, inputs)

    def backward(self, gradient: Tensor, into: Tensor, *, further: bool) -> Tensor | None:
        if self._shared:
            return self._behind_convolution(gradient, into, further=further)
        return self._behind_product(gradient, into, further=further)

    def _convolved(self, weights: Tensor, inputs: Tensor) -> Tensor:
        self._kernel = weights[: self._count]
        self._weights = self._kernel.view(self._shape).contiguous(memory_format=torch.channels_last)
        bias = weights[self._count :] if self._bias else None
        self._images = _channels_last(inputs.flatten(0, 1))
        found = nn.functional.conv2d(self._images, self._weights, bias, self._stride, self._padding)
        return found.permute(0, 2, 3, 1).view(*inputs.shape[:2], *found.shape[2:], found.shape[1])

    def _behind_convolution(self, gradient: Tensor, into: Tensor, *, further: bool) -> Tensor | None:
        batch = self._inputs[1]
        above = _channels_last(gradient.flatten(0, 1))
        step, edge = [self._stride] * 2, [self._padding] * 2
        filters = [self._shape[0]] if self._bias else None
        for silo, (part, images) in enumerate(zip(torch.split(above, batch), torch.split(self._images, batch), strict=True)):
            _, weights, bias = torch.ops.aten.convolution_backward(
                part, images, self._weights, filters, step, edge, [1, 1], False, [0, 0], 1, [False, True, self._bias]
            )
            into[silo, : self._count].view(self._shape).copy_(weights)
            if self._bias:
                into[silo, self._count :] = bias
        if not further:
            return None
        # As a convolution of stride one, whose filters are the pixels of a square: half the time of torch's own.
        turned = self._folded_kernel(self._kernel)[0].flip(0, 1).permute(2, 3, 0, 1)
        found = nn.functional.conv2d(above, turned.contiguous(memory_format=torch.channels_last), padding=self._taps - 1)
        return self._unfolded(found.permute(0, 2, 3, 1))

    def _multiplied(self, weights: Tensor, inputs: Tensor) -> Tensor:
        filters = self._shape[0]
        self._weights = self._folded_kernel(weights[:, : self._count])
        patches, self._rows, self._columns = _patches(self._folded(inputs), self._taps)
        self._patches = patches.view(len(inputs), -1, patches.shape[-1])
        kernel = self._weights.flatten(1, 3)
        found = _times(self._patches, kernel, weights[:, self._count :] if self._bias else None)
        return found.view(*inputs.shape[:2], self._rows, self._columns, filters)

    def _behind_product(self, gradient: Tensor, into: Tensor, *, further: bool) -> Tensor | None:
        rows = gradient.reshape(len(gradient), -1, self._shape[0])
        self._unfold_kernel(torch.bmm(self._patches.transpose(1, 2), rows), into[:, : self._count])
        if self._bias:
            into[:, self._count :] = rows.sum(dim=1)
        if not further:
            return None
        edge = self._taps - 1
        around = nn.functional.pad(
            gradient.reshape(-1, self._rows, self._columns, self._shape[0]), (0, 0, edge, edge, edge, edge)
        )
        patches, high, wide = _patches(around, self._taps)
        turned = self._weights.flip(1, 2).transpose(3, 4).flatten(1, 3)
        found = _times(patches.view(len(gradient), -1, patches.shape[-1]), turned)
        return self._unfolded(found.view(-1, high, wide, found.shape[-1]))

    def _folded(self, inputs: Tensor) -> Tensor:
        """Padded images (n, height/t, width/t, t t channels); at least the pixels that the kernel sees."""
        t, edge = self._stride, self._padding
        _, _, height, width, channels = inputs.shape
        more = [-(size + 2 * edge) % t for size in (height, width)]
        padded = nn.functional.pad(inputs.flatten(0, 1), (0, 0, edge, edge + more[1], edge, edge + more[0]))
        if t == 1:
            return padded
        count, high, wide, _ = padded.shape
        squares = padded.view(count, high // t, t, wide // t, t, channels).transpose(2, 3)
        return squares.reshape(count, high // t, wide // t, t * t * channels)

    def _unfolded(self, folded: Tensor) -> Tensor:
        t, edge = self._stride, self._padding
        _, _, height, width, channels = self._inputs
        count, high, wide, _ = folded.shape
        if t > 1:
            folded = folded.view(count, high, wide, t, t, channels).transpose(2, 3).reshape(count, high * t, wide * t, channels)
        seen = folded[:, edge : edge + height, edge : edge + width]
        # Pixels that no patch reaches have no gradient.
        missing = (height - seen.shape[1], width - seen.shape[2])
        if any(missing):
            seen = nn.functional.pad(seen, (0, 0, 0, missing[1], 0, missing[0]))
        return seen.reshape(self._inputs)

    def _folded_kernel(self, weights: Tensor) -> Tensor:
        """(1 or m, taps, taps, t t channels, filters)"""
        filters, channels, high, wide = self._shape
        t, taps = self._stride, self._taps
        kernel = nn.functional.pad(weights.view(-1, *self._shape), (0, t * taps - wide, 0, t * taps - high))
        split = kernel.view(-1, filters, channels, taps, t, taps, t).permute(0, 3, 5, 4, 6, 2, 1)
        return split.reshape(-1, taps, taps, t * t * channels, filters)

    def _unfold_kernel(self, gradient: Tensor, into: Tensor) -> None:
        filters, channels, high, wide = self._shape
        t, taps = self._stride, self._taps
        split = gradient.view(-1, taps, taps, t, t, channels, filters).permute(0, 6, 5, 1, 3, 2, 4)
        into.view(-1, *self._shape).copy_(split.reshape(-1, filters, channels, taps * t, taps * t)[..., :high, :wide])


def _channels_last(images: Tensor) -> Tensor:
    """(n, height, width, channels) as torch has it. Strides are set: with one channel torch would take it for channels first."""
    count, height, width, channels = images.shape
    row = width * channels
    return images.contiguous().as_strided((count, channels, height, width), (height * row, 1, row, channels))


def _patches(images: Tensor, taps: int) -> tuple[Tensor, int, int]:
    """Every window of taps x taps pixels of (n, height, width, channels) as a row, and how many lie down and across."""
    images = images.contiguous()
    count, height, width, channels = images.shape
    rows, columns = height - taps + 1, width - taps + 1
    per_image, down, across, _ = images.stride()
    windows = images.as_strided((count, rows, columns, taps, taps * channels), (per_image, down, across, down, 1))
    return windows.reshape(count * rows * columns, taps * taps * channels), rows, columns


class ReluLayer:
    size = 0

    def forward(self, weights: Tensor, inputs: Tensor) -> Tensor:  # noqa: ARG002  layers share a signature
        self._found = inputs.clamp_min_(0)
        return self._found

    def backward(self, gradient: Tensor, into: Tensor, *, further: bool) -> Tensor | None:  # noqa: ARG002
        return torch.ops.aten.threshold_backward(gradient, self._found, 0) if further else None


class PoolingLayer:
    """The largest of each square; equal ones share the gradient's way with torch: the first takes it."""

    size = 0

    def __init__(self, module: nn.MaxPool2d) -> None:
        self._side = int(module.kernel_size)  # type: ignore[arg-type]  # `layers_of` takes squares alone

    def forward(self, weights: Tensor, inputs: Tensor) -> Tensor:  # noqa: ARG002
        silos, batch, height, width, channels = self._shape = inputs.shape
        side = self._side
        high, wide = height // side, width // side
        squares = inputs[:, :, : high * side, : wide * side].reshape(silos * batch, high, side, wide, side, channels)
        self._squares = squares.permute(0, 1, 3, 5, 2, 4).reshape(silos, batch, high, wide, channels, side * side)
        found, self._which = self._squares.max(dim=-1)
        return found

    def backward(self, gradient: Tensor, into: Tensor, *, further: bool) -> Tensor | None:  # noqa: ARG002
        if not further:
            return None
        silos, batch, high, wide, channels = gradient.shape
        side = self._side
        squares = torch.zeros_like(self._squares).scatter_(-1, self._which.unsqueeze(-1), gradient.unsqueeze(-1))
        spread = squares.view(silos, batch, high, wide, channels, side, side).permute(0, 1, 2, 5, 3, 6, 4)
        found = gradient.new_zeros(self._shape)
        found[:, :, : high * side, : wide * side] = spread.reshape(silos, batch, high * side, wide * side, channels)
        return found


class FlattenLayer:
    """torch flattens channels first, and the next layer's weights are laid out for that."""

    size = 0

    def forward(self, weights: Tensor, inputs: Tensor) -> Tensor:  # noqa: ARG002
        self._shape = inputs.shape
        return inputs.permute(0, 1, 4, 2, 3).flatten(2)

    def backward(self, gradient: Tensor, into: Tensor, *, further: bool) -> Tensor | None:  # noqa: ARG002
        silos, batch, height, width, channels = self._shape
        if not further:
            return None
        return gradient.view(silos, batch, channels, height, width).permute(0, 1, 3, 4, 2).contiguous()


def layers_of(module: nn.Module, precision: torch.dtype = torch.float32) -> list[Layer] | None:
    """None if the model is made of anything else than what is written here."""
    if not isinstance(module, nn.Sequential):
        return None
    found: list[Layer] = []
    for part in module:
        if isinstance(part, nn.Linear):
            found.append(LinearLayer(part, precision))
        elif isinstance(part, nn.Conv2d) and _plain(part):
            found.append(ConvolutionLayer(part))
        elif isinstance(part, nn.ReLU):
            found.append(ReluLayer())
        elif isinstance(part, nn.MaxPool2d) and isinstance(part.kernel_size, int) and part.stride == part.kernel_size:
            found.append(PoolingLayer(part))
        elif isinstance(part, nn.Flatten):
            found.append(FlattenLayer())
        else:
            return None
    return found


def _plain(part: nn.Conv2d) -> bool:
    return (
        part.groups == 1
        and part.dilation == (1, 1)
        and part.stride[0] == part.stride[1]
        and isinstance(part.padding, tuple)
        and part.padding[0] == part.padding[1]
        and part.padding_mode == "zeros"
    )


class SiloGradients:
    def __init__(self, layers: Sequence[Layer]) -> None:
        self._layers = layers

    def __call__(self, models: Tensor, images: Tensor, targets: Tensor, into: Tensor) -> None:
        """`models` has one row or one a silo; `images` are (silos, batch, channels, height, width), targets (silos, batch)."""
        sizes = [layer.size for layer in self._layers]
        found = images.permute(0, 1, 3, 4, 2)
        for layer, part in zip(self._layers, torch.split(models, sizes, dim=1), strict=True):
            found = layer.forward(part, found)
        gradient: Tensor | None = torch.softmax(found, dim=-1)  # of the mean loss, below
        assert gradient is not None
        gradient.scatter_add_(-1, targets.unsqueeze(-1), found.new_full((*targets.shape, 1), -1.0))
        gradient.div_(targets.shape[1])
        slices = torch.split(into, sizes, dim=1)
        lowest = next(number for number, size in enumerate(sizes) if size)
        for number in reversed(range(lowest, len(sizes))):
            assert gradient is not None
            gradient = self._layers[number].backward(gradient, slices[number], further=number > lowest)
