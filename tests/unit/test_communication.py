from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedrep.buffers import sizes
from fedrep.coding import encode_coordinates
from fedrep.communication import AgainstDense, Exchange, RoundTraffic, bits_per_round, coordinate_bits, dense_bits, paper_bits
from fedrep.errors import InvalidInputError
from fedrep.wire.v1 import federation_pb2 as pb

HASH, KEY, SIGNATURE, NAME = b"h" * 32, b"k" * 32, b"s" * 72, "silo-001"
QUESTION: dict[str, Any] = {"run": HASH, "round": 12_345}


def call(traffic: RoundTraffic, name: str) -> Exchange:
    return next(exchange for exchange in traffic.exchanges if exchange.call == name)


def test_the_yardsticks_are_those_of_the_paper() -> None:
    assert paper_bits(13_500, 32) == 97 * 13_500
    assert dense_bits(270_000) == 64 * 270_000


@pytest.mark.parametrize(
    ("count", "d"), [(0, 10), (10, 1_000), (425, 270_000), (13_500, 270_000), (50_000, 5_000_000), (700, 1_000), (9, 9)]
)
def test_expected_coordinate_bits_match_coded_sets(count: int, d: int) -> None:
    rng = np.random.default_rng(1)
    messages = [encode_coordinates(np.sort(rng.choice(d, count, replace=False)), d) for _ in range(20)]
    measured = 8 * np.mean([len(message) for message in messages])
    assert abs(coordinate_bits(count, d) - measured) <= 0.01 * measured + 8


