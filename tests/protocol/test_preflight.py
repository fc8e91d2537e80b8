"""A run that cannot work is refused when it is created: every problem, all at once, each with what to change."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrep.aggregators import AGGREGATORS
from fedrep.aggregators.prepare import PRE_STEPS
from fedrep.aggregators.rules import KRUM
from fedrep.buffers import sizes
from fedrep.protocol.manifests import Deadlines, RunManifest, SiloName
from fedrep.protocol.preflight import preflight
from fedrep.protocol.thresholds import buffers_needed, default_quorum, share_threshold
from fedrep.quantize import RingFormat
from fedrep.secagg.shamir import MAX_HOLDERS
from tests.protocol.federation import run_manifest

MODEL = np.zeros(400, np.float32)
ROBUST = sorted(set(AGGREGATORS) - {"mean"})


def names(count: int) -> tuple[SiloName, ...]:
    return tuple(SiloName(f"silo-{number:03d}") for number in range(count))


def sound(**changes: object) -> RunManifest:
    """14 silos, f = 2, s = 2, median; `changes` are made afterwards, nothing is derived from them."""
    run = run_manifest(14, MODEL, byzantine=2, aggregator="median")
    assert preflight(run) == []
    return replace(run, **changes)  # type: ignore[arg-type]


PROBLEMS: dict[str, tuple[dict[str, object], str]] = {
    "a name twice": ({"silos": (*names(13), SiloName("silo-000"))}, "a silo is listed twice: list every name once"),
    "too many silos": (
        {"silos": names(MAX_HOLDERS + 1)},
        f"{MAX_HOLDERS + 1} silos: a run has between 2 and {MAX_HOLDERS}",
    ),
    "buffers of one": ({"buffer_size": 1}, "buffer size 1: at least 2, or the server sees single updates"),
    "alpha above 1": ({"alpha": 1.5}, "alpha 1.5: choose a value in [0, 1]"),
    "alpha below 0": ({"alpha": -0.1}, "alpha -0.1: choose a value in [0, 1]"),
    "alpha not a number": ({"alpha": float("nan")}, "alpha nan: choose a value in [0, 1]"),
    "no coordinates": ({"coordinates": 0}, "d and K must be positive"),
    "no parameters": ({"parameters": 0}, "d and K must be positive"),
    "negative f": ({"byzantine": -1}, "f and c cannot be negative"),
    "negative c": ({"colluders": -1}, "f and c cannot be negative"),
    "no reshuffling": ({"reshuffle_every": 0}, "reshuffle_every must be at least 1 (1 = new buffers every round)"),
    "no rounds": ({"rounds": 0}, "rounds must be at least 1"),
    "4-bit downlink": ({"downlink_bits": 4}, "downlink_bits is 8, 16 or 32"),
    "range zero": (
        {"smallest_range": 0.0},
        "ranges must satisfy 1e-25 <= smallest_range <= initial_range <= largest_range <= 1e+25",
    ),
    "range infinite": (
        {"largest_range": float("inf")},
        "ranges must satisfy 1e-25 <= smallest_range <= initial_range <= largest_range <= 1e+25",
    ),
    "initial range outside": (
        {"initial_range": 1e7},
        "ranges must satisfy 1e-25 <= smallest_range <= initial_range <= largest_range <= 1e+25",
    ),
    "no time": ({"deadlines": Deadlines(60, 60, 0, 60)}, "every deadline must be a number of seconds above zero"),
    "time is not a number": (
        {"deadlines": Deadlines(float("nan"), 60, 60, 60)},
        "every deadline must be a number of seconds above zero",
    ),
    "endless time": (
        {"deadlines": Deadlines(60, 60, 60, float("inf"))},
        "every deadline must be a number of seconds above zero",
    ),
    "quorum above m": ({"quorum": 15}, "quorum 15: between 1 and the 14 silos"),
    "quorum zero": ({"quorum": 0}, "quorum 0: between 1 and the 14 silos"),
    "quorum below t": (
        {"quorum": 9},
        "quorum 9: a round needs at least 10 silos (the share threshold is 10, and 3 buffers of 2 must fill); "
        "raise the quorum or add silos",
    ),
    "too many colluders": (
        {"colluders": 4, "min_survivors": 2},
        "c + f = 6: two survivor sets could both be confirmed (2t - m is 4 for the worst roster); lower c or f, or add silos",
    ),
    "min_survivors below c + 2": (
        {"colluders": 1},
        "min_survivors 2: raise it to c + 2 = 3, or c colluders could read one silo",
    ),
    "min_survivors above s": (
        {"min_survivors": 3},
        "min_survivors 3 is above the buffer size 2: no full buffer would open",
    ),
    "mean against attackers": (
        {"aggregator": "mean"},
        "the plain mean withstands no attacker: set byzantine_count = 0 or choose a robust rule (f = 2)",
    ),
    "another value_bits": ({"value_bits": 8}, "value_bits 8: buffers of up to 2 in a 16-bit ring leave 14"),
    "12-bit ring": ({"ring_bits": 12}, "A ring of 12 bits is not supported; choose 8, 16 or 32."),
    "K below m": ({"coordinates": 13}, "K = 13: at least one coordinate per silo, 14; raise K/d (fraction) to 0.035"),
    "k as large as d": (
        {"coordinates": 4000},
        "K = 4000: with 10 silos each would propose all 400 coordinates; lower K/d",
    ),
    "unknown rule": ({"aggregator": "magic"}, f"aggregator 'magic' is unknown: choose one of {', '.join(sorted(AGGREGATORS))}"),
    "settings not JSON": ({"aggregator_settings": "{"}, "the aggregator's settings are not JSON"),
    "settings of no rule": ({"aggregator_settings": '{"radius": 1}'}, "The rule median"),
    "pre-steps not steps": (
        {"aggregator_settings": '{"pre": [3]}'},
        "the aggregator's settings are a JSON object, its `pre` a list of steps (a name, or an object)",
    ),
    "bucketing leaves too few rows": (
        {"aggregator_settings": '{"pre": ["bucketing"]}'},
        "median needs at least 5 rows to stand 2 Byzantine ones, but there would be 4.",
    ),
    "a trim that keeps attackers": (
        {"aggregator": "trimmed_mean", "aggregator_settings": '{"fraction": 0.15}'},
        "trimmed_mean with fraction 0.15 is to remove 1 of 7 rows on each side, fewer than the 2 that may be Byzantine.",
    ),
}


@pytest.mark.parametrize("case", PROBLEMS)
def test_each_problem_has_its_sentence(case: str) -> None:
    changes, sentence = PROBLEMS[case]
    problems = preflight(sound(**changes))
    assert any(problem.startswith(sentence) for problem in problems), problems


@pytest.mark.parametrize("case", PROBLEMS)
def test_the_sentence_is_absent_from_a_sound_run(case: str) -> None:
    assert not any(problem.startswith(PROBLEMS[case][1]) for problem in preflight(sound()))


@pytest.mark.parametrize("count", [0, 1])
def test_a_federation_of_one_is_refused(count: int) -> None:
    assert f"{count} silos: a run has between 2 and {MAX_HOLDERS}" in preflight(sound(silos=names(count)))


def test_more_attackers_than_may_stay_silent_are_refused() -> None:
    expected = (
        "f = 5: with 14 silos and a threshold of 10 shares at most 4 silos may stay silent; lower f or add silos",
        "14 silos in buffers of 2 give 7 buffers; median against f = 5 needs 11: lower f or the buffer size, or add silos",
        "median needs at least 11 rows to stand 5 Byzantine ones, but there would be 7.",
    )
    problems = preflight(sound(byzantine=5))
    for sentence in expected:
        assert sentence in problems


@pytest.mark.parametrize("rule", ROBUST)
def test_a_robust_rule_over_a_single_buffer_is_refused(rule: str) -> None:
    run = run_manifest(7, MODEL, buffer_size=4, aggregator=rule)
    sentence = f"{rule} over one buffer is the plain mean: use smaller buffers, more silos, or aggregator = 'mean'"
    assert sentence in preflight(run)
    assert preflight(replace(run, aggregator="mean")) == []


@pytest.mark.parametrize("rule", sorted(set(ROBUST) - set(KRUM)))
@pytest.mark.parametrize(("f", "buffers"), [(1, 4), (2, 5), (3, 7)])
def test_a_robust_rule_needs_2f_plus_1_and_f_plus_3_buffers(rule: str, f: int, buffers: int) -> None:
    assert buffers == max(2 * f + 1, f + 3)
    enough = run_manifest(2 * buffers, MODEL, byzantine=f, aggregator=rule)
    if f <= 2:  # beyond, the threshold asks for more silos than the buffers do
        assert preflight(enough) == []
    fewer = run_manifest(2 * buffers - 1, MODEL, byzantine=f, aggregator=rule)
    assert any(f"give {buffers - 1} buffers; {rule} against f = {f} needs {buffers}" in text for text in preflight(fewer))


@pytest.mark.parametrize("rule", KRUM)
@pytest.mark.parametrize(("f", "buffers"), [(1, 5), (2, 7)])
def test_krum_needs_the_2f_plus_3_buffers_of_its_guarantee(rule: str, f: int, buffers: int) -> None:
    assert preflight(run_manifest(2 * buffers, MODEL, byzantine=f, aggregator=rule)) == []
    fewer = preflight(run_manifest(2 * buffers - 1, MODEL, byzantine=f, aggregator=rule))
    assert any(f"give {buffers - 1} buffers; {rule} against f = {f} needs {buffers}" in text for text in fewer)


@pytest.mark.parametrize("rule", KRUM)
def test_krum_needs_the_rows_of_its_guarantee_after_its_pre_steps(rule: str) -> None:
    settings = json.dumps({"pre": [{"name": "bucketing", "size": 2}]})
    run = run_manifest(24, MODEL, byzantine=3, aggregator=rule, aggregator_settings=settings)
    assert preflight(run) == [f"{rule} needs at least 9 rows to stand 3 Byzantine ones, but there would be 6."]
    assert preflight(replace(run, byzantine=1)) == []
    large = json.dumps({"pre": [{"name": "bucketing", "size": 4}]})
    assert preflight(run_manifest(64, MODEL, byzantine=1, aggregator=rule, aggregator_settings=large)) == []


def test_a_ring_too_small_for_its_buffers_is_refused() -> None:
    run = run_manifest(24, MODEL, buffer_size=12, ring_bits=8, quorum=24)
    assert preflight(run) == [
        "A ring of 8 bits leaves 3 bits per value when 12 silos share a buffer; at least 4 are needed: "
        "choose more ring bits or smaller buffers."
    ]
    assert preflight(run_manifest(24, MODEL, buffer_size=12, ring_bits=16, quorum=24)) == []


@pytest.mark.parametrize("step", PRE_STEPS)
def test_a_mean_may_stand_behind_any_pre_step(step: str) -> None:
    assert preflight(run_manifest(14, MODEL, aggregator_settings=json.dumps({"pre": [step]}))) == []


def test_all_problems_come_at_once() -> None:
    run = sound(alpha=2.0, coordinates=13, ring_bits=12, quorum=9, min_survivors=3, aggregator="magic", rounds=0)
    problems = preflight(run)
    for case in ("12-bit ring", "K below m", "quorum below t", "min_survivors above s", "unknown rule", "no rounds"):
        assert PROBLEMS[case][1] in problems
    assert "alpha 2.0: choose a value in [0, 1]" in problems


def test_wrong_sizes_hide_no_wrong_terms() -> None:
    problems = preflight(sound(buffer_size=1, quorum=15, alpha=2.0, downlink_bits=1))
    assert len(problems) == 4


@pytest.mark.parametrize(("silos", "size"), [(3, 4), (8, 9)])
def test_buffers_larger_than_the_federation_are_refused_and_do_not_crash(silos: int, size: int) -> None:
    run = replace(run_manifest(silos, MODEL), buffer_size=size)
    assert any(problem.startswith("quorum") for problem in preflight(run))


@settings(max_examples=150)
@given(
    silos=st.integers(0, 40),
    changes=st.fixed_dictionaries(
        {},
        optional={
            "buffer_size": st.integers(-1, 12),
            "quorum": st.integers(-1, 41),
            "byzantine": st.integers(-1, 6),
            "colluders": st.integers(-1, 6),
            "min_survivors": st.integers(-1, 9),
            "coordinates": st.integers(-1, 500),
            "ring_bits": st.sampled_from([8, 16, 32, 12]),
            "alpha": st.floats(-1, 2),
            "aggregator": st.sampled_from([*AGGREGATORS, "magic"]),
        },
    ),
)
def test_whatever_the_settings_the_preflight_answers_and_what_passes_can_work(silos: int, changes: dict[str, object]) -> None:
    run = replace(run_manifest(8, MODEL), silos=names(silos), **changes)  # type: ignore[arg-type]
    if preflight(run):
        return
    m, f = len(run.silos), run.byzantine
    assert f <= m - share_threshold(m)
    for roster in range(run.quorum, m + 1):
        t = share_threshold(roster)
        assert 2 * t - roster > run.colluders + f
        buffers = sizes(roster, run.buffer_size)
        assert len(buffers) >= buffers_needed(f)
        ring = RingFormat(run.ring_bits, run.value_bits)
        assert buffers[0] * ring.limit <= ring.largest_sum
        assert min(buffers) >= run.min_survivors >= run.colluders + 2
        assert 1 <= run.coordinates // roster < run.parameters


@pytest.mark.parametrize("silos", range(2, 33))
def test_the_defaults_pass_wherever_the_sizes_allow_it(silos: int) -> None:
    run = run_manifest(silos, MODEL)
    assert run.quorum == default_quorum(silos, 2, 0) == max(share_threshold(silos), 2)
    assert preflight(run) == []
