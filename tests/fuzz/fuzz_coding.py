"""Throws bytes at the decoders for a bounded time: they answer with a set, with values, or with DecodeError, never otherwise.

    python tests/fuzz/fuzz_coding.py --seconds 60 --seed 1

A decoded set must encode to the very bytes it came from. The first failure stops the run and prints the input as hex.
"""

from __future__ import annotations

import argparse
import sys
import time
import tracemalloc

import numpy as np

from fedrep.coding import decode_coordinates, decode_values, encode_coordinates, encode_values
from fedrep.errors import DecodeError

# Headers that claim more than their bytes can hold must not cost memory: this is far above what honest work takes.
MEMORY_LIMIT = 2_000_000


def noise(rng: np.random.Generator) -> tuple[bytes, int]:
    """Bytes without any structure, or behind a header that could be true."""
    payload = rng.bytes(int(rng.integers(0, 80)))
    d = int(rng.integers(1, 2 ** int(rng.integers(1, 33))))
    if rng.random() < 0.3:
        return payload, d
    count = int(rng.integers(0, 2 ** int(rng.integers(1, 33))))
    return count.to_bytes(4, "little") + bytes([int(rng.integers(0, 36))]) + payload, d


def damaged(rng: np.random.Generator) -> tuple[bytes, int]:
    """An honest message with a few bytes changed, cut off, added or doubled."""
    d = int(rng.integers(1, 2 ** int(rng.integers(1, 24))))
    members = np.unique(rng.integers(0, d, size=int(rng.integers(0, 400))))
    message = bytearray(encode_coordinates(members, d))
    for _ in range(int(rng.integers(0, 4))):
        place = int(rng.integers(0, len(message) + 1))
        match int(rng.integers(0, 5)):
            case 0 if place < len(message):
                message[place] ^= 1 << int(rng.integers(0, 8))
            case 1:
                del message[place:]
            case 2:
                message[place:place] = rng.bytes(int(rng.integers(1, 4)))
            case 3:
                message += message[place:]
            case _:
                d = max(1, d + int(rng.integers(-3, 4)))
    return bytes(message), d


def check(message: bytes, d: int, max_count: int | None) -> bool:
    """Whether the message stands for a set; raises if the decoder does anything but decode or refuse."""
    try:
        members = decode_coordinates(message, d, max_count)
    except DecodeError:
        return False
    if encode_coordinates(members, d) != message:
        raise AssertionError("two messages stand for one set")
    if max_count is not None and members.size > max_count:
        raise AssertionError("more coordinates than allowed")
    return True


def check_values(message: bytes, rng: np.random.Generator) -> None:
    dtype = ("u1", "u2", "u4", "i2", "f4")[int(rng.integers(0, 5))]
    size = np.dtype(dtype).itemsize
    count = len(message) // size if rng.random() < 0.5 else int(rng.integers(0, 2**40))
    try:
        values = decode_values(message, dtype, count)
    except DecodeError:
        return
    if encode_values(values) != message:
        raise AssertionError("values do not encode to the bytes they came from")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0, help="when to stop")
    parser.add_argument("--cases", type=int, default=0, help="stop after this many inputs instead; 0 means by time")
    parser.add_argument("--seed", type=int, default=None, help="repeat an earlier run")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else int(np.random.SeedSequence().generate_state(1)[0])
    rng = np.random.default_rng(seed)
    stop = time.monotonic() + options.seconds
    done = decoded = 0
    tracemalloc.start()
    while done < options.cases if options.cases else time.monotonic() < stop:
        message, d = noise(rng) if rng.random() < 0.5 else damaged(rng)
        max_count = int(rng.integers(0, 500)) if rng.random() < 0.3 else None
        tracemalloc.reset_peak()
        try:
            decoded += check(message, d, max_count)
            check_values(message, rng)
            if tracemalloc.get_traced_memory()[1] > MEMORY_LIMIT:
                raise AssertionError("the decoder took memory out of proportion to its input")
        except Exception as problem:
            sys.stderr.write(f"seed {seed}, case {done}: {problem!r}\nd = {d}, max_count = {max_count}\n{message.hex()}\n")
            return 1
        done += 1
    sys.stdout.write(f"seed {seed}: {done} inputs, {decoded} of them valid coordinate sets, no failure\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
