"""A model that cannot be used is the trouble of one run: the server starts, the run says so, and can be rolled back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedrep.wire.v1 import observer_pb2 as pb
from fedrep_server.rounds.model_store import FolderModelStore
from tests.harness.live_server import SILOS, STEP, LiveServer, joined, refusal, wait_for_round
from tests.harness.mini_silo import play_round
from tests.harness.people import People

RUN, OTHER = "damaged", "intact"


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> People:
    return People.create(tmp_path_factory.mktemp("people"), SILOS)


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


def make_unreadable(path: Path) -> None:
    path.unlink()
    path.mkdir()


WAYS: dict[str, tuple[Callable[[Path], None], str]] = {
    "damaged": (flip_a_bit, "damaged"),
    "missing": (Path.unlink, "is not kept on this server"),
    "unreadable": (make_unreadable, "cannot be read"),
}


def played(people: People, folder: Path) -> Path:
    """Two runs, each with a round behind it; the newest model of one of them."""
    with LiveServer(people, folder) as server:
        for name in (RUN, OTHER):
            server.create_run(name)
            play_round(joined(server, name), wait_for_round(server, name), STEP)
    return FolderModelStore(folder / "models").step_path(RUN, 1)


@pytest.mark.parametrize("way", WAYS)
def test_one_model_that_cannot_be_used_stops_its_run_alone_until_that_is_rolled_back(
    people: People, tmp_path: Path, way: str
) -> None:
    spoil, words = WAYS[way]
    spoil(played(people, tmp_path))
    with LiveServer(people, tmp_path) as server:
        joined(server, OTHER)
        wait_for_round(server, OTHER, after=1)
        silos, driver = [server.silo(name) for name in SILOS], server.driver(RUN)
        for silo in silos:
            silo.join(RUN)
        assert refusal(lambda: silos[0].fetch_model(1))[0] in ("UNAVAILABLE", "NOT_FOUND")
        admin: Any = server.observer()
        run = admin.call("GetRun", pb.GetRunRequest(name=RUN))
        assert words in run.summary.state_reason
        assert "fedrep run rollback" in run.summary.state_reason
        events = server.running.coordinator.store.events(RUN, 0, 1000)
        assert [event.event.severity for event in events if words in event.event.text] == ["alert"]
        admin.call("RollBackRun", server.rollback_request(RUN, 0))
        admin.close()
        assert wait_for_round(server, RUN, after=1).model_version == 2
        assert (driver.state_reason, driver.model.state.version) == ("", 2)


def test_a_run_that_is_over_needs_its_model_no_more(people: People, tmp_path: Path) -> None:
    path = played(people, tmp_path)
    with LiveServer(people, tmp_path) as server:
        server.ask(server.driver(RUN).stop("enough"))
    flip_a_bit(path)
    with LiveServer(people, tmp_path) as server:
        assert server.driver(RUN).state.is_over
        assert "damaged" in server.driver(RUN).state_reason
