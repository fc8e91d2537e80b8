"""The rules the server enforces on every message, before its round changes. Each refusal has a status and a stable reason."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fedrep.coding import decode_coordinates, decode_values
from fedrep.errors import CryptoError, InvalidInputError, OutOfPhaseError, SettingsError, UnknownSiloError, WrongRoundError
from fedrep.protocol.manifests import RosterEntry, RoundManifest, RunHash, RunManifest, SiloName, session_key_message
from fedrep.protocol.messages import (
    Abstention,
    Confirmation,
    Proposal,
    Reveal,
    Secret,
    SignedRollback,
    Statement,
    Submission,
    SurvivorSet,
    confirmation_message,
    rollback_message,
    share_list_digest,
    statement_message,
    submission_message,
)
from fedrep.secagg.keys import VerifyKey, check_agreement_public
from fedrep.secagg.masking import ring_dtype
from fedrep.secagg.pairs import MAC_BYTES
from fedrep.secagg.shares import SEALED_BYTES

HASH_BYTES = 32

VerifyKeys = Mapping[SiloName, VerifyKey]


def check_session_key(entry: RosterEntry, run: RunHash, key: VerifyKey) -> None:
    """At Join: nobody could seal shares to a key of low order, and nobody would to one the silo did not sign over this run."""
    check_agreement_public(entry.session_key)
    try:
        key.verify(entry.session_signature, session_key_message(run, entry.session_key, entry.promise))
    except CryptoError as error:
        raise CryptoError(
            "the session key is not validly signed over this run and the promise it came with", reason="BAD_SIGNATURE"
        ) from error


def check_promise(entry: RosterEntry, run: RunManifest) -> None:
    """At Join: the others would refuse a roster that lists this silo."""
    if run.is_met_by(entry.promise):
        return
    said = "promises nothing" if entry.promise is None else f"promises {entry.promise}"
    raise SettingsError(
        f"run {run.name!r} asks every silo to promise that training on one record costs at most {run.record_limit}, and this "
        f"silo {said}: lower the budget in [privacy] of its client.toml, or stay out of the run",
        reason="NO_PROMISE",
    )


def check_member(silo: SiloName, manifest: RoundManifest) -> None:
    if manifest.entry(silo) is None:
        raise UnknownSiloError(f"{silo!r} is not in the roster of round {manifest.round}; join and wait for the next round")


def check_header(message: Proposal | Abstention | Submission | Confirmation | Reveal, manifest: RoundManifest) -> None:
    """Roster silo, right run, right round."""
    check_member(message.silo, manifest)
    if message.run != manifest.run:
        raise WrongRoundError("the message belongs to another run", reason="WRONG_RUN")
    if message.round != manifest.round:
        raise WrongRoundError(f"the message is for round {message.round}; round {manifest.round} is open")


def check_proposal(proposal: Proposal, manifest: RoundManifest, c1: bytes, keys: VerifyKeys) -> NDArray[np.int64]:
    """I_k, decoded, if it has exactly k coordinates and the silo can be recovered by the holders."""
    k = manifest.per_silo
    indices = decode_coordinates(proposal.coordinates, manifest.parameters, k)
    if indices.size != k:
        raise InvalidInputError(f"a proposal has exactly k = {k} coordinates, not {indices.size}", reason="WRONG_COUNT")
    _check_share_lists(proposal, len(manifest.roster))
    record = proposal.record
    check_agreement_public(record.mask_key)
    check_agreement_public(record.next_session_key)
    _verify(keys, proposal.silo, record.signature, record.digest(c1), "the record")
    next_key = _next_key_message(manifest, proposal.silo, record.next_session_key)
    _verify(keys, proposal.silo, proposal.next_session_signature, next_key, "the next session key")
    return indices


def _check_share_lists(proposal: Proposal, holders: int) -> None:
    hashes = (proposal.seed_share_hashes, proposal.key_share_hashes)
    record = proposal.record
    if record.silo != proposal.silo:
        raise InvalidInputError("the record names another silo than the sender", reason="WRONG_RECORD")
    if any(len(items) != holders for items in (proposal.sealed_shares, *hashes)):
        raise InvalidInputError(f"a proposal carries shares and hashes for all {holders} holders", reason="WRONG_SHARES")
    if set(map(len, proposal.sealed_shares)) != {SEALED_BYTES}:
        raise InvalidInputError(f"a sealed share has {SEALED_BYTES} bytes", reason="WRONG_SHARES")
    if set(map(len, (*hashes[0], *hashes[1], record.seed_commitment))) != {HASH_BYTES}:
        raise InvalidInputError(f"every hash in a proposal has {HASH_BYTES} bytes", reason="WRONG_SHARES")
    if record.shares_digest != share_list_digest(*hashes):
        raise InvalidInputError("the record commits to other share hashes than it came with", reason="WRONG_SHARES")


def check_abstention(abstention: Abstention, manifest: RoundManifest, keys: VerifyKeys) -> None:
    check_agreement_public(abstention.next_session_key)
    message = _next_key_message(manifest, abstention.silo, abstention.next_session_key)
    _verify(keys, abstention.silo, abstention.next_session_signature, message, "the next session key")


def _next_key_message(manifest: RoundManifest, silo: SiloName, key: bytes) -> bytes:
    """With the promise of the roster, which the next roster shows beside this key."""
    entry = manifest.entry(silo)
    return session_key_message(manifest.run, key, entry.promise if entry is not None else None)


def check_submission(
    submission: Submission, manifest: RoundManifest, count: int, c2: bytes, keys: VerifyKeys
) -> NDArray[np.unsignedinteger]:
    """The masked values, if there are exactly |I| of them and the silo signed the consensus they belong to."""
    values = decode_values(submission.masked, ring_dtype(manifest.ring_bits), count)
    _check_macs(submission, manifest)
    message = submission_message(c2, submission.silo)
    _verify(keys, submission.silo, submission.signature, message, "the submission")
    return values


def _check_macs(message: Submission | Confirmation, manifest: RoundManifest) -> None:
    """One for each holder, or none at all: whether they are right only the holders can tell, who else look at the signature."""
    holders = len(manifest.roster)
    if message.macs and len(message.macs) != MAC_BYTES * holders:
        raise InvalidInputError(f"there are {MAC_BYTES} bytes of MAC for each of the {holders} holders", reason="WRONG_MACS")


def check_confirmation(
    confirmation: Confirmation, manifest: RoundManifest, c2: bytes, survivors: SurvivorSet, keys: VerifyKeys
) -> None:
    _check_macs(confirmation, manifest)
    message = confirmation_message(c2, survivors)
    _verify(keys, confirmation.silo, confirmation.signature, message, "the confirmation")


def check_reveal(reveal: Reveal, wanted: Mapping[SiloName, Secret]) -> None:
    """Exactly the secret that may be known of a silo, never both."""
    if len({share.dealer for share in reveal.shares}) != len(reveal.shares):
        raise InvalidInputError("a reveal holds at most one share per silo", reason="TWO_SHARES")
    for share in reveal.shares:
        if wanted.get(share.dealer) is not share.secret:
            raise InvalidInputError(f"nobody asked for a {share.secret.value} share of {share.dealer!r}", reason="UNWANTED_SHARE")


def check_statement(statement: Statement, run: RunHash, last_round: int, key: VerifyKey) -> None:
    """About a round of this run that is over. Who held shares in it is judged by the silos, which have its manifest."""
    if statement.run != run:
        raise WrongRoundError("the statement is about another run", reason="WRONG_RUN")
    if statement.round > last_round:
        raise OutOfPhaseError(f"round {statement.round} is not over; no statement about it is needed yet")
    message = statement_message(statement.run, statement.round, statement.c1, statement.silo)
    _verify({statement.silo: key}, statement.silo, statement.signature, message, "the statement")


def check_rollback(order: SignedRollback, run: RunHash, version: int, model_hash: bytes) -> None:
    """About this run as it stands, at `version`: silos would refuse the model otherwise (N5)."""
    if order.run != run:
        raise WrongRoundError("the rollback was signed for another run manifest than the one in force", reason="WRONG_RUN")
    if order.version != version + 1:
        raise OutOfPhaseError(
            f"the rollback was signed for version {order.version}, but the model is at version {version}, so the next is "
            f"{version + 1}: sign it again, and pause the run first if its rounds are faster than you",
            reason="MODEL_MOVED",
        )
    if order.model_hash != model_hash:
        raise InvalidInputError(
            "the rollback was signed for another model than the one of the version it asks for", reason="WRONG_MODEL"
        )


def check_rollback_signature(order: SignedRollback, key: VerifyKey) -> None:
    try:
        key.verify(order.signature, rollback_message(order.run, order.version, order.model_hash))
    except CryptoError as error:
        raise CryptoError("the rollback is not validly signed by the admin who asks for it", reason="BAD_SIGNATURE") from error


def _verify(keys: VerifyKeys, silo: SiloName, signature: bytes, message: bytes, what: str) -> None:
    try:
        keys[silo].verify(signature, message)
    except CryptoError as error:
        raise CryptoError(f"{what} of {silo!r} is not validly signed", reason="BAD_SIGNATURE") from error
