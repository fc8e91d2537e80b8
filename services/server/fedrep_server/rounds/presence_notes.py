"""Since when silos of a run are away, and what they said about it: for people, who ask when and why. In memory only."""

from __future__ import annotations

import time
from dataclasses import replace

from fedrep.protocol.attendance import Absence, Attendance
from fedrep.protocol.manifests import SiloName
from fedrep.protocol.round_effects import Noted

MOST_LINES = 10  # of the event log, about the coming and going of one silo in a minute
MINUTE = 60.0

_REASONS = {
    Absence.LEFT: "left",
    Absence.LOST: "connection lost",
    Absence.SILENT: "silent in its last round",
    Absence.NOT_BACK: "not back after the server's start",
}


class PresenceNotes:
    def __init__(self) -> None:
        self._followed: Attendance | None = None
        self._away: dict[SiloName, float] = {}
        self._broke: dict[SiloName, float] = {}
        self._said: dict[SiloName, tuple[int, str]] = {}
        self._lines: dict[SiloName | None, tuple[float, int]] = {}

    def follow(self, attendance: Attendance) -> None:
        """After everything that may have changed who is here."""
        if attendance is self._followed:
            return
        self._followed = attendance
        for name, standing in attendance.standings.items():
            if standing.present:
                self._away.pop(name, None)
            elif name not in self._away:
                lost = standing.absence is Absence.LOST
                self._away[name] = self._broke.get(name, time.time()) if lost else time.time()

    def line_broke(self, name: SiloName) -> None:
        self._broke[name] = time.time()

    def say(self, name: SiloName, number: int, text: str) -> None:
        """What the silo reported as its problem in that round."""
        self._said[name] = number, text

    def worth_keeping(self, line: Noted) -> Noted | None:
        """Nothing for a silo that comes and goes all the time: its row shows what it does now. Its last line says so."""
        now = time.monotonic()
        began, count = self._lines.get(line.silo, (now, 0))
        if now - began >= MINUTE:
            began, count = now, 0
        if count >= MOST_LINES:
            return None
        self._lines[line.silo] = began, count + 1
        return line if count + 1 < MOST_LINES else replace(line, text=f"{line.text}; what follows within a minute is left out")

    def since(self, name: SiloName) -> float:
        return self._away.get(name, 0.0)

    def reason(self, name: SiloName, attendance: Attendance, current: int) -> str:
        """Why this silo is not here; empty for one that is. `current` is the open round, or the last."""
        standing = attendance.standings.get(name)
        if name in attendance.excluded:
            return "excluded"
        if standing is None:
            return "has not joined"
        if not standing.present:
            said = self.words(name, current) if standing.absence is Absence.LEFT else ""
            return _REASONS[standing.absence] + said
        if standing.back_in_round > current:
            return f"sits out until round {standing.back_in_round}"
        return ""

    def words(self, name: SiloName, current: int) -> str:
        """Its own, if they are about this round or the one before."""
        number, text = self._said.get(name, (0, ""))
        return f": {text}" if text and number >= current - 1 else ""
