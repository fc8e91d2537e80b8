"""`python -m tests.chaos.traced FOLDER COMMAND...`: the `fedrep` command, which writes down in FOLDER what it does.

Functions are wrapped by name where they are looked up, so that the code under test is not changed for being watched: the
error memory before and after each write, every training, what leaves the silo, every model, and on the server the buffers that
were opened with what became of them. Besides, how many tasks the event loop has.
"""

from __future__ import annotations

import asyncio
import ctypes
import hashlib
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import numpy as np

from tests.chaos.trace import TraceFile

TASKS_EVERY = 2.0


def watch_silo(trace: TraceFile) -> None:
    from fedrep.patched import dense
    from fedrep.protocol.error_memory import ErrorMemory
    from fedrep.protocol.messages import Confirmation, Proposal, Reveal, Submission
    from fedrep_silo.connection import Connection
    from fedrep_silo.ledgers import LedgerFolder
    from fedrep_silo.state import StateFolder

    def memory_arrays(memory: ErrorMemory) -> tuple[dict[str, Any], dict[str, Any]]:
        notes: dict[str, Any] = {"given_up": memory.given_up, "clipped": memory.clipped_mass}
        arrays: dict[str, Any] = {"residual": memory.residual}
        pending = memory.pending
        if pending is not None:
            contribution = pending.contribution
            notes |= {"round": pending.place.round, "training": contribution.training, "version": contribution.version}
            notes |= {"range": pending.clip_range, "buffer": pending.place.buffer}
            before = memory.before.dense()[pending.indices]
            arrays |= {"g": contribution.g, "indices": pending.indices, "sent": pending.sent, "before": before}
        return notes, arrays

    def note_memory(kind: str, memory: ErrorMemory) -> None:
        notes, arrays = memory_arrays(memory)
        trace.note(kind, notes, **arrays)

    load, write = StateFolder.load, StateFolder.write
    save_memory, save_model = StateFolder.save_memory, StateFolder.save_model
    written: list[tuple[str, dict[str, Any]]] = []  # to be said once the write that it is part of is over
    contribution, write_ledger = ErrorMemory.contribution, LedgerFolder.write
    send = Connection.send

    def traced_load(self: StateFolder, trainer: Any) -> Any:
        state = load(self, trainer)
        note_memory("loaded", state.memory)
        if state.model is not None:
            trace.note("model", {"version": state.model.version, "hash": state.model.hash.hex()})
        return state

    def traced_save_memory(self: StateFolder, memory: ErrorMemory, trainer: Any, before: Any = None) -> None:
        note_memory("intended", memory)
        save_memory(self, memory, trainer, before)
        written.append(("saved", {}))

    def traced_save_model(self: StateFolder, model: Any, before: Any = None) -> None:
        save_model(self, model, before)
        written.append(("model", {"version": model.version, "hash": model.hash.hex()}))

    def traced_write(self: StateFolder, save: Any, leaving: Any = ()) -> Any:
        written.clear()
        receipt = write(self, save, leaving)
        for kind, notes in written:
            trace.note(kind, notes)
        return receipt

    def traced_contribution(self: ErrorMemory, training: int, version: int, update: Any, *more: Any) -> Any:
        made = contribution(self, training, version, update, *more)
        notes = {"training": training, "version": version}
        trace.note("trained", notes, update=dense(update), residual=self.residual, g=made.g)
        return made

    def traced_ledger(self: LedgerFolder, run: str, ledger: Any) -> None:
        write_ledger(self, run, ledger)
        trace.note("ledger", {"rounds": ledger.rounds, "total": ledger.total})

    async def traced_send(self: Connection, message: Any, written: Any) -> Any:
        said = message.message
        match said:
            case Proposal():
                trace.note("sent", {"what": "proposal", "round": said.round, "digest": _digest(said.coordinates)})
            case Submission():
                trace.note("sent", {"what": "submission", "round": said.round, "digest": _digest(said.masked)})
            case Confirmation():
                trace.note("sent", {"what": "confirmation", "round": said.round, "digest": _digest(said.signature)})
            case Reveal():
                shares = [(share.dealer, share.secret.value, _digest(share.share)) for share in said.shares]
                trace.note("sent", {"what": "reveal", "round": said.round, "shares": [tuple(map(str, s)) for s in shares]})
        return await send(self, message, written)

    StateFolder.load = traced_load  # type: ignore[method-assign]
    StateFolder.write = traced_write  # type: ignore[method-assign]
    StateFolder.save_memory = traced_save_memory  # type: ignore[method-assign]
    StateFolder.save_model = traced_save_model  # type: ignore[method-assign]
    ErrorMemory.contribution = traced_contribution  # type: ignore[method-assign,assignment]
    LedgerFolder.write = traced_ledger  # type: ignore[method-assign]
    Connection.send = traced_send  # type: ignore[method-assign,assignment]


