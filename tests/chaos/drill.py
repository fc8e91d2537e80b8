"""Plays a plan of faults against a federation, and tells what came of it."""

from __future__ import annotations

import asyncio
import statistics
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from fedrep_silo.training import in_thread
from tests.chaos.faults import Faults, Over
from tests.chaos.invariants import Invariants
from tests.chaos.members import orphans
from tests.chaos.plan import ON_A_SILO, Fault, Plan
from tests.chaos.stage import BUFFER_SIZE, SERVERS, Stage

AT_ONCE = 3  # silos that may be in trouble at a time: more than that, and a quorum is never there
PER_ROUND, PATIENCE = 4, 15.0  # faults between two applied rounds; seconds after which the next one comes all the same
AFTERMATH = 2.0  # seconds for which a silo counts as in trouble after a fault that is over at once
RECOVERY_SECONDS = 180.0
LOOK_EVERY = 3.0
FAULT_OF_OURS = 70


class StuckError(Exception):
    """The federation does not come to where it has to come by itself."""


@dataclass
class Struck:
    fault: Fault
    at: float
    over_at: float | None = None


@dataclass
class Drill:
    stage: Stage
    plan: Plan
    say: Callable[[str], None]
    struck: list[Struck] = field(default_factory=list)
    seconds: float = 0.0
    recovery: float = 0.0
    looked: float = 0.0

    async def play(self) -> dict[str, Any]:
        began = time.monotonic()
        stuck: list[str] = []
        try:
            await self.stage.open()
            self.invariants = Invariants(self.stage)
            self.faults = Faults(self.stage)
            for text in self.stage.missing:
                self.say(f"note: {text}")
            await self._until(lambda: self._applied() >= 3, "no three rounds were applied before any fault")
            self.say(f"{len(self.stage.members)} processes, first rounds applied after {time.monotonic() - began:.0f} s")
            await self._strike_all()
            await self._recover()
            await self._end_run()
        except StuckError as error:  # what was found until then is worth telling
            stuck.append(str(error))
        finally:
            await in_thread(self.stage.end)
            if self.struck:
                self.invariants.read_traces()
                self.invariants.conclude(self.faults.revoked)
            await in_thread(self.stage.close)
        left = orphans(self.stage.mark)
        self.seconds = time.monotonic() - began
        return self._result(
            [*stuck, *self.invariants.problems, *self._bad_ends(), *(f"left behind: {command}" for command in left)]
        )

    def _applied(self) -> int:
        return sum(row.applied for row in self.invariants.rounds.values())

    async def _until(self, condition: Callable[[], bool], otherwise: str, seconds: float = RECOVERY_SECONDS) -> None:
        limit = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > limit:
                raise StuckError(f"{otherwise} within {seconds:.0f} s{self._standing()}")
            await self._tend()

    def _standing(self) -> str:
        last = [f"{row.round} {'applied' if row.applied else row.reason}" for row in list(self.invariants.rounds.values())[-3:]]
        down = [name for name, member in self.stage.members.items() if not member.alive]
        return f"; last rounds: {last}; not running: {down}; found so far: {self.invariants.problems[:5]}"

    async def _tend(self, pause: float = 0.2) -> None:
        await self.stage.tend()
        await in_thread(lambda: self.invariants.read_database(time.monotonic()))
        if time.monotonic() - self.looked > LOOK_EVERY:
            self.looked = time.monotonic()
            known = len(self.invariants.problems)
            await in_thread(self.invariants.read_traces)
            for text in self.invariants.problems[known:]:
                self.say(f"PROBLEM: {text}")
            for member in self.stage.members.values():
                member.look()
        await asyncio.sleep(pause)

    async def _strike_all(self) -> None:
        ending: set[asyncio.Task[None]] = set()
        for fault in self.plan.faults:
            due = time.monotonic() + fault.after
            await self._until(lambda due=due: time.monotonic() >= due and self._has_moved(), "no round")  # type: ignore[misc]
            if fault.kind in ON_A_SILO:
                await self._until(lambda fault=fault: self._may_strike(fault.victim), "silos stay in trouble")  # type: ignore[misc]
            over = await self.faults.strike(fault)
            struck = Struck(fault, time.monotonic())
            self.struck.append(struck)
            task = asyncio.create_task(_end(struck, over))
            ending.add(task)
            task.add_done_callback(ending.discard)
            if fault.number % 25 == 0:
                rounds = self.invariants.rounds
                self.say(f"{fault.number} faults, {self._applied()} of {len(rounds)} rounds applied")
        while ending:
            await self._tend()

    def _has_moved(self) -> bool:
        """Where a round takes long, as on a busy machine, faults take longer too: more of them at once would show nothing."""
        applied = max((row.seen for row in self.invariants.rounds.values() if row.applied), default=0.0)
        waited = time.monotonic() - max(applied, self.struck[-1].at if self.struck else 0.0)
        return sum(each.at > applied for each in self.struck[-PER_ROUND:]) < PER_ROUND or waited > PATIENCE

    def _may_strike(self, victim: str) -> bool:
        """A silo that is in trouble may get into more of it; another one only if not too many are."""
        now = time.monotonic()
        troubled = {
            each.fault.victim
            for each in self.struck[-60:]
            if each.fault.kind in ON_A_SILO and (each.over_at is None or now - each.over_at < AFTERMATH)
        }
        return victim in troubled or len(troubled) < AT_ONCE

    async def _recover(self) -> None:
        """Nothing is broken any more: rounds with everybody in them must come by themselves."""
        since = time.monotonic()
        expected = len(self.stage.names) - len(self.faults.revoked)
        start = max(self.invariants.rounds, default=0)

        def whole() -> bool:
            """Not only proposed: their values are there, but for mates of the revoked, who have nobody to hide among."""
            since_then = [row for number, row in self.invariants.rounds.items() if number > start and row.applied]
            alone = len(self.faults.revoked) * (BUFFER_SIZE - 1)
            heard = self.invariants.survivors_of
            return sum(row.proposed >= expected and heard(row) >= expected - alone for row in since_then) >= 2

        await self._until(whole, f"no two rounds with all {expected} silos were applied after the last fault")
        self.recovery = time.monotonic() - since
        page = f"http://127.0.0.1:{self.stage._ports['dashboard']}/healthz"
        await self._until(lambda: _answers(page), "the dashboard does not answer")

    async def _end_run(self) -> None:
        members = [self.stage.members[name] for name in (*self.stage.names, "evaluator")]
        for member in members:
            member.wanted = False
        await self.stage.stop_run()
        await self._until(lambda: not any(member.alive for member in members), "silos go on after the run was stopped")
        for member in members:
            member.tend()  # notes how it ended

    def _bad_ends(self) -> list[str]:
        """Processes end because they were told or killed, because they lost the lead, or with a sentence; never by a bug."""
        found = []
        for name, member in self.stage.members.items():
            text = member.log.read_text(errors="replace")
            if FAULT_OF_OURS in member.exits:
                found.append(f"{name}: ended with {member.exits}: a fault of fedrep's own")
            found += [f"{name}: {last}" for last in set(_raised(text))]
            if "MODEL_DIVERGED" in text:
                found.append(f"{name}: its model diverged")
        for name in self.stage.names:
            if name not in self.faults.revoked and self.stage.members[name].exits[-1:] != [0]:
                found.append(f"{name}: ended with {self.stage.members[name].exits[-1:]} when the run was stopped")
        return found

    def _result(self, problems: list[str]) -> dict[str, Any]:
        rows = list(self.invariants.rounds.values())
        kinds: dict[str, list[tuple[int, float]]] = {}
        for each in self.struck:
            after = [row for row in rows if row.seen > each.at]
            applied = next((row for row in after if row.applied), None)
            if applied is not None:
                lost = sum(not row.applied and row.seen <= applied.seen for row in after)
                kinds.setdefault(each.fault.kind, []).append((lost, applied.seen - each.at))
        table = {
            kind: {
                "injected": len(found),
                "rounds_lost": sum(lost for lost, _ in found),
                "seconds_median": statistics.median(seconds for _, seconds in found),
                "seconds_worst": max(seconds for _, seconds in found),
            }
            for kind, found in sorted(kinds.items())
        }
        exits = {name: sorted(set(member.exits)) for name, member in self.stage.members.items() if member.exits}
        return {
            "seed": self.plan.seed,
            "faults": len(self.struck),
            "seconds": self.seconds,
            "recovery_seconds": self.recovery,
            "silos": len(self.stage.names),
            "servers": len(SERVERS),
            **self.invariants.figures(),
            "kinds": table,
            "exits": exits,
            "restarts": sum(member.starts - 1 for member in self.stage.members.values()),
            "missing": [*self.stage.missing],
            "problems": problems,
        }


