"""What a run and a round are: fixed by an admin's and the server's signature, hashed into everything that follows.

`run` in every other message is the hash of the run manifest; C1 is the hash of the round manifest. A silo that is shown another
manifest than its mates therefore derives other masks and other signatures, and can be combined with nobody.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, NewType

from fedrep.errors import InvalidInputError
from fedrep.protocol.thresholds import share_threshold
from fedrep.secagg.transcript import Encoded, Field, digest, encode, encoded_tuple

SiloName = NewType("SiloName", str)
RunHash = NewType("RunHash", bytes)

LONGEST_SESSION = 16  # rounds: what was learned of a silo's secrets is worth nothing after so many


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds each phase may last."""

    propose: float
    submit: float
    confirm: float
    reveal: float


@dataclass(frozen=True, slots=True)
class RecordPromise:
    """A silo's word that one of its training records will never cost more, over everything trained on its data set.

    It is signed, so that nobody else can give it, and it is no proof: nobody sees how a silo trains.
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.epsilon) and self.epsilon >= 0.0):
            raise InvalidInputError(f"epsilon = {self.epsilon} is no promise; it must be 0 or more", reason="BAD_PROMISE")
        if not 0.0 <= self.delta < 1.0:
            raise InvalidInputError(f"delta = {self.delta} is no promise; it must lie from 0 to below 1", reason="BAD_PROMISE")
        if math.copysign(1.0, self.epsilon) < 0.0 or math.copysign(1.0, self.delta) < 0.0:  # equal to zero, signed as another
            raise InvalidInputError("a negative zero is no promise; write 0", reason="BAD_PROMISE")

    def __str__(self) -> str:
        return f"epsilon {self.epsilon!r} at delta {self.delta!r}"


@dataclass(frozen=True, slots=True)
class RunManifest:
    """The rules of a run, signed by an admin; silos compare all of it with their own policy before they join.

    `rounds` is the number of the last round. An amended manifest names the hash of the one before, `predecessor`, and is in
    force from `from_round` on, the first round of an epoch. With `record_epsilon_at_most` and `delta_at_most` every silo must
    promise that its training records cost no more.
    """

    name: str
    silos: tuple[SiloName, ...]
    parameters: int
    layout_hash: bytes
    model_hash: bytes
    coordinates: int
    alpha: float
    buffer_size: int
    reshuffle_every: int
    ring_bits: int
    value_bits: int
    downlink_bits: int
    initial_range: float
    smallest_range: float
    largest_range: float
    quorum: int
    min_survivors: int
    colluders: int
    byzantine: int
    aggregator: str
    aggregator_settings: str
    rounds: int
    deadlines: Deadlines
    drills: bool
    buffer_seed: bytes
    predecessor: bytes = b""
    from_round: int = 0
    record_epsilon_at_most: float | None = None
    delta_at_most: float | None = None
    _digest: bytes = field(default=b"", init=False, repr=False, compare=False)

    @property
    def asks_for_promise(self) -> bool:
        return self.record_epsilon_at_most is not None or self.delta_at_most is not None

    @property
    def record_limit(self) -> str:
        """For people."""
        return f"epsilon {self.record_epsilon_at_most or 0.0!r} at delta {self.delta_at_most or 0.0!r}"

    def is_met_by(self, promise: RecordPromise | None) -> bool:
        """Whether a silo may take part with this promise. One limit without the other leaves nothing of the other."""
        if not self.asks_for_promise:
            return True
        epsilon, delta = self.record_epsilon_at_most or 0.0, self.delta_at_most or 0.0
        return promise is not None and promise.epsilon <= epsilon and promise.delta <= delta

    @property
    def session_rounds(self) -> int:
        """How many rounds session keys last: the epoch of the buffers, and never long."""
        return max(1, min(self.reshuffle_every, LONGEST_SESSION))

    def session_start(self, round_number: int) -> int:
        """The first round of the session that a round belongs to."""
        return round_number - round_number % self.session_rounds

    def digest(self) -> RunHash:
        """Worked out once: every message of a round names it."""
        if not self._digest:
            object.__setattr__(self, "_digest", digest("fedrep/run", _flat(self)))
        return RunHash(self._digest)


@dataclass(frozen=True, slots=True)
class SignedRunManifest:
    manifest: RunManifest
    admin: str
    certificate: bytes
    signature: bytes


@dataclass(frozen=True, slots=True)
class RosterEntry:
    """A silo that takes part in the round, and the key its shares are sealed to, signed over (run, key) and its promise."""

    name: SiloName
    fingerprint: bytes
    session_key: bytes
    session_signature: bytes
    promise: RecordPromise | None = None
    _encoded: bytes = field(default=b"", init=False, repr=False, compare=False)

    def encoded(self) -> bytes:
        """For transcripts. Worked out once: a session lists the same entry in each of its rounds."""
        if not self._encoded:
            object.__setattr__(self, "_encoded", encode(_pairs(self)))
        return self._encoded

    def __hash__(self) -> int:
        return hash(self.session_signature)  # which bytes remember


@dataclass(frozen=True, slots=True)
class RoundManifest:
    """The round as the server announces it: who takes part, from which model, under which limits."""

    run: RunHash
    round: int
    model_version: int
    model_hash: bytes
    chain: bytes
    roster: tuple[RosterEntry, ...]
    parameters: int
    coordinates: int
    per_silo: int
    alpha: float
    buffer_size: int
    ring_bits: int
    value_bits: int
    clip_range: float
    byzantine: int
    deadlines: Deadlines
    _context: bytes = field(default=b"", init=False, repr=False, compare=False)
    _entries: dict[str, RosterEntry] | None = field(default=None, init=False, repr=False, compare=False)
    _names: tuple[SiloName, ...] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def names(self) -> tuple[SiloName, ...]:
        if self._names is None:
            object.__setattr__(self, "_names", tuple(entry.name for entry in self.roster))
        assert self._names is not None
        return self._names

    @property
    def threshold(self) -> int:
        return share_threshold(len(self.roster))

    def entry(self, name: str) -> RosterEntry | None:
        """The first of that name: rules refuse a roster with two."""
        if self._entries is None:
            object.__setattr__(self, "_entries", {entry.name: entry for entry in reversed(self.roster)})
        assert self._entries is not None
        return self._entries.get(name)

    def context(self) -> bytes:
        """C1: the hash that the records' signatures and the shares' associated data are bound to. Worked out once."""
        if not self._context:
            object.__setattr__(self, "_context", digest("fedrep/c1", self.run, self.round, _flat(self)))
        return self._context


@dataclass(frozen=True, slots=True)
class SignedRoundManifest:
    """`certificate` is the server's new chain if it was renewed after the process started; empty otherwise."""

    manifest: RoundManifest
    signature: bytes
    certificate: bytes = b""


