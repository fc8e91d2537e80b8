"""The server's answers as bytes: what all silos of a round are told alike is encoded once, and each one's own part put beside it.

The fields of a message may stand in any order, and repeated ones one after the other, so two encodings in a row are one of both.
A message object for every share that a silo is sent would cost the server more than the rest of its answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from fedrep.protocol.manifests import RunHash, SignedRoundManifest
from fedrep.protocol.messages import Assignment, Consensus, Record, Signatures, Statement, Survivor, SurvivorSet, Update
from fedrep.protocol.round_closing import with_statements
from fedrep.wire import codec
from fedrep.wire.chunks import cut_into_chunks
from fedrep.wire.codec import Once
from fedrep.wire.v1 import federation_pb2 as pb

_ROUNDS = 2  # whose large parts are remembered: those of more would be memory for nobody


def consensus_parts(consensus: Consensus) -> Iterator[bytes]:
    """GetConsensusResponse, the header first."""
    alike = _consensus_to_all(Once(consensus.assignment), Once(consensus.coordinates), consensus.run, consensus.round)
    own = [alike, *(_mate(Once(record)) for record in consensus.mates)]
    for dealer, ciphertext in consensus.shares:
        own += (_before_share(dealer, len(ciphertext)), ciphertext)
    yield _field(pb.GetConsensusResponse.HEADER_FIELD_NUMBER, b"".join(own))
    yield from _chunks_to_all(Once(consensus.coordinates))


@lru_cache(maxsize=_ROUNDS)
def _consensus_to_all(assignment: Once[Assignment], coordinates: Once[bytes], run: RunHash, number: int) -> bytes:
    alike = Consensus(run, number, coordinates.item, assignment.item, (), ())
    return codec.consensus_to_wire(alike).SerializeToString()


@lru_cache(maxsize=1024)
def _mate(record: Once[Record]) -> bytes:
    return _field(pb.ConsensusHeader.MATES_FIELD_NUMBER, codec.record_to_wire(record.item).SerializeToString())


@lru_cache(maxsize=4096)
def _before_share(dealer: str, length: int) -> bytes:
    """All of a dealer's share but the ciphertext, which is its last field."""
    named = pb.SealedShare(dealer=dealer).SerializeToString() + _head(pb.SealedShare.CIPHERTEXT_FIELD_NUMBER, length)
    return _head(pb.ConsensusHeader.SHARES_FIELD_NUMBER, len(named) + length) + named


@lru_cache(maxsize=_ROUNDS)
def _chunks_to_all(coordinates: Once[bytes]) -> tuple[bytes, ...]:
    return tuple(_field(pb.GetConsensusResponse.CHUNK_FIELD_NUMBER, chunk) for chunk in cut_into_chunks(coordinates.item))


def survivors_answer(survivors: SurvivorSet) -> bytes:
    """GetSurvivorsResponse."""
    macs = codec.macs_to_wire(survivors.macs)
    told = _survivors_to_all(Once(survivors.buffers))
    return told + _field(pb.GetSurvivorsResponse.MACS_FIELD_NUMBER, macs) if macs else told


@lru_cache(maxsize=8)
def _survivors_to_all(buffers: Once[tuple[tuple[Survivor, ...], ...]]) -> bytes:
    return codec.told_survivors_to_wire(SurvivorSet(buffers.item)).SerializeToString()


def confirmations_answer(signatures: Signatures, macs: Sequence[bytes]) -> bytes:
    """ConfirmSurvivorsResponse."""
    told = [_holder_signature(silo, signature) for silo, signature in signatures]
    together = codec.macs_to_wire(macs)
    if together:
        told.append(_field(pb.ConfirmSurvivorsResponse.MACS_FIELD_NUMBER, together))
    return b"".join(told)


@lru_cache(maxsize=4096)
def _holder_signature(silo: str, signature: bytes) -> bytes:
    return pb.ConfirmSurvivorsResponse(signatures=[pb.HolderSignature(silo=silo, signature=signature)]).SerializeToString()


def update_parts(
    update: Update,
    statements: tuple[Statement, ...],
    following: SignedRoundManifest | None,
    state: str,
    *,
    omit_agreement: bool = False,
    known_roster: bytes = b"",
) -> Iterator[bytes]:
    """GetUpdateResponse, the header first."""
    knows = following is not None and codec.names_roster(following, known_roster)
    yield _update_header(Once(update), statements, Once(following), state, omit_agreement, known_roster if knows else b"")
    yield from _update(Once(update), omit_agreement)[1]


@lru_cache(maxsize=2 * _ROUNDS)
def _update_header(
    update: Once[Update],
    statements: tuple[Statement, ...],
    following: Once[SignedRoundManifest | None],
    state: str,
    omit_agreement: bool,
    known_roster: bytes,
) -> bytes:
    header = pb.UpdateHeader()
    header.CopyFrom(_update(update, omit_agreement)[0])
    header.statements.extend(codec.statement_to_wire(statement) for statement in statements)
    if following.item is not None:
        codec.next_round_to_wire(header, following.item, known_roster)
    header.state = state
    return pb.GetUpdateResponse(header=header).SerializeToString()


@lru_cache(maxsize=_ROUNDS)
def _update(update: Once[Update], omit_agreement: bool) -> tuple[pb.UpdateHeader, tuple[bytes, ...]]:
    """The header without statements, and the chunks behind it."""
    header, payload = codec.update_to_wire(with_statements(update.item, ()), omit_agreement=omit_agreement)
    return header, tuple(_field(pb.GetUpdateResponse.CHUNK_FIELD_NUMBER, chunk) for chunk in cut_into_chunks(payload))


def _field(number: int, data: bytes) -> bytes:
    return _head(number, len(data)) + data


def _head(number: int, length: int) -> bytes:
    return _varint(number << 3 | 2) + _varint(length)


def _varint(number: int) -> bytes:
    low = bytearray()
    while number > 0x7F:
        low.append(number & 0x7F | 0x80)
        number >>= 7
    low.append(number)
    return bytes(low)
