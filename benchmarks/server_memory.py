"""The server's peak memory: 32 silos, five million parameters, K = 0.05 d, a robust rule, over real gRPC and TLS.

The server is a process of its own; its peak resident memory is what the kernel says, Python and all libraries included. Beyond
the model and its residual it holds one sum per buffer, the coordinates, and what is on its way in: a submission is added to
its buffer when it arrives and is then forgotten.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from benchmarks.idle_silos import Shape, play
from benchmarks.machine import save

LIMIT_MB = 1000


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.server_memory", description=__doc__)
    parser.add_argument("--silos", type=int, default=32)
    parser.add_argument("--parameters", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    shape = Shape(options.silos, options.parameters, 0.05, 4, options.rounds, "geometric_median", byzantine=1)
    figures = asyncio.run(play(shape, warm_up=0))
    peak, idle = figures.server["peak_mb"], figures.server["idle_mb"]
    print(f"{shape.silos} silos, d = {shape.parameters:,}, K = 0.05 d, {len(figures.seconds)} rounds")
    print(f"  server's peak resident memory {peak:.0f} MB (limit {LIMIT_MB}); {idle:.0f} MB before the run was created")
    if options.json:
        result = {"silos": shape.silos, "parameters": shape.parameters, "peak_mb": peak, "idle_mb": idle, "limit_mb": LIMIT_MB}
        save(options.json, result)
    return 0 if peak < LIMIT_MB else 1


if __name__ == "__main__":
    sys.exit(main())
