"""Every RPC of the silos' contract in every bad way: the exact status and reason, and a state that has not moved.

All refusals of one phase are tried on the same round: if one of them changed anything, the snapshot beside it would tell.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from fedrep.secagg.shamir import MAX_HOLDERS
from fedrep.wire.v1 import federation_pb2 as pb
from tests.contract.refusals import (
    BAD_SIGNATURE,
    CONFLICT,
    MALFORMED,
    NO_HEADER,
    NOT_ALLOWED,
    OTHER_RUN,
    OUT_OF_PHASE,
    TOO_LARGE,
    TOO_LONG_FOR_GRPC,
    TRUNCATED,
    UNKNOWN_RUN,
    WRONG_HASH,
    WRONG_ROUND,
    Call,
    Refused,
    changed,
    outsider,
    proposal,
    propose,
    refuses,
    requests,
    resigned,
    simple,
    submission,
    submit,
    update,
    with_code,
)
from tests.harness.live_server import OUTSIDER, Stage
from tests.harness.mini_silo import SECONDS, MiniSilo, digest, rice_encoded


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

FIND_RUNS: dict[str, tuple[Call, Refused]] = {
    "oversized": (lambda at: at.last.stub.FindRuns(pb.FindRunsRequest(name="x" * (17 << 20))), TOO_LONG_FOR_GRPC),
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
            pb.GetCertificatesRequest(run=at.first.run, fingerprints=[bytes(32)] * (MAX_HOLDERS + 1)), timeout=SECONDS
        ),
        TOO_LARGE,
    ),
    "a certificate twice": (
        lambda at: at.last.stub.GetCertificates(
            pb.GetCertificatesRequest(run=at.first.run, fingerprints=[at.manifest.roster[0].fingerprint] * 2), timeout=SECONDS
        ),
        ("INVALID_ARGUMENT", "MALFORMED"),
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

GET_UPDATE = simple("GetUpdate", "GetUpdateRequest", round=1) | {
    "a round to come": (lambda at: update(at.last, run=at.first.run, round=9), WRONG_ROUND),
    "a round that never was": (lambda at: update(at.last, run=at.first.run), ("NOT_FOUND", "UNKNOWN_ROUND")),
    "past its deadline": (
        # by one that has revealed: from the others it would say that they leave the round
        lambda at: at.first.stub.GetUpdate(pb.GetUpdateRequest(run=at.first.run, round=1), timeout=0.05),
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
ATTEND = simple("Attend", "AttendRequest")

ABSTAIN = simple("Abstain", "AbstainRequest") | {
    "a forged session key": (
        lambda at: at.last.stub.Abstain(
            pb.AbstainRequest(run=at.first.run, round=1, next_session_key=bytes(range(1, 33)), next_session_signature=b"forged")
        ),
        BAD_SIGNATURE,
    ),
    "a low-order session key": (
        lambda at: at.last.stub.Abstain(pb.AbstainRequest(run=at.first.run, round=1, next_session_key=bytes(32))),
        ("UNAUTHENTICATED", "BAD_CRYPTOGRAPHY"),
    ),
    "another round": (
        lambda at: at.last.stub.Abstain(pb.AbstainRequest(run=at.first.run, round=7, next_session_key=bytes(32))),
        WRONG_ROUND,
    ),
}

CASES: list[tuple[str, str, str, Call, Refused]] = [
    (method, phase, name, call, expected)
    for method, phase, table in (
        ("Join", "propose", JOIN),
        ("FindRuns", "propose", FIND_RUNS),
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
        ("Attend", "propose", ATTEND),
        ("Abstain", "propose", ABSTAIN),
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


def test_every_rpc_of_the_contract_has_refusals_here() -> None:
    assert {case[0] for case in CASES} == set(METHODS) - {"Play"}, "what is refused within Play: test_play.py"
