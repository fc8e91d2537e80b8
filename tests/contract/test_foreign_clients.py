"""Clients that share no code with ours: Node's grpc-js plays whole rounds as a silo, and `buf curl` makes a call of each kind."""

from __future__ import annotations

import base64
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.json_format import MessageToDict

from fedrep.wire.v1 import federation_pb2 as pb
from fedrep.wire.v1 import observer_pb2
from fedrep_identity.certificates import CERTIFICATE_FILE, KEY_FILE, ROOT_FILE
from fedrep_runtime.observer_client import create_run_requests
from tests.harness.live_server import PARAMETERS, SILOS, LiveServer, refusal, wait_for_round
from tests.harness.mini_silo import play_round
from tests.harness.node_stub import REPOSITORY, NodeCaller, missing

BUF = Path(sys.executable).parent / "buf"
needs_node = pytest.mark.skipif(bool(missing()), reason=missing() or "-")


@pytest.fixture
def node(server: LiveServer) -> Iterator[Callable[[str], NodeCaller]]:
    callers: list[NodeCaller] = []

    def calling_as(name: str) -> NodeCaller:
        callers.append(NodeCaller(server.address, server.people.folder / name))
        return callers[-1]

    yield calling_as
    for caller in callers:
        caller.close()


def buf(server: LiveServer, name: str, method: str, *messages: Any, anonymous: bool = False) -> subprocess.CompletedProcess[str]:
    """`buf curl`, told of the contract by the proto files, with the key and certificate of `name`."""
    own = server.people.folder / name
    identity = [] if anonymous else ["--cert", str(own / CERTIFICATE_FILE), "--key", str(own / KEY_FILE)]
    where = ["--schema", "proto", "--cacert", str(own / ROOT_FILE), *identity, f"https://{server.address}/{method}"]
    return subprocess.run(
        [str(BUF), "curl", "--protocol", "grpc", "-d", "@-", *where],
        input="\n".join(json.dumps(MessageToDict(message)) for message in messages),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=REPOSITORY,
    )


def answers(done: subprocess.CompletedProcess[str]) -> list[Any]:
    """JSON objects, one after the other, over several lines each."""
    assert done.returncode == 0, done.stderr
    decoder, rest, found = json.JSONDecoder(), done.stdout.strip(), []
    while rest:
        answer, end = decoder.raw_decode(rest)
        found.append(answer)
        rest = rest[end:].lstrip()
    return found


@needs_node
def test_silos_in_node_play_whole_rounds(server: LiveServer, run_name: str, node: Callable[[str], NodeCaller]) -> None:
    """Unary calls, streams from the silo and streams from the server; one silo of ours plays with them, to the same bits."""
    server.create_run(run_name)
    silos = [server.silo(name) for name in SILOS]
    for silo in silos[:-1]:
        silo.stub = node(silo.name).stub("FederationService")
    for silo in silos:
        silo.fetch_model(silo.join(run_name).model_version)
    draw, last = random.Random(5), 0
    for _ in range(2):
        updates = {silo.name: [draw.uniform(-0.5, 0.5) for _ in range(PARAMETERS)] for silo in silos}
        manifest = wait_for_round(server, run_name, after=last)
        assert play_round(silos, manifest, updates).outcome == pb.OUTCOME_APPLIED
        last = manifest.round
    assert all(silo.model == silos[-1].model for silo in silos)


@needs_node
def test_a_stream_in_both_directions_from_node(server: LiveServer, run_name: str, node: Callable[[str], NodeCaller]) -> None:
    server.create_run(run_name)
    look = server.silo(SILOS[0]).join_request(run_name).SerializeToString()
    stub = node(SILOS[0]).stub("FederationService")
    calls = [pb.PlayRequest(call=number, method="Join", message=look, last=True) for number in (1, 2)]
    heard = [each for answer in stub.Play(iter(calls)) for each in (answer, *answer.more)]
    assert sorted(answer.call for answer in heard if answer.HasField("message")) == [1, 2]
    assert all(
        pb.JoinResponse.FromString(answer.message).run.manifest.name == run_name for answer in heard if answer.HasField("message")
    )


