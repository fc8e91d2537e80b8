"""A model fetched piece by piece: the same bytes as in one go, also while the run goes on, and after a line that broke."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from fedrep.wire.v1 import federation_pb2 as pb
from fedrep_server.calls import model_shelf
from fedrep_silo import connection as silo_connection
from fedrep_silo.connection import connect
from tests.harness.live_server import PARAMETERS, SILOS, LiveServer, joined, refusal, wait_for_round
from tests.harness.mini_silo import SECONDS, MiniSilo, play_round

BYTES = 4 * PARAMETERS


def piece(silo: MiniSilo, version: int, offset: int, length: int) -> tuple[pb.ModelHeader, bytes]:
    request = pb.GetModelRequest(run=silo.run, version=version, offset=offset, length=length)
    stream = silo.stub.GetModel(request, timeout=SECONDS)
    header = next(stream).header
    return header, b"".join(part.chunk for part in stream)


def test_pieces_of_a_version_stay_its_own_while_the_run_goes_on(server: LiveServer, run_name: str) -> None:
    server.create_run(run_name)
    silos = joined(server, run_name)
    for silo in silos:
        silo.fetch_model(0)
    first = silos[0]
    whole = np.array(first.model, "<f4").tobytes()
    header, start = piece(first, 0, 0, 40)
    updates = {silo.name: [0.25] * PARAMETERS for silo in silos}
    assert play_round(silos, wait_for_round(server, run_name), updates).outcome == pb.OUTCOME_APPLIED
    again, rest = piece(first, 0, 40, BYTES)
    assert start + rest == whole
    assert again == header, "both name the hash of the whole"
    now, newest = piece(first, 1, 0, BYTES)
    assert newest == np.array(first.model, "<f4").tobytes() != whole
    assert now.version == 1


def test_what_lies_behind_the_model_is_refused_and_its_end_is_empty(server: LiveServer, run_name: str) -> None:
    server.create_run(run_name)
    silo = joined(server, run_name)[0]
    assert piece(silo, 0, BYTES, 10)[1] == b""
    assert refusal(lambda: piece(silo, 0, BYTES + 1, 10)) == ("INVALID_ARGUMENT", "INVALID_INPUT")


def test_no_more_than_two_models_are_kept_at_hand(server: LiveServer, run_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []
    put = model_shelf.ModelShelf._put

    def counted(shelf: Any, *arguments: Any) -> None:
        put(shelf, *arguments)
        held.append(len(shelf._held))

    monkeypatch.setattr(model_shelf.ModelShelf, "_put", counted)
    server.create_run(run_name)
    silos = joined(server, run_name)
    for silo in silos:
        silo.fetch_model(0)
    for number in range(3):
        updates = {silo.name: [0.25] * PARAMETERS for silo in silos}
        play_round(silos, wait_for_round(server, run_name, after=number), updates)
    for version in range(4):
        piece(silos[0], version, 0, 8)
    assert max(held) == model_shelf.MOST_HELD


def test_a_silo_whose_line_breaks_fetches_what_is_missing(
    server: LiveServer, run_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = server.create_run(run_name)
    monkeypatch.setattr(silo_connection, "MODEL_PIECE", 16)
    monkeypatch.setattr(silo_connection, "FIRST_PAUSE", 0.01)
    asked: list[int] = []
    known = silo_connection.Connection._connected

    class Breaking:
        """The third piece breaks off after its header."""

        def __init__(self, stub: Any) -> None:
            self._stub = stub

        def __getattr__(self, name: str) -> Any:
            return getattr(self._stub, name)

        async def GetModel(self, request: Any, timeout: float) -> Any:  # noqa: N802
            asked.append(request.offset)
            async for part in self._stub.GetModel(request, timeout=timeout):
                yield part
                if len(asked) == 3:
                    error = grpc.aio.Metadata()
                    raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, error, error, "cut", None)

    monkeypatch.setattr(silo_connection.Connection, "_connected", lambda self: Breaking(known(self)))
    settings = server.silo_settings(SILOS[0], run_name, tmp_path)

    async def fetch() -> tuple[int, Any]:
        connection = connect(settings)
        try:
            return await connection.model(run, 0)
        finally:
            await connection.close()

    version, vector = asyncio.run(fetch())
    silo = joined(server, run_name)[0]
    silo.fetch_model(0)
    assert version == 0
    assert vector.tolist() == silo.model
    assert asked == sorted([*range(0, BYTES, 16), 32]), "the third piece twice, every other once"
