"""The kept inputs, played again: each is accepted or refused with an error of ours, as when coverage found it."""

from __future__ import annotations

import pytest

from tests.fuzz.corpus import FOLDER, kept
from tests.fuzz.targets import TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_no_kept_input_raises_anything_but_our_errors_and_one_at_least_is_accepted(name: str) -> None:
    outcomes = [TARGETS[name].accepts(path.read_bytes()) for path in kept(name)]
    assert any(outcomes), "the corpus has no honest input for this target: python -m tests.fuzz.seeds writes them"


def test_every_folder_of_the_corpus_belongs_to_a_target() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(TARGETS)


@pytest.mark.parametrize("name", TARGETS)
def test_brackets_without_end_are_refused_as_anything_else_is(name: str) -> None:
    """Python's parsers of JSON and TOML raise a RecursionError, which is no ValueError."""
    for text in (b"[" * 100_000, b'{"a":' * 50_000, b"a=" + b"[" * 100_000, b"[" * 3000):
        TARGETS[name].accepts(text)
