"""One server for a whole module of tests; each test makes a run of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from fedrep_server.operations import alerts
from tests.harness.live_server import OUTSIDER, SILOS, LiveServer, Stage, stage
from tests.harness.people import People


@pytest.fixture(scope="session", autouse=True)
def nothing_is_written_by_a_clock() -> Iterator[None]:
    """Tests that compare everything before and after a call must not meet a line about how long a run has stood still."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alerts, "CHECK_SECONDS", 1e6)
        yield


@pytest.fixture(scope="session")
def people(tmp_path_factory: pytest.TempPathFactory) -> People:
    return People.create(tmp_path_factory.mktemp("people"), (*SILOS, OUTSIDER))


@pytest.fixture(scope="module")
def server(people: People, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(people, tmp_path_factory.mktemp("data")) as live:
        yield live


@pytest.fixture
def run_name(request: pytest.FixtureRequest) -> str:
    return f"run-{abs(hash(request.node.nodeid)):x}"


@pytest.fixture(scope="module")
def stages(server: LiveServer) -> Callable[[str], Stage]:
    """A round that has come to a phase; all refusals of that phase are tried on the same one."""
    made: dict[str, Stage] = {}

    def of(phase: str) -> Stage:
        if phase not in made:
            made[phase] = stage(server, f"refusals-{phase}", phase)
        return made[phase]

    return of
