"""Every message through protobuf and back, and streams that are cut short, too long, altered or announced too large."""

from __future__ import annotations

import hashlib
import os
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from google.protobuf.message import DecodeError as ProtobufDecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrep.errors import DecodeError
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
    session_key_message,
)
from fedrep.protocol.messages import (
    Abstention,
    Assigned,
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
    SignedRollback,
    Statement,
    Submission,
    Survivor,
    SurvivorSet,
    Update,
)
from fedrep.secagg.transcript import digest
from fedrep.wire import codec
from fedrep.wire.chunks import Assembler, cut_into_chunks
from fedrep.wire.v1 import federation_pb2 as pb

A, B = SiloName("a"), SiloName("bé")
RUN = RunHash(b"r" * 32)

RECORD = Record(A, b"k" * 32, b"c" * 32, b"n" * 32, b"d" * 32, b"s")
RUN_MANIFEST = RunManifest(
    name="run",
    silos=(A, B),
    parameters=2**40,
    layout_hash=b"l" * 32,
    model_hash=b"m" * 32,
    coordinates=17,
    alpha=0.1,
    buffer_size=4,
    reshuffle_every=3,
    ring_bits=16,
    value_bits=13,
    downlink_bits=32,
    initial_range=0.3,
    smallest_range=1e-7,
    largest_range=1e9,
    quorum=7,
    min_survivors=3,
    colluders=1,
    byzantine=2,
    aggregator="median",
    aggregator_settings='{"pre": ["nnm"]}',
    rounds=2**33,
    deadlines=Deadlines(1.5, 2.5, 3.5, 4.5),
    drills=True,
    buffer_seed=b"b" * 32,
    predecessor=b"p" * 32,
    from_round=40,
    record_epsilon_at_most=8.0,
    delta_at_most=1e-5,
)
ROUND_MANIFEST = RoundManifest(
    run=RUN,
    round=2**50,
    model_version=9,
    model_hash=b"m" * 32,
    chain=b"h" * 32,
    roster=(RosterEntry(A, b"f" * 32, b"k" * 32, b"s", RecordPromise(8.0, 1e-5)), RosterEntry(B, b"g" * 32, b"q" * 32, b"t")),
    parameters=2**40,
    coordinates=17,
    per_silo=8,
    alpha=0.1,
    buffer_size=4,
    ring_bits=16,
    value_bits=13,
    clip_range=0.1,
    byzantine=2,
    deadlines=Deadlines(1.5, 2.5, 3.5, 4.5),
)
PROPOSAL = Proposal(A, RUN, 5, b"coordinates", RECORD, b"sig", (b"1", b"2"), (b"3", b"4"), (b"5", b"6"), True, True)
ABSTENTION = Abstention(A, RUN, 5, b"key", b"sig")
ROLLBACK = SignedRollback(RUN, 7, b"m" * 32, "admin", b"pem", b"sig")
CONSENSUS = Consensus(
    RUN, 5, b"set", ((Assigned(A, b"1"), Assigned(B, b"2")), ()), (RECORD, replace(RECORD, silo=B)), ((A, b"x"), (B, b"y"))
)
SUBMISSION = Submission(A, RUN, 5, b"\0\1" * 9, b"sig")
SURVIVORS = SurvivorSet(((Survivor(A, b"1"), Survivor(B, b"2")), ()))
CONFIRMATION = Confirmation(A, RUN, 5, b"sig")
REVEAL = Reveal(A, RUN, 5, (RevealedShare(A, Secret.SEED, b"1"), RevealedShare(B, Secret.KEY, b"2")))
STATEMENT = Statement(B, RUN, 5, b"sig")
UPDATE = Update(
    run=RUN,
    round=5,
    outcome=Outcome.APPLIED,
    reason="why",
    model=ModelName(6, b"m" * 32, b"h" * 32),
    evidence=Evidence(SURVIVORS, ((A, b"1"), (B, b"2")), (STATEMENT,), (0, 3)),
    descent=Descent(b"abc", b"defg", 0.25, 16),
)


