"""The error memory u_k across rounds that may be skipped, lost or lied about (Algorithm 1, and what it leaves open).

Nothing is sent twice. A training's g = u + local update is submitted once; from then on u is what it was before that training,
with zero where values were sent, until proof says more (rule N1). With proof that the values were opened u becomes what was not
sent of g: g off I, and on I the rounding error alone; what lay outside +-R is given up (N2). With proof that they stayed closed
the same g may be proposed again while the model stays. The server's word is no proof, in either direction: a silo that sent
again on it could be solved for, and one that let its memory grow on it would become loud enough to be read in one sum.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from fedrep.errors import CryptoError, InvalidInputError, NonFiniteError
from fedrep.patched import Difference, Largest, Patch, Patched
from fedrep.protocol.manifests import RunHash, SiloName
from fedrep.protocol.messages import Evidence, Statement, SurvivorSet, statement_message
from fedrep.protocol.silo_round import Submitted
from fedrep.protocol.silo_rules import count_confirmations
from fedrep.protocol.thresholds import openable_buffers, share_threshold
from fedrep.secagg.keys import VerifyKey
from fedrep.sparsify import gather


@dataclass(frozen=True, slots=True)
class Contribution:
    """g of one training, not sent yet, or proven to have stayed closed. In memory only: a restarted silo trains again.

    `peak` is the largest magnitude in g, and `largest` holds where the largest lie, if that is known.
    """

    training: int
    version: int
    g: NDArray[np.float32] = field(repr=False)
    peak: float | None = None
    largest: Largest | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Where and under which terms values were submitted: all that a proof about them is judged by."""

    run: RunHash
    round: int
    silo: SiloName
    buffer: int
    c1: bytes
    c2: bytes
    min_survivors: int
    byzantine: int
    colluders: int
    holders: Mapping[SiloName, VerifyKey]

    @classmethod
    def of(cls, submitted: Submitted) -> Place:
        ready, run = submitted.agreement.ready, submitted.agreement.ready.member.run
        return cls(
            ready.manifest.run,
            ready.manifest.round,
            ready.member.name,
            submitted.place,
            ready.c1,
            submitted.agreement.c2,
            run.min_survivors,
            run.byzantine,
            run.colluders,
            {entry.name: ready.peers[entry.name].verify_key for entry in ready.manifest.roster},
        )


@dataclass(frozen=True, slots=True)
class Pending:
    """Values that were submitted and whose fate is open. `coordinates` are `indices`, coded, where they came so."""

    place: Place
    contribution: Contribution
    clip_range: float
    indices: NDArray[np.int64] = field(repr=False)
    sent: NDArray[np.float32] = field(repr=False)
    coordinates: bytes = field(default=b"", repr=False)


class Fate(Enum):
    """What became of pending values, and what that rests on."""

    OPENED = "opened"
    CLOSED = "closed"
    UNKNOWN = "unknown"
    GIVEN_UP = "given up"