@needs_node
def test_an_admin_in_node_creates_a_run_and_watches_it(
    server: LiveServer, run_name: str, node: Callable[[str], NodeCaller]
) -> None:
    stub = node("admin").stub("ObserverService")
    signed, config, vector = server.signed_run(run_name)
    assert not stub.CreateRun(create_run_requests(signed, config.options(""), vector)).problems
    assert run_name in [run.name for run in stub.ListRuns(observer_pb2.ListRunsRequest()).runs]
    first = next(stub.WatchRun(observer_pb2.WatchRunRequest(name=run_name)))
    assert first.summary.name == run_name


@needs_node
def test_node_is_told_why_it_is_refused(server: LiveServer, run_name: str, node: Callable[[str], NodeCaller]) -> None:
    server.create_run(run_name)
    viewer = node("viewer").stub("ObserverService")
    assert refusal(lambda: viewer.StopRun(observer_pb2.StopRunRequest(name=run_name)))[0] == "PERMISSION_DENIED"
    unknown = node(SILOS[0]).stub("FederationService")
    status, reason = refusal(lambda: unknown.Join(pb.JoinRequest(run_name="no-such-run", protocol_version=3)))
    assert (status, bool(reason)) == ("NOT_FOUND", True)


def test_buf_curl_makes_a_unary_call_and_reads_a_stream(server: LiveServer, run_name: str) -> None:
    run = server.create_run(run_name)
    (listed,) = answers(buf(server, "viewer", "fedrep.wire.v1.ObserverService/ListRuns", observer_pb2.ListRunsRequest()))
    assert run_name in [found["name"] for found in listed["runs"]]
    silo = server.silo(SILOS[0])
    silo.join(run_name)
    header, *chunks = answers(
        buf(server, SILOS[0], "fedrep.wire.v1.FederationService/GetModel", pb.GetModelRequest(run=run, version=0))
    )
    assert header["header"]
    read = b"".join(base64.b64decode(part["chunk"]) for part in chunks)
    assert len(read) == 4 * PARAMETERS


def test_buf_curl_sends_a_stream_and_one_in_both_directions(server: LiveServer, run_name: str) -> None:
    signed, config, vector = server.signed_run(run_name)
    requests = list(create_run_requests(signed, config.options(""), vector))
    (made,) = answers(buf(server, "admin", "fedrep.wire.v1.ObserverService/CreateRun", *requests))
    assert not made.get("problems")
    look = server.silo(SILOS[0]).join_request(run_name).SerializeToString()
    heard = answers(
        buf(
            server,
            SILOS[0],
            "fedrep.wire.v1.FederationService/Play",
            pb.PlayRequest(call=1, method="Join", message=look, last=True),
        )
    )
    joined = pb.JoinResponse.FromString(base64.b64decode(heard[0]["message"]))
    assert joined.run.manifest.name == run_name


def test_buf_curl_without_a_certificate_gets_nowhere_and_with_another_role_is_refused(server: LiveServer, run_name: str) -> None:
    server.create_run(run_name)
    stop = observer_pb2.StopRunRequest(name=run_name)
    refused = buf(server, "viewer", "fedrep.wire.v1.ObserverService/StopRun", stop)
    assert refused.returncode != 0
    assert json.loads(refused.stderr)["code"] == grpc.StatusCode.PERMISSION_DENIED.name.lower()
    listing = ("viewer", "fedrep.wire.v1.ObserverService/ListRuns", observer_pb2.ListRunsRequest())
    stranger = buf(server, *listing, anonymous=True)
    assert stranger.returncode != 0
    assert stranger.stdout == ""
    assert answers(buf(server, *listing))