def over_the_wire(message: Any) -> Any:
    return type(message).FromString(message.SerializeToString())


def update_there_and_back(update: Update) -> Update:
    header, payload = codec.update_to_wire(update)
    return codec.update_from_wire(over_the_wire(header), payload)


ROUND_TRIPS: dict[str, tuple[object, Callable[[Any], object]]] = {
    "run manifest": (RUN_MANIFEST, lambda m: codec.run_manifest_from_wire(over_the_wire(codec.run_manifest_to_wire(m)))),
    "round manifest": (ROUND_MANIFEST, lambda m: codec.round_manifest_from_wire(over_the_wire(codec.round_manifest_to_wire(m)))),
    "run manifest that asks for no promise": (
        replace(RUN_MANIFEST, record_epsilon_at_most=None, delta_at_most=None),
        lambda m: codec.run_manifest_from_wire(over_the_wire(codec.run_manifest_to_wire(m))),
    ),
    "run manifest with limits of zero": (
        replace(RUN_MANIFEST, record_epsilon_at_most=0.0, delta_at_most=0.0),
        lambda m: codec.run_manifest_from_wire(over_the_wire(codec.run_manifest_to_wire(m))),
    ),
    "signed run": (
        SignedRunManifest(RUN_MANIFEST, "admin", b"pem", b"sig"),
        lambda m: codec.signed_run_from_wire(over_the_wire(codec.signed_run_to_wire(m))),
    ),
    "signed round": (
        SignedRoundManifest(ROUND_MANIFEST, b"sig"),
        lambda m: codec.signed_round_from_wire(over_the_wire(codec.signed_round_to_wire(m))),
    ),
    "record": (RECORD, lambda m: codec.record_from_wire(over_the_wire(codec.record_to_wire(m)))),
    "proposal": (PROPOSAL, lambda m: codec.proposal_from_wire(A, over_the_wire(codec.proposal_to_wire(m)), m.coordinates)),
    "consensus": (CONSENSUS, lambda m: codec.consensus_from_wire(over_the_wire(codec.consensus_to_wire(m)), m.coordinates)),
    "submission": (SUBMISSION, lambda m: codec.submission_from_wire(A, over_the_wire(codec.submission_to_wire(m)), m.masked)),
    "abstention": (ABSTENTION, lambda m: codec.abstention_from_wire(A, over_the_wire(codec.abstention_to_wire(m)))),
    "rollback": (ROLLBACK, lambda m: codec.rollback_from_wire(over_the_wire(codec.rollback_to_wire(m)))),
    "survivors": (SURVIVORS, lambda m: codec.survivors_from_wire(over_the_wire(codec.survivors_to_wire(m)))),
    "confirmation": (CONFIRMATION, lambda m: codec.confirmation_from_wire(A, over_the_wire(codec.confirmation_to_wire(m)))),
    "signatures": (
        ((A, b"1"), (B, b"2")),
        lambda m: codec.signatures_from_wire([over_the_wire(item) for item in codec.signatures_to_wire(m)]),
    ),
    "reveal": (REVEAL, lambda m: codec.reveal_from_wire(A, over_the_wire(codec.reveal_to_wire(m)))),
    "empty reveal": (replace(REVEAL, shares=()), lambda m: codec.reveal_from_wire(A, over_the_wire(codec.reveal_to_wire(m)))),
    "statement": (STATEMENT, lambda m: codec.statement_from_wire(over_the_wire(codec.statement_to_wire(m)), RUN, 5)),
    "update": (UPDATE, update_there_and_back),
    "skipped update": (
        replace(UPDATE, outcome=Outcome.SKIPPED, descent=None, evidence=Evidence()),
        update_there_and_back,
    ),
    "update with an empty survivor set": (replace(UPDATE, evidence=Evidence(SurvivorSet(()))), update_there_and_back),
}


