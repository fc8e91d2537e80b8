"""Bad calls of the silos' contract: how they are made, and what a refusal must look like."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

from fedrep.wire.v1 import federation_pb2 as pb
from tests.harness.live_server import OUTSIDER, Stage, refusal
from tests.harness.mini_silo import SECONDS, MiniSilo, streamed

OTHER_RUN = bytes(range(32))

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


def update(silo: MiniSilo, **fields: Any) -> Any:
    return silo.stub.GetUpdate(pb.GetUpdateRequest(**fields), timeout=SECONDS)
