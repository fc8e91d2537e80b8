"""The plan of a drill: which fault, when, on whom, for how long. Made from a seed, kept as JSON, and played again from it.

Who leads at a moment is not in the plan: "the leader" is looked up when a fault strikes it. So a replay strikes the same parts at
the same moments, while the processes' own timing is what the machine makes of it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedrep.attacks import ATTACKS

# kind -> (weight, shortest and longest time in seconds until it is over; None: it is over at once)
KINDS: dict[str, tuple[int, tuple[float, float] | None]] = {
    "delay": (8, (2.0, 6.0)),
    "throttle": (6, (2.0, 6.0)),
    "reset": (10, None),
    "reset everybody": (2, None),
    "half-close": (6, None),
    "black hole": (8, (1.0, 6.0)),
    "refuse": (4, (1.0, 4.0)),
    "kill silo": (14, None),
    "pause silo": (8, (0.5, 6.0)),
    "kill leader": (3, None),
    "pause leader": (3, (0.5, 4.0)),
    "hand over": (2, None),
    "kill standby": (2, None),
    "kill evaluator": (2, None),
    "kill dashboard": (2, None),
    "kill authority": (2, None),
    "restart database": (2, (0.2, 2.0)),
    "crash database": (2, (0.2, 1.0)),
    "full disk of silo": (6, (1.0, 5.0)),
    "full disk of database": (1, (1.0, 3.0)),
    "clock of silo": (6, (2.0, 8.0)),
    "clock of server": (3, (2.0, 6.0)),
    "renew certificate": (4, None),
}
ON_A_SILO = frozenset(
    (
        *("delay", "throttle", "reset", "half-close", "black hole", "refuse"),
        *("kill silo", "pause silo", "full disk of silo", "clock of silo", "renew certificate"),
    )
)
JUMPS = (-7200, -600, -45, 45, 600, 7200, 3 * 86400)


@dataclass(frozen=True)
class Fault:
    """`after` is the pause before it, in seconds; `seconds` how long it lasts (0: it is over at once)."""

    number: int
    after: float
    kind: str
    victim: str = ""
    seconds: float = 0.0
    value: float = 0.0
    note: str = ""


@dataclass(frozen=True)
class Plan:
    seed: int
    faults: tuple[Fault, ...]

    def save(self, path: Path) -> None:
        path.write_text(json.dumps({"seed": self.seed, "faults": [asdict(fault) for fault in self.faults]}, indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Plan:
        document: dict[str, Any] = json.loads(path.read_text())
        return cls(int(document["seed"]), tuple(Fault(**fault) for fault in document["faults"]))

    def lines(self) -> list[str]:
        at, lines = 0.0, []
        for fault in self.faults:
            at += fault.after
            what = " ".join(filter(None, (fault.kind, fault.victim, fault.note)))
            value = f" {fault.value:g}" if fault.value else ""
            lasts = f" for {fault.seconds:.1f} s" if fault.seconds else ""
            lines.append(f"{fault.number:4d}  {at:7.1f} s  {what}{value}{lasts}")
        return lines


def make_plan(seed: int, faults: int, silos: Sequence[str], pause: float, *, attacks: int | None = None) -> Plan:
    """Every kind at least once where there is room; the attacks in turn at even distances; one silo revoked at two thirds."""
    rng = random.Random(seed)
    names = list(ATTACKS)
    rng.shuffle(names)
    names = names[: len(names) if attacks is None else attacks]
    kinds = list(KINDS)
    rng.shuffle(kinds)
    drawn = rng.choices(list(KINDS), [weight for weight, _ in KINDS.values()], k=max(0, faults - len(kinds) - len(names) - 1))
    ordinary = kinds + drawn
    rng.shuffle(ordinary)
    ordinary = ordinary[: max(0, faults - len(names) - 1)]
    slots: list[tuple[float, str, str]] = [((index + 0.5) / len(ordinary), kind, "") for index, kind in enumerate(ordinary)]
    slots += [((index + 0.25) / len(names), "attack", name) for index, name in enumerate(names)]
    slots.append((2 / 3, "revoke silo", ""))
    revoked = silos[-1]
    left, made = list(silos), []
    for number, (_, kind, note) in enumerate(sorted(slots), 1):
        after = rng.uniform(0.4, 1.6) * pause
        made.append(_fault(rng, number, after, kind, note, left, revoked))
        if kind == "revoke silo":
            left.remove(revoked)
    return Plan(seed, tuple(made))


def _fault(rng: random.Random, number: int, after: float, kind: str, note: str, silos: list[str], revoked: str) -> Fault:
    if kind == "attack":
        return Fault(number, after, kind, note=note)
    if kind == "revoke silo":
        return Fault(number, after, kind, revoked)
    span = KINDS[kind][1]
    seconds = round(rng.uniform(*span), 2) if span is not None else 0.0
    victim = rng.choice(silos) if kind in ON_A_SILO else ""
    match kind:
        case "delay":
            return Fault(number, after, kind, victim, seconds, rng.choice((0.02, 0.1, 0.4)))
        case "throttle":
            return Fault(number, after, kind, victim, seconds, rng.choice((2_000, 10_000, 100_000)))
        case "half-close":
            return Fault(number, after, kind, victim, note=rng.choice(("up", "down")))
        case "clock of silo" | "clock of server":
            return Fault(number, after, kind, victim, seconds, rng.choice(JUMPS))
    return Fault(number, after, kind, victim, seconds)
