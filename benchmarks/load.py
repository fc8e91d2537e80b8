"""64 silos that train nothing play 20 rounds of a million parameters: rounds per second, and where the time goes.

Every silo has its own certificate and mTLS connection and keeps all rules of the protocol. Any round that is skipped, and any
call that fails, ends the benchmark with an error.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path

from benchmarks.idle_silos import Shape, play
from benchmarks.round import print_server_work, summary


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load", description=__doc__)
    parser.add_argument("--silos", type=int, default=64)
    parser.add_argument("--parameters", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    shape = Shape(options.silos, options.parameters, 0.05, 4, options.rounds, "geometric_median", byzantine=1)
    result = summary(shape, asyncio.run(play(shape, warm_up=0)))
    print(f"{shape.silos} silos, d = {shape.parameters:,}: {result['rounds']} rounds without an error on {result['cores']} cores")
    print(f"  {result['rounds_per_second']:.2f} rounds per second")
    server, silos = result["cpu_ms_server"], result["cpu_ms_all_silos"]
    print(f"  CPU per round: {server:.0f} ms server, {silos:.0f} ms all silos together (crypto, masks, rules, gRPC)")
    print_server_work(result)
    print(f"  server's peak memory {result['server_peak_mb']:.0f} MB")
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
