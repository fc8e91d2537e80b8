"""Who takes part in the next round: the allowed silos that have joined, are not sitting out, and answered last time.

A silo that for the third time in a row did not propose, submit or reveal in time sits out 1, 2, 4, ... rounds, and one that
dealt bad shares or a wrong secret does so at once; one full round clears its record. Whoever abstains is not penalised.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from fedrep.protocol.manifests import RosterEntry, SiloName

LONGEST_PENALTY = 64
MISSES_IN_A_ROW = 3


class Absence(Enum):
    """Why a silo that was here is not."""

    LEFT = "left"
    LOST = "lost"
    SILENT = "silent"
    NOT_BACK = "not_back"

    @property
    def words(self) -> str:
        """After the silo's name."""
        return _WORDS[self]


_WORDS = {
    Absence.LEFT: "left the run",
    Absence.LOST: "lost its connection",
    Absence.SILENT: "said nothing for a whole round",
    Absence.NOT_BACK: "has not come back yet",
}


@dataclass(frozen=True, slots=True)
class Standing:
    """One silo's place between rounds. `present` falls when it leaves, loses its connection or stays silent for a whole round;
    joining again raises it. `absence` is why it fell, and means nothing while it stands."""

    entry: RosterEntry
    joined_in: int
    present: bool = True
    strikes: int = 0
    back_in_round: int = 0
    misses: int = 0
    absence: Absence = Absence.NOT_BACK


SessionName = tuple[bytes, int]  # the run, and the first round of the session


@dataclass(frozen=True, slots=True)
class Session:
    """The keys that a round of this session has listed: who was shown them all has agreed on a secret with everyone."""

    name: SessionName
    entries: Mapping[SiloName, RosterEntry]


@dataclass(frozen=True, slots=True)
class Attendance:
    """`session` is known to this process alone: after a restart everybody announces new keys."""

    standings: Mapping[SiloName, Standing] = field(default_factory=dict)
    excluded: frozenset[SiloName] = frozenset()
    session: Session | None = field(default=None, compare=False)

    def join(self, entry: RosterEntry, round_number: int, kept: bytes = b"") -> Attendance:
        """`round_number` is the round open now, or the last one. Strikes outlast a new join: it is no way out of sitting out.

        A silo that still has what it agreed on with its listed key, `kept`, stays in its session.
        """
        before = self.standings.get(entry.name) or Standing(entry, round_number)
        after = replace(before, entry=entry, joined_in=round_number, present=True)
        session = self.session
        if session is not None and not _keeps(session.entries.get(entry.name), entry, kept):
            left = {name: listed for name, listed in session.entries.items() if name != entry.name}
            session = replace(session, entries=left)
        return replace(self, standings={**self.standings, entry.name: after}, session=session)

    def leave(self, name: SiloName, absence: Absence = Absence.LEFT) -> Attendance:
        before = self.standings.get(name)
        if before is None:
            return self
        return replace(self, standings={**self.standings, name: replace(before, present=False, absence=absence)})

    def come_back(self, name: SiloName) -> Attendance:
        """Of one whose connection was lost, and is there again: it holds the keys it joined with."""
        before = self.standings[name]
        return replace(self, standings={**self.standings, name: replace(before, present=True)})

    def exclude(self, name: SiloName) -> Attendance:
        return replace(self, excluded=self.excluded | {name})

    def readmit(self, name: SiloName) -> Attendance:
        """An admin's word clears the penalty too."""
        before = self.standings.get(name)
        cleared = {} if before is None else {name: replace(before, strikes=0, back_in_round=0, misses=0)}
        return replace(self, standings={**self.standings, **cleared}, excluded=self.excluded - {name})

    def roster(self, round_number: int, session: SessionName | None = None) -> tuple[RosterEntry, ...]:
        """With the keys of the session if everyone has part in it, else with new ones of everybody: a newcomer can agree on
        nothing with a key whose private half is erased."""
        chosen = [
            standing.entry
            for name, standing in self.standings.items()
            if standing.present and name not in self.excluded and standing.back_in_round <= round_number
        ]
        known = self.session
        if session is not None and known is not None and known.name == session:
            listed = [known.entries.get(entry.name) for entry in chosen]
            chosen = [kept or entry for kept, entry in zip(listed, chosen, strict=True)] if all(listed) else chosen
        return tuple(sorted(chosen, key=lambda entry: entry.name.encode()))

    def opened(self, session: SessionName, roster: tuple[RosterEntry, ...]) -> Attendance:
        """A round has listed these keys."""
        known = self.session
        if known is not None and known.name == session and all(known.entries.get(entry.name) == entry for entry in roster):
            return self
        return replace(self, session=Session(session, {entry.name: entry for entry in roster}))

    def _is_news(self, entry: RosterEntry) -> bool:
        """Whether a silo joined with another key than the round listed: it may be a new process, which holds no other."""
        listed = self.session.entries.get(entry.name) if self.session is not None else None
        return listed is None or listed.session_key != entry.session_key

    def after_round(self, round_number: int, report: RoundReport) -> Attendance:
        updated = dict(self.standings)
        for name in report.roster:
            standing = updated.get(name)
            if standing is None:
                continue
            rejoined = standing.joined_in >= round_number
            if name in report.next_session_keys and not (rejoined and self._is_news(standing.entry)):
                key, signature = report.next_session_keys[name]
                entry = replace(standing.entry, session_key=key, session_signature=signature)
                standing = replace(standing, entry=entry)
            misses = standing.misses + 1 if name in report.missed else 0
            if name in report.failed or misses >= MISSES_IN_A_ROW:
                strikes = standing.strikes + 1
                pause = min(2 ** (strikes - 1), LONGEST_PENALTY)
                standing = replace(standing, strikes=strikes, back_in_round=round_number + 1 + pause, misses=0)
            elif name in report.complete:
                standing = replace(standing, strikes=0, back_in_round=0, misses=0)
            else:
                standing = replace(standing, misses=misses if name in report.missed else standing.misses)
            if standing.present and not rejoined and name not in report.answered:
                standing = replace(standing, present=False, absence=Absence.SILENT)
            updated[name] = standing
        return replace(self, standings=updated)


def _keeps(listed: RosterEntry | None, entry: RosterEntry, kept: bytes) -> bool:
    """Whether a silo that joins anew still is who the session knows: by the key that it kept, or by the one it announces, where
    its call was on the way while a round already listed that key."""
    if listed is None or listed.session_key not in (kept, entry.session_key):
        return False
    return (listed.fingerprint, listed.promise) == (entry.fingerprint, entry.promise)


@dataclass(frozen=True, slots=True)
class RoundReport:
    """What a finished round says about its silos: `failed` dealt wrongly, `missed` were waited for in vain."""

    roster: tuple[SiloName, ...]
    answered: frozenset[SiloName]
    complete: frozenset[SiloName]
    failed: frozenset[SiloName]
    missed: frozenset[SiloName]
    next_session_keys: Mapping[SiloName, tuple[bytes, bytes]]
    abstained: frozenset[SiloName] = frozenset()
