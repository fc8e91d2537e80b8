"""Standbys that are ready: silos that reach one play with the leader through it, and a server waits for its database."""

from __future__ import annotations

import asyncio
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families

from fedrep_cli.free_ports import free_port
from fedrep_server.operations.standby import Relay as Passing
from fedrep_server.store import Database
from fedrep_server.store.schema import current_revision, known_revisions, migrate
from fedrep_silo.training import in_thread
from tests.deploy.replicas import Relay
from tests.harness.federation import Federation, StubTrainer
from tests.harness.processes import ServerProcess, run_scenario
from tests.harness.store_fixtures import NewUrl

SILOS = 4
ROUNDS = 6


def start(federation: Federation, name: str, database: str, port: int) -> ServerProcess:
    changes: dict[str, Any] = {"port": port, "data": federation.folder / name, "database": database}
    changes |= {"advertise": f"127.0.0.1:{port}", "metrics_port": free_port()}
    return ServerProcess.start(federation.server_settings().model_copy(update=changes), federation.folder / f"{name}.toml")


def figures(replica: ServerProcess, name: str) -> float:
    text = replica.log.with_suffix(".toml").read_text()
    (port,) = [line.split("=")[1].strip() for line in text.splitlines() if line.startswith("metrics_port")]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        page = answer.read().decode()
    (value,) = [
        sample.value for family in text_string_to_metric_families(page) for sample in family.samples if sample.name == name
    ]
    return float(value)


def test_silos_that_reach_a_standby_play_with_the_leader_and_go_on_when_it_leads_itself(
    tmp_path: Path, new_postgres_url: NewUrl
) -> None:
    database = new_postgres_url()
    federation = Federation.create(tmp_path, silos=SILOS)  # its silos dial `federation.port`, which is the standby's

    async def scenario() -> None:
        first = start(federation, "first", database, free_port())
        await first.until_serving()
        second = start(federation, "second", database, federation.port)
        await second.until_serving()
        assert await in_thread(lambda: second.health("fedrep.wire.v1.FederationService")) == "NOT_SERVING"
        assert await in_thread(lambda: (figures(first, "fedrep_leader"), figures(second, "fedrep_leader"))) == (1.0, 0.0)
        await federation.create_run(rounds=ROUNDS)
        rounds_before = asyncio.Event()
        loop = asyncio.get_running_loop()

        def seen(number: int) -> None:
            if number >= 3:  # it may have missed that very round
                loop.call_soon_threadsafe(rounds_before.set)

        silos = [
            federation.daemon(number, trainer=StubTrainer(number, before_training=seen if number == 0 else lambda _: None))
            for number in range(SILOS)
        ]
        work = asyncio.create_task(federation.run_silos(silos))
        await rounds_before.wait()
        assert await in_thread(lambda: figures(second, "fedrep_leader")) == 0.0
        first.kill()
        await work
        assert await in_thread(lambda: figures(second, "fedrep_leader")) == 1.0
        assert len(await federation.rounds()) == ROUNDS
        assert second.terminate() == 0

    run_scenario(scenario())


def test_a_server_that_starts_without_its_database_waits_says_so_and_serves_when_it_is_there(
    tmp_path: Path, new_postgres_url: NewUrl
) -> None:
    parts = urlsplit(new_postgres_url())
    socket_file = Path(parse_qs(parts.query)["host"][0]) / ".s.PGSQL.5432"
    query = parts.query.split("&", 1)[1]
    port = free_port()
    federation = Federation.create(tmp_path, silos=SILOS)

    async def scenario() -> None:
        server = start(federation, "server", f"postgresql://postgres@127.0.0.1:{port}{parts.path}?{query}", free_port())
        await server.until("SERVING", "live")
        while not server.says("waiting_for_database"):
            assert server.process.poll() is None, server.log.read_text()
            await asyncio.sleep(0.05)
        assert "cannot be reached" in server.log.read_text()
        assert await in_thread(server.health) == "NOT_SERVING"
        assert await in_thread(lambda: figures(server, "fedrep_database_reachable")) == 0.0
        async with Relay(lambda: asyncio.open_unix_connection(socket_file)).listening(port):
            await server.until_serving()
            assert await in_thread(lambda: figures(server, "fedrep_database_reachable")) == 1.0
            assert server.terminate() == 0

    run_scenario(scenario())


def test_the_schema_is_migrated_by_the_next_leader_and_never_under_the_one_before(
    tmp_path: Path, new_postgres_url: NewUrl
) -> None:
    url = new_postgres_url()
    older = known_revisions()[-2]
    database = Database(url)
    migrate(database, older)
    federation = Federation.create(tmp_path, silos=SILOS)

    async def scenario() -> None:
        with psycopg.connect(url, autocommit=True) as old_leader:
            old_leader.execute("SELECT pg_advisory_lock(%s)", (0x666564726C,))
            server = start(federation, "server", url, free_port())
            await server.until_serving()  # as a standby, beside a leader of an older release that names no address
            assert current_revision(database) == older
        await server.until("SERVING", "fedrep.wire.v1.FederationService")
        assert current_revision(database) == known_revisions()[-1]

    run_scenario(scenario())
    database.close()


@pytest.mark.parametrize("leader", ["", "own"])
def test_a_standby_that_knows_no_other_leader_ends_connections_and_never_calls_itself(leader: str) -> None:
    async def scenario() -> None:
        port = free_port()
        own = f"127.0.0.1:{port}"
        passing = Passing("127.0.0.1", port, own)
        await passing.lead_to(own if leader else "")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""
        writer.close()
        await passing.close()

    run_scenario(scenario())


def test_connections_to_a_former_leader_end_when_another_leads() -> None:
    async def scenario() -> None:
        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(100):
                writer.write(data)
            writer.close()

        leader = await asyncio.start_server(echo, "127.0.0.1", 0)
        port = free_port()
        passing = Passing("127.0.0.1", port, "another:1")
        await passing.lead_to(f"127.0.0.1:{leader.sockets[0].getsockname()[1]}")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"hello")
        assert await reader.read(5) == b"hello"
        await passing.lead_to("127.0.0.1:1")
        assert await reader.read() == b""
        writer.close()
        await passing.close()
        leader.close()

    run_scenario(scenario())
