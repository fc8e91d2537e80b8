"""Real daemons and a real server over mTLS: they train, and agree to the last bit after every round."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrep.errors import FedrepError, LimitError
from fedrep.protocol.model_state import ModelState
from fedrep.protocol.silo_identity import Randomness, SiloIdentity
from fedrep.protocol.silo_state import SiloState
from fedrep.secagg.draws import Draws
from fedrep_identity.certificates import Credentials
from fedrep_silo.config import SiloSettings
from fedrep_silo.connection import ServerAwayError
from fedrep_silo.daemon import SiloDaemon, stay
from fedrep_silo.state import StateFolder
from fedrep_trainers.build import build_trainer
from fedrep_trainers.settings import TrainerSettings
from tests.harness.federation import Federation, StubTrainer
from tests.harness.processes import run_scenario


class RememberingFolder(StateFolder):
    """Keeps every model that was ever saved."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.models: dict[int, ModelState] = {}

    def save_model(self, model: ModelState, before: SiloState | None = None) -> None:
        super().save_model(model, before)
        self.models[model.version] = replace(model, vector=model.vector.copy())  # the next one may take its memory


def remembering(settings: SiloSettings, number: int) -> tuple[SiloDaemon, RememberingFolder]:
    credentials = Credentials.load(settings.credentials)
    folder = RememberingFolder(settings.state)
    return SiloDaemon(settings, credentials, credentials.trust_store(), StubTrainer(number), state=folder), folder


def test_a_silo_draws_its_decoys_from_lots_that_nobody_can_foresee(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not from a generator for statistics, whose output gives it away."""
    drawn: list[Randomness] = []
    real = SiloIdentity

    def seen(*given: Any, **named: Any) -> SiloIdentity:
        identity = real(*given, **named)
        drawn.append(identity.randomness)
        return identity

    monkeypatch.setattr("fedrep_silo.daemon.SiloIdentity", seen)
    federation = Federation.create(tmp_path, silos=4)
    remembering(federation.settings(0), 0)
    first, second = drawn[0].decoys(), drawn[0].decoys()
    assert isinstance(first, Draws)
    assert isinstance(second, Draws)
    assert not np.array_equal(first.words(4), second.words(4))


def test_all_silos_hold_the_servers_model_to_the_last_bit_after_every_round(tmp_path: Path) -> None:
    federation = Federation.create(tmp_path, silos=4)

    async def scenario() -> None:
        async with federation.serving() as server:
            await federation.create_run(rounds=5, keep_models=10)
            made = [remembering(federation.settings(number), number) for number in range(4)]
            await federation.run_silos(daemon for daemon, _ in made)
            summary = await federation.summary()
            assert (summary.state, summary.rounds_applied, summary.model_version) == ("finished", 5, 5)
            driver = server.coordinator.run_named("run")
            for version in range(6):
                expected = await server.coordinator.model(driver, version)
                for _, folder in made:
                    held = folder.models[version]
                    assert np.array_equal(held.vector, expected.vector)
                    assert (held.hash, held.chain) == (expected.hash, expected.chain)
            assert not np.array_equal(made[0][1].models[0].vector, made[0][1].models[5].vector)

    run_scenario(scenario())


def test_a_network_learns_digits(tmp_path: Path) -> None:
    federation = Federation.create(tmp_path, silos=3)

    def trainer(number: int) -> TrainerSettings:
        return TrainerSettings(
            threads=1, learning_rate=1.0, interval=10, shard_count=3, shard_index=number, evaluation_samples=100
        )

    async def scenario() -> None:
        trainers = [build_trainer(trainer(number)) for number in range(3)]
        async with federation.serving():
            await federation.create_run(trainer=trainers[0], rounds=4, fraction=0.5, alpha=0.1)
            before = trainers[0].evaluate(trainers[0].initial())
            evaluator = federation.evaluator(trainer=build_trainer(trainer(0)))
            watching = asyncio.ensure_future(evaluator.run())
            await federation.run_silos(federation.daemon(number, trainer=trainers[number]) for number in range(3))
            await watching
            await evaluator.leave()
            summary = await federation.summary()
            assert before.accuracy is not None
            assert summary.accuracy > before.accuracy + 0.3

    run_scenario(scenario())


def test_processes_train_together_as_an_operator_starts_them(tmp_path: Path) -> None:
    federation = Federation.create(tmp_path, silos=3)

    async def scenario() -> None:
        server = federation.start_server_process()
        await server.until_serving()
        await federation.create_run(rounds=2)
        silos = [federation.start_silo_process(number) for number in range(3)]
        for silo in silos:
            assert await silo.wait() == 0, silo.log.read_text()
        assert (await federation.summary()).rounds_applied == 2
        assert server.terminate() == 0

    run_scenario(scenario())


def test_waits_that_no_longer_count_are_gone_and_do_not_pile_up_over_rounds(tmp_path: Path) -> None:
    """A silo that trains asks after half the propose deadline, 30 s here: far later than these rounds are over."""
    federation = Federation.create(tmp_path, silos=4)
    under_way: list[int] = []

    async def scenario() -> None:
        async with federation.serving():
            await federation.create_run(rounds=6)
            trainer = StubTrainer(0, before_training=lambda _: under_way.append(len(daemon._tasks)))
            daemon = federation.daemon(0, trainer=trainer)
            await federation.run_silos([daemon, *(federation.daemon(number) for number in range(1, 4))])

    run_scenario(scenario())
    assert len(under_way) >= 6
    assert max(under_way[1:]) <= under_way[1] + 1, under_way


def test_a_silo_whose_presence_is_refused_for_now_says_again_that_it_is_there() -> None:
    """Else the server, which hears nothing more, would take it for lost. Only a server without such a call is left alone."""
    answers: list[bool | FedrepError] = [
        True,
        LimitError("too many calls", reason="TOO_MANY_CALLS"),
        FedrepError("INTERNAL"),
        True,
    ]
    answers += [ServerAwayError("away"), True, False]

    async def attend() -> bool:
        answer = answers.pop(0)
        if isinstance(answer, FedrepError):
            raise answer
        return answer

    asyncio.run(stay(attend, after_refusal=0.0))
    assert not answers
