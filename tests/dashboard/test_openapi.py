"""The OpenAPI document holds for whatever a stranger sends: schemathesis against the running dashboard."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import Case, GenerationMode

from fedrep_dashboard.app import create_app
from tests.harness.dashboard_server import ScriptedServer, scripted_run
from tests.harness.dashboard_site import ADMIN, insecure, serving, settings_for

STREAMS = ["/api/v1/live", "/api/v1/runs/{name}/live"]  # they never end
NOWHERE = "127.0.0.1:9"

schema = schemathesis.openapi.from_dict(create_app(settings_for(NOWHERE), insecure(NOWHERE)).openapi()).exclude(path=STREAMS)


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    server = ScriptedServer().start()
    server.add(scripted_run("digits"), 12)
    with serving(settings_for(server.address), insecure(server.address)) as url:
        yield url
    server.die()


@schema.parametrize()
@settings(max_examples=4, suppress_health_check=list(HealthCheck), derandomize=True)
def test_every_answer_is_one_the_document_promises(site: str, case: Case[Any]) -> None:
    if case.meta and case.meta.generation.mode is GenerationMode.POSITIVE and "name" in case.path_parameters:
        case.path_parameters["name"] = "digits"  # most names do not exist, and 404 is soon well tested
    case.call_and_validate(base_url=site, headers={"Authorization": f"Bearer {ADMIN}"})
