"""`fedrep version`: what is installed here, for a person who reports a problem or compares two machines."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

import typer

from fedrep.wire.codec import PROTOCOL_VERSION
from fedrep_cli.output import JSON_HELP, emit

app = typer.Typer(add_completion=False)

BESIDES = ("numpy", "cryptography", "grpcio", "torch", "transformers", "peft")


@app.command()
def show(as_json: Annotated[bool, typer.Option("--json", help=JSON_HELP)] = False) -> None:
    """Versions of fedrep, its protocol, Python, and the packages that matter; nothing of them is imported."""
    result = {
        "fedrep": version("fedrep"),
        "protocol": PROTOCOL_VERSION,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: found for name in BESIDES if (found := _installed(name)) is not None},
    }
    emit(result, as_json, _render)


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _render(result: Mapping[str, Any]) -> str:
    packages = ", ".join(f"{name} {found}" for name, found in result["packages"].items())
    return (
        f"fedrep {result['fedrep']}, protocol {result['protocol']}\nPython {result['python']} on {result['platform']}\n{packages}"
    )
