"""Real values to ring integers and back: the random quantization that section 3.3 leaves to a footnote.

A silo clips to [-R, R], rounds stochastically to the levels -L..L with L = 2^(q-1) - 1, and sends two's complement
modulo 2^B. q leaves room for the sum over the largest buffer plus one guard bit, so an honest sum never wraps, and a
sum outside +-survivors * L proves that somebody sent what no honest silo could have.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedrep.errors import InvalidInputError, NonFiniteError
from fedrep.secagg.keys import SecretBytes
from fedrep.secagg.keystream import Keystream
from fedrep.secagg.masking import RING_BITS, ring_dtype

SMALLEST_VALUE_BITS: Final = 4

# Work in tiles that stay in the cache: memory beyond input and output does not grow with d.
_TILE = 1 << 16
# Outside these the step or its inverse would leave float32's normal numbers.
SMALLEST_RANGE: Final = 1e-25
LARGEST_RANGE: Final = 1e25


@dataclass(frozen=True)
class RingFormat:
    """Z_2^B with q-bit values: what one coordinate of a masked vector is."""

    ring_bits: int
    value_bits: int

    def __post_init__(self) -> None:
        ring_dtype(self.ring_bits)  # refuses a ring that masks do not know either
        if not 2 <= self.value_bits <= self.ring_bits:
            raise InvalidInputError(
                f"{self.value_bits} value bits do not fit a ring of {self.ring_bits} bits; choose between 2 and {self.ring_bits}."
            )

    @property
    def dtype(self) -> np.dtype[Any]:
        return ring_dtype(self.ring_bits)

    @property
    def signed_dtype(self) -> np.dtype[Any]:
        """The same bytes as two's complement."""
        return np.dtype(f"<i{self.dtype.itemsize}")

    @property
    def limit(self) -> int:
        """L, the largest level a single silo may send."""
        return (1 << (self.value_bits - 1)) - 1

    @property
    def largest_sum(self) -> int:
        """The largest sum that two's complement modulo 2^B can tell from a negative one."""
        return (1 << (self.ring_bits - 1)) - 1


@dataclass(frozen=True)
class Quantized:
    """`levels` go into the ring and are read-only, so that `dequantized` is always exactly what was sent."""

    levels: NDArray[Any]
    clip_rate: float
    clip_range: float
    ring: RingFormat

    @cached_property
    def dequantized(self) -> NDArray[np.float32]:
        """What the levels stand for; the caller keeps the rest as residual. Worked out on demand: nothing sent waits for it."""
        return _values_of(self.levels.view(self.ring.signed_dtype), _step(self.clip_range, self.ring, survivors=1))


def value_bits(ring_bits: int, largest_buffer: int) -> int:
    """q = B - ceil(log2 n) - 1, where n is the largest buffer. May be too small to be useful: see check_bit_budget."""
    if largest_buffer < 1:
        raise InvalidInputError(f"A buffer holds at least one silo, not {largest_buffer}.")
    return ring_bits - (largest_buffer - 1).bit_length() - 1


def check_bit_budget(ring_bits: int, largest_buffer: int) -> list[str]:
    """Everything that stops a run with this ring and this largest buffer, one sentence each; empty if nothing does."""
    try:
        ring_dtype(ring_bits)
    except InvalidInputError as error:
        return [str(error)]
    if largest_buffer < 1:
        return [f"The largest buffer would hold {largest_buffer} silos; it needs at least one."]
    left = value_bits(ring_bits, largest_buffer)
    if left >= SMALLEST_VALUE_BITS:
        return []
    remedy = "use smaller buffers" if ring_bits == RING_BITS[-1] else "choose more ring bits or smaller buffers"
    return [
        f"A ring of {ring_bits} bits leaves {max(left, 0)} bits per value when {largest_buffer} silos share a buffer; "
        f"at least {SMALLEST_VALUE_BITS} are needed: {remedy}."
    ]


