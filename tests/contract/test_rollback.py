"""A rollback counts only with an admin's signature under exactly what would happen (N5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fedrep.protocol.manifests import RunHash
from fedrep.protocol.messages import rollback_message
from fedrep.wire.v1 import observer_pb2 as pb
from fedrep.wire.v1.observer_pb2_grpc import ObserverServiceStub
from fedrep_identity.certificates import Role
from tests.harness.live_server import PARAMETERS, SILOS, LiveServer, refusal, wait_for_round
from tests.harness.mini_silo import play_round

Change = Callable[[LiveServer, pb.RollBackRunRequest], None]


def played(server: LiveServer, run: str, rounds: int) -> None:
    """So many rounds, and the next one is open."""
    server.create_run(run)
    silos = [server.silo(name) for name in SILOS]
    for silo in silos:
        silo.join(run)
        silo.fetch_model(0)
    for number in range(1, rounds + 1):
        play_round(silos, wait_for_round(server, run, after=number - 1), dict.fromkeys(SILOS, [0.01] * PARAMETERS))
    wait_for_round(server, run, after=rounds)


def signed_again(server: LiveServer, order: Any) -> None:
    key = server.people.credentials["admin"].signing_key
    order.signature = key.sign(rollback_message(RunHash(order.run), order.version, order.model_hash))


def unsigned(_: LiveServer, request: pb.RollBackRunRequest) -> None:
    request.ClearField("order")


def without_signature(_: LiveServer, request: pb.RollBackRunRequest) -> None:
    request.order.signature = b""


def by_another(server: LiveServer, request: pb.RollBackRunRequest) -> None:
    """Another admin's key signed what this one sends."""
    server.people.issue("other-admin", Role.ADMIN)
    request.CopyFrom(server.rollback_request(request.name, request.version, "other-admin"))


def changed_after_signing(_: LiveServer, request: pb.RollBackRunRequest) -> None:
    request.order.model_hash = bytes(32)


def for_another_run(server: LiveServer, request: pb.RollBackRunRequest) -> None:
    request.order.run = bytes(32)
    signed_again(server, request.order)


def for_an_older_version(server: LiveServer, request: pb.RollBackRunRequest) -> None:
    """As if a round had been applied after it was signed."""
    request.order.version -= 1
    signed_again(server, request.order)


def for_another_model(server: LiveServer, request: pb.RollBackRunRequest) -> None:
    """Signed over version 1, asked for version 0."""
    request.version = 0


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (unsigned, ("INVALID_ARGUMENT", "NOT_SIGNED")),
        (without_signature, ("UNAUTHENTICATED", "BAD_SIGNATURE")),
        (by_another, ("UNAUTHENTICATED", "BAD_SIGNATURE")),
        (changed_after_signing, ("UNAUTHENTICATED", "BAD_SIGNATURE")),
        (for_another_run, ("FAILED_PRECONDITION", "WRONG_RUN")),
        (for_an_older_version, ("FAILED_PRECONDITION", "MODEL_MOVED")),
        (for_another_model, ("INVALID_ARGUMENT", "WRONG_MODEL")),
    ],
)
def test_a_rollback_that_is_not_signed_as_it_would_happen_is_refused_and_changes_nothing(
    server: LiveServer, run_name: str, change: Change, expected: tuple[str, str]
) -> None:
    """The open round goes on, too."""
    played(server, run_name, 2)
    request = server.rollback_request(run_name, 1)
    change(server, request)
    before = server.snapshot(run_name)
    admin: Any = ObserverServiceStub(server.channel("admin"))  # type: ignore[no-untyped-call]
    assert refusal(lambda: admin.RollBackRun(request)) == expected
    assert server.snapshot(run_name) == before
    assert server.driver(run_name).rollback is None


def test_a_silo_that_joins_is_shown_the_latest_rollback_with_its_admins_certificate(server: LiveServer, run_name: str) -> None:
    played(server, run_name, 1)
    admin: Any = ObserverServiceStub(server.channel("admin"))  # type: ignore[no-untyped-call]
    silo = server.silo("silo-a")
    assert not silo.join(run_name).HasField("rollback")
    for version in (0, 1):
        request = server.rollback_request(run_name, version)
        request.order.certificate, request.order.admin = b"not the one", "nobody"
        admin.RollBackRun(request)
        shown = silo.join(run_name).rollback
        assert (shown.version, shown.model_hash) == (version + 2, request.order.model_hash)
        assert (shown.admin, shown.signature) == ("admin", request.order.signature)
        assert b"BEGIN CERTIFICATE" in shown.certificate
