"""The rules a silo enforces itself, whatever the server says. Every refusal is a RefusedError and nothing is sent.

They hold against a server that lies about keys, mates, dropouts and outcomes, as long as at most c silos help it:
one proposal, consensus, submission, survivor set and reveal per round (rule 1, `Once`); who may be a mate (2); what U may be (3);
what may be revealed (4, counted in `thresholds`); how small a sum may get (5); rounds only go up (6); the silo's own policy (7).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedrep.errors import CryptoError, RefusedError
from fedrep.privacy import CoordinateRelease, Ledger, shown, sum_of
from fedrep.protocol.clip_range import is_range
from fedrep.protocol.manifests import (
    RecordPromise,
    RosterEntry,
    RoundManifest,
    RunManifest,
    SiloName,
    session_key_message,
)
from fedrep.protocol.messages import (
    Assignment,
    Consensus,
    Record,
    Signatures,
    SurvivorSet,
    confirmation_message,
    submission_message,
)
from fedrep.protocol.seats import SEED_BYTES, largest_seat, seats
from fedrep.protocol.thresholds import holders_in_common, least_min_survivors, share_threshold
from fedrep.secagg.keys import VerifyKey, check_agreement_public
from fedrep.secagg.masking import RING_BITS
from fedrep.secagg.pairs import RoundPairs
from fedrep.secagg.shamir import MAX_HOLDERS

STATEMENT_ROUNDS = 1000  # a silo remembers as many of the rounds in which it revealed, and says nothing about older ones


@dataclass(frozen=True, slots=True)
class PeerIdentity:
    """A certificate as the silo itself judged it against the federation's root. `problem` says why it is not usable."""

    name: SiloName
    role: str
    fingerprint: bytes
    verify_key: VerifyKey
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """What this silo's operator allows, whatever an admin signs."""

    smallest_roster: int = 3
    smallest_buffer: int = 2
    smallest_sum: int = 2
    least_alpha: float = 0.0
    epsilon_budget: float | None = None
    largest_fraction: float = 1.0
    ring_bits: tuple[int, ...] = RING_BITS
    smallest_range: float = 0.0
    allowed_runs: tuple[str, ...] | None = None
    expected_model_hash: bytes | None = None
    expected_layout_hash: bytes | None = None
    allow_drills: bool = False
    pinned_fingerprints: frozenset[bytes] | None = None
    pinned_admins: frozenset[bytes] | None = None
    least_epoch: int = 1
    whole_buffers: bool = False
    others_record_epsilon: float | None = None
    others_record_delta: float | None = None
    hours: tuple[int, int] | None = None

    def trains_at(self, hour: int) -> bool:
        """Hours may run over midnight, as in (22, 6)."""
        if self.hours is None:
            return True
        start, end = self.hours
        return start <= hour < end if start <= end else (hour >= start or hour < end)


@dataclass(slots=True)
class Once:
    """Rule 1: a step is taken once; a retry resends the bytes it already has."""

    taken: str | None = field(default=None)

    def take(self, what: str) -> None:
        if self.taken is not None:
            raise RefusedError(
                f"this silo has already gone on from here ({self.taken}); it does not {what} a second time in one round",
                reason="ONCE_PER_ROUND",
            )
        self.taken = what


