"""The alert rules, played against recorded series: each fires when it should, and none when all is well."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.chart import MATRIX, PROMTOOL_PATH, REPOSITORY, one, render

PROMETHEUS = REPOSITORY / "deploy" / "prometheus"
HISTORIES = PROMETHEUS / "alerts.test.yaml"
PROMTOOL = pytest.mark.skipif(not PROMTOOL_PATH, reason="promtool is missing (Debian: apt-get install prometheus).")


def rules() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((PROMETHEUS / "alerts.yaml").read_text())
    return loaded


def names() -> list[str]:
    return [rule["alert"] for group in rules()["groups"] for rule in group["rules"]]


@pytest.mark.parametrize("alert", names())
def test_an_alert_has_a_history_in_which_it_fires_and_one_in_which_it_does_not(alert: str) -> None:
    cases = [case for history in yaml.safe_load(HISTORIES.read_text())["tests"] for case in history["alert_rule_test"]]
    expected = [bool(case["exp_alerts"]) for case in cases if case["alertname"] == alert]
    assert set(expected) == {True, False}


def written(folder: Path, changed: dict[str, Any], alert: str | None = None) -> Path:
    """All rules and histories, or that alert's alone and those in which it is looked for."""
    for group in changed["groups"]:
        group["rules"] = [rule for rule in group["rules"] if alert in (None, rule["alert"])]
        for rule in group["rules"]:
            rule.pop("annotations")
    changed["groups"] = [group for group in changed["groups"] if group["rules"]]
    folder.mkdir()
    (folder / "alerts.yaml").write_text(yaml.safe_dump(changed))
    histories = yaml.load(HISTORIES.read_text(), yaml.BaseLoader)  # as text: a series of "0x20" is no number
    if alert is not None:
        for history in histories["tests"]:
            history["alert_rule_test"] = [case for case in history["alert_rule_test"] if case["alertname"] == alert]
        histories["tests"] = [history for history in histories["tests"] if history["alert_rule_test"]]
    (folder / HISTORIES.name).write_text(yaml.safe_dump(histories))
    return folder / HISTORIES.name


def played(*histories: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PROMTOOL_PATH, "test", "rules", *histories], capture_output=True, text=True, timeout=600, check=False)


@PROMTOOL
def test_promtool_plays_the_histories_as_they_are_written(tmp_path: Path) -> None:
    done = played(written(tmp_path / "whole", rules()), *(written(tmp_path / alert, rules(), alert) for alert in names()))
    assert done.returncode == 0, done.stdout + done.stderr


@PROMTOOL
def test_the_histories_notice_each_alert_that_never_fires(tmp_path: Path) -> None:
    for alert in names():
        broken = rules()
        for group in broken["groups"]:
            for rule in group["rules"]:
                if rule["alert"] == alert:
                    rule["expr"] = "vector(1) > 2"
        written(tmp_path / alert, broken, alert)
    done = played(*(tmp_path / alert / HISTORIES.name for alert in names()))
    noticed = re.findall(r"alertname: (\w+), time", done.stdout + done.stderr)
    assert sorted(set(noticed)) == sorted(names())


def test_the_chart_asks_for_its_own_namespace_and_for_no_dashboard_that_it_does_not_run() -> None:
    def expressions(values: dict[str, Any]) -> dict[str, str]:
        asked = values | {"metrics": {"prometheusRule": {"enabled": True, "runbooks": "https://wiki.example.org/fedrep"}}}
        (group,) = one(render(asked), "PrometheusRule", "fed-fedrep")["spec"]["groups"]
        for rule in group["rules"]:
            assert rule["annotations"]["runbook_url"] == f"https://wiki.example.org/fedrep#{rule['alert'].lower()}"
        return {rule["alert"]: rule["expr"] for rule in group["rules"]}

    full = expressions(MATRIX["high-availability"])
    assert full["FedrepServerDown"] == 'absent(fedrep_leader{namespace="fedrep"})'
    assert full["FedrepDashboardDown"] == 'absent(fedrep_dashboard_server_reachable{namespace="fedrep"})'
    assert list(full) == names()
    for alert, expression in full.items():
        for name, scope in re.findall(r"\b(fedrep_\w+)(\{[^}]*\})?", expression):
            wanted = not name.startswith("fedrep_ca_")
            assert ('namespace="fedrep"' in scope) is wanted, f"{name} of {alert}: another release's series are its own alerts"
    alone = expressions({"dashboard": {"enabled": False}})
    assert set(names()) - set(alone) == {"FedrepDashboardDown", "FedrepServerUnreachable"}
