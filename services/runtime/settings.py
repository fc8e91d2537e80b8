"""One frozen settings object per service, from TOML and environment, read once, with every mistake shown at once.

`FEDREP_SERVER__TLS__FOLDER=/certs` sets `tls.folder` of the settings read with the prefix `FEDREP_SERVER`; the
environment wins over the file. Two underscores follow the prefix, so the variables that Kubernetes invents for a
service called `fedrep-server` (`FEDREP_SERVER_PORT=tcp://...`) are never taken for settings.
"""

from __future__ import annotations

import difflib
import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from fedrep.errors import SettingsError

T = TypeVar("T", bound=BaseModel)
Tree = dict[str, Any]

_SECRET_WORDS = ("pass", "secret", "token", "key", "url", "dsn")


def load_settings(cls: type[T], path: Path | None, env_prefix: str, environ: Mapping[str, str] | None = None) -> T:
    """Read `path` (if given), lay the environment over it, and check the whole."""
    prefix = env_prefix.upper().rstrip("_") + "__"
    from_file = _read_toml(path) if path is not None else {}
    from_environment = _read_environment(prefix, os.environ if environ is None else environ)
    try:
        return cls.model_validate(_merged(from_file, from_environment), extra="forbid")
    except ValidationError as error:
        sentences = [
            _sentence(cls, problem, path, prefix, from_environment)
            for problem in error.errors(include_url=False, include_context=False)
        ]
        count = "one problem" if len(sentences) == 1 else f"{len(sentences)} problems"
        lines = "".join(f"\n  - {sentence}" for sentence in sentences)
        # `from None`: the original error repeats the values, and a value can be a password.
        raise SettingsError(f"Your settings have {count}; please correct and start again:{lines}") from None


def _read_toml(path: Path) -> Tree:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingsError(f"There is no settings file at {path}. Create it or give another path.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"The settings file {path} cannot be read: {error}.") from None
    except tomllib.TOMLDecodeError as error:
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
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise SettingsError(f'{variable} looks like a JSON list or table but is not: {error}. Write ["a", "b"].') from None


def _merged(low: Tree, high: Tree) -> Tree:
    merged = dict(low)
    for key, value in high.items():
        below = merged.get(key)
        merged[key] = _merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def _sentence(cls: type[BaseModel], problem: ErrorDetails, path: Path | None, prefix: str, from_environment: Tree) -> str:
    location = tuple(str(part) for part in problem["loc"])
    if not location:  # a rule about several settings at once; its text was written for people
        return problem["msg"].removeprefix("Value error, ")
    name = ".".join(location)
    variable = prefix + "__".join(location).upper()
    origin = f"environment variable {variable}" if _holds(from_environment, location) else (path or "the defaults")
    if problem["type"] == "missing":
        where = f"in {path} or " if path is not None else ""
        return f"`{name}` is required: set it {where}as {variable}."
    if problem["type"] == "extra_forbidden":
        return f"`{name}` ({origin}) is not a setting.{_suggestion(cls, location)}"
    message = problem["msg"].removeprefix("Value error, ")
    shown = "" if any(word in location[-1].lower() for word in _SECRET_WORDS) else f", not {_short(problem['input'])}"
    return f"`{name}` ({origin}): {message[:1].lower()}{message[1:]}{shown}."


def _holds(tree: Any, location: tuple[str, ...]) -> bool:
    for part in location:
        if not isinstance(tree, dict) or part not in tree:
            return False
        tree = tree[part]
    return True


def _suggestion(cls: type[BaseModel], location: tuple[str, ...]) -> str:
    fields = cls.model_fields
    for part in location[:-1]:
        inner = fields[part].annotation if part in fields else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return ""
        fields = inner.model_fields
    close = difflib.get_close_matches(location[-1], fields, n=1)
    return f" Did you mean `{close[0]}`?" if close else f" Known here: {', '.join(sorted(fields))}."


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
