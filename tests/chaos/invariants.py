"""What must hold whatever breaks, checked while the federation runs and once more when it has stopped.

- Who holds version v of the model holds the server's, to the last bit.
- Every applied update is the robust rule over the opened buffers, computed again from the trace, and every opened buffer is the
  mean of what its survivors wrote down that they sent.
- What was sent, kept and given up adds up to the local updates; no training counts twice; what is taken back was not counted, and
  what a silo holds for opened in an applied round is in the model. Every honest silo had part in some round.
- No silo reveals both secrets of another, sends two messages of one kind in a round, or the same masked values in two.
- Ledgers, at silos and at the server, never go back. Nothing that was committed changes.
- No process grows, and none is left behind.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedrep_silo.state import StateFolder
from tests.chaos.members import Member
from tests.chaos.server_books import ServerBooks
from tests.chaos.silo_books import SiloBooks
from tests.chaos.stage import ATTACKERS, RUN, SERVERS, Stage
from tests.chaos.trace import TraceReader

ROUNDING = 1e-4  # relative to the largest value that was sent; float32 sums over thousands of rounds
SETTLED_AGE = 60.0  # seconds until a process has imported what it needs, on a busy machine too
MEMORY, FILES, THREADS, TASKS = 1.15, 24, 16, 64  # at most so much more than when it had settled


Contribution = tuple[str, int, int]  # silo, number of its training, version of the model that it trained


@dataclass(frozen=True)
class Committed:
    """A round as the database has it; `seen` is when this program saw it first, on the monotonic clock."""

    round: int
    applied: bool
    reason: str
    version: int
    proposed: int
    seen: float


class Invariants:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.rounds: dict[int, Committed] = {}
        self.models: dict[int, str] = {}
        self.silos = {name: SiloBooks(name, name in stage.attackers) for name in stage.names}
        self.server = ServerBooks("geometric_median", ATTACKERS)
        self._own: list[str] = []
        self._spent: dict[str, float] = {}
        self.counted = 0
        self.unfinished = 0  # opened, as holders have signed, in rounds that no server lived to commit: lost to the model
        self._readers = {name: TraceReader(stage.folder / "traces" / name) for name in (*stage.names, *SERVERS)}

    @property
    def problems(self) -> list[str]:
        return [*self._own, *self.server.problems, *(text for book in self.silos.values() for text in book.problems)]

    def read_traces(self) -> None:
        for name, reader in self._readers.items():
            for frame in reader.new_frames():
                if name in SERVERS:
                    self.server.read(name, frame)
                else:
                    self.silos[name].read(frame)

    def read_database(self, now: float) -> None:
        last = max(self.rounds, default=0)
        columns = "round, outcome, reason, model_version, proposed"
        for number, outcome, reason, version, proposed in self._stage.query(
            f"SELECT {columns} FROM rounds WHERE round > {last} ORDER BY round"
        ):
            if number <= last:
                self._own.append(f"round {number} follows round {last}")
            last = number
            self.rounds[number] = Committed(number, outcome == "applied", reason, version, proposed, now)
        for version, digest in self._stage.query("SELECT version, hash FROM models"):
            if self.models.setdefault(version, digest.hex()) != digest.hex():
                self._own.append(f"version {version} of the model was committed twice, differently")
        for silo, spent in self._stage.query("SELECT name, epsilon_ledger FROM silos"):
            if spent < self._spent.get(silo, 0.0):
                self._own.append(f"the server's ledger for {silo} went back from {self._spent[silo]} to {spent}")
            self._spent[silo] = spent

    def conclude(self, revoked: set[str]) -> None:
        """When everything has stopped, and all traces are read."""
        counted = self._compare_rounds()
        self._compare_fates(counted)
        self._look_for_silence(counted, revoked)
        self._compare_models(revoked)
        self._compare_reveals()
        for book in self.silos.values():
            if not book.attacks and book.imbalance > ROUNDING:
                self._own.append(f"{book.name}: sent, kept and given up differ from the updates by {book.imbalance:.2g}")
        for member in self._stage.members.values():
            self._own += _growth(member)
        running = {**{name: book.tasks for name, book in self.silos.items()}, **self.server.tasks}
        for name, tasks in running.items():
            half = len(tasks) // 2  # a standby that comes to lead has more to do: growth goes on after that
            if half >= 15 and min(tasks[-5:]) > max(tasks[:half]) + TASKS:
                self._own.append(f"{name}: its tasks grew from {max(tasks[:half])} to {min(tasks[-5:])}")

    def _compare_rounds(self) -> dict[Contribution, int]:
        """In which round each training counted. Numbers that wait out penalties are left out; nobody speaks in those."""
        counted: dict[Contribution, int] = {}
        version = 0
        spoken = {number for book in self.silos.values() for number in book.submitted}
        for number in sorted(spoken - self.rounds.keys()):
            self._own.append(f"values were submitted in round {number}, of which the database knows nothing")
        for number, row in sorted(self.rounds.items()):
            version += row.applied
            if row.version != version:
                self._own.append(f"round {number} has version {row.version} of the model, not {version}")
            if not row.applied:
                continue
            opened = self.server.opened.get((number, self.models.get(row.version, "")))
            if opened is None:
                self._own.append(f"round {number} was committed, and no server's trace shows how")
                continue
            for buffer, names in opened.survivors.items():
                sent = [self.silos[name].submitted.get(number) for name in names]
                if any(each is None or not np.array_equal(each.indices, opened.indices) for each in sent):
                    self._own.append(f"round {number}: buffer {buffer} holds values that a silo did not write down")
                    continue
                for name, each in zip(names, sent, strict=True):
                    assert each is not None
                    before = counted.setdefault((name, each.training, each.version), number)
                    if before != number:
                        self._own.append(f"{name}: training {each.training} was counted in rounds {before} and {number}")
                    if each.fate == "closed":
                        self._own.append(f"{name}: took back what was counted in round {number}")
                if any(name in self._stage.attackers for name in names):
                    continue  # what an attacker sends is not what it keeps books of
                mean = np.mean([each.sent.astype(float) for each in sent if each is not None], axis=0)
                scale = max(float(np.abs(mean).max()), 1e-9)
                if np.abs(mean - opened.means[buffer]).max() > 1e-5 * scale + 1e-9:
                    self._own.append(f"round {number}: buffer {buffer} is not the mean of what its silos sent")
        self.counted = len(counted)
        return counted

    def _compare_fates(self, counted: dict[Contribution, int]) -> None:
        """Whoever has proof that its values were opened never sends them again: they are in the model, or lost with the round.

        A buffer with an attacker in it may be refused as a whole, for a sum that honest silos cannot have sent.
        """
        for name, book in self.silos.items():
            for number, each in book.submitted.items():
                if each.fate != "opened" or counted.get((name, each.training, each.version)) == number:
                    continue
                row = self.rounds.get(number)
                if row is None or not row.applied:
                    self.unfinished += 1
                    continue
                opened = self.server.opened.get((number, self.models.get(row.version, "")))
                mates = opened.buffers[each.buffer] if opened is not None else []
                if name not in mates or not any(mate in self._stage.attackers for mate in mates):
                    self._own.append(f"{name}: what was opened in round {number} is not in the model")

    def _look_for_silence(self, counted: dict[Contribution, int], revoked: set[str]) -> None:
        heard = {name for name, _, _ in counted}
        for name in self._stage.names:
            if name not in heard and name not in revoked and name not in self._stage.attackers:
                self._own.append(f"{name}: had no part in any applied round")

    def _compare_models(self, revoked: set[str]) -> None:
        for name, book in self.silos.items():
            wrong = [v for v, digest in book.models.items() if v in self.models and self.models[v] != digest]
            if wrong:
                self._own.append(f"{name}: its model differs from the server's in versions {wrong}")
        last = max(self.models, default=0)
        for name in self._stage.names:
            if name in revoked:
                continue
            held = StateFolder(self._stage.folder / "state" / RUN / name).model()
            if held is None or held.version != last or held.hash.hex() != self.models[last]:
                shown = "none" if held is None else f"version {held.version}"
                self._own.append(f"{name}: holds {shown} in the end, the server version {last}")

    def _compare_reveals(self) -> None:
        """t holders signed one U before anybody revealed: a dealer's seed or its key, and never one from each."""
        kinds: dict[tuple[int, str], set[str]] = {}
        for book in self.silos.values():
            for number, told in book.reveals.items():
                for dealer, secret in told.items():
                    kinds.setdefault((number, dealer), set()).add(secret)
        self._own += [
            f"round {number}: both secrets of {dealer} were revealed" for (number, dealer), k in kinds.items() if len(k) > 1
        ]

    def survivors_of(self, row: Committed) -> int:
        """How many silos' values arrived, by the server's trace."""
        opened = self.server.opened.get((row.round, self.models.get(row.version, "")))
        return sum(map(len, opened.buffers)) if opened is not None else 0

    def fates(self) -> dict[str, int]:
        return dict(Counter(each.fate for book in self.silos.values() for each in book.submitted.values()))

    def figures(self) -> dict[str, Any]:
        applied = [row for row in self.rounds.values() if row.applied]
        return {
            "rounds_applied": len(applied),
            "rounds_skipped": len(self.rounds) - len(applied),
            "updates_recomputed": self.server.recomputed,
            "trainings": sum(book.trainings for book in self.silos.values()),
            "submissions": self.fates(),
            "values_counted_once": self.counted,
            "values_lost_with_unfinished_rounds": self.unfinished,
            "largest_imbalance": max((book.imbalance for book in self.silos.values() if not book.attacks), default=0.0),
            "reveals": sum(len(book.reveals) for book in self.silos.values()),
        }


def _growth(member: Member) -> list[str]:
    """Of each process that lived long enough to tell."""
    found = []
    for pid in {usage.pid for usage in member.usage}:
        settled = [usage for usage in member.usage if usage.pid == pid and usage.age >= SETTLED_AGE]
        if len(settled) < 30:
            continue
        early, late = settled[: len(settled) // 4 + 1], settled[-(len(settled) // 4 + 1) :]
        was, now = max(u.mb for u in early), min(u.mb for u in late)
        if now > was * MEMORY + 4:
            found.append(f"{member.name}: its memory grew from {was:.0f} to {now:.0f} MB in {late[-1].age:.0f} s")
        for what, limit in (("files", FILES), ("threads", THREADS)):
            before, after = max(getattr(u, what) for u in early), min(getattr(u, what) for u in late)
            if after > before + limit:
                found.append(f"{member.name}: its {what} grew from {before} to {after}")
    return found