def test_payload_is_the_coordinates_and_the_values_of_both_directions() -> None:
    traffic = bits_per_round(d=270_000, K=13_500, m=32, s=4, B=16)
    agreed = 32 * (13_500 // 32)
    expected = coordinate_bits(13_500 // 32, 270_000) + coordinate_bits(agreed, 270_000) + 2 * 16 * agreed
    assert traffic.payload == expected
    assert traffic.total == traffic.up + traffic.down == traffic.payload + traffic.protection


def test_gamma_replaces_the_assumption_of_disjoint_proposals() -> None:
    disjoint = bits_per_round(d=100_000, K=10_000, m=10, s=2, B=16)
    overlapping = bits_per_round(d=100_000, K=10_000, m=10, s=2, B=16, gamma=0.05)
    assert call(overlapping, "SubmitMaskedShare").payload_up == 16 * 5_000
    assert overlapping.protection == disjoint.protection
    assert overlapping.total < disjoint.total
    for gamma in (0.005, 0.2):
        with pytest.raises(InvalidInputError, match="gamma"):
            bits_per_round(d=100_000, K=10_000, m=10, s=2, B=16, gamma=gamma)


def test_a_round_takes_less_than_the_paper_counts_and_far_less_than_dense_training() -> None:
    traffic = bits_per_round(d=1_000_000, K=50_000, m=32, s=4, B=16)
    assert traffic.ratio_to_paper < 0.45
    assert traffic.ratio_to_dense < 0.04


def test_wider_rings_and_updates_cost_exactly_their_bits() -> None:
    narrow = bits_per_round(d=10_000, K=1_000, m=10, s=2, B=16)
    assert bits_per_round(d=10_000, K=1_000, m=10, s=2, B=32).up - narrow.up == 16 * 1_000
    assert bits_per_round(d=10_000, K=1_000, m=10, s=2, B=16, downlink_bits=32).down - narrow.down == 16 * 1_000


def test_settings_without_a_round_are_refused() -> None:
    for d, K, m, s in [(100, 5, 10, 2), (10, 1_000, 2, 2), (100, 50, 0, 2), (100, 50, 3, 4)]:
        with pytest.raises(InvalidInputError):
            bits_per_round(d=d, K=K, m=m, s=s, B=16)


def record() -> pb.Record:
    return pb.Record(silo=NAME, mask_key=KEY, seed_commitment=HASH, next_session_key=KEY, shares_digest=HASH, signature=SIGNATURE)


def survivor_set(buffer_sizes: list[int]) -> pb.SurvivorSet:
    survivor = pb.Survivor(silo=NAME, signature=SIGNATURE)
    return pb.SurvivorSet(buffers=[pb.SurvivingBuffer(survivors=[survivor] * size) for size in buffer_sizes])


def round_manifest(m: int) -> pb.SignedRoundManifest:
    entry = pb.RosterEntry(name=NAME, fingerprint=HASH, session_key=KEY, session_signature=SIGNATURE)
    manifest = pb.RoundManifest(
        model_version=12_345, model_hash=HASH, chain=HASH, roster=[entry] * m, parameters=270_000, coordinates=13_500,
        per_silo=421, alpha=0.5, buffer_size=4, ring_bits=16, value_bits=13, clip_range=0.1, byzantine=2,
        deadlines=pb.Deadlines(propose=60, submit=60, confirm=60, reveal=60), **QUESTION,
    )  # fmt: skip
    return pb.SignedRoundManifest(manifest=manifest, signature=SIGNATURE)


@pytest.mark.parametrize(("m", "s"), [(4, 2), (32, 4), (33, 4), (100, 10)])
def test_protection_is_the_size_of_the_real_messages(m: int, s: int) -> None:
    traffic = bits_per_round(d=270_000, K=13_500, m=m, s=s, B=16)
    buffer_sizes = sizes(m, s)
    signatures = [pb.HolderSignature(silo=NAME, signature=SIGNATURE)] * m
    place = pb.Assigned(silo=NAME, record_digest=HASH)
    messages = {
        ("ProposeCoordinates", "up"): pb.ProposalHeader(
            record=record(), next_session_signature=SIGNATURE, sealed_shares=[b"c" * 82] * m,
            seed_share_hashes=[HASH] * m, key_share_hashes=[HASH] * m, coordinates_size=600, coordinates_sha256=HASH,
            **QUESTION,
        ),
        ("GetConsensus", "down"): pb.ConsensusHeader(
            assignment=[pb.Buffer(members=[place] * size) for size in buffer_sizes],
            mates=[record()] * (max(buffer_sizes) - 1),
            shares=[pb.SealedShare(dealer=NAME, ciphertext=b"c" * 82)] * m,
            coordinates_size=10_000, coordinates_sha256=HASH, **QUESTION,
        ),
        ("SubmitMaskedShare", "up"): pb.SubmissionHeader(
            signature=SIGNATURE, masked_size=27_000, masked_sha256=HASH, macs=b"m" * 16 * m, **QUESTION
        ),
        ("GetSurvivors", "down"): pb.GetSurvivorsResponse(
            survivors=survivor_set(buffer_sizes), macs=b"m" * 16 * m
        ),
        ("ConfirmSurvivors", "up"): pb.ConfirmSurvivorsRequest(signature=SIGNATURE, macs=b"m" * 16 * m, **QUESTION),
        ("ConfirmSurvivors", "down"): pb.ConfirmSurvivorsResponse(
            signatures=signatures[: 2 * m // 3], macs=b"m" * 16 * (2 * m // 3)
        ),
        ("RevealShares", "up"): pb.RevealSharesRequest(
            shares=[pb.RevealedShare(dealer=NAME, secret=pb.SECRET_KIND_SEED, share=b"e" * 33)] * m, **QUESTION
        ),
        ("GetUpdate", "down"): pb.UpdateHeader(
            outcome=pb.OUTCOME_APPLIED, survivors=survivor_set(buffer_sizes), confirmations=signatures,
            opened=range(len(buffer_sizes)), model_version=12_346, model_hash=HASH, chain=HASH, scale=0.1,
            downlink_bits=16, levels_size=27_000, payload_sha256=HASH, next_round=round_manifest(m), state="running",
            **QUESTION,
        ),
    }  # fmt: skip
    for (name, direction), message in messages.items():
        counted = getattr(call(traffic, name), f"protection_{direction}") / 8
        assert abs(counted - message.ByteSize()) <= 0.01 * message.ByteSize() + 8, (name, direction)


@pytest.mark.parametrize(
    ("sent", "dense", "paper", "told"),
    [
        (100, 590, 50.0, "5.9x less than dense"),
        (184, 100, 50.0, "1.8x more than dense: too small a model for the fixed costs (keys, shares, signatures)"),
        (184, 100, 150.0, "1.8x more than dense: too many coordinates (K) for this model"),
        (101, 100, 50.0, "as much as dense"),
        (0, 0, 0.0, ""),
    ],
)
def test_the_traffic_is_said_to_be_less_or_more_than_dense_as_it_is(sent: int, dense: int, paper: float, told: str) -> None:
    assert AgainstDense(sent, dense, paper).sentence == told
