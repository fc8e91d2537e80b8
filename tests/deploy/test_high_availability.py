"""Two real server processes and a real PostgreSQL: whatever happens to the leader, every applied round counts exactly once."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest

from fedrep.protocol.model_state import model_hash
from fedrep.wire.v1 import observer_pb2 as pb
from fedrep_cli.free_ports import free_port
from fedrep_cli.main import CANNOT_CONNECT, OK, main
from fedrep_server.operations.high_availability import LOST_LEAD
from fedrep_server.operations.leadership import LEADER_LOCK
from fedrep_server.rounds.model_store import open_model_store
from fedrep_server.store import open_store
from fedrep_silo.training import in_thread
from tests.deploy.replicas import Relay, Replicas
from tests.harness.federation import Federation, StubTrainer
from tests.harness.processes import SCENARIO_SECONDS, ServerProcess, run_scenario
from tests.harness.store_fixtures import NewUrl

SILOS = 4
ROUNDS = 12
APPLIED = 1


@pytest.fixture
def replicas(tmp_path: Path, new_postgres_url: NewUrl) -> Replicas:
    return Replicas(Federation.create(tmp_path, silos=SILOS), new_postgres_url())


class Pace:
    """Up to which round the silos may train: the next one stays open until a test says more."""

    def __init__(self) -> None:
        self._allowed = 0
        self._news = threading.Condition()

    def allow(self, rounds: int) -> None:
        with self._news:
            self._allowed = rounds
            self._news.notify_all()

    def wait(self, round_number: int) -> None:
        with self._news:
            assert self._news.wait_for(lambda: round_number <= self._allowed, SCENARIO_SECONDS)


@asynccontextmanager
async def playing(replicas: Replicas) -> AsyncIterator[tuple[Pace, asyncio.Task[None]]]:
    """Silos in this process, on their way through a run over the address that leads to whoever is ready."""
    federation, pace = replicas.federation, Pace()
    async with Relay(replicas.ready).listening(federation.port):
        await federation.create_run(rounds=ROUNDS)
        trainers = [StubTrainer(number, before_training=pace.wait) for number in range(SILOS)]
        silos = [federation.daemon(number, trainer=trainer) for number, trainer in enumerate(trainers)]
        work = asyncio.create_task(federation.run_silos(silos))
        try:
            yield pace, work
        finally:
            pace.allow(ROUNDS)
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)


async def in_the_middle_of_a_round(replicas: Replicas, pace: Pace, after: int) -> None:
    """As the database knows it: more than `after` rounds ended, and another one was given out, which nobody finishes."""
    pace.allow(after + 1)
    with psycopg.connect(replicas.database, autocommit=True) as connection:
        while True:
            row = connection.execute("SELECT last_round, open_round FROM runs").fetchone()
            if row is not None and row[0] > after and row[1] > row[0]:
                return
            await asyncio.sleep(0.02)


async def check_that_every_round_counted_once(replicas: Replicas, before: list[pb.Round]) -> None:
    rounds = await replicas.federation.rounds()
    assert [item.round for item in rounds] == list(range(1, len(rounds) + 1))
    assert len(rounds) == ROUNDS
    known = {item.round: item for item in rounds}
    for item in before:
        assert (known[item.round].outcome, known[item.round].model_version) == (item.outcome, item.model_version)
    version = 0
    for item in rounds:
        version += item.outcome == APPLIED
        assert item.model_version == version
    store = open_store(replicas.database)
    try:
        last = open_model_store("database", Path("unused"), store.database).get("run", version)
        assert store.run("run").progress.model_hash == last.hash == model_hash(last.vector)
    finally:
        store.close()


def lock_holders(database: str) -> list[int]:
    with psycopg.connect(database, autocommit=True) as connection:
        rows = connection.execute(
            f"SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND objid = {LEADER_LOCK & 0xFFFFFFFF}"
        )
        return [row[0] for row in rows]


@pytest.mark.slow
def test_a_killed_leader_is_replaced_mid_round_and_again_and_the_silos_go_on_by_themselves(replicas: Replicas) -> None:
    async def scenario() -> None:
        first = replicas.start("first")
        await first.until_serving()
        second = replicas.start("second")
        await second.until("SERVING", "live")
        assert await in_thread(second.health) == "NOT_SERVING"
        async with playing(replicas) as (pace, work):
            await in_the_middle_of_a_round(replicas, pace, after=2)
            before = await replicas.federation.rounds()
            first.kill()
            await second.until_serving()
            third = replicas.start("third")
            await third.until("SERVING", "live")
            await in_the_middle_of_a_round(replicas, pace, after=before[-1].round + 2)
            before = await replicas.federation.rounds()
            second.kill()
            pace.allow(ROUNDS)
            await work
            await check_that_every_round_counted_once(replicas, before)
            restarts = [item for item in await replicas.federation.rounds() if "restarted" in item.reason]
            assert len(restarts) <= 2
            assert third.terminate() == 0

    run_scenario(scenario())


@pytest.mark.slow
def test_a_leader_that_was_frozen_while_another_took_over_writes_nothing_and_ends(replicas: Replicas) -> None:
    async def scenario() -> None:
        first = replicas.start("first")
        await first.until_serving()
        second = replicas.start("second")
        await second.until("SERVING", "live")
        async with playing(replicas) as (pace, work):
            await in_the_middle_of_a_round(replicas, pace, after=2)
            first.process.send_signal(signal.SIGSTOP)
            pace.allow(ROUNDS)
            (holder,) = lock_holders(replicas.database)
            with psycopg.connect(replicas.database, autocommit=True) as connection:
                connection.execute("SELECT pg_terminate_backend(%s, 5000)", (holder,))
            await second.until_serving()
            with psycopg.connect(replicas.database, autocommit=True) as connection:
                kept = connection.execute("SELECT run, round, outcome, model_version FROM rounds ORDER BY round").fetchall()
            first.process.send_signal(signal.SIGCONT)
            assert await first.wait() == LOST_LEAD
            assert first.says("lead_lost")
            await work
            with psycopg.connect(replicas.database, autocommit=True) as connection:
                rows = connection.execute("SELECT run, round, outcome, model_version FROM rounds ORDER BY round").fetchall()
            assert rows[: len(kept)] == kept
            await check_that_every_round_counted_once(replicas, [])

    run_scenario(scenario())


@pytest.mark.slow
def test_a_leader_cut_off_from_the_database_steps_down_before_the_standby_acts(replicas: Replicas) -> None:
    async def scenario() -> None:
        parts = urlsplit(replicas.database)
        socket_file = Path(parse_qs(parts.query)["host"][0]) / ".s.PGSQL.5432"
        port = free_port()
        path_to_database = Relay(lambda: asyncio.open_unix_connection(socket_file))
        query = parts.query.split("&", 1)[1]
        async with path_to_database.listening(port):
            first = replicas.start("first", f"postgresql://postgres@127.0.0.1:{port}{parts.path}?{query}")
            await first.until_serving()
            second = replicas.start("second")
            await second.until("SERVING", "live")
            async with playing(replicas) as (pace, work):
                await in_the_middle_of_a_round(replicas, pace, after=2)
                path_to_database.cut()
                pace.allow(ROUNDS)
                while first.process.poll() is None:
                    assert await in_thread(second.health) != "SERVING"
                    await asyncio.sleep(0.05)
                assert await first.wait() == LOST_LEAD
                assert len(lock_holders(replicas.database)) == 1  # the database has not noticed yet
                path_to_database.give_up()
                await second.until_serving()
                await work
                await check_that_every_round_counted_once(replicas, [])

    run_scenario(scenario())


def test_a_standby_ends_when_it_is_told_to_and_a_leader_hands_over_when_it_ends(replicas: Replicas) -> None:
    async def scenario() -> None:
        first = replicas.start("first")
        await first.until_serving()
        second, third = replicas.start("second"), replicas.start("third")
        for standby in (second, third):
            await standby.until("SERVING", "live")

        def asked(replica: ServerProcess, *options: str) -> int:
            return main(["server", "health", "--address", f"127.0.0.1:{replica.health_port}", *options])

        assert await asyncio.to_thread(asked, first) == OK
        assert await asyncio.to_thread(asked, second) == CANNOT_CONNECT
        assert await asyncio.to_thread(asked, second, "--live") == OK
        assert third.terminate() == 0
        assert await asyncio.to_thread(asked, third, "--live") == CANNOT_CONNECT
        assert first.terminate() == 0
        await second.until_serving()
        assert second.terminate() == 0
        assert lock_holders(replicas.database) == []

    run_scenario(scenario())
