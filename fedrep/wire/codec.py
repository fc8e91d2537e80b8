"""Messages <-> protobuf. The only file that knows both sides; every function is total or raises DecodeError."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final, Generic, TypeVar

from fedrep.errors import DecodeError, InvalidInputError
from fedrep.protocol.manifests import (
    Deadlines,
    RecordPromise,
    RosterEntry,
    RoundManifest,
    RunHash,
    RunManifest,
    SignedRoundManifest,
    SignedRunManifest,
    SiloName,
    roster_digest,
    signed_fields,
)
from fedrep.protocol.messages import (
    Abstention,
    Assigned,
    Assignment,
    Confirmation,
    Consensus,
    Descent,
    Evidence,
    ModelName,
    Outcome,
    Proposal,
    Record,
    Reveal,
    RevealedShare,
    Secret,
    Signatures,
    SignedRollback,
    Statement,
    Submission,
    Survivor,
    SurvivorSet,
    Update,
)
from fedrep.secagg.pairs import MAC_BYTES
from fedrep.wire.v1 import federation_pb2 as pb

# Part of Join in both directions: a silo or server of another version says so, instead of refusing each other's rounds.
PROTOCOL_VERSION = 3

_SECRETS = {Secret.SEED: pb.SECRET_KIND_SEED, Secret.KEY: pb.SECRET_KIND_KEY}
_SECRETS_BACK = {wire: secret for secret, wire in _SECRETS.items()}
_OUTCOMES = {Outcome.APPLIED: pb.OUTCOME_APPLIED, Outcome.SKIPPED: pb.OUTCOME_SKIPPED}
_OUTCOMES_BACK = {wire: outcome for outcome, wire in _OUTCOMES.items()}
T = TypeVar("T")
_NO_MAC = bytes(MAC_BYTES)
_RECORD_LIMITS: Final = ("record_epsilon_at_most", "delta_at_most")


def run_manifest_to_wire(manifest: RunManifest) -> pb.RunManifest:
    plain = {field: getattr(manifest, field) for field in signed_fields(RunManifest) if field not in ("deadlines", "silos")}
    return pb.RunManifest(**plain, silos=list(manifest.silos), deadlines=_deadlines_to_wire(manifest.deadlines))


def run_manifest_from_wire(wire: pb.RunManifest) -> RunManifest:
    fields = [field for field in signed_fields(RunManifest) if field not in ("deadlines", "silos")]
    plain: dict[str, Any] = {field: getattr(wire, field) for field in fields}
    plain |= {field: None for field in _RECORD_LIMITS if not wire.HasField(field)}
    silos = tuple(SiloName(name) for name in wire.silos)
    return RunManifest(**plain, silos=silos, deadlines=_deadlines_from_wire(wire.deadlines))


def signed_run_to_wire(signed: SignedRunManifest) -> pb.SignedRunManifest:
    return pb.SignedRunManifest(
        manifest=run_manifest_to_wire(signed.manifest),
        admin=signed.admin,
        certificate=signed.certificate,
        signature=signed.signature,
    )


def signed_run_from_wire(wire: pb.SignedRunManifest) -> SignedRunManifest:
    return SignedRunManifest(run_manifest_from_wire(wire.manifest), wire.admin, wire.certificate, wire.signature)


def amendments_to_wire(amendments: tuple[SignedRunManifest, ...], in_force: int) -> pb.Amendments:
    return pb.Amendments(manifests=[signed_run_to_wire(signed) for signed in amendments], in_force=in_force)


def amendments_from_wire(wire: pb.Amendments) -> tuple[tuple[SignedRunManifest, ...], int]:
    return tuple(signed_run_from_wire(signed) for signed in wire.manifests), wire.in_force


def round_manifest_to_wire(manifest: RoundManifest) -> pb.RoundManifest:
    fields = [field for field in signed_fields(RoundManifest) if field not in ("deadlines", "roster")]
    roster = [
        pb.RosterEntry(
            name=entry.name,
            fingerprint=entry.fingerprint,
            session_key=entry.session_key,
            session_signature=entry.session_signature,
            promise=promise_to_wire(entry.promise),
        )
        for entry in manifest.roster
    ]
    plain = {field: getattr(manifest, field) for field in fields}
    return pb.RoundManifest(**plain, roster=roster, deadlines=_deadlines_to_wire(manifest.deadlines))


def round_manifest_from_wire(wire: pb.RoundManifest) -> RoundManifest:
    fields = [field for field in signed_fields(RoundManifest) if field not in ("deadlines", "roster", "run")]
    roster = tuple(
        RosterEntry(SiloName(entry.name), entry.fingerprint, entry.session_key, entry.session_signature, promise_from_wire(entry))
        for entry in wire.roster
    )
    plain = {field: getattr(wire, field) for field in fields}
    return RoundManifest(run=RunHash(wire.run), **plain, roster=roster, deadlines=_deadlines_from_wire(wire.deadlines))


def signed_round_to_wire(signed: SignedRoundManifest) -> pb.SignedRoundManifest:
    """Remembered, because every silo of a round is sent the same one: copy it before changing it."""
    return _signed_round_to_wire(Once(signed))


@lru_cache(maxsize=8)
def _signed_round_to_wire(once: Once[SignedRoundManifest]) -> pb.SignedRoundManifest:
    signed = once.item
    manifest = round_manifest_to_wire(signed.manifest)
    return pb.SignedRoundManifest(manifest=manifest, signature=signed.signature, certificate=signed.certificate)


class Once(Generic[T]):
    """An object as a cache's key that is itself and no other: a roster of hundreds takes longer to hash than to encode."""

    def __init__(self, item: T) -> None:
        self.item = item

    def __hash__(self) -> int:
        return id(self.item)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Once) and other.item is self.item


