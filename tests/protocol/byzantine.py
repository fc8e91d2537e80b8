"""What a Byzantine silo can send under valid signatures: secrets it does not have, shares that do not fit, random values."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from fedrep.protocol.manifests import SiloName
from fedrep.protocol.messages import (
    Proposal,
    Reveal,
    RevealedShare,
    Submission,
    share_hash,
    share_list_digest,
)
from fedrep.protocol.silo_effects import Accepted, GetConsensus
from fedrep.secagg import shamir
from fedrep.secagg.shares import seal_share
from tests.protocol.federation import Federation, Silo, entropy_from
from tests.protocol.refusal import sign_again


def propose_with_bad_shares(
    federation: Federation,
    silo: Silo,
    *,
    seed: bytes | None = None,
    key: bytes | None = None,
    unmatched_for: Collection[SiloName] = (),
) -> None:
    """Deal shares of another seed or mask key than announced, or shares that miss their hashes for some holders."""
    assert silo.ready is not None
    ready = silo.ready
    proposed = federation.prepare(silo)
    manifest, entropy = ready.manifest, entropy_from(silo.rng)
    secrets = (seed or proposed.secrets.seed.reveal(), key or proposed.secrets.mask_key.secret().reveal())
    seeds, keys = (shamir.split(secret, manifest.threshold, len(manifest.roster), entropy) for secret in secrets)
    sealed = tuple(
        seal_share(
            ready.pairs.secrets[holder.name],
            ready.c1,
            silo.name,
            holder.name,
            *((bytes(33), bytes(33)) if holder.name in unmatched_for else (seed_share, key_share)),
        )
        for holder, seed_share, key_share in zip(manifest.roster, seeds, keys, strict=True)
    )
    hashes = (tuple(map(share_hash, seeds)), tuple(map(share_hash, keys)))
    dealt = replace(proposed.message, sealed_shares=sealed, seed_share_hashes=hashes[0], key_share_hashes=hashes[1])
    message = sign_again(federation, silo, dealt, shares_digest=share_list_digest(*hashes))
    silo.exchange(replace(proposed, message=message))
    federation.effects += federation.round.receive(message)
    silo.answer(Proposal, Accepted())


def submit_random_values(federation: Federation, silo: Silo) -> None:
    """A full step of the silo, but what it sends is random bytes of the right length, validly signed."""
    silo.answer(GetConsensus, federation.round.consensus_for(silo.name))
    honest = silo.submitted
    assert honest is not None
    message = replace(honest.message, masked=silo.rng.bytes(len(honest.message.masked)))
    silo.exchange(replace(honest, message=message))
    federation.effects += federation.round.receive(message)
    silo.answer(Submission, Accepted())


def garbage_shares(federation: Federation, silo: Silo) -> Reveal:
    """The reveal of this silo with every share replaced by random bytes."""
    assert silo.confirmed is not None
    honest = replace(silo.confirmed, once=type(silo.confirmed.once)()).on_signatures(federation.round.confirmations()).message
    shares = tuple(RevealedShare(share.dealer, share.secret, silo.rng.bytes(33)) for share in honest.shares)
    return replace(honest, shares=shares)
