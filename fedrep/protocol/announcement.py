"""The next round, before anybody hears of it: its number, who takes part, and what is announced."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import numpy as np

from fedrep.protocol.attendance import Attendance, SessionName
from fedrep.protocol.clip_range import ClipRange
from fedrep.protocol.manifests import RosterEntry, RoundManifest, RunManifest, SiloName
from fedrep.protocol.messages import ModelName
from fedrep.secagg.transcript import digest


@dataclass(frozen=True, slots=True)
class Dice:
    """The server's own randomness in a run, for rules that draw, from one secret seed: a restart draws the same."""

    seed: bytes = field(repr=False)

    def generator(self, purpose: str, number: int) -> np.random.Generator:
        seed = digest("fedrep/server-random", self.seed, purpose, number)
        return np.random.default_rng(int.from_bytes(seed, "little"))


def next_roster(
    attendance: Attendance,
    known: Collection[SiloName],
    last_round: int,
    quorum: int,
    session: Callable[[int], SessionName | None] = lambda _: None,
) -> tuple[int, tuple[RosterEntry, ...]]:
    """The next number whose roster reaches the quorum: waiting out penalties must not stop a run for good.

    `known` are the silos whose signatures can be checked; `session` names the session of a round.
    """
    first = last_round + 1
    pauses = sorted({s.back_in_round for s in attendance.standings.values() if s.back_in_round > first})
    for number in (first, *pauses):
        roster = tuple(entry for entry in attendance.roster(number, session(number)) if entry.name in known)
        if len(roster) >= quorum:
            return number, roster
    return first, ()


def announce(
    rules: RunManifest, model: ModelName, clip_range: ClipRange, number: int, roster: tuple[RosterEntry, ...]
) -> RoundManifest:
    return RoundManifest(
        run=rules.digest(),
        round=number,
        model_version=model.version,
        model_hash=model.hash,
        chain=model.chain,
        roster=roster,
        parameters=rules.parameters,
        coordinates=rules.coordinates,
        per_silo=rules.coordinates // len(roster),
        alpha=rules.alpha,
        buffer_size=rules.buffer_size,
        ring_bits=rules.ring_bits,
        value_bits=rules.value_bits,
        clip_range=clip_range.value,
        byzantine=rules.byzantine,
        deadlines=rules.deadlines,
    )
