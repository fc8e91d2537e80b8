"""Writes locks/*.txt: every package of every image, by version and by the hashes of its files.

Run `python deploy/docker/lock.py` after a change of pyproject.toml or constraints.txt, with uv and the package index in reach.

The CPU variant of the client takes torch's CPU build, which the public package index does not have for x86-64: its hash is
added to those of the index, and the packages that only a CUDA build needs are left out.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
LOCKS = HERE / "locks"
EXTRAS = {"server": ("server", "backup"), "dashboard": ("dashboard",), "client-cuda": ("client",)}
BUILD = "setuptools==84.2.1\n"
# torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl
TORCH_CPU = "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b"
OF_CUDA = re.compile(r"^(nvidia-|cuda-|triton)")
HEAD = "# Written by deploy/docker/lock.py from pyproject.toml and constraints.txt.\n"


def compiled(source: list[str], text: str | None = None) -> str:
    command = [
        *("uv", "pip", "compile", *source, "--constraint", str(REPOSITORY / "constraints.txt")),
        *("--generate-hashes", "--universal", "--python-version", "3.11"),
        *("--no-emit-index-url", "--no-emit-find-links", "--no-header", "--no-annotate", "--quiet"),
    ]
    return subprocess.run(command, check=True, capture_output=True, text=True, input=text, cwd=REPOSITORY).stdout


def entries(lock: str) -> list[str]:
    """One package each, with its hashes on the lines below."""
    return re.findall(r"^\S[^\n]*(?:\n    [^\n]*)*", lock, re.MULTILINE)


def for_cpu(cuda: str) -> str:
    kept = []
    for entry in entries(cuda):
        if OF_CUDA.match(entry):
            continue
        kept.append(f"{entry} \\\n    --hash=sha256:{TORCH_CPU}" if entry.startswith("torch==") else entry)
    return "\n".join(kept) + "\n"


def main() -> int:
    LOCKS.mkdir(exist_ok=True)
    made = {
        name: compiled(["pyproject.toml", *(part for extra in extras for part in ("--extra", extra))])
        for name, extras in EXTRAS.items()
    }
    made["client-cpu"] = for_cpu(made["client-cuda"])
    made["build"] = compiled(["-"], BUILD)
    for name, text in made.items():
        (LOCKS / f"{name}.txt").write_text(HEAD + text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
