"""A silo's process that kills itself, as `kill -9` would, at a given step; and that writes down every state it saved.

The processes come from a fork server that has imported everything once, before gRPC was used, so that starting one is cheap.

A step is `before:NAME`, `after:NAME` or `never`, where NAME is an RPC (ProposeCoordinates, ...) or a write (save_journal,
save_memory, save_model), followed by `:N` for its N-th occurrence. RPCs are counted once they concern a round of this process.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sys
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np

from fedrep.protocol.error_memory import ErrorMemory
from fedrep.protocol.model_state import ModelState
from fedrep.protocol.silo_effects import Save
from fedrep.protocol.silo_state import Journal, SiloState, TrainerState
from fedrep_identity.certificates import Credentials
from fedrep_runtime.logging import configure_logging
from fedrep_runtime.settings import load_settings
from fedrep_silo.audit import AuditLine
from fedrep_silo.config import SiloSettings
from fedrep_silo.connection import Connection, connect
from fedrep_silo.daemon import SiloDaemon
from fedrep_silo.state import StateFolder, Written
from tests.harness.federation import StubTrainer


class Fate:
    """Counts the steps and ends the process at the one it was made for."""

    def __init__(self, step: str) -> None:
        self._moment, _, rest = step.partition(":")
        self._name, _, count = rest.partition(":")
        self._left = int(count or 1)

    def reached(self, moment: str, name: str) -> None:
        if (moment, name) != (self._moment, self._name):
            return
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


class DyingConnection(Connection):
    """The same connection; `fate` hears of every call before it is made and after it was answered."""

    fate: Fate

    async def _call(self, method: str, *arguments: Any, **details: Any) -> Any:
        self.fate.reached("before", method)
        result = await super()._call(method, *arguments, **details)
        self.fate.reached("after", method)
        return result


class RecordingFolder(StateFolder):
    """The same folder; every memory that reaches the disk is also kept under a number of its own."""

    def __init__(self, folder: Path, records: Path, fate: Fate) -> None:
        super().__init__(folder)
        self._records = records
        self._fate = fate
        records.mkdir(parents=True, exist_ok=True)

    def write(self, save: Save, leaving: Sequence[AuditLine] = ()) -> Written:
        self._now: list[str] = []
        written = super().write(save, leaving)
        if "save_memory" in self._now:
            self.record(save.state.memory)
        for name in self._now:  # a write is one record: its parts are on the disk together
            self._fate.reached("after", name)
        return written

    def save_journal(self, journal: Journal) -> None:
        self._begin("save_journal")
        super().save_journal(journal)

    def save_memory(self, memory: ErrorMemory, trainer: TrainerState, before: SiloState | None = None) -> None:
        self._begin("save_memory")
        super().save_memory(memory, trainer, before)

    def save_model(self, model: ModelState, before: SiloState | None = None) -> None:
        self._begin("save_model")
        super().save_model(model, before)

    def _begin(self, name: str) -> None:
        self._fate.reached("before", name)
        self._now.append(name)

    def record(self, memory: ErrorMemory) -> None:
        """u and every pending vector, the latter as whole vectors, so that tests need only add."""
        arrays = {"residual": memory.residual, "given_up": np.array(memory.given_up)}
        pending = memory.pending
        if pending is not None:
            whole, before = np.zeros_like(memory.base), memory.before.dense()
            whole[pending.indices] = pending.sent
            arrays |= {f"pending_{pending.place.round}": whole, "before": before, "g": pending.contribution.g}
            arrays["on_i"] = np.isin(np.arange(before.size), pending.indices)
        number = len(list(self._records.glob("*.npz")))
        np.savez(self._records / f"{number:04}.npz", **arrays)  # type: ignore[arg-type]


def recording_daemon(settings: SiloSettings, records: Path, step: str, number: int) -> SiloDaemon:
    fate = Fate(step)
    connection = connect(settings)
    connection.__class__ = DyingConnection
    assert isinstance(connection, DyingConnection)
    connection.fate = fate
    credentials = Credentials.load(settings.credentials)
    folder = RecordingFolder(settings.state, records, fate)
    trainer = StubTrainer(number)
    return SiloDaemon(settings, credentials, credentials.trust_store(), trainer, state=folder, connection=connection)


def start_dying_silo(config: Path, records: Path, step: str) -> BaseProcess:
    """A process that ends at the step; its exit code is then minus SIGKILL."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    process = context.Process(target=_run, args=(config, records, step), daemon=True)
    process.start()
    return process


def _run(config: Path, records: Path, step: str) -> None:
    with config.with_suffix(".log").open("ab") as log:
        os.dup2(log.fileno(), sys.stderr.fileno())
    settings = load_settings(SiloSettings, config, "FEDREP_CLIENT")
    configure_logging("client", json=True)
    daemon = recording_daemon(settings, records, step, int(settings.trainer.options["number"]))
    asyncio.run(daemon.run())
