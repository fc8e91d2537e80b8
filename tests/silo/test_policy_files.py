"""Files that a silo's policy names: what is wrong with them is said before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedrep.errors import SettingsError
from fedrep_silo.config import PolicySettings

PIN = bytes(range(32))


def test_a_pinned_roster_is_read_as_the_authority_prints_it(tmp_path: Path) -> None:
    path = tmp_path / "roster.txt"
    path.write_text(f"# our partners\n{PIN.hex()}  # hospital-b\n\n")
    assert PolicySettings(roster_file=path).rules(None).pinned_fingerprints == frozenset({PIN})


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (f"{PIN.hex()[:-2]}  # cut short\n", "Line 1 .* is not a key fingerprint"),
        ("hospital-b\n", "Line 1 .* is not a key fingerprint"),
        ("# nobody\n", "is empty"),
        (None, "cannot be read"),
    ],
    ids=["cut short", "a name", "empty", "missing"],
)
def test_a_pinned_roster_that_would_trust_nobody_is_refused_with_the_reason(
    tmp_path: Path, text: str | None, complaint: str
) -> None:
    path = tmp_path / "roster.txt"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SettingsError, match=complaint):
        PolicySettings(roster_file=path).rules(None)
