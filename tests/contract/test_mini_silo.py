"""Silos written from the documents alone play whole rounds with the real server."""

from __future__ import annotations

import random

from fedrep.wire.v1 import federation_pb2 as pb
from tests.harness.live_server import PARAMETERS, SILOS, LiveServer, refusal, wait_for_round
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


def test_a_run_that_asks_for_a_promise_takes_silos_that_sign_one_and_shows_it_to_everyone(server: LiveServer) -> None:
    server.create_run("promised", record_epsilon_at_most=8.0, delta_at_most=1e-5)
    silos = [server.silo(name) for name in SILOS]
    before = server.snapshot("promised")
    silos[0].run = server.driver("promised").run
    assert refusal(lambda: silos[0].join("promised")) == ("FAILED_PRECONDITION", "NO_PROMISE")
    silos[0].promise = (8.5, 1e-5)
    assert refusal(lambda: silos[0].join("promised")) == ("FAILED_PRECONDITION", "NO_PROMISE")
    altered = silos[0].join_request("promised", silos[0].run)
    altered.promise.epsilon = 8.0
    assert refusal(lambda: silos[0].stub.Join(altered)) == ("UNAUTHENTICATED", "BAD_SIGNATURE")
    altered.promise.epsilon = float("nan")
    assert refusal(lambda: silos[0].stub.Join(altered)) == ("INVALID_ARGUMENT", "BAD_PROMISE")
    assert server.snapshot("promised")["state"] == before["state"]
    for silo in silos:
        silo.promise = (8.0, 1e-6)
        silo.fetch_model(silo.join("promised").model_version)
    last = 0
    for _ in range(2):  # the second with the keys that came with the first one's proposals
        manifest = wait_for_round(server, "promised", after=last)
        assert [(entry.promise.epsilon, entry.promise.delta) for entry in manifest.roster] == [(8.0, 1e-6)] * len(SILOS)
        header = play_round(silos, manifest, {silo.name: [0.1] * PARAMETERS for silo in silos})
        assert header.outcome == pb.OUTCOME_APPLIED
        last = manifest.round


def test_its_coordinate_code_is_that_of_the_document() -> None:
    draw = random.Random(4)
    for size in (1, 2, 9, 40, 150):
        for d in (200, 5000, 300_000):
            chosen = sorted(draw.sample(range(d), size))
            assert rice_decoded(rice_encoded(chosen)) == chosen
