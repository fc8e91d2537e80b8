"""Silos written from the documents alone play whole rounds with the real server."""

from __future__ import annotations

import random

from fedrep.wire.v1 import federation_pb2 as pb
from tests.harness.live_server import PARAMETERS, SILOS, LiveServer, wait_for_round
from tests.harness.mini_silo import play_round, rice_decoded, rice_encoded


def test_silos_written_from_the_documents_play_whole_rounds(server: LiveServer) -> None:
    server.create_run("mini")
    silos = [server.silo(name) for name in SILOS]
    for silo in silos:
        joined = silo.join("mini")
        assert silo.run == server.driver("mini").run
        silo.fetch_model(joined.model_version)
    draw = random.Random(3)
    last = 0
    for _ in range(3):
        before = list(silos[0].model)
        updates = {silo.name: [draw.uniform(-0.5, 0.5) for _ in range(PARAMETERS)] for silo in silos}
        manifest = wait_for_round(server, "mini", after=last)
        assert manifest.model_version == silos[0].version
        header = play_round(silos, manifest, updates)
        last = manifest.round
        assert header.outcome == pb.OUTCOME_APPLIED
        assert list(header.opened) == [0, 1]
        step = server.driver("mini").manifest.initial_range / 2**10
        changed = 0
        for index in silos[0].indices:
            mean = sum(updates[name][index] for name in SILOS) / len(SILOS)
            assert abs((before[index] - silos[0].model[index]) - mean) < step
            changed += 1
        untouched = set(range(PARAMETERS)) - set(silos[0].indices)
        assert changed
        assert all(before[index] == silos[0].model[index] for index in untouched)
        assert all(silo.model == silos[0].model for silo in silos)


def test_its_coordinate_code_is_that_of_the_document() -> None:
    draw = random.Random(4)
    for size in (1, 2, 9, 40, 150):
        for d in (200, 5000, 300_000):
            chosen = sorted(draw.sample(range(d), size))
            assert rice_decoded(rice_encoded(chosen)) == chosen
