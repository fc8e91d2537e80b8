"""The round in progress: who takes part, how it is announced, its machine and its clock."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import numpy as np

from fedrep import buffers
from fedrep.protocol.attendance import Attendance
from fedrep.protocol.clip_range import ClipRange
from fedrep.protocol.manifests import (
    RosterEntry,
    RoundManifest,
    RunManifest,
    SignedRoundManifest,
    SiloName,
    round_manifest_message,
)
from fedrep.protocol.model_state import ModelState
from fedrep.protocol.server_round import ServerRound
from fedrep.secagg.keys import SigningKey, VerifyKey
from fedrep.secagg.transcript import digest


@dataclass
class OpenRound:
    """`marks` holds when each phase started, the round's start first."""

    machine: ServerRound
    signed: SignedRoundManifest
    started_at: float
    marks: list[float]
    timer: asyncio.Task[None] | None = None
    clip_rates: dict[str, float] = field(default_factory=dict)

    @property
    def number(self) -> int:
        return self.signed.manifest.round


@dataclass(frozen=True, slots=True)
class Dice:
    """All randomness of a run on the server, from one secret seed: buffers cannot be foreseen, and a restart draws the same."""

    seed: bytes

    def order(self, rules: RunManifest, number: int) -> tuple[SiloName, ...]:
        """The same shuffle for `reshuffle_every` rounds."""
        return buffers.shuffle(rules.silos, self.generator("buffers", number // rules.reshuffle_every))

    def generator(self, purpose: str, number: int) -> np.random.Generator:
        seed = digest("fedrep/server-random", self.seed, purpose, number)
        return np.random.default_rng(int.from_bytes(seed, "little"))


def next_roster(
    attendance: Attendance, keys: dict[SiloName, VerifyKey], last_round: int, quorum: int
) -> tuple[int, tuple[RosterEntry, ...]]:
    """The next number whose roster reaches the quorum: waiting out penalties must not stop a run for good."""
    first = last_round + 1
    pauses = sorted({s.back_in_round for s in attendance.standings.values() if s.back_in_round > first})
    for number in (first, *pauses):
        roster = tuple(entry for entry in attendance.roster(number) if entry.name in keys)
        if len(roster) >= quorum:
            return number, roster
    return first, ()


def announce(
    rules: RunManifest,
    state: ModelState,
    clip_range: ClipRange,
    number: int,
    roster: tuple[RosterEntry, ...],
    key: SigningKey,
) -> SignedRoundManifest:
    manifest = RoundManifest(
        run=rules.digest(),
        round=number,
        model_version=state.version,
        model_hash=state.hash,
        chain=state.chain,
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
    return SignedRoundManifest(manifest, key.sign(round_manifest_message(manifest)))
