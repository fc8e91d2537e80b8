"""The plan of a run: bytes over all silos and rounds, and what its two epsilons mean."""

from __future__ import annotations

import math

import pytest

from fedrep.communication import bits_per_round
from fedrep.privacy import coordinate_epsilon
from fedrep.protocol.manifests import RunManifest
from fedrep.protocol.plan import coordinate_privacy, model_bytes, per_silo, record_meaning, slack, traffic
from fedrep_runtime.run_config import RunConfig


def run(d: int = 100_000, **settings: object) -> RunManifest:
    given: dict[str, object] = {"name": "planned", "silos": tuple(f"silo-{n}" for n in range(8)), "rounds": 20}
    return RunConfig.model_validate(given | settings).manifest(d, bytes(32), bytes(32))


def test_bytes_are_of_all_silos_and_all_rounds_and_dense_is_counted_alike() -> None:
    made = run()
    found, counted = traffic(made), bits_per_round(100_000, made.coordinates, 8, 2, 16)
    assert found is not None
    assert found.round_bytes(found.bits_up) == counted.up  # eight silos, eight bits
    assert found.total_bytes(found.bits) == 20 * counted.total
    assert found.total_bytes(found.dense_bits) == 20 * 8 * 8 * 100_000
    assert found.against_dense.sentence == f"{counted.dense_bits / counted.total:.1f}x less than dense"
    assert model_bytes(made) == 8 * 4 * 100_000


def test_a_model_too_small_for_the_fixed_costs_is_said_to_be_so() -> None:
    found = traffic(run(d=400, fraction=0.2))
    assert found is not None
    assert "more than dense: too small a model" in found.against_dense.sentence


@pytest.mark.parametrize(
    ("aggregator", "f", "lost", "skipped"),
    [("mean", 0, 8, True), ("krum", 0, 6, True), ("median", 1, 6, True), ("median", 2, 4, False), ("krum", 1, 4, True)],
)
def test_the_slack_of_buffers_ends_where_the_rule_withstands_f_no_longer(
    aggregator: str, f: int, lost: int, skipped: bool
) -> None:
    made = run(silos=tuple(f"silo-{n}" for n in range(18)), aggregator={"name": aggregator}, byzantine_count=f)
    assert (slack(made).lost_buffers, slack(made).then_skipped) == (lost, skipped)
    paired = {"name": "median", "pre": [{"name": "bucketing", "size": 2}]}
    bucketed = run(silos=tuple(f"silo-{n}" for n in range(18)), aggregator=paired, byzantine_count=2)
    assert (slack(bucketed).lost_buffers, slack(bucketed).then_skipped) == (0, True)


def test_what_cannot_be_counted_is_not() -> None:
    made = run(d=400, fraction=0.001)  # less than a coordinate for each silo
    assert per_silo(made) == 0
    assert traffic(made) is None
    assert coordinate_privacy(made) is None


@pytest.mark.parametrize(
    ("alpha", "words"),
    [(0.0, "There is no guarantee"), (0.5, "too large to mean much"), (1.0, "by a factor of 1.0 at most")],
)
def test_the_epsilon_of_coordinates_is_put_into_words(alpha: float, words: str) -> None:
    found = coordinate_privacy(run(alpha=alpha))
    assert found is not None
    assert words in found.meaning
    assert bool(found.remedy) is not found.meaningful


def test_the_remedy_of_a_meaningless_total_works() -> None:
    made = run(alpha=0.5)
    found = coordinate_privacy(made)
    assert found is not None
    assert found.epsilon_total == 20 * (coordinate_epsilon(100_000, per_silo(made), 0.5) or math.nan)
    again = coordinate_privacy(run(alpha=found.alpha_for_meaningful_total))
    assert again is not None
    assert again.meaningful
    assert "odds" in again.meaning


def test_what_is_asked_for_training_records_is_a_promise_and_a_large_one_means_little() -> None:
    assert "asks for no promise" in record_meaning(run())
    asked = record_meaning(run(record_epsilon_at_most=1.0, delta_at_most=1e-5))
    assert "epsilon 1 at delta 1e-05" in asked
    assert "by a factor of 2.8 at most" in asked  # e = 2.718..., rounded up
    assert "A promise, not a proof" in asked
    large = record_meaning(run(record_epsilon_at_most=50.0, delta_at_most=1e-5))
    assert "too large a bound to mean much" in large
    assert "factor" not in large
