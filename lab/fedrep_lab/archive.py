"""Finished cells read back from the tables that a report leaves in a repository: a run goes on from what was published."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Set
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from fedrep.errors import DecodeError, NotFoundError, SettingsError
from fedrep_lab import tuning
from fedrep_lab.catalogue import experiment_names, load_presets
from fedrep_lab.cell import Cell, cell_from
from fedrep_lab.results import ResultFolder

_TIMES = ("seconds", "cpu_seconds", "parameters")


def restore(tables: Path, folder: Path, preset: str) -> dict[str, int]:
    """Cells by experiment; those that are there already are left alone. Settings that a table lacks have their defaults."""
    results, dataset = ResultFolder(folder), load_presets()[preset]["cells"]["dataset"]
    restored: dict[str, int] = {}
    for name in (tuning.NAME, *experiment_names()):
        table = tables / f"{name}.csv"
        if not table.is_file():
            continue
        histories = _histories(tables / f"{name}-history.csv")
        restored[name] = 0
        for row in _rows(table, {"key", *_TIMES}):
            cell = _cell(row, table)
            if cell.task == "train" and cell.dataset != dataset:
                raise SettingsError(f"{table} holds cells on {cell.dataset}, the preset {preset} has {dataset}: say --preset.")
            if not results.has(name, preset, cell):
                results.write(name, preset, cell, {"code": _part(row, "code_"), **_outcome(row, histories.get(row["key"], []))})
                restored[name] += 1
    if not restored:
        raise NotFoundError(f"There is no table of an experiment in {tables}; `fedrep lab report --markdown` writes them.")
    return restored


def _rows(path: Path, needed: Set[str]) -> list[dict[str, str]]:
    try:
        with path.open(newline="", encoding="utf-8") as lines:
            found = list(csv.DictReader(lines))
    except (UnicodeDecodeError, csv.Error) as error:
        raise DecodeError(f"{path} is no table ({error}); fetch it again.") from error
    if any(None in row or None in row.values() or not row.keys() >= needed for row in found):
        lacks = f"its first line lacks one of {', '.join(sorted(needed))}, or a row has more or fewer entries than that"
        raise DecodeError(f"{path} is damaged: {lacks}; fetch it again.")
    return found


def _histories(path: Path) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in _rows(path, {"key"}) if path.is_file() else []:
        point = {name: _number(text) for name, text in row.items() if name != "key"}
        found.setdefault(row["key"], []).append(point)
    return found


def _cell(row: Mapping[str, str], where: Path) -> Cell:
    settings: dict[str, Any] = {}
    for item in fields(Cell):
        text = row.get(item.name)
        if text is None or (text == "" and item.default is not MISSING):
            continue
        settings[item.name] = text if item.type == "str" else _number(text)
    try:
        return cell_from(settings, str(where))
    except SettingsError as error:
        raise DecodeError(f"{where} holds a row that is no cell: {error}") from error


def _outcome(row: Mapping[str, str], history: list[dict[str, Any]]) -> dict[str, Any]:
    metrics = {name: value for name, value in _part(row, "result_", _number).items() if value is not None}
    return {"metrics": metrics, "history": history, **{name: _number(row[name]) for name in _TIMES}}


def _part(row: Mapping[str, str], prefix: str, read: Any = str) -> dict[str, Any]:
    return {name.removeprefix(prefix): read(text) for name, text in row.items() if name.startswith(prefix)}


def _number(text: str) -> Any:
    if text == "":
        return None
    if text in ("True", "False"):
        return text == "True"
    try:
        return json.loads(text)
    except ValueError:
        return text