def signed_round_from_wire(wire: pb.SignedRoundManifest, roster: Sequence[RosterEntry] = ()) -> SignedRoundManifest:
    """`roster` is the one that was left out, if one was: the server's signature covers it."""
    manifest = round_manifest_from_wire(wire.manifest)
    if roster and not manifest.roster:
        manifest = replace(manifest, roster=tuple(roster))
    return SignedRoundManifest(manifest, wire.signature, wire.certificate)


def next_round_to_wire(header: pb.UpdateHeader, following: SignedRoundManifest, known_roster: bytes) -> None:
    header.next_round.CopyFrom(signed_round_to_wire(following))
    if names_roster(following, known_roster):
        header.next_round.manifest.ClearField("roster")
        header.same_roster = True


def names_roster(following: SignedRoundManifest, known_roster: bytes) -> bool:
    """Whether that is the roster which the caller knows."""
    return bool(known_roster) and known_roster == _roster_name(Once(following))


@lru_cache(maxsize=8)
def _roster_name(once: Once[SignedRoundManifest]) -> bytes:
    return roster_digest(once.item.manifest.roster)


def promise_to_wire(promise: RecordPromise | None) -> pb.RecordPromise | None:
    return None if promise is None else pb.RecordPromise(epsilon=promise.epsilon, delta=promise.delta)


def promise_from_wire(holder: pb.RosterEntry | pb.JoinRequest) -> RecordPromise | None:
    if not holder.HasField("promise"):
        return None
    try:
        return RecordPromise(holder.promise.epsilon, holder.promise.delta)
    except InvalidInputError as error:
        raise DecodeError(str(error), reason=error.reason) from error


def _deadlines_to_wire(deadlines: Deadlines) -> pb.Deadlines:
    return pb.Deadlines(propose=deadlines.propose, submit=deadlines.submit, confirm=deadlines.confirm, reveal=deadlines.reveal)


def _deadlines_from_wire(wire: pb.Deadlines) -> Deadlines:
    return Deadlines(wire.propose, wire.submit, wire.confirm, wire.reveal)


def record_to_wire(record: Record) -> pb.Record:
    return pb.Record(
        silo=record.silo,
        mask_key=record.mask_key,
        seed_commitment=record.seed_commitment,
        next_session_key=record.next_session_key,
        shares_digest=record.shares_digest,
        signature=record.signature,
    )


def record_from_wire(wire: pb.Record) -> Record:
    return Record(
        SiloName(wire.silo),
        wire.mask_key,
        wire.seed_commitment,
        wire.next_session_key,
        wire.shares_digest,
        wire.signature,
    )


def proposal_to_wire(proposal: Proposal) -> pb.ProposalHeader:
    return pb.ProposalHeader(
        run=proposal.run,
        round=proposal.round,
        record=record_to_wire(proposal.record),
        next_session_signature=proposal.next_session_signature,
        sealed_shares=list(proposal.sealed_shares),
        seed_share_hashes=list(proposal.seed_share_hashes),
        key_share_hashes=list(proposal.key_share_hashes),
        coordinates_size=len(proposal.coordinates),
        coordinates_sha256=hashlib.sha256(proposal.coordinates).digest(),
        clips=proposal.clips,
        quiet=proposal.quiet,
    )