@pytest.mark.parametrize("kind", ROUND_TRIPS)
def test_a_message_survives_the_wire_unchanged(kind: str) -> None:
    message, there_and_back = ROUND_TRIPS[kind]
    assert there_and_back(message) == message


@pytest.mark.parametrize("manifest", [RUN_MANIFEST, ROUND_MANIFEST], ids=["run", "round"])
def test_every_field_of_a_manifest_travels(manifest: RunManifest | RoundManifest) -> None:
    """A field that the codec forgot would come back as protobuf's zero and change the hash everybody signs."""
    assert all(getattr(manifest, name) not in (0, 0.0, "", b"", ()) for name in type(manifest).__match_args__)
    if isinstance(manifest, RunManifest):
        assert codec.run_manifest_from_wire(over_the_wire(codec.run_manifest_to_wire(manifest))).digest() == manifest.digest()
    else:
        back = codec.round_manifest_from_wire(over_the_wire(codec.round_manifest_to_wire(manifest)))
        assert back.context() == manifest.context()


@settings(max_examples=50)
@given(
    alpha=st.floats(allow_nan=False),
    clip_range=st.floats(allow_nan=False),
    number=st.integers(0, 2**64 - 1),
    names=st.lists(st.text(max_size=5), max_size=3),
)
def test_manifests_keep_their_hash_for_any_numbers_and_names(
    alpha: float, clip_range: float, number: int, names: list[str]
) -> None:
    """Doubles travel as doubles: a hash over a rounded alpha would differ on the other side."""
    entry = ROUND_MANIFEST.roster[0]
    manifest = replace(
        ROUND_MANIFEST,
        alpha=alpha,
        clip_range=clip_range,
        round=number,
        roster=tuple(replace(entry, name=SiloName(name)) for name in names),
    )
    back = codec.round_manifest_from_wire(over_the_wire(codec.round_manifest_to_wire(manifest)))
    assert back.context() == manifest.context()
    run = replace(RUN_MANIFEST, alpha=alpha, silos=tuple(SiloName(name) for name in names), initial_range=clip_range)
    assert codec.run_manifest_from_wire(over_the_wire(codec.run_manifest_to_wire(run))).digest() == run.digest()


@settings(max_examples=30)
@given(scale=st.floats(width=32, allow_nan=False))
def test_the_scale_of_an_update_travels_as_the_float32_it_is(scale: float) -> None:
    assert UPDATE.descent is not None
    update = replace(UPDATE, descent=replace(UPDATE.descent, scale=scale))
    assert update_there_and_back(update) == update


@pytest.mark.parametrize(
    "promise",
    [(-1.0, 1e-5), (float("nan"), 1e-5), (8.0, 1.0), (8.0, float("nan")), (float("inf"), 0.0), (-0.0, 0.0), (8.0, -0.0)],
)
def test_what_is_no_promise_is_not_taken_for_one(promise: tuple[float, float]) -> None:
    """A negative zero equals the other one and is signed as another: who gave both in turn was refused by everybody."""
    wire = pb.JoinRequest(promise=pb.RecordPromise(epsilon=promise[0], delta=promise[1]))
    with pytest.raises(DecodeError, match="is no promise") as caught:
        codec.promise_from_wire(wire)
    assert caught.value.reason == "BAD_PROMISE"
    assert codec.promise_from_wire(pb.JoinRequest()) is None


