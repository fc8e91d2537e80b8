"""The consortium's certificate authority: a P-256 root, optionally an intermediate that signs online, and what they sign.

It runs apart from the federation server, which never holds a signing key. Name, role and host names of a certificate are
arguments of `sign`, given by an administrator or an invitation; of the certificate request only the public key is used.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import secrets
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID

from fedrep.errors import (
    ConflictError,
    CryptoError,
    DecodeError,
    InvalidInputError,
    NotFoundError,
    RefusedError,
    SettingsError,
)
from fedrep_identity.authority_name import AUTHORITY_NAME, OWN_NAME
from fedrep_identity.certificates import (
    CERTIFICATE_FILE,
    KEY_FILE,
    REVOCATIONS_FILE,
    ROOT_FILE,
    Credentials,
    TrustStore,
    key_fingerprint,
    load_chain,
)
from fedrep_identity.host_names import stands_for_authority
from fedrep_identity.keyfile import private_key_pem, seal_key, unseal_key
from fedrep_identity.minting import limits_to, roles_of
from fedrep_identity.names import Identity, Role, check_name
from fedrep_identity.register import Hosts, IssuedCertificate, Register
from fedrep_identity.revocation import RevocationList, parse_revocations
from fedrep_identity.templates import BACKDATE, authority_certificate, leaf_certificate, subject_of
from fedrep_runtime.files import taking_turns, write_atomically

AUTHORITY_KEY, AUTHORITY_CHAIN, REGISTER_FILE, UPPER_REVOCATIONS = (
    "authority.key",
    "authority.pem",
    "register.sqlite",
    "upper-crl.pem",
)
LEAF_DAYS = 30
LARGEST_REQUEST = 8192
LIST_LIFETIME = dt.timedelta(days=7)
# Of a root that has made an intermediate and lies in a safe since: nobody takes it out every week to sign. What its list
# can revoke are intermediates and the few that the root signed itself; the many are on an intermediate's list.
OFFLINE_LIST_LIFETIME = dt.timedelta(days=365)
INTERMEDIATE_PREFIX = "issuing-"


@dataclass(frozen=True)
class CertificateAuthority:
    folder: Path
    certificate: x509.Certificate
    chain: bytes  # the signing certificate and those above it, without the root; empty when the root itself signs
    root: bytes
    register: Register
    _key: ec.EllipticCurvePrivateKey = field(repr=False)

    @classmethod
    def create(cls, folder: Path, federation: str, passphrase: str, *, years: int = 10) -> CertificateAuthority:
        """A new root. Its key belongs offline; give an online authority `create_intermediate` instead."""
        check_name("federation name", federation)
        refuse_existing(folder)
        key = ec.generate_private_key(ec.SECP256R1())
        subject = subject_of(federation, f"{federation} root")
        certificate = authority_certificate(subject, key, subject, key, path_length=1, days=365 * years)
        pem = certificate.public_bytes(Encoding.PEM)
        return cls._store(folder, key, passphrase, chain=b"", root=pem)

    @classmethod
    def create_intermediate(
        cls,
        folder: Path,
        root: CertificateAuthority,
        passphrase: str,
        *,
        years: int = 2,
        roles: Collection[Role] = (Role.SILO,),
        unlisted_days: int | None = None,
    ) -> CertificateAuthority:
        """An authority under `root` for the machine that is online: if it is lost, the root revokes it. Until then it can
        certify `roles` and no other. With `unlisted_days` it signs where nobody makes revocation lists, and its certificates
        may live no longer than that (`minting`)."""
        refuse_existing(folder)
        if root.chain:
            raise InvalidInputError("An intermediate is signed by the root; this authority is itself an intermediate.")
        key = ec.generate_private_key(ec.SECP256R1())
        name = f"{INTERMEDIATE_PREFIX}{secrets.token_hex(4)}"  # the name under which the root can revoke it
        subject = subject_of(root.federation, name)
        issuer, limits = root.certificate.subject, limits_to(roles, unlisted_days)
        certificate = authority_certificate(subject, key, issuer, root._key, path_length=0, days=365 * years, limits=limits)
        root._record(certificate, Identity(name, Role.SERVER, root.federation), Hosts())
        upper = root.publish_revocations()
        return cls._store(folder, key, passphrase, certificate.public_bytes(Encoding.PEM), root.root, upper)

    @classmethod
    def _store(
        cls, folder: Path, key: ec.EllipticCurvePrivateKey, passphrase: str, chain: bytes, root: bytes, upper: bytes = b""
    ) -> CertificateAuthority:
        """The key comes last: a folder that holds one is whole, and one that holds none may be made again."""
        sealed = seal_key(key, passphrase)
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        write_atomically(folder / ROOT_FILE, root, 0o644)
        write_atomically(folder / AUTHORITY_CHAIN, chain, 0o644)
        (folder / UPPER_REVOCATIONS).unlink(missing_ok=True)
        if upper:
            write_atomically(folder / UPPER_REVOCATIONS, upper, 0o644)
        authority = cls._assemble(folder, key, chain, root)
        authority.publish_revocations()
        write_atomically(folder / AUTHORITY_KEY, sealed)
        return authority

    @classmethod
    def open(cls, folder: Path, passphrase: str) -> CertificateAuthority:
        try:
            sealed = (folder / AUTHORITY_KEY).read_bytes()
            chain, root = (folder / AUTHORITY_CHAIN).read_bytes(), (folder / ROOT_FILE).read_bytes()
        except FileNotFoundError as error:
            raise SettingsError(
                f"{folder} holds no certificate authority ({Path(error.filename).name} is missing). "
                "Make one with: fedrep ca init.",
                reason="NO_AUTHORITY",
            ) from None
        return cls._assemble(folder, unseal_key(sealed, passphrase), chain, root)

    def issuer_secret(self) -> dict[str, bytes]:
        """The intermediate as a Kubernetes Secret of type tls, for an issuer of cert-manager. The key in it is not sealed."""
        if not self.chain:
            raise InvalidInputError(
                "This is the root, whose key must not leave its folder. Make an intermediate with: fedrep ca intermediate."
            )
        return {"tls.key": private_key_pem(self._key), "tls.crt": self.chain + self.root}

    @classmethod
    def _assemble(cls, folder: Path, key: ec.EllipticCurvePrivateKey, chain: bytes, root: bytes) -> CertificateAuthority:
        certificate = load_chain(chain or root)[0]
        if certificate.public_key() != key.public_key():
            raise SettingsError(
                f"{AUTHORITY_KEY} and {AUTHORITY_CHAIN} in {folder} do not belong together. Restore the folder from a backup.",
                reason="KEY_MISMATCH",
            )
        return cls(folder, certificate, chain, root, Register(folder / REGISTER_FILE), key)

    @property
    def federation(self) -> str:
        return str(self.certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)[0].value)

    @property
    def roles(self) -> frozenset[Role]:
        """Whom it can certify."""
        return roles_of(self.certificate) if self.chain else frozenset(Role)

    def trust_store(self) -> TrustStore:
        store = TrustStore(self.root, load_chain(self.chain) if self.chain else ())
        store.update_revocations((self.folder / REVOCATIONS_FILE).read_bytes())
        return store

    def sign(
        self,
        request: bytes,
        identity: Identity,
        days: float = LEAF_DAYS,
        hosts: Hosts | None = None,
        enter: Callable[[IssuedCertificate], bool] | None = None,
    ) -> bytes:
        """The PEM chain of a certificate for `identity` and the request's public key; nothing else of it is used.

        `enter` puts it into the register, or says that it may no longer be there: then nobody gets to see it.
        """
        hosts = hosts or Hosts()
        if identity.federation != self.federation:
            raise InvalidInputError(f"This authority signs for {self.federation!r}, not {identity.federation!r}.")
        if hosts and identity.role is not Role.SERVER:
            raise InvalidInputError(f"Only a server has host names; {identity} must not get any.")
        if identity.name != OWN_NAME and any(stands_for_authority(name) for name in hosts.dns):
            raise InvalidInputError(f"{AUTHORITY_NAME} is the authority's own host name; choose another.")
        if identity.role not in self.roles and identity.name != OWN_NAME:
            raise InvalidInputError(
                f"This authority may certify {', '.join(sorted(self.roles))} and not {identity}; nobody would believe it. "
                "Let the root sign, or make an intermediate for more roles: fedrep ca intermediate --roles."
            )
        public = public_key_of(request)
        certificate = leaf_certificate(self.certificate, self._key, public, identity, days, hosts)
        self.check_key_is_free(key_fingerprint(certificate), identity.name)
        self._check_one_role(identity)
        return self._record(certificate, identity, hosts, enter)

    def check_key_is_free(self, fingerprint: bytes, name: str) -> None:
        """One key under two names would let one silo count twice."""
        for other in self.register.names_of_key(fingerprint) - {name}:
            raise ConflictError(
                f"This key already belongs to {other}. Every name needs a key of its own: "
                "enrol from an empty folder, so that a new key is made.",
                reason="KEY_IN_USE",
            )

    def _check_one_role(self, identity: Identity) -> None:
        """Logs, rosters and people go by name; one name with two roles would mislead them."""
        now = dt.datetime.now(dt.UTC)
        for issued in self.register.certificates(identity.name):
            if issued.role is not identity.role and issued.status(now) == "valid":
                raise ConflictError(
                    f"{identity.name} already holds a valid certificate of role {issued.role}. "
                    f"Choose another name for the {identity.role}, or revoke that one first.",
                    reason="NAME_IN_USE",
                )

    def holders(self, name: str) -> set[bytes]:
        """The keys that now hold `name`."""
        now = dt.datetime.now(dt.UTC)
        return {issued.fingerprint for issued in self.register.certificates(name) if issued.status(now) == "valid"}

    def _record(
        self,
        certificate: x509.Certificate,
        identity: Identity,
        hosts: Hosts,
        enter: Callable[[IssuedCertificate], bool] | None = None,
    ) -> bytes:
        chain = certificate.public_bytes(Encoding.PEM) + self.chain
        issued = IssuedCertificate(
            certificate.serial_number,
            identity.name,
            identity.role,
            key_fingerprint(certificate),
            hosts,
            certificate.not_valid_before_utc,
            certificate.not_valid_after_utc,
            chain,
        )
        if not (enter or self.register.add_certificate)(issued):
            self.check_key_is_free(issued.fingerprint, issued.name)
            raise RefusedError(
                f"{identity.name} was revoked, or got another key, in this moment. Ask the federation's administrators.",
                reason="NO_LONGER_WELCOME",
            )
        return chain

    def revoke(self, name: str) -> int:
        """Every certificate of `name`; returns how many. The name can be invited again afterwards."""
        if not self.register.certificates(name) and not any(i.name == name for i in self.register.invitations()):
            raise NotFoundError(f"No certificate or invitation for {name!r} is in this register. See: fedrep ca list.")
        count = self.register.mark_revoked(name, dt.datetime.now(dt.UTC))
        self.publish_revocations()
        return count

    @property
    def list_life(self) -> dt.timedelta:
        """How long a list may be believed that nobody is there to sign anew."""
        made = (issued.name.startswith(INTERMEDIATE_PREFIX) for issued in self.register.certificates() if not issued.hosts)
        return OFFLINE_LIST_LIFETIME if not self.chain and any(made) else LIST_LIFETIME

    def list_is_due(self, life: dt.timedelta) -> bool:
        """Half of its life is over, nobody can read it, or it is from a time that has not come: the clock was set back since."""
        authorities = [*load_chain(self.root), *(load_chain(self.chain) if self.chain else ())]
        try:
            lists = parse_revocations((self.folder / REVOCATIONS_FILE).read_bytes(), authorities)
        except (FileNotFoundError, CryptoError):
            return True
        own = [known.issued for known in lists if known.issuer == self.certificate.subject.public_bytes()]
        now = dt.datetime.now(dt.UTC)
        return not any(issued <= now < issued + life / 2 for issued in own)

    def publish_revocations(self, life: dt.timedelta | None = None) -> bytes:
        """Sign a new, higher-numbered list, write it to `crl.pem`, and return that bundle.

        One process at a time: a list prepared before a revocation must not be written after the one that has it.
        """
        with taking_turns(self.folder / ".crl.lock"):
            bundle = self._signed_list(life or self.list_life)
            write_atomically(self.folder / REVOCATIONS_FILE, bundle, 0o644)
        return bundle

    def _signed_list(self, life: dt.timedelta) -> bytes:
        now = dt.datetime.now(dt.UTC).replace(microsecond=0)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.certificate.subject)
            .last_update(now - BACKDATE)
            .next_update(now + life)
            .add_extension(x509.CRLNumber(self.register.next_number("crl", time.time_ns() // 10**6)), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        for issued in self.register.certificates():
            # An expired certificate is refused for its dates; the list need not carry it for ever.
            if issued.revoked_at is not None and now < issued.not_after + LIST_LIFETIME:
                builder = builder.add_revoked_certificate(
                    x509.RevokedCertificateBuilder()
                    .serial_number(issued.serial)
                    .revocation_date(issued.revoked_at.replace(microsecond=0))
                    .build()
                )
        upper = self.folder / UPPER_REVOCATIONS
        bundle = self.chain + builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)
        return bundle + (upper.read_bytes() if upper.exists() else b"")

    def take_upper_revocations(self, bundle: bytes) -> None:
        """Carry the root's own list along, so that a revoked intermediate is known to everybody who asks."""
        if not self.chain:
            raise InvalidInputError("This is the root, which signs its list itself: fedrep ca crl without --upper.")
        brought, known = self._list_of_root(bundle), self.upper_revocations()
        if brought is None:
            raise InvalidInputError("There is no list of the root's in this file. Bring crl.pem from the root's folder.")
        if known is not None and brought.number < known.number:
            raise ConflictError(
                f"This list of the root's was signed on {brought.issued:%Y-%m-%d}, and the one that is carried already on "
                f"{known.issued:%Y-%m-%d}. Sign a new one with the root: fedrep ca crl."
            )
        write_atomically(self.folder / UPPER_REVOCATIONS, brought.pem, 0o644)
        self.publish_revocations()

    def upper_revocations(self) -> RevocationList | None:
        """The root's list that an intermediate carries."""
        upper = self.folder / UPPER_REVOCATIONS
        return self._list_of_root(upper.read_bytes()) if upper.exists() else None

    def _list_of_root(self, bundle: bytes) -> RevocationList | None:
        trust = TrustStore(self.root)
        trust.update_revocations(bundle)
        return trust.revoked.lists.get(trust.root.subject.public_bytes())