def proposal_from_wire(silo: SiloName, header: pb.ProposalHeader, coordinates: bytes) -> Proposal:
    """`silo` comes from the caller's certificate, never from the message."""
    return Proposal(
        silo,
        RunHash(header.run),
        header.round,
        coordinates,
        record_from_wire(header.record),
        header.next_session_signature,
        tuple(header.sealed_shares),
        tuple(header.seed_share_hashes),
        tuple(header.key_share_hashes),
        header.clips,
        header.quiet,
    )


def _assignment_to_wire(assignment: Assignment) -> tuple[pb.Buffer, ...]:
    return tuple(
        pb.Buffer(members=[pb.Assigned(silo=place.silo, record_digest=place.record_digest) for place in buffer])
        for buffer in assignment
    )


def consensus_to_wire(consensus: Consensus) -> pb.ConsensusHeader:
    return pb.ConsensusHeader(
        run=consensus.run,
        round=consensus.round,
        assignment=_assignment_to_wire(consensus.assignment),
        mates=[record_to_wire(record) for record in consensus.mates],
        shares=[pb.SealedShare(dealer=dealer, ciphertext=ciphertext) for dealer, ciphertext in consensus.shares],
        coordinates_size=len(consensus.coordinates),
        coordinates_sha256=hashlib.sha256(consensus.coordinates).digest(),
    )


def consensus_from_wire(header: pb.ConsensusHeader, coordinates: bytes) -> Consensus:
    assignment = tuple(
        tuple(Assigned(SiloName(place.silo), place.record_digest) for place in buffer.members) for buffer in header.assignment
    )
    mates = tuple(record_from_wire(record) for record in header.mates)
    shares = tuple((SiloName(share.dealer), share.ciphertext) for share in header.shares)
    return Consensus(RunHash(header.run), header.round, coordinates, assignment, mates, shares)


def submission_to_wire(submission: Submission) -> pb.SubmissionHeader:
    return pb.SubmissionHeader(
        run=submission.run,
        round=submission.round,
        signature=submission.signature,
        masked_size=len(submission.masked),
        masked_sha256=hashlib.sha256(submission.masked).digest(),
        macs=submission.macs,
    )


def submission_from_wire(silo: SiloName, header: pb.SubmissionHeader, masked: bytes | memoryview) -> Submission:
    return Submission(silo, RunHash(header.run), header.round, masked, header.signature, header.macs)


def told_survivors_to_wire(survivors: SurvivorSet) -> pb.GetSurvivorsResponse:
    return pb.GetSurvivorsResponse(survivors=survivors_to_wire(survivors), macs=macs_to_wire(survivors.macs))


def told_survivors_from_wire(wire: pb.GetSurvivorsResponse) -> SurvivorSet:
    return replace(survivors_from_wire(wire.survivors), macs=macs_from_wire(wire.macs))


def macs_to_wire(macs: Sequence[bytes]) -> bytes:
    return b"".join([mac or _NO_MAC for mac in macs]) if any(macs) else b""


def macs_from_wire(macs: bytes) -> tuple[bytes, ...]:
    """A last piece that is too short vouches for nothing, as any other wrong one."""
    return tuple(macs[start : start + MAC_BYTES] for start in range(0, len(macs), MAC_BYTES))


def survivors_to_wire(survivors: SurvivorSet) -> pb.SurvivorSet:
    return pb.SurvivorSet(
        buffers=[
            pb.SurvivingBuffer(survivors=[pb.Survivor(silo=s.silo, signature=s.signature) for s in buffer])
            for buffer in survivors.buffers
        ]
    )


def survivors_from_wire(wire: pb.SurvivorSet) -> SurvivorSet:
    return SurvivorSet(tuple(tuple(Survivor(SiloName(s.silo), s.signature) for s in buffer.survivors) for buffer in wire.buffers))


def confirmation_to_wire(confirmation: Confirmation) -> pb.ConfirmSurvivorsRequest:
    return pb.ConfirmSurvivorsRequest(
        run=confirmation.run, round=confirmation.round, signature=confirmation.signature, macs=confirmation.macs
    )


def confirmation_from_wire(silo: SiloName, wire: pb.ConfirmSurvivorsRequest) -> Confirmation:
    return Confirmation(silo, RunHash(wire.run), wire.round, wire.signature, wire.macs)


def confirmations_to_wire(signatures: Signatures, macs: Sequence[bytes]) -> pb.ConfirmSurvivorsResponse:
    return pb.ConfirmSurvivorsResponse(signatures=signatures_to_wire(signatures), macs=macs_to_wire(macs))


def signatures_to_wire(signatures: Signatures) -> list[pb.HolderSignature]:
    return [pb.HolderSignature(silo=silo, signature=signature) for silo, signature in signatures]


