"""The few inputs worth keeping: those without which some step from line to line of a decoder would no longer be taken."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.fuzz.targets import Target

PACKAGES = ("fedrep/", "fedrep_identity/", "fedrep_runtime/", "fedrep_server/", "fedrep_silo/", "fedrep_trainers/")

Step = tuple[str, int, int]


def reached(target: Target, data: bytes) -> frozenset[Step]:
    """From which line to which, in code of ours, and whether it was accepted."""
    steps: set[Step] = set()
    lines: dict[FrameType, int] = {}

    def in_ours(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            steps.add((frame.f_code.co_filename, lines.get(frame, 0), frame.f_lineno))
            lines[frame] = frame.f_lineno
        return in_ours

    def entered(frame: FrameType, event: str, argument: Any) -> Any:
        return in_ours if any(package in frame.f_code.co_filename for package in PACKAGES) else None

    before = sys.gettrace()
    sys.settrace(entered)
    try:
        accepted = target.accepts(data)
    finally:
        sys.settrace(before)
    return frozenset({*steps, ("accepted", 0, int(accepted))})


def worth_keeping(target: Target, have: Iterable[bytes], found: Iterable[bytes]) -> list[bytes]:
    """Of `found`, shortest first, what takes a step that neither `have` nor an input kept before takes."""
    taken = frozenset[Step]().union(*(reached(target, data) for data in have))
    kept = []
    for data in sorted(set(found), key=lambda each: (len(each), each)):
        steps = reached(target, data)
        if not steps <= taken:
            kept.append(data)
            taken |= steps
    # Backwards: a later, longer one may take all that an earlier one takes.
    fewest: list[bytes] = []
    taken = frozenset[Step]().union(*(reached(target, data) for data in have))
    for data in reversed(kept):
        steps = reached(target, data)
        if not steps <= taken:
            fewest.append(data)
            taken |= steps
    return fewest
