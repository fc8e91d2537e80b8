"""Whom a run waits for at this moment, whom it does not wait for and why, and whether it stands still."""

from __future__ import annotations

from dataclasses import dataclass

from fedrep.protocol.manifests import SiloName
from fedrep.protocol.messages import Phase
from fedrep.protocol.run_effects import OpenedRound
from fedrep.protocol.run_progress import RunState
from fedrep_server.rounds.run_driver import RunDriver

STILL_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Waited:
    name: SiloName
    reason: str = ""
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class Waiting:
    """As in the observer contract."""

    what: str
    silos: tuple[Waited, ...]
    without: tuple[Waited, ...]
    until: float
    since: float
    present: int
    quorum: int
    standing_still: bool


def waiting_of(driver: RunDriver, now: float) -> Waiting | None:
    if driver.state not in (RunState.WAITING, RunState.RUNNING) or driver.model.is_lost:
        return None
    if driver.open is not None:
        return _for_answers(driver, driver.open, now)
    roster = {entry.name for entry in driver.machine.next_roster()[1]}
    missing = tuple(_waited(driver, name) for name in driver.manifest.silos if why_away(driver, name))
    present = len(driver.present - driver.attendance.excluded)
    quorum = driver.manifest.quorum
    if driver.last_round >= driver.manifest.rounds:
        return None
    if len(roster) < quorum:
        return Waiting("quorum", missing, (), 0.0, driver.last_activity, present, quorum, True)
    return Waiting("gathering", missing, (), 0.0, driver.last_activity, present, quorum, False)


def why_away(driver: RunDriver, name: SiloName) -> str:
    """Why a silo of the run takes no part now; empty if it does."""
    opened = driver.open
    current = opened.number if opened is not None else driver.last_round
    reason = driver.notes.reason(name, driver.attendance, current)
    if reason or opened is None or name not in opened.signed.manifest.names:
        return reason
    if name in opened.machine.abstained:
        return "abstained" + driver.notes.words(name, current)
    away = opened.machine.away.get(name)
    return "" if away is None else away.why + driver.notes.words(name, current)


def _waited(driver: RunDriver, name: SiloName) -> Waited:
    return Waited(name, why_away(driver, name), driver.notes.since(name))


def _for_answers(driver: RunDriver, opened: OpenedRound, now: float) -> Waiting | None:
    names = opened.machine.waited_for()
    if not names:
        return None
    without = [_waited(driver, name) for name in driver.manifest.silos]
    present = len(driver.present - driver.attendance.excluded)
    return Waiting(
        "silos",
        tuple(Waited(name) for name in names),
        tuple(silo for silo in without if silo.reason and silo.name not in names),
        driver.phase_ends,
        driver.phase_began,
        present,
        driver.manifest.quorum,
        _stands_still(driver, opened.machine.phase, now),
    )


def _stands_still(driver: RunDriver, phase: Phase, now: float) -> bool:
    """The rest is waited for as long again as all the others took. As long as nobody has proposed, everybody trains."""
    began, heard = driver.phase_began, driver.last_heard
    if phase is Phase.PROPOSE and heard < began:
        return False
    latest = max(began, heard)
    return now - latest > max(STILL_SECONDS, latest - began)