def signatures_from_wire(wire: Iterable[pb.HolderSignature]) -> Signatures:
    return tuple((SiloName(item.silo), item.signature) for item in wire)


def reveal_to_wire(reveal: Reveal) -> pb.RevealSharesRequest:
    shares = [pb.RevealedShare(dealer=share.dealer, secret=_SECRETS[share.secret], share=share.share) for share in reveal.shares]
    return pb.RevealSharesRequest(run=reveal.run, round=reveal.round, shares=shares)


def reveal_from_wire(silo: SiloName, wire: pb.RevealSharesRequest) -> Reveal:
    shares = []
    for share in wire.shares:
        secret = _SECRETS_BACK.get(share.secret)
        if secret is None:
            raise DecodeError(f"the share of {share.dealer!r} does not say which secret it belongs to")
        shares.append(RevealedShare(SiloName(share.dealer), secret, share.share))
    return Reveal(silo, RunHash(wire.run), wire.round, tuple(shares))


def abstention_to_wire(abstention: Abstention) -> pb.AbstainRequest:
    return pb.AbstainRequest(
        run=abstention.run,
        round=abstention.round,
        next_session_key=abstention.next_session_key,
        next_session_signature=abstention.next_session_signature,
    )


def abstention_from_wire(silo: SiloName, wire: pb.AbstainRequest) -> Abstention:
    return Abstention(silo, RunHash(wire.run), wire.round, wire.next_session_key, wire.next_session_signature)


def rollback_to_wire(order: SignedRollback) -> pb.SignedRollback:
    return pb.SignedRollback(**{name: getattr(order, name) for name in SignedRollback.__dataclass_fields__})


def rollback_from_wire(wire: pb.SignedRollback) -> SignedRollback:
    return SignedRollback(RunHash(wire.run), wire.version, wire.model_hash, wire.admin, wire.certificate, wire.signature)


def statement_to_wire(statement: Statement) -> pb.Statement:
    return pb.Statement(silo=statement.silo, signature=statement.signature, c1=statement.c1)


def statement_from_wire(wire: pb.Statement, run: bytes, round_number: int) -> Statement:
    return Statement(SiloName(wire.silo), RunHash(run), round_number, wire.signature, wire.c1)


def update_to_wire(update: Update, *, omit_agreement: bool = False) -> tuple[pb.UpdateHeader, bytes]:
    """The header and the payload (coordinates, then levels) behind it; what the caller agreed to itself can be left out."""
    descent = update.descent if update.descent is not None else Descent(b"", b"", 0.0, 0)
    coordinates = b"" if omit_agreement else descent.coordinates
    payload = coordinates + descent.levels
    evidence = update.evidence
    header = pb.UpdateHeader(
        run=update.run,
        round=update.round,
        outcome=_OUTCOMES[update.outcome],
        reason=update.reason,
        confirmations=[] if omit_agreement else signatures_to_wire(evidence.confirmations),
        statements=[statement_to_wire(statement) for statement in evidence.statements],
        opened=list(evidence.opened),
        model_version=update.model.version,
        model_hash=update.model.hash,
        chain=update.model.chain,
        scale=descent.scale,
        downlink_bits=descent.bits,
        coordinates_size=len(coordinates),
        levels_size=len(descent.levels),
        payload_sha256=hashlib.sha256(payload).digest(),
    )
    if evidence.survivors is not None and not omit_agreement:
        header.survivors.CopyFrom(survivors_to_wire(evidence.survivors))
    return header, payload


def update_from_wire(header: pb.UpdateHeader, payload: bytes) -> Update:
    outcome = _OUTCOMES_BACK.get(header.outcome)
    if outcome is None:
        raise DecodeError("the update does not say how the round ended")
    if len(payload) != header.coordinates_size + header.levels_size:
        raise DecodeError("the update's payload has another length than its header says", reason="TRUNCATED")
    descent = None
    if outcome is Outcome.APPLIED:
        coordinates, levels = payload[: header.coordinates_size], payload[header.coordinates_size :]
        descent = Descent(coordinates, levels, header.scale, header.downlink_bits)
    evidence = Evidence(
        survivors_from_wire(header.survivors) if header.HasField("survivors") else None,
        signatures_from_wire(header.confirmations),
        tuple(statement_from_wire(item, header.run, header.round) for item in header.statements),
        tuple(header.opened),
    )
    model = ModelName(header.model_version, header.model_hash, header.chain)
    return Update(RunHash(header.run), header.round, outcome, header.reason, model, evidence, descent)