def roster_digest(roster: tuple[RosterEntry, ...]) -> bytes:
    """What a silo names a roster by that it need not be sent again."""
    return digest("fedrep/roster", _encoded_roster(roster))


def session_key_message(run: bytes, key: bytes, promise: RecordPromise | None = None) -> bytes:
    """A key and a promise stand under one signature: a server that leaves the promise out, or alters it, has an unsigned key."""
    promised = () if promise is None else (promise.epsilon, promise.delta)
    return digest("fedrep/session-key", run, key, *promised)


def run_manifest_message(manifest: RunManifest) -> bytes:
    return digest("fedrep/sign/run", manifest.digest())


def round_manifest_message(manifest: RoundManifest) -> bytes:
    return digest("fedrep/sign/round", manifest.context())


def _flat(value: object) -> Field:
    """A dataclass as nested (field name, value) pairs, so that no two manifests share an encoding.

    What is absent (None) is left out, so that a field that is added changes no hash of what does not use it.
    """
    if isinstance(value, (int, str, bytes, float)):
        return value
    if isinstance(value, tuple):
        return _encoded_roster(value) if value and isinstance(value[0], RosterEntry) else tuple(_flat(item) for item in value)
    return _pairs(value)


def _encoded_roster(roster: tuple[RosterEntry, ...]) -> Encoded:
    return Encoded(encoded_tuple([entry.encoded() for entry in roster]))


def _pairs(value: object) -> Field:
    kind: Any = type(value)
    pairs = ((name, getattr(value, name)) for name in signed_fields(kind))
    return tuple((name, _flat(item)) for name, item in pairs if item is not None)


@cache
def signed_fields(kind: Any) -> tuple[str, ...]:
    """By name, without what an object only remembers about itself."""
    return tuple(each.name for each in fields(kind) if not each.name.startswith("_"))
