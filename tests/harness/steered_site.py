"""The real dashboard with an admin's certificate before a real server, for what it signs: runs, lists of silos, older models."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from fedrep_dashboard.connection import connection_from
from fedrep_identity.names import Role
from tests.harness.dashboard_site import serving, settings_for, shared_loop
from tests.harness.live_server import OUTSIDER, PARAMETERS, SILOS, STEP, LiveServer, joined, wait_for_round
from tests.harness.mini_silo import play_round
from tests.harness.people import People

SIGNER = "dashboard"
WEIGHTS = np.linspace(-1, 1, PARAMETERS, dtype=np.float32).reshape(20, 10)
MODEL = save({"layer.weight": WEIGHTS})


@dataclass(frozen=True)
class SteeredSite:
    server: LiveServer
    url: str

    def played(self, run: str, rounds: int) -> None:
        """A run under way, with a round open after these."""
        self.server.create_run(run)
        silos = joined(self.server, run)
        for number in range(rounds):
            play_round(silos, wait_for_round(self.server, run, after=number), STEP)
        wait_for_round(self.server, run, after=rounds)


@contextmanager
def steered_site(folder: Path, role: Role = Role.ADMIN, **settings: object) -> Iterator[SteeredSite]:
    """Server and dashboard share a loop: grpc.aio loses events when one of several is closed."""
    people = People.create(folder / "people", (*SILOS, OUTSIDER))
    people.issue(SIGNER, role)
    with LiveServer(people, folder / "data", loop=shared_loop()) as server:
        chosen = settings_for(server.address, credentials=people.folder / SIGNER, **settings)
        with serving(chosen, connection_from(chosen)) as url:
            yield SteeredSite(server, url)
