"""Writes the chart's README.md and values.schema.json from the comments in values.yaml, and the settings from their classes.

Run it after changing values.yaml or a settings class: python deploy/helm/generate.py. With --check nothing is written, and
the exit code says whether the files are up to date.

A comment's first word in brackets is the type: [string], [string?] (may be null), [string 32] (empty, or at least as long),
[bool], [int 1-3], [enum a|b], [list], [object] (free content, for Kubernetes to judge), [settings module:Class]. A key without
a type is a section: its keys are listed, and no others are allowed.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).parents[2]
CHART = Path(__file__).parent / "fedrep"
# Set by the templates, by a Secret, or by a value of its own.
KEPT_BY_CHART = {
    "ServerSettings": {
        "host",
        "port",
        "advertise",
        "health_host",
        "health_port",
        "metrics_host",
        "metrics_port",
        "data",
        "database",
        "models",
        "credentials",
        "revocations",
        "authority",
        "log_json",
    },
    "DashboardSettings": {
        "host",
        "port",
        "metrics_host",
        "metrics_port",
        "credentials",
        "admin_token",
        "viewer_token",
        "session_secret",
        "web_certificate",
        "web_key",
    },
    "SiloSettings": {"server", "server_name", "run", "role", "credentials", "state", "ledger", "log_json", "when_done"},
}
DROPPED = {"description", "default", "title", "format", "writeOnly"}
_LINE = re.compile(r"^(?P<indent> *)(?P<key>[A-Za-z]\w*):")
_TYPE = re.compile(r"^\[(?P<type>[^\]]+)\] (?P<text>.+)$", re.DOTALL)


@dataclass(frozen=True)
class Value:
    path: tuple[str, ...]
    type: str | None
    text: str
    default: Any


def values() -> Iterator[Value]:
    """Every documented key of values.yaml, in its order."""
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    tree = yaml.safe_load(text)
    above: list[str] = []
    free_below: int | None = None
    comment: list[str] = []
    for line in text.splitlines():
        if line.strip().startswith("#"):
            comment.append(line.strip().lstrip("#").strip())
            continue
        match = _LINE.match(line)
        if match is None:
            comment = []
            continue
        depth = len(match["indent"]) // 2
        if free_below is not None and depth > free_below:
            continue  # inside a free object's default
        free_below = None
        above = [*above[:depth], match["key"]]
        typed = _TYPE.match(" ".join(comment))
        comment = []
        default: Any = tree
        for key in above:
            default = default[key]
        if typed is not None:
            free_below = depth
        yield Value(tuple(above), typed["type"] if typed else None, typed["text"] if typed else "", default)


def schema_of(value: Value) -> dict[str, Any]:
    kind, _, rest = (value.type or "section").partition(" ")
    described = {"description": value.text} if value.text else {}
    match kind:
        case "section":
            return {"type": "object", "additionalProperties": False, "properties": {}}
        case "string" if rest:
            return {"type": "string", "anyOf": [{"minLength": int(rest)}, {"maxLength": 0}], **described}
        case "string" | "string?":
            return {"type": "string" if kind == "string" else ["string", "integer", "null"], **described}
        case "bool":
            return {"type": "boolean", **described}
        case "int":
            least, most = rest.split("-")
            return {"type": "integer", "minimum": int(least), "maximum": int(most), **described}
        case "enum":
            return {"enum": rest.split("|"), **described}
        case "list":
            return {"type": "array", **described}
        case "object":
            return {"type": "object", **described}
        case "settings":
            return {**settings_schema(rest), **described}
    raise SystemExit(f"values.yaml: {'.'.join(value.path)} has the unknown type [{value.type}].")


def settings_schema(target: str) -> dict[str, Any]:
    module, _, name = target.partition(":")
    sys.path.insert(0, str(REPOSITORY))
    full = getattr(importlib.import_module(module), name).model_json_schema()
    plain = _plain(full, full.get("$defs", {}))
    for key in KEPT_BY_CHART[name]:
        plain["properties"].pop(key)
    plain.pop("required", None)
    return {**plain, "additionalProperties": False}


def _plain(node: Any, definitions: dict[str, Any]) -> Any:
    """References filled in and prose left out: the reader of a values file has `fedrep server init` for that."""
    if isinstance(node, list):
        return [_plain(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return _plain(definitions[node["$ref"].rsplit("/", 1)[-1]], definitions)
    if isinstance(node.get("properties"), dict):
        below = {key: _plain(item, definitions) for key, item in node["properties"].items()}
        return {"type": "object", "additionalProperties": False, "properties": below}
    return {key: _plain(item, definitions) for key, item in node.items() if key not in DROPPED | {"$defs", "prefixItems"}}


def schema() -> str:
    root: dict[str, Any] = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "additionalProperties": False,
        # Helm itself adds `global` where the chart is part of another.
        "properties": {"global": {"type": "object"}},
    }
    for value in values():
        node = root
        for key in value.path[:-1]:
            node = node["properties"][key]
        node["properties"][value.path[-1]] = schema_of(value)
    return json.dumps(root, indent=2, sort_keys=True) + "\n"


def readme() -> str:
    head = (CHART / "README.head.md").read_text(encoding="utf-8")
    lines = [head.rstrip(), "", "## Values", "", "| value | default | what it does |", "|---|---|---|"]
    for value in values():
        if value.type is None:
            continue
        default = json.dumps(value.default, sort_keys=True)
        allowed = value.type.removeprefix("enum ").replace("|", ", ") if value.type.startswith("enum") else ""
        text = value.text + (f" One of: {allowed}." if allowed else "")
        lines.append(f"| `{'.'.join(value.path)}` | `{default}` | {text} |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    late = []
    for name, text in (("values.schema.json", schema()), ("README.md", readme())):
        path = CHART / name
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        late.append(name)
        if "--check" not in arguments:
            path.write_text(text, encoding="utf-8")
    if late and "--check" in arguments:
        sys.stderr.write(f"{', '.join(late)} in {CHART} does not match values.yaml: run python deploy/helm/generate.py.\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
