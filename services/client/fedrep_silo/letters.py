"""Messages of a round as they leave the silo: encoded once, with what the audit says about them before they may."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from fedrep.protocol.messages import Proposal, Reveal, Submission
from fedrep.protocol.silo_effects import Send
from fedrep.wire import codec
from fedrep.wire.chunks import cut_into_chunks
from fedrep.wire.v1 import federation_pb2 as pb
from fedrep_silo.audit import AuditLine
from fedrep_silo.state import spent_epsilon


@dataclass(frozen=True, slots=True)
class Letter:
    """`entry` names the method. With a `part` the message is a header, which `payload` follows in parts of that kind."""

    message: Proposal | Submission | Reveal
    entry: AuditLine
    wire: Any = field(repr=False)
    part: Any = None
    payload: bytes | memoryview = field(default=b"", repr=False)

    def request(self) -> Any:
        """What the method takes; a stream begins anew each time."""
        return self.wire if self.part is None else self._parts()

    async def _parts(self) -> AsyncIterator[Any]:
        yield self.part(header=self.wire)
        for chunk in cut_into_chunks(self.payload):
            yield self.part(chunk=chunk)


def letter_of(send: Send) -> Letter | None:
    """None for what goes another way: questions, and messages that say next to nothing."""
    message, details = send.message, dict(send.details)
    match message:
        case Proposal():
            proposal = codec.proposal_to_wire(message)
            details["epsilon_total"] = spent_epsilon(send.needs.state.journal.ledger)
            entry = AuditLine("ProposeCoordinates", proposal.ByteSize() + len(message.coordinates), message.round, details)
            return Letter(message, entry, proposal, pb.ProposeCoordinatesRequest, message.coordinates)
        case Submission():
            header = codec.submission_to_wire(message)
            entry = AuditLine("SubmitMaskedShare", header.ByteSize() + len(message.masked), message.round, details)
            return Letter(message, entry, header, pb.SubmitMaskedShareRequest, message.masked)
        case Reveal():
            request = codec.reveal_to_wire(message)
            return Letter(message, AuditLine("RevealShares", request.ByteSize(), message.round, details), request)
    return None
