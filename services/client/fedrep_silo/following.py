"""Run after run: a daemon that takes the next run which its settings allow and its trainer fits, each in a folder of its own.

What the server lists is a hint and no more: the run is joined by its name, and the silo's machine checks signature, policy and
layout as in any other run.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import structlog

from fedrep.errors import FedrepError
from fedrep.protocol.model_state import ModelState
from fedrep.protocol.silo_machine import OVER
from fedrep_runtime.files import write_atomically
from fedrep_silo.config import SiloSettings
from fedrep_silo.connection import Connection, OfferedRun, ServerAwayError, connect
from fedrep_silo.daemon import SiloDaemon
from fedrep_silo.evaluator import Evaluator
from fedrep_silo.idling import let_go_of_devices
from fedrep_silo.record_books import RecordBooks
from fedrep_silo.run_folders import FOLLOWING, has_trained, settings_for, wanted
from fedrep_silo.state import StateFolder
from fedrep_silo.status_file import note_server
from fedrep_silo.training import at_rest, is_under_way
from fedrep_trainers.trainer import Trainer

log = structlog.get_logger(__name__)

LOOK_SECONDS = 5.0

Daemon = SiloDaemon | Evaluator


class Follower:
    """As `SiloDaemon` and `Evaluator` to whoever runs it. `make` is given the settings for one run and the trainer.

    A trainer is built at the start, so that what is wrong with it is known at once, let go while there is no run to train for,
    and built again for the next.
    """

    def __init__(
        self, settings: SiloSettings, build: Callable[[], Trainer], make: Callable[[SiloSettings, Trainer], Daemon]
    ) -> None:
        self._settings = settings
        self._build = build
        self._trainer: Trainer | None = build()
        self._untrained = self._trainer.state()
        self._layout = bytes.fromhex(self._trainer.layout.digest)
        self._require_books()
        self._make = make
        self._folder = StateFolder(settings.state)
        self._finder = connect(settings)
        self._daemon: Daemon | None = None
        self._behind: set[bytes] = set()
        self._leaving = asyncio.Event()
        self._waiting = ""
        self.status: dict[str, Any] = {"run": wanted(settings), "server": settings.server, "phase": "looking for a run"}
        self._finder.heard_of_server = self._heard_of_server

    @property
    def connection(self) -> Connection:
        return self._finder if self._daemon is None else self._daemon.connection

    @property
    def reports(self) -> Any:
        return getattr(self._daemon, "reports", None)

    @property
    def model(self) -> ModelState | None:
        return None if self._daemon is None else self._daemon.model

    @property
    def speaking(self) -> bool:
        return self._daemon is not None and self._daemon.speaking

    async def run(self) -> None:
        """Until the operator stops it, or every run of a list is over."""
        try:
            while not self._leaving.is_set():
                offered = await self._finder.find_runs()
                chosen = self._next(offered)
                if chosen is not None:
                    await self._take_part(chosen)
                elif self._all_over(offered):
                    log.info("no_run_left", runs=wanted(self._settings))
                    return
                else:
                    self._say_waiting(offered)
                    if self._trainer is not None:
                        self._trainer = None
                        let_go_of_devices()
                    await self._pause()
        finally:
            await self._finder.close()

    def stop(self) -> None:
        self._leaving.set()
        if self._daemon is not None:
            self._daemon.stop()

    async def leave(self) -> None:
        if self._daemon is not None:
            await self._daemon.leave()

    def _next(self, offered: Sequence[OfferedRun]) -> OfferedRun | None:
        """The oldest that is not over, allowed, of this trainer's layout, and not behind us."""
        fits = [run for run in self._open(offered) if run.layout_hash == self._layout and run.run not in self._behind]
        return min(fits, key=lambda run: (run.created_at, run.name), default=None)

    def _open(self, offered: Sequence[OfferedRun]) -> list[OfferedRun]:
        return [run for run in offered if run.state not in OVER and self._allows(run.name)]

    def _allows(self, name: str) -> bool:
        allowed = self._settings.policy.allowed_runs
        listed = self._settings.runs
        return (not listed or name in listed) and (allowed is None or name in allowed)

    def _all_over(self, offered: Sequence[OfferedRun]) -> bool:
        """Of a list of names; there is no end to a star."""
        ended = {run.name for run in offered if run.state in OVER or run.run in self._behind}
        return bool(self._settings.runs) and set(self._settings.runs) <= ended

    def _require_books(self) -> None:
        """Each run has a new folder, which knows nothing of trainings in others."""
        if self._settings.role == "silo" and has_trained(self._settings):
            RecordBooks(self._settings.ledger, self._settings.privacy).require_trainings()

    async def _take_part(self, chosen: OfferedRun) -> None:
        settings = settings_for(self._settings, chosen.name)
        self._require_books()
        self._note(chosen.name)
        log.info("run_taken", run=chosen.name, state=str(settings.state))
        trainer = self._trainer = self._trainer or self._build()
        if not await self._is_free(trainer, chosen.name):
            return
        trainer.load_state(self._untrained)  # momentum of one run is nothing to the next
        try:
            self._daemon = self._make(settings, trainer)
            await self._daemon.run()
            log.info("run_over", run=chosen.name)
        except ServerAwayError:
            raise
        except FedrepError as error:  # this run is none for this silo; the next may be
            log.error("run_left", run=chosen.name, why=str(error))
            self.status["problem"] = f"{chosen.name}: {error}"
        finally:
            daemon, self._daemon = self._daemon, None
            if daemon is not None and not self._leaving.is_set():
                await daemon.connection.close()
            elif daemon is not None:
                self._daemon = daemon  # whoever asked us to stop says goodbye with it
        self._behind.add(chosen.run)

    async def _is_free(self, trainer: Trainer, run: str) -> bool:
        """Once the last run's training is over, which does not end with its run; False if this silo leaves before that."""
        if is_under_way(trainer):
            log.info("waiting_for_training", run=run, why="a training of the last run still goes on")
        waiting = [asyncio.create_task(at_rest(trainer)), asyncio.create_task(self._leaving.wait())]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
        return not self._leaving.is_set()

    def _say_waiting(self, offered: Sequence[OfferedRun]) -> None:
        """Once for each different answer: which runs there are, and why none is ours."""
        others = [run.name for run in self._open(offered) if run.layout_hash != self._layout]
        why = f"another model: {', '.join(others)}" if others else "no allowed run is open"
        self._note("")
        if why != self._waiting:
            self._waiting = why
            log.info("waiting_for_run", runs=wanted(self._settings), why=why)

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                await self._leaving.wait()
        except TimeoutError:
            return

    def _heard_of_server(self, why: str) -> None:
        note_server(self.status, why)
        self._folder.save_status(self.status)

    def _note(self, run: str) -> None:
        """Where `fedrep client status`, `audit` and `export` look for the run of now, or of last."""
        if run and self.status.get("now") != run:
            write_atomically(self._settings.state / FOLLOWING, json.dumps({"run": run}).encode())
        self.status |= {"now": run or self.status.get("now"), "phase": f"in run {run}" if run else "waiting for a run"}
        self._folder.save_status(self.status)
