"""JSON from outside."""

from __future__ import annotations

import pytest

from fedrep_runtime.json_text import parsed


def test_brackets_without_end_are_a_value_error_like_every_other_mistake() -> None:
    for text in ("[" * 100_000, b'{"a":' * 100_000):
        with pytest.raises(ValueError, match="nested too deeply"):
            parsed(text)
    assert parsed(b'{"a": [1, null]}') == {"a": [1, None]}
