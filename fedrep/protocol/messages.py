"""Every message of a round and every effect of the server's machine, frozen, in the order in which a round uses them.

Vectors travel as bytes in their canonical coding, so that "an identical resend" is plain equality and hashes need no second form.
Each signed message has one function that gives the bytes under the signature, with a type tag of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from fedrep.protocol.manifests import RunHash, SiloName
from fedrep.secagg.transcript import (
    digest,
    digest_encoded,
    digest_of_bytes,
    encode_bytes,
    encode_context,
    encode_text,
    encoded_list,
    encoded_tuple,
)


@dataclass(frozen=True, slots=True)
class Record:
    """What a silo commits to for the round. Mates check it without seeing the proposal behind it."""

    silo: SiloName
    mask_key: bytes
    seed_commitment: bytes
    next_session_key: bytes
    shares_digest: bytes
    signature: bytes

    def digest(self, c1: bytes) -> bytes:
        """The bytes under the signature; also what stands for the record in the assignment."""
        return digest(
            "fedrep/record",
            c1,
            self.silo,
            self.mask_key,
            self.seed_commitment,
            self.next_session_key,
            self.shares_digest,
        )


@dataclass(frozen=True, slots=True)
class Proposal:
    """I_k and everything needed to recover this silo if it vanishes. Tuples run over the holders in roster order.

    `clips` and `quiet` are about all of g, before I exists (N3): more than a few values outside +-R; all of them below R/8.
    """

    silo: SiloName
    run: RunHash
    round: int
    coordinates: bytes
    record: Record
    next_session_signature: bytes
    sealed_shares: tuple[bytes, ...]
    seed_share_hashes: tuple[bytes, ...]
    key_share_hashes: tuple[bytes, ...]
    clips: bool = False
    quiet: bool = False


@dataclass(frozen=True, slots=True)
class Abstention:
    """A silo's word that it proposes nothing in this round. It stays a holder, and is not waited for."""

    silo: SiloName
    run: RunHash
    round: int
    next_session_key: bytes
    next_session_signature: bytes


def share_list_digest(seed_hashes: tuple[bytes, ...], key_hashes: tuple[bytes, ...]) -> bytes:
    return digest("fedrep/share-list", encoded_list(seed_hashes), encoded_list(key_hashes))


def share_hash(share: bytes) -> bytes:
    return digest_of_bytes("fedrep/share", share)


@dataclass(frozen=True, slots=True)
class Assigned:
    """A silo's place in a buffer, and the hash of the record it stands there with."""

    silo: SiloName
    record_digest: bytes


Assignment = tuple[tuple[Assigned, ...], ...]


@dataclass(frozen=True, slots=True)
class Consensus:
    """The answer to GetConsensus for one silo: I, all buffers, its mates' records, the shares it now holds."""

    run: RunHash
    round: int
    coordinates: bytes
    assignment: Assignment
    mates: tuple[Record, ...]
    shares: tuple[tuple[SiloName, bytes], ...]


def consensus_context(c1: bytes, coordinates: bytes, assignment: Assignment) -> bytes:
    """C2: one value for the whole federation, or the masks of two silos do not cancel."""
    places = [
        encoded_tuple([encoded_tuple((encode_text(place.silo), encode_bytes(place.record_digest))) for place in buffer])
        for buffer in assignment
    ]
    assigned = digest_encoded("fedrep/assignment", encoded_tuple(places))
    return digest("fedrep/c2", c1, digest("fedrep/consensus", coordinates), assigned)


@dataclass(frozen=True, slots=True)
class Submission:
    """y, masked, and the signature that vouches that this silo stands in the assignment it was shown.

    `macs` say the same to each holder, in roster order: a holder that finds its own right need not check the signature.
    `sha256` is that of `masked`, where whoever took it has checked it already.
    """

    silo: SiloName
    run: RunHash
    round: int
    masked: bytes | memoryview
    signature: bytes
    macs: bytes = b""
    sha256: bytes = field(default=b"", compare=False)


def submission_message(c2: bytes, silo: SiloName) -> bytes:
    return digest_encoded("fedrep/submission", encode_context(c2) + encode_text(silo))


@dataclass(frozen=True, slots=True)
class Survivor:
    silo: SiloName
    signature: bytes


