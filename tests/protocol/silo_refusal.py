"""A silo on its own: how it enters a round, answers a consensus, and says no."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from fedrep.errors import RefusedError
from fedrep.protocol.manifests import RoundManifest, RunManifest, SiloName, session_key_message
from fedrep.protocol.messages import Assigned, Consensus
from fedrep.protocol.silo_round import Membership, Ready
from fedrep.protocol.silo_rules import PeerIdentity, Policy
from fedrep.secagg.keys import AgreementKey
from tests.protocol.federation import Federation, Silo, entropy_from


def refused(reason: str, act: Callable[[], object]) -> str:
    with pytest.raises(RefusedError) as caught:
        act()
    assert caught.value.reason == reason, str(caught.value)
    return str(caught.value)


def enter(
    federation: Federation,
    silo: Silo,
    *,
    manifest: RoundManifest | None = None,
    peers: Mapping[SiloName, PeerIdentity] | None = None,
    policy: Policy | None = None,
    run: RunManifest | None = None,
    last_round: int | None = None,
    model_hash: bytes | None = None,
) -> Ready:
    assert federation.manifest is not None
    return Ready.enter(
        Membership(silo.name, run or federation.run, policy or federation.policy, silo.signing_key, federation.promise),
        manifest or federation.manifest,
        federation.peers if peers is None else peers,
        silo.sessions if run is None else silo.every_key,
        last_round=silo.last_round if last_round is None else last_round,
        model_hash=model_hash or federation.model.state.hash,
        pairs=silo.pairs,
    )


def under(federation: Federation, run: RunManifest, **changes: object) -> RoundManifest:
    """The manifest as a round of another run, session keys signed for that run: only the run itself can be refused."""
    assert federation.manifest is not None
    roster = tuple(
        replace(
            entry,
            session_signature=federation.silos[entry.name].signing_key.sign(
                session_key_message(run.digest(), entry.session_key, entry.promise)
            ),
        )
        for entry in federation.manifest.roster
    )
    return replace(federation.manifest, run=run.digest(), roster=roster, **changes)  # type: ignore[arg-type]


def submit_to(silo: Silo, consensus: Consensus) -> object:
    assert silo.proposed is not None
    return silo.proposed.on_consensus(consensus, silo.g, silo.rng)


def own_buffer(consensus: Consensus, name: SiloName) -> int:
    return next(n for n, buffer in enumerate(consensus.assignment) if any(place.silo == name for place in buffer))


def with_buffer(consensus: Consensus, number: int, buffer: tuple[Assigned, ...]) -> Consensus:
    return replace(
        consensus,
        assignment=(*consensus.assignment[:number], buffer, *consensus.assignment[number + 1 :]),
    )


def new_session(silo: Silo) -> AgreementKey:
    return AgreementKey.generate(entropy_from(silo.rng))
