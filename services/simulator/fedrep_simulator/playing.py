"""A run played in one process: what the two ways of playing share, and the one with all the cryptography.

`SecurePlay` lets the silos' machines speak with the server's until nobody can go on. Then they train; and if nobody has to, the
time of the phase is over. No clock is involved: the same terms lead to the same rounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from fedrep.errors import FedrepError
from fedrep.privacy import Ledger
from fedrep.protocol.goals import Goals, Totals
from fedrep.protocol.manifests import RecordPromise, RunManifest, SiloName
from fedrep.protocol.round_closing import ClosedRound
from fedrep.protocol.run_progress import RunProgress
from fedrep.protocol.silo_effects import TrainingFailed
from fedrep.protocol.silo_rules import Policy
from fedrep.protocol.silo_state import SiloState
from fedrep_runtime.run_config import sign_run
from fedrep_simulator.attackers import Coalition
from fedrep_simulator.desks import Result
from fedrep_simulator.engines import Engine
from fedrep_simulator.people import People
from fedrep_simulator.server import SimulatedServer, Written
from fedrep_simulator.silo import SimulatedSilo
from fedrep_simulator.traffic import TrafficBook
from fedrep_trainers.layout import Vector


@dataclass(frozen=True)
class Scene:
    """What is played: the run's rules, whom they bind, and who attacks."""

    run: RunManifest
    goals: Goals
    policy: Policy
    coalition: Coalition
    seed: int
    promise: RecordPromise | None = None
    public_start: Vector | None = None


@dataclass(frozen=True)
class Standing:
    """Where a run stands between two rounds: all that is needed to play the next one."""

    progress: RunProgress
    silos: Mapping[SiloName, SiloState]


@dataclass(frozen=True)
class PlayedRound:
    """`trained` are the trainings of the round, those that failed included."""

    closed: ClosedRound
    trained: Mapping[SiloName, Result]


class Play(Protocol):
    traffic: TrafficBook

    @property
    def standing(self) -> Standing: ...
    @property
    def ledgers(self) -> Iterable[Ledger]:
        """Of every silo, as it stands now."""
        ...

    def play_round(self) -> PlayedRound:
        """One more; a FedrepError says why there can be none."""
        ...

    def conclude(self, totals: Totals) -> None:
        """Whether the run's goals are reached; everybody hears of the round."""
        ...


def refuse_hopeless(trained: Mapping[SiloName, Result], number: int) -> None:
    """One silo that cannot train is the federation's everyday life; if none can, the trainer is at fault."""
    failed = [(name, result.text) for name, result in trained.items() if isinstance(result, TrainingFailed)]
    if failed and len(failed) == len(trained):
        name, text = failed[0]
        raise FedrepError(f"no silo could train in round {number}; {name}: {text}", reason="TRAINING_FAILED")


class SecurePlay:
    """The machines of silos and server, with keys, shares, masks and signatures."""

    def __init__(
        self, scene: Scene, standing: Standing, engine: Engine, traffic: TrafficBook, written: Written = lambda _: None
    ) -> None:
        self.traffic = traffic
        self._scene = scene
        self._engine = engine
        people = People.enrol(scene.run.silos)
        admin = people.admin
        signed = sign_run(scene.run, "admin", admin.credentials.chain, admin.signing_key)
        self.server = SimulatedServer(signed, people, standing.progress, scene.goals, scene.seed, written)
        self._silos = {
            name: SimulatedSilo(
                name,
                scene.run.name,
                people,
                scene.policy,
                scene.coalition.drill(name),
                scene.seed,
                state,
                scene.promise,
                scene.public_start,
            )
            for name, state in standing.silos.items()
        }
        self._trained: dict[SiloName, Result] = {}

    @property
    def standing(self) -> Standing:
        """Between the rounds, although some silos may have begun with the next one."""
        return Standing(self.server.between, {name: silo.between for name, silo in self._silos.items()})

    @property
    def ledgers(self) -> Iterable[Ledger]:
        return [silo.state.journal.ledger for silo in self._silos.values()]

    def play_round(self) -> PlayedRound:
        server = self.server
        while server.closed is None:
            if self._someone_acts() or self._a_round_opens() or self._they_train():
                continue
            if server.machine.open is None:
                raise FedrepError(self._why_nobody_plays())
            server.time_out()
        played, server.closed, self._trained = PlayedRound(server.closed, self._trained), None, {}
        return played

    def conclude(self, totals: Totals) -> None:
        self.server.count(totals)
        while self.server.closed is None and (self._someone_acts() or self._a_round_opens()):
            pass  # a round in which nobody trains is over at once

    def _someone_acts(self) -> bool:
        acted = [silo.act(self.server, self.traffic) for silo in self._silos.values()]
        return any(acted)

    def _a_round_opens(self) -> bool:
        due = self.server.round_due
        if due:
            self.server.open_round()
        return due

    def _they_train(self) -> bool:
        waiting = {name: silo for name, silo in self._silos.items() if silo.train is not None}
        if not waiting:
            return False
        results = self._engine.train({name: silo.train for name, silo in waiting.items() if silo.train is not None})
        opened = self.server.machine.open
        refuse_hopeless(results, opened.number if opened is not None else 0)
        self._trained |= results
        for name, silo in waiting.items():
            silo.train = None
            silo.trained(results[name], self.server)
        return True

    def _why_nobody_plays(self) -> str:
        left = [silo for silo in self._silos.values() if silo.stopped is None]
        reasons = [f"{silo.name}: {silo.stopped.error}" for silo in self._silos.values() if silo.stopped and silo.stopped.error]
        text = f"{len(left)} silos are left, and a round needs {self._scene.run.quorum}"
        return f"{text}. {reasons[0]}" if reasons else text
