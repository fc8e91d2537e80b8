"""The next round before anybody hears of it: its number, its roster, its shuffle, its manifest."""

from __future__ import annotations

from dataclasses import replace

from fedrep.protocol.announcement import Dice, announce, next_roster
from fedrep.protocol.attendance import Attendance
from fedrep.protocol.clip_range import ClipRange
from fedrep.protocol.manifests import RosterEntry, SiloName
from tests.protocol.federation import Federation


def attendance_of(*names: str, back: dict[str, int] | None = None) -> Attendance:
    made = Attendance()
    for name in names:
        made = made.join(RosterEntry(SiloName(name), b"", b"", b""), 0)
    penalties = {name: replace(standing, back_in_round=(back or {}).get(name, 0)) for name, standing in made.standings.items()}
    return replace(made, standings=penalties)


def roster(attendance: Attendance, quorum: int, last_round: int = 0, known: str = "abcd") -> tuple[int, str]:
    number, entries = next_roster(attendance, [SiloName(name) for name in known], last_round, quorum)
    return number, "".join(entry.name for entry in entries)


def test_the_next_number_takes_those_who_are_here() -> None:
    assert roster(attendance_of(*"abcd"), 3, last_round=4) == (5, "abcd")
    assert roster(attendance_of(*"abcd").leave(SiloName("a")), 3) == (1, "bcd")


def test_below_the_quorum_there_is_no_roster() -> None:
    assert roster(attendance_of(*"ab"), 3) == (1, "")


def test_a_silo_whose_signatures_cannot_be_checked_is_left_out() -> None:
    assert roster(attendance_of(*"abcd"), 3, known="abd") == (1, "abd")


def test_numbers_are_passed_over_until_enough_penalties_are_over() -> None:
    """Otherwise nobody could ever come back: penalties count rounds, and no round would be played."""
    waiting = attendance_of(*"abcd", back={"b": 4, "c": 6, "d": 9})
    assert roster(waiting, 1) == (1, "a")
    assert roster(waiting, 2) == (4, "ab")
    assert roster(waiting, 3) == (6, "abc")
    assert roster(waiting, 4) == (9, "abcd")
    assert roster(waiting, 3, last_round=6) == (7, "abc")


def test_dice_of_one_seed_fall_alike_and_of_another_do_not() -> None:
    dice = Dice(bytes(32))
    assert dice.generator("aggregate", 3).bytes(8) == Dice(bytes(32)).generator("aggregate", 3).bytes(8), (
        "a restart draws the same"
    )
    assert dice.generator("aggregate", 3).bytes(8) != Dice(b"\1" * 32).generator("aggregate", 3).bytes(8)
    draws = {dice.generator(purpose, number).bytes(8) for purpose in ("aggregate", "another") for number in range(3)}
    assert len(draws) == 6


def test_the_seed_does_not_show() -> None:
    assert b"secret" not in repr(Dice(b"secret")).encode()


def test_a_manifest_states_the_runs_rules_and_shares_the_coordinates_out() -> None:
    federation = Federation.of(4, parameters=103)
    entries = tuple(RosterEntry(name, b"", b"", b"") for name in list(federation.silos)[:3])
    manifest = announce(federation.run, federation.model.state.name, ClipRange(0.25), 7, entries)
    assert (manifest.run, manifest.round, manifest.roster) == (federation.run.digest(), 7, entries)
    assert (manifest.coordinates, manifest.per_silo) == (25, 8)
    assert manifest.clip_range == 0.25
    assert (manifest.model_version, manifest.model_hash) == (0, federation.run.model_hash)
