"""Messages too early, too late, twice or broken off: what the round makes of them."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from fedrep.protocol.manifests import SiloName
from fedrep.protocol.messages import Signatures
from fedrep.wire import codec
from fedrep.wire.v1 import federation_pb2 as pb
from tests.contract.refusals import (
    OUT_OF_PHASE,
    Call,
    proposal,
    propose,
    refuses,
    submission,
    submit,
    update,
)
from tests.harness.live_server import LiveServer, Stage, stage, wait_until
from tests.harness.mini_silo import SECONDS


def too_early(method: str, at: Stage) -> Any:
    """As right as a message can be made before its phase."""
    silo = at.last
    if method == "SubmitMaskedShare":
        return submit(silo, pb.SubmissionHeader(run=silo.run, round=1, masked_sha256=hashlib.sha256(b"").digest()), b"")
    if method == "ConfirmSurvivors":
        return silo.stub.ConfirmSurvivors(pb.ConfirmSurvivorsRequest(run=silo.run, round=1), timeout=SECONDS)
    return silo.stub.RevealShares(pb.RevealSharesRequest(run=silo.run, round=1), timeout=SECONDS)


@pytest.mark.parametrize(
    ("method", "phase"),
    [
        ("SubmitMaskedShare", "propose"),
        ("ConfirmSurvivors", "propose"),
        ("RevealShares", "propose"),
        ("ConfirmSurvivors", "submit"),
        ("RevealShares", "submit"),
        ("RevealShares", "confirm"),
    ],
)
def test_a_message_in_the_wrong_phase_is_refused_and_changes_nothing(
    stages: Callable[[str], Stage], method: str, phase: str
) -> None:
    refuses(stages(phase), lambda at: too_early(method, at), OUT_OF_PHASE)


@pytest.mark.parametrize("phase", ["submit", "confirm", "reveal"])
def test_a_proposal_after_its_phase_is_refused_and_changes_nothing(server: LiveServer, run_name: str, phase: str) -> None:
    """The last silo comes when the deadline has passed; the round goes on with the others."""
    at = stage(server, run_name, "propose")
    server.pass_deadline(run_name)
    if phase != "submit":
        for silo in at.silos[:3]:
            silo.consensus()
            if silo.has_company():
                silo.submit(*silo.submission([0.1] * 200))
    if phase == "reveal":
        calls = []
        for silo in at.silos[:3]:
            silo.survivors()
            calls.append(silo.stub.ConfirmSurvivors.future(silo.confirmation(), timeout=SECONDS))
        for call in calls:
            call.result()
    refuses(at, lambda at: propose(at.last, *proposal(at)), OUT_OF_PHASE)
    if phase == "submit":
        at.first.consensus()
        masked = bytes(2 * len(at.first.indices))
        not_assigned = pb.SubmissionHeader(
            run=at.last.run, round=1, masked_size=len(masked), masked_sha256=hashlib.sha256(masked).digest()
        )
        refuses(at, lambda at: submit(at.last, not_assigned, masked), ("FAILED_PRECONDITION", "NOT_ASSIGNED"))


@pytest.mark.parametrize(
    ("phase", "resend"),
    [
        ("propose", lambda at: propose(at.first, *proposal(at, at.first))),
        ("submit", lambda at: propose(at.first, *proposal(at, at.first))),
        ("submit", lambda at: submit(at.first, *submission(at, at.first))),
        ("confirm", lambda at: submit(at.first, *submission(at, at.first))),
        ("reveal", lambda at: at.first.stub.ConfirmSurvivors(at.sent[f"confirmation/{at.first.name}"], timeout=SECONDS)),
        ("reveal", lambda at: at.first.stub.RevealShares(at.sent[f"reveal/{at.first.name}"], timeout=SECONDS)),
        ("done", lambda at: at.last.stub.ConfirmSurvivors(at.sent[f"confirmation/{at.last.name}"], timeout=SECONDS)),
        ("done", lambda at: at.last.stub.RevealShares(at.sent[f"reveal/{at.last.name}"], timeout=SECONDS)),
    ],
    ids=[
        "proposal",
        "proposal in a later phase",
        "submission",
        "submission in a later phase",
        "confirmation",
        "reveal",
        "a confirmation that was not needed any more",
        "a reveal that was not needed any more",
    ],
)
def test_the_same_message_again_is_accepted_and_changes_nothing(stages: Callable[[str], Stage], phase: str, resend: Call) -> None:
    at = stages(phase)
    before = at.server.snapshot(at.run)
    resend(at)
    assert at.server.snapshot(at.run) == before


@pytest.mark.parametrize(
    ("phase", "waiting"),
    [
        ("propose", lambda at: at.first.stub.GetConsensus(pb.GetConsensusRequest(run=at.first.run, round=1))),
        ("submit", lambda at: at.first.stub.GetSurvivors.future(pb.GetSurvivorsRequest(run=at.first.run, round=1))),
        ("confirm", lambda at: at.first.stub.ConfirmSurvivors.future(at.sent[f"confirmation/{at.first.name}"])),
        ("reveal", lambda at: at.first.stub.GetUpdate(pb.GetUpdateRequest(run=at.first.run, round=1))),
    ],
    ids=["GetConsensus", "GetSurvivors", "ConfirmSurvivors", "GetUpdate"],
)
def test_a_waiting_call_that_is_cancelled_leaves_nothing_behind(
    stages: Callable[[str], Stage], phase: str, waiting: Call
) -> None:
    at = stages(phase)
    before = at.server.snapshot(at.run)
    for _ in range(3):
        call = waiting(at)
        wait_until(lambda: at.server.waiting(at.run) == 1)
        call.cancel()
        assert call.code() is grpc.StatusCode.CANCELLED
        wait_until(lambda: at.server.waiting(at.run) == 0)
    assert at.server.snapshot(at.run) == before


def test_an_upload_that_is_cancelled_half_way_leaves_nothing_behind(stages: Callable[[str], Stage]) -> None:
    at = stages("submit")
    before = at.server.snapshot(at.run)
    header, masked = submission(at)
    halfway, hold = threading.Event(), threading.Event()

    def half() -> Iterator[pb.SubmitMaskedShareRequest]:
        yield pb.SubmitMaskedShareRequest(header=header)
        yield pb.SubmitMaskedShareRequest(chunk=masked[:10])
        halfway.set()
        hold.wait(SECONDS)

    call = at.last.stub.SubmitMaskedShare.future(half())
    assert halfway.wait(SECONDS)
    call.cancel()
    hold.set()
    assert call.code() is grpc.StatusCode.CANCELLED
    assert at.server.snapshot(at.run) == before


def test_the_last_proposal_counts_although_its_sender_hangs_up(server: LiveServer, run_name: str) -> None:
    """Cancelled while the round moves on, at several moments: the change is carried through, and those who wait are woken."""
    at = stage(server, run_name, "propose")
    message = codec.proposal_from_wire(SiloName(at.last.name), *proposal(at))
    driver = server.driver(run_name)

    async def hang_up() -> None:
        task = asyncio.create_task(driver.deliver(message))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()

    waiting = at.first.stub.GetConsensus(pb.GetConsensusRequest(run=at.first.run, round=1), timeout=SECONDS)
    server.ask(hang_up())
    assert len(next(waiting).header.assignment) == 2
    assert driver.open is not None
    assert driver.open.machine.phase.value == "submit"
    assert len(driver._interpreter._marks) == 2
    assert driver._interpreter._timer is not None
    assert not driver._interpreter._timer.done()


def test_a_confirmation_that_waits_for_its_turn_while_the_round_is_applied_is_answered(server: LiveServer, run_name: str) -> None:
    at = stage(server, run_name, "reveal")
    driver = server.driver(run_name)
    late = codec.confirmation_from_wire(SiloName(at.last.name), at.sent[f"confirmation/{at.last.name}"])
    reveals = [codec.reveal_from_wire(SiloName(silo.name), at.sent[f"reveal/{silo.name}"]) for silo in at.silos[1:3]]

    async def in_this_order() -> Signatures:
        lock = driver._interpreter.lock
        async with lock:
            revealing = [asyncio.create_task(driver.deliver(reveal)) for reveal in reveals]
            confirming = asyncio.create_task(driver.confirm(late))
            while len(lock._waiters or ()) < 3:
                await asyncio.sleep(0)
        await asyncio.gather(*revealing)
        return (await confirming)[0]

    signatures = server.ask(in_this_order())
    assert driver.last_round == 1
    assert {name for name, _ in signatures} == {silo.name for silo in at.silos[:3]}


def test_a_statement_about_a_skipped_round_reaches_everyone_who_asks_later(server: LiveServer, run_name: str) -> None:
    at = stage(server, run_name, "submit")
    server.ask(server.driver(run_name).stop("enough"))
    header, _ = at.last.update(1)
    assert list(header.statements) == []
    for _ in range(2):
        list(update(at.first, run=at.first.run, round=1, statement=at.first.statement(1)))
    header, _ = at.last.update(1)
    assert [statement.silo for statement in header.statements] == [at.first.name]


def test_certificates_are_given_in_the_order_of_the_question_and_nothing_where_none_is_known(
    stages: Callable[[str], Stage],
) -> None:
    at = stages("propose")
    wanted = [at.manifest.roster[2].fingerprint, bytes(32), at.manifest.roster[0].fingerprint]
    answer = at.last.stub.GetCertificates(pb.GetCertificatesRequest(run=at.first.run, fingerprints=wanted))
    third, none, first = answer.certificates
    assert none == b""
    people = at.server.people.credentials
    assert (third.strip(), first.strip()) == (people["silo-c"].chain.strip(), people["silo-a"].chain.strip())
