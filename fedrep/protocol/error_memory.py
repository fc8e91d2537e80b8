"""The error memory u_k across rounds that may be skipped, lost or lied about (Algorithm 1, and what it leaves open).

Values that were submitted leave the residual at once and are kept as `pending`. They come back only with proof that nobody can
have opened them: a server's word is not proof, since a silo that sends the same values again in another group can be solved for.
All objects are frozen; the caller writes the new state to disk before the message that depends on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedrep.errors import CryptoError, InvalidInputError
from fedrep.protocol.manifests import RunHash, SiloName
from fedrep.protocol.messages import Outcome, Statement, SurvivorSet, Update, statement_message
from fedrep.protocol.silo_round import Submitted
from fedrep.protocol.silo_rules import count_confirmations
from fedrep.protocol.thresholds import openable_buffers, share_threshold
from fedrep.secagg.keys import VerifyKey
from fedrep.sparsify import residual as rest


@dataclass(frozen=True, slots=True)
class Pending:
    """Values of one round whose fate is open, with all that is needed to judge a proof about them later."""

    run: RunHash
    round: int
    silo: SiloName
    place: int
    c2: bytes
    min_survivors: int
    byzantine: int
    colluders: int
    holders: Mapping[SiloName, VerifyKey]
    indices: NDArray[np.int64] = field(repr=False)
    sent: NDArray[np.float32] = field(repr=False)

    @classmethod
    def of(cls, submitted: Submitted) -> Pending:
        agreement = submitted.agreement
        ready = agreement.ready
        run = ready.member.run
        return cls(
            ready.manifest.run,
            ready.manifest.round,
            ready.member.name,
            submitted.place,
            agreement.c2,
            run.min_survivors,
            run.byzantine,
            run.colluders,
            {entry.name: ready.peers[entry.name].verify_key for entry in ready.manifest.roster},
            agreement.indices,
            submitted.values.dequantized,
        )


class Fate(Enum):
    """What became of pending values."""

    USED = "used"
    RESTORED = "restored"
    UNDECIDED = "undecided"
    GIVEN_UP = "given up"


@dataclass(frozen=True)
class ErrorMemory:
    """u, the local update not yet folded in, and the pending values; `trained_version` is the version already trained on."""

    residual: NDArray[np.float32] = field(repr=False)
    trained_version: int | None = None
    update: NDArray[np.float32] | None = field(default=None, repr=False)
    pending: tuple[Pending, ...] = ()
    given_up: int = 0

    def lasts_like(self, other: ErrorMemory) -> bool:
        """Whether both are the same on disk: an update that was not submitted lives in memory only, and is trained again."""
        same = self.residual is other.residual and self.pending is other.pending and self.given_up == other.given_up
        return same and self.lasting_version == other.lasting_version

    @property
    def lasting_version(self) -> int | None:
        return self.trained_version if self.update is None else None

    def needs_training(self, model_version: int) -> bool:
        """A silo trains once per model version; training again on a restored g diverges."""
        return self.trained_version != model_version

    def trained(self, model_version: int, update: NDArray[np.float32]) -> ErrorMemory:
        """An update of an older version that was never submitted is forgotten: a late silo does not pile up stale ones."""
        if update.shape != self.residual.shape:
            raise InvalidInputError(f"the update has {update.shape} values, the error memory {self.residual.shape}")
        return replace(self, trained_version=model_version, update=update)

    def g(self) -> NDArray[np.float32]:
        """g = u + local update, less anything pending (which already left the residual)."""
        return self._g

    @cached_property
    def _g(self) -> NDArray[np.float32]:
        # A round reads g three times: to propose, to submit, and for what stays behind. Nobody may change it in between.
        if self.update is None:
            return self.residual
        total = self.residual + self.update
        total.flags.writeable = False
        return total

    def submitted(self, pending: Pending) -> ErrorMemory:
        """u <- g - sent, so that quantization error and clipped mass stay in the residual."""
        left = rest(self.g(), pending.indices, pending.sent)
        return replace(self, residual=left, update=None, pending=(*self.pending, pending))

    def settle(self, update: Update) -> tuple[ErrorMemory, Fate | None]:
        """Judge the pending values of the update's round; None if there are none."""
        pending = next((p for p in self.pending if (p.run, p.round) == (update.run, update.round)), None)
        if pending is None:
            return self, None
        fate = judge(pending, update)
        if fate is Fate.UNDECIDED:
            return self, fate
        others = tuple(p for p in self.pending if p is not pending)
        if fate is Fate.RESTORED:
            restored = self.residual.copy()
            restored[pending.indices] += pending.sent
            return replace(self, residual=restored, pending=others), fate
        lost = 1 if fate is Fate.GIVEN_UP else 0
        return replace(self, pending=others, given_up=self.given_up + lost), fate

    def give_up(self, round_number: int) -> ErrorMemory:
        """No proof came in time: the values of this round are lost, and counted."""
        kept = tuple(p for p in self.pending if p.round != round_number)
        return replace(self, pending=kept, given_up=self.given_up + len(self.pending) - len(kept))


def judge(pending: Pending, update: Update) -> Fate:
    """USED and GIVEN_UP take the server's word (they send nothing again); RESTORED takes proof."""
    if _was_opened(pending, update):
        return Fate.USED
    if _proved_closed_by_survivors(pending, update) or _proved_closed_by_statements(pending, update.evidence.statements):
        return Fate.RESTORED
    if update.outcome is Outcome.APPLIED:
        return Fate.GIVEN_UP
    return Fate.UNDECIDED


def _was_opened(pending: Pending, update: Update) -> bool:
    evidence = update.evidence
    if update.outcome is not Outcome.APPLIED or evidence.survivors is None or pending.place not in evidence.opened:
        return False
    return pending.silo in evidence.survivors.names()


def _proved_closed_by_survivors(pending: Pending, update: Update) -> bool:
    """t holders confirmed a U under which rule 4 does not open this silo; no second U can reach t."""
    evidence = update.evidence
    if evidence.survivors is None:
        return False
    threshold = share_threshold(len(pending.holders))
    if count_confirmations(evidence.confirmations, pending.c2, evidence.survivors, pending.holders, threshold) < threshold:
        return False
    return not _opens(pending, evidence.survivors)


def _opens(pending: Pending, survivors: SurvivorSet) -> bool:
    openable = openable_buffers(survivors.buffers, pending.min_survivors, pending.byzantine)
    return pending.place in openable and pending.silo in survivors.names()


def _proved_closed_by_statements(pending: Pending, statements: tuple[Statement, ...]) -> bool:
    """So many holders renounced that fewer than t shares can exist, even if c + f of them lie."""
    holders = len(pending.holders)
    needed = holders - share_threshold(holders) + 1 + pending.colluders + pending.byzantine
    valid: set[SiloName] = set()
    for statement in statements:
        key = pending.holders.get(statement.silo)
        if key is None or statement.silo in valid:
            continue
        if (statement.run, statement.round) != (pending.run, pending.round):
            continue
        try:
            key.verify(statement.signature, statement_message(pending.run, pending.round, statement.silo))
        except CryptoError:
            continue
        valid.add(statement.silo)
    return len(valid) >= needed
