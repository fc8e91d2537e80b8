"""Everyone's key and certificate for one simulation, in memory: real signatures under a root that nobody else trusts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric import ec

from fedrep.protocol.manifests import SiloName
from fedrep.protocol.silo_rules import PeerIdentity
from fedrep.protocol.silo_trust import Trust
from fedrep.secagg.keys import SigningKey
from fedrep_identity.certificates import Credentials, to_pem
from fedrep_identity.keyfile import private_key_pem
from fedrep_identity.names import Identity, Role
from fedrep_identity.register import Hosts
from fedrep_identity.templates import authority_certificate, leaf_certificate, subject_of
from fedrep_silo.trust import FederationTrust

FEDERATION = "simulation"
DAYS = 365


@dataclass(frozen=True)
class Person:
    """Credentials, and what is asked of them in every round, worked out once."""

    credentials: Credentials
    signing_key: SigningKey
    fingerprint: bytes


@dataclass(frozen=True)
class People:
    server: Person
    admin: Person
    viewer: Person
    evaluator: Person
    silos: dict[SiloName, Person]
    trust: Trust

    @classmethod
    def enrol(cls, silos: Iterable[SiloName]) -> People:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = subject_of(FEDERATION, f"{FEDERATION} root")
        root = authority_certificate(subject, key, subject, key, path_length=1, days=DAYS)

        def issue(name: str, role: Role) -> Person:
            own = ec.generate_private_key(ec.SECP256R1())
            hosts = Hosts(("localhost",), ("127.0.0.1",)) if role is Role.SERVER else Hosts()
            leaf = leaf_certificate(root, key, own.public_key(), Identity(name, role, FEDERATION), DAYS, hosts)
            credentials = Credentials(own, private_key_pem(own), to_pem([leaf]), to_pem([root]))
            return Person(credentials, credentials.signing_key, credentials.fingerprint)

        server = issue("server", Role.SERVER)
        trust = RememberedTrust(FederationTrust(server.credentials.trust_store()))
        named = {name: issue(name, Role.SILO) for name in silos}
        admin, viewer, evaluator = (issue(role.value, role) for role in (Role.ADMIN, Role.VIEWER, Role.EVALUATOR))
        return cls(server, admin, viewer, evaluator, named, trust)


@dataclass(frozen=True)
class RememberedTrust:
    """All silos of one process ask about the same certificates, in every round: each is judged once."""

    judge: Trust
    known: dict[tuple[bytes, str], PeerIdentity] = field(default_factory=dict)

    def member(self, chain: bytes, role: str, *, ended: bool = False) -> PeerIdentity:
        found = self.known.get((chain, role))
        if found is None:
            found = self.known[chain, role] = self.judge.member(chain, role, ended=ended)
        return found