def public_key_of(request: bytes) -> ec.EllipticCurvePublicKey:
    """The key of a certificate request (PEM or DER) whose sender has shown to hold the private half."""
    if len(request) > LARGEST_REQUEST:
        raise DecodeError(f"A certificate request has at most {LARGEST_REQUEST} bytes, this one has {len(request)}.")
    try:
        pem = request.lstrip().startswith(b"-----BEGIN")
        parsed = x509.load_pem_x509_csr(request) if pem else x509.load_der_x509_csr(request)
        public = parsed.public_key()
        signed = parsed.is_signature_valid
    except Exception:  # several kinds from the parser and from unsupported keys; the sender only needs to know this
        raise DecodeError("This is not a certificate request (PKCS #10, PEM or DER). Make one with fedrep enroll.") from None
    if not isinstance(public, ec.EllipticCurvePublicKey) or not isinstance(public.curve, ec.SECP256R1):
        raise InvalidInputError("The request's key is not ECDSA P-256. Make a request with fedrep enroll.")
    if not signed:
        raise InvalidInputError("The request is not signed by its own key. Make a new one with fedrep enroll.")
    return public


def request_fingerprint(request: bytes) -> bytes:
    """The fingerprint that a certificate for this request will have."""
    der = public_key_of(request).public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).digest()