def watch_server(trace: TraceFile) -> None:
    from fedrep.protocol import server_round, server_run

    combine: Any = getattr(server_round, "combine_buffers")  # noqa: B009 - imported there, which is where it is looked up
    close: Any = getattr(server_run, "close_round")  # noqa: B009
    opened: dict[int, dict[int, Any]] = {}

    def traced_combine(means: Any, *arguments: Any) -> Any:
        combined = combine(means, *arguments)
        opened[id(combined)] = {number: np.array(mean) for number, mean in means.items()}
        return combined

    def traced_close(rules: Any, manifest: Any, result: Any, progress: Any, **options: Any) -> Any:
        vector, residual = (
            progress.model.state.vector.copy(),
            progress.model.residual.copy(),
        )  # which the next one may take
        closed = close(rules, manifest, result, progress, **options)
        means = opened.pop(id(result.combined), None)
        survivors = [[str(each.silo) for each in buffer] for buffer in result.survivors.buffers] if result.survivors else []
        before, after = progress.model.state, closed.progress.model.state
        notes = {"round": manifest.round, "outcome": closed.update.outcome.value, "survivors": survivors, "opened": result.opened}
        notes |= {"range": manifest.clip_range, "version": after.version, "hash": after.hash.hex(), "before": before.hash.hex()}
        arrays: dict[str, Any] = {}
        if means is not None and result.combined is not None:
            arrays = {f"mean_{number}": mean for number, mean in means.items()}
            arrays |= {"aggregate": result.combined.vector, "indices": result.indices, "model": vector}
            arrays |= {"residual": residual, "after": after.vector}
        trace.note("closed", notes, **arrays)
        return closed

    setattr(server_round, "combine_buffers", traced_combine)  # noqa: B010
    setattr(server_run, "close_round", traced_close)  # noqa: B010


def watch_tasks(trace: TraceFile) -> None:
    run = asyncio.run

    def traced_run(main: Coroutine[Any, Any, Any], **options: Any) -> Any:
        async def watched() -> Any:
            counting = asyncio.create_task(_count_tasks(trace))
            try:
                return await main
            finally:
                counting.cancel()

        return run(watched(), **options)

    asyncio.run = traced_run


async def _count_tasks(trace: TraceFile) -> None:
    while True:
        await asyncio.sleep(TASKS_EVERY)
        trace.note("tasks", {"tasks": len(asyncio.all_tasks())})


def end_with_parent() -> None:
    """Whatever ends the program that drives the federation, no part of it stays behind."""
    libc = ctypes.CDLL(None)
    libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _digest(data: Any) -> str:
    return hashlib.sha256(bytes(data)).hexdigest()[:16]


def main() -> int:
    from fedrep_cli.main import main as fedrep

    end_with_parent()
    folder, *command = sys.argv[1:]
    trace = TraceFile(Path(folder))
    watch_tasks(trace)
    if command[0] == "server":
        watch_server(trace)
    elif command[0] == "client":
        watch_silo(trace)
    return fedrep(command)


if __name__ == "__main__":
    sys.exit(main())
