"""One silo of a simulation: its own machine, with a memory instead of a disk and plain calls instead of a network."""

from __future__ import annotations

from fedrep.privacy import Ledger
from fedrep.protocol.manifests import RecordPromise, SiloName
from fedrep.protocol.silo_effects import (
    Answered,
    Ask,
    Effect,
    Event,
    Moment,
    News,
    Report,
    Request,
    RoundOver,
    Save,
    Send,
    Started,
    Stop,
    TimePassed,
    Train,
    Wait,
)
from fedrep.protocol.silo_identity import Conduct, Drill, SiloIdentity
from fedrep.protocol.silo_machine import SiloMachine
from fedrep.protocol.silo_rules import Policy
from fedrep.protocol.silo_state import SiloState
from fedrep.protocol.silo_table import Phase
from fedrep_simulator.desks import Result
from fedrep_simulator.people import People
from fedrep_simulator.seeds import SiloDice
from fedrep_simulator.server import SimulatedServer
from fedrep_simulator.traffic import TrafficBook
from fedrep_trainers.layout import Vector


class OneRun:
    """A simulation spends nothing of any data set's budget, and knows of no other run over it."""

    def of(self, _run: str) -> Ledger:
        return Ledger()

    def elsewhere(self, _run: str) -> float | None:
        return 0.0


class SimulatedSilo:
    """Effects are carried out at once, but for `train`, which waits for whoever trains. `between` is the state after a round."""

    def __init__(
        self,
        name: SiloName,
        run_name: str,
        people: People,
        policy: Policy,
        drill: Drill,
        seed: int,
        state: SiloState,
        promise: RecordPromise | None = None,
        public_start: Vector | None = None,
    ) -> None:
        self.name = name
        self.train: Train | None = None
        self.stopped: Stop | None = None
        self.between = state
        self._waiting: list[Request] = []
        self._wait: Wait | None = None
        self._polled: tuple[int, bool] | None = None
        dice = SiloDice(seed, name, lambda: self.machine.part.manifest.round if self.machine.part is not None else 0)
        key = people.silos[name].signing_key
        own = SiloIdentity(name, lambda: key, people.trust, policy, drill, OneRun(), dice.randomness(), promise, public_start)
        self.machine = SiloMachine(own, Conduct(run_name), state)

    @property
    def state(self) -> SiloState:
        return self.machine.state

    def act(self, server: SimulatedServer, traffic: TrafficBook) -> bool:
        """One thing this silo can do now; whether there was any."""
        if self.stopped is not None:
            return False
        if self.machine.phase is Phase.OUTSIDE:
            self._feed(Started(), server)
            return True
        if self.machine.phase is Phase.IDLE and self._wait is not None and self._is_news(server):
            wait, self._wait = self._wait, None
            self._feed(TimePassed(wait), server)
            return True
        for request in self._waiting:
            answer = server.answer(self.name, request)
            if answer is not None:
                self._waiting = [each for each in self._waiting if each is not request]
                traffic.count(self.name, request, answer)
                self._feed(Answered(request, answer), server)
                return True
        return False

    def trained(self, result: Result, server: SimulatedServer) -> None:
        self._feed(result, server)

    def _is_news(self, server: SimulatedServer) -> bool:
        """A silo that waits asks every second; here it asks once about each round, and once when the run is over."""
        opened = server.machine.open
        if opened is None and not server.is_over:
            return False
        about = (opened.number if opened is not None else 0, server.is_over)
        asked, self._polled = self._polled, about
        return asked != about

    def _feed(self, event: Event, server: SimulatedServer) -> None:
        for effect in self.machine.receive(event, Moment()):
            self._carry_out(effect, server)

    def _carry_out(self, effect: Effect, server: SimulatedServer) -> None:
        match effect:
            case Send(message, _):
                self._waiting.append(message)
            case Ask(question):
                self._waiting.append(question)
            case Train():
                self.train = effect
            case Wait():
                self._wait = effect
            case Report(news):
                self._hear(news)
            case Stop():
                self.stopped = effect
                if effect.polite:
                    server.leave(self.name)
            case Save():
                pass  # the machine's own state is the memory; whole rounds are saved, not halves of them

    def _hear(self, news: News) -> None:
        if isinstance(news, RoundOver):
            self.between = news.state
