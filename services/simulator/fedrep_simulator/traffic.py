"""Bytes of a silo's calls, by the protobuf messages they would be; framing by gRPC and TLS comes on top."""

from __future__ import annotations

from dataclasses import dataclass, field

from fedrep.protocol.manifests import roster_digest
from fedrep.protocol.messages import Abstention, Confirmation, Consensus, Proposal, Reveal, Submission, SurvivorSet
from fedrep.protocol.silo_effects import (
    Answer,
    Certificates,
    Concluded,
    Confirmations,
    FetchedModel,
    GetCertificates,
    GetConsensus,
    GetModel,
    GetSurvivors,
    GetUpdate,
    Join,
    Joined,
    Request,
)
from fedrep.wire import codec
from fedrep.wire.v1 import federation_pb2 as pb


@dataclass
class Traffic:
    """Of one silo, since the simulation began."""

    up: int = 0
    down: int = 0


@dataclass
class TrafficBook:
    silos: dict[str, Traffic] = field(default_factory=dict)

    def count(self, silo: str, request: Request, answer: Answer) -> None:
        own = self.silos.setdefault(silo, Traffic())
        own.up += request_bytes(request)
        own.down += answer_bytes(request, answer)

    @property
    def total(self) -> Traffic:
        return Traffic(sum(each.up for each in self.silos.values()), sum(each.down for each in self.silos.values()))


def request_bytes(request: Request) -> int:
    match request:
        case Join(run_name, version, key, signature):
            return pb.JoinRequest(
                run_name=run_name,
                session_key=key,
                session_signature=signature,
                model_version=version,
                protocol_version=codec.PROTOCOL_VERSION,
            ).ByteSize()
        case GetModel(run, version):
            return pb.GetModelRequest(run=run, version=version).ByteSize()
        case GetCertificates(run, fingerprints):
            return pb.GetCertificatesRequest(run=run, fingerprints=fingerprints).ByteSize()
        case GetConsensus(run, number) | GetSurvivors(run, number):
            return pb.GetConsensusRequest(run=run, round=number).ByteSize()
        case GetUpdate(run, number, statement, omit):
            told = codec.statement_to_wire(statement) if statement is not None else None
            known = roster_digest(request.roster) if request.roster else b""
            return pb.GetUpdateRequest(run=run, round=number, omit_agreement=omit, statement=told, known_roster=known).ByteSize()
        case Proposal():
            return codec.proposal_to_wire(request).ByteSize() + len(request.coordinates)
        case Submission():
            return codec.submission_to_wire(request).ByteSize() + len(request.masked)
        case Abstention():
            return codec.abstention_to_wire(request).ByteSize()
        case Confirmation():
            return codec.confirmation_to_wire(request).ByteSize()
        case Reveal():
            return codec.reveal_to_wire(request).ByteSize()


def answer_bytes(request: Request, answer: Answer) -> int:
    match answer:
        case Joined():
            return _joined(answer).ByteSize()
        case FetchedModel():
            return answer.vector.nbytes
        case Certificates(chains):
            return pb.GetCertificatesResponse(certificates=list(chains.values())).ByteSize()
        case Consensus():
            return codec.consensus_to_wire(answer).ByteSize() + len(answer.coordinates)
        case SurvivorSet():
            return codec.told_survivors_to_wire(answer).ByteSize()
        case Confirmations(signatures, macs):
            return codec.confirmations_to_wire(signatures, macs).ByteSize()
        case Concluded(update, following, state):
            asked = request if isinstance(request, GetUpdate) else GetUpdate(update.run, update.round)
            header, payload = codec.update_to_wire(update, omit_agreement=asked.omit_agreement)
            header.state = state
            if following is not None:
                codec.next_round_to_wire(header, following, roster_digest(asked.roster) if asked.roster else b"")
            return header.ByteSize() + len(payload)
        case _:
            return 0


def _joined(joined: Joined) -> pb.JoinResponse:
    response = pb.JoinResponse(
        run=codec.signed_run_to_wire(joined.run),
        model_version=joined.model.version,
        model_hash=joined.model.hash,
        chain=joined.model.chain,
        state=joined.state,
        server_certificate=joined.server_certificate,
        last_round=joined.last_round,
        evaluation_interval=joined.evaluation_interval,
        protocol_version=codec.PROTOCOL_VERSION,
    )
    if joined.round is not None:
        response.round.CopyFrom(codec.signed_round_to_wire(joined.round))
    return response