def check_run(run: RunManifest, policy: Policy, silo: str, promise: RecordPromise | None = None) -> None:
    """Rules 5 and 7 for the run as a whole; all problems at once. `promise` is what this silo's own settings keep."""
    problems = _promise_problems(run, policy, promise)
    if silo not in run.silos:
        problems.append(f"the run does not list this silo ({silo})")
    if len(set(run.silos)) != len(run.silos) or len(run.silos) > MAX_HOLDERS:
        problems.append(f"the list of silos repeats a name or is longer than {MAX_HOLDERS}")
    if policy.allowed_runs is not None and run.name not in policy.allowed_runs:
        problems.append(f"run {run.name!r} is not among the runs this silo allows")
    if run.buffer_size < policy.smallest_buffer:
        problems.append(f"buffers of {run.buffer_size} are smaller than the {policy.smallest_buffer} this silo asks for")
    if run.colluders < 0 or run.byzantine < 0:
        problems.append("c and f cannot be negative")
    if run.min_survivors < policy.smallest_sum:
        problems.append(f"sums over {run.min_survivors} silos may be opened; this silo asks for at least {policy.smallest_sum}")
    if run.min_survivors < least_min_survivors(run.colluders):
        problems.append(
            f"min_survivors {run.min_survivors} with {run.colluders} colluders would show single values; "
            f"at least {least_min_survivors(run.colluders)} is needed"
        )
    if not policy.least_alpha <= run.alpha <= 1.0:  # written so that NaN is refused too
        problems.append(f"alpha {run.alpha} is not between the {policy.least_alpha} this silo asks for and 1")
    if run.coordinates > policy.largest_fraction * run.parameters:
        share = run.coordinates / run.parameters if run.parameters else float("inf")
        problems.append(f"K/d {share:.3g} is above the allowed {policy.largest_fraction}")
    if run.ring_bits not in policy.ring_bits:
        problems.append(f"a {run.ring_bits}-bit ring is not among the allowed {policy.ring_bits}")
    if not run.smallest_range >= policy.smallest_range:
        problems.append(f"the range may shrink to {run.smallest_range}, below the {policy.smallest_range} allowed")
    if policy.expected_model_hash is not None and run.model_hash != policy.expected_model_hash:
        problems.append("the initial model is not the one this silo expects")
    if policy.expected_layout_hash is not None and run.layout_hash != policy.expected_layout_hash:
        problems.append("the run's parameters, by name and shape, or its frozen weights are not those of this silo's model")
    if run.reshuffle_every < policy.least_epoch:
        problems.append(f"buffers are drawn anew every {run.reshuffle_every} rounds; this silo asks for {policy.least_epoch}")
    if len(run.buffer_seed) != SEED_BYTES:
        problems.append(f"the seed of the buffers has {len(run.buffer_seed)} bytes, not {SEED_BYTES}")
    elif not 1 <= run.buffer_size <= len(run.silos):
        problems.append(f"{len(run.silos)} silos do not fill a buffer of {run.buffer_size}")
    elif policy.whole_buffers and run.min_survivors < largest_seat(run):
        problems.append(
            f"sums over {run.min_survivors} of {largest_seat(run)} silos may be opened; this silo asks for whole buffers"
        )
    if run.drills and not policy.allow_drills:
        problems.append("the run allows attack drills, and this silo does not take part in drills (allow_drills)")
    if problems:
        raise RefusedError("run refused: " + "; ".join(problems), reason="RUN_OUTSIDE_POLICY")


def _promise_problems(run: RunManifest, policy: Policy, promise: RecordPromise | None) -> list[str]:
    """What this silo cannot promise about its records, and what its operator wants all others to promise about theirs."""
    problems = []
    if not run.is_met_by(promise):
        own = "this silo has no budget for records" if promise is None else f"this silo's budget is {promise}"
        problems.append(f"training on one record may cost at most {run.record_limit} in this run, and {own} ([privacy])")
    wanted = {
        "epsilon": (run.record_epsilon_at_most, policy.others_record_epsilon),
        "delta": (run.delta_at_most, policy.others_record_delta),
    }
    for what, (asked, limit) in wanted.items():
        if limit is not None and not (asked is not None and asked <= limit):
            said = "nothing" if asked is None else f"at most {asked!r}"
            problems.append(
                f"the run asks its silos to promise {said} as {what} of one training record; this silo wants all of them to "
                f"promise at most {limit!r} (others_record_{what})"
            )
    return problems


def check_round(
    manifest: RoundManifest,
    run: RunManifest,
    policy: Policy,
    *,
    silo: str,
    last_round: int,
    model_hash: bytes,
    peers: Mapping[SiloName, PeerIdentity],
    verified: set[RosterEntry] | None = None,
) -> None:
    """Rules 2, 5, 6 and 7 before a silo sends anything in a round.

    `verified` are entries whose signature this silo has checked, under this run and the same certificates; they are added to.
    """
    _check_round_number(manifest, run, last_round)
    _check_round_terms(manifest, run, policy, model_hash)
    if silo not in manifest.names:
        raise RefusedError(f"round {manifest.round} does not list this silo ({silo})", reason="NOT_IN_ROSTER")
    _check_roster(manifest, run, policy, peers, verified if verified is not None else set())


