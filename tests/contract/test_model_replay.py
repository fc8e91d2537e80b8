"""A server that starts over the files of one that died: from a checkpoint and the steps since it has the same model, bit for bit.

The files are copied while a round is open and nobody writes, as kill -9 leaves them; the first server lives on to be compared.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedrep.protocol.model_state import ServerModel
from fedrep.wire.v1 import federation_pb2 as pb
from fedrep.wire.v1.observer_pb2_grpc import ObserverServiceStub
from fedrep_cli.main import main
from fedrep_server.rounds.model_steps import CHECKPOINT_EVERY
from tests.harness.live_server import PARAMETERS, SILOS, LiveServer, joined, wait_for_round
from tests.harness.mini_silo import MiniSilo, play_round
from tests.harness.people import People

RUN = "replayed"
ROUNDS = CHECKPOINT_EVERY + 3
KEPT = ROUNDS + 10


def updates(number: int) -> dict[str, list[float]]:
    """Other ones in every round, and too fine for the way down: what its bits cannot carry stays in the residual."""
    rng = np.random.default_rng([3, number])
    return {silo: [float(value) for value in rng.normal(scale=0.1, size=PARAMETERS)] for silo in SILOS}


def in_bytes(silo: MiniSilo) -> bytes:
    return struct.pack(f"<{len(silo.model)}f", *silo.model)


def same(one: ServerModel, other: ServerModel) -> bool:
    vectors = zip((one.state.vector, one.residual), (other.state.vector, other.residual), strict=True)
    return one.state.name == other.state.name and all(a.tobytes() == b.tobytes() for a, b in vectors)


def play(server: LiveServer, silos: list[MiniSilo], rounds: range) -> dict[int, bytes]:
    """The model after each of these rounds, as a silo that follows every update has it."""
    known = {}
    for number in rounds:
        assert play_round(silos, wait_for_round(server, RUN, after=number - 1), updates(number)).outcome == pb.OUTCOME_APPLIED
        known[silos[0].version] = in_bytes(silos[0])
    return known


@dataclass
class Lived:
    """A server that never stopped, its files as they were when a round was open, and what silos knew of each version by then."""

    server: LiveServer
    model: ServerModel
    files: Path
    known: dict[int, bytes]


@pytest.fixture(scope="module")
def lived(people: People, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lived]:
    folder = tmp_path_factory.mktemp("lived")
    with LiveServer(people, folder / "data") as server:
        server.create_run(RUN, rounds=100, keep_models=KEPT)
        silos = joined(server, RUN)
        known = {0: in_bytes(silos[0])} | play(server, silos, range(1, ROUNDS + 1))
        manifest = wait_for_round(server, RUN, after=ROUNDS)
        silos[0].enter(manifest)
        silos[0].propose(*silos[0].proposal(range(manifest.per_silo)))
        yield Lived(server, server.driver(RUN).model, copied(server, folder / "killed"), known)


def copied(server: LiveServer, folder: Path) -> Path:
    server.snapshot(RUN)  # waits until no event is on its way
    return Path(shutil.copytree(server.settings.data, folder))


@pytest.fixture
def again(lived: Lived, people: People, tmp_path: Path) -> Iterator[LiveServer]:
    """A server over a copy of those files."""
    with LiveServer(people, shutil.copytree(lived.files, tmp_path / "data")) as server:
        yield server


def test_after_a_restart_model_and_residual_are_those_of_before_and_so_is_every_version_that_silos_fetch(
    lived: Lived, again: LiveServer
) -> None:
    assert again.running.coordinator.models.versions(RUN) == [0, CHECKPOINT_EVERY], "all others are steps"
    rebuilt = again.driver(RUN).model
    assert rebuilt.residual.any(), "otherwise nothing was left to rebuild"
    assert same(rebuilt, lived.model)
    silo = again.silo(SILOS[0])
    assert silo.join(RUN).model_version == ROUNDS
    for version, expected in lived.known.items():
        silo.fetch_model(version)
        assert in_bytes(silo) == expected, version


def test_after_a_restart_the_next_rounds_end_with_the_same_bits_as_without_one(lived: Lived, again: LiveServer) -> None:
    """The next update depends on the residual: one bit of it lost, and the two models part."""
    lived.server.pass_deadline(RUN)  # one proposal is too few; the other server has skipped that round when it started
    for server in (lived.server, again):
        play(server, joined(server, RUN), range(ROUNDS + 2, ROUNDS + 4))
    assert again.driver(RUN).model.state.version == ROUNDS + 2
    assert same(again.driver(RUN).model, lived.server.driver(RUN).model)


def test_an_export_of_a_version_between_checkpoints_is_the_model_that_silos_had(
    lived: Lived, again: LiveServer, tmp_path: Path
) -> None:
    who = ["--server", again.address, "--identity", str(again.people.folder / "admin")]
    for version in (CHECKPOINT_EVERY - 3, CHECKPOINT_EVERY, ROUNDS):
        target = tmp_path / f"{version}.safetensors"
        assert main(["run", "export", RUN, str(target), "--version", str(version), *who]) == 0
        (vector,) = load_file(target).values()
        assert vector.astype("<f4").tobytes() == lived.known[version]


def test_a_rollback_to_a_version_between_checkpoints_is_that_version_and_stays_so_after_another_restart(
    lived: Lived, again: LiveServer, people: People, tmp_path: Path
) -> None:
    wanted = CHECKPOINT_EVERY - 3
    admin: Any = ObserverServiceStub(again.channel("admin"))  # type: ignore[no-untyped-call]
    admin.RollBackRun(again.rollback_request(RUN, wanted))
    silos = joined(again, RUN)
    assert silos[0].version == ROUNDS + 1
    assert in_bytes(silos[0]) == lived.known[wanted]
    known = play(again, silos, range(ROUNDS + 2, ROUNDS + 4))
    wait_for_round(again, RUN, after=ROUNDS + 3)
    with LiveServer(people, copied(again, tmp_path / "third")) as third:
        assert same(third.driver(RUN).model, again.driver(RUN).model)
        silo = joined(third, RUN)[0]
        assert in_bytes(silo) == known[silo.version]
