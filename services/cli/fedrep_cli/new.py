"""`fedrep new`: a folder with a trainer of one's own that works at once, to be changed piece by piece."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Annotated, Any

import typer

from fedrep.errors import SettingsError
from fedrep_cli.output import JSON_HELP, emit

app = typer.Typer(add_completion=False)

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
SHARED = ("README.md", "run.toml", "test_trainer.py")
OWN = ("trainer.py", "client.toml")


class Kind(StrEnum):
    TABULAR = "tabular"
    IMAGE = "image"
    HUGGINGFACE_LORA = "huggingface-lora"
    SKLEARN = "sklearn"
    NUMPY = "numpy"


@dataclass(frozen=True)
class Described:
    """What the files that all templates share say differently; `fraction` is K/d, which a small model needs larger."""

    summary: str
    install: str
    fraction: float = 0.2
    rounds: int = 40
    best: str = "accuracy"


KINDS = {
    Kind.TABULAR: Described("A small PyTorch network on a table of measurements", "'fedrep[client]'", best="auroc"),
    Kind.IMAGE: Described("A convolutional PyTorch network on small images", "'fedrep[client]'"),
    Kind.HUGGINGFACE_LORA: Described("LoRA adapters over a language model", "'fedrep[client,huggingface]'"),
    Kind.SKLEARN: Described(
        "Logistic regression with scikit-learn, without PyTorch", "'fedrep[client-light]' scikit-learn", best="f1"
    ),
    Kind.NUMPY: Described("Logistic regression in numpy alone", "'fedrep[client-light]'", 0.5, best="brier"),
}


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="Name of the folder and of the run.")],
    template: Annotated[Kind, typer.Option(help="What to start from.")] = Kind.TABULAR,
    as_json: Annotated[bool, typer.Option("--json", help=JSON_HELP)] = False,
) -> None:
    """Write a folder with trainer.py, client.toml, run.toml, a README and a test; `fedrep simulate` works in it at once."""
    folder = Path(name)
    if not NAME.fullmatch(folder.name):
        raise SettingsError(f"{folder.name!r} cannot name a run: use letters, digits, dots, dashes and underscores, 63 at most")
    if folder.exists() and any(folder.iterdir() if folder.is_dir() else [folder]):
        raise SettingsError(f"{folder} exists already and is not empty; choose another name or remove it first")
    written = write_project(folder, template)
    then = f"cd {shlex.quote(str(folder))} && fedrep simulate"
    result = {"folder": str(folder), "template": template.value, "files": written, "next": then}
    emit(result, as_json, _render)


def write_project(folder: Path, kind: Kind) -> list[str]:
    """All of the files or, if the disk does not take them, none: the same command works once there is room."""
    texts = _texts(folder.name, kind)
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError:
        for name in texts:
            (folder / name).unlink(missing_ok=True)
        if is_new:
            folder.rmdir()
        raise
    return sorted(texts)


def _texts(run: str, kind: Kind) -> dict[str, str]:
    values = {"name": run, **{key: str(value) for key, value in vars(KINDS[kind]).items()}}
    source = files("fedrep_cli") / "templates"
    texts = {}
    for place, names in (("shared", SHARED), (kind.value.replace("-", "_"), OWN)):
        for name in names:
            text = (source / place / name).read_text(encoding="utf-8")
            texts[name] = text if name.endswith(".py") else Template(text).substitute(values)
    return texts


def _render(result: Mapping[str, Any]) -> str:
    return f"Wrote {', '.join(result['files'])} to {result['folder']}. Next: {result['next']}"
