"""The operator's guide names every setting, event, metric and state there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from fedrep.protocol.run_progress import RunState
from fedrep_runtime.run_config import RunConfig
from fedrep_server.config import ServerSettings
from fedrep_server.operations.metrics import ServerMetrics

REPOSITORY = Path(__file__).parents[2]
GUIDE = (REPOSITORY / "docs" / "server.md").read_text()
EVENT = re.compile(r'(?:NewEvent\(now, |Noted\(|note\(|_alert\(driver, )\s*"([a-z_]+)"')


def names(settings: type[BaseModel], above: str = "") -> list[str]:
    listed = []
    for name, field in settings.model_fields.items():
        section = field.annotation
        nested = isinstance(section, type) and issubclass(section, BaseModel)
        if nested and above == "" and settings is ServerSettings:
            listed += names(section, f"{name}.")  # type: ignore[arg-type]
        else:
            listed.append(above + name)
    return listed


@pytest.mark.parametrize("name", names(ServerSettings) + [n for n in names(RunConfig) if n != "stop"])
def test_a_setting_is_explained(name: str) -> None:
    assert f"`{name}`" in GUIDE


def test_every_kind_of_event_is_explained() -> None:
    sources = [*(REPOSITORY / "services" / "server").rglob("*.py"), *(REPOSITORY / "fedrep" / "protocol").glob("*.py")]
    kinds = {kind for source in sources for kind in EVENT.findall(source.read_text())}
    assert {"joined", "late", "discarded", "stalled", "round_applied"} <= kinds
    assert {kind for kind in kinds if f"`{kind}`" not in GUIDE} == set()


def test_every_metric_and_state_is_named() -> None:
    for family in ServerMetrics().registry.collect():
        assert family.name in GUIDE
    for state in RunState:
        assert f"`{state.value}`" in GUIDE
