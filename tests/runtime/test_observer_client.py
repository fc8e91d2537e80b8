"""The command line's way to the server: what is asked again by itself, and what never is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from fedrep.wire.v1 import observer_pb2 as pb
from fedrep.wire.v1 import observer_pb2_grpc
from fedrep_identity.authority import CertificateAuthority, issue_credentials
from fedrep_identity.names import Identity, Role
from fedrep_runtime.observer_client import ObserverClient


class Restarting(observer_pb2_grpc.ObserverServiceServicer):
    """Not there for the first two calls of each kind."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def ListRuns(self, request: Any, context: Any) -> pb.ListRunsResponse:  # noqa: N802, ARG002 - gRPC's own
        self.calls["ListRuns"] += 1
        if self.calls["ListRuns"] <= 2:
            context.abort(grpc.StatusCode.UNAVAILABLE, "starting")
        return pb.ListRunsResponse(runs=[pb.RunSummary(name="there")])

    def StopRun(self, request: Any, context: Any) -> Any:  # noqa: N802, ARG002
        self.calls["StopRun"] += 1
        context.abort(grpc.StatusCode.UNAVAILABLE, "starting")


@pytest.fixture
def reached(tmp_path: Path) -> Iterator[tuple[ObserverClient, Restarting]]:
    authority = CertificateAuthority.create(tmp_path / "ca", "demo", "a passphrase for tests")
    own = issue_credentials(authority, tmp_path / "server", Identity("server", Role.SERVER, "demo"), dns_names=("localhost",))
    admin = issue_credentials(authority, tmp_path / "admin", Identity("admin", Role.ADMIN, "demo"))
    servicer = Restarting()
    server = grpc.server(ThreadPoolExecutor(2))
    observer_pb2_grpc.add_ObserverServiceServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
    secure = grpc.ssl_server_credentials([(own.key_pem, own.chain)], own.root, require_client_auth=True)
    port = server.add_secure_port("localhost:0", secure)
    server.start()
    client = ObserverClient(f"localhost:{port}", admin.root, admin.key_pair)
    yield client, servicer
    client.close()
    server.stop(None).wait()


def test_a_question_to_a_server_that_is_restarting_is_asked_again(reached: tuple[ObserverClient, Restarting]) -> None:
    client, servicer = reached
    assert [run.name for run in client.call("ListRuns", pb.ListRunsRequest()).runs] == ["there"]
    assert servicer.calls["ListRuns"] == 3


def test_an_order_is_given_once(reached: tuple[ObserverClient, Restarting]) -> None:
    client, servicer = reached
    with pytest.raises(grpc.RpcError):
        client.call("StopRun", pb.StopRunRequest(name="there"))
    assert servicer.calls["StopRun"] == 1