def test_what_a_run_does_not_ask_for_changes_no_hash_and_what_it_asks_for_does() -> None:
    """Runs that were signed before these fields existed stay signed, and software that does not know them cannot miss them."""
    silent = replace(RUN_MANIFEST, record_epsilon_at_most=None, delta_at_most=None)
    asking = replace(silent, record_epsilon_at_most=8.0)
    assert silent.digest().hex() == "cc592efe4627e191859841c1609f70aff56a8227157feff9fc5251702bd44d72"
    assert len({silent.digest(), asking.digest(), replace(silent, delta_at_most=8.0).digest(), RUN_MANIFEST.digest()}) == 4
    entry = ROUND_MANIFEST.roster[0]
    unpromised = replace(ROUND_MANIFEST, roster=tuple(replace(each, promise=None) for each in ROUND_MANIFEST.roster))
    assert unpromised.context().hex() == "e1e29f3648e701cdd15748ac4ecb4b82bc8d64bf97ae1d975bc8a0248a4c39a4"
    smaller = replace(ROUND_MANIFEST, roster=(replace(entry, promise=RecordPromise(8.0, 1e-6)), ROUND_MANIFEST.roster[1]))
    assert len({unpromised.context(), ROUND_MANIFEST.context(), smaller.context()}) == 3


def test_a_promise_stands_under_the_signature_of_the_session_key() -> None:
    messages = [
        session_key_message(RUN, b"k" * 32, promise)
        for promise in (
            None,
            RecordPromise(0.0, 0.0),
            RecordPromise(8.0, 1e-5),
            RecordPromise(8.0, 1e-6),
            RecordPromise(1e-5, 8e-1),
        )
    ]
    assert len(set(messages)) == len(messages)
    assert messages[0] == digest("fedrep/session-key", RUN, b"k" * 32)


def test_the_sender_is_the_certificates_name_and_never_a_field() -> None:
    impostor = SiloName("impostor")
    assert codec.proposal_from_wire(impostor, codec.proposal_to_wire(PROPOSAL), b"").silo == impostor
    assert codec.submission_from_wire(impostor, codec.submission_to_wire(SUBMISSION), b"").silo == impostor
    assert codec.confirmation_from_wire(impostor, codec.confirmation_to_wire(CONFIRMATION)).silo == impostor
    assert codec.reveal_from_wire(impostor, codec.reveal_to_wire(REVEAL)).silo == impostor


def test_a_statement_belongs_to_the_round_it_was_asked_for() -> None:
    assert codec.statement_from_wire(codec.statement_to_wire(STATEMENT), RUN, 6).round == 6


@pytest.mark.parametrize("secret", [pb.SECRET_KIND_UNSPECIFIED, 17])
def test_a_share_that_does_not_say_which_secret_it_belongs_to_is_refused(secret: Any) -> None:
    wire = pb.RevealSharesRequest(run=RUN, round=5, shares=[pb.RevealedShare(dealer="a", secret=secret, share=b"1")])
    with pytest.raises(DecodeError, match="which secret"):
        codec.reveal_from_wire(A, wire)


@pytest.mark.parametrize("outcome", [pb.OUTCOME_UNSPECIFIED, 17])
def test_an_update_that_does_not_say_how_the_round_ended_is_refused(outcome: Any) -> None:
    header, payload = codec.update_to_wire(UPDATE)
    header.outcome = outcome
    with pytest.raises(DecodeError, match="how the round ended"):
        codec.update_from_wire(header, payload)


@pytest.mark.parametrize("change", [-1, 1])
def test_an_update_whose_payload_has_another_length_is_refused(change: int) -> None:
    header, payload = codec.update_to_wire(UPDATE)
    with pytest.raises(DecodeError) as caught:
        codec.update_from_wire(header, payload[:change] if change < 0 else payload + b"x")
    assert caught.value.reason == "TRUNCATED"


def test_the_headers_announce_what_follows_them() -> None:
    proposal, consensus, submission = (
        codec.proposal_to_wire(PROPOSAL),
        codec.consensus_to_wire(CONSENSUS),
        codec.submission_to_wire(SUBMISSION),
    )
    update, payload = codec.update_to_wire(UPDATE)
    assert (proposal.coordinates_size, proposal.coordinates_sha256) == announced(PROPOSAL.coordinates)
    assert (consensus.coordinates_size, consensus.coordinates_sha256) == announced(CONSENSUS.coordinates)
    assert (submission.masked_size, submission.masked_sha256) == announced(SUBMISSION.masked)
    assert (update.coordinates_size + update.levels_size, update.payload_sha256) == announced(payload)


