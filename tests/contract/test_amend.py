"""An amended list of silos counts only as its admin signed it, and only the list may change (N4)."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import grpc
import pytest

from fedrep.protocol.amendments import amended
from fedrep.protocol.manifests import RunManifest
from fedrep.wire import codec
from fedrep.wire.v1 import observer_pb2 as pb
from fedrep.wire.v1.observer_pb2_grpc import ObserverServiceStub
from fedrep_cli.main import main
from fedrep_identity.certificates import Role
from fedrep_runtime.run_config import sign_run
from fedrep_server.rounds import waiting
from tests.harness.live_server import OUTSIDER, SILOS, LiveServer, refusal, wait_until


def request(server: LiveServer, manifest: RunManifest, signer: str = "admin") -> pb.AmendRunRequest:
    own = server.people.credentials[signer]
    signed = sign_run(manifest, signer, own.chain, own.signing_key)
    return pb.AmendRunRequest(name=manifest.name, manifest=codec.signed_run_to_wire(signed))


def test_an_amendment_that_is_not_signed_by_the_caller_or_changes_more_is_refused_and_changes_nothing(
    server: LiveServer, run_name: str
) -> None:
    server.create_run(run_name)
    server.people.issue("other-admin", Role.ADMIN)
    new = amended(server.driver(run_name).manifest, [OUTSIDER], [], 0)
    forged = request(server, new)
    forged.manifest.manifest.quorum += 1
    admin: Any = ObserverServiceStub(server.channel("admin"))  # type: ignore[no-untyped-call]
    before = server.snapshot(run_name)
    for call, expected in (
        (request(server, new, "other-admin"), ("UNAUTHENTICATED", "WRONG_ADMIN")),
        (forged, ("UNAUTHENTICATED", "BAD_SIGNATURE")),
        (request(server, replace(new, alpha=0.25)), ("FAILED_PRECONDITION", "BAD_AMENDMENT")),
        (request(server, replace(new, from_round=11)), ("FAILED_PRECONDITION", "BAD_AMENDMENT")),
        (request(server, replace(new, quorum=2)), ("FAILED_PRECONDITION", "PREFLIGHT")),
        (request(server, amended(new, [], ["silo-a"], 10)), ("FAILED_PRECONDITION", "BAD_AMENDMENT")),
        (request(server, replace(new, from_round=60)), ("FAILED_PRECONDITION", "EPOCH_MOVED")),
    ):
        assert refusal(lambda call=call: admin.AmendRun(call)) == expected
        assert server.snapshot(run_name) == before
        assert server.driver(run_name).amendment is None


def test_an_amendment_that_was_taken_is_found_by_its_hash_although_its_admin_has_gone(server: LiveServer, run_name: str) -> None:
    server.create_run(run_name)
    driver, new = server.driver(run_name), amended(server.driver(run_name).manifest, [OUTSIDER], [], 0)
    turn = driver._interpreter.lock
    admin: Any = ObserverServiceStub(server.channel("admin"))  # type: ignore[no-untyped-call]
    server.loop.call_soon_threadsafe(turn.take)  # a round is being committed
    wait_until(lambda: not turn.is_free)
    call = admin.AmendRun.future(request(server, new))
    wait_until(lambda: turn._waiters)
    call.cancel()
    wait_until(lambda: not any(each._method.endswith("AmendRun") for each in list(server.running.gate._open)))
    server.loop.call_soon_threadsafe(turn.give)
    wait_until(lambda: driver.amendment is not None and not waiting._carried)
    assert server.running.coordinator.run_hashed(new.digest()) is driver


def test_the_command_signs_a_list_for_the_next_epoch(
    server: LiveServer, run_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    server.create_run(run_name)
    where = ["--server", server.address, "--identity", str(server.people.folder / "admin"), "--json"]
    assert main(["run", "amend", run_name, "--add", OUTSIDER, "--remove", "silo-a", *where]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["silos_allowed"] == 4  # the server's log goes before
    pending = server.driver(run_name).amendment
    assert pending is not None
    assert pending.manifest.silos == (*SILOS[1:], OUTSIDER)
    assert pending.manifest.from_round == 10
    assert refusal(lambda: server.silo(OUTSIDER).join(run_name)) == ("NOT_FOUND", "UNKNOWN_RUN")
    assert main(["run", "amend", run_name, "--remove", "silo-y", *where]) == 1
    assert "'silo-y' is not on the list" in capsys.readouterr().err


def test_a_silo_that_asks_for_an_unknown_run_hears_of_those_alone_that_list_it(server: LiveServer, run_name: str) -> None:
    server.create_run(run_name)

    def told(silo: str) -> str:
        with pytest.raises(grpc.RpcError) as caught:
            server.silo(silo).join("no such run")
        return str(caught.value.details())

    assert run_name in told("silo-a")
    assert run_name not in told(OUTSIDER)
