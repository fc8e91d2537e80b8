"""Certificate revocation lists (RFC 5280, section 5), signed by the certificate authority and believed from nobody else.

A list travels by file or by `GetRevocations`; since it is signed and numbered, whoever carries it can neither add nor
drop an entry, nor bring back an older list to somebody who has seen the newer one.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm

from fedrep.errors import CryptoError

_BEGIN, _END = b"-----BEGIN X509 CRL-----", b"-----END X509 CRL-----"


@dataclass(frozen=True)
class RevocationList:
    """One authority's list. `number` grows with every list that authority signs."""

    issuer: bytes
    number: int
    issued: dt.datetime
    next_update: dt.datetime
    revoked: Mapping[int, dt.datetime] = field(repr=False)
    pem: bytes = field(repr=False)


@dataclass(frozen=True)
class Revocations:
    """The newest list of every authority seen so far."""

    lists: Mapping[bytes, RevocationList] = field(default_factory=dict)

    def revoked_at(self, certificate: x509.Certificate) -> dt.datetime | None:
        known = self.lists.get(certificate.issuer.public_bytes())
        return None if known is None else known.revoked.get(certificate.serial_number)

    def is_current(self, certificate: x509.Certificate, now: dt.datetime) -> bool:
        """Whether there is a list of its authority that is no older than the authority allows."""
        known = self.lists.get(certificate.issuer.public_bytes())
        return known is not None and now <= known.next_update

    def with_newer(self, lists: Iterable[RevocationList]) -> Revocations:
        merged = dict(self.lists)
        for candidate in lists:
            known = merged.get(candidate.issuer)
            if known is None or candidate.number > known.number:
                merged[candidate.issuer] = candidate
        return Revocations(merged)

    def overdue(self, now: dt.datetime) -> bool:
        """True when an authority promised a newer list by now and none has arrived."""
        return any(known.next_update < now for known in self.lists.values())

    def __len__(self) -> int:
        return sum(len(known.revoked) for known in self.lists.values())


def parse_revocations(bundle: bytes, authorities: Iterable[x509.Certificate]) -> list[RevocationList]:
    """Every list in a PEM bundle, each checked against the authority that it names."""
    by_name = {certificate.subject.public_bytes(): certificate for certificate in authorities}
    return [_checked(block, by_name) for block in pem_blocks(bundle)]


def pem_blocks(bundle: bytes) -> list[bytes]:
    """The lists in a bundle, each as it stands there, without what lies between them."""
    return [_BEGIN + rest.partition(_END)[0] + _END + b"\n" for rest in bundle.split(_BEGIN)[1:]]


def _checked(pem: bytes, by_name: Mapping[bytes, x509.Certificate]) -> RevocationList:
    try:
        parsed = x509.load_pem_x509_crl(pem)
        issuer = parsed.issuer.public_bytes()
        number = parsed.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
        next_update = parsed.next_update_utc
        revoked = {entry.serial_number: entry.revocation_date_utc for entry in parsed}
        if next_update is None:
            raise ValueError("no date for the next list")
    except Exception as error:  # the parser has many kinds; every one means the same here
        raise CryptoError(
            f"The revocation list cannot be read ({error}). Fetch it again from the certificate authority.",
            reason="BAD_REVOCATION_LIST",
        ) from None
    authority = by_name.get(issuer)
    if authority is None or not _signed_by(authority, parsed):
        raise CryptoError(
            "The revocation list is not signed by this federation's certificate authority. "
            "Somebody may have changed it; fetch it again from the certificate authority.",
            reason="BAD_REVOCATION_LIST",
        )
    return RevocationList(issuer, number, parsed.last_update_utc, next_update, revoked, pem)


def _signed_by(authority: x509.Certificate, revoked: x509.CertificateRevocationList) -> bool:
    try:
        return revoked.is_signature_valid(authority.public_key())  # type: ignore[arg-type]
    except (ValueError, TypeError, UnsupportedAlgorithm):  # a certificate whose key is none, or of a kind that signs nothing
        return False
