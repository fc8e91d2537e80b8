"""The preflight ends with what to do: one conclusion, and every suggestion passes the preflight itself."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrep.aggregators import AGGREGATORS
from fedrep.protocol.advice import WORKS, advise
from fedrep.protocol.manifests import RunManifest
from fedrep.protocol.preflight import preflight
from fedrep.secagg.shamir import MAX_HOLDERS
from fedrep_runtime.run_config import AggregatorConfig, RunConfig
from tests.protocol.federation import run_manifest
from tests.protocol.test_preflight import MODEL, PROBLEMS, names, sound

D = 4000
OWN_DEFAULTS = ("quorum", "colluders", "min_survivors")


def config(silos: int, **changes: Any) -> RunConfig:
    return RunConfig(name="run", silos=tuple(names(silos)), **changes)


def manifest(made: RunConfig) -> RunManifest:
    return made.manifest(D, bytes(32), bytes(32))


def applied(made: RunConfig, suggested: dict[str, Any]) -> RunConfig:
    """As an admin who does what the remedy says would write the run file, and writes no default into it."""
    before = manifest(made)
    left_out = [name for name in OWN_DEFAULTS if before == _same(manifest(made.model_copy(update={name: None})), before)]
    changes: dict[str, Any] = {**dict.fromkeys(left_out), **suggested}
    if "silos" in changes:
        changes["silos"] = tuple(names(changes["silos"]))
    if "aggregator" in changes:
        changes["aggregator"] = made.aggregator.model_copy(update={"name": changes["aggregator"]})
    return made.model_copy(update=changes)


def _same(run: RunManifest, as_in: RunManifest) -> RunManifest:
    return replace(run, buffer_seed=as_in.buffer_seed)


NEEDED = "with {} and s = {} you need {} silos; you have {}: invite {} more, or set "
ENDINGS = {
    (4, 2, 1): NEEDED.format("f = 1", 2, 8, 4, 4) + "byzantine_count = 0",
    (7, 2, 2): NEEDED.format("f = 2", 2, 10, 7, 3) + "byzantine_count = 0",
    (10, 3, 2): NEEDED.format("f = 2", 3, 15, 10, 5) + "byzantine_count = 0, or set buffer_size = 2",
    (3, 2, 1): NEEDED.format("f = 1", 2, 8, 3, 5) + "byzantine_count = 0 and aggregator = 'mean'",
    (3, 2, 0): NEEDED.format("geometric_median", 2, 4, 3, 1) + "aggregator = 'mean'",
    (10, 9, 2): NEEDED.format("f = 2", 9, 45, 10, 35) + "buffer_size = 2",
}


@pytest.mark.parametrize(("silos", "size", "f"), ENDINGS)
def test_too_few_silos_end_in_one_sentence_with_all_ways_out(silos: int, size: int, f: int) -> None:
    assert advise(manifest(config(silos, buffer_size=size, byzantine_count=f))).conclusion == ENDINGS[silos, size, f]


def test_where_one_change_is_not_enough_two_are_named_together() -> None:
    advice = advise(manifest(config(199, buffer_size=100, byzantine_count=60, ring_bits=32)))
    assert [set(remedy.settings) for remedy in advice.remedies] == [{"byzantine_count", "buffer_size"}]
    assert advice.conclusion.startswith("these settings do not go together: set byzantine_count = ")


def test_a_command_names_its_own_options() -> None:
    options = {"silos": "--silos", "byzantine_count": "--byzantine"}
    advice = advise(manifest(config(4, byzantine_count=1)), options)
    assert advice.conclusion.endswith("you have 4: take --silos 8, or take --byzantine 0")


def test_a_signed_run_is_offered_only_what_an_amendment_may_change() -> None:
    advice = advise(manifest(config(4, byzantine_count=1)), may_change=("silos", "quorum"))
    assert [dict(remedy.settings) for remedy in advice.remedies] == [{"silos": 8}]
    assert advice.conclusion.endswith("invite 4 more")


def test_a_sound_run_has_its_facts_and_nothing_to_do() -> None:
    advice = advise(sound())
    assert (advice.conclusion, advice.remedies, advice.problems) == (WORKS, (), [])
    assert [fact.topic for fact in advice.facts] == ["silos", "terms", "holders", "buffers", "bits", "coordinates", "rule"]
    assert "7 buffers of s = 2" in next(fact.text for fact in advice.facts if fact.topic == "buffers")


@pytest.mark.parametrize("case", PROBLEMS)
def test_the_advice_knows_every_problem_of_the_preflight(case: str) -> None:
    run = sound(**PROBLEMS[case][0])
    advice = advise(run)
    assert advice.problems == preflight(run)
    assert advice.conclusion != WORKS
    assert advice.sentence.endswith(advice.conclusion[1:])
    json.dumps(advice.described())


def test_a_wrong_term_beside_too_few_silos_is_not_forgotten() -> None:
    run = replace(manifest(config(4, byzantine_count=1)), alpha=2.0)
    assert advise(run).conclusion.endswith("or set byzantine_count = 0; besides, alpha 2.0: choose a value in [0, 1]")


@settings(max_examples=150)
@given(
    silos=st.integers(2, 60),
    size=st.integers(2, 12),
    f=st.integers(0, 9),
    fraction=st.sampled_from([0.0005, 0.05, 30.0]),
    ring=st.sampled_from([8, 16]),
    rule=st.sampled_from(sorted(AGGREGATORS)),
    given_terms=st.fixed_dictionaries(
        {}, optional={"quorum": st.integers(1, 60), "colluders": st.integers(0, 5), "min_survivors": st.integers(1, 12)}
    ),
)
def test_whoever_does_what_is_suggested_has_a_run_that_works(
    silos: int, size: int, f: int, fraction: float, ring: int, rule: str, given_terms: dict[str, int]
) -> None:
    if silos < size:
        return
    made = config(
        silos,
        buffer_size=size,
        byzantine_count=f,
        fraction=fraction,
        ring_bits=ring,
        aggregator=AggregatorConfig(name=rule),
        **given_terms,
    )
    for remedy in advise(manifest(made)).remedies:
        assert preflight(manifest(applied(made, dict(remedy.settings)))) == [], remedy


@pytest.mark.parametrize("silos", [0, 1, MAX_HOLDERS + 1])
def test_sizes_that_make_no_sense_are_answered_too(silos: int) -> None:
    run = replace(run_manifest(8, MODEL), silos=names(silos))
    assert f"{silos} silos: a run has between 2 and {MAX_HOLDERS}" in advise(run).sentence


@pytest.mark.parametrize("fraction", [float("inf"), float("nan"), 0.0])
def test_a_share_of_the_coordinates_is_a_finite_number_above_zero(fraction: float) -> None:
    with pytest.raises(ValueError, match="fraction"):
        config(4, fraction=fraction)
