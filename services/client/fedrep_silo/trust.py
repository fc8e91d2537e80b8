"""The federation's trust store as the core asks it: who a certificate belongs to, judged by this machine's clock."""

from __future__ import annotations

from dataclasses import dataclass

from fedrep.protocol.manifests import SiloName
from fedrep.protocol.silo_rules import PeerIdentity
from fedrep_identity.certificates import Role, TrustStore


@dataclass(frozen=True, slots=True)
class FederationTrust:
    store: TrustStore

    def member(self, chain: bytes, role: str, *, ended: bool = False) -> PeerIdentity:
        peer = self.store.verify(chain, roles=(Role(role),), ended=ended)
        return PeerIdentity(SiloName(peer.identity.name), peer.identity.role.value, peer.fingerprint, peer.verify_key)
