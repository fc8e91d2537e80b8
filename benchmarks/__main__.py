"""Every benchmark in turn: `python -m benchmarks [--quick] [NAME ...]`. Tables on the screen, figures in benchmarks/results/."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from benchmarks.machine import save

RESULTS = Path(__file__).parent / "results"
BENCHMARKS = {
    "codec": "top-k, coordinate code and quantization against numpy",
    "secagg": "masking and sharing against flwr's SecAgg+ and the AES floor",
    "aggregators": "robust rules against byzfl",
    "silo": "the silo's own work per round against one training step",
    "dp_step": "a training step with record-level privacy against a plain one and against Opacus",
    "round": "a whole round over gRPC and TLS: milliseconds and kilobytes",
    "wire": "bytes on the socket, framing and all, against the paper's count",
    "wide_area": "a round over a slow network against dense FedAvg and the wire itself",
    "scaling": "a round's cost against d, m, s and K/d, with fitted exponents",
    "rivals": "whole rounds and two poisoned silos of ten: Flower, NVFlare and FedREP",
    "flood": "an honest Join while another silo floods the server, against a quiet server",
    "server_memory": "the server's peak memory with 32 silos and 5 million parameters",
    "large": "server and silos with a hundred million parameters: processor time, seconds and peak memory",
    "lab_batching": "training many simulated silos at once against a loop",
}
TAKES_QUICK = ("aggregators", "rivals", "scaling", "secagg", "wide_area", "wire")


def stamp(path: Path) -> None:
    """Where and when, for results that do not say so themselves."""
    if path.exists():
        figures = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(figures, dict) and not isinstance(figures.get("machine"), dict):
            save(path, {name: value for name, value in figures.items() if name != "machine"})


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--quick", action="store_true", help="small sizes where a benchmark has them")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - BENCHMARKS.keys()
    if unknown:
        parser.error(f"no benchmark named {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}")
    RESULTS.mkdir(exist_ok=True)
    failed = []
    for name in arguments.names or BENCHMARKS:
        print(f"\n{name}: {BENCHMARKS[name]}", flush=True)
        command = [sys.executable, "-m", f"benchmarks.{name}", "--json", str(RESULTS / f"{name}.json")]
        if arguments.quick and name in TAKES_QUICK:
            command.append("--quick")
        if subprocess.run(command, check=False).returncode:
            failed.append(name)
        stamp(RESULTS / f"{name}.json")
    if failed:
        print(f"\nfailed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