async def _end(struck: Struck, over: Over) -> None:
    await asyncio.sleep(struck.fault.seconds)
    await over()
    struck.over_at = time.monotonic()


def _raised(text: str) -> Iterator[str]:
    """The last line of each traceback, less those of calls that a server cut off when it was told to end."""
    for after in text.split("Traceback (most recent call last)")[1:]:
        last = next((line for line in after.splitlines()[1:] if line and not line.startswith((" ", "\t"))), "a traceback")
        if "CancelledError" not in after[:400]:
            yield last[:300]


def _answers(page: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(page, timeout=2) as answer:
        return bool(answer.status == 200)
    return False


def table(result: dict[str, Any]) -> list[str]:
    """For people."""
    lines = [f"{'fault':24s} {'injected':>8s} {'rounds lost':>12s} {'next applied round after':>26s}"]
    lines.append(f"{'':24s} {'':8s} {'':12s} {'median s':>14s} {'worst s':>11s}")
    for kind, row in result["kinds"].items():
        times = f"{row['seconds_median']:14.1f} {row['seconds_worst']:11.1f}"
        lines.append(f"{kind:24s} {row['injected']:8d} {row['rounds_lost']:12d} {times}")
    lines.append("")
    lines.append(f"seed {result['seed']}: {result['faults']} faults in {result['seconds']:.0f} s, {result['restarts']} restarts")
    lines.append(
        f"rounds: {result['rounds_applied']} applied, {result['rounds_skipped']} skipped; after the last fault all silos "
        f"were back within {result['recovery_seconds']:.0f} s"
    )
    lines.append(
        f"submissions by fate: {result['submissions']}; counted in the model: {result['values_counted_once']}, each once"
    )
    lines.append(f"opened in rounds that no server lived to commit, and so lost: {result['values_lost_with_unfinished_rounds']}")
    lines.append(f"updates computed again: {result['updates_recomputed']}; largest imbalance {result['largest_imbalance']:.2g}")
    lines += [f"note: {text}" for text in result["missing"]]
    lines += [f"PROBLEM: {text}" for text in result["problems"]] or ["every invariant held"]
    return lines
