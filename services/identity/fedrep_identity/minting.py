"""Which roles an intermediate authority may certify: written into its own certificate by the root, checked wherever a chain is.

The roles stand in a private extension, because names of our kind cannot be constrained by role: RFC 5280 constrains only the
host of a URI, which is the federation. It cannot be critical, or TLS would refuse what it does not know; `TrustStore` enforces
it on every side. Whoever may not certify servers is moreover held by name constraints, which TLS itself enforces, to the
authority's own host name, so that nobody takes such a certificate for a server's.

A second private extension is for an intermediate that signs where no revocation list is made, such as an issuer of cert-manager:
the root writes there for how many days a certificate of it may be valid. That bounds what a missing list can cost, so a server
that requires lists needs none of this intermediate, only the root's own, by which the intermediate itself can be revoked.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import re
from collections.abc import Collection, Sequence

from cryptography import x509

from fedrep.errors import InvalidInputError
from fedrep_identity.authority_name import AUTHORITY_NAME
from fedrep_identity.names import Role

# An arc of our own (ITU-T X.667): 2.25 and a UUID, that of "fedrep/allowed-roles" in the namespace of URLs.
ALLOWED_ROLES = x509.ObjectIdentifier("2.25.77538556999992100461567814271602935881")
# Likewise of "fedrep/unlisted-days".
UNLISTED_DAYS = x509.ObjectIdentifier("2.25.31349431647539884030537851059848311709")
WITHOUT_A_WORD = frozenset({Role.SILO})
DATED_BACK = dt.timedelta(minutes=5)  # whoever signs may let a certificate begin a little earlier
_UTF8 = 0x0C


def parse_roles(text: str) -> tuple[Role, ...]:
    """`silo,evaluator`."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in set(Role)]
    if unknown or not names:
        raise InvalidInputError(f"Roles are a list of {', '.join(Role)}, separated by commas; {text!r} is none.")
    return tuple(sorted({Role(name) for name in names}))


def limits_to(roles: Collection[Role], unlisted_days: int | None = None) -> list[tuple[x509.ExtensionType, bool]]:
    """Extensions of an intermediate's certificate, and whether each is critical."""
    found: list[tuple[x509.ExtensionType, bool]] = [(_written(ALLOWED_ROLES, ",".join(sorted(roles))), False)]
    if unlisted_days is not None:
        found.append((_written(UNLISTED_DAYS, str(unlisted_days)), False))
    if Role.SERVER not in roles:
        everywhere = [x509.IPAddress(ipaddress.ip_network(network)) for network in ("0.0.0.0/0", "::/0")]
        found.append((x509.NameConstraints([x509.DNSName(AUTHORITY_NAME)], everywhere), True))
    return found


def roles_of(authority: x509.Certificate) -> frozenset[Role]:
    """What an intermediate may certify; silos, if its certificate says nothing."""
    text = _read(authority, ALLOWED_ROLES)
    if text is None:
        return WITHOUT_A_WORD
    known = set(Role)
    return frozenset(Role(name) for name in text.split(",") if name in known)


def unlisted_life(authority: x509.Certificate) -> dt.timedelta | None:
    """How long a certificate of an authority without revocation lists may be valid; None for one that must publish them."""
    text = _read(authority, UNLISTED_DAYS)
    return dt.timedelta(days=int(text)) if text and re.fullmatch("[0-9]{1,3}", text) else None


def needs_no_list(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Whether the root let its authority sign without revocation lists, and for as long as this certificate lives."""
    longest = unlisted_life(authority)
    return longest is not None and certificate.not_valid_after_utc - certificate.not_valid_before_utc <= longest + DATED_BACK


def allowed_by(path: Sequence[x509.Certificate]) -> frozenset[Role]:
    """By every intermediate between a leaf and the root, which may certify anybody."""
    allowed = frozenset(Role)
    for authority in path[1:-1]:
        allowed &= roles_of(authority)
    return allowed


def _written(oid: x509.ObjectIdentifier, text: str) -> x509.UnrecognizedExtension:
    data = text.encode()
    return x509.UnrecognizedExtension(oid, bytes((_UTF8, len(data))) + data)


def _read(authority: x509.Certificate, oid: x509.ObjectIdentifier) -> str | None:
    """The text of a private extension; None without it, and empty where it is not one of ours."""
    try:
        value = authority.extensions.get_extension_for_oid(oid).value
    except x509.ExtensionNotFound:
        return None
    if not isinstance(value, x509.UnrecognizedExtension):
        return ""
    data = value.value
    if len(data) < 2 or data[0] != _UTF8 or data[1] != len(data) - 2:
        return ""
    return data[2:].decode(errors="replace")
