"""The silo's daemon: carries out what the silo's machine decides, over gRPC, on disk, with the trainer and the clock.

No rule of the protocol lives here. A message leaves only with the receipt for the state it was made from.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import numpy as np
import structlog

from fedrep.errors import FedrepError, SaidByPeer
from fedrep.protocol.manifests import SiloName
from fedrep.protocol.model_state import ModelState
from fedrep.protocol.silo_effects import (
    Answered,
    Ask,
    Effect,
    Event,
    HasJoined,
    LineLost,
    Moment,
    Refusal,
    Report,
    Request,
    Save,
    Send,
    Started,
    Stop,
    StopAsked,
    TimePassed,
    Train,
    Wait,
)
from fedrep.protocol.silo_identity import Conduct, Randomness, SiloIdentity
from fedrep.protocol.silo_machine import SiloMachine
from fedrep.protocol.silo_state import SiloState
from fedrep.secagg.draws import Draws
from fedrep.secagg.keys import SecretBytes
from fedrep_identity.certificates import Credentials, TrustStore
from fedrep_silo.audit import Audit
from fedrep_silo.config import SiloSettings
from fedrep_silo.connection import Connection, ServerAwayError, connect
from fedrep_silo.drill import Drill
from fedrep_silo.ledgers import LedgerFolder
from fedrep_silo.record_books import RecordBooks
from fedrep_silo.reports import Reports
from fedrep_silo.state import StateFolder
from fedrep_silo.training import Training
from fedrep_silo.trust import FederationTrust
from fedrep_trainers.trainer import Trainer

log = structlog.get_logger(__name__)

BETWEEN_CALLS = 0.05
AFTER_REFUSAL = 5.0


class SiloDaemon:
    """One silo in one run. The caller holds the state folder's lock."""

    def __init__(
        self,
        settings: SiloSettings,
        credentials: Credentials,
        trust: TrustStore,
        trainer: Trainer,
        *,
        state: StateFolder | None = None,
        connection: Connection | None = None,
    ) -> None:
        self._ledgers = LedgerFolder(settings.ledger, credentials.identity.name, settings.policy.epsilon_budget)
        self.books = RecordBooks(settings.ledger, settings.privacy)
        self.books.check(trainer)
        self.folder = (
            state if state is not None else StateFolder(settings.state, self._ledgers, private=self.books.budget is not None)
        )
        if self.folder.has_trained:
            self.books.require_trainings()
        self.connection = connection if connection is not None else connect(settings)
        self.machine = self._machine(settings, credentials, trust, trainer)
        self._training = Training(trainer, self.machine.state.trainer, self.books, Audit(self.folder.folder / "audit.jsonl"))
        self.reports = Reports(
            settings, self.connection, self.folder, self._ledgers, self.books, credentials.identity.name, self._training
        )
        self.connection.heard_of_server = self.reports.heard_of_server
        self._events: asyncio.Queue[Event | FedrepError | OSError] = asyncio.Queue()
        self._effects: list[Effect] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._attending = False
        self._waiting: asyncio.Task[None] | None = None

    def _machine(self, settings: SiloSettings, credentials: Credentials, trust: TrustStore, trainer: Trainer) -> SiloMachine:
        privacy = settings.privacy
        own = SiloIdentity(
            SiloName(credentials.identity.name),
            lambda: Credentials.load(settings.credentials).signing_key,
            FederationTrust(trust),
            settings.policy.rules(bytes.fromhex(trainer.layout.digest)),
            Drill.of(settings.drill, credentials.identity.name),
            self._ledgers,
            Randomness(
                secrets.token_bytes,
                lambda: Draws(SecretBytes(secrets.token_bytes(32))),
                lambda: np.random.default_rng(secrets.randbits(256)),
            ),
            promise=self.books.promise,
            public_start=trainer.initial() if privacy is not None and privacy.coordinates == "public" else None,
            room=self.folder.room,
            in_place=True,
        )
        conduct = Conduct(settings.run, settings.training_failures, settings.give_up_after)
        return SiloMachine(own, conduct, self.folder.load(trainer))

    @property
    def state(self) -> SiloState:
        return self.machine.state

    @property
    def model(self) -> ModelState | None:
        """The model this silo holds."""
        return self.machine.state.model

    @property
    def speaking(self) -> bool:
        """Whether there is a round this silo has promised to take part in."""
        return self.machine.speaking

    async def run(self) -> None:
        """Until the run is over, the operator stops it, or the silo has to stop: then the reason is raised."""
        self._events.put_nowait(Started())
        try:
            while True:
                event = await self._events.get()
                if isinstance(event, Exception):
                    raise event
                if self.connection.lost:
                    self.connection.lost = False
                    self.machine.receive(LineLost(), _now())
                self._effects = self.machine.receive(event, _now())
                for effect in self._effects:
                    if isinstance(effect, Stop):
                        return await self._stop(effect)
                    await self._carry_out(effect)
        finally:
            self.reports.close()
            for task in self._tasks:
                task.cancel()
            self.reports.abandon()

    def stop(self) -> None:
        """Leave after the round this silo has promised to take part in; `speaking` says whether there is one."""
        self._events.put_nowait(StopAsked())

    async def leave(self) -> None:
        """Tell the server politely; the next roster goes on without this silo."""
        if self.state.journal.run:
            await self.connection.leave(bytes.fromhex(self.state.journal.run))
        await self.connection.close()

    async def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Save() if self.folder.is_short(effect):
                self.folder.write(effect)
            case Save():
                await asyncio.to_thread(self._keep, effect)
            case Send(message, needs):
                written = self.folder.write(needs)  # saved by now: the receipt alone
                self._begin(self._answer(message, self.connection.send(effect, written)))
            case Ask(question):
                self._begin(self._answer(question, self.connection.ask(question)))
            case Train():
                self._begin(self._train(effect))
            case Wait():
                if self._waiting is not None:
                    self._waiting.cancel()  # only the last one counts; a wait can be far longer than a round
                self._waiting = self._begin(self._wait(effect))
            case Report(news):
                if isinstance(news, HasJoined) and not self._attending:
                    self._attending = True
                    self._begin(stay(lambda: self.connection.attend(bytes.fromhex(self.state.journal.run))))
                await self.reports.tell(news)

    def _keep(self, save: Save) -> None:
        """The state, and the audit's lines about what leaves with it, in one turn of the disk."""
        sends = [each for each in self._effects if isinstance(each, Send) and each.needs is save]
        self.folder.write(save, self.connection.prepare(sends))

    async def _stop(self, stop: Stop) -> None:
        await self.reports.settle()
        if stop.polite:
            await self.leave()
        if stop.error is not None:
            raise stop.error

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        """The machine waits for an event of each task: one that died without it ends the daemon."""
        self._tasks.discard(task)
        if task.cancelled():  # by this daemon, which needs it no longer, or else by nobody
            error: BaseException | None = None if task.cancelling() else asyncio.CancelledError()
        else:
            error = task.exception()
        if error is not None:
            self._events.put_nowait(_ending(error))

    async def _answer(self, request: Request, call: Coroutine[Any, Any, Any]) -> None:
        try:
            event: Event | FedrepError = Answered(request, await call)
        except ServerAwayError as error:
            event = error
        except FedrepError as error:
            event = Answered(request, Refusal(error, isinstance(error, SaidByPeer)))
        self._events.put_nowait(event)

    async def _train(self, train: Train) -> None:
        self._events.put_nowait(await self._training.carry_out(train))

    async def _wait(self, wait: Wait) -> None:
        await asyncio.sleep(wait.seconds)
        self._events.put_nowait(TimePassed(wait))


async def stay(attend: Callable[[], Awaitable[bool]], after_refusal: float = AFTER_REFUSAL) -> None:
    """One call after the other, from the first time this process joined until it ends. A server that knows no such call (an
    older release) waits for this silo as it always did; one that refuses it for now is asked again, since it would go on
    without a silo that it does not hear of."""
    known = True
    while known:
        try:
            known = await attend()
            await asyncio.sleep(BETWEEN_CALLS)
        except ServerAwayError:
            continue  # whatever else the silo asks decides when to give up
        except FedrepError as error:
            log.debug("not_attending", why=str(error))
            await asyncio.sleep(after_refusal)


def _ending(error: BaseException) -> FedrepError | OSError:
    """With what the daemon ends: an error of the disk says itself what is wrong."""
    if isinstance(error, OSError):
        return error
    log.error("task_died", exc_info=error)
    ending = FedrepError(
        f"the silo stops over an error that nobody expected, {type(error).__name__}: {error}; this is a fault in fedrep, and the "
        "log says where. Start the silo again: what it had written is whole"
    )
    ending.__cause__ = error
    return ending


def _now() -> Moment:
    return Moment(time.monotonic(), dt.datetime.now().hour)
