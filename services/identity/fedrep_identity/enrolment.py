"""The authority's decisions about certificates, without a network: who may enrol, who may renew, and as whom.

Name, role and host names come from the invitation (enrolment) or from the register (renewal). A caller that does not hold
an invitation's secret learns nothing about it, not even whether it exists.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from functools import partial

import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedrep.errors import ConflictError, CryptoError, RefusedError
from fedrep_identity.authority import LEAF_DAYS, CertificateAuthority, request_fingerprint
from fedrep_identity.certificates import REVOCATIONS_FILE, PeerCertificate
from fedrep_identity.invitations import proves
from fedrep_identity.names import Identity
from fedrep_identity.register import StoredInvitation

WRONG_SECRETS_ALLOWED = 5
_NOBODY = Ed25519PrivateKey.generate().public_key().public_bytes_raw()
_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class EnrolmentDesk:
    authority: CertificateAuthority
    days: float = LEAF_DAYS

    def enrol(self, invitation_id: str, proof: bytes, request: bytes, now: dt.datetime | None = None) -> bytes:
        """The certificate chain for the holder of an invitation.

        An invitation is used by one key. The same key may ask again until the invitation expires and gets the same
        certificate: the first answer may have been lost on its way.
        """
        now = now or dt.datetime.now(dt.UTC)
        invitation = self._opened(invitation_id, proof, request)
        if now > invitation.expires_at:
            raise RefusedError(
                f"The invitation for {invitation.name} expired on {invitation.expires_at:%Y-%m-%d %H:%M} UTC. Ask for a new one.",
                reason="INVITATION_EXPIRED",
            )
        fingerprint = request_fingerprint(request)
        self.authority.check_key_is_free(fingerprint, invitation.name)  # before the invitation is spent
        if not self.authority.register.claim_invitation(invitation.id, fingerprint):
            raise RefusedError(
                f"The invitation for {invitation.name} was already used or withdrawn. If it was not you who used it, "
                "tell the federation's administrators at once; either way, ask for a new one.",
                reason="INVITATION_USED",
            )
        for issued in self.authority.register.certificates(invitation.name):
            if issued.fingerprint == fingerprint and issued.revoked_at is None:
                return issued.chain
        if self.authority.holders(invitation.name):
            raise ConflictError(
                f"Another key holds the name {invitation.name}. If it is not yours, tell the federation's administrators "
                "at once: they can revoke it, and invite you again.",
                reason="NAME_IN_USE",
            )
        identity = Identity(invitation.name, invitation.role, self.authority.federation)
        enter = partial(self.authority.register.add_enrolled, invitation_id=invitation.id, now=now)
        chain = self.authority.sign(request, identity, self.days, invitation.hosts, enter)
        _log.info("enrolled", name=identity.name, role=identity.role.value, fingerprint=fingerprint.hex()[:16])
        return chain

    def _opened(self, invitation_id: str, proof: bytes, request: bytes) -> StoredInvitation:
        register = self.authority.register
        invitation = register.invitation(invitation_id)
        # The check runs for unknown invitations too: the clock tells nothing.
        matches = proves(proof, _NOBODY if invitation is None else invitation.public_key, invitation_id, request)
        if invitation is not None and matches and not invitation.void:
            return invitation
        if invitation is not None and not matches:
            register.count_failure(invitation.id, WRONG_SECRETS_ALLOWED)
        _log.warning("enrolment_refused", known=invitation is not None)
        raise CryptoError(
            "This invitation is not valid. Check that the whole token was copied; if it was, ask for a new one.",
            reason="INVITATION_INVALID",
        )

    def renew(self, peer: PeerCertificate, request: bytes) -> bytes:
        """A new certificate for the caller as it is in the register, whatever the request or the old certificate say.

        A key that was replaced renews nothing any more, or an old backup would be good for ever; it may only ask once more for
        the key that replaced it, because the answer may have been lost.
        """
        issued = self.authority.register.certificates(peer.identity.name)
        current = next((entry for entry in reversed(issued) if entry.fingerprint == peer.fingerprint), None)
        if current is None or current.revoked_at is not None or current.role is not peer.identity.role:
            raise CryptoError(
                f"The certificate of {peer.identity} is not (or no longer) in this authority's register. "
                "Ask for a new invitation and run fedrep enroll.",
                reason="CERTIFICATE_REVOKED",
            )
        newest = next(entry for entry in reversed(issued) if entry.revoked_at is None)
        if newest.fingerprint not in (peer.fingerprint, request_fingerprint(request)):
            raise RefusedError(
                f"The key of {peer.identity.name} was replaced by a new one on {newest.not_before:%Y-%m-%d}. If that was you, "
                "and the new one never came, repeat fedrep renew --new-key in the same folder; if it was not, tell the "
                "federation's administrators at once.",
                reason="KEY_REPLACED",
            )
        enter = partial(self.authority.register.add_renewed, by=peer.fingerprint)
        chain = self.authority.sign(request, peer.identity, self.days, current.hosts, enter)
        _log.info("renewed", name=peer.identity.name, role=peer.identity.role.value)
        return chain

    def revocations(self) -> bytes:
        return (self.authority.folder / REVOCATIONS_FILE).read_bytes()
