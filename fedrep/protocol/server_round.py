"""One round on the server as an event machine: `receive(event) -> effects`, nothing else moves it.

Validate, then mutate: an event that is refused raises and leaves the round as it was. Time arrives as `DeadlinePassed`;
randomness and the previous rounds' knowledge are handed in. The silos' privacy does not rest on this file but on `silo_rules`;
what rests here is that one silo can spoil its own buffer and never a round.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrep.coding import encode_coordinates
from fedrep.errors import ConflictError, FedrepError, OutOfPhaseError
from fedrep.protocol.attendance import RoundReport
from fedrep.protocol.clip_range import RangeBits
from fedrep.protocol.manifests import RoundManifest, RunManifest, SiloName
from fedrep.protocol.messages import (
    Aborted,
    Abstention,
    Assigned,
    Assignment,
    Away,
    Back,
    Confirmation,
    Consensus,
    DeadlinePassed,
    Event,
    Outcome,
    Phase,
    Proposal,
    Reveal,
    Secret,
    Signatures,
    Submission,
    Survivor,
    SurvivorSet,
    consensus_context,
)
from fedrep.protocol.opening import Combined, combine_buffers, masks_left_in_sum, open_buffer, why_skipped
from fedrep.protocol.round_effects import Effect, Noted, PhaseStarted, RoundEnded, RoundResult
from fedrep.protocol.seats import seats
from fedrep.protocol.server_rules import (
    check_abstention,
    check_confirmation,
    check_header,
    check_member,
    check_proposal,
    check_reveal,
    check_submission,
)
from fedrep.protocol.share_book import ShareBook
from fedrep.protocol.thresholds import buffers_needed, openable_buffers
from fedrep.secagg.keys import VerifyKey
from fedrep.secagg.pairs import MAC_BYTES
from fedrep.sparsify import union

NAMED = 8  # dealers that a line about a reveal names


class ServerRound:
    """From the first proposal to the outcome. `rng` feeds rules that draw."""

    def __init__(
        self,
        run: RunManifest,
        manifest: RoundManifest,
        verify_keys: Mapping[SiloName, VerifyKey],
        rng: np.random.Generator,
    ) -> None:
        self.run = run
        self.manifest = manifest
        self.c1 = manifest.context()
        self.phase = Phase.PROPOSE
        self.result: RoundResult | None = None
        self._keys = verify_keys
        self._rng = rng
        self._numbers = {name: number for number, name in enumerate(manifest.names, start=1)}
        self._proposals: dict[SiloName, Proposal] = {}
        self._abstentions: dict[SiloName, Abstention] = {}
        self._indices: dict[SiloName, NDArray[np.int64]] = {}
        self._assignment: Assignment = ()
        self._seat: dict[SiloName, int] = {}
        self._place: dict[SiloName, int] = {}
        self._missed: frozenset[SiloName] = frozenset()
        self._consensus: NDArray[np.int64] = np.empty(0, np.int64)
        self._coordinates = b""
        self._c2 = b""
        self._sums: dict[int, NDArray[np.unsignedinteger]] = {}
        self._submitted: dict[SiloName, tuple[bytes, bytes, bytes]] = {}
        self._survivors: SurvivorSet | None = None
        self._confirmations: dict[SiloName, Confirmation] = {}
        self._reveals: dict[SiloName, Reveal] = {}
        self._book = ShareBook(self._proposals, manifest.threshold)
        self._due: dict[SiloName, Secret] = {}
        self._held: tuple[tuple[tuple[SiloName, bytes], ...], ...] = ()
        self._discarded: dict[int, str] = {}
        self._aborted = False
        self._away: dict[SiloName, Away] = {}

    def receive(self, event: Event) -> list[Effect]:
        if any(isinstance(event, row.events) and row.when(self, event) for row in IGNORED):
            return []
        row = TRANSITIONS.get((self.phase, type(event)))
        if row is None:
            raise OutOfPhaseError(f"{type(event).__name__} arrived during {self.phase.name}")
        effects = row.action(self, event)
        if isinstance(event, Proposal | Abstention | Submission | Confirmation | Reveal):
            self._return(event.silo)  # it was accepted: whoever speaks is here
        return effects

    @property
    def proposed(self) -> frozenset[SiloName]:
        return frozenset(self._proposals)

    @property
    def abstained(self) -> frozenset[SiloName]:
        return frozenset(self._abstentions)

    @property
    def away(self) -> Mapping[SiloName, Away]:
        """Silos of the roster that are waited for no longer."""
        return self._away

    def waits_for(self, silo: SiloName) -> bool:
        """Whether this silo could still answer in this phase, and its answer could change anything."""
        if silo in self._away:
            return False
        match self.phase:
            case Phase.PROPOSE:
                return silo in self._numbers and silo not in self._proposals and silo not in self._abstentions
            case Phase.SUBMIT:
                return silo in self._place and silo not in self._submitted
            case Phase.CONFIRM:
                return silo in self._numbers and silo not in self._confirmations
            case Phase.REVEAL:
                return silo in self._numbers and silo not in self._reveals
            case Phase.DONE:
                return False

    def waited_for(self) -> tuple[SiloName, ...]:
        wanted: Iterable[SiloName] = self._place if self.phase is Phase.SUBMIT else self._numbers
        return tuple(name for name in wanted if self.waits_for(name))

    def waits(self) -> bool:
        """Whether anybody is waited for: every message asks, and mostly one of the first names is the answer."""
        return any(self.waits_for(name) for name in self._numbers)

    def proposed_coordinates(self) -> dict[SiloName, bytes]:
        """A hash of each proposer's I_k."""
        return {name: hashlib.sha256(proposal.coordinates).digest() for name, proposal in self._proposals.items()}

    def consensus_for(self, silo: SiloName) -> Consensus:
        """What this silo may see: every place, but only its own mates' records and the shares sealed to it."""
        check_member(silo, self.manifest)
        if not self._assignment:
            raise OutOfPhaseError("no consensus yet in this round")
        number = self._numbers[silo] - 1
        place = self._seat.get(silo)
        mates = (
            ()
            if place is None
            else tuple(self._proposals[mate.silo].record for mate in self._assignment[place] if mate.silo != silo)
        )
        return Consensus(self.manifest.run, self.manifest.round, self._coordinates, self._assignment, mates, self._held[number])

    def _by_holder(self) -> tuple[tuple[tuple[SiloName, bytes], ...], ...]:
        """What each holder is sent of every dealer: worked out once for all of them."""
        dealers = tuple(member.silo for buffer in self._assignment for member in buffer)
        columns = zip(*(self._proposals[dealer].sealed_shares for dealer in dealers), strict=True)
        return tuple(tuple(zip(dealers, column, strict=True)) for column in columns)

    def survivors(self) -> SurvivorSet:
        if self._survivors is None:
            raise OutOfPhaseError("the survivors of this round are not fixed")
        return self._survivors

    def survivors_for(self, silo: SiloName) -> SurvivorSet:
        """With what each of them vouched for to this silo."""
        check_member(silo, self.manifest)
        survivors = self.survivors()
        vouched = [self._submitted[survivor.silo][2] for buffer in survivors.buffers for survivor in buffer]
        return replace(survivors, macs=self._column(vouched, silo))

    def confirmations(self) -> Signatures:
        return tuple((name, self._confirmations[name].signature) for name in sorted(self._confirmations))

    def confirmations_for(self, silo: SiloName) -> tuple[Signatures, tuple[bytes, ...]]:
        """As many as it needs beside its own, with what each of them vouched for to this silo."""
        check_member(silo, self.manifest)
        others = sorted(self._confirmations.keys() - {silo})
        needed = self.manifest.threshold - (silo in self._confirmations)
        given = [self._confirmations[name] for name in others[:needed]]
        return tuple((each.silo, each.signature) for each in given), self._column((each.macs for each in given), silo)

    def _column(self, macs: Iterable[bytes], silo: SiloName) -> tuple[bytes, ...]:
        start = (self._numbers[silo] - 1) * MAC_BYTES
        end = start + MAC_BYTES
        return tuple([each[start:end] for each in macs])

    def _is_late_timer(self, event: DeadlinePassed) -> bool:
        return event.phase is not self.phase or self.phase is Phase.DONE

    def _is_resend(self, event: Proposal | Abstention | Submission | Confirmation | Reveal) -> bool:
        """Whether the same bytes were accepted before; a conflicting message is refused, whatever the phase."""
        check_header(event, self.manifest)
        before: object
        now: object
        match event:
            case Proposal() | Abstention():
                before, now = self._proposals.get(event.silo) or self._abstentions.get(event.silo), event
            case Submission():
                before = self._submitted.get(event.silo)
                now = _submission_key(event) if before is not None else None  # a hash of all its values
            case Confirmation():
                before, now = self._confirmations.get(event.silo), event
            case Reveal():
                before, now = self._reveals.get(event.silo), event
        if before is not None and before != now:
            raise ConflictError(f"{event.silo!r} already sent another {type(event).__name__} in this round")
        return before is not None

    def _add_proposal(self, proposal: Proposal) -> list[Effect]:
        indices = check_proposal(proposal, self.manifest, self.c1, self._keys)
        self._proposals[proposal.silo] = proposal
        self._indices[proposal.silo] = indices
        return self._when_all_have_answered()

    def _add_abstention(self, abstention: Abstention) -> list[Effect]:
        check_abstention(abstention, self.manifest, self._keys)
        self._abstentions[abstention.silo] = abstention
        return self._when_all_have_answered()

    def _when_all_have_answered(self) -> list[Effect]:
        everyone = len(self._proposals) + len(self._abstentions) == len(self._numbers)
        return self._fix_consensus() if everyone else []

    def _unheard(self) -> list[SiloName]:
        return [name for name in self._numbers if name not in self._proposals and name not in self._abstentions]

    def _part(self, event: Away) -> list[Effect]:
        check_member(event.silo, self.manifest)
        before = self._away.get(event.silo)
        if before is None or not before.for_good:
            self._away[event.silo] = event
        return []

    def _take_back(self, event: Back) -> list[Effect]:
        check_member(event.silo, self.manifest)
        self._return(event.silo)
        return []

    def _return(self, silo: SiloName) -> None:
        if silo in self._away and not self._away[silo].for_good:
            del self._away[silo]

    def _end_proposing(self, event: DeadlinePassed) -> list[Effect]:
        return self._fix_consensus(spared=self.waited_for() if event.cut else ())

    def _fix_consensus(self, spared: Collection[SiloName] = ()) -> list[Effect]:
        """The seats of this epoch, restricted to the proposers. Who sits with too few of them is a holder only.

        `spared` were given less time than the run grants: they are late, and it is no miss.
        """
        late = sorted(self._unheard())
        self._missed = frozenset(late) - frozenset(spared)
        notes: list[Effect] = [Noted("late", f"{name} did not propose{self._why(name, ' in time')}", name) for name in late]
        proposed = [[name for name in seat if name in self._proposals] for seat in seats(self.run, self.manifest.round)]
        openable = openable_buffers(proposed, self.run.min_survivors, self.run.byzantine)
        if not openable:
            needed = buffers_needed(self.run.byzantine)
            reason = f"{len(self._proposals)} silos proposed: fewer than {needed} buffers have {self.run.min_survivors} of them"
            return [*notes, *self._end(Outcome.SKIPPED, reason)]
        if reason := why_skipped(self.run, len(openable)):
            return [*notes, *self._end(Outcome.SKIPPED, f"{len(self._proposals)} silos proposed: {reason}")]
        self._assignment = tuple(
            tuple(Assigned(name, self._proposals[name].record.digest(self.c1)) for name in buffer) for buffer in proposed
        )
        self._seat = {place.silo: n for n, buffer in enumerate(self._assignment) for place in buffer}
        self._place = {name: n for name, n in self._seat.items() if n in openable}
        self._held = self._by_holder()
        self._consensus = union(self._indices.values())
        self._indices = {}
        self._coordinates = encode_coordinates(self._consensus, self.manifest.parameters)
        self._c2 = consensus_context(self.c1, self._coordinates, self._assignment)
        return [*notes, *self._start(Phase.SUBMIT)]

    def _why(self, silo: SiloName, otherwise: str = "") -> str:
        return f": it {self._away[silo].why}" if silo in self._away else otherwise

    def _add_submission(self, submission: Submission) -> list[Effect]:
        place = self._place.get(submission.silo)
        if place is None:
            raise OutOfPhaseError(
                f"{submission.silo!r} did not propose in this round, or too few of its buffer did", reason="NOT_ASSIGNED"
            )
        values = check_submission(submission, self.manifest, self._consensus.size, self._c2, self._keys)
        if place in self._sums:
            np.add(self._sums[place], values, out=self._sums[place])
        else:
            self._sums[place] = values.copy()
        self._submitted[submission.silo] = _submission_key(submission)
        return self._fix_survivors() if len(self._submitted) == len(self._place) else []

    def _fix_survivors(self) -> list[Effect]:
        self._survivors = SurvivorSet(
            tuple(
                tuple(Survivor(place.silo, self._submitted[place.silo][1]) for place in buffer if place.silo in self._submitted)
                for buffer in self._assignment
            )
        )
        gone = [name for name in self._place if name not in self._submitted]
        notes: list[Effect] = [Noted("dropped", f"{name} proposed but did not submit{self._why(name)}", name) for name in gone]
        for number, buffer in enumerate(self._survivors.buffers):
            if len(buffer) < self.run.min_survivors:
                self._discarded[number] = f"{len(buffer)} survivors, fewer than {self.run.min_survivors}"
        left = self._openable()
        if left and (reason := why_skipped(self.run, len(left))):  # signed, this U would count as opened, and values be lost
            return [*notes, *self._end(Outcome.SKIPPED, reason)]
        return [*notes, *self._start(Phase.CONFIRM)]

    def _keep_confirmation(self, confirmation: Confirmation) -> list[Effect]:
        check_confirmation(confirmation, self.manifest, self._c2, self.survivors(), self._keys)
        self._confirmations[confirmation.silo] = confirmation
        return []

    def _add_confirmation(self, confirmation: Confirmation) -> list[Effect]:
        self._keep_confirmation(confirmation)
        return self._end_confirming() if len(self._confirmations) >= self.manifest.threshold else []

    def _end_unconfirmed(self) -> list[Effect]:
        reason = f"{len(self._confirmations)} holders confirmed the survivors, {self.manifest.threshold} are needed"
        return self._end(Outcome.SKIPPED, reason)

    def _end_confirming(self) -> list[Effect]:
        """U is signed even when nothing can be opened: those signatures let silos take their values back."""
        if not self._openable():
            reason = f"fewer than {buffers_needed(self.run.byzantine)} buffers kept {self.run.min_survivors} survivors"
            return self._end(Outcome.SKIPPED, reason)
        self._due = self._wanted(*self._openable())
        return self._start(Phase.REVEAL)

    def _openable(self) -> frozenset[int]:
        return openable_buffers(self.survivors().buffers, self.run.min_survivors, self.run.byzantine)

    def _wanted(self, *numbers: int) -> dict[SiloName, Secret]:
        """The one secret that may be known of each proposer in these buffers."""
        return {
            place.silo: Secret.SEED if place.silo in self._submitted else Secret.KEY
            for number in numbers
            for place in self._assignment[number]
        }

    def _add_reveal(self, reveal: Reveal) -> list[Effect]:
        wanted = self._due
        check_reveal(reveal, wanted)
        self._reveals[reveal.silo] = reveal
        lacking = self._book.add(reveal, self._numbers[reveal.silo], wanted)
        notes: list[Effect] = []
        if lacking:  # one line, however many: a reveal of nothing costs its sender nothing
            more = f" and {len(lacking) - NAMED} more" if len(lacking) > NAMED else ""
            text = f"{reveal.silo} has no matching share of {', '.join(lacking[:NAMED])}{more}"
            notes.append(Noted("share", text, reveal.silo))
        if self._book.suffices(wanted) or len(self._reveals) == len(self._numbers):
            return [*notes, *self._open()]
        return notes

    def _open(self) -> list[Effect]:
        notes: list[Effect] = []
        means: dict[int, NDArray[np.float32]] = {}
        for number in sorted(self._openable()):
            names = [survivor.silo for survivor in self.survivors().buffers[number]]
            try:
                recovered = self._book.recover(self._wanted(number))
                masks = masks_left_in_sum(number, names, recovered, self._proposals, self._c2)
                means[number] = open_buffer(self._sums.pop(number), masks, len(names), self.manifest)
            except FedrepError as error:
                self._discarded[number] = str(error)
                notes.append(Noted("discarded", f"buffer {number} was discarded: {error}", severity="alert"))
        needed = buffers_needed(self.run.byzantine)
        if len(means) < needed:
            return [*notes, *self._end(Outcome.SKIPPED, f"{len(means)} buffers could be opened, {needed} are needed")]
        try:
            combined = combine_buffers(
                means,
                self.survivors(),
                self.run.aggregator,
                self.run.aggregator_settings,
                self.run.byzantine,
                self._rng,
            )
        except FedrepError as error:
            return [*notes, *self._end(Outcome.SKIPPED, f"the aggregator refused: {error}")]
        notes += [Noted("aggregator", note) for note in combined.notes]
        notes += self._slack_note(len(means), combined.byzantine)
        return [*notes, *self._end(Outcome.APPLIED, "", combined, tuple(sorted(means)))]

    def _slack_note(self, opened: int, tolerated: int) -> list[Effect]:
        if tolerated >= self.run.byzantine:
            return []
        return [
            Noted(
                "robustness",
                f"{opened} buffers opened: the rule withstands {tolerated} bad ones, not f = {self.run.byzantine}; "
                "robustness now rests on the missing silos being the Byzantine ones",
                severity="alert",
            )
        ]

    def _abort(self, event: Aborted) -> list[Effect]:
        self._aborted = True
        return self._end(Outcome.SKIPPED, event.reason)

    def _start(self, phase: Phase) -> list[Effect]:
        self.phase = phase
        return [PhaseStarted(phase)]

    def _end(self, outcome: Outcome, reason: str, combined: Combined | None = None, opened: tuple[int, ...] = ()) -> list[Effect]:
        report = self._report()
        self.phase = Phase.DONE
        self.result = RoundResult(
            outcome,
            reason,
            self._consensus,
            self._coordinates,
            self._survivors,
            self.confirmations(),
            opened,
            combined,
            report,
            self._assignment,
            dict(self._discarded),
            self.proposed_coordinates(),
            {name: RangeBits(proposal.clips, proposal.quiet) for name, proposal in self._proposals.items()},
        )
        self._sums = {}
        self._book.forget()
        return [RoundEnded(self.result)]

    def _report(self) -> RoundReport:
        """Who let a buffer down. A round that closes early accuses nobody of what it did not wait for."""
        failed = frozenset(self._book.bad_dealers(self.run.byzantine))
        missed = set(self._missed)
        if self._survivors is not None:
            missed |= self._place.keys() - self._submitted.keys()
        if self.phase is Phase.REVEAL and not self._aborted and not self._book.suffices(self._due):
            missed |= self._submitted.keys() - self._reveals.keys()
        spoken = self._proposals.keys() | self._abstentions.keys() | self._submitted.keys()
        heard = spoken | self._confirmations.keys() | self._reveals.keys()
        answered = frozenset(self._numbers if self._aborted else heard)
        next_keys = {name: (p.record.next_session_key, p.next_session_signature) for name, p in self._proposals.items()}
        next_keys |= {name: (a.next_session_key, a.next_session_signature) for name, a in self._abstentions.items()}
        complete = frozenset(self._submitted.keys() - failed - missed)
        return RoundReport(
            self.manifest.names, answered, complete, failed, frozenset(missed), next_keys, frozenset(self._abstentions)
        )


