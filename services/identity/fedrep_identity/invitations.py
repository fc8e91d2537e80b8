"""Invitations: a single-use token that carries everything a silo needs to enrol, and the authority's half of it.

The token holds the authority's and the server's address, the fingerprint of the federation's root, and a 256-bit secret: the seed
of a signing key, whose public half is in the register. The key signs the request for a certificate, and the secret never leaves
the machine that was invited: neither who reads the register nor who poses as the authority can enrol anybody with it.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import hashlib
import json
import secrets
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedrep.errors import ConflictError, DecodeError, InvalidInputError
from fedrep.secagg.keys import SecretBytes
from fedrep.secagg.transcript import digest
from fedrep_identity.authority_name import OWN_NAME
from fedrep_identity.certificates import load_chain, to_der
from fedrep_identity.host_names import check_host_name
from fedrep_identity.names import Identity, Role
from fedrep_identity.register import Hosts, Register, StoredInvitation
from fedrep_runtime.json_text import parsed

PREFIX = "fedrep1"
DEFAULT_HOURS = 72.0
LARGEST_TOKEN = 4096
SECRET_BYTES = 32


@dataclass(frozen=True)
class Invitation:
    """What a token says. `name` and `role` are for the reader's eyes; the authority goes by its own register."""

    id: str
    secret: SecretBytes
    name: str
    role: Role
    federation: str
    enrolment_address: str
    server_address: str
    root_fingerprint: bytes
    expires_at: dt.datetime

    def proof(self, request: bytes) -> bytes:
        """For this request and no other: whoever gets to see it can do nothing else with it."""
        return Ed25519PrivateKey.from_private_bytes(self.secret.reveal()).sign(_proven(self.id, request))

    def token(self) -> str:
        body = json.dumps(
            {
                "i": self.id,
                "s": _text(self.secret.reveal()),
                "n": self.name,
                "r": self.role.value,
                "f": self.federation,
                "a": self.enrolment_address,
                "w": self.server_address,
                "p": _text(self.root_fingerprint),
                "x": int(self.expires_at.timestamp()),
            },
            separators=(",", ":"),
        ).encode()
        return f"{PREFIX}.{_text(body)}.{_text(_checksum(body))}"

    @classmethod
    def from_token(cls, token: str) -> Invitation:
        """Refuses a token that was cut or changed on its way, with a sentence that does not repeat it."""
        parts = "".join(token.split()).split(".") if len(token) <= LARGEST_TOKEN else []
        if len(parts) != 3 or parts[0] != PREFIX:
            raise DecodeError(
                f"This is not an invitation: one starts with {PREFIX}. and has three parts joined by dots. "
                "Copy the whole token from the message you were sent.",
                reason="BAD_TOKEN",
            )
        try:
            body = _bytes(parts[1])
            if _bytes(parts[2]) != _checksum(body):
                raise ValueError("checksum")
            said = parsed(body)
            secret = _bytes(said["s"])
            if len(secret) != SECRET_BYTES:
                raise ValueError("secret")
            return cls(
                str(said["i"]),
                SecretBytes(secret),
                str(said["n"]),
                Role(said["r"]),
                str(said["f"]),
                str(said["a"]),
                str(said["w"]),
                _bytes(said["p"]),
                dt.datetime.fromtimestamp(int(said["x"]), dt.UTC),
            )
        except (ValueError, KeyError, TypeError, OverflowError, OSError):
            raise DecodeError(
                "The invitation was cut or changed on its way. Copy the whole token again from the message you were sent.",
                reason="BAD_TOKEN",
            ) from None


def invite(
    register: Register,
    root: bytes,
    identity: Identity,
    *,
    enrolment_address: str,
    server_address: str,
    hosts: Hosts | None = None,
    hours: float = DEFAULT_HOURS,
    now: dt.datetime | None = None,
) -> Invitation:
    """Write an invitation into the register. Needs no signing key, so an administrator can invite on a live system."""
    now = (now or dt.datetime.now(dt.UTC)).replace(microsecond=0)
    hosts = hosts or Hosts()
    if identity.name == OWN_NAME:
        raise InvalidInputError(f"{OWN_NAME!r} is the certificate authority's own name; choose another.")
    if hours <= 0 or hours > 24 * 30:
        raise InvalidInputError("An invitation is open for more than 0 and at most 720 hours.")
    if hosts and identity.role is not Role.SERVER:
        raise InvalidInputError(f"Only a server has host names; invite {identity} without any.")
    if identity.role is Role.SERVER and not hosts:
        raise InvalidInputError("A server needs the DNS names or addresses that silos will dial: give --dns or --ip.")
    for name in hosts.dns:
        check_host_name(name)
    if any(issued.status(now) == "valid" for issued in register.certificates(identity.name)):
        raise ConflictError(
            f"{identity.name} already holds a valid certificate. Revoke it first (fedrep silo revoke {identity.name}), "
            "or choose another name: two holders of one name could not be told apart.",
            reason="NAME_IN_USE",
        )
    secret, invitation_id = secrets.token_bytes(SECRET_BYTES), secrets.token_hex(16)
    expires_at = now + dt.timedelta(hours=hours)
    register.add_invitation(
        StoredInvitation(invitation_id, _public(secret), identity.name, identity.role, hosts, now, expires_at)
    )
    return Invitation(
        invitation_id,
        SecretBytes(secret),
        identity.name,
        identity.role,
        identity.federation,
        enrolment_address,
        server_address,
        hashlib.sha256(to_der(load_chain(root)[0])).digest(),
        expires_at,
    )


def proves(proof: bytes, public_key: bytes, invitation_id: str, request: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(proof, _proven(invitation_id, request))
    except (InvalidSignature, ValueError):
        return False
    return True


def _proven(invitation_id: str, request: bytes) -> bytes:
    return digest("fedrep/enrolment", invitation_id, request)


def _public(secret: bytes) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def _checksum(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()[:6]


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None
