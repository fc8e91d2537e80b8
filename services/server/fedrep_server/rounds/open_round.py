"""The round in progress: who takes part, how it is announced, its machine and its clock."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from fedrep import buffers
from fedrep.errors import FedrepError
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
from fedrep_identity.certificates import Credentials
from fedrep_server.rounds.closing import Clock


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

    def clock(self) -> Clock:
        return Clock(self.started_at, tuple(self.marks))


class Releases:
    """What each silo proposed last: the same coordinates again release nothing new, and cost no epsilon."""

    def __init__(self) -> None:
        self._last: dict[SiloName, bytes] = {}

    def repeated(self, machine: ServerRound) -> frozenset[str]:
        now = machine.proposed_coordinates()
        same = frozenset(silo for silo, code in now.items() if self._last.get(silo) == code)
        self._last.update(now)
        return same


class Seal:
    """The server's signature under round manifests. A certificate that is renewed while the server runs is used from the
    next round on, and sent along, because silos know only the one that Join named."""

    def __init__(self, folder: Path, first: Credentials) -> None:
        self._folder = folder
        self.first = first
        self._now = first
        self._seen = self._stamp()

    def current(self) -> tuple[SigningKey, bytes]:
        """The key, and the chain if it is not the first one. A folder that is half replaced leaves the old pair in use."""
        stamp = self._stamp()
        if stamp != self._seen:
            with suppress(FedrepError, OSError):
                self._now = Credentials.load(self._folder)
                self._seen = stamp
        return self._now.signing_key, b"" if self._now.chain == self.first.chain else self._now.chain

    def _stamp(self) -> tuple[int, ...]:
        return tuple(path.stat().st_mtime_ns for path in sorted(self._folder.glob("*.pem")))


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
    seal: Seal,
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
    key, renewed = seal.current()
    return SignedRoundManifest(manifest, key.sign(round_manifest_message(manifest)), renewed)


def quiet_after_restart(attendance: Attendance) -> Attendance:
    """Penalties and exclusions outlast a restart; presence does not: silos join again."""
    absent = {name: replace(standing, present=False) for name, standing in attendance.standings.items()}
    return replace(attendance, standings=absent)