def _check_round_number(manifest: RoundManifest, run: RunManifest, last_round: int) -> None:
    if not max(run.from_round, 1) <= manifest.round <= run.rounds:
        raise RefusedError(
            f"round {manifest.round} is not among the rounds {max(run.from_round, 1)} to {run.rounds} that an admin signed",
            reason="ROUND_NOT_SIGNED",
        )
    if manifest.round <= last_round:
        raise RefusedError(
            f"round {manifest.round} is not later than round {last_round}, in which this silo already spoke",
            reason="ROUND_NOT_LATER",
        )


def _check_round_terms(manifest: RoundManifest, run: RunManifest, policy: Policy, model_hash: bytes) -> None:
    m = len(manifest.roster)
    problems = []
    fixed = {
        "run": (manifest.run, run.digest()),
        "d": (manifest.parameters, run.parameters),
        "K": (manifest.coordinates, run.coordinates),
        "alpha": (manifest.alpha, run.alpha),
        "buffer size": (manifest.buffer_size, run.buffer_size),
        "ring bits": (manifest.ring_bits, run.ring_bits),
        "value bits": (manifest.value_bits, run.value_bits),
        "f": (manifest.byzantine, run.byzantine),
    }
    problems += [f"{what} differs from the run manifest" for what, (here, there) in fixed.items() if here != there]
    if m < run.quorum:
        problems.append(f"a roster of {m} is smaller than the quorum of {run.quorum}")
    problems += [
        f"the {phase} deadline is shorter than signed"
        for phase in ("propose", "submit", "confirm", "reveal")
        if not getattr(manifest.deadlines, phase) >= getattr(run.deadlines, phase)
    ]
    if m < policy.smallest_roster:
        problems.append(f"a roster of {m} is smaller than the {policy.smallest_roster} this silo asks for")
    if m == 0 or manifest.per_silo != manifest.coordinates // m or manifest.per_silo < 1:
        problems.append("k is not floor(K/m)")
    if holders_in_common(m) <= run.colluders + run.byzantine:
        problems.append(
            f"with {m} silos two sets of {share_threshold(m)} holders may share only the {run.colluders} colluders and "
            f"{run.byzantine} attackers, so two different survivor sets could both be confirmed"
        )
    lowest = max(run.smallest_range, policy.smallest_range)
    if not (lowest <= manifest.clip_range <= run.largest_range):
        problems.append(f"range {manifest.clip_range:g} is outside {lowest:g}..{run.largest_range:g}")
    if not is_range(manifest.clip_range, run.initial_range):
        problems.append(f"range {manifest.clip_range:g} is not {run.initial_range:g} times a power of two")
    if manifest.model_hash != model_hash:
        problems.append("the model it starts from is not the one this silo holds")
    if problems:
        raise RefusedError(f"round {manifest.round} refused: " + "; ".join(problems), reason="ROUND_OUTSIDE_POLICY")


def _check_roster(
    manifest: RoundManifest,
    run: RunManifest,
    policy: Policy,
    peers: Mapping[SiloName, PeerIdentity],
    verified: set[RosterEntry],
) -> None:
    names = manifest.names
    if list(names) != sorted(set(names), key=str.encode):
        raise RefusedError("the roster repeats a name or is not in bytewise order", reason="BAD_ROSTER")
    seen_keys: set[bytes] = set()
    for entry in manifest.roster:
        peer = peers.get(entry.name)
        if entry.name not in run.silos:
            raise _bad_member(entry.name, "is not on the run's list of silos")
        if peer is None or peer.name != entry.name or peer.fingerprint != entry.fingerprint:
            raise _bad_member(entry.name, "has no certificate that fits the manifest")
        if peer.problem is not None:
            raise _bad_member(entry.name, peer.problem)
        if peer.role != "silo":
            raise _bad_member(entry.name, f"has a certificate of role {peer.role!r}; only silos may be mates or holders")
        if policy.pinned_fingerprints is not None and entry.fingerprint not in policy.pinned_fingerprints:
            raise _bad_member(entry.name, "is not in this silo's pinned roster file")
        if peer.verify_key.encoded in seen_keys:
            raise _bad_member(entry.name, "shares its key with another member")
        seen_keys.add(peer.verify_key.encoded)
        if entry not in verified:  # the fingerprint in it is that of the key that signed
            try:
                check_agreement_public(entry.session_key)
                message = session_key_message(manifest.run, entry.session_key, entry.promise)
                peer.verify_key.verify(entry.session_signature, message)
            except CryptoError as error:
                raise _bad_member(entry.name, f"has an unusable session key or promise ({error})") from error
            verified.add(entry)
        if not run.is_met_by(entry.promise):
            said = "nothing" if entry.promise is None else str(entry.promise)
            raise _bad_member(entry.name, f"promises {said} about its records, and the run asks for {run.record_limit}")