def certificate_request(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A PEM request that says nothing but the key: name and role are not the requester's to choose."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedrep")])
    return x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)


def issue_credentials(
    authority: CertificateAuthority,
    folder: Path,
    identity: Identity,
    dns_names: tuple[str, ...] = (),
    ips: tuple[str, ...] = (),
    days: float = LEAF_DAYS,
) -> Credentials:
    """Key, request and certificate in one go, without a network: for demos, tests, and the authority's own server."""
    key = ec.generate_private_key(ec.SECP256R1())
    chain = authority.sign(certificate_request(key), identity, days, Hosts(tuple(dns_names), tuple(ips)))
    write_atomically(folder / KEY_FILE, private_key_pem(key))
    write_atomically(folder / ROOT_FILE, authority.root, 0o644)
    write_atomically(folder / REVOCATIONS_FILE, (authority.folder / REVOCATIONS_FILE).read_bytes(), 0o644)
    write_atomically(folder / CERTIFICATE_FILE, chain, 0o644)
    return Credentials.load(folder)


def refuse_existing(folder: Path) -> None:
    if (folder / AUTHORITY_KEY).exists():
        raise ConflictError(
            f"{folder} already holds a certificate authority. Replacing it would lock everybody out of the federation; "
            "choose another folder, or move this one away if that is what you want.",
            reason="AUTHORITY_EXISTS",
        )
