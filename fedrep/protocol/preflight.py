"""Fail-closed checks of a run's settings when it is created, never mid-run: all problems at once, each with what to change."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np

from fedrep.aggregators import AGGREGATORS, conditions
from fedrep.buffers import number_of_buffers
from fedrep.downlink import DOWNLINK_BITS
from fedrep.errors import FedrepError
from fedrep.protocol.manifests import RunManifest, SiloName
from fedrep.protocol.messages import Survivor, SurvivorSet
from fedrep.protocol.opening import aggregator_options, combine_buffers
from fedrep.protocol.seats import SEED_BYTES, largest_seat
from fedrep.protocol.thresholds import (
    buffers_needed,
    buffers_to_be_robust,
    holders_in_common,
    least_min_survivors,
    least_quorum,
    share_threshold,
)
from fedrep.quantize import LARGEST_RANGE, SMALLEST_RANGE, check_bit_budget, value_bits
from fedrep.secagg.shamir import MAX_HOLDERS


def preflight(run: RunManifest) -> list[str]:
    """Sentences, empty when the run can be created."""
    return [problem for problems in findings(run).values() for problem in problems]


def findings(run: RunManifest) -> dict[str, list[str]]:
    """The same by topic, also those without a problem; where the sizes make no sense, nothing that calculates with them."""
    found = {"silos": _sizes(run), "terms": _terms(run)}
    if not found["silos"]:
        found |= {topic: check(run) for topic, check in _COUNTS.items()}
    return found


def sizes_work(run: RunManifest) -> bool:
    """Whether nothing but the terms can be wrong; stops at the first problem, for those who try many sizes."""
    return not _sizes(run) and not any(check(run) for check in _COUNTS.values())


def _sizes(run: RunManifest) -> list[str]:
    m = len(run.silos)
    problems = []
    if len(set(run.silos)) != m:
        problems.append("a silo is listed twice: list every name once")
    if not 2 <= m <= MAX_HOLDERS:
        problems.append(f"{m} silos: a run has between 2 and {MAX_HOLDERS}")
    if run.buffer_size < 2:
        problems.append(f"buffer size {run.buffer_size}: at least 2, or the server sees single updates")
    if run.parameters < 1 or run.coordinates < 1:
        problems.append("d and K must be positive")
    if run.byzantine < 0 or run.colluders < 0:
        problems.append("f and c cannot be negative")
    if not 1 <= run.quorum <= m:
        problems.append(f"quorum {run.quorum}: between 1 and the {m} silos")
    return problems


def _terms(run: RunManifest) -> list[str]:
    problems = []
    if not 0.0 <= run.alpha <= 1.0:
        problems.append(f"alpha {run.alpha}: choose a value in [0, 1]")
    if run.reshuffle_every < 1:
        problems.append("reshuffle_every must be at least 1 (1 = new buffers every round)")
    if len(run.buffer_seed) != SEED_BYTES:
        problems.append(f"buffer_seed has {len(run.buffer_seed)} bytes: draw {SEED_BYTES} at random when the run is created")
    if run.rounds < 1:
        problems.append("rounds must be at least 1")
    if run.downlink_bits not in DOWNLINK_BITS:
        problems.append("downlink_bits is 8, 16 or 32")
    if not SMALLEST_RANGE <= run.smallest_range <= run.initial_range <= run.largest_range <= LARGEST_RANGE:
        problems.append(
            f"ranges must satisfy {SMALLEST_RANGE:g} <= smallest_range <= initial_range <= largest_range <= {LARGEST_RANGE:g}"
        )
    if run.asks_for_promise and not (
        0.0 < (run.record_epsilon_at_most or 0.0) < math.inf and 0.0 < (run.delta_at_most or 0.0) < 1.0
    ):
        problems.append(
            "record_epsilon_at_most and delta_at_most belong together: an epsilon above 0 and a delta between 0 and 1, or neither"
        )
    deadlines = run.deadlines
    if not all(0 < s < math.inf for s in (deadlines.propose, deadlines.submit, deadlines.confirm, deadlines.reveal)):
        problems.append("every deadline must be a number of seconds above zero")
    return problems


def _holders(run: RunManifest) -> list[str]:
    m, t = len(run.silos), share_threshold(len(run.silos))
    problems = []
    if run.byzantine > m - t:
        problems.append(
            f"f = {run.byzantine}: with {m} silos and a threshold of {t} shares at most {m - t} silos may stay silent; "
            "lower f or add silos"
        )
    worst = min(holders_in_common(roster) for roster in range(run.quorum, m + 1))
    if worst <= run.colluders + run.byzantine:
        problems.append(
            f"c + f = {run.colluders + run.byzantine}: two survivor sets could both be confirmed "
            f"(2t - m is {worst} for the worst roster); lower c or f, or add silos"
        )
    needed = least_quorum(m, run.buffer_size, run.byzantine)
    if run.quorum < needed:
        problems.append(
            f"quorum {run.quorum}: a round needs at least {needed} silos (the share threshold is {t}, and "
            f"{buffers_needed(run.byzantine)} buffers of {run.buffer_size} must fill); raise the quorum or add silos"
        )
    if run.min_survivors < (least := least_min_survivors(run.colluders)):
        problems.append(f"min_survivors {run.min_survivors}: raise it to c + 2 = {least}, or c colluders could read one silo")
    return problems


def _buffers(run: RunManifest) -> list[str]:
    m, f = len(run.silos), run.byzantine
    count = number_of_buffers(m, run.buffer_size)
    problems = []
    if run.min_survivors > run.buffer_size:
        problems.append(
            f"min_survivors {run.min_survivors} is above the buffer size {run.buffer_size}: no full buffer would open"
        )
    if run.aggregator != "mean":
        if count < 2:
            problems.append(
                f"{run.aggregator} over one buffer is the plain mean: use smaller buffers, more silos, or aggregator = 'mean'"
            )
        elif f >= 1 and count < (needed := buffers_to_be_robust(f, run.aggregator)):
            problems.append(
                f"{m} silos in buffers of {run.buffer_size} give {count} buffers; {run.aggregator} against f = {f} needs "
                f"{needed}: lower f or the buffer size, or add silos"
            )
    elif f >= 1:
        problems.append(f"the plain mean withstands no attacker: set byzantine_count = 0 or choose a robust rule (f = {f})")
    return problems


def _bits(run: RunManifest) -> list[str]:
    if len(run.silos) < run.buffer_size:
        return []  # no buffer to speak of; `_buffers` says so
    largest = largest_seat(run)
    problems = check_bit_budget(run.ring_bits, largest)
    if not problems and run.value_bits != value_bits(run.ring_bits, largest):
        problems.append(
            f"value_bits {run.value_bits}: buffers of up to {largest} in a {run.ring_bits}-bit ring leave "
            f"{value_bits(run.ring_bits, largest)}"
        )
    return problems


def _coordinates(run: RunManifest) -> list[str]:
    problems = []
    if run.coordinates < len(run.silos):
        least = math.ceil(1000 * len(run.silos) / run.parameters) / 1000
        text = f"K = {run.coordinates}: at least one coordinate per silo, {len(run.silos)}; raise K/d (fraction) to {least:g}"
        problems.append(text)
    smallest = max(run.quorum, 1)
    if run.coordinates // smallest >= run.parameters:
        problems.append(
            f"K = {run.coordinates}: with {smallest} silos each would propose all {run.parameters} coordinates; lower K/d"
        )
    return problems


def _aggregator(run: RunManifest) -> list[str]:
    if run.aggregator not in AGGREGATORS:
        return [f"aggregator {run.aggregator!r} is unknown: choose one of {', '.join(sorted(AGGREGATORS))}"]
    buffers = number_of_buffers(len(run.silos), run.buffer_size)
    try:
        settings, pre = aggregator_options(run.aggregator_settings)
        problems = conditions(run.aggregator, buffers, run.byzantine, settings, pre)
        if not problems and buffers:
            _rehearse(run, buffers)
        return problems
    except FedrepError as error:
        return [str(error)]


def _rehearse(run: RunManifest, buffers: int) -> None:
    """Some settings fail only when the rule runs with its steps and weights; better now than in every round."""
    names = tuple(SiloName(str(number)) for number in range(buffers))
    survivors = SurvivorSet(tuple((Survivor(name, b""),) for name in names))
    rows = dict(enumerate(np.eye(buffers, max(buffers, 3), dtype=np.float32)))
    combine_buffers(rows, survivors, run.aggregator, run.aggregator_settings, run.byzantine, np.random.default_rng(0))


_COUNTS: Final[dict[str, Callable[[RunManifest], list[str]]]] = {
    "holders": _holders,
    "buffers": _buffers,
    "bits": _bits,
    "coordinates": _coordinates,
    "rule": _aggregator,
}
