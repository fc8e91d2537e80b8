"""What records could leave in a module beside the noisy gradient, looked for after every private step and refused.

Buffers that keep statistics; parameters that the forward pass moves, such as an embedding with `max_norm`, whose touched rows are
the records' own, or a frozen codebook with a mean of its own; and what a loss that calls `backward` itself adds to gradients.
What a module keeps elsewhere, in attributes of its own, is not seen here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fedrep.errors import SettingsError

_WHOLE_NUMBERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Untouched:
    """`named` are the parameters that are trained, with views of `gradient` for gradients, which nobody may fill meanwhile."""

    def __init__(self, module: nn.Module, named: list[tuple[str, nn.Parameter]], gradient: Tensor) -> None:
        self._module = module
        self._named = named
        self._gradient = gradient
        self._views = [parameter.grad for _, parameter in named]
        self._trained = {id(parameter) for _, parameter in named}
        self._before: dict[str, Any] = {}
        self._refused: SettingsError | None = None

    def begin(self) -> None:
        """What was refused once stays so: who restores the module cannot restore what was not looked at closely."""
        if self._refused is not None:
            raise self._refused
        self._before = self._seen()

    def check(self) -> None:
        try:
            self._check()
        except SettingsError as error:
            self._refused = error
            raise
        finally:
            self._before = {}

    def _check(self) -> None:
        if any(p.grad is not view for (_, p), view in zip(self._named, self._views, strict=True)) or self._gradient.any():
            raise SettingsError(
                "the model or its loss calls backward() itself, which leaves whole gradients of records where the noisy one "
                "belongs; with [privacy] use torch.autograd.grad for what is needed in between"
            )
        after = self._seen()
        for name, before in self._before.items():
            if not _same(before, after.get(name)):
                kind = "buffer" if name in dict(self._module.named_buffers()) else "parameter"
                raise SettingsError(
                    f"training changes the model's {kind} {name} beside its gradient, which no noise covers; with [privacy] use "
                    "layers that keep nothing of what they have seen, such as GroupNorm, and embeddings without max_norm"
                )

    def _seen(self) -> dict[str, Any]:
        """Frozen parameters may be many times as large as the rest: of them the sums of their bits are enough."""
        seen: dict[str, Any] = {name: _bits(buffer).clone() for name, buffer in self._module.named_buffers()}
        for name, parameter in self._module.named_parameters():
            bits = _bits(parameter)
            if id(parameter) in self._trained:
                seen[name] = bits.clone()
            else:
                flat = bits.reshape(-1)
                seen[name] = torch.stack([flat.sum(dtype=torch.int64), flat[::2].sum(dtype=torch.int64)])
        return seen


def _bits(tensor: Tensor) -> Tensor:
    """The same memory as whole numbers, among which every value equals itself."""
    return tensor.detach().view(_WHOLE_NUMBERS[tensor.element_size()])


def _same(before: Tensor, after: Tensor | None) -> bool:
    return after is not None and before.shape == after.shape and torch.equal(before, after)
