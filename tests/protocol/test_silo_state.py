"""What a silo's journal allows it to say: a proposal is charged once, and a false statement about a reveal is never made."""

from __future__ import annotations

import secrets
from dataclasses import replace

import numpy as np
import pytest

from fedrep.errors import RefusedError
from fedrep.protocol.manifests import RoundManifest
from fedrep.protocol.silo_presence import MOST_KEYS, RosterWatch, Sessions
from fedrep.protocol.silo_state import Journal
from tests.protocol.federation import Federation

C1 = b"c" * 32


def manifest_of(number: int) -> RoundManifest:
    return replace(Federation.of(5).open_round(), round=number)


def test_the_same_proposal_is_sent_again_free_of_charge_only_while_g_k_and_alpha_stay() -> None:
    manifest = manifest_of(1)
    drawn = np.arange(manifest.per_silo)
    assert Journal().repeated_proposal(manifest, 1) is None
    journal = Journal().charged(manifest, 1, drawn)
    later = replace(manifest, round=2)
    np.testing.assert_array_equal(journal.repeated_proposal(later, 1), drawn)
    assert journal.repeated_proposal(replace(later, per_silo=2), 1) is None
    assert journal.repeated_proposal(replace(later, alpha=0.6), 1) is None
    assert journal.repeated_proposal(later, 2) is None


def test_round_number_and_charge_are_one_change() -> None:
    manifest = manifest_of(4)
    journal = Journal().charged(manifest, 1, np.arange(manifest.per_silo))
    assert (journal.last_round, journal.ledger.rounds) == (4, 1)


def test_a_silo_that_revealed_never_renounces_and_one_that_renounced_never_reveals() -> None:
    journal = Journal().entered(3, C1).revealing(3).renouncing(4, C1)
    assert not journal.may_renounce(3)
    with pytest.raises(RefusedError, match="has revealed in round 3"):
        journal.renouncing(3, C1)
    with pytest.raises(RefusedError, match="renounced revealing anything in round 4"):
        journal.revealing(4)
    assert journal.last_round == 4, "the round counts as spoken in, so no other message follows"
    assert journal.renouncing(4, C1) == journal


def test_a_silo_that_has_to_leave_its_rounds_joins_again_after_growing_pauses() -> None:
    watch = RosterWatch()
    waits = []
    for _ in range(4):
        watch.left()
        rounds = 0
        while not watch.overlooked:
            watch.absent()
            rounds += 1
        waits.append(rounds)
        watch.joined()
    assert waits == [1, 2, 4, 8]
    watch.took_part()
    watch.absent()
    assert watch.overlooked


def test_a_session_key_is_erased_once_a_manifest_lists_it_with_those_before_it() -> None:
    sessions = Sessions(secrets.token_bytes)
    first, second, third = sessions.new(), sessions.new(), sessions.new()
    sessions.entered(second.public)
    assert list(sessions.keys) == [third.public]
    sessions.entered(first.public)
    assert list(sessions.keys) == [third.public], "a key that is erased already erases no later one"


def test_keys_that_no_manifest_lists_do_not_pile_up() -> None:
    sessions = Sessions(secrets.token_bytes)
    announced = [sessions.new().public for _ in range(2 * MOST_KEYS)]
    assert list(sessions.keys) == announced[-MOST_KEYS:]
