"""Whom a silo believes: signatures under manifests, and the certificates of its roster, judged by the silo itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from fedrep.errors import CryptoError, RefusedError
from fedrep.protocol.manifests import (
    RoundManifest,
    RunManifest,
    SignedRoundManifest,
    SignedRunManifest,
    SiloName,
    round_manifest_message,
    run_manifest_message,
)
from fedrep.protocol.messages import SignedRollback, rollback_message
from fedrep.protocol.silo_rules import PeerIdentity


class Trust(Protocol):
    """The federation's root as this silo knows it; certificates are judged by the clock of whoever made it."""

    def member(self, chain: bytes, role: str, *, ended: bool = False) -> PeerIdentity:
        """Who a PEM chain belongs to; CryptoError unless it is valid now, unrevoked and of that role.

        With `ended` one that was valid until its end will do as well.
        """
        ...


def _admin(certificate: bytes, trust: Trust, pinned: frozenset[bytes] | None, *, ended: bool = False) -> PeerIdentity:
    admin = trust.member(certificate, "admin", ended=ended)
    if pinned is not None and admin.fingerprint not in pinned:
        raise CryptoError(f"{admin.name!r} is not among the admins this silo has pinned")
    return admin


def check_run_signature(
    signed: SignedRunManifest, trust: Trust, pinned: frozenset[bytes] | None = None, *, known: bool = False
) -> RunManifest:
    """The rules of a run count only with an admin's signature under them; `pinned` are the admins a policy trusts.

    Runs outlive certificates: to who agreed to these very rules before, `known`, it is all the same that the admin's has ended.
    """
    try:
        admin = _admin(signed.certificate, trust, pinned, ended=known)
        admin.verify_key.verify(signed.signature, run_manifest_message(signed.manifest))
    except CryptoError as error:
        if error.reason == "CERTIFICATE_EXPIRED":
            text = (
                f"{error} It is that of the admin who signed run {signed.manifest.name!r}: silos that take part go on, and new "
                "ones can join once an admin has signed another list of silos with a valid certificate (fedrep run amend)."
            )
            raise RefusedError(text, reason="BAD_RUN") from error
        raise RefusedError(f"the run manifest is not signed by an admin of this federation: {error}", reason="BAD_RUN") from error
    return signed.manifest


def check_round_signature(signed: SignedRoundManifest, certificate: bytes, trust: Trust) -> RoundManifest:
    """`certificate` is what Join named; a server that renewed its own since then sends the new one along."""
    try:
        server = trust.member(signed.certificate or certificate, "server")
        server.verify_key.verify(signed.signature, round_manifest_message(signed.manifest))
    except CryptoError as error:
        raise RefusedError(
            f"the round manifest is not signed by this federation's server: {error}", reason="BAD_ROUND"
        ) from error
    return signed.manifest


def check_rollback(
    order: SignedRollback | None, runs: Sequence[RunManifest], trust: Trust, pinned: frozenset[bytes] | None = None
) -> SignedRollback | None:
    """An order about this run, under one of its manifests, that an admin signed; anything else is as good as none."""
    if order is None or all(order.run != run.digest() for run in runs):
        return None
    try:
        admin = _admin(order.certificate, trust, pinned)
        admin.verify_key.verify(order.signature, rollback_message(order.run, order.version, order.model_hash))
    except CryptoError:
        return None
    return order


class Chains:
    """Certificates of other silos, fetched once and judged anew every round."""

    def __init__(self) -> None:
        self._known: dict[bytes, bytes] = {}

    def learn(self, chains: Mapping[bytes, bytes]) -> None:
        self._known.update(chains)

    def peers(self, manifest: RoundManifest, trust: Trust) -> dict[SiloName, PeerIdentity]:
        """Everyone in the roster whose certificate is known here, still valid, and of the key that the roster names.

        The others' are asked for, for they may have been renewed; rule 2 refuses the round if one is missing or bad even then.
        """
        peers = {}
        for entry in manifest.roster:
            try:
                found = trust.member(self._known.get(entry.fingerprint, b""), "silo")
            except CryptoError:
                continue
            if found.fingerprint == entry.fingerprint:
                peers[entry.name] = found
        return peers
