"""A silo's round as a chain of steps: each step holds what it may use and offers only its legal next method.

    Ready.propose ─► Proposed.on_consensus ─► Submitted.on_survivors ─► Confirmed.on_signatures ─► Revealed
    Ready.watch ───► Watching.on_consensus ─► Observing.on_survivors ─┘

A silo that did not propose still confirms and reveals: its shares are what saves the others. Each step's `message` is what to
send, and to send again on a retry; nothing is computed twice. Secrets of a round live in these objects only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from fedrep.coding import decode_coordinates, encode_coordinates
from fedrep.errors import CryptoError, RefusedError
from fedrep.protocol.clip_range import RangeBits
from fedrep.protocol.manifests import (
    RecordPromise,
    RosterEntry,
    RoundManifest,
    RunManifest,
    SiloName,
    session_key_message,
)
from fedrep.protocol.messages import (
    Abstention,
    Assignment,
    Confirmation,
    Consensus,
    Proposal,
    Record,
    Reveal,
    RevealedShare,
    Secret,
    Signatures,
    Submission,
    SurvivorSet,
    confirmation_message,
    consensus_context,
    share_hash,
    share_list_digest,
    submission_message,
)
from fedrep.protocol.silo_rules import (
    Once,
    PeerIdentity,
    Policy,
    check_consensus,
    check_own_place,
    check_round,
    check_run,
    check_survivors,
    count_confirmations,
)
from fedrep.protocol.thresholds import openable_buffers
from fedrep.quantize import Quantized, RingFormat, quantize
from fedrep.secagg import shamir
from fedrep.secagg.keys import AgreementKey, Entropy, SecretBytes, SigningKey, commitment
from fedrep.secagg.masking import MaskedCopy, pair_mask, self_mask
from fedrep.secagg.pairs import Pairs, RoundPairs
from fedrep.sparsify import gather

SILENT = RangeBits(clips=False, quiet=False)
HeldShares = Mapping[SiloName, tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Membership:
    """Who this silo is in this run, and by whose certificates it judges the others."""

    name: SiloName
    run: RunManifest
    policy: Policy
    signing_key: SigningKey
    promise: RecordPromise | None = None

    def signed_key(self, key: bytes) -> bytes:
        """The signature under a session key, and under what this silo promises in this run."""
        return self.signing_key.sign(session_key_message(self.run.digest(), key, self.promise))


@dataclass(frozen=True, slots=True)
class Ready:
    """The manifest was checked against every rule; nothing was sent yet."""

    member: Membership
    manifest: RoundManifest
    c1: bytes
    peers: Mapping[SiloName, PeerIdentity]
    pairs: RoundPairs
    once: Once = field(default_factory=Once)

    @classmethod
    def enter(
        cls,
        member: Membership,
        manifest: RoundManifest,
        peers: Mapping[SiloName, PeerIdentity],
        sessions: Mapping[bytes, AgreementKey],
        *,
        last_round: int,
        model_hash: bytes,
        pairs: Pairs | None = None,
        verified: set[RosterEntry] | None = None,
    ) -> Ready:
        """`sessions` holds this silo's session keys by public key; `last_round` is the last round it spoke in, on disk.

        `pairs` are the links of its session, which outlast those keys; `verified` are entries whose signatures it has checked.
        """
        # Again in every round: the policy may have become stricter.
        check_run(member.run, member.policy, member.name, member.promise)
        check_round(
            manifest,
            member.run,
            member.policy,
            silo=member.name,
            last_round=last_round,
            model_hash=model_hash,
            peers=peers,
            verified=verified,
        )
        entry = manifest.entry(member.name)
        assert entry is not None, "check_round refuses a roster without this silo"
        session = (member.run.digest(), entry.session_key, member.run.session_start(manifest.round))
        listed = [each.session_key for each in manifest.roster]
        known = pairs if pairs is not None else Pairs()
        shared = known.at(session, manifest.round, listed, sessions.get(entry.session_key))
        if shared is None:
            raise RefusedError(
                "the manifest lists a session key this process no longer holds; it joins again and sits this round out",
                reason="SESSION_KEY_LOST",
            )
        c1 = manifest.context()
        secrets: dict[str, SecretBytes] = {each.name: shared[each.session_key] for each in manifest.roster}
        return cls(member, manifest, c1, peers, RoundPairs(member.name, c1, secrets))

    def propose(
        self, coordinates: NDArray[np.int64], next_session: AgreementKey, entropy: Entropy, bits: RangeBits = SILENT
    ) -> Proposed:
        """`coordinates` is I_k as `sparsify.propose` drew it, and already charged to the ledger; `bits` are about all of g."""
        self.once.take("propose")
        if coordinates.size != self.manifest.per_silo:
            raise RefusedError(f"a proposal has exactly k = {self.manifest.per_silo} coordinates, not {coordinates.size}")
        secrets = RoundSecrets(AgreementKey.generate(entropy), SecretBytes(entropy(32)))
        message = self._proposal(coordinates, next_session, secrets, entropy, bits)
        return Proposed(self, secrets, coordinates, message)

    def watch(self) -> Watching:
        """Take no part as a dealer, but confirm and reveal as a holder."""
        self.once.take("watch")
        return Watching(self)

    def abstain(self, next_session: AgreementKey) -> Abstention:
        """What a silo says that proposes nothing: the others need not wait for it, and it stays a member."""
        own, run, key = self.member, self.manifest.run, next_session.public
        return Abstention(own.name, run, self.manifest.round, key, own.signed_key(key))

    def _proposal(
        self,
        coordinates: NDArray[np.int64],
        next_session: AgreementKey,
        secrets: RoundSecrets,
        entropy: Entropy,
        bits: RangeBits,
    ) -> Proposal:
        manifest, own = self.manifest, self.member
        shared = (secrets.seed.reveal(), secrets.mask_key.secret().reveal())
        seeds, keys = shamir.split_together(shared, manifest.threshold, len(manifest.roster), entropy)
        sealed = tuple(
            self.pairs.seal(holder.name, seed, key) for holder, seed, key in zip(manifest.roster, seeds, keys, strict=True)
        )
        seed_hashes = tuple(share_hash(share) for share in seeds)
        key_hashes = tuple(share_hash(share) for share in keys)
        unsigned = Record(
            own.name,
            secrets.mask_key.public,
            commitment(secrets.seed.reveal()),
            next_session.public,
            share_list_digest(seed_hashes, key_hashes),
            b"",
        )
        signature = own.signing_key.sign(unsigned.digest(self.c1))
        record = replace(unsigned, signature=signature)
        return Proposal(
            own.name,
            manifest.run,
            manifest.round,
            encode_coordinates(coordinates, manifest.parameters),
            record,
            own.signed_key(next_session.public),
            sealed,
            seed_hashes,
            key_hashes,
            bits.clips,
            bits.quiet,
        )

    def _agree(self, consensus: Consensus) -> Agreement:
        indices = decode_coordinates(consensus.coordinates, self.manifest.parameters)
        check_consensus(consensus, self.manifest, self.member.run, indices)
        c2 = consensus_context(self.c1, consensus.coordinates, consensus.assignment)
        return Agreement(self, consensus.assignment, indices, c2, self._open_shares(consensus), consensus.coordinates)

    def _open_shares(self, consensus: Consensus) -> HeldShares:
        """A share that does not open is left out: its dealer answers for it, not this silo."""
        held: dict[SiloName, tuple[bytes, bytes]] = {}
        for dealer, ciphertext in consensus.shares:
            if dealer not in self.pairs.secrets:
                continue
            try:
                held[dealer] = self.pairs.open(dealer, ciphertext)
            except CryptoError:
                continue
        return held


@dataclass(frozen=True, slots=True)
class RoundSecrets:
    """x and b: one round, never on disk."""

    mask_key: AgreementKey
    seed: SecretBytes


@dataclass(frozen=True, slots=True)
class Agreement:
    """What the whole federation agreed on, as this silo saw it, and the shares it now holds for others.

    `coordinates` are `indices`, coded.
    """

    ready: Ready
    assignment: Assignment
    indices: NDArray[np.int64] = field(repr=False)
    c2: bytes
    held: HeldShares = field(repr=False)
    coordinates: bytes = field(default=b"", repr=False)

    def confirm(self, survivors: SurvivorSet) -> Confirmed:
        ready = self.ready
        check_survivors(survivors, self.assignment, self.c2, ready.peers, ready.pairs)
        own, said = ready.member, confirmation_message(self.c2, survivors)
        signature = own.signing_key.sign(said)
        message = Confirmation(own.name, ready.manifest.run, ready.manifest.round, signature, ready.pairs.macs(said))
        return Confirmed(self, survivors, message)


@dataclass(frozen=True, slots=True)
class Proposed:
    ready: Ready
    secrets: RoundSecrets
    coordinates: NDArray[np.int64] = field(repr=False)
    message: Proposal
    once: Once = field(default_factory=Once)

    def on_consensus(self, consensus: Consensus, g: NDArray[np.float32], rng: np.random.Generator) -> Submitted | Observing:
        """Quantize g on I, mask it, sign. A silo that refuses the consensus is out of the round: it is shown no second one.

        One whose proposal was not taken, or whose buffer has too few proposers, goes on as a holder.
        """
        self.once.take("submit")
        ready = self.ready
        agreement = ready._agree(consensus)
        place = check_own_place(
            consensus, ready.member.run, self.message.record, self.coordinates, agreement.indices, ready.c1, ready.peers
        )
        if place is None:
            return Observing(agreement)
        ring = RingFormat(ready.manifest.ring_bits, ready.manifest.value_bits)
        mates = {record.silo: record for record in consensus.mates}
        masks = [self_mask(self.secrets.seed, ready.member.name, agreement.c2, place)]
        masks += [
            pair_mask(self.secrets.mask_key, ready.member.name, mate.silo, mates[mate.silo].mask_key, agreement.c2, place)
            for mate in consensus.assignment[place]
            if mate.silo != ready.member.name
        ]
        masked = MaskedCopy(masks, ring.dtype, agreement.indices.size)
        values = quantize(gather(g, agreement.indices), ready.manifest.clip_range, ring, rng, masked.append)
        said = submission_message(agreement.c2, ready.member.name)
        message = Submission(
            ready.member.name,
            ready.manifest.run,
            ready.manifest.round,
            masked.message(),
            ready.member.signing_key.sign(said),
            ready.pairs.macs(said),
        )
        return Submitted(agreement, place, values, message)


@dataclass(frozen=True, slots=True)
class Watching:
    ready: Ready
    once: Once = field(default_factory=Once)

    def on_consensus(self, consensus: Consensus) -> Observing:
        self.once.take("observe")
        return Observing(self.ready._agree(consensus))


@dataclass(frozen=True, slots=True)
class Observing:
    """A holder without a submission of its own."""

    agreement: Agreement
    once: Once = field(default_factory=Once)

    def on_survivors(self, survivors: SurvivorSet) -> Confirmed:
        self.once.take("confirm")
        return self.agreement.confirm(survivors)


@dataclass(frozen=True, slots=True)
class Submitted:
    """y exists; the residual and `pending` must be on disk before `message` is sent."""

    agreement: Agreement
    place: int
    values: Quantized = field(repr=False)
    message: Submission
    once: Once = field(default_factory=Once)

    def on_survivors(self, survivors: SurvivorSet) -> Confirmed:
        self.once.take("confirm")
        return self.agreement.confirm(survivors)


@dataclass(frozen=True, slots=True)
class Confirmed:
    agreement: Agreement
    survivors: SurvivorSet
    message: Confirmation
    once: Once = field(default_factory=Once)

    def on_signatures(self, signatures: Signatures, macs: Sequence[bytes] = ()) -> Revealed:
        """Rule 4. An empty reveal is right when nothing may be opened; "revealed" must be on disk before it is sent."""
        self.once.take("reveal")
        ready, agreement = self.agreement.ready, self.agreement
        own, threshold = ready.member.name, ready.manifest.threshold
        others = {entry.name: ready.peers[entry.name].verify_key for entry in ready.manifest.roster if entry.name != own}
        # This silo's own signature needs no check: it stands in `message`, over this very (C2, U).
        confirmed = 1 + count_confirmations(signatures, agreement.c2, self.survivors, others, threshold - 1, macs, ready.pairs)
        if confirmed < threshold:
            raise RefusedError(
                f"only {confirmed} of the {threshold} holders needed confirmed the same survivors; this silo reveals nothing",
                reason="TOO_FEW_CONFIRMATIONS",
            )
        shares = tuple(self._shares_to_reveal())
        message = Reveal(ready.member.name, ready.manifest.run, ready.manifest.round, shares)
        return Revealed(agreement, self.survivors, message)

    def _shares_to_reveal(self) -> list[RevealedShare]:
        run = self.agreement.ready.member.run
        alive = self.survivors.names()
        shares = []
        for number in sorted(openable_buffers(self.survivors.buffers, run.min_survivors, run.byzantine)):
            for place in self.agreement.assignment[number]:
                held = self.agreement.held.get(place.silo)
                if held is None:
                    continue
                if place.silo in alive:
                    shares.append(RevealedShare(place.silo, Secret.SEED, held[0]))
                else:
                    shares.append(RevealedShare(place.silo, Secret.KEY, held[1]))
        return shares


@dataclass(frozen=True, slots=True)
class Revealed:
    agreement: Agreement
    survivors: SurvivorSet
    message: Reveal
