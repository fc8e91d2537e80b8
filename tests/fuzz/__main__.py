"""All fuzz targets, each for a bounded time: `python -m tests.fuzz --seconds 60`."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

EXAMPLES_PER_SECOND = 100
# Before authentication: certificates, requests, lists, tokens. After it: the wire, the server's rounds, the silo's steps.
PLACES = (
    "tests/services",
    "tests/unit/test_wire_codec.py",
    "tests/protocol/test_hostile_bytes.py",
    "tests/protocol/test_hostile_server.py",
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="per target")
    seconds = parser.parse_args().seconds
    targets = sorted(Path(__file__).parent.glob("fuzz_*.py"))
    codes = [
        subprocess.run([sys.executable, str(target), "--seconds", str(seconds)], check=False).returncode for target in targets
    ]
    environment = {**os.environ, "FEDREP_FUZZ_EXAMPLES": str(EXAMPLES_PER_SECOND * seconds)}
    hypothesis = [sys.executable, "-m", "pytest", "-q", "--timeout=0", *PLACES, "-k", "stranger or hostile or no_message"]
    codes.append(subprocess.run(hypothesis, check=False, env=environment).returncode)
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