def _bad_member(name: str, why: str) -> RefusedError:
    return RefusedError(f"roster member {name!r} {why}; this silo does not take part in the round", reason="BAD_ROSTER")


def check_epsilon(manifest: RoundManifest, ledger: Ledger, policy: Policy, elsewhere: float | None = 0.0) -> None:
    """Rule 7, the budget: refuse before the charge would exceed it. No guarantee (alpha = 0) exceeds every budget.

    The budget is the data set's: `elsewhere` is what other runs over it have cost.
    """
    release = CoordinateRelease(manifest.round, manifest.parameters, manifest.per_silo, manifest.alpha)
    if ledger.allows(release, policy.epsilon_budget, elsewhere):
        return
    price = "no finite epsilon (alpha = 0)" if release.epsilon is None else f"epsilon {shown(release.epsilon)}"
    total = sum_of(ledger.total, elsewhere)
    spent = "no guarantee is left" if total is None else f"{shown(total)} is spent"
    raise RefusedError(
        f"a proposal costs {price}; {spent} of a budget of {policy.epsilon_budget:g}. This silo stops taking part; "
        "raise epsilon_budget in its policy to go on",
        reason="EPSILON_BUDGET",
    )


def check_consensus(
    consensus: Consensus,
    manifest: RoundManifest,
    run: RunManifest,
    indices: NDArray[np.int64],
) -> None:
    """Rule 2 and N4 for everyone who confirms: roster names only, each in its seat, and no more coordinates than asked for."""
    if (consensus.run, consensus.round) != (manifest.run, manifest.round):
        raise RefusedError("the consensus belongs to another round", reason="WRONG_ROUND")
    if indices.size > len(manifest.roster) * manifest.per_silo:
        raise RefusedError(f"|I| = {indices.size} exceeds m k", reason="CONSENSUS_TOO_LARGE")
    assigned = [place.silo for buffer in consensus.assignment for place in buffer]
    if len(set(assigned)) != len(assigned) or not set(assigned) <= set(manifest.names):
        raise RefusedError("the assignment names a silo twice or one outside the roster", reason="BAD_ASSIGNMENT")
    fixed = seats(run, manifest.round)
    shown = [[place.silo for place in buffer] for buffer in consensus.assignment]
    if len(shown) != len(fixed) or any(
        names != [name for name in seat if name in names] for names, seat in zip(shown, fixed, strict=True)
    ):
        raise RefusedError("the assignment is not the seats that the run's seed gives for this epoch", reason="WRONG_SEATS")


def check_own_place(
    consensus: Consensus,
    run: RunManifest,
    record: Record,
    proposed: NDArray[np.int64],
    indices: NDArray[np.int64],
    c1: bytes,
    peers: Mapping[SiloName, PeerIdentity],
) -> int | None:
    """Rule 2 before submitting: the own buffer's index, if its members and the consensus are what this silo agreed to.

    None if its proposal was not taken, or too few of the buffer proposed: this silo goes on as a holder, and sends no values.
    """
    place = _own_place(consensus.assignment, record.silo)
    if place is None:
        return None
    if not np.array_equal(np.take(indices, np.searchsorted(indices, proposed), mode="clip"), proposed):
        raise RefusedError("the consensus leaves out coordinates this silo proposed", reason="PROPOSAL_LEFT_OUT")
    buffer = consensus.assignment[place]
    stands = next(member for member in buffer if member.silo == record.silo)
    if stands.record_digest != record.digest(c1):
        raise RefusedError("the assignment shows another record than this silo's own", reason="RECORD_CHANGED")
    if len(buffer) < max(run.min_survivors, 2):
        return None
    _check_mates(consensus, place, record.silo, c1, peers)
    return place


