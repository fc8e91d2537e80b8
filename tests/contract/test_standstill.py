"""What a server says it waits for: by name, with a reason, and when that is called standing still."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fedrep.protocol.messages import Phase
from fedrep_server.operations.run_metrics import RunCollector
from fedrep_server.rounds.standstill import STILL_SECONDS, _stands_still, waiting_of
from tests.harness.live_server import PHASES, SILOS, LiveServer, stage


@pytest.mark.parametrize(
    ("phase", "began", "heard", "now", "still"),
    [
        (Phase.PROPOSE, 100.0, 50.0, 9999.0, False),  # nobody has proposed: everybody trains
        (Phase.PROPOSE, 100.0, 160.0, 219.0, False),  # the last word came after a minute: another minute is given
        (Phase.PROPOSE, 100.0, 160.0, 221.0, True),
        (Phase.PROPOSE, 100.0, 101.0, 101.0 + STILL_SECONDS, False),
        (Phase.PROPOSE, 100.0, 101.0, 101.1 + STILL_SECONDS, True),
        (Phase.SUBMIT, 100.0, 50.0, 100.0 + STILL_SECONDS, False),
        (Phase.SUBMIT, 100.0, 50.0, 100.1 + STILL_SECONDS, True),  # nobody trains in it
    ],
)
def test_a_round_stands_still_when_the_rest_takes_longer_than_all_the_others_together(
    phase: Phase, began: float, heard: float, now: float, still: bool
) -> None:
    driver: Any = SimpleNamespace(phase_began=began, last_heard=heard)
    assert _stands_still(driver, phase, now) is still


def gauge(server: LiveServer, name: str, run: str) -> float:
    families = {family.name: family for family in RunCollector(server.running.coordinator).collect()}
    return next(sample.value for sample in families[name].samples if sample.labels["run"] == run)


def test_the_silo_that_holds_a_round_up_is_named_and_counted(server: LiveServer, run_name: str) -> None:
    stage(server, run_name, "propose")
    driver = server.driver(run_name)
    waiting = waiting_of(driver, driver.last_heard)
    assert waiting is not None
    assert ([silo.name for silo in waiting.silos], waiting.without, waiting.standing_still) == ([SILOS[-1]], (), False)
    later = waiting_of(driver, driver.phase_ends + 1e6)
    assert later is not None
    assert later.standing_still
    assert gauge(server, "fedrep_silos_waited_for", run_name) == 1
    assert gauge(server, "fedrep_silos_lost", run_name) == 0


def test_a_run_below_its_quorum_stands_still_and_names_who_is_missing(server: LiveServer, run_name: str) -> None:
    server.create_run(run_name)
    server.silo(SILOS[0]).join(run_name)
    waiting = waiting_of(server.driver(run_name), 0.0)
    assert waiting is not None
    assert (waiting.what, waiting.present, waiting.standing_still) == ("quorum", 1, True)
    assert [silo.name for silo in waiting.silos] == list(SILOS[1:])
    assert gauge(server, "fedrep_run_standing_still", run_name) == 1


def test_bytes_of_silos_that_wait_for_a_quorum_are_the_runs_and_no_rounds(
    server: LiveServer, run_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.create_run(run_name)
    driver, early = server.driver(run_name), server.silo(SILOS[0])
    for _ in range(50):
        early.join(run_name)
    asked = 50 * early.join_request(run_name).ByteSize()
    monkeypatch.setattr(server, "create_run", lambda *_words, **_options: None)  # there it is
    stage(server, run_name, PHASES[-1])
    store = server.running.coordinator.store
    row, figures = store.rounds(run_name, 0, 10)[0].row, store.summary(run_name)
    assert figures.bytes_up - row.bytes_up >= asked > 0
    sent = {silo.silo: silo.bytes_up for silo in row.silos}
    assert abs(sent[SILOS[0]] - sent[SILOS[1]]) < asked / 2, "who waited longer has not sent more in the round"
    assert driver.idle_traffic.take() == {}, "all of it was kept with the round"
