"""From the release before: its values render, what Kubernetes lets nobody change stays, and its schema is brought up to date.

`previous/` holds what 0.1.0 had: values with what they rendered to, and its schema as SQLite tells it.
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import inspect

from fedrep_server.store import Database, open_store, sqlite_url
from fedrep_server.store.schema import current_revision, known_revisions
from tests.deploy.chart import render

PREVIOUS = Path(__file__).parent / "previous"
CHART: dict[str, Any] = json.loads((PREVIOUS / "0.1.0-chart.json").read_text())
FIXED = ("selector", "serviceName", "volumeClaimTemplates")


@pytest.mark.parametrize("name", CHART)
def test_the_values_of_the_release_before_render_and_change_nothing_that_cannot_be_changed(name: str) -> None:
    now = {f"{item['kind']}/{item['metadata']['name']}": item for item in render(CHART[name]["values"])}
    for key, before in CHART[name]["fixed"].items():
        assert key in now, "an upgrade would delete it"
        spec = now[key].get("spec", {})
        assert {part: spec.get(part) for part in FIXED if part in before} == before


def tables(database: Database) -> dict[str, set[str]]:
    found = inspect(database.engine)
    return {table: {column["name"] for column in found.get_columns(table)} for table in found.get_table_names()}


def test_the_schema_of_the_release_before_is_brought_to_todays_with_what_it_holds(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "fedrep.sqlite3") as before:
        before.executescript((PREVIOUS / "0.1.0-schema.sql").read_text())
        before.execute("UPDATE leadership SET term = 7")
    before.close()
    fresh = open_store(sqlite_url(tmp_path / "fresh"))
    upgraded = open_store(sqlite_url(tmp_path))
    try:
        assert current_revision(upgraded.database) == known_revisions()[-1]
        assert tables(upgraded.database) == tables(fresh.database)
        with upgraded.database.read() as connection:
            assert connection.exec_driver_sql("SELECT term FROM leadership").scalar_one() == 7
    finally:
        fresh.close()
        upgraded.close()