@dataclass(frozen=True, slots=True)
class ErrorMemory:
    """u and the one pending submission. `given_up` and `clipped_mass` are the operator's to know, and never leave the silo.

    u is `base` but for the places of `patch`; while values are pending that is u from before the training, and zero on I. So
    no step of a round copies a whole vector: the g of a round whose values were opened is the base of the next.
    """

    base: NDArray[np.float32] = field(repr=False)
    pending: Pending | None = None
    given_up: int = 0
    clipped_mass: float = 0.0
    patch: Patch | None = field(default=None, repr=False)

    @property
    def before(self) -> Patched:
        """u from before the training whose values are pending; u itself if none are."""
        return Patched(self.base, self.patch)

    @property
    def worst(self) -> Patched:
        """u, with zero where pending values were sent."""
        return self.before if self.pending is None else self.before.with_patch(_zeros(self.pending.indices))

    @property
    def residual(self) -> NDArray[np.float32]:
        """u as one vector, usually a copy."""
        return self.worst.dense()

    def contribution(
        self,
        training: int,
        version: int,
        update: NDArray[np.float32] | Difference,
        room: NDArray[np.float32] | None = None,
        top: int | None = None,
    ) -> Contribution:
        """g = u + update. `room` is where it is put, if there is some; `top` is how many of its coordinates will be proposed."""
        if update.shape != self.base.shape:
            raise InvalidInputError(f"the update has {update.shape} values, the error memory {self.base.shape}")
        total = self.worst.plus(update, room, top)
        if not math.isfinite(total.peak):
            raise NonFiniteError("the local update holds NaN or infinity; lower the learning rate or clip gradients")
        return Contribution(training, version, total.vector, total.peak, total.largest)

    def without_residual(self) -> ErrorMemory:
        empty = not any(tile.any() for tile in self.before.tiles())
        return self if empty else replace(self, base=np.zeros_like(self.base), patch=None)

    def submitted(self, contribution: Contribution, submitted: Submitted, sent: NDArray[np.float32] | None = None) -> ErrorMemory:
        """Before SubmitMaskedShare, in one write: the worst case, and what is needed to mend it. `sent` differs in drills."""
        if self.pending is not None:
            raise InvalidInputError("the fate of the last submission must be decided before the next")
        values = submitted.values
        given = values.dequantized if sent is None else sent
        agreed = submitted.agreement
        pending = Pending(Place.of(submitted), contribution, values.clip_range, agreed.indices, given, agreed.coordinates)
        return replace(self, pending=pending)

    def settle(self, fate: Fate) -> ErrorMemory:
        """In one write, before the next proposal. UNKNOWN leaves everything as it was."""
        pending = self.pending
        if pending is None or fate is Fate.UNKNOWN:
            return self
        if fate is Fate.GIVEN_UP:
            worst = self.worst
            return replace(self, base=worst.base, patch=worst.patch, pending=None, given_up=self.given_up + 1)
        if fate is Fate.CLOSED:
            return replace(self, pending=None)
        g = gather(pending.contribution.g, pending.indices)
        kept = np.clip(g, -pending.clip_range, pending.clip_range)
        outside = np.subtract(g, kept, out=g)  # in place, as below: these are as long as I
        clipped = float(np.abs(outside, out=outside).sum(dtype=np.float64))
        patch = Patch(pending.indices, np.subtract(kept, pending.sent, out=kept))
        return ErrorMemory(pending.contribution.g, None, self.given_up, self.clipped_mass + clipped, patch)


def judge(place: Place, evidence: Evidence) -> Fate:
    """OPENED and CLOSED take proof: t holders' signatures on one U, or so many renunciations that t shares cannot exist."""
    survivors = evidence.survivors
    if survivors is not None:
        threshold = share_threshold(len(place.holders))
        if count_confirmations(evidence.confirmations, place.c2, survivors, place.holders, threshold) >= threshold:
            return Fate.OPENED if opens(place, survivors) else Fate.CLOSED  # no second U can reach t
    return Fate.CLOSED if _renounced(place, evidence.statements) else Fate.UNKNOWN


def opens(place: Place, survivors: SurvivorSet) -> bool:
    """Whether rule 4 opens this silo's buffer with the silo in it."""
    openable = openable_buffers(survivors.buffers, place.min_survivors, place.byzantine)
    return place.buffer in openable and any(each.silo == place.silo for each in survivors.buffers[place.buffer])


def _zeros(indices: NDArray[np.int64]) -> Patch:
    return Patch(indices, np.zeros(indices.size, np.float32))


def _renounced(place: Place, statements: tuple[Statement, ...]) -> bool:
    """So many holders renounced that fewer than t shares can exist, even if c + f of them lie."""
    holders = len(place.holders)
    needed = holders - share_threshold(holders) + 1 + place.colluders + place.byzantine
    valid: set[SiloName] = set()
    for statement in statements:
        key = place.holders.get(statement.silo)
        if key is None or statement.silo in valid or (statement.run, statement.round) != (place.run, place.round):
            continue
        try:
            key.verify(statement.signature, statement_message(place.run, place.round, place.c1, statement.silo))
        except CryptoError:
            continue
        valid.add(statement.silo)
    return len(valid) >= needed
