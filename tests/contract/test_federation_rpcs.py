"""Every RPC of the silos' contract in every bad way: the exact status and reason, and a state that has not moved.

All refusals of one phase are tried on the same round: if one of them changed anything, the snapshot beside it would tell.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from fedrep.protocol.manifests import SiloName
from fedrep.wire import codec
from fedrep.wire.v1 import federation_pb2 as pb
from services.runtime.run_config import DeadlineConfig
from tests.contract.live_server import OUTSIDER, LiveServer, Stage, refusal, stage, wait_until
from tests.contract.mini_client import MiniSilo, digest, rice_encoded, streamed

OTHER_RUN = bytes(range(32))
SECONDS = 10.0

MALFORMED = ("INVALID_ARGUMENT", "MALFORMED")
UNKNOWN_RUN = ("NOT_FOUND", "UNKNOWN_RUN")
NOT_ALLOWED = ("PERMISSION_DENIED", "NOT_ALLOWED")
OUT_OF_PHASE = ("FAILED_PRECONDITION", "OUT_OF_PHASE")
WRONG_ROUND = ("FAILED_PRECONDITION", "WRONG_ROUND")
CONFLICT = ("ALREADY_EXISTS", "CONFLICT")
BAD_SIGNATURE = ("UNAUTHENTICATED", "BAD_SIGNATURE")
NO_HEADER = ("INVALID_ARGUMENT", "NO_HEADER")
TOO_LARGE = ("INVALID_ARGUMENT", "TOO_LARGE")
TRUNCATED = ("INVALID_ARGUMENT", "TRUNCATED")
WRONG_HASH = ("INVALID_ARGUMENT", "WRONG_HASH")
TOO_LONG_FOR_GRPC = ("RESOURCE_EXHAUSTED", None)

Refused = tuple[str, str | None]
Call = Callable[[Stage], Any]


@pytest.fixture(scope="module")
def stages(server: LiveServer) -> Callable[[str], Stage]:
    made: dict[str, Stage] = {}

    def of(phase: str) -> Stage:
        if phase not in made:
            made[phase] = stage(server, f"refusals-{phase}", phase)
        return made[phase]

    return of


def changed(message: Any, **fields: Any) -> Any:
    """A copy with other values; dotted names reach into messages within, as record__signature."""
    copy = type(message)()
    copy.CopyFrom(message)
    for name, value in fields.items():
        target, _, inner = name.rpartition("__")
        holder = getattr(copy, target) if target else copy
        if isinstance(value, list):
            del getattr(holder, inner)[:]
            getattr(holder, inner).extend(value)
        else:
            setattr(holder, inner, value)
    return copy


def outsider(at: Stage) -> MiniSilo:
    """A silo with a good certificate that the run does not list."""
    silo = at.server.silo(OUTSIDER)
    silo.run, silo.rules = at.first.run, at.first.rules
    silo.enter(at.manifest)
    return silo


def proposal(at: Stage, silo: MiniSilo | None = None) -> tuple[pb.ProposalHeader, bytes]:
    sent: tuple[pb.ProposalHeader, bytes] = at.sent[f"proposal/{(silo or at.last).name}"]
    return sent


def submission(at: Stage, silo: MiniSilo | None = None) -> tuple[pb.SubmissionHeader, bytes]:
    sent: tuple[pb.SubmissionHeader, bytes] = at.sent[f"submission/{(silo or at.last).name}"]
    return sent


def propose(silo: MiniSilo, header: pb.ProposalHeader, code: bytes) -> Any:
    return silo.stub.ProposeCoordinates(streamed(pb.ProposeCoordinatesRequest, header, code), timeout=SECONDS)


def with_code(header: pb.ProposalHeader, code: bytes) -> tuple[pb.ProposalHeader, bytes]:
    return changed(header, coordinates_size=len(code), coordinates_sha256=hashlib.sha256(code).digest()), code


def resigned(at: Stage, header: pb.ProposalHeader) -> pb.ProposalHeader:
    record = changed(header.record, signature=at.last.sign(at.last.record_digest(header.record)))
    copy: pb.ProposalHeader = changed(header)
    copy.record.CopyFrom(record)
    return copy


def submit(silo: MiniSilo, header: pb.SubmissionHeader, masked: bytes) -> Any:
    return silo.stub.SubmitMaskedShare(streamed(pb.SubmitMaskedShareRequest, header, masked), timeout=SECONDS)


def requests(*messages: Any) -> Iterator[Any]:
    return iter(messages)


def garbage(at: Stage, method: str) -> Any:
    """Bytes that are no message at all, past the stub."""
    path = f"/fedrep.wire.v1.FederationService/{method}"
    channel: Any = at.last.channel
    noise = b"\xff" * 20
    if method in ("ProposeCoordinates", "SubmitMaskedShare"):
        return channel.stream_unary(path)(iter([noise]), timeout=SECONDS)
    if method in ("GetModel", "GetConsensus", "GetUpdate"):
        return channel.unary_stream(path)(noise, timeout=SECONDS)
    return channel.unary_unary(path)(noise, timeout=SECONDS)


METHODS = tuple(method.name for method in pb.DESCRIPTOR.services_by_name["FederationService"].methods)


@pytest.mark.parametrize("method", METHODS)
def test_bytes_that_are_no_message_are_refused(stages: Callable[[str], Stage], method: str) -> None:
    refuses(stages("propose"), lambda at: garbage(at, method), MALFORMED)


def refuses(at: Stage, call: Call, expected: Refused) -> None:
    before = at.server.snapshot(at.run)
    assert refusal(lambda: call(at)) == expected
    assert at.server.snapshot(at.run) == before


def simple(method: str, request: str, **fields: Any) -> dict[str, tuple[Call, Refused]]:
    """The refusals that every RPC with `run` in its request shares."""

    def made(at: Stage, silo: MiniSilo, **given: Any) -> Any:
        return getattr(silo.stub, method)(getattr(pb, request)(**given), timeout=SECONDS)

    return {
        "unknown silo": (lambda at: made(at, outsider(at), run=at.first.run, **fields), NOT_ALLOWED),
        "wrong run": (lambda at: made(at, at.last, run=OTHER_RUN, **fields), UNKNOWN_RUN),
        "empty": (lambda at: made(at, at.last), UNKNOWN_RUN),
    }


JOIN: dict[str, tuple[Call, Refused]] = {
    "unknown silo": (lambda at: at.server.silo(OUTSIDER).stub.Join(outsider(at).join_request(at.run, at.first.run)), NOT_ALLOWED),
    "unknown silo, first look": (lambda at: at.server.silo(OUTSIDER).stub.Join(pb.JoinRequest(run_name=at.run)), NOT_ALLOWED),
    "wrong run": (lambda at: at.last.stub.Join(at.last.join_request("nobody", at.first.run)), UNKNOWN_RUN),
    "empty": (lambda at: at.last.stub.Join(pb.JoinRequest()), UNKNOWN_RUN),
    "signed for another run": (lambda at: at.last.stub.Join(at.last.join_request(at.run, OTHER_RUN)), BAD_SIGNATURE),
    "signed by another silo": (
        lambda at: at.last.stub.Join(at.first.join_request(at.run, at.first.run)),
        BAD_SIGNATURE,
    ),
    "malformed key": (
        lambda at: at.last.stub.Join(changed(at.last.join_request(at.run, at.first.run), session_key=b"short")),
        ("UNAUTHENTICATED", "BAD_CRYPTOGRAPHY"),
    ),
    "low-order key": (
        lambda at: at.last.stub.Join(changed(at.last.join_request(at.run, at.first.run), session_key=bytes(32))),
        ("UNAUTHENTICATED", "BAD_CRYPTOGRAPHY"),
    ),
    "oversized": (lambda at: at.last.stub.Join(pb.JoinRequest(run_name="x" * (17 << 20))), TOO_LONG_FOR_GRPC),
}

GET_MODEL = simple("GetModel", "GetModelRequest") | {
    "unknown version": (
        lambda at: at.last.stub.GetModel(pb.GetModelRequest(run=at.first.run, version=999)),
        ("NOT_FOUND", "UNKNOWN_MODEL"),
    ),
    "largest version": (
        lambda at: at.last.stub.GetModel(pb.GetModelRequest(run=at.first.run, version=2**64 - 1)),
        ("NOT_FOUND", "UNKNOWN_MODEL"),
    ),
}

GET_CERTIFICATES = simple("GetCertificates", "GetCertificatesRequest") | {
    "oversized": (
        lambda at: at.last.stub.GetCertificates(
            pb.GetCertificatesRequest(run=at.first.run, fingerprints=[bytes(32)] * 256), timeout=SECONDS
        ),
        TOO_LARGE,
    ),
}

PROPOSE: dict[str, tuple[Call, Refused]] = {
    "unknown silo": (lambda at: propose(outsider(at), *proposal(at)), NOT_ALLOWED),
    "another silo's proposal": (lambda at: propose(at.last, *proposal(at, at.first)), ("INVALID_ARGUMENT", "WRONG_RECORD")),
    "wrong run": (lambda at: propose(at.last, changed(proposal(at)[0], run=OTHER_RUN), proposal(at)[1]), UNKNOWN_RUN),
    "earlier round": (lambda at: propose(at.last, changed(proposal(at)[0], round=0), proposal(at)[1]), WRONG_ROUND),
    "later round": (lambda at: propose(at.last, changed(proposal(at)[0], round=2), proposal(at)[1]), WRONG_ROUND),
    "duplicate conflicting": (
        lambda at: propose(at.first, *with_code(proposal(at, at.first)[0], rice_encoded(range(at.manifest.per_silo)))),
        CONFLICT,
    ),
    "no header": (
        lambda at: at.last.stub.ProposeCoordinates(requests(pb.ProposeCoordinatesRequest(chunk=b"abc"))),
        NO_HEADER,
    ),
    "empty": (lambda at: at.last.stub.ProposeCoordinates(requests()), NO_HEADER),
    "empty message": (lambda at: at.last.stub.ProposeCoordinates(requests(pb.ProposeCoordinatesRequest())), NO_HEADER),
    "two headers": (
        lambda at: at.last.stub.ProposeCoordinates(
            requests(*[pb.ProposeCoordinatesRequest(header=proposal(at)[0])] * 2), timeout=SECONDS
        ),
        MALFORMED,
    ),
    "truncated stream": (lambda at: propose(at.last, proposal(at)[0], proposal(at)[1][:-1]), TRUNCATED),
    "longer than announced": (lambda at: propose(at.last, proposal(at)[0], proposal(at)[1] + b"x"), TOO_LARGE),
    "oversized": (
        lambda at: propose(at.last, changed(proposal(at)[0], coordinates_size=1 << 40), proposal(at)[1]),
        TOO_LARGE,
    ),
    "wrong hash": (
        lambda at: propose(at.last, changed(proposal(at)[0], coordinates_sha256=bytes(32)), proposal(at)[1]),
        WRONG_HASH,
    ),
    "undecodable coordinates": (lambda at: propose(at.last, *with_code(proposal(at)[0], b"\x01\x00")), MALFORMED),
    "too few coordinates": (
        lambda at: propose(at.last, *with_code(proposal(at)[0], rice_encoded(range(at.manifest.per_silo - 1)))),
        ("INVALID_ARGUMENT", "WRONG_COUNT"),
    ),
    "too many coordinates": (
        lambda at: propose(at.last, *with_code(proposal(at)[0], rice_encoded(range(at.manifest.per_silo + 1)))),
        MALFORMED,
    ),
    "coordinate outside the model": (
        lambda at: propose(at.last, *with_code(proposal(at)[0], rice_encoded([*range(9), 10_000]))),
        MALFORMED,
    ),
    "a share too few": (
        lambda at: propose(at.last, changed(proposal(at)[0], sealed_shares=[bytes(82)] * 3), proposal(at)[1]),
        ("INVALID_ARGUMENT", "WRONG_SHARES"),
    ),
    "short shares": (
        lambda at: propose(at.last, changed(proposal(at)[0], sealed_shares=[bytes(81)] * 4), proposal(at)[1]),
        ("INVALID_ARGUMENT", "WRONG_SHARES"),
    ),
    "other share hashes": (
        lambda at: propose(at.last, changed(proposal(at)[0], seed_share_hashes=[bytes(32)] * 4), proposal(at)[1]),
        ("INVALID_ARGUMENT", "WRONG_SHARES"),
    ),
    "wrong signature": (
        lambda at: propose(at.last, changed(proposal(at)[0], record__signature=b"forged"), proposal(at)[1]),
        BAD_SIGNATURE,
    ),
    "wrong session signature": (
        lambda at: propose(at.last, changed(proposal(at)[0], next_session_signature=b"forged"), proposal(at)[1]),
        BAD_SIGNATURE,
    ),
    "low-order mask key": (
        lambda at: propose(at.last, resigned(at, changed(proposal(at)[0], record__mask_key=bytes(32))), proposal(at)[1]),
        ("UNAUTHENTICATED", "BAD_CRYPTOGRAPHY"),
    ),
}

GET_CONSENSUS = simple("GetConsensus", "GetConsensusRequest", round=1) | {
    "earlier round": (lambda at: at.last.stub.GetConsensus(pb.GetConsensusRequest(run=at.first.run)), WRONG_ROUND),
    "later round": (lambda at: at.last.stub.GetConsensus(pb.GetConsensusRequest(run=at.first.run, round=2)), WRONG_ROUND),
    "past its deadline": (
        lambda at: at.last.stub.GetConsensus(pb.GetConsensusRequest(run=at.first.run, round=1), timeout=0.05),
        ("DEADLINE_EXCEEDED", None),
    ),
}

SUBMIT: dict[str, tuple[Call, Refused]] = {
    "unknown silo": (lambda at: submit(outsider(at), *submission(at)), NOT_ALLOWED),
    "another silo's submission": (lambda at: submit(at.last, *submission(at, at.first)), BAD_SIGNATURE),
    "wrong run": (lambda at: submit(at.last, changed(submission(at)[0], run=OTHER_RUN), submission(at)[1]), UNKNOWN_RUN),
    "earlier round": (lambda at: submit(at.last, changed(submission(at)[0], round=0), submission(at)[1]), WRONG_ROUND),
    "later round": (lambda at: submit(at.last, changed(submission(at)[0], round=2), submission(at)[1]), WRONG_ROUND),
    "duplicate conflicting": (lambda at: submit(at.first, *other_values(submission(at, at.first))), CONFLICT),
    "no header": (lambda at: at.last.stub.SubmitMaskedShare(requests(pb.SubmitMaskedShareRequest(chunk=b"a"))), NO_HEADER),
    "empty": (lambda at: at.last.stub.SubmitMaskedShare(requests()), NO_HEADER),
    "truncated stream": (lambda at: submit(at.last, submission(at)[0], submission(at)[1][:-2]), TRUNCATED),
    "longer than announced": (lambda at: submit(at.last, submission(at)[0], submission(at)[1] + b"xx"), TOO_LARGE),
    "oversized": (lambda at: submit(at.last, changed(submission(at)[0], masked_size=1 << 40), submission(at)[1]), TOO_LARGE),
    "wrong hash": (
        lambda at: submit(at.last, changed(submission(at)[0], masked_sha256=bytes(32)), submission(at)[1]),
        WRONG_HASH,
    ),
    "a value too few": (lambda at: submit(at.last, *cut(submission(at))), MALFORMED),
    "wrong signature": (
        lambda at: submit(at.last, changed(submission(at)[0], signature=b"forged"), submission(at)[1]),
        BAD_SIGNATURE,
    ),
    "no signature": (lambda at: submit(at.last, changed(submission(at)[0], signature=b""), submission(at)[1]), BAD_SIGNATURE),
}


def other_values(sent: tuple[pb.SubmissionHeader, bytes]) -> tuple[pb.SubmissionHeader, bytes]:
    masked = bytes(len(sent[1]))
    return changed(sent[0], masked_sha256=hashlib.sha256(masked).digest()), masked


def cut(sent: tuple[pb.SubmissionHeader, bytes]) -> tuple[pb.SubmissionHeader, bytes]:
    masked = sent[1][:-2]
    return changed(sent[0], masked_size=len(masked), masked_sha256=hashlib.sha256(masked).digest()), masked


GET_SURVIVORS = simple("GetSurvivors", "GetSurvivorsRequest", round=1) | {
    "earlier round": (lambda at: at.last.stub.GetSurvivors(pb.GetSurvivorsRequest(run=at.first.run)), WRONG_ROUND),
    "later round": (lambda at: at.last.stub.GetSurvivors(pb.GetSurvivorsRequest(run=at.first.run, round=2)), WRONG_ROUND),
    "past its deadline": (
        lambda at: at.last.stub.GetSurvivors(pb.GetSurvivorsRequest(run=at.first.run, round=1), timeout=0.05),
        ("DEADLINE_EXCEEDED", None),
    ),
}


def confirm(at: Stage, silo: MiniSilo, **fields: Any) -> Any:
    request = changed(at.sent[f"confirmation/{at.last.name}"], **fields)
    return silo.stub.ConfirmSurvivors(request, timeout=SECONDS)


CONFIRM: dict[str, tuple[Call, Refused]] = {
    "unknown silo": (lambda at: confirm(at, outsider(at)), NOT_ALLOWED),
    "wrong run": (lambda at: confirm(at, at.last, run=OTHER_RUN), UNKNOWN_RUN),
    "earlier round": (lambda at: confirm(at, at.last, round=0), WRONG_ROUND),
    "later round": (lambda at: confirm(at, at.last, round=2), WRONG_ROUND),
    "duplicate conflicting": (lambda at: confirm(at, at.first), CONFLICT),
    "another silo's signature": (lambda at: confirm(at, at.silos[1]), BAD_SIGNATURE),
    "no signature": (lambda at: confirm(at, at.last, signature=b""), BAD_SIGNATURE),
    "signature on other survivors": (
        lambda at: confirm(at, at.last, signature=at.last.sign(digest("fedrep/confirmation", at.last.c2, bytes(32)))),
        BAD_SIGNATURE,
    ),
    "empty": (lambda at: at.last.stub.ConfirmSurvivors(pb.ConfirmSurvivorsRequest()), UNKNOWN_RUN),
    "first confirmation past its deadline": (
        lambda at: at.first.stub.ConfirmSurvivors(at.sent[f"confirmation/{at.first.name}"], timeout=0.05),
        ("DEADLINE_EXCEEDED", None),
    ),
}


def reveal(at: Stage, silo: MiniSilo, **fields: Any) -> Any:
    return silo.stub.RevealShares(changed(at.sent[f"reveal/{at.last.name}"], **fields), timeout=SECONDS)


def shares(at: Stage, **fields: Any) -> list[pb.RevealedShare]:
    sent = at.sent[f"reveal/{at.last.name}"].shares
    return [changed(sent[0], **fields), *sent[1:]]


REVEAL: dict[str, tuple[Call, Refused]] = {
    "unknown silo": (lambda at: reveal(at, outsider(at)), NOT_ALLOWED),
    "wrong run": (lambda at: reveal(at, at.last, run=OTHER_RUN), UNKNOWN_RUN),
    "earlier round": (lambda at: reveal(at, at.last, round=9), WRONG_ROUND),
    "later round": (lambda at: reveal(at, at.last, round=2), WRONG_ROUND),
    "duplicate conflicting": (lambda at: reveal(at, at.first), CONFLICT),
    "both secrets of one silo": (
        lambda at: reveal(at, at.last, shares=[*shares(at), shares(at, secret=pb.SECRET_KIND_KEY)[0]]),
        ("INVALID_ARGUMENT", "TWO_SHARES"),
    ),
    "the secret nobody asked for": (
        lambda at: reveal(at, at.last, shares=shares(at, secret=pb.SECRET_KIND_KEY)),
        ("INVALID_ARGUMENT", "UNWANTED_SHARE"),
    ),
    "a share of a stranger": (
        lambda at: reveal(at, at.last, shares=shares(at, dealer="stranger")),
        ("INVALID_ARGUMENT", "UNWANTED_SHARE"),
    ),
    "malformed": (lambda at: reveal(at, at.last, shares=shares(at, secret=pb.SECRET_KIND_UNSPECIFIED)), MALFORMED),
    "empty": (lambda at: at.last.stub.RevealShares(pb.RevealSharesRequest()), UNKNOWN_RUN),
}


def update(silo: MiniSilo, **fields: Any) -> Any:
    return silo.stub.GetUpdate(pb.GetUpdateRequest(**fields), timeout=SECONDS)


GET_UPDATE = simple("GetUpdate", "GetUpdateRequest", round=1) | {
    "a round to come": (lambda at: update(at.last, run=at.first.run, round=9), WRONG_ROUND),
    "a round that never was": (lambda at: update(at.last, run=at.first.run), ("NOT_FOUND", "UNKNOWN_ROUND")),
    "past its deadline": (
        lambda at: at.last.stub.GetUpdate(pb.GetUpdateRequest(run=at.first.run, round=1), timeout=0.05),
        ("DEADLINE_EXCEEDED", None),
    ),
    "a statement before the round is over": (
        lambda at: update(at.last, run=at.first.run, round=1, statement=at.last.statement(1)),
        OUT_OF_PHASE,
    ),
}

STATEMENTS: dict[str, tuple[Call, Refused]] = {
    "another silo's statement": (
        lambda at: update(at.last, run=at.first.run, round=1, statement=at.first.statement(1)),
        ("PERMISSION_DENIED", "NOT_YOUR_STATEMENT"),
    ),
    "a forged statement": (
        lambda at: update(at.last, run=at.first.run, round=1, statement=changed(at.last.statement(1), signature=b"forged")),
        BAD_SIGNATURE,
    ),
    "a statement about another round": (
        lambda at: update(at.last, run=at.first.run, round=1, statement=at.last.statement(2)),
        BAD_SIGNATURE,
    ),
}

REPORT = simple("ReportMetrics", "ReportMetricsRequest") | {
    "a round to come": (
        lambda at: at.last.stub.ReportMetrics(pb.ReportMetricsRequest(run=at.first.run, round=9, loss=1.0)),
        ("INVALID_ARGUMENT", "INVALID_INPUT"),
    ),
    "oversized": (
        lambda at: at.last.stub.ReportMetrics(pb.ReportMetricsRequest(run=at.first.run, problem="x" * (17 << 20))),
        TOO_LONG_FOR_GRPC,
    ),
}

LEAVE = simple("Leave", "LeaveRequest")

CASES: list[tuple[str, str, str, Call, Refused]] = [
    (method, phase, name, call, expected)
    for method, phase, table in (
        ("Join", "propose", JOIN),
        ("GetModel", "propose", GET_MODEL),
        ("GetCertificates", "propose", GET_CERTIFICATES),
        ("ProposeCoordinates", "propose", PROPOSE),
        ("GetConsensus", "propose", GET_CONSENSUS),
        ("SubmitMaskedShare", "submit", SUBMIT),
        ("GetSurvivors", "submit", GET_SURVIVORS),
        ("ConfirmSurvivors", "confirm", CONFIRM),
        ("RevealShares", "reveal", REVEAL),
        ("GetUpdate", "reveal", GET_UPDATE),
        ("GetUpdate", "done", STATEMENTS),
        ("ReportMetrics", "reveal", REPORT),
        ("Leave", "propose", LEAVE),
    )
    for name, (call, expected) in table.items()
]


@pytest.mark.parametrize(
    ("phase", "call", "expected"), [case[1:2] + case[3:] for case in CASES], ids=[f"{case[0]}: {case[2]}" for case in CASES]
)
def test_a_bad_call_is_refused_and_changes_nothing(
    stages: Callable[[str], Stage], phase: str, call: Call, expected: Refused
) -> None:
    refuses(stages(phase), call, expected)


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
    """With a short deadline the last silo comes too late; the round goes on with the others."""
    deadlines = DeadlineConfig(propose=1.0, submit=60, confirm=60, reveal=60)
    at = stage(server, run_name, "propose", deadlines=deadlines)
    wait_until(lambda: server.driver(run_name).open.machine.phase.value == "submit")  # type: ignore[union-attr]
    if phase != "submit":
        for silo in at.silos[:3]:
            silo.consensus()
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
        not_assigned = pb.SubmissionHeader(run=at.last.run, round=1, masked_sha256=hashlib.sha256(b"").digest())
        refuses(at, lambda at: submit(at.last, not_assigned, b""), ("FAILED_PRECONDITION", "NOT_ASSIGNED"))


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
        time.sleep(0.05)
        call.cancel()
        assert call.code() is grpc.StatusCode.CANCELLED
    assert at.server.snapshot(at.run) == before


def test_an_upload_that_is_cancelled_half_way_leaves_nothing_behind(stages: Callable[[str], Stage]) -> None:
    at = stages("submit")
    before = at.server.snapshot(at.run)
    header, masked = submission(at)
    hold = threading.Event()

    def half() -> Iterator[pb.SubmitMaskedShareRequest]:
        yield pb.SubmitMaskedShareRequest(header=header)
        yield pb.SubmitMaskedShareRequest(chunk=masked[:10])
        hold.wait(SECONDS)

    call = at.last.stub.SubmitMaskedShare.future(half())
    time.sleep(0.1)
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
    assert len(driver.open.marks) == 2
    assert driver.open.timer is not None
    assert not driver.open.timer.done()


def test_every_rpc_of_the_contract_has_refusals_here() -> None:
    assert {case[0] for case in CASES} == set(METHODS)


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
