"""One frozen settings object per service, from TOML and environment, read once, with every mistake shown at once.

`FEDREP_SERVER__TLS__FOLDER=/certs` sets `tls.folder` of the settings read with the prefix `FEDREP_SERVER`; the
environment wins over the file. Two underscores follow the prefix, so the variables that Kubernetes invents for a
service called `fedrep-server` (`FEDREP_SERVER_PORT=tcp://...`) are never taken for settings.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from fedrep.errors import SettingsError
from fedrep_runtime.json_text import parsed

T = TypeVar("T", bound=BaseModel)
Tree = dict[str, Any]

_SECRET_WORDS = ("pass", "secret", "token", "key", "url", "dsn")


def load_settings(cls: type[T], path: Path | None, env_prefix: str, environ: Mapping[str, str] | None = None) -> T:
    """Read `path` (if given), lay the environment over it, and check the whole."""
    prefix = env_prefix.upper().rstrip("_") + "__"
    from_file = _read_toml(path) if path is not None else {}
    from_environment = _read_environment(prefix, os.environ if environ is None else environ)
    origin = _Origin(path, prefix, from_environment)
    tree, unknown = _without_unknown(cls, _merged(from_file, from_environment), ())
    return _validated(cls, tree, origin, _unknown_sentences(unknown, origin))


def checked_settings(cls: type[T], values: Mapping[str, Any]) -> T:
    """What was asked for on a command line or in Python, with the sentences of a file's."""
    origin = _Origin(None, "", {}, "as asked for")
    tree, unknown = _without_unknown(cls, dict(values), ())
    return _validated(cls, tree, origin, _unknown_sentences(unknown, origin))


def _validated(cls: type[T], tree: Tree, origin: _Origin, sentences: list[str]) -> T:
    """`sentences` are the problems that are known already."""
    try:
        settings = cls.model_validate(tree, extra="forbid")
    except ValidationError as error:
        sentences += [_sentence(problem, origin) for problem in error.errors(include_url=False, include_context=False)]
    if sentences:
        count = "one problem" if len(sentences) == 1 else f"{len(sentences)} problems"
        lines = "".join(f"\n  - {sentence}" for sentence in sentences)
        # Raised outside the except block: pydantic's error repeats the values, and a value can be a password.
        raise SettingsError(f"Your settings have {count}; please correct and start again:{lines}")
    return settings


def _unknown_sentences(unknown: Mapping[tuple[str, ...], str], origin: _Origin) -> list[str]:
    return [f"`{'.'.join(location)}` ({origin.of(location)}) is not a setting.{hint}" for location, hint in unknown.items()]


def _read_toml(path: Path) -> Tree:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingsError(f"There is no settings file at {path}. Create it or give another path.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"The settings file {path} cannot be read: {error}.") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SettingsError(f"The settings file {path} is not valid TOML: {error}.") from None


def _read_environment(prefix: str, environ: Mapping[str, str]) -> Tree:
    tree: Tree = {}
    for variable in sorted(environ):
        if not variable.upper().startswith(prefix):
            continue
        *sections, leaf = variable[len(prefix) :].lower().split("__")
        branch = tree
        for section in sections:
            branch = branch.setdefault(section, {})
            if not isinstance(branch, dict):
                raise SettingsError(
                    f"{variable} sets a part of a section that another variable sets as a whole. Keep one of them."
                )
        branch[leaf] = _value(variable, environ[variable])
    return tree


def _value(variable: str, text: str) -> Any:
    """Text, except that lists and tables are written as JSON; pydantic turns text into numbers, paths and flags."""
    if not text.lstrip().startswith(("[", "{")):
        return text
    try:
        return parsed(text)
    except ValueError as error:
        raise SettingsError(f'{variable} looks like a JSON list or table but is not: {error}. Write ["a", "b"].') from None


def _merged(low: Tree, high: Tree) -> Tree:
    merged = dict(low)
    for key, value in high.items():
        below = merged.get(key)
        merged[key] = _merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


@dataclass(frozen=True)
class _Origin:
    """Where a setting came from, so that a person knows which file or variable to change."""

    path: Path | None
    prefix: str
    from_environment: Tree
    otherwise: str = "the defaults"

    def of(self, location: tuple[str, ...]) -> str:
        if _holds(self.from_environment, location):
            return f"environment variable {self.variable(location)}"
        return str(self.path or self.otherwise)

    def variable(self, location: tuple[str, ...]) -> str:
        return self.prefix + "__".join(location).upper()


def _sentence(problem: ErrorDetails, origin: _Origin) -> str:
    location = tuple(str(part) for part in problem["loc"])
    message = problem["msg"].removeprefix("Value error, ")
    if not location:  # a rule about several settings at once; its text was written for people
        return message
    name = ".".join(location)
    if problem["type"] == "missing":
        where = f"in {origin.path} or " if origin.path is not None else ""
        return f"`{name}` is required: set it {where}as {origin.variable(location)}."
    shown = "" if any(word in location[-1].lower() for word in _SECRET_WORDS) else f", not {_short(problem['input'])}"
    return f"`{name}` ({origin.of(location)}): {message[:1].lower()}{message[1:]}{shown}."


def _without_unknown(cls: type[BaseModel], tree: Tree, above: tuple[str, ...]) -> tuple[Tree, dict[tuple[str, ...], str]]:
    """The tree with only keys that are settings, and the others with a hint. Sections of sections are looked into too,
    which pydantic leaves to each section's own configuration."""
    fields = cls.model_fields
    known: Tree = {}
    unknown: dict[tuple[str, ...], str] = {}
    for key, value in tree.items():
        location = (*above, key)
        if key not in fields:
            close = difflib.get_close_matches(key, fields, n=1)
            unknown[location] = f" Did you mean `{close[0]}`?" if close else f" Known here: {', '.join(sorted(fields))}."
            continue
        section = _section(fields[key].annotation)
        if section is not None and isinstance(value, dict):
            value, below = _without_unknown(section, value, location)
            unknown.update(below)
        known[key] = value
    return known, unknown


def _section(annotation: Any) -> type[BaseModel] | None:
    """The model behind `Model` or `Model | None`."""
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def _holds(tree: Any, location: tuple[str, ...]) -> bool:
    for part in location:
        if not isinstance(tree, dict) or part not in tree:
            return False
        tree = tree[part]
    return True


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