def _submission_key(submission: Submission) -> tuple[bytes, bytes, bytes]:
    """What stands for a submission once its values went into the sum."""
    return submission.sha256 or hashlib.sha256(submission.masked).digest(), submission.signature, submission.macs


@dataclass(frozen=True, slots=True)
class Transition:
    """`to` names every phase that the action may leave the round in."""

    to: tuple[Phase, ...]
    action: Callable[[ServerRound, Any], list[Effect]]


# Every way through a round. What stands neither here nor in IGNORED is refused with OutOfPhaseError, and changes nothing.
# docs/protocol.md draws its diagram from this table.
TRANSITIONS: dict[tuple[Phase, type[Event]], Transition] = {
    (Phase.PROPOSE, Proposal): Transition((Phase.PROPOSE, Phase.SUBMIT, Phase.DONE), ServerRound._add_proposal),
    (Phase.PROPOSE, Abstention): Transition((Phase.PROPOSE, Phase.SUBMIT, Phase.DONE), ServerRound._add_abstention),
    (Phase.PROPOSE, DeadlinePassed): Transition((Phase.SUBMIT, Phase.DONE), ServerRound._end_proposing),
    (Phase.PROPOSE, Aborted): Transition((Phase.DONE,), ServerRound._abort),
    (Phase.SUBMIT, Submission): Transition((Phase.SUBMIT, Phase.CONFIRM), ServerRound._add_submission),
    (Phase.SUBMIT, DeadlinePassed): Transition((Phase.CONFIRM,), lambda round, _: round._fix_survivors()),
    (Phase.SUBMIT, Aborted): Transition((Phase.DONE,), ServerRound._abort),
    (Phase.CONFIRM, Confirmation): Transition((Phase.CONFIRM, Phase.REVEAL, Phase.DONE), ServerRound._add_confirmation),
    (Phase.CONFIRM, DeadlinePassed): Transition((Phase.DONE,), lambda round, _: round._end_unconfirmed()),
    (Phase.CONFIRM, Aborted): Transition((Phase.DONE,), ServerRound._abort),
    (Phase.REVEAL, Confirmation): Transition((Phase.REVEAL,), ServerRound._keep_confirmation),
    (Phase.REVEAL, Reveal): Transition((Phase.REVEAL, Phase.DONE), ServerRound._add_reveal),
    (Phase.REVEAL, DeadlinePassed): Transition((Phase.DONE,), lambda round, _: round._open()),
    (Phase.REVEAL, Aborted): Transition((Phase.DONE,), ServerRound._abort),
} | {
    # Who is away ends no phase by itself: the run says that time is over once `waited_for` is empty.
    (phase, event): Transition((phase,), action)
    for phase in (Phase.PROPOSE, Phase.SUBMIT, Phase.CONFIRM, Phase.REVEAL)
    for event, action in ((Away, ServerRound._part), (Back, ServerRound._take_back))
}


@dataclass(frozen=True, slots=True)
class Ignored:
    """Events that are accepted in every phase, and change nothing, when `when` holds."""

    events: tuple[type[Event], ...]
    when: Callable[[ServerRound, Any], bool]
    words: str


IGNORED = (
    Ignored((Proposal, Abstention, Submission, Confirmation, Reveal), ServerRound._is_resend, "sent again with the same bytes"),
    Ignored((DeadlinePassed,), ServerRound._is_late_timer, "of another phase"),
    Ignored((Away, Back), lambda round, _: round.phase is Phase.DONE, "of a round that is over"),
)
