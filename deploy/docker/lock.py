"""Writes locks/*.txt: every package of every image, by version and by the hashes of its files.

Run `make locks` after a change of pyproject.toml or constraints.txt, with the package index in reach. `make locks CHECK=1` writes
nothing: it asks the index whether it has every hash, and a wheel of every package for both kinds of machines.

The CPU variant of the client takes the CPU builds of torch and torchvision, which the public package index does not have for
Linux: what it has there, for x86-64 and for arm64, are CUDA builds. The hashes come from the PyTorch project's own index; where
that cannot be reached, those below are taken as long as the versions are theirs. What only a CUDA build needs is left out.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
LOCKS = HERE / "locks"
EXTRAS = {"server": ("server", "backup"), "dashboard": ("dashboard",), "client-cuda": ("client",)}
BUILD = "setuptools==84.2.1\n"
PYTHON = "3.11"  # of the images' base
MACHINES = ("x86_64", "aarch64")
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
TORCH_CPU = {
    ("torch", "2.13.0", "x86_64"): "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b",
    ("torch", "2.13.0", "aarch64"): "84453b69508ec79902f899c5ed9495acb9e2bbe9fda5f1d5d6f19e3c3842e1a7",
    ("torchvision", "0.28.0", "x86_64"): "1dad604dfc0177ecebe0891bd9701fe2c62ec3f7819a247be541b3fb6effee99",
    ("torchvision", "0.28.0", "aarch64"): "22958193d72444ed7cbcc665ba4821a31e5279f9c4d1ad08520918b30896b78a",
}
HASH = re.compile(r"sha256:([0-9a-f]{64})")
OF_CUDA = re.compile(r"^(nvidia-|cuda-|triton)")
HEAD = "# Written by deploy/docker/lock.py from pyproject.toml and constraints.txt.\n"


def compiled(source: list[str], text: str | None = None, *more: str) -> str:
    command = [
        *("uv", "pip", "compile", *source, "--constraint", str(REPOSITORY / "constraints.txt")),
        *("--generate-hashes", "--universal", "--python-version", PYTHON),
        *("--no-emit-index-url", "--no-emit-find-links", "--no-header", "--no-annotate", "--quiet", *more),
    ]
    return subprocess.run(command, check=True, capture_output=True, text=True, input=text, cwd=REPOSITORY).stdout


def entries(lock: str) -> list[str]:
    """One package each, with its hashes on the lines below."""
    return re.findall(r"^[a-z0-9][^\n]*(?:\n    [^\n]*)*", lock, re.MULTILINE)


def cpu_hashes(name: str, version: str) -> list[str]:
    """Of both machines' CPU builds."""
    pattern = rf"/{name}-{re.escape(version)}\+cpu-cp311-cp311-manylinux_2_28_(\w+)\.whl#sha256=([0-9a-f]{{64}})"
    try:
        with urllib.request.urlopen(f"{TORCH_INDEX}/{name}/", timeout=20) as answer:
            told = dict(re.findall(pattern, answer.read().decode().replace("%2B", "+")))
    except OSError:
        told = {machine: TORCH_CPU[key] for machine in MACHINES if (key := (name, version, machine)) in TORCH_CPU}
    missing = [machine for machine in MACHINES if machine not in told]
    if missing:
        raise SystemExit(
            f"No hash of a CPU build of {name} {version} for {missing[0]} is known: run this where {TORCH_INDEX} is reached."
        )
    return [told[machine] for machine in MACHINES]


def for_cpu(cuda: str) -> str:
    kept = []
    for entry in entries(cuda):
        if OF_CUDA.match(entry):
            continue
        name, version = re.split(r"[=\s;]+", entry)[:2]
        if name in ("torch", "torchvision"):
            added = [f"    --hash=sha256:{value}" for value in cpu_hashes(name, version)]
            # Another build of torch must not get in. That of torchvision makes do with either: services/trainers knows how.
            first, *rest = entry.split(" \\\n")
            entry = " \\\n".join([first, *(rest if name == "torchvision" else []), *added])
        kept.append(entry)
    return "\n".join(kept) + "\n"


def check() -> int:
    """CPU builds of torch and torchvision are known by their hashes alone: the public index has none."""
    problems = 0
    for lock in sorted(LOCKS.glob("*.txt")):
        listed = entries(lock.read_text(encoding="utf-8"))
        if lock.stem == "client-cpu":
            listed = [entry for entry in listed if not entry.startswith(("torch==", "torchvision=="))]
        pins = "\n".join(entry.splitlines()[0].rstrip("\\ ") for entry in listed)
        told = set(HASH.findall(compiled(["-"], pins, "--no-deps")))
        found = [f"the index has no such hash: {entry.splitlines()[0]}" for entry in listed if set(HASH.findall(entry)) - told]
        found += [problem for machine in MACHINES if (problem := without_a_wheel(pins, machine))]
        problems += len(found)
        sys.stdout.write("\n".join(f"{lock.name}: {line}" for line in found or ["holds"]) + "\n")
    return 1 if problems else 0


def without_a_wheel(pins: str, machine: str) -> str:
    command = [
        *("uv", "pip", "install", "--dry-run", "--no-deps", "--only-binary", ":all:", "--quiet", "--python-version", PYTHON),
        *("--python-platform", f"{machine}-manylinux_2_28", "--target", "nowhere", "--requirement", "-"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, input=pins, cwd=REPOSITORY)
    return f"{machine}: {done.stderr.strip()}" if done.returncode else ""


def main(arguments: list[str]) -> int:
    if shutil.which("uv") is None:
        raise SystemExit("uv is missing: make locks installs it in an environment of its own.")
    if arguments == ["--check"]:
        return check()
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
    sys.exit(main(sys.argv[1:]))