def test_a_silo_that_agreed_itself_is_not_sent_the_agreement_again() -> None:
    header, payload = codec.update_to_wire(UPDATE, omit_agreement=True)
    back = codec.update_from_wire(over_the_wire(header), payload)
    assert UPDATE.descent is not None
    assert payload == UPDATE.descent.levels
    evidence = Evidence(None, (), UPDATE.evidence.statements, UPDATE.evidence.opened)
    assert back == replace(UPDATE, descent=replace(UPDATE.descent, coordinates=b""), evidence=evidence)


def announced(data: bytes | memoryview) -> tuple[int, bytes]:
    return len(data), hashlib.sha256(data).digest()


# Streams.


@settings(max_examples=60)
@given(data=st.binary(max_size=300), size=st.integers(1, 64))
def test_a_stream_in_chunks_of_any_size_is_put_together_again(data: bytes, size: int) -> None:
    chunks = list(cut_into_chunks(data, size))
    assert all(0 < len(chunk) <= size for chunk in chunks)
    assembler = Assembler(*announced(data), limit=300, what="the vector")
    for chunk in chunks:
        assembler.add(chunk)
    assert assembler.finish() == data


def reason_of(act: Callable[[], object]) -> str:
    with pytest.raises(DecodeError, match="the vector") as caught:
        act()
    return caught.value.reason


def test_a_truncated_stream_is_refused() -> None:
    data = b"0123456789"
    assembler = Assembler(*announced(data), limit=10, what="the vector")
    assembler.add(data[:9])
    assert reason_of(assembler.finish) == "TRUNCATED"


def test_an_empty_stream_is_refused_unless_it_was_announced_empty() -> None:
    assert reason_of(Assembler(*announced(b"x"), limit=10, what="the vector").finish) == "TRUNCATED"
    assert Assembler(*announced(b""), limit=10, what="the vector").finish() == b""


def test_a_stream_longer_than_announced_is_refused_at_the_byte_too_many() -> None:
    data = b"0123456789"
    assembler = Assembler(*announced(data), limit=100, what="the vector")
    assembler.add(data)
    assert reason_of(lambda: assembler.add(b"x")) == "TOO_LARGE"


def test_a_stream_with_another_hash_is_refused() -> None:
    assembler = Assembler(*announced(b"0123456789"), limit=10, what="the vector")
    assembler.add(b"0123456780")
    assert reason_of(assembler.finish) == "WRONG_HASH"


@pytest.mark.parametrize("hash_bytes", [b"", b"short", bytes(33)])
def test_a_hash_of_the_wrong_length_is_a_wrong_hash(hash_bytes: bytes) -> None:
    assembler = Assembler(1, hash_bytes, limit=10, what="the vector")
    assembler.add(b"x")
    assert reason_of(assembler.finish) == "WRONG_HASH"


def test_a_stream_announced_too_large_is_refused_before_anything_arrives() -> None:
    assert reason_of(lambda: Assembler(11, bytes(32), limit=10, what="the vector")) == "TOO_LARGE"
    assert reason_of(lambda: Assembler(2**63, bytes(32), limit=10, what="the vector")) == "TOO_LARGE"


def test_nothing_is_kept_of_a_chunk_that_goes_beyond_what_was_announced() -> None:
    """A peer that streams for ever costs no more memory than it announced."""
    assembler = Assembler(4, bytes(32), limit=10, what="the vector")
    assembler.add(b"0123")
    for _ in range(3):
        assert reason_of(lambda: assembler.add(b"x" * 1000)) == "TOO_LARGE"
    assert len(assembler._data) == 4


