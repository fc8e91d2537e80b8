"""The silo's table is complete and sound: every action exists, every phase is reached, every listed next phase is really taken.

Plays of whole federations take most of it; what honest servers and careful silos do not do is played by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from fedrep.errors import OutOfPhaseError, RefusedError, UnknownSiloError
from fedrep.protocol.messages import Abstention, Confirmation, Phase, Proposal, Reveal, Submission, SurvivorSet
from fedrep.protocol.silo_effects import (
    Accepted,
    Answered,
    Certificates,
    Concluded,
    Confirmations,
    Effect,
    Event,
    FetchedModel,
    GetCertificates,
    GetConsensus,
    GetModel,
    GetSurvivors,
    GetUpdate,
    Join,
    Joined,
    Moment,
    Refusal,
    Trained,
    TrainingFailed,
    TrainingRefused,
)
from fedrep.protocol.silo_machine import SiloMachine
from fedrep.protocol.silo_rules import Policy
from fedrep.protocol.silo_table import GO_ON, IN_ROUND, TABLE
from fedrep.protocol.silo_table import Phase as SiloPhase
from tests.protocol.federation import Federation, Silo
from tests.protocol.lying_server import outcome, seated
from tests.protocol.test_kill_anywhere import STORIES, told
from tests.protocol.test_one_model import serve

P = SiloPhase
Edge = tuple[SiloPhase, type, SiloPhase]
NO = Refusal(OutOfPhaseError("not now"))
NEVER = Policy(hours=(6, 7))

# What no play takes, and why it is listed all the same.
NOT_PLAYED: dict[Edge, str] = {
    **{
        (phase, event, P.CONCLUDING): "a rule that refuses what the silo itself has made; none is known that does"
        for phase, event in ((P.SETTLING, Concluded), (P.SETTLING, Refusal), (P.TRAINING, Trained))
    },
    (P.FETCHING, FetchedModel, P.PROPOSING): "a training that is left over from the very version that an admin orders again",
    (
        P.SETTLING,
        Refusal,
        P.PROPOSING,
    ): "a training left over from one round of a version, and values sent in another",
}


@contextmanager
def watched() -> Iterator[set[Edge]]:
    taken: set[Edge] = set()
    original = SiloMachine.receive

    def receive(machine: SiloMachine, event: Event, at: Moment) -> list[Effect]:
        before = machine.phase
        content = event.answer if isinstance(event, Answered) else event
        waited_for = not isinstance(event, Answered) or any(event.request is each for each in machine._open)
        effects = original(machine, event, at)
        if waited_for and (before, type(content)) in TABLE:
            taken.add((before, type(content), machine.phase))
        return effects

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SiloMachine, "receive", receive)
        yield taken


@pytest.fixture(scope="module")
def taken() -> set[Edge]:
    with watched() as edges:
        for story in STORIES.values():
            for fuse in (None, *range(0, 90, 10)):
                told(fuse, story, last_words=fuse is not None and fuse % 2 == 0)
        for scene in SCENES:
            scene()
    return edges


def test_every_action_is_a_method_of_the_machine_and_every_phase_but_the_last_goes_on() -> None:
    for row in TABLE.values():
        assert callable(getattr(SiloMachine, row.action)), row.action
    assert {phase for phase, _ in TABLE} == set(P) - {P.ENDED}


def test_every_phase_can_be_reached_and_left_for_the_end() -> None:
    after: dict[SiloPhase, set[SiloPhase]] = {phase: set() for phase in P}
    for (phase, _), row in TABLE.items():
        after[phase] |= set(row.to)

    def reachable(start: SiloPhase) -> set[SiloPhase]:
        seen, found = {start}, [start]
        while found:
            new = after[found.pop()] - seen
            seen |= new
            found += new
        return seen

    assert reachable(P.OUTSIDE) == set(P)
    assert all(P.ENDED in reachable(phase) for phase in P)


def test_whatever_a_silo_waits_for_in_a_round_may_be_refused() -> None:
    assert {phase for phase in IN_ROUND if (phase, Refusal) not in TABLE} == set()


def test_no_row_lists_a_phase_twice() -> None:
    assert [key for key, row in TABLE.items() if len(set(row.to)) != len(row.to)] == []


def test_every_listed_phase_is_taken_in_a_play_or_has_its_reason(taken: set[Edge]) -> None:
    """Rows that go on to whatever comes next share where that leads: each of those phases is taken from one row at least."""
    listed = {(phase, event, to) for (phase, event), row in TABLE.items() for to in row.to}
    assert taken <= listed
    going_on = [key for key, row in TABLE.items() if set(row.to) >= set(GO_ON)]
    assert set(GO_ON) <= {to for phase, event, to in taken if (phase, event) in going_on}
    shared = {(*key, to) for key in going_on for to in GO_ON}
    assert listed - taken - shared == NOT_PLAYED.keys()


def everyone_knows_each_other(**changes: object) -> tuple[Federation, Silo]:
    """After a round: the silo holds the model and all certificates."""
    federation = Federation.of(4, parameters=32, **changes)  # type: ignore[arg-type]
    federation.play()
    return federation, federation.silos[federation.run.silos[0]]


def newcomer() -> tuple[Federation, Silo]:
    federation = Federation.of(4, parameters=32)
    return federation, federation.silos[federation.run.silos[0]]


def fed(silo: Silo, kind: type, answer: object) -> None:
    silo.player.answer(kind, answer)  # type: ignore[arg-type]


def joined(federation: Federation, *, manifest: bool = True, state: str = "running") -> Joined:
    signed = federation.signed() if manifest else None
    return Joined(federation.signed_run(), signed, federation.model.state.name, state, b"server", 0, 1, federation.rollback)


def hear(federation: Federation, silo: Silo) -> None:
    """The silo joins and hears of the open round; what it then asks stays unanswered."""
    silo.player.time_passes()
    while silo.player.waits_for(Join):
        fed(silo, Join, joined(federation))


def with_policy(silo: Silo, policy: Policy) -> None:
    silo.machine._own = replace(silo.machine._own, policy=policy)


def no_run_yet() -> None:
    not_created = OutOfPhaseError("no such run", reason="UNKNOWN_RUN")
    for error, announced in product((UnknownSiloError("who?"), not_created), (False, True)):
        federation, silo = newcomer()
        federation.new_round()
        silo.player.time_passes()
        silo.machine._announced = False
        if announced:
            fed(silo, Join, joined(federation))
        fed(silo, Join, Refusal(error))


def nobody_remembers() -> None:
    federation, silo = everyone_knows_each_other()
    silo.player.restart()
    silo.player.start()
    federation.new_round()
    while silo.player.waits_for(Join):
        fed(silo, Join, joined(federation))
    fed(silo, GetUpdate, NO)


def between_rounds() -> None:
    """A round that is no round, one without this silo, one outside its hours, one whose key it lost, one from another model."""
    federation, silo = everyone_knows_each_other()
    federation.new_round()
    federation.manifest = replace(federation.round.manifest, round=99)
    signed = replace(federation.signed(), signature=b"forged")
    silo.player.time_passes()
    while silo.player.waits_for(Join):
        fed(silo, Join, replace(joined(federation), round=signed))
    federation, silo = everyone_knows_each_other()
    federation.new_round(federation.run.silos[1:])
    hear(federation, silo)
    fed(silo, GetUpdate, Concluded(outcome(federation), None, "running"))
    federation, silo = everyone_knows_each_other()
    with_policy(silo, NEVER)
    federation.new_round()
    hear(federation, silo)
    fed(silo, Abstention, NO)
    federation, silo = everyone_knows_each_other()
    federation.new_round()
    lose_the_key(silo)
    silo.player.time_passes()
    while silo.machine.phase is not P.REJOINING:
        fed(silo, Join, joined(federation))
    fed(silo, Join, NO)
    federation, silo = everyone_knows_each_other()
    serve(federation, 7)
    federation.new_round()
    hear(federation, silo)


def going_for_the_model() -> None:
    def away(prepare: Callable[[Silo], object]) -> tuple[Federation, Silo]:
        federation, silo = everyone_knows_each_other()
        serve(federation, 7)
        federation.round_number = 9
        federation.new_round()
        prepare(silo)
        hear(federation, silo)
        return federation, silo

    for prepare in (lambda _: None, lambda silo: with_policy(silo, NEVER), lose_the_key, with_pending):
        federation, silo = away(prepare)
        fed(silo, GetModel, FetchedModel(7, federation.model.state.vector))
    federation, silo = away(lambda _: None)
    fed(silo, GetModel, FetchedModel(7, np.zeros(32, np.float32)))
    federation, silo = away(lambda _: None)
    fed(silo, GetModel, NO)


def lose_the_key(silo: Silo) -> None:
    silo.sessions = {}
    silo.pairs.forget()
    silo.machine._sessions.new()


def with_pending(silo: Silo) -> None:
    """Values that were sent in the round before, of whose fate nobody spoke."""
    federation = silo._federation
    other = Federation.of(4, parameters=32)
    other.until(Phase.CONFIRM)
    donor = other.silos[silo.name]
    silo.machine.state = replace(silo.machine.state, memory=donor.memory)
    assert federation.run.digest() == other.run.digest()


def meeting() -> None:
    for answer, policy in ((Certificates({}), None), (NO, None), (None, NEVER)):
        federation, silo = newcomer()
        if policy is not None:
            with_policy(silo, policy)
        federation.new_round()
        hear(federation, silo)
        fed(silo, GetModel, FetchedModel(0, federation.model.state.vector))
        if answer is None:
            federation.answer_join(silo, federation.signed())
        else:
            fed(silo, GetCertificates, answer)


def settling() -> None:
    for policy in (Policy(), NEVER):
        for answered in (True, False):
            federation, silo = everyone_knows_each_other()
            federation.until(Phase.CONFIRM)
            told_nothing = outcome(federation)
            with_policy(silo, policy)
            federation.leave_round(silo)
            federation.new_round()
            hear(federation, silo)
            fed(silo, GetUpdate, Concluded(told_nothing, None, "running") if answered else NO)


def training() -> None:
    for late in (Trained(0, np.zeros(32, np.float32), {}), TrainingFailed(0, "too late")):
        federation, silo = everyone_knows_each_other()
        federation.open_round()
        silo.player.feed(late)
    federation, silo = newcomer()
    federation.open_round()
    silo.player.feed(Trained(0, np.full(32, np.nan, np.float32), {}))
    federation, silo = newcomer()
    federation.open_round()
    silo.player.feed(TrainingRefused(0, RefusedError("the budget is spent")))
    federation, silo = everyone_knows_each_other()
    federation.open_round()
    for silo in federation.members[1:]:
        federation.propose(silo)
    federation.deadline()
    watcher = federation.members[0]
    federation.observe(watcher)
    for lie in (True, False):
        federation, silo = newcomer()
        federation.open_round()
        for each in federation.members[1:]:
            federation.propose(each)
        federation.deadline()
        silo.player.time_passes()
        shown = federation.round.consensus_for(silo.name)
        fed(silo, GetConsensus, replace(shown, assignment=shown.assignment[::-1]) if lie else NO)


def proposing() -> None:
    """The consensus was asked for while the silo trained, and comes before the answer to its proposal."""
    for answer in (Accepted(), NO):
        for shown in ("honest", "alone", "lie", "refused"):
            federation, silo = newcomer()
            federation.open_round()
            mates = [each for each in federation.members if each is not silo]
            silo.player.time_passes()
            proposed = federation.prepare(silo)
            federation.round.receive(proposed.message)
            alone = next(each for each in federation.members if each.name == mate_of(federation, silo))
            for each in mates:
                if shown != "alone" or each is not alone:
                    federation.propose(each)
            if not federation.round._assignment:
                federation.deadline()
            consensus = federation.round.consensus_for(silo.name)
            if shown == "lie":
                consensus = replace(consensus, assignment=consensus.assignment[::-1])
            fed(silo, GetConsensus, NO if shown == "refused" else consensus)
            fed(silo, Proposal, answer)


def mate_of(federation: Federation, silo: Silo) -> str:
    group = next(group for group in seated(federation) if silo in group)
    return next(each.name for each in group if each is not silo)


def submitting() -> None:
    """The survivors are asked for behind the submission, and come before the answer to it."""
    for answer in (Accepted(), NO):
        for shown in ("honest", "lie", "refused"):
            federation, silo = newcomer()
            federation.until(Phase.SUBMIT)
            silo.answer(GetConsensus, federation.round.consensus_for(silo.name))
            federation.round.receive(silo.said(Submission))
            for each in federation.members:
                if each is not silo:
                    federation.submit(each)
            survivors = SurvivorSet(()) if shown == "lie" else federation.round.survivors_for(silo.name)
            fed(silo, GetSurvivors, NO if shown == "refused" else survivors)
            fed(silo, Submission, answer)


def revealing() -> None:
    """The end is asked for behind the reveal, and may be told, or refused, before the answer to it."""
    for answer in (Accepted(), NO):
        for told_first in (True, False):
            federation, silo = newcomer()
            federation.until(Phase.REVEAL)
            fed(silo, Confirmation, Confirmations(*federation.round.confirmations_for(silo.name)))
            fed(silo, GetUpdate, Concluded(outcome(federation), None, "running") if told_first else NO)
            fed(silo, Reveal, answer)


def lies_along_the_way() -> None:
    federation, silo = newcomer()
    federation.until(Phase.SUBMIT)
    shown = federation.round.consensus_for(silo.name)
    fed(silo, GetConsensus, replace(shown, mates=()))
    federation, silo = newcomer()
    federation.until(Phase.CONFIRM)
    fed(silo, GetSurvivors, SurvivorSet(()))
    federation, silo = newcomer()
    federation.until(Phase.CONFIRM)
    fed(silo, GetSurvivors, federation.round.survivors())
    fed(silo, Confirmation, Confirmations(()))


def nobody_knows_how_it_ended() -> None:
    federation, silo = newcomer()
    federation.until(Phase.SUBMIT)
    federation.miss_the_end(silo)
    fed(silo, GetUpdate, NO)
    federation, silo = newcomer()
    federation.until(Phase.SUBMIT)
    federation.miss_the_end(silo)
    fed(silo, GetUpdate, Concluded(outcome(federation), None, "running"))
    fed(silo, GetUpdate, NO)


SCENES = (
    no_run_yet,
    nobody_remembers,
    between_rounds,
    going_for_the_model,
    meeting,
    settling,
    training,
    proposing,
    submitting,
    revealing,
    lies_along_the_way,
    nobody_knows_how_it_ended,
)
