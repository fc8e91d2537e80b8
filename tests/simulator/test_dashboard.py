"""`fedrep simulate --dashboard`: what a browser is shown of a simulation, over HTTP and the server's observer interface."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from fedrep_cli.observed_simulation import ObservedSimulation
from fedrep_runtime.run_config import RunConfig
from fedrep_simulator.api import Listeners, run_simulation
from fedrep_simulator.folder import Row
from fedrep_simulator.terms import Wishes
from fedrep_trainers.settings import TrainerSettings
from tests.simulator.problem import RUN, build


def signed_in(url: str) -> httpx.Client:
    """With the token of the address that people are shown; asked again until the dashboard listens."""
    address, _, token = url.partition("#token=")
    client = httpx.Client(base_url=address, timeout=30, headers={"authorization": f"Bearer {token}"})
    while True:
        try:
            client.get("/healthz").raise_for_status()
            return client
        except httpx.ConnectError:
            time.sleep(0.1)


class Browser:
    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def get(self, path: str) -> Any:
        return self._client.get(f"/api/v1{path}").raise_for_status().json()

    def until(self, path: str, told: Callable[[Any], bool]) -> Any:
        """The dashboard asks its server now and then; so does who waits for it."""
        while not told(found := self.get(path)):
            time.sleep(0.1)
        return found


@pytest.mark.slow
@pytest.mark.parametrize("fast", [False, True])
def test_the_dashboard_shows_the_simulated_rounds_as_they_are_played_and_takes_no_orders(fast: bool, tmp_path: Path) -> None:
    """Also those of a second sitting, and the plain mean beside them."""
    wishes = Wishes(rounds=4, byzantine=1, attack="foe", fast=fast)
    terms = wishes.terms(RunConfig(**RUN), TrainerSettings())

    def stop_after_one(_row: Row, _rounds: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_simulation(terms, build, central=False, out=tmp_path, listeners=Listeners(on_round=stop_after_one))
    seen: list[Any] = []
    with ObservedSimulation(terms) as observed, closing(signed_in(observed.url)) as client:
        browser = Browser(client)

        def on_round(row: Row, rounds: int) -> None:
            observed.show(row, rounds)
            if not seen:
                seen.append(browser.get("/runs/run"))

        listeners = Listeners(on_round=on_round, written=observed.watch)
        result = run_simulation(terms, build, central=False, compare=True, out=tmp_path, listeners=listeners)
        assert (seen[0]["run"]["state"], seen[0]["run"]["round"], seen[0]["run"]["silos_present"]) == ("running", 2, 8)
        assert seen[0]["open_round"] == (0 if fast else 3)
        assert seen[0]["run"]["accuracy"] == pytest.approx(result.history[1]["accuracy"])
        browser.until("/runs", lambda found: [run["state"] for run in found["runs"]] == ["finished", "finished"])
        rounds = browser.until("/runs/run/rounds", lambda found: len(found["rows"]) == 3)["rows"]
        assert [found["round"] for found in rounds] == [2, 3, 4]
        assert [found["consensus_size"] for found in rounds] == [row["coordinates"] for row in result.history[1:]]
        silos = browser.get("/runs/run/silos")["silos"]
        assert [silo["drill"] for silo in silos] == [""] * 7 + ["foe"]
        assert client.post("/api/v1/runs/run/stop", json={"reason": "enough"}).status_code == 403
