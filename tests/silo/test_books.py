"""What a silo's books allow it to say: a proposal is charged once, and a false statement about a reveal is never made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from fedrep.errors import RefusedError
from fedrep.protocol.manifests import RoundManifest
from fedrep.protocol.model_state import ModelState
from fedrep_silo.books import Books
from fedrep_silo.state import StateFolder
from fedrep_trainers.trainer import Trainer
from tests.protocol.federation import Federation

MODEL = ModelState.initial(np.zeros(64, np.float32))


class Idle:
    """A trainer that is never asked to train."""

    layout = SimpleNamespace(size=64)

    def state(self) -> Mapping[str, NDArray[np.generic]]:
        return {}


def books_in(folder: Path) -> Books:
    return Books(StateFolder(folder), cast(Trainer, cast(Any, Idle())))


def manifest_of(number: int) -> RoundManifest:
    return replace(Federation.of(5).open_round(), round=number)


def test_the_same_proposal_is_sent_again_free_of_charge_only_while_model_k_and_alpha_stay(tmp_path: Path) -> None:
    books, manifest = books_in(tmp_path), manifest_of(1)
    drawn = np.arange(manifest.per_silo)
    assert books.repeated_proposal(manifest, MODEL) is None
    books.charge(manifest, MODEL, drawn)
    books = books_in(tmp_path)
    later = replace(manifest, round=2)
    np.testing.assert_array_equal(books.repeated_proposal(later, MODEL), drawn)
    assert books.repeated_proposal(replace(later, per_silo=2), MODEL) is None
    assert books.repeated_proposal(replace(later, alpha=0.6), MODEL) is None
    assert books.repeated_proposal(later, replace(MODEL, version=1)) is None


def test_round_number_and_charge_are_on_disk_together(tmp_path: Path) -> None:
    books, manifest = books_in(tmp_path), manifest_of(4)
    books.charge(manifest, MODEL, np.arange(manifest.per_silo))
    journal = books_in(tmp_path).journal
    assert (journal.last_round, journal.ledger.rounds) == (4, 1)


def test_a_silo_that_revealed_does_not_renounce_not_even_after_a_restart(tmp_path: Path) -> None:
    books = books_in(tmp_path)
    books.enter(3)
    books.reveal(3)
    books = books_in(tmp_path)
    assert not books.may_renounce(3)
    with pytest.raises(RefusedError):
        books.renounce(3)


def test_a_silo_that_renounced_neither_reveals_nor_enters_the_round_again(tmp_path: Path) -> None:
    books_in(tmp_path).renounce(3)
    books = books_in(tmp_path)
    assert books.journal.last_round == 3
    with pytest.raises(RefusedError):
        books.reveal(3)
    books.renounce(3)
    assert books.journal.renounced == (3,)


def test_no_statement_is_made_about_a_round_whose_reveal_the_journal_has_forgotten(tmp_path: Path) -> None:
    """A server may ask about any old round by showing its manifest again. The journal keeps the last thousand reveals."""
    books = books_in(tmp_path)
    books.folder.save_journal(replace(books.journal, last_round=1501, revealed=tuple(range(1, 1502))))
    books = books_in(tmp_path)
    assert 400 not in books.journal.revealed, "the journal keeps more by now; this test needs an older round"
    assert not books.may_renounce(400)
    assert not books.may_renounce(1000)
