"""Alert rules and Grafana's dashboard: valid, and about figures that exist."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from fedrep_dashboard.metrics import Metrics
from fedrep_identity.authority import CertificateAuthority
from fedrep_identity.authority_metrics import AuthorityCollector
from fedrep_server.operations.metrics import ServerMetrics
from tests.deploy.chart import PROMTOOL_PATH, REPOSITORY, one, render
from tests.harness.federation import Federation
from tests.harness.processes import run_scenario

ALERTS = REPOSITORY / "deploy" / "prometheus" / "alerts.yaml"
GRAFANA = REPOSITORY / "deploy" / "grafana" / "fedrep.json"
GUIDE = REPOSITORY / "docs" / "operations.md"
HOME = "https://github.com/fedrep/fedrep/blob/main"
SUFFIXES = ("_total", "_bucket", "_sum", "_count", "_created")


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def queries() -> list[str]:
    dashboard = json.loads(GRAFANA.read_text())
    shown = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    chosen = [item["query"]["query"] for item in dashboard["templating"]["list"] if isinstance(item["query"], dict)]
    return [*shown, *chosen, *(rule["expr"] for rule in rules())]


def scraped(tmp_path: Path) -> str:
    """A real server's metrics page, with a run."""
    federation = Federation.create(tmp_path, silos=4, metrics_port=0)

    async def scenario() -> str:
        async with federation.serving() as running:
            await federation.create_run()

            def read() -> str:
                with urllib.request.urlopen(f"http://127.0.0.1:{running.metrics_port}/metrics", timeout=120) as answer:
                    return str(answer.read().decode())

            return await asyncio.to_thread(read)

    return run_scenario(scenario())


def test_every_figure_that_is_asked_for_exists(tmp_path: Path) -> None:
    class Reachable:
        class state:  # noqa: N801 - looks like the observer's attribute
            reachable, since = True, 0.0

    page = scraped(tmp_path) + generate_latest(ServerMetrics().registry).decode()
    dashboard = Metrics(Reachable(), tmp_path / "identities" / "server")  # type: ignore[arg-type]
    page += generate_latest(dashboard.registry).decode()
    authority = CollectorRegistry()
    authority.register(AuthorityCollector(CertificateAuthority.create(tmp_path / "ca", "lungs", "a passphrase for tests")))
    page += generate_latest(authority).decode()
    known = {family.name for family in text_string_to_metric_families(page)}
    for query in queries():
        for name in re.findall(r"\bfedrep_\w+", query):
            plain = next((name.removesuffix(end) for end in SUFFIXES if name.endswith(end) and name not in known), name)
            assert plain in known, f"{name} in {query}"


def test_a_scrape_tells_how_the_runs_stand(tmp_path: Path) -> None:
    values = {
        sample.name: sample.value for family in text_string_to_metric_families(scraped(tmp_path)) for sample in family.samples
    }
    assert values["fedrep_run_active"] == 1
    assert values["fedrep_silos_present"] == 0
    assert values["fedrep_silos_allowed"] == 4
    assert values["fedrep_silos_quorum"] == 3
    assert values["fedrep_certificate_expires_timestamp_seconds"] > 1.7e9


def test_every_alert_has_a_chapter_in_the_guide() -> None:
    headings = {line.removeprefix("### ").strip() for line in GUIDE.read_text().splitlines() if line.startswith("### ")}
    for rule in rules():
        assert rule["alert"] in headings
        assert rule["annotations"]["runbook_url"] == f"{HOME}/docs/operations.md#{rule['alert'].lower()}"
        assert rule["labels"]["severity"] in ("critical", "warning", "info")


def test_the_address_of_the_guide_is_a_value_whose_default_the_plain_rules_have() -> None:
    values = yaml.safe_load((REPOSITORY / "deploy" / "helm" / "fedrep" / "values.yaml").read_text())
    assert values["metrics"]["prometheusRule"]["runbooks"] == f"{HOME}/docs/operations.md"
    for given, expected in (
        ({}, f"{HOME}/docs/operations.md"),
        ({"runbooks": "https://wiki.example.org/fl"}, "https://wiki.example.org/fl"),
    ):
        rendered = one(render({"metrics": {"prometheusRule": {"enabled": True, **given}}}), "PrometheusRule", "fed-fedrep")
        for rule in (rule for group in rendered["spec"]["groups"] for rule in group["rules"]):
            assert rule["annotations"]["runbook_url"] == f"{expected}#{rule['alert'].lower()}"


@pytest.mark.skipif(not PROMTOOL_PATH, reason="promtool is missing (Debian: apt-get install prometheus).")
def test_promtool_accepts_the_alert_rules() -> None:
    done = subprocess.run([PROMTOOL_PATH, "check", "rules", ALERTS], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(not PROMTOOL_PATH, reason="promtool is missing (Debian: apt-get install prometheus).")
def test_promtool_accepts_the_names_of_the_figures(tmp_path: Path) -> None:
    done = subprocess.run(
        [PROMTOOL_PATH, "check", "metrics"], input=scraped(tmp_path), capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_panels_of_the_dashboard_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(GRAFANA.read_text())["panels"]:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert not cells & taken
        assert place["x"] + place["w"] <= 24
        taken |= cells
