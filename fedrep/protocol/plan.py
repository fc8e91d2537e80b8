"""What a run's settings will give, before anybody joins: contraction, buffers, slack, traffic and both kinds of privacy."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedrep import buffers, communication, privacy, theory
from fedrep.aggregators import rows_needed
from fedrep.errors import FedrepError, InvalidInputError
from fedrep.protocol.manifests import RunManifest
from fedrep.protocol.opening import configured_rule, why_skipped
from fedrep.protocol.thresholds import buffers_needed, share_threshold

FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Slack:
    """How many may be missing, at each step, before a round is skipped or robustness rests on luck."""

    absent_silos: int
    silent_holders: int
    dropouts_per_buffer: int
    lost_buffers: int
    then_skipped: bool  # what one more lost buffer means; if not, the rule is told to withstand fewer than f


@dataclass(frozen=True, slots=True)
class PlannedTraffic:
    """Of a run in which everybody takes part in every round. Bits are of one silo and round, bytes of all silos together."""

    bits_up: int
    bits_down: int
    paper_bits: float
    dense_bits: int
    silos: int
    rounds: int

    @property
    def bits(self) -> int:
        return self.bits_up + self.bits_down

    def round_bytes(self, bits: float) -> int:
        return math.ceil(self.silos * bits / 8)

    def total_bytes(self, bits: float) -> int:
        return self.rounds * self.round_bytes(bits)

    @property
    def against_dense(self) -> communication.AgainstDense:
        sent, dense = self.total_bytes(self.bits), self.total_bytes(self.dense_bits)
        return communication.AgainstDense(sent, dense, self.total_bytes(self.paper_bits))


@dataclass(frozen=True, slots=True)
class PlannedPrivacy:
    """Of the coordinates that one silo proposes in every round. None is no guarantee at all, never a number."""

    alpha: float
    rounds: int
    epsilon_round: float | None
    epsilon_theorem2: float | None
    epsilon_total: float | None
    alpha_for_meaningful_total: float

    @property
    def meaningful(self) -> bool:
        return privacy.meaningful(self.epsilon_total)

    @property
    def meaning(self) -> str:
        if self.epsilon_total is None:
            return "There is no guarantee: proposals are the top-k sets themselves."
        if not self.meaningful:
            return f"A total above {privacy.TOO_LARGE_TO_MEAN_MUCH:g} is too large to mean much."
        return f"All proposals together shift an observer's odds between two such sets {_factor(self.epsilon_total)}."

    @property
    def remedy(self) -> str:
        if self.meaningful:
            return ""
        limit = privacy.TOO_LARGE_TO_MEAN_MUCH
        return f"{limit:g} over {self.rounds:,} rounds needs alpha >= {self.alpha_for_meaningful_total!r}."


def contraction(run: RunManifest) -> float | None:
    """Proposition 2's d'_cons. None where it says nothing: too few coordinates, or no honest majority."""
    m, k = len(run.silos), per_silo(run)
    if k < 1 or k > run.parameters or 2 * run.byzantine >= m:
        return None
    return theory.consensus_dimension(run.parameters, k, m, run.alpha, run.byzantine / m)


def per_silo(run: RunManifest) -> int:
    return run.coordinates // len(run.silos)


def slack(run: RunManifest) -> Slack:
    m = len(run.silos)
    count = buffers.number_of_buffers(m, run.buffer_size)
    spare = _spare_buffers(run, count)
    return Slack(
        absent_silos=max(0, m - run.quorum),
        silent_holders=m - share_threshold(m),
        dropouts_per_buffer=max(0, run.buffer_size - run.min_survivors),
        lost_buffers=spare,
        then_skipped=count - spare - 1 < buffers_needed(run.byzantine) or bool(why_skipped(run, count - spare - 1)),
    )


def _spare_buffers(run: RunManifest, count: int) -> int:
    needed = max(2 * run.byzantine + 1, rows_needed(run.aggregator, run.byzantine))
    try:
        rule = configured_rule(run.aggregator, run.aggregator_settings)
    except FedrepError:
        return max(0, count - needed)
    return max((lost for lost in range(count) if rule.rows_after(count - lost) >= needed), default=0)


def traffic(run: RunManifest) -> PlannedTraffic | None:
    """None where it cannot be counted: every silo must propose between 1 and d coordinates."""
    m = len(run.silos)
    try:
        bits = communication.bits_per_round(
            run.parameters, run.coordinates, m, run.buffer_size, run.ring_bits, downlink_bits=run.downlink_bits
        )
    except InvalidInputError:
        return None
    return PlannedTraffic(bits.up, bits.down, bits.paper_bits, bits.dense_bits, m, run.rounds)


def model_bytes(run: RunManifest) -> int:
    """What all silos fetch once, when they join."""
    return FLOAT_BYTES * run.parameters * len(run.silos)


def coordinate_privacy(run: RunManifest) -> PlannedPrivacy | None:
    """None where it cannot be counted, as for the traffic."""
    d, k = run.parameters, per_silo(run)
    if not 1 <= k <= d or run.rounds < 1 or not 0.0 <= run.alpha <= 1.0:
        return None
    per_round = privacy.coordinate_epsilon(d, k, run.alpha)
    return PlannedPrivacy(
        alpha=run.alpha,
        rounds=run.rounds,
        epsilon_round=per_round,
        epsilon_theorem2=privacy.theorem2_epsilon(d, k, run.alpha),
        epsilon_total=None if per_round is None else run.rounds * per_round,
        alpha_for_meaningful_total=privacy.alpha_for_budget(d, k, privacy.TOO_LARGE_TO_MEAN_MUCH, run.rounds),
    )


def record_meaning(run: RunManifest) -> str:
    """What the run asks of the silos for their training records, and what that would be worth."""
    epsilon, delta = run.record_epsilon_at_most, run.delta_at_most
    if epsilon is None or delta is None:
        return (
            "This run asks for no promise about training records: what one of them costs is each silo's own affair, and without "
            "[privacy] in a silo's settings its records have no guarantee."
        )
    worth = f"shifts an observer's odds on whether it was there {_factor(epsilon)}, except with that small probability"
    if epsilon > privacy.TOO_LARGE_TO_MEAN_MUCH:
        worth = f"is too large a bound to mean much, being above {privacy.TOO_LARGE_TO_MEAN_MUCH:g}"
    return (
        f"Every silo must promise, signed, that one of its training records never costs more than epsilon {epsilon:g} at delta "
        f"{delta:g}, which {worth}. A promise, not a proof."
    )


def _factor(epsilon: float) -> str:
    """Rounded up, as every figure of a loss is."""
    factor = math.exp(epsilon)
    return f"by a factor of {privacy.shown(factor, 1) if factor < 100 else f'{math.ceil(factor):,}'} at most"