def test_a_stream_of_tiny_or_empty_chunks_costs_no_more_than_its_bytes() -> None:
    """One list entry per chunk let a peer grow memory with empty chunks for ever, and twentyfold with chunks of two bytes."""
    data = bytes(range(256)) * 80
    tracemalloc.start()
    try:
        assembler = Assembler(*announced(data), limit=len(data), what="the vector")
        for start in range(0, len(data), 2):
            assembler.add(data[start : start + 2])
            assembler.add(b"")
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 2 * len(data)
    assert assembler.finish() == data


@settings(max_examples=int(os.environ.get("FEDREP_FUZZ_EXAMPLES", "60")))
@given(garbage=st.binary(max_size=80))
def test_bytes_that_are_no_message_never_decode_to_an_exception_of_another_kind(garbage: bytes) -> None:
    """Whatever protobuf accepts, the codec turns into a message or a DecodeError."""
    decoders: list[tuple[Any, Callable[[Any], object]]] = [
        (pb.RevealSharesRequest, lambda m: codec.reveal_from_wire(A, m)),
        (pb.UpdateHeader, lambda m: codec.update_from_wire(m, b"")),
        (pb.ConsensusHeader, lambda m: codec.consensus_from_wire(m, b"")),
        (pb.ProposalHeader, lambda m: codec.proposal_from_wire(A, m, b"")),
        (pb.SubmissionHeader, lambda m: codec.submission_from_wire(A, m, b"")),
        (pb.ConfirmSurvivorsRequest, lambda m: codec.confirmation_from_wire(A, m)),
        (pb.ConfirmSurvivorsResponse, lambda m: codec.signatures_from_wire(m.signatures)),
        (pb.SurvivorSet, codec.survivors_from_wire),
        (pb.Statement, lambda m: codec.statement_from_wire(m, RUN, 1)),
        (pb.SignedRoundManifest, codec.signed_round_from_wire),
        (pb.SignedRunManifest, codec.signed_run_from_wire),
    ]
    for kind, decode in decoders:
        try:
            message = kind.FromString(garbage)
        except ProtobufDecodeError:
            continue
        try:
            decode(message)
        except DecodeError:
            continue


def test_a_roster_that_the_silo_knows_is_left_out_and_put_back() -> None:
    signed = SignedRoundManifest(ROUND_MANIFEST, b"signature")
    header, full = pb.UpdateHeader(), pb.UpdateHeader()
    codec.next_round_to_wire(header, signed, roster_digest(ROUND_MANIFEST.roster))
    codec.next_round_to_wire(full, signed, b"")
    assert header.same_roster
    assert len(header.next_round.manifest.roster) == 0 < len(full.next_round.manifest.roster)
    assert codec.signed_round_from_wire(header.next_round, ROUND_MANIFEST.roster) == signed
    assert codec.signed_round_from_wire(full.next_round) == signed, "what is remembered for all silos was not changed"


def test_another_roster_than_the_silo_knows_is_sent_whole() -> None:
    signed = SignedRoundManifest(ROUND_MANIFEST, b"signature")
    header = pb.UpdateHeader()
    codec.next_round_to_wire(header, signed, roster_digest(ROUND_MANIFEST.roster[:1]))
    assert not header.same_roster
    assert codec.signed_round_from_wire(header.next_round) == signed


def test_a_server_that_leaves_out_another_roster_has_signed_something_else() -> None:
    """Whatever it claims: the hash under its signature is that of the whole manifest."""
    signed = SignedRoundManifest(ROUND_MANIFEST, b"signature")
    wire = codec.signed_round_to_wire(signed)
    bare = pb.SignedRoundManifest()
    bare.CopyFrom(wire)
    bare.manifest.ClearField("roster")
    older = (replace(ROUND_MANIFEST.roster[0], session_key=b"another" * 4), *ROUND_MANIFEST.roster[1:])
    assert codec.signed_round_from_wire(bare, older).manifest.context() != ROUND_MANIFEST.context()
    assert codec.signed_round_from_wire(bare).manifest.context() != ROUND_MANIFEST.context()
