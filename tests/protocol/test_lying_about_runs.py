"""Attacks of a server that mixes up rounds and runs: each silo's word is about the run, the round and the manifest it knows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedrep.errors import InvalidInputError, RefusedError
from fedrep.protocol.error_memory import Fate, judge
from fedrep.protocol.manifests import RunHash, SignedRoundManifest, round_manifest_message
from fedrep.protocol.messages import Evidence, Outcome, Phase, Statement, Update
from fedrep.protocol.silo_effects import Concluded, GetUpdate, Join, Joined, Problem, Remark, RoundOver, Settled
from fedrep.protocol.silo_identity import Conduct
from fedrep.protocol.silo_state import SiloState
from fedrep.protocol.silo_table import Phase as SiloPhase
from tests.protocol.federation import SERVER, Federation, NoLedgers, Silo
from tests.protocol.lying_server import outcome, seated


def two_runs() -> tuple[Federation, Federation]:
    """Of the same silos, which have one certificate for both."""
    first = Federation.of(12, parameters=48, coordinates=48, seed=3, buffer_size=4, reshuffle_every=50)
    second = Federation.of(12, parameters=48, coordinates=48, seed=4, buffer_size=4, reshuffle_every=50, name="another")
    for name, silo in second.silos.items():
        silo.signing_key = silo.machine._signing_key = first.silos[name].signing_key
    return first, second


def skipped(run: RunHash, number: int, federation: Federation) -> Concluded:
    return Concluded(Update(run, number, Outcome.SKIPPED, "", federation.model.state.name, Evidence()), None, "running")


def statements(silo: Silo) -> list[Statement]:
    return [message.statement for message in silo.player.wire if isinstance(message, GetUpdate) and message.statement is not None]


def test_how_a_round_of_another_run_ended_is_no_answer() -> None:
    """Whoever revealed there would sign, from the journal of this run, that it did not."""
    first, second = two_runs()
    assert first.play().outcome is Outcome.APPLIED
    second.open_round()
    revealed = [silo for silo in second.members if first.silos[silo.name].machine.state.journal.revealed == (1,)]
    assert revealed
    for silo in revealed:
        second.miss_the_end(silo)
        silo.player.answer(GetUpdate, skipped(first.run.digest(), 1, second))
        assert statements(silo) == []
        assert [news for news in silo.player.news if isinstance(news, Problem)], "and its operator hears of it"


@pytest.mark.parametrize("number", [2, 2**62])
def test_how_another_round_ended_is_no_answer(number: int) -> None:
    """It would count as the last round this silo spoke in, and there might be none after it."""
    federation = Federation.of(6)
    federation.open_round()
    silo = federation.members[0]
    federation.miss_the_end(silo)
    before = silo.player.disk.journal
    silo.player.answer(GetUpdate, skipped(federation.run.digest(), number, federation))
    assert statements(silo) == []
    assert silo.player.disk.journal == before


def test_a_restarted_silo_that_asks_about_its_last_round_hears_of_no_other() -> None:
    federation = Federation.of(6)
    federation.until(Phase.CONFIRM)
    silo = federation.members[0]
    silo.player.restart()
    silo.player.start()
    federation.answer_join(silo, None)
    assert silo.player.waits_for(GetUpdate)
    silo.player.answer(GetUpdate, skipped(federation.run.digest(), 7, federation))
    assert statements(silo) == []
    assert silo.machine.state.journal.last_round == 1


def test_a_restarted_silo_gives_its_word_about_the_manifest_that_it_knew() -> None:
    federation = Federation.of(6)
    federation.until(Phase.CONFIRM)
    silo = federation.members[0]
    assert federation.manifest is not None
    silo.player.restart()
    silo.player.start()
    federation.answer_join(silo, None)
    silo.player.answer(GetUpdate, skipped(federation.run.digest(), 1, federation))
    assert [statement.c1 for statement in statements(silo)] == [federation.manifest.context()]


def test_a_round_of_another_run_is_not_even_asked_about() -> None:
    first, second = two_runs()
    first.play()
    silo = second.silos[second.run.silos[0]]
    second.new_round()
    silo.player.time_passes()
    name, other = second.model.state.name, first.signed()
    while silo.player.waits_for(Join):
        silo.player.answer(Join, Joined(second.signed_run(), other, name, "running", b"server", 0, 1, None))
    assert silo.machine.part is None
    assert silo.machine.phase is SiloPhase.IDLE
    assert not silo.player.waits_for(GetUpdate)
    (remark,) = (news for news in silo.player.news if isinstance(news, Remark))
    assert remark.event == "server_not_understood"


def test_a_round_after_the_last_is_none() -> None:
    federation = Federation.of(6)
    silo = federation.silos[federation.run.silos[0]]
    federation.round_number = federation.run.rounds
    federation.new_round()
    federation.announce(silo)
    assert silo.machine.part is None
    assert not silo.player.waits_for(GetUpdate)


def test_a_next_round_that_is_refused_takes_nothing_of_the_last_one_with_it() -> None:
    """Its values were opened, and its model moved on: that is saved and said, whatever the server shows next."""
    federation = Federation.of(6)
    federation.until(Phase.CONFIRM)
    late, *others = federation.members
    for silo in others:
        federation.confirm(silo)
    for silo in others:
        if not federation.over:
            federation.reveal(silo)
    update = federation.close()
    assert federation.manifest is not None
    beyond = replace(federation.manifest, round=federation.run.rounds + 1)
    federation.miss_the_end(late)
    late.player.news.clear()
    following = SignedRoundManifest(beyond, SERVER.sign(round_manifest_message(beyond)))
    late.player.answer(GetUpdate, Concluded(update, following, "running"))
    assert [type(news) for news in late.player.news] == [Settled, RoundOver, Remark]
    assert late.player.disk.memory.pending is None
    assert late.player.disk.model is not None
    assert late.player.disk.model.version == 1


def test_what_was_decided_before_a_rule_refused_something_is_on_disk() -> None:
    federation = Federation.of(6)
    federation.until(Phase.CONFIRM)
    silo = federation.members[0]
    federation.miss_the_end(silo)
    while silo.player.waits_for(GetUpdate):
        silo.player.answer(GetUpdate, Concluded(outcome(federation), None, "running"))
    assert silo.player.disk.memory.pending is not None, "the server's word is no proof"

    class Unreadable(NoLedgers):
        def elsewhere(self, _run: str) -> float | None:
            raise InvalidInputError("a ledger cannot be read")

    silo.machine._own = replace(silo.machine._own, ledgers=Unreadable())
    federation.told[1] = outcome(federation)
    federation.new_round()
    with pytest.raises(InvalidInputError, match="a ledger cannot be read"):
        federation.announce(silo)
    assert silo.machine.state.memory.given_up == 1
    assert silo.player.disk.memory == silo.machine.state.memory


def test_a_run_of_another_name_is_not_the_one_that_was_asked_for() -> None:
    """A second daemon of this silo may be in it, with a journal of its own: together they would say anything twice."""
    federation = Federation.of(6)
    silo = Silo(federation, federation.run.silos[0], federation.silos[federation.run.silos[0]].signing_key, federation.rng)
    silo.machine._conduct = Conduct("mine")
    silo.player.start()
    federation.answer_join(silo, None)
    assert silo.player.stopped is not None
    assert "asked for run 'mine', the server offers run 'test'" in str(silo.player.stopped.error)
    assert silo.machine.state.journal.run == ""


def emptied(federation: Federation, silo: Silo) -> None:
    """As after `leave --purge`, or with another state folder: nothing is known, and there are new session keys."""
    silo.player.disk = SiloState.new(federation.run.parameters, {})
    silo.player.restart()
    silo.player.start()
    federation.answer_join(silo, None)


def test_a_silo_with_an_empty_folder_says_nothing_about_a_round_in_which_it_may_have_been() -> None:
    federation = Federation.of(6)
    start = federation.model
    assert federation.play().outcome is Outcome.APPLIED
    silo = federation.silos[federation.run.silos[0]]
    assert silo.machine.state.journal.revealed == (1,)
    emptied(federation, silo)
    silo.player.time_passes()
    federation.model = start
    federation.answer_join(silo, federation.signed())
    federation.answer_join(silo, None)  # the key in that roster is not its own, so it announces itself anew
    assert silo.machine.phase is SiloPhase.CONCLUDING
    silo.player.answer(GetUpdate, skipped(federation.run.digest(), 1, federation))
    assert statements(silo) == []


def test_it_says_nothing_about_such_a_round_either_once_it_has_been_in_later_ones() -> None:
    federation = Federation.of(6)
    start = federation.model
    assert federation.play().outcome is Outcome.APPLIED
    silo, played = federation.silos[federation.run.silos[0]], federation.signed()
    assert silo.machine.state.journal.revealed == (1,)
    emptied(federation, silo)
    assert federation.play().outcome is Outcome.APPLIED
    assert (silo.machine.state.journal.last_round, silo.machine.state.journal.revealed) == (2, (2,))
    federation.model = start
    silo.player.time_passes()
    federation.answer_join(silo, played)
    assert silo.machine.phase is SiloPhase.CONCLUDING, "rounds only go up"
    silo.player.answer(GetUpdate, skipped(federation.run.digest(), 1, federation))
    assert statements(silo) == []


def test_a_word_about_a_second_round_of_the_same_number_proves_nothing_about_the_first() -> None:
    federation = Federation.of(6)
    federation.until(Phase.CONFIRM)
    waiting = federation.members[0]
    pending = waiting.memory.pending
    assert pending is not None
    said = []
    for silo in federation.members[1:]:
        emptied(federation, silo)
        federation.round_number = 0
        federation.new_round()
        silo.player.time_passes()
        federation.answer_join(silo, federation.signed())
        federation.miss_the_end(silo)
        silo.player.answer(GetUpdate, skipped(federation.run.digest(), 1, federation))
        said += statements(silo)
    assert len(said) == 5, "they renounce the round they were shown, which is not the one of the pending values"
    assert judge(pending.place, Evidence(statements=tuple(said))) is Fate.UNKNOWN


def test_opened_values_are_never_sent_again_on_the_word_of_another_run() -> None:
    """The whole attack: two sums of one group that differ in one silo alone would be that silo's values."""
    first, second = two_runs()
    first.open_round()
    for silo in first.members:
        first.propose(silo)
    for silo in first.members:
        first.submit(silo)
    target, *deceived = seated(first)[0]
    others = [silo for silo in first.members if silo not in deceived]
    for silo in others:
        first.confirm(silo)
    for silo in others:
        first.reveal(silo)
    assert first.round.phase is Phase.DONE, "the group was opened"
    for silo in first.silos.values():
        first.miss_the_end(silo)
        while silo.player.waits_for(GetUpdate):
            silo.player.answer(GetUpdate, Concluded(outcome(first), None, "running"))
    second.open_round()
    said = [statement for silo in deceived for statement in statements(silo)]
    assert len(said) == len(deceived), "true: they saw no confirmation, and revealed nothing"
    for silo in others:
        if silo is not target:
            twin = second.silos[silo.name]
            second.miss_the_end(twin)
            twin.player.answer(GetUpdate, skipped(first.run.digest(), 1, second))
            said += statements(twin)
    first.told[1] = replace(outcome(first), evidence=Evidence(statements=tuple(said)))
    first.open_round()
    for silo in deceived:
        fates = [news.fate for news in silo.player.news if isinstance(news, Settled)]
        assert fates == [Fate.GIVEN_UP]


def test_an_order_to_roll_back_moves_a_model_once() -> None:
    federation = Federation.of(6)
    federation.play()
    federation.order_rollback()
    kept = federation.model
    for _ in range(3):
        assert federation.play().outcome is Outcome.APPLIED
    silo = federation.silos[federation.run.silos[0]]
    assert silo.machine.state.model is not None
    assert silo.machine.state.model.version == 4
    federation.model = kept
    federation.new_round()
    with pytest.raises(RefusedError, match="no admin signed a rollback"):
        federation.announce(silo)
    assert silo.machine.state.model.version == 4