def quantize(
    values: NDArray[Any],
    clip_range: float,
    ring: RingFormat,
    rng: np.random.Generator,
    each: Callable[[NDArray[Any]], None] | None = None,
) -> Quantized:
    """Clip, round stochastically (unbiased inside the range) and wrap into the ring.

    `each` is shown one stretch of levels after the other while it is still in the cache, for instance to mask it.
    """
    given = _vector_of_floats(values)
    # A plain float takes the precision of the tile it is compared with; a numpy scalar would count R itself as clipped.
    clip_range = float(clip_range)
    _check_range(clip_range)
    levels = np.empty(given.size, dtype=ring.dtype)
    rounding = _FixedPoint(clip_range, ring, rng) if ring.ring_bits <= 16 else _Float64(clip_range, ring, rng)
    clipped = 0
    signed = levels.view(ring.signed_dtype)
    for start in range(0, given.size, _TILE):
        tile, done = given[start : start + _TILE], levels[start : start + _TILE]
        try:
            clipped += rounding.round(tile, signed[start : start + _TILE])
        except NonFiniteError:
            first = start + int(np.argmin(np.isfinite(tile)))
            raise NonFiniteError(f"The values to quantize hold {given[first]} at index {first}; all must be finite.") from None
        if each is not None:
            each(done)
    levels.flags.writeable = False
    return Quantized(levels, clipped / given.size if given.size else 0.0, clip_range, ring)


def open_mean(ring_sum: NDArray[Any], survivors: int, clip_range: float, ring: RingFormat) -> NDArray[np.float32]:
    """The mean of the survivors' values, from the unmasked sum of their levels."""
    if ring_sum.dtype != ring.dtype or ring_sum.ndim != 1:
        raise InvalidInputError(
            f"A sum in this ring is one vector of {ring.dtype}, not {ring_sum.ndim} dimensions of {ring_sum.dtype}."
        )
    _check_range(clip_range)
    bound = survivors * ring.limit
    if survivors < 1 or bound > ring.largest_sum:
        raise InvalidInputError(
            f"A ring of {ring.ring_bits} bits cannot hold the sum of {survivors} values of {ring.value_bits} bits each."
        )
    signed = ring_sum.view(ring.signed_dtype)
    if signed.size and (int(signed.max()) > bound or int(signed.min()) < -bound):
        raise InvalidInputError(
            f"The opened sum leaves the range of {survivors} honest survivors (at most {bound} in magnitude); "
            "a silo of this buffer sent values outside its range, so the buffer is discarded.",
            reason="SUM_OUT_OF_RANGE",
        )
    return _values_of(signed, _step(clip_range, ring, survivors))


def _values_of(levels: NDArray[Any], step: Any) -> NDArray[np.float32]:
    # Mixed types go through the ufunc's own small buffer: each product is exact in `step`'s type, then rounded once.
    values = np.empty(levels.size, dtype=np.float32)
    np.multiply(levels, step, out=values, casting="same_kind")
    return values


def _working_dtype(ring: RingFormat) -> np.dtype[Any]:
    # Sums of up to 16 bits are exact in float32; wider levels would lose their last bits, and with them unbiasedness.
    return np.dtype(np.float32 if ring.ring_bits <= 16 else np.float64)


def _step(clip_range: float, ring: RingFormat, survivors: int) -> Any:
    """The value of one level. Both directions take it from here, so that they agree to the last bit."""
    return _working_dtype(ring).type(clip_range / ring.limit / survivors)


