"""Which roles an intermediate authority may certify: written into its own certificate by the root, checked wherever a chain is.

The roles stand in a private extension, because names of our kind cannot be constrained by role: RFC 5280 constrains only the
host of a URI, which is the federation. It cannot be critical, or TLS would refuse what it does not know; `TrustStore` enforces
it on every side. Whoever may not certify servers is moreover held by name constraints, which TLS itself enforces, to the
authority's own host name, so that nobody takes such a certificate for a server's.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Sequence

from cryptography import x509

from fedrep.errors import InvalidInputError
from fedrep_identity.authority_name import AUTHORITY_NAME
from fedrep_identity.names import Role

# An arc of our own (ITU-T X.667): 2.25 and a UUID, that of "fedrep/allowed-roles" in the namespace of URLs.
ALLOWED_ROLES = x509.ObjectIdentifier("2.25.77538556999992100461567814271602935881")
WITHOUT_A_WORD = frozenset({Role.SILO})
_UTF8 = 0x0C


def parse_roles(text: str) -> tuple[Role, ...]:
    """`silo,evaluator`."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in set(Role)]
    if unknown or not names:
        raise InvalidInputError(f"Roles are a list of {', '.join(Role)}, separated by commas; {text!r} is none.")
    return tuple(sorted({Role(name) for name in names}))


def limits_to(roles: Collection[Role]) -> list[tuple[x509.ExtensionType, bool]]:
    """Extensions of an intermediate's certificate, and whether each is critical."""
    text = ",".join(sorted(roles)).encode()
    found: list[tuple[x509.ExtensionType, bool]] = [
        (x509.UnrecognizedExtension(ALLOWED_ROLES, bytes((_UTF8, len(text))) + text), False)
    ]
    if Role.SERVER not in roles:
        everywhere = [x509.IPAddress(ipaddress.ip_network(network)) for network in ("0.0.0.0/0", "::/0")]
        found.append((x509.NameConstraints([x509.DNSName(AUTHORITY_NAME)], everywhere), True))
    return found


def roles_of(authority: x509.Certificate) -> frozenset[Role]:
    """What an intermediate may certify; silos, if its certificate says nothing."""
    try:
        value = authority.extensions.get_extension_for_oid(ALLOWED_ROLES).value
    except x509.ExtensionNotFound:
        return WITHOUT_A_WORD
    if not isinstance(value, x509.UnrecognizedExtension):
        return frozenset()
    data = value.value
    if len(data) < 2 or data[0] != _UTF8 or data[1] != len(data) - 2:
        return frozenset()
    known = set(Role)
    return frozenset(Role(name) for name in data[2:].decode(errors="replace").split(",") if name in known)


def allowed_by(path: Sequence[x509.Certificate]) -> frozenset[Role]:
    """By every intermediate between a leaf and the root, which may certify anybody."""
    allowed = frozenset(Role)
    for authority in path[1:-1]:
        allowed &= roles_of(authority)
    return allowed
