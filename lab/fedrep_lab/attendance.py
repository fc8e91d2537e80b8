"""How many rounds are applied, and how many silos contribute, when silos miss rounds: counts alone, nothing is trained.

Seats, thresholds, rosters and penalties are the service's own functions; `ServerRound` decides in the same order. Of the silos of
a round's roster each is missing by chance, for that round, whatever it did before: `absence` before it proposes, `dropout` after.
A silo that comes back joins before the next round opens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedrep.protocol.announcement import next_roster
from fedrep.protocol.attendance import Attendance, RoundReport
from fedrep.protocol.manifests import RosterEntry, SiloName
from fedrep.protocol.seats import seats
from fedrep.protocol.thresholds import (
    default_colluders,
    default_min_survivors,
    default_quorum,
    openable_buffers,
    share_threshold,
)
from fedrep_lab.cell import Cell
from fedrep_lab.methods.interface import Seating


@dataclass(frozen=True)
class Played:
    """What one round came to."""

    contributing: frozenset[SiloName]
    report: RoundReport


@dataclass(frozen=True)
class Federation:
    seating: Seating
    byzantine: int
    least: int

    @property
    def quorum(self) -> int:
        return default_quorum(len(self.seating.silos), self.seating.buffer_size, self.byzantine)

    def play(self, number: int, roster: tuple[SiloName, ...], proposed: frozenset[SiloName], here: frozenset[SiloName]) -> Played:
        """`here` are those who propose and stay to the end."""
        missed = frozenset(roster) - proposed
        submitted: frozenset[SiloName] = frozenset()
        contributing: frozenset[SiloName] = frozenset()
        seated = [[name for name in seat if name in proposed] for seat in seats(self.seating, number)]
        placed = openable_buffers(seated, self.least, self.byzantine)
        if placed:
            place = frozenset(name for buffer in placed for name in seated[buffer])
            submitted = place & here
            missed |= place - submitted
            left = [[name for name in buffer if name in submitted] for buffer in seated]
            if len(here) >= share_threshold(len(roster)):  # who only holds shares confirms and reveals too
                opened = openable_buffers(left, self.least, self.byzantine)
                contributing = frozenset(name for buffer in opened for name in left[buffer])
        report = RoundReport(roster, proposed, submitted, frozenset(), missed, {})
        return Played(contributing, report)


def attendance(cell: Cell, rng: np.random.Generator) -> dict[str, float]:
    """Shares of rounds applied, and of all listed silos that contribute: to a round, and to one that is applied."""
    least = int(cell.method_settings.get("min_survivors", default_min_survivors(cell.s, default_colluders(cell.s))))
    federation = Federation(Seating.of(cell, rng), cell.f, least)
    names = federation.seating.silos
    kept = Attendance()
    for name in names:
        kept = kept.join(RosterEntry(name, b"", b"", b""), 0)
    last, applied, contributing, sitting_out = 0, 0, 0, 0
    for _ in range(cell.rounds):
        number, entries = next_roster(kept, names, last, federation.quorum)
        roster = tuple(entry.name for entry in entries)
        chance = dict(zip(roster, rng.random(len(roster)), strict=True))
        proposed = frozenset(name for name in roster if chance[name] >= cell.absence)
        here = frozenset(name for name in roster if chance[name] >= cell.absence + cell.dropout)
        played = federation.play(number, roster, proposed, here)
        kept = kept.after_round(number, played.report)
        for name in played.report.missed:
            kept = kept.join(kept.standings[name].entry, number)
        last = number
        applied += bool(played.contributing)
        contributing += len(played.contributing)
        sitting_out += len(names) - len(roster)
    silos = cell.rounds * len(names)
    return {
        "applied": applied / cell.rounds,
        "contributing": contributing / silos,
        "contributing_if_applied": contributing / max(1, applied * len(names)),
        "sitting_out": sitting_out / silos,
    }
