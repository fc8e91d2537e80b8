"""Virtual environments for peers: each peer's pinned packages live apart from ours, under `.bench/<name>`.

Peers want other versions of the packages we use, so a benchmark runs them as a subprocess of their own interpreter.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENTS = ROOT / ".bench"


class PeerEnvironmentError(RuntimeError):
    """A peer's virtual environment could not be made."""


def peer_python(name: str, requirements: Sequence[str], alone: Sequence[str] = ()) -> Path:
    """The interpreter of the peer's environment, made first if it is missing or was made for other requirements.

    `alone` is installed last and without what it asks for: a peer whose own requirements cannot be met to the letter finds them
    in `requirements`, as near as they can be. The stamp is written last, so an interrupted installation is started again.
    """
    home = ENVIRONMENTS / name
    python = home / "bin" / "python"
    stamp = home / "requirements.sha256"
    wanted = hashlib.sha256("\n".join([*requirements, *alone]).encode()).hexdigest()
    if python.exists() and stamp.exists() and stamp.read_text(encoding="ascii") == wanted:
        return python
    print(f"making .bench/{name} with {', '.join([*alone, *requirements])} (once; this can take minutes)", file=sys.stderr)
    shutil.rmtree(home, ignore_errors=True)
    ENVIRONMENTS.mkdir(exist_ok=True)
    _run([sys.executable, "-m", "venv", str(home)], name)
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*install, *requirements], name)
    if alone:
        _run([*install, "--no-deps", *alone], name)
    stamp.write_text(wanted, encoding="ascii")
    return python


def _run(command: list[str], name: str) -> None:
    free = {name: value for name, value in os.environ.items() if name != "PIP_CONSTRAINT"}  # ours; a peer wants other versions
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=free)
    if done.returncode != 0:
        tail = "\n".join(done.stderr.strip().splitlines()[-5:])
        raise PeerEnvironmentError(
            f"The environment .bench/{name} could not be made: `{' '.join(command)}` ended with {done.returncode}.\n"
            f"{tail}\nCheck that the package index is reachable, then run the benchmark again."
        )
