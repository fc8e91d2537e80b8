"""Every decoder, fuzzed for a bounded time: `python -m tests.fuzz --seconds 75`.

What reaches new code stays in `.fuzz/`, where the next run goes on from it, beside the books of the processor time that each
target has had in all; with `--until MINUTES` those with the least go on until that sum is reached. `--keep` adds the fewest
inputs that reach all of it to the corpus. A crash is written to `crashes/`, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.fuzz.corpus import FOLDER, LARGEST, add, kept
from tests.fuzz.cover import worth_keeping
from tests.fuzz.guided import fuzz_apart  # before the targets: decoders that are imported before it are not instrumented
from tests.fuzz.targets import TARGETS

CRASHES = Path("crashes")
FOUND = Path(".fuzz")
BOOKS = FOUND / "books.json"
HANGS = 120  # seconds for one input; on a busy machine an honest one may take some
# Besides bytes, whole messages: the server's rounds and the silo's steps, with fields exchanged by Hypothesis.
EXAMPLES_PER_SECOND = 100
MESSAGES = ("tests/identity/test_certificates.py", "tests/unit/test_wire_codec.py", "tests/protocol/test_hostile_bytes.py")

Books = dict[str, dict[str, float]]  # target -> seconds, inputs


def fuzz(name: str, seconds: int, books: Books) -> bool:
    """Whether nothing was found."""
    found = FOUND / name
    found.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="fedrep-fuzz-"))  # a TemporaryDirectory would end with the forked process
    try:
        crashes, log = folder / "crashes", folder / "log"
        crashes.mkdir()
        options = [str(found), str(FOLDER / name), f"-max_total_time={seconds}", f"-max_len={LARGEST}"]
        options += [f"-artifact_prefix={crashes}/", f"-timeout={HANGS}", "-rss_limit_mb=4096"]
        code, taken = fuzz_apart(name, [*options, "-print_final_stats=1", "-verbosity=0"], log, crashes / "error")
        said = log.read_text(errors="replace")
        executed = re.search(r"number_of_executed_units: (\d+)", said)
        kinds = [path for path in sorted(crashes.iterdir()) if not path.name.startswith("slow-unit-")]
        for path in kinds:
            CRASHES.mkdir(exist_ok=True)
            shutil.copy(path, CRASHES / f"{name}-{path.name}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    sound = code == 0 and not kinds
    inputs = int(executed[1]) if executed else 0
    book = books.setdefault(name, {"seconds": 0, "inputs": 0})
    book["seconds"] += taken
    book["inputs"] += inputs
    BOOKS.write_text(json.dumps(books, indent=2) + "\n")
    sys.stdout.write(f"{name:15} {inputs:>10} inputs {taken:>6.0f} s of a core  {'ok' if sound else 'FAILED'}\n")
    sys.stdout.flush()
    if not sound:
        sys.stderr.write(said[-6000:])
    return sound


def least_first(names: list[str], books: Books, failed: set[str], minutes: float) -> Iterator[str]:
    """Whoever has had the least so far, again and again; a target that failed is mended first."""
    while len(failed) < len(names) and sum(book["seconds"] for book in books.values()) < 60 * minutes:
        yield min(set(names) - failed, key=lambda name: books[name]["seconds"] if name in books else 0.0)


def shrink(name: str) -> None:
    """Into the corpus goes what the inputs found so far reach beyond it, in the fewest of them."""
    found = [path.read_bytes() for path in sorted((FOUND / name).glob("*"))]
    have = [path.read_bytes() for path in kept(name)]
    for data in worth_keeping(TARGETS[name], have, [each for each in found if len(each) <= LARGEST]):
        add(name, data)


def totals(books: Books) -> str:
    seconds, inputs = (sum(book[each] for book in books.values()) for each in ("seconds", "inputs"))
    return f"{len(books)} targets, {seconds / 60:.1f} min of a core, {inputs:.0f} inputs"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=75, help="per target, by the clock")
    parser.add_argument("--until", type=float, metavar="MINUTES", help="until the targets have had so much of a core in all runs")
    parser.add_argument("--keep", action="store_true", help="add what reaches new code to the corpus")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"all, or some of {', '.join(TARGETS)}")
    options = parser.parse_args()
    names = options.targets or list(TARGETS)
    books: Books = json.loads(BOOKS.read_text()) if BOOKS.is_file() else {}
    before = {name: dict(book) for name, book in books.items()}
    failed: set[str] = set()
    for name in names if options.until is None else least_first(names, books, failed, options.until):
        if not fuzz(name, options.seconds, books):
            failed.add(name)
    if options.keep:
        for name in names:
            shrink(name)
    this_run = {
        name: {key: book[key] - before.get(name, {}).get(key, 0) for key in book}
        for name, book in books.items()
        if book != before.get(name)
    }
    sys.stdout.write(f"in this run: {totals(this_run)}\nin all runs: {totals(books)}\n")
    sys.stdout.flush()
    if not options.targets:
        environment = {**os.environ, "FEDREP_FUZZ_EXAMPLES": str(EXAMPLES_PER_SECOND * options.seconds)}
        hypothesis = [sys.executable, "-m", "pytest", "-q", "--timeout=0", *MESSAGES, "-k", "stranger or hostile or no_message"]
        if subprocess.run(hypothesis, check=False, env=environment).returncode:
            failed.add("messages")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
