"""What the server puts together from bytes is the very message that the codec would make."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrep.protocol.manifests import SignedRoundManifest, SiloName, roster_digest
from fedrep.protocol.messages import Outcome, Signatures, SurvivorSet, Update
from fedrep.secagg.pairs import MAC_BYTES
from fedrep.wire import answers, codec
from fedrep.wire.chunks import CHUNK_BYTES
from fedrep.wire.v1 import federation_pb2 as pb
from tests.unit.test_wire_codec import CONSENSUS, ROUND_MANIFEST, STATEMENT, SURVIVORS, UPDATE, A, B

MACS = (b"a" * MAC_BYTES, b"")
FOLLOWING = SignedRoundManifest(ROUND_MANIFEST, b"sig")
ROSTER = roster_digest(ROUND_MANIFEST.roster)
SKIPPED = replace(UPDATE, outcome=Outcome.SKIPPED, descent=None)


@given(st.lists(st.tuples(st.text(max_size=63).map(SiloName), st.binary(max_size=300)), max_size=5).map(tuple))
def test_a_consensus_holds_the_shares_of_its_own_silo(shares: tuple[tuple[SiloName, bytes], ...]) -> None:
    for consensus in (replace(CONSENSUS, shares=shares), replace(CONSENSUS, shares=shares, mates=())):
        header, *chunks = map(pb.GetConsensusResponse.FromString, answers.consensus_parts(consensus))
        assert header.header == codec.consensus_to_wire(consensus)
        assert b"".join(part.chunk for part in chunks) == consensus.coordinates


def test_chunks_are_cut_where_they_always_were() -> None:
    consensus = replace(CONSENSUS, coordinates=bytes(range(256)) * (CHUNK_BYTES // 128) + b"rest")
    _, *chunks = map(pb.GetConsensusResponse.FromString, answers.consensus_parts(consensus))
    assert [len(part.chunk) for part in chunks] == [CHUNK_BYTES, CHUNK_BYTES, 4]
    assert b"".join(part.chunk for part in chunks) == consensus.coordinates


@pytest.mark.parametrize("told", [SURVIVORS, replace(SURVIVORS, macs=MACS), SurvivorSet(())], ids=["plain", "macs", "none"])
def test_survivors_with_what_they_vouched_for(told: SurvivorSet) -> None:
    assert pb.GetSurvivorsResponse.FromString(answers.survivors_answer(told)) == codec.told_survivors_to_wire(told)


@pytest.mark.parametrize("macs", [(), MACS, (b"", b"")], ids=["none", "one", "left out"])
@pytest.mark.parametrize("signatures", [(), ((A, b"1" * 70), (B, b""))], ids=["nobody", "two"])
def test_signatures_of_holders(signatures: Signatures, macs: tuple[bytes, ...]) -> None:
    told = pb.ConfirmSurvivorsResponse.FromString(answers.confirmations_answer(signatures, macs))
    assert told == codec.confirmations_to_wire(signatures, macs)


@pytest.mark.parametrize("omits", [False, True], ids=["all of it", "without what the silo agreed to"])
@pytest.mark.parametrize("knows", [b"", b"another", ROSTER], ids=["nothing", "another", "the roster"])
@pytest.mark.parametrize("following", [None, FOLLOWING], ids=["no next round", "a next round"])
@pytest.mark.parametrize("update", [UPDATE, SKIPPED], ids=["applied", "skipped"])
def test_an_update_with_the_statements_so_far(
    update: Update, following: SignedRoundManifest | None, knows: bytes, omits: bool
) -> None:
    for statements in ((), (STATEMENT,), ()):
        answer = replace(update, evidence=replace(update.evidence, statements=statements))
        expected, payload = codec.update_to_wire(answer, omit_agreement=omits)
        if following is not None:
            codec.next_round_to_wire(expected, following, knows)
        expected.state = "running"
        parts = answers.update_parts(update, statements, following, "running", omit_agreement=omits, known_roster=knows)
        header, *chunks = map(pb.GetUpdateResponse.FromString, parts)
        assert header.header == expected
        assert b"".join(part.chunk for part in chunks) == payload
        assert hashlib.sha256(payload).digest() == header.header.payload_sha256
