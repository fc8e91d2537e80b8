"""Certificates: one's own (`Credentials`), other people's (`PeerCertificate`), and the judge of both (`TrustStore`).

A certificate is worth something only through a chain to the federation's root (RFC 5280), within its dates, not
revoked, and with one identity of this federation in it. Each way to fail has a sentence that an operator can act on,
because both sides see it.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from cryptography.x509 import verification

from fedrep.errors import CryptoError, SettingsError
from fedrep.secagg.keys import SigningKey, VerifyKey, signing_key_from_private, verify_key_from_public
from fedrep_identity.minting import allowed_by, needs_no_list
from fedrep_identity.names import Identity, Role, WrongRoleError, identity_of, require_role
from fedrep_identity.revocation import Revocations, parse_revocations
from fedrep_runtime.tls import KeyPair

__all__ = ["Credentials", "Identity", "PeerCertificate", "Role", "TrustStore", "WrongRoleError", "key_fingerprint"]

CLOCK_SKEW = dt.timedelta(minutes=5)
KEY_FILE, CERTIFICATE_FILE, ROOT_FILE, REVOCATIONS_FILE = "key.pem", "cert.pem", "root.pem", "crl.pem"
# A new key and its certificate cannot be renamed in one step; until both are in place they stand beside the old ones.
NEXT_KEY_FILE, NEXT_CERTIFICATE_FILE = "next-key.pem", "next-cert.pem"
LIST_NOT_YET_VALID = "REVOCATION_LIST_NOT_YET_VALID"
_REMEMBERED_CHAINS = 4096


def key_fingerprint(certificate: x509.Certificate) -> bytes:
    """SHA-256 of the public key (RFC 7469 pins): a renewed certificate for the same key keeps it, so a renewal in the
    middle of a run leaves manifests and pinned rosters valid."""
    return hashlib.sha256(certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).digest()


@dataclass(frozen=True)
class PeerCertificate:
    """A certificate that passed every check of a `TrustStore` at the moment it was asked. `not_after` is the end of the first
    certificate of its chain to end."""

    identity: Identity
    fingerprint: bytes
    verify_key: VerifyKey = field(repr=False, compare=False)
    not_before: dt.datetime
    not_after: dt.datetime
    chain: bytes = field(repr=False)


@dataclass(frozen=True)
class Credentials:
    """One's own private key, certificate chain (leaf first) and the federation's root."""

    private_key: ec.EllipticCurvePrivateKey = field(repr=False, compare=False)
    key_pem: bytes = field(repr=False)
    chain: bytes
    root: bytes

    @classmethod
    def load(cls, folder: Path) -> Credentials:
        """The matching pair in `folder`; the newer one while a key is being replaced."""
        root = _read(folder / ROOT_FILE)
        chains = [_read(path) for path in (folder / NEXT_CERTIFICATE_FILE, folder / CERTIFICATE_FILE) if path.exists()]
        keys = [_read(path) for path in (folder / NEXT_KEY_FILE, folder / KEY_FILE) if path.exists()]
        if not keys or not chains:
            raise SettingsError(
                f"There is no certificate in {folder} yet. Enrol with the token you were sent: fedrep enroll TOKEN.",
                reason="NOT_ENROLLED",
            )
        matching: list[Credentials] = []
        for chain in chains:
            public = load_chain(chain)[0].public_key()
            for key_pem in keys:
                key = _load_key(key_pem, folder)
                if key.public_key() == public:
                    matching.append(cls(key, key_pem, chain, root))
        if matching:
            return max(matching, key=lambda pair: pair.certificate.not_valid_after_utc)
        raise SettingsError(
            f"{KEY_FILE} and {CERTIFICATE_FILE} in {folder} do not belong together. Restore both from the same backup, "
            "or ask for a new invitation and enrol again.",
            reason="KEY_MISMATCH",
        )

    def check(self, revocations: bytes | None = None, now: dt.datetime | None = None) -> None:
        """Would others accept this certificate now? Strict about its dates, as TLS is: no skew is tolerated there."""
        self.trust_store(revocations, skew=dt.timedelta(0)).verify(self.chain, now)

    @property
    def certificate(self) -> x509.Certificate:
        return load_chain(self.chain)[0]

    @property
    def identity(self) -> Identity:
        return identity_of(self.certificate)

    @property
    def fingerprint(self) -> bytes:
        return key_fingerprint(self.certificate)

    @property
    def signing_key(self) -> SigningKey:
        return signing_key_from_private(self.private_key)

    @property
    def key_pair(self) -> KeyPair:
        return KeyPair(self.key_pem, self.chain)

    def trust_store(
        self, revocations: bytes | None = None, *, skew: dt.timedelta = CLOCK_SKEW, needs_lists: bool = False
    ) -> TrustStore:
        """A judge that knows the root and, from the own chain, the intermediate authority."""
        store = TrustStore(self.root, load_chain(self.chain)[1:], skew=skew, needs_lists=needs_lists)
        if revocations is not None:
            store.update_revocations(revocations)
        return store


@dataclass(frozen=True)
class _Proven:
    """A certificate with its path to the root: what neither time nor a revocation list changes is worked out once."""

    peer: PeerCertificate
    path: tuple[x509.Certificate, ...]
    leaf_end: dt.datetime
    authorities_end: dt.datetime


class TrustStore:
    """Judges certificates against one federation's root. Threads may share it: updates replace whole values.

    With `needs_lists` nobody is believed of whose authority no revocation list is known, or only one that is older than the
    authority has signed that a list may become. Excepted is an intermediate that the root made to sign without lists, as long as
    its certificates live no longer than the root wrote there; a list of the root's is needed all the same.
    """

    def __init__(
        self,
        root: bytes,
        intermediates: Iterable[x509.Certificate] = (),
        *,
        skew: dt.timedelta = CLOCK_SKEW,
        needs_lists: bool = False,
    ) -> None:
        self.root = load_chain(root)[0]
        self.federation = _federation_of(self.root)
        self.revoked = Revocations()
        self._skew = skew
        self._needs_lists = needs_lists
        self._intermediates = tuple(intermediates)
        self._proven: dict[bytes, _Proven] = {}

    def verify(
        self,
        certificate: bytes,
        now: dt.datetime | None = None,
        *,
        roles: Iterable[Role] | None = None,
        ended: bool = False,
    ) -> PeerCertificate:
        """Check a certificate (DER, or PEM with its intermediates after it), or raise CryptoError with the reason.

        One that has `ended` since is judged as it was then, and all the same by what was revoked until today.
        """
        today = now or dt.datetime.now(dt.UTC)
        now = today
        if ended:
            now = min(today, *(each.not_valid_after_utc for each in (*load_chain(certificate), self.root)))
        shown = hashlib.sha256(certificate).digest()  # a hundred kilobytes may stand behind a certificate
        known = self._proven.get(shown)
        if known is None:
            known = self._prove(load_chain(certificate), now)
            if len(self._proven) >= _REMEMBERED_CHAINS:
                self._proven.clear()
            self._proven[shown] = known
        identity = known.peer.identity
        self._check_dates(identity, known.peer.not_before, known.leaf_end, now)
        if now > known.authorities_end:
            raise CryptoError(
                f"The certificate authority that signed the certificate of {identity} has itself expired. "
                "The federation's administrators must renew the authority (fedrep ca init) and enrol everybody again.",
                reason="CERTIFICATE_EXPIRED",
            )
        self._check_revocation(known.path, identity, today)
        if roles is not None:
            require_role(identity, frozenset(roles))
        return known.peer

    def _prove(self, chain: Sequence[x509.Certificate], now: dt.datetime) -> _Proven:
        leaf = chain[0]
        identity = identity_of(leaf)
        self._check_dates(identity, leaf.not_valid_before_utc, leaf.not_valid_after_utc, now)
        path = self._path_to_root(chain, identity, now)
        if identity.federation != self.federation:
            raise CryptoError(
                f"{identity} belongs to the federation {identity.federation!r}, this one is {self.federation!r}. "
                "Use the certificate issued for this federation.",
                reason="WRONG_FEDERATION",
            )
        if identity.role not in allowed_by(path):
            raise CryptoError(
                f"The certificate of {identity} was signed by an intermediate authority that the root lets certify "
                f"{', '.join(sorted(allowed_by(path))) or 'nobody'}. Use a certificate signed by the root, or by an intermediate "
                "made with: fedrep ca intermediate --roles.",
                reason="ROLE_NOT_ALLOWED",
            )
        peer = PeerCertificate(
            identity,
            key_fingerprint(leaf),
            verify_key_from_public(leaf.public_key()),
            leaf.not_valid_before_utc,
            min(certificate.not_valid_after_utc for certificate in path),
            to_pem(path[:-1]),
        )
        return _Proven(peer, path, leaf.not_valid_after_utc, min(each.not_valid_after_utc for each in path[1:]))

    def update_revocations(self, bundle: bytes) -> None:
        """Take newer lists from a PEM bundle: revocation lists and, before them, intermediates that signed them.

        A list from a time that has not come is refused, the others beside it are taken: an authority whose clock is ahead takes
        revoked certificates for ended ones, and leaves them out.
        """
        extra = load_chain(bundle) if b"BEGIN CERTIFICATE" in bundle else ()
        authorities = [self.root, *self._intermediates]
        for certificate in extra:
            if certificate in authorities:
                continue
            self._verify_authority(certificate)
            authorities.append(certificate)
        latest = dt.datetime.now(dt.UTC) + self._skew
        lists = parse_revocations(bundle, authorities)
        self.revoked = self.revoked.with_newer(each for each in lists if each.issued <= latest)
        for early in (each for each in lists if each.issued > latest):
            raise CryptoError(
                f"The revocation list was signed on {_date(early.issued)}, and the clock here says {_date(latest - self._skew)}. "
                "One of the clocks is wrong: compare both machines with a time server. An authority that serves signs anew once "
                "its clock is right; for the list of a root that lies offline do it with: fedrep ca crl.",
                reason=LIST_NOT_YET_VALID,
            )

    def _verify_authority(self, certificate: x509.Certificate) -> None:
        try:
            certificate.verify_directly_issued_by(self.root)
            constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
        except Exception:  # the library raises three unrelated kinds here, and all mean the same to the reader
            constraints = None
        if constraints is None or not constraints.ca:
            raise CryptoError(
                "The revocation list comes with a certificate that this federation's root did not make an authority. "
                "Fetch the list again from the certificate authority.",
                reason="BAD_REVOCATION_LIST",
            )

    def _check_dates(self, identity: Identity, begin: dt.datetime, end: dt.datetime, now: dt.datetime) -> None:
        if now > end + self._skew:
            raise CryptoError(
                f"The certificate of {identity} expired on {_date(end)}, and the clock here says "
                f"{_date(now)}. If the clock is right, ask for a new invitation and run fedrep enroll; "
                "if not, set the clock.",
                reason="CERTIFICATE_EXPIRED",
            )
        if now < begin - self._skew:
            raise CryptoError(
                f"The certificate of {identity} is valid only from {_date(begin)}, and the clock "
                f"here says {_date(now)}. One of the clocks is wrong: compare both machines with a time server.",
                reason="CERTIFICATE_NOT_YET_VALID",
            )

    def _path_to_root(
        self, chain: Sequence[x509.Certificate], identity: Identity, now: dt.datetime
    ) -> tuple[x509.Certificate, ...]:
        leaf = chain[0]
        # Within the tolerated skew the leaf's own dates were accepted before.
        moment = min(max(now, leaf.not_valid_before_utc), leaf.not_valid_after_utc)
        try:
            verifier = (
                verification.PolicyBuilder()
                .store(verification.Store([self.root]))
                .time(moment)
                .max_chain_depth(2)
                .build_client_verifier()
            )
            return tuple(verifier.verify(leaf, [*chain[1:], *self._intermediates]).chain)
        except Exception as error:  # VerificationError, or one of the parser's for a field it reads late
            raise CryptoError(
                f"The certificate presented for {identity} was not issued by this federation's certificate "
                f"authority (root {self.root_fingerprint.hex()[:16]}...): {_first_line(error)}. "
                "Use the certificate issued for this federation, or enrol again.",
                reason="WRONG_AUTHORITY",
            ) from None

    def _check_revocation(self, path: Sequence[x509.Certificate], identity: Identity, now: dt.datetime) -> None:
        revoked = self.revoked
        if not revoked.lists and not self._needs_lists:
            return
        for certificate, authority in pairwise(path):
            if self._needs_lists and not (revoked.is_current(certificate, now) or needs_no_list(certificate, authority)):
                raise CryptoError(
                    f"It cannot be told whether the certificate of {identity} was revoked: no current revocation list of the "
                    "authority that signed it is known here. Wait until the certificate authority is reached again, or tell the "
                    "federation's administrators. An authority that makes no lists, such as an issuer of cert-manager, must be "
                    "an intermediate made with: fedrep ca intermediate --unlisted-days.",
                    reason="NO_REVOCATION_LIST",
                )
            since = revoked.revoked_at(certificate)
            if since is not None:
                raise CryptoError(
                    f"The certificate of {identity} was revoked on {_date(since)}. If that is a mistake, ask the "
                    "federation's administrators for a new invitation and run fedrep enroll.",
                    reason="CERTIFICATE_REVOKED",
                )

    @property
    def root_fingerprint(self) -> bytes:
        return hashlib.sha256(to_der(self.root)).digest()


def load_chain(data: bytes) -> list[x509.Certificate]:
    """Certificates from PEM (several) or DER (one)."""
    try:
        several = b"-----BEGIN" in data
        chain = x509.load_pem_x509_certificates(data) if several else [x509.load_der_x509_certificate(data)]
        for certificate in chain:
            _ = certificate.subject, certificate.issuer  # which are parsed when they are asked for
        return chain
    except Exception as error:  # the parser has many kinds, not all of them ValueErrors; every one means the same here
        raise CryptoError(
            f"These {len(data)} bytes are not an X.509 certificate: {_first_line(error)}. Check that the file was copied whole.",
            reason="CERTIFICATE_MALFORMED",
        ) from None


def to_pem(certificates: Iterable[x509.Certificate]) -> bytes:
    return b"".join(certificate.public_bytes(Encoding.PEM) for certificate in certificates)


def to_der(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.DER)


def _load_key(pem: bytes, folder: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise SettingsError(
            f"The private key in {folder} cannot be read. Restore {KEY_FILE} from a backup, or ask for a new "
            "invitation and enrol again.",
            reason="BAD_KEY_FILE",
        )
    return key


def _federation_of(root: x509.Certificate) -> str:
    names = root.subject.get_attributes_for_oid(x509.NameOID.ORGANIZATION_NAME)
    if len(names) != 1:
        raise CryptoError(
            "The root certificate does not name a federation. It was not made by `fedrep ca init`; ask the "
            "federation's administrators for the right root.pem.",
            reason="CERTIFICATE_MALFORMED",
        )
    return str(names[0].value)


def not_enrolled(missing: Path) -> SettingsError:
    return SettingsError(
        f"{missing} is missing. Enrol first with the token you were sent: fedrep enroll TOKEN. Who has enrolled, or ran fedrep "
        "init, goes to that folder or names its credentials: --identity FOLDER, or `credentials` in the settings.",
        reason="NOT_ENROLLED",
    )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise not_enrolled(path) from None


def _date(moment: dt.datetime) -> str:
    return moment.astimezone(dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