class _FixedPoint:
    """Stochastic rounding for rings of up to 16 bits, in 32-bit integers with 16 bits of fraction.

    Adding 16 random bits and dropping the fraction rounds up with exactly the chance that the fraction says. The only bias is
    that of cutting the scaled value to 16 bits of fraction: less than 2^-16 of a level, towards zero. The random bits come
    from a keystream that `rng` seeds, several times faster than from `rng` itself.
    """

    def __init__(self, clip_range: float, ring: RingFormat, rng: np.random.Generator) -> None:
        self._range, self._limit = clip_range, ring.limit
        self._scale = np.float32((1 << 16) * ring.limit / clip_range)
        self._bits = Keystream(SecretBytes(rng.bytes(32)))
        self._noise = np.empty(2 * _TILE, dtype=np.uint8)
        self._fixed = np.empty(_TILE, dtype=np.int32)
        self._levels = None if ring.ring_bits == 16 else np.empty(_TILE, dtype=np.int16)
        self._near_limit = False

    def round(self, tile: NDArray[Any], done: NDArray[Any]) -> int:
        """Writes the levels of `tile` into `done`; how many values had to be clipped."""
        self._bits.fill(self._noise[: 2 * tile.size])
        if self._near_limit:  # tiles are often alike: after one that came near the limit, the next is looked at first
            self._near_limit = _peak(tile) > self._range * (1 - 2 / self._limit)
        if not self._near_limit and self._in_one_pass(tile, done):
            return 0
        self._near_limit = True
        peak = _peak(tile)
        x, clipped = _clipped(tile, peak, self._range, np.dtype(np.float32))
        np.multiply(x, self._scale, out=x)
        # The product may end a hair above L, from where it could be rounded up to L + 1.
        np.clip(x, -(1 << 16) * self._limit, (1 << 16) * self._limit, out=x)
        self._rounded(x, np.float32(1), done)
        return clipped

    def _in_one_pass(self, tile: NDArray[Any], done: NDArray[Any]) -> bool:
        """Round first and look at the levels afterwards: two short passes over them instead of two over the values.

        A value beyond +-R ends within one level of +-L or further out, or does not fit 32 bits at all; NaN never does.
        """
        try:
            with np.errstate(invalid="raise", over="ignore"):
                levels = self._rounded(tile, self._scale, done)
        except FloatingPointError:
            return False
        return bool(np.maximum.reduce(levels) <= self._limit - 2 and np.minimum.reduce(levels) >= 2 - self._limit)

    def _rounded(self, x: NDArray[Any], scale: np.float32, done: NDArray[Any]) -> NDArray[Any]:
        fixed = self._fixed[: x.size]
        np.multiply(x, scale, out=fixed, casting="unsafe")
        np.add(fixed, self._noise[: 2 * x.size].view(np.uint16), out=fixed)
        levels = done if self._levels is None else self._levels[: x.size]
        np.right_shift(fixed, 16, out=levels, casting="unsafe")
        if levels is not done:
            np.copyto(done, levels, casting="unsafe")
        return levels


class _Float64:
    """Stochastic rounding for wider rings, whose levels and fractions together need 53 bits."""

    def __init__(self, clip_range: float, ring: RingFormat, rng: np.random.Generator) -> None:
        self._range, self._limit = clip_range, ring.limit
        self._scale = ring.limit / clip_range
        self._rng = rng
        self._whole = np.empty(_TILE, dtype=np.float64)

    def round(self, tile: NDArray[Any], done: NDArray[Any]) -> int:
        """Writes the levels of `tile` into `done`; how many values had to be clipped."""
        x, clipped = _clipped(tile, _peak(tile), self._range, np.dtype(np.float64))
        np.multiply(x, self._scale, out=x)
        np.clip(x, -self._limit, self._limit, out=x)
        whole = self._whole[: x.size]
        np.floor(x, out=whole)
        np.subtract(x, whole, out=x)
        whole += self._rng.random(x.size) < x
        np.copyto(done, whole, casting="unsafe")
        return clipped


def _clipped(tile: NDArray[Any], peak: float, clip_range: float, dtype: np.dtype[Any]) -> tuple[NDArray[Any], int]:
    if peak <= clip_range:
        return tile.astype(dtype), 0
    x = np.empty(tile.size, dtype=dtype)
    np.clip(tile, -clip_range, clip_range, out=x, casting="unsafe")
    return x, int(np.count_nonzero(np.abs(tile) > clip_range))


def _peak(tile: NDArray[Any]) -> float:
    with np.errstate(invalid="ignore"):
        peak = max(float(tile.max()), -float(tile.min()))
    if not math.isfinite(peak):
        raise NonFiniteError("a value is not finite")
    return peak


def _check_range(clip_range: float) -> None:
    if not SMALLEST_RANGE <= clip_range <= LARGEST_RANGE:
        raise InvalidInputError(f"The clip range is {clip_range}; it must lie between {SMALLEST_RANGE:g} and {LARGEST_RANGE:g}.")


def _vector_of_floats(values: NDArray[Any]) -> NDArray[Any]:
    given = np.asarray(values)
    if given.ndim != 1:
        raise InvalidInputError(f"Quantization takes one vector, not an array of {given.ndim} dimensions.")
    if given.dtype.kind != "f":
        raise InvalidInputError(f"Quantization takes floating point values, not {given.dtype}.")
    return given
