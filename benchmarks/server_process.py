"""The real server in a process of its own, with timers around its kinds of work. Talks to the benchmark over a pipe."""

from __future__ import annotations

import asyncio
import functools
import logging
import resource
import threading
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import structlog

from benchmarks.measuring import peak_mb

WORK: Counter[str] = Counter()
_lock = threading.Lock()
_inner = threading.local()


def timed(kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """CPU seconds of this thread; work inside other timed work is taken off the outer one."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        outer = getattr(_inner, "seconds", 0.0)
        _inner.seconds = 0.0
        started = time.thread_time()
        try:
            return function(*args, **kwargs)
        finally:
            spent = time.thread_time() - started
            with _lock:
                WORK[kind] += spent - _inner.seconds
            _inner.seconds = outer + spent

    return wrapper


def install_timers() -> None:
    """By name, where each function is looked up: the code under test is not changed for being measured."""
    from fedrep.protocol import server_round, server_rules, server_run, share_book
    from fedrep.secagg.keys import P256VerifyKey
    from fedrep_server.rounds.model_store import FolderModelStore
    from fedrep_server.rounds.records import RunRecords
    from fedrep_server.store import SqlStore

    stored = (
        "commit_round",
        "open_round",
        "append_events",
        "retire_models",
        "summary",
        "statements",
        "touch_silo",
        "set_run_state",
    )
    places: list[tuple[Any, str, str]] = [
        *((SqlStore, name, "database") for name in stored),
        (SqlStore, "add_reports", "reports of silos"),
        (RunRecords, "commit", "database"),
        (FolderModelStore, "put", "model files"),
        (FolderModelStore, "delete", "model files"),
        (P256VerifyKey, "verify", "signatures"),
        (server_rules, "check_agreement_public", "signatures"),
        (server_round, "combine_buffers", "aggregation"),
        (server_round, "open_buffer", "unmasking"),
        (server_round, "masks_left_in_sum", "unmasking"),
        (share_book.ShareBook, "recover", "shares"),
        (server_round.ServerRound, "receive", "protocol"),
        (server_run, "close_round", "closing the round"),
    ]
    for where, name, kind in places:
        setattr(where, name, timed(kind, getattr(where, name)))


def run_server(folder: Path, pipe: Connection) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    install_timers()
    asyncio.run(_serve(folder, pipe))


async def _serve(folder: Path, pipe: Connection) -> None:
    from fedrep_runtime.collector import settle_collector
    from fedrep_server.config import ServerSettings
    from fedrep_server.operations.app import start

    options: dict[str, Any] = {"host": "127.0.0.1", "port": 0, "health_port": None, "metrics_port": None}
    options |= {
        "gather_seconds": 60,
        "pace_factor": 0,
        "line_grace_seconds": 600,
    }  # a machine that stands still for a while must skip no round
    running = await start(ServerSettings(data=folder / "data", credentials=folder / "server", **options))
    settle_collector()  # as `fedrep server` does
    idle = peak_mb()
    pipe.send(running.port)
    started = 0.0
    while (order := await asyncio.to_thread(pipe.recv)) != "stop":
        if order == "reset":
            WORK.clear()
            started = _cpu()
            pipe.send("done")
        else:
            pipe.send({"cpu": _cpu() - started, "work": dict(WORK), "peak_mb": peak_mb(), "idle_mb": idle})
    await running.stop()


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
