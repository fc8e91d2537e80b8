"""How many silos and buffers a run and a round need, in counts alone: both roles, the preflight, `plan` and the lab share them.

m silos in the roster, s in a buffer, f Byzantine, c helping the server, t holders for a secret, o_min opened buffers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sized

from fedrep.aggregators.rules import rows_needed


def share_threshold(holders: int) -> int:
    """t: more than two thirds of the holders, so that two sets of t share honest ones."""
    return 2 * holders // 3 + 1


def holders_in_common(holders: int) -> int:
    """2t - m: how many holders any two sets of t share. Above c + f, one of them is honest and confirms one U only."""
    return 2 * share_threshold(holders) - holders


def buffers_needed(byzantine: int) -> int:
    """o_min: with f attackers fewer opened buffers could all be theirs, or tell too much about the rest."""
    return 1 if byzantine == 0 else max(byzantine + 1, 3)


def buffers_to_be_robust(byzantine: int, rule: str = "") -> int:
    """Buffers a run must have against f >= 1 attackers: when each of them spoils one, a majority is left, and at least three.

    Krum needs more than that. With exactly as many a round that loses a buffer is skipped.
    """
    return max(2 * byzantine + 1, byzantine + 3, rows_needed(rule, byzantine))


def expected_byzantine(byzantine: int, opened: int) -> int:
    """f': what the rule is told to withstand, never more than a minority of the opened buffers."""
    return min(byzantine, (opened - 1) // 2)


def openable_buffers(survivors: Iterable[Sized], min_survivors: int, byzantine: int) -> frozenset[int]:
    """Rule 4, by how many survive in each buffer: those that may be opened; none unless at least o_min reach min_survivors."""
    reached = frozenset(number for number, buffer in enumerate(survivors) if len(buffer) >= min_survivors)
    return reached if len(reached) >= buffers_needed(byzantine) else frozenset()


def least_quorum(silos: int, buffer_size: int, byzantine: int) -> int:
    """Silos in a roster without whom no secret could be recovered, or too few buffers filled."""
    return max(share_threshold(silos), buffers_needed(byzantine) * buffer_size)


def least_min_survivors(colluders: int) -> int:
    """Rule 5: c colluders subtract their own values from a sum; what is left must still be two silos'."""
    return colluders + 2


def default_quorum(silos: int, buffer_size: int, byzantine: int) -> int:
    """The least that works; where even all silos are too few, all of them, and the preflight says what is missing."""
    return min(least_quorum(silos, buffer_size, byzantine), silos)


def default_colluders(buffer_size: int) -> int:
    return 0 if buffer_size <= 2 else 1


def default_min_survivors(buffer_size: int, colluders: int) -> int:
    return max(least_min_survivors(colluders), buffer_size - 1)