@dataclass(frozen=True, slots=True)
class SurvivorSet:
    """U: for every buffer of the assignment, in its order, the silos whose submission was accepted.

    `macs` are what the survivors made for whoever is told, in their order; no part of U.
    """

    buffers: tuple[tuple[Survivor, ...], ...]
    macs: tuple[bytes, ...] = field(default=(), compare=False)
    _digest: bytes = field(default=b"", init=False, repr=False, compare=False)

    def digest(self) -> bytes:
        """Worked out once: it is signed, and then looked for in everybody's confirmation."""
        if not self._digest:
            names = [encoded_tuple([encode_text(survivor.silo) for survivor in buffer]) for buffer in self.buffers]
            object.__setattr__(self, "_digest", digest_encoded("fedrep/survivors", encoded_tuple(names)))
        return self._digest

    def names(self) -> frozenset[SiloName]:
        return frozenset(s.silo for buffer in self.buffers for s in buffer)


@dataclass(frozen=True, slots=True)
class Confirmation:
    """`macs` say the same as the signature to each holder, in roster order."""

    silo: SiloName
    run: RunHash
    round: int
    signature: bytes
    macs: bytes = b""


def confirmation_message(c2: bytes, survivors: SurvivorSet) -> bytes:
    return digest("fedrep/confirmation", c2, survivors.digest())


Signatures = tuple[tuple[SiloName, bytes], ...]


class Secret(Enum):
    """Which of a dealer's two secrets a share belongs to."""

    SEED = "seed"
    KEY = "key"


@dataclass(frozen=True, slots=True)
class RevealedShare:
    dealer: SiloName
    secret: Secret
    share: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Reveal:
    silo: SiloName
    run: RunHash
    round: int
    shares: tuple[RevealedShare, ...]


@dataclass(frozen=True, slots=True)
class Statement:
    """A holder's word that it revealed nothing in this round and never will.

    `c1` is the round's, by which the server checks the signature; silos judge it by the C1 under which they sent values.
    """

    silo: SiloName
    run: RunHash
    round: int
    signature: bytes
    c1: bytes = b""


def statement_message(run: RunHash, round_number: int, c1: bytes, silo: SiloName) -> bytes:
    return digest("fedrep/statement", run, round_number, c1, silo)


class Outcome(Enum):
    APPLIED = "applied"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class ModelName:
    """Which model: its version, the hash of its parameters, and the chain of hashes that led to it."""

    version: int
    hash: bytes
    chain: bytes


@dataclass(frozen=True, slots=True)
class SignedRollback:
    """An admin's word that the run goes on from another model than its updates lead to (N5)."""

    run: RunHash
    version: int
    model_hash: bytes
    admin: str
    certificate: bytes
    signature: bytes


def rollback_message(run: RunHash, version: int, model_hash: bytes) -> bytes:
    return digest("fedrep/sign/rollback", run, version, model_hash)


@dataclass(frozen=True, slots=True)
class Descent:
    """G on I as it goes down. `levels` and `scale` give its values; `coordinates` are left out for a silo that holds them."""

    coordinates: bytes
    levels: bytes
    scale: float
    bits: int


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a silo judges by what became of its values: U and who confirmed it, who renounced, and which buffers were opened."""

    survivors: SurvivorSet | None = None
    confirmations: Signatures = ()
    statements: tuple[Statement, ...] = ()
    opened: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Update:
    """The answer to GetUpdate. A skipped round has no descent, and names the model that stays."""

    run: RunHash
    round: int
    outcome: Outcome
    reason: str
    model: ModelName
    evidence: Evidence = Evidence()
    descent: Descent | None = None


class Phase(Enum):
    PROPOSE = "propose"
    SUBMIT = "submit"
    CONFIRM = "confirm"
    REVEAL = "reveal"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """Time as an event: the phase's time is over. `cut` if that was less time than the run's manifest grants."""

    phase: Phase
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Away:
    """This silo is waited for no longer; `why` goes on after its name. What it still sends counts like anything else.

    `for_good`: it has said that it left the round, and a connection does not bring it back into it.
    """

    silo: SiloName
    why: str
    for_good: bool = False


@dataclass(frozen=True, slots=True)
class Back:
    """This silo is here again, and waited for again."""

    silo: SiloName


@dataclass(frozen=True, slots=True)
class Aborted:
    """The operator or a shutdown ends the round."""

    reason: str


Event = Proposal | Abstention | Submission | Confirmation | Reveal | DeadlinePassed | Away | Back | Aborted
