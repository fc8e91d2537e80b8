"""Numbers as the pages write them, so that tests can say what a figure of the store must look like."""

from __future__ import annotations

import math

NONE = "–"


def sized(n: float) -> str:
    units, value = ["B", "kB", "MB", "GB"], float(n)
    while abs(value) >= 999.5 and len(units) > 1:
        units.pop(0)
        value /= 1000
    return f"{round(value)} B" if units[0] == "B" else f"{value:#.3g} {units[0]}".replace(". ", " ")


def percent(x: float | None, digits: int = 1) -> str:
    return NONE if x is None else f"{100 * x:.{digits}f} %"


def decimal(x: float | None) -> str:
    return NONE if x is None else f"{x:.3f}"


def epsilon(x: float | None) -> str:
    """Never rounded down."""
    if x is None:
        return "none"
    digits = 2 if x < 10 else 1 if x < 1000 else 0
    near = round(x, digits)
    return f"{near + 10**-digits if near < x else near:,.{digits}f}"


def record(x: float | None, none: bool) -> str:
    return "none" if none else epsilon(x) if x is not None else "not reported"


def seconds(s: float) -> str:
    return f"{math.floor(1000 * s + 0.5)} ms" if s < 1 else f"{s:.1f} s"


def span(s: float) -> str:
    return f"{math.floor(s + 0.5)} s" if s < 90 else f"{math.floor(s / 60 + 0.5)} min"
