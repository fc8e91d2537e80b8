"""Every decoder, fuzzed for a bounded time: `python -m tests.fuzz --seconds 75`.

What reaches new code is added to the corpus where `--keep` asks for it. A crash is written to `crashes/`, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fuzz.corpus import FOLDER, LARGEST, add, kept
from tests.fuzz.targets import TARGETS

CRASHES = Path("crashes")
# Besides bytes, whole messages: the server's rounds and the silo's steps, with fields exchanged by Hypothesis.
EXAMPLES_PER_SECOND = 100
MESSAGES = ("tests/identity/test_certificates.py", "tests/unit/test_wire_codec.py", "tests/protocol/test_hostile_bytes.py")


def fuzz(name: str, seconds: int, *, keep: bool) -> bool:
    """Whether nothing was found."""
    with tempfile.TemporaryDirectory(prefix="fedrep-fuzz-") as temporary:
        found, crashes = Path(temporary) / "found", Path(temporary) / "crashes"
        found.mkdir()
        crashes.mkdir()
        options = [
            str(found),
            str(FOLDER / name),
            f"-max_total_time={seconds}",
            f"-max_len={LARGEST}",
            f"-artifact_prefix={crashes}/",
        ]
        options += ["-rss_limit_mb=4096", "-timeout=20", "-print_final_stats=1", "-verbosity=0"]
        done = run("tests.fuzz.guided", name, *options)
        inputs = re.search(r"number_of_executed_units: (\d+)", done.stderr)
        kinds = [path for path in sorted(crashes.iterdir()) if not path.name.startswith("slow-unit-")]
        for path in kinds:
            CRASHES.mkdir(exist_ok=True)
            shutil.copy(path, CRASHES / f"{name}-{path.name}")
        sound = done.returncode == 0 and not kinds
        sys.stdout.write(f"{name:15} {inputs[1] if inputs else '?':>10} inputs  {'ok' if sound else 'FAILED'}\n")
        sys.stdout.flush()
        if not sound:
            sys.stderr.write(done.stdout[-3000:])
        elif keep:
            shrink(name, found)
        return sound


def shrink(name: str, found: Path) -> None:
    """The fewest inputs that reach what all of them reach, without what the corpus has anyway."""
    with tempfile.TemporaryDirectory(prefix="fedrep-fuzz-") as temporary:
        run("tests.fuzz.guided", name, "-merge=1", "-verbosity=0", temporary, str(FOLDER / name), str(found))
        wanted = [path.read_bytes() for path in Path(temporary).iterdir()]
    have = {path.read_bytes() for path in kept(name)}
    for data in wanted:
        if data not in have and len(data) <= LARGEST:
            add(name, data)


def run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, *arguments], check=False, capture_output=True, text=True, errors="replace"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=75, help="per target")
    parser.add_argument("--keep", action="store_true", help="add what reaches new code to the corpus")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"all, or some of {', '.join(TARGETS)}")
    options = parser.parse_args()
    sound = [fuzz(name, options.seconds, keep=options.keep) for name in options.targets or TARGETS]
    if not options.targets:
        environment = {**os.environ, "FEDREP_FUZZ_EXAMPLES": str(EXAMPLES_PER_SECOND * options.seconds)}
        hypothesis = [sys.executable, "-m", "pytest", "-q", "--timeout=0", *MESSAGES, "-k", "stranger or hostile or no_message"]
        sound.append(subprocess.run(hypothesis, check=False, env=environment).returncode == 0)
    return 0 if all(sound) else 1


if __name__ == "__main__":
    sys.exit(main())
