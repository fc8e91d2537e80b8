"""What a silo writes does not reach a terminal as anything but letters."""

from __future__ import annotations

import json

import pytest

from fedrep_cli.output import complain, emit
from fedrep_runtime.logging import safe_value
from fedrep_runtime.texts import harmless, harmless_json, one_line

EVIL = "\x1b]0;owned\x07\x9b2J\x7f\u202eabc\u2066\u2028\x00\b\r"


def is_harmless(text: str) -> bool:
    return all(ord(c) >= 32 and not 127 <= ord(c) < 160 and c not in "\u202e\u2066\u2028" for c in text.replace("\n", ""))


def test_control_characters_are_shown_as_what_they_are_not() -> None:
    assert is_harmless(harmless(EVIL))
    assert harmless("Zürich,\n\t日本 🙂") == "Zürich,\n\t日本 🙂"
    assert one_line("a\nb\r\nc\td") == "a b c d"
    assert "\ud800" not in harmless("a\ud800b")


def test_json_keeps_its_meaning_and_loses_its_teeth() -> None:
    text = harmless_json(json.dumps({"problem": EVIL}, ensure_ascii=False))
    assert is_harmless(text)
    assert json.loads(text) == {"problem": EVIL}


@pytest.mark.parametrize("as_json", [True, False])
def test_no_command_prints_them(capsys: pytest.CaptureFixture[str], as_json: bool) -> None:
    emit({"name": EVIL, "nested": [{"text": EVIL}]}, as_json, lambda result: f"{result['name']} {result['nested'][0]['text']}")
    assert is_harmless(capsys.readouterr().out)


def test_no_complaint_and_no_line_of_the_log_holds_them(capsys: pytest.CaptureFixture[str]) -> None:
    complain("fedrep", EVIL)
    assert is_harmless(capsys.readouterr().err)
    assert is_harmless(safe_value("why", EVIL))
    assert is_harmless(safe_value("why", [EVIL])[0])


def test_no_markup_of_a_silo_is_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    """`fedrep run show` draws a table, and rich reads brackets as orders: a link that shows another address, for one."""
    from fedrep_cli.run import _run_table

    silo = {"name": "a", "state": "present", "bytes_up": 0, "bytes_down": 0, "problem": "[link=http://evil]x[/link]"}
    summary = {"name": "r", "state": "running", "round": 1, "rounds_planned": 2, "rounds_applied": 0, "rounds_skipped": 0}
    summary |= {"silos_present": 1, "silos_allowed": 1, "bytes_up": 0, "bytes_down": 0}
    nothing = {"suspicion": {"silos": [], "sentence": "", "caution": ""}, "traffic": {"sentence": "", "sent": 0, "dense": 0}}
    emit({"silos": [silo], "models": [], "summary": summary, **nothing}, False, _run_table)
    assert "[link=" in capsys.readouterr().out.replace("\n", "")
