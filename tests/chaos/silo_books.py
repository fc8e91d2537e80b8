"""One silo's books, kept from its trace: what it learned, sent, kept and gave up, to be compared with what it should be.

For each write of the error memory one of four things has happened: values were submitted, were opened, stayed closed, or were
given up. Anything else is a problem. Over all rounds the local updates that were opened are what was sent, what was clipped, and
what is left: `imbalance` is the difference, which rounding alone may make.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.chaos.trace import Frame

Vector = NDArray[Any]


@dataclass
class Submitted:
    training: int
    version: int
    buffer: int
    indices: Vector
    sent: Vector
    fate: str = "open"


@dataclass
class SiloBooks:
    name: str
    attacks: bool
    problems: list[str] = field(default_factory=list)
    submitted: dict[int, Submitted] = field(default_factory=dict)
    models: dict[int, str] = field(default_factory=dict)
    reveals: dict[int, dict[str, str]] = field(default_factory=dict)
    tasks: list[int] = field(default_factory=list)
    trainings: int = 0
    last_version: int = -1
    _memory: Frame | None = None
    _intended: Frame | None = None
    _trained: dict[int, Frame] = field(default_factory=dict)
    _said: dict[tuple[str, int], str] = field(default_factory=dict)
    _digests: dict[str, int] = field(default_factory=dict)
    _ledger: tuple[int, float] = (0, 0.0)
    _learned: Vector | None = None
    _gone: Vector = field(default_factory=lambda: np.zeros(0))
    _largest: float = 0.0

    def read(self, frame: Frame) -> None:
        match frame.kind:
            case "loaded":
                self._load(frame)
            case "intended":
                self._intended = frame
            case "saved" if self._intended is not None:
                self._change(self._intended)
            case "trained":
                self._train(frame)
            case "model":
                self._take_model(frame.notes["version"], frame.notes["hash"])
            case "sent":
                self._send(frame)
            case "ledger":
                self._charge(frame.notes["rounds"], frame.notes["total"])
            case "tasks":
                self.tasks.append(frame.notes["tasks"])

    def _problem(self, text: str) -> None:
        self.problems.append(f"{self.name}: {text}")

    def _load(self, frame: Frame) -> None:
        """What a new process finds is what the last one wrote, or what it was writing when it died."""
        if self._memory is None or _same(self._memory, frame):
            self._memory = self._memory or frame
        elif self._intended is not None and _same(self._intended, frame):
            self._change(self._intended)
        else:
            self._problem("a new process found another memory than the last one had written")
            self._memory = frame
        self._intended = None

    def _train(self, frame: Frame) -> None:
        self.trainings += 1
        update, residual, g = (frame.arrays[name] for name in ("update", "residual", "g"))
        if not np.array_equal(residual + update, g):
            self._problem(f"training {frame.notes['training']}: g is not residual plus update")
        self._trained[frame.notes["training"]] = frame
        for old in [number for number in self._trained if number < frame.notes["training"] - 5]:
            del self._trained[old]

    def _change(self, frame: Frame) -> None:
        before, self._memory, self._intended = self._memory, frame, None
        if before is None:
            return
        was, now = before.notes.get("round"), frame.notes.get("round")
        if was is None and now is not None:
            self._submit(before, frame)
        elif was is not None and now is None:
            self._settle(before, frame)
        elif was != now:
            self._problem(f"round {now} was submitted while the fate of round {was} was open")
        elif not np.array_equal(before.arrays["residual"], frame.arrays["residual"]):
            self._problem(f"the residual changed by itself (round {now})")

    def _submit(self, before: Frame, after: Frame) -> None:
        notes, arrays = after.notes, after.arrays
        number, indices, u = notes["round"], arrays["indices"], before.arrays["residual"]
        if number in self.submitted:
            self._problem(f"round {number} was submitted twice")
        expected = u.copy()
        expected[indices] = 0
        if not (np.array_equal(arrays["residual"], expected) and np.array_equal(arrays["before"], u[indices])):
            self._problem(f"round {number}: what was kept aside is not the residual on I")
        trained = self._trained.get(notes["training"])
        if trained is not None and not np.array_equal(trained.arrays["g"], arrays["g"]):
            self._problem(f"round {number}: g is not that of training {notes['training']}")
        for earlier, each in self.submitted.items():
            if each.training == notes["training"] and each.version == notes["version"] and each.fate != "closed":
                self._problem(f"training {each.training} was submitted in round {earlier}, is {each.fate}, and again in {number}")
        self.submitted[number] = Submitted(notes["training"], notes["version"], notes["buffer"], indices, arrays["sent"])

    def _settle(self, before: Frame, after: Frame) -> None:
        notes, arrays, number = before.notes, before.arrays, before.notes["round"]
        residual, indices, g = after.arrays["residual"], arrays["indices"], arrays["g"]
        kept = np.clip(g[indices], -notes["range"], notes["range"])
        opened = g.copy()
        opened[indices] = kept - arrays["sent"]
        closed = arrays["residual"].copy()
        closed[indices] = arrays["before"]
        if after.notes["given_up"] == notes["given_up"] + 1 and np.array_equal(residual, arrays["residual"]):
            fate = "given up"
        elif np.array_equal(residual, opened):
            fate = "opened"
        elif np.array_equal(residual, closed):
            fate = "closed"
        else:
            fate = "unexplained"
            self._problem(f"round {number} left a memory that no fate explains")
        self._count(before, fate, kept)
        if number in self.submitted:  # unknown where a silo was killed before its first frame was read
            self.submitted[number].fate = fate

    def _count(self, before: Frame, fate: str, kept: Vector) -> None:
        """Off the books goes what was opened, with what was clipped of it, or what was given up; on them the update."""
        notes, arrays = before.notes, before.arrays
        indices, g = arrays["indices"], arrays["g"]
        if self._learned is None:
            self._learned, self._gone = np.zeros(g.size), np.zeros(g.size)
        if fate == "opened":
            trained = self._trained.get(notes["training"])
            self._learned += g.astype(float) - _whole(before) if trained is None else trained.arrays["update"]
            self._gone[indices] += arrays["sent"].astype(float) + (g[indices] - kept)
            self._largest = max(self._largest, float(np.abs(g).max()))
        elif fate == "given up":
            self._gone[indices] += arrays["before"]

    @property
    def imbalance(self) -> float:
        """Of the updates that were opened, what is neither sent, clipped, given up nor kept: in the worst coordinate, relative to
        the largest value there was."""
        if self._learned is None or self._memory is None or not self._largest:
            return 0.0
        missing = self._learned - self._gone - _whole(self._memory)
        return float(np.abs(missing).max()) / self._largest

    def _take_model(self, version: int, digest: str) -> None:
        if self.models.setdefault(version, digest) != digest:
            self._problem(f"held two models of version {version}")
        self.last_version = max(self.last_version, version)

    def _send(self, frame: Frame) -> None:
        what, number = frame.notes["what"], frame.notes["round"]
        if what == "reveal":
            told = {dealer: secret for dealer, secret, _ in frame.notes["shares"]}
            if len(told) != len(frame.notes["shares"]):
                self._problem(f"round {number}: more than one share of a dealer was revealed")
            if self.reveals.setdefault(number, told) != told:
                self._problem(f"round {number}: two different reveals")
            return
        digest = frame.notes["digest"]
        if self._said.setdefault((what, number), digest) != digest:
            self._problem(f"round {number}: two different {what}s")
        if what == "submission" and self._digests.setdefault(digest, number) != number:
            self._problem(f"the same masked values left in rounds {self._digests[digest]} and {number}")

    def _charge(self, rounds: int, total: float | None) -> None:
        spent = float("inf") if total is None else total
        if rounds < self._ledger[0] or spent < self._ledger[1]:
            self._problem(f"the ledger went back from {self._ledger} to {(rounds, spent)}")
        self._ledger = (rounds, spent)


def _whole(frame: Frame) -> Vector:
    """The residual as it is if pending values stay closed."""
    residual: Vector = frame.arrays["residual"].astype(float)
    if "before" in frame.arrays:
        residual[frame.arrays["indices"]] = frame.arrays["before"]
    return residual


def _same(one: Frame, other: Frame) -> bool:
    if one.notes.get("round") != other.notes.get("round") or one.arrays.keys() != other.arrays.keys():
        return False
    return all(np.array_equal(array, other.arrays[name]) for name, array in one.arrays.items())
