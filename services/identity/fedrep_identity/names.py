"""Who somebody is: a name and a role within a federation, written as the URI `spiffe://federation/role/name`.

The URI stands in the certificate's subject alternative name (the SPIFFE X.509-SVID form), is put there by the
consortium's certificate authority, and is the only source of identity: nothing a caller writes into a request or a
certificate request is believed.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from cryptography import x509

from fedrep.errors import CryptoError, InvalidInputError

NAME_PATTERN = r"[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?"


class Role(StrEnum):
    SILO = "silo"
    EVALUATOR = "evaluator"
    ADMIN = "admin"
    VIEWER = "viewer"
    SERVER = "server"


class WrongRoleError(CryptoError):
    """The caller is known, but its role may not do this."""

    status = "PERMISSION_DENIED"
    default_reason = "WRONG_ROLE"


@dataclass(frozen=True, order=True)
class Identity:
    name: str
    role: Role
    federation: str

    def __post_init__(self) -> None:
        check_name("name", self.name)
        check_name("federation name", self.federation)
        object.__setattr__(self, "role", Role(self.role))

    @property
    def uri(self) -> str:
        return f"spiffe://{self.federation}/{self.role}/{self.name}"

    def __str__(self) -> str:
        return f"{self.role} {self.name}"

    @classmethod
    def from_uri(cls, uri: str) -> Identity:
        scheme, _, rest = uri.partition("://")
        parts = rest.split("/")
        try:
            if scheme != "spiffe" or len(parts) != 3:
                raise ValueError
            return cls(parts[2], Role(parts[1]), parts[0])
        except (ValueError, InvalidInputError):
            raise CryptoError(
                f"The certificate names {uri[:120]!r}, which is not spiffe://federation/role/name. "
                "Ask the federation's administrators for a new certificate.",
                reason="CERTIFICATE_MALFORMED",
            ) from None


def check_name(what: str, name: str) -> None:
    """Lower case only, so that no two names look alike; safe in file names, URIs, DNS labels and logs."""
    if not re.fullmatch(NAME_PATTERN, name):
        raise InvalidInputError(
            f"{name[:80]!r} cannot be a {what}: use 1 to 63 lower-case letters, digits, dots, dashes or underscores, "
            "starting and ending with a letter or digit.",
            reason="BAD_NAME",
        )


def identity_of(certificate: x509.Certificate) -> Identity:
    """The one URI in the certificate; more than one would let two readers see two identities."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    except Exception:  # no such extension, two of them, or one that the parser cannot read: no identity either way
        uris = []
    if len(uris) != 1:
        raise CryptoError(
            f"The certificate carries {len(uris)} identities where exactly one is needed. "
            "Ask the federation's administrators for a new certificate.",
            reason="CERTIFICATE_MALFORMED",
        )
    return Identity.from_uri(uris[0])


def require_role(identity: Identity, allowed: Collection[Role], what: str = "this call") -> None:
    if identity.role not in allowed:
        wanted = ", ".join(sorted(allowed)) or "nobody"
        raise WrongRoleError(
            f"{identity.name} holds a certificate of role {identity.role}, but {what} is for: {wanted}. "
            "Use the certificate issued for that role, or ask the federation's administrators for one."
        )