def _own_place(assignment: Assignment, silo: SiloName) -> int | None:
    return next((number for number, buffer in enumerate(assignment) if any(member.silo == silo for member in buffer)), None)


def _check_mates(consensus: Consensus, place: int, own: SiloName, c1: bytes, peers: Mapping[SiloName, PeerIdentity]) -> None:
    records = {record.silo: record for record in consensus.mates}
    for member in consensus.assignment[place]:
        if member.silo == own:
            continue
        record = records.get(member.silo)
        if record is None or record.digest(c1) != member.record_digest:
            raise RefusedError(f"mate {member.silo!r} has no record that fits the assignment", reason="BAD_MATE")
        try:
            peers[member.silo].verify_key.verify(record.signature, record.digest(c1))
            check_agreement_public(record.mask_key)
        except CryptoError as error:
            raise RefusedError(f"mate {member.silo!r}: {error}", reason="BAD_MATE") from error


def check_survivors(
    survivors: SurvivorSet,
    assignment: Assignment,
    c2: bytes,
    peers: Mapping[SiloName, PeerIdentity],
    pairs: RoundPairs | None = None,
) -> None:
    """Rule 3: sign U only if every survivor is in its buffer and signed its submission under this silo's own C2.

    With `pairs`, what a survivor vouched for to this very silo needs no look at its signature.
    """
    if len(survivors.buffers) != len(assignment):
        raise RefusedError("U has another number of buffers than the assignment", reason="BAD_SURVIVORS")
    macs = iter(survivors.macs)
    for places, listed in zip(assignment, survivors.buffers, strict=True):
        members = {place.silo for place in places}
        names = [survivor.silo for survivor in listed]
        if len(set(names)) != len(names) or not set(names) <= members:
            raise RefusedError("U names a silo twice or outside its buffer", reason="BAD_SURVIVORS")
        for survivor in listed:
            message = submission_message(c2, survivor.silo)
            if pairs is not None and pairs.vouched(survivor.silo, next(macs, b""), message):
                continue
            try:
                peers[survivor.silo].verify_key.verify(survivor.signature, message)
            except CryptoError as error:
                raise RefusedError(
                    f"survivor {survivor.silo!r} did not sign its submission under this silo's consensus",
                    reason="BAD_SURVIVORS",
                ) from error


def count_confirmations(
    signatures: Signatures,
    c2: bytes,
    survivors: SurvivorSet,
    holders: Mapping[SiloName, VerifyKey],
    enough: int,
    macs: Sequence[bytes] = (),
    pairs: RoundPairs | None = None,
) -> int:
    """How many distinct roster holders validly signed exactly this (C2, U); counting ends at `enough`.

    `macs` stand beside the signatures: what a holder vouched for to this very silo counts without a look at its signature.
    """
    message = confirmation_message(c2, survivors)
    valid: set[SiloName] = set()
    unproven: list[tuple[SiloName, bytes]] = []
    for number, (name, signature) in enumerate(signatures):
        mac = macs[number] if number < len(macs) else b""
        if pairs is not None and name in holders and pairs.vouched(name, mac, message):
            valid.add(name)
        else:
            unproven.append((name, signature))
    for name, signature in unproven:
        if len(valid) >= enough:
            break
        key = holders.get(name)
        if key is None or name in valid:
            continue
        try:
            key.verify(signature, message)
        except CryptoError:
            continue
        valid.add(name)
    return len(valid)


def may_state(round_number: int, *, last_round: int, revealed: Collection[int]) -> bool:
    """Rule 6: whether this holder may state that it revealed nothing in a round. "Renounced" is on disk before it is sent.

    `revealed` names every such round among the last STATEMENT_ROUNDS. About older ones a silo says nothing: it may have
    forgotten, and a false statement lets others send values again that were opened.
    """
    return last_round - STATEMENT_ROUNDS < round_number <= last_round and round_number not in revealed
