"""Where figures come from: every file of results says which machine, which versions and which day."""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.environment import ROOT

PACKAGES = ("numpy", "cryptography", "grpcio", "protobuf", "SQLAlchemy")


def machine() -> dict[str, Any]:
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "fedrep": version("fedrep"),
        "commit": _commit(),
        "packages": {name: version(name) for name in PACKAGES if _installed(name)},
        "load": round(os.getloadavg()[0], 1),
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
    }


def save(path: Path, figures: dict[str, Any]) -> None:
    """The figures with the machine beside them, written whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps({"machine": machine(), **figures}, indent=1) + "\n", encoding="utf-8")
    part.replace(path)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _commit() -> str:
    done = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _installed(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True
