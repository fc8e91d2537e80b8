"""Settings files with every setting as a commented line: its default and what it means, taken from the settings class itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel

from fedrep.errors import SettingsError
from fedrep_cli.output import emit
from fedrep_runtime.toml_text import toml_value

BUILT_IN = "digits"  # the trainer of a silo that has none of its own yet


def commented_toml(cls: type[BaseModel], title: str, values: dict[str, Any] | None = None) -> str:
    """`values` are written as real lines; everything else is a comment."""
    lines = [f"# {line}" for line in title.splitlines()] + [""]
    lines += _section(cls, "", values or {})
    return "\n".join(lines) + "\n"


def write_new(path: Path, text: str, then: str, as_json: bool) -> None:
    """Writes the file and says what to do next."""
    refuse_existing(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    emit({"file": str(path), "next": then}, as_json, lambda result: f"Wrote {result['file']}. Next: {result['next']}")


def existing(name: str) -> Path | None:
    """The settings file of this name in the current folder, which is read when no other is named."""
    path = Path(name)
    return path if path.exists() else None


def refuse_existing(path: Path) -> None:
    if path.exists():
        raise SettingsError(f"{path} exists already; choose another name or remove it first")


def _section(cls: type[BaseModel], prefix: str, values: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    nested: list[str] = []
    for name, field in cls.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            given = values.get(name, {})
            nested += ["", f"[{prefix}{name}]", *_section(inner, f"{prefix}{name}.", given)]
            continue
        if field.description:
            lines.append(f"# {field.description}")
        default = field.get_default(call_default_factory=True)
        if name in values:
            lines.append(f"{name} = {toml_value(values[name])}")
        elif default is None:  # TOML has no null, and a made-up value would be taken for a default
            lines.append(f"# ({name} is not set)")
        else:
            lines.append(f"# {name} = {toml_value(default)}")
    return lines + nested
