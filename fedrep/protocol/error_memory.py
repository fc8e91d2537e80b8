"""The error memory u_k across rounds that may be skipped, lost or lied about (Algorithm 1, and what it leaves open).

Nothing is sent twice. A training's g = u + local update is submitted once; from then on u is what it was before that training,
with zero where values were sent, until proof says more (rule N1). With proof that the values were opened u becomes what was not
sent of g: g off I, and on I the rounding error alone; what lay outside +-R is given up (N2). With proof that they stayed closed
the same g may be proposed again while the model stays. The server's word is no proof, in either direction: a silo that sent
again on it could be solved for, and one that let its memory grow on it would become loud enough to be read in one sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from fedrep.errors import CryptoError, InvalidInputError, NonFiniteError
from fedrep.protocol.manifests import RunHash, SiloName
from fedrep.protocol.messages import Evidence, Statement, SurvivorSet, statement_message
from fedrep.protocol.silo_round import Submitted
from fedrep.protocol.silo_rules import count_confirmations
from fedrep.protocol.thresholds import openable_buffers, share_threshold
from fedrep.secagg.keys import VerifyKey
from fedrep.sparsify import gather


@dataclass(frozen=True, slots=True)
class Contribution:
    """g of one training, not sent yet, or proven to have stayed closed. In memory only: a restarted silo trains again."""

    training: int
    version: int
    g: NDArray[np.float32] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Place:
    """Where and under which terms values were submitted: all that a proof about them is judged by."""

    run: RunHash
    round: int
    silo: SiloName
    buffer: int
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
            submitted.agreement.c2,
            run.min_survivors,
            run.byzantine,
            run.colluders,
            {entry.name: ready.peers[entry.name].verify_key for entry in ready.manifest.roster},
        )


@dataclass(frozen=True, slots=True)
class Pending:
    """Values that were submitted and whose fate is open. `before` is u on I from before the training."""

    place: Place
    contribution: Contribution
    clip_range: float
    indices: NDArray[np.int64] = field(repr=False)
    sent: NDArray[np.float32] = field(repr=False)
    before: NDArray[np.float32] = field(repr=False)


class Fate(Enum):
    """What became of pending values, and what that rests on."""

    OPENED = "opened"
    CLOSED = "closed"
    UNKNOWN = "unknown"
    GIVEN_UP = "given up"


@dataclass(frozen=True, slots=True)
class ErrorMemory:
    """u and the one pending submission. `given_up` and `clipped_mass` are the operator's to know, and never leave the silo."""

    residual: NDArray[np.float32] = field(repr=False)
    pending: Pending | None = None
    given_up: int = 0
    clipped_mass: float = 0.0

    def contribution(self, training: int, version: int, update: NDArray[np.float32]) -> Contribution:
        if update.shape != self.residual.shape:
            raise InvalidInputError(f"the update has {update.shape} values, the error memory {self.residual.shape}")
        with np.errstate(invalid="ignore", over="ignore"):
            g = self.residual + update
            total = g.sum(dtype=np.float64)  # one value that is not finite makes the sum so too
        if not np.isfinite(total):
            raise NonFiniteError("the update holds values that are no finite numbers")
        return Contribution(training, version, g)

    def without_residual(self) -> ErrorMemory:
        return self if not self.residual.any() else replace(self, residual=np.zeros_like(self.residual))

    def submitted(self, contribution: Contribution, submitted: Submitted, sent: NDArray[np.float32] | None = None) -> ErrorMemory:
        """Before SubmitMaskedShare, in one write: the worst case, and what is needed to mend it. `sent` differs in drills."""
        if self.pending is not None:
            raise InvalidInputError("the fate of the last submission must be decided before the next")
        indices = submitted.agreement.indices
        before = gather(self.residual, indices)
        residual = self.residual.copy()
        residual[indices] = 0.0
        values = submitted.values
        given = values.dequantized if sent is None else sent
        pending = Pending(Place.of(submitted), contribution, values.clip_range, indices, given, before)
        return replace(self, residual=residual, pending=pending)

    def settle(self, fate: Fate) -> ErrorMemory:
        """In one write, before the next proposal. UNKNOWN leaves everything as it was."""
        pending = self.pending
        if pending is None or fate is Fate.UNKNOWN:
            return self
        if fate is Fate.GIVEN_UP:
            return replace(self, pending=None, given_up=self.given_up + 1)
        if fate is Fate.CLOSED:
            residual = self.residual.copy()
            residual[pending.indices] = pending.before
            return replace(self, residual=residual, pending=None)
        g = gather(pending.contribution.g, pending.indices)
        kept = np.clip(g, -pending.clip_range, pending.clip_range)
        residual = pending.contribution.g.copy()
        residual[pending.indices] = kept - pending.sent
        clipped = float(np.abs(g - kept).sum(dtype=np.float64))
        return replace(self, residual=residual, pending=None, clipped_mass=self.clipped_mass + clipped)


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
            key.verify(statement.signature, statement_message(place.run, place.round, statement.silo))
        except CryptoError:
            continue
        valid.add(statement.silo)
    return len(valid) >= needed
