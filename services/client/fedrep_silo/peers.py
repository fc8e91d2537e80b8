"""Roster members as this silo judges them: certificates fetched once, checked against the federation's root every round."""

from __future__ import annotations

from fedrep.errors import CryptoError, RefusedError
from fedrep.protocol.manifests import (
    RoundManifest,
    RunManifest,
    SignedRoundManifest,
    SignedRunManifest,
    SiloName,
    round_manifest_message,
    run_manifest_message,
)
from fedrep.protocol.silo_rules import PeerIdentity
from fedrep_identity.certificates import Role, TrustStore
from fedrep_silo.connection import Connection


class Peers:
    def __init__(self, trust: TrustStore, connection: Connection) -> None:
        self._trust = trust
        self._connection = connection
        self._chains: dict[bytes, bytes] = {}

    async def of(self, manifest: RoundManifest) -> dict[SiloName, PeerIdentity]:
        """Everyone in the roster whose certificate this silo could read; rule 2 refuses the round if one is missing or bad."""
        unknown = [entry.fingerprint for entry in manifest.roster if entry.fingerprint not in self._chains]
        if unknown:
            for fingerprint, chain in zip(unknown, await self._connection.certificates(manifest.run, unknown), strict=False):
                self._chains[fingerprint] = chain
        peers = {}
        for entry in manifest.roster:
            try:
                peer = self._trust.verify(self._chains.get(entry.fingerprint, b""), roles=(Role.SILO,))
            except CryptoError:
                self._chains.pop(entry.fingerprint, None)  # it may have been renewed; ask again next time
                continue
            name = SiloName(peer.identity.name)
            peers[entry.name] = PeerIdentity(name, peer.identity.role.value, peer.fingerprint, peer.verify_key)
        return peers


def check_run_signature(signed: SignedRunManifest, trust: TrustStore) -> RunManifest:
    """The rules of a run count only with an admin's signature under them."""
    try:
        admin = trust.verify(signed.certificate, roles=(Role.ADMIN,))
        admin.verify_key.verify(signed.signature, run_manifest_message(signed.manifest))
    except CryptoError as error:
        raise RefusedError(f"the run manifest is not signed by an admin of this federation: {error}", reason="BAD_RUN") from error
    return signed.manifest


def check_round_signature(signed: SignedRoundManifest, certificate: bytes, trust: TrustStore) -> RoundManifest:
    """`certificate` is what Join named; a server that renewed its own since then sends the new one along."""
    try:
        server = trust.verify(signed.certificate or certificate, roles=(Role.SERVER,))
        server.verify_key.verify(signed.signature, round_manifest_message(signed.manifest))
    except CryptoError as error:
        raise RefusedError(
            f"the round manifest is not signed by this federation's server: {error}", reason="BAD_ROUND"
        ) from error
    return signed.manifest
