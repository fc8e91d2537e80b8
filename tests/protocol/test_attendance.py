"""Who takes part in the next round, and who sits out for how long."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from fedrep.protocol.attendance import LONGEST_PENALTY, Attendance, RoundReport
from fedrep.protocol.manifests import RosterEntry, SiloName
from fedrep.protocol.messages import Phase
from tests.protocol.federation import Federation

A, B, C = (SiloName(name) for name in ("a", "b", "c"))
EVERYONE = (A, B, C)


def entry(name: SiloName, key: bytes = b"first") -> RosterEntry:
    return RosterEntry(name, name.encode(), key, b"signature of " + key)


def joined(*names: SiloName, in_round: int = 0) -> Attendance:
    attendance = Attendance()
    for name in names:
        attendance = attendance.join(entry(name), in_round)
    return attendance


def report(
    roster: Iterable[SiloName] = EVERYONE,
    *,
    silent: Iterable[SiloName] = (),
    failed: Iterable[SiloName] = (),
    incomplete: Iterable[SiloName] = (),
    missed: Iterable[SiloName] = (),
) -> RoundReport:
    names = tuple(roster)
    answered = frozenset(names) - frozenset(silent)
    complete = answered - frozenset(failed) - frozenset(incomplete) - frozenset(missed)
    keys = {name: (b"next of " + name.encode(), b"signed") for name in answered}
    return RoundReport(names, answered, complete, frozenset(failed), frozenset(missed), keys)


def names(attendance: Attendance, round_number: int) -> list[SiloName]:
    return [each.name for each in attendance.roster(round_number)]


def test_the_roster_is_in_bytewise_order_of_names() -> None:
    attendance = joined(SiloName("é"), SiloName("z"), SiloName("B"), SiloName("a"))
    assert names(attendance, 1) == ["B", "a", "z", "é"]


def test_a_silo_that_answered_takes_part_again_with_the_key_it_announced() -> None:
    after = joined(*EVERYONE).after_round(1, report())
    assert names(after, 2) == [A, B, C]
    assert after.roster(2)[0].session_key == b"next of a"
    assert after.roster(2)[0].session_signature == b"signed"


def test_a_silo_that_stayed_silent_is_left_out_until_it_joins_again() -> None:
    after = joined(*EVERYONE).after_round(1, report(silent=[B]))
    assert names(after, 2) == [A, C]
    assert names(after, 50) == [A, C]
    assert names(after.join(entry(B, b"second"), 2), 3) == [A, B, C]


def test_a_silo_that_joined_again_during_the_round_keeps_its_new_key() -> None:
    """A restarted process does not hold the key its proposal announced."""
    attendance = joined(*EVERYONE).join(entry(B, b"after the restart"), 1).after_round(1, report())
    assert attendance.standings[B].entry.session_key == b"after the restart"
    silent = joined(*EVERYONE).join(entry(B, b"after the restart"), 1).after_round(1, report(silent=[B]))
    assert names(silent, 2) == [A, B, C]


def test_a_silo_that_vanishes_sits_out_1_2_4_rounds_and_so_on() -> None:
    attendance, number = joined(*EVERYONE), 1
    for pause in (1, 2, 4, 8, 16, 32, 64, 64):
        attendance = attendance.after_round(number, report(failed=[B]))
        absent = 0
        number += 1
        while B not in names(attendance, number):
            attendance = attendance.after_round(number, report([A, C]))
            absent += 1
            number += 1
        assert absent == pause
    assert pause == LONGEST_PENALTY


def test_one_full_round_clears_the_record() -> None:
    attendance = joined(*EVERYONE).after_round(1, report(failed=[B])).after_round(3, report())
    assert attendance.standings[B].strikes == 0
    again = attendance.after_round(4, report(failed=[B]))
    assert (B in names(again, 5), B in names(again, 6)) == (False, True)


def test_a_round_without_a_submission_neither_clears_nor_adds() -> None:
    attendance = joined(*EVERYONE).after_round(1, report(failed=[B])).after_round(3, report(incomplete=[B]))
    assert attendance.standings[B].strikes == 1


def test_joining_again_is_no_way_out_of_sitting_out() -> None:
    attendance = joined(*EVERYONE).after_round(1, report(failed=[B])).join(entry(B), 1)
    assert B not in names(attendance, 2)
    assert B in names(attendance, 3)


def test_a_silo_that_sits_out_returns_without_joining_again() -> None:
    attendance = joined(*EVERYONE).after_round(1, report(failed=[B])).after_round(2, report([A, C]))
    assert names(attendance, 3) == [A, B, C]


def test_an_admin_excludes_and_readmits_and_clears_the_penalty() -> None:
    attendance = joined(*EVERYONE).after_round(1, report(failed=[B])).exclude(C)
    assert names(attendance, 3) == [A, B]
    assert names(attendance.readmit(C), 3) == [A, B, C]
    assert names(attendance.readmit(B), 2) == [A, B]
    assert attendance.readmit(B).standings[B].strikes == 0


def test_a_silo_excluded_before_it_ever_joined_stays_out() -> None:
    attendance = Attendance().exclude(B).join(entry(B), 0)
    assert names(attendance, 1) == []
    assert names(attendance.readmit(B), 1) == [B]


def test_a_silo_that_leaves_is_left_out_at_once() -> None:
    attendance = joined(*EVERYONE).leave(A)
    assert names(attendance, 1) == [B, C]
    assert names(attendance.after_round(1, report()), 2) == [B, C]
    assert names(attendance.join(entry(A), 1), 2) == [A, B, C]
    assert attendance.leave(SiloName("nobody")) == attendance


def test_a_name_in_the_report_that_never_joined_changes_nothing() -> None:
    assert joined(A).after_round(1, report([A, SiloName("ghost")])).standings.keys() == {A}


@pytest.mark.parametrize("phase", [Phase.SUBMIT, Phase.PROPOSE])
def test_a_played_round_leaves_out_the_silent_and_counts_a_miss_against_the_vanished(phase: Phase) -> None:
    federation = Federation.of(9, quorum=7)
    names_of = list(federation.silos)
    federation.play(silent_from={names_of[0]: phase})
    assert federation.manifest is not None
    attendance = Attendance()
    for each in federation.manifest.roster:
        attendance = attendance.join(each, 0)
    assert federation.round.result is not None
    after = attendance.after_round(1, federation.round.result.report)
    assert names(after, 2) == (names_of if phase is Phase.SUBMIT else names_of[1:])
    assert {name: standing.misses for name, standing in after.standings.items()} == {**dict.fromkeys(names_of, 0), names_of[0]: 1}
    back = after.join(after.standings[names_of[0]].entry, 1)
    for number in (2, 3):
        assert names_of[0] in names(back, number)
        back = back.after_round(number, federation.round.result.report).join(back.standings[names_of[0]].entry, number)
    assert names_of[0] not in names(back, 4), "the third miss in a row"


def test_only_the_third_miss_in_a_row_is_a_penalty() -> None:
    """Penalties at the first miss would cost a third of all contributions."""
    attendance = joined(*EVERYONE)
    for number in (1, 2):
        attendance = attendance.after_round(number, report(missed=[B]))
        assert names(attendance, number + 1) == [A, B, C]
    third = attendance.after_round(3, report(missed=[B]))
    assert names(third, 4) == [A, C]
    assert names(third, 5) == [A, B, C]
    forgiven = attendance.after_round(3, report()).after_round(4, report(missed=[B]))
    assert names(forgiven, 5) == [A, B, C], "a full round clears its record"


def test_who_abstains_is_not_penalised() -> None:
    attendance = joined(*EVERYONE)
    for number in range(1, 9):
        attendance = attendance.after_round(number, report(incomplete=[B]))
    assert names(attendance, 9) == [A, B, C]
