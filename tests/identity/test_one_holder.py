"""One name, one holder: no second key gets in beside the first by an old token, an old key, or a moment between two steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from fedrep.errors import ConflictError, CryptoError, FedrepError, RefusedError
from fedrep_identity.authority import CertificateAuthority, certificate_request, request_fingerprint
from fedrep_identity.authority_server import AuthorityServer
from fedrep_identity.certificates import Credentials, Identity, PeerCertificate, Role
from fedrep_identity.enrolment import WRONG_SECRETS_ALLOWED, EnrolmentDesk
from fedrep_identity.enrolment_client import enrol, renew
from fedrep_identity.invitations import Invitation
from fedrep_identity.templates import leaf_certificate
from tests.harness.enrolment_desk import invitation_for, with_server

NAME = "hospital-a"


def request() -> bytes:
    return certificate_request(ec.generate_private_key(ec.SECP256R1()))


def enrolled(desk: EnrolmentDesk, asked: bytes) -> PeerCertificate:
    invitation = invitation_for(desk.authority)
    return desk.authority.trust_store().verify(desk.enrol(invitation.id, invitation.proof(asked), asked))


def refusal(error: type[FedrepError], act: Callable[[], object]) -> str:
    with pytest.raises(error) as refused:
        act()
    return refused.value.reason


def test_a_withdrawn_invitation_stays_withdrawn_whatever_secrets_are_tried(authority: CertificateAuthority) -> None:
    desk, invitation = EnrolmentDesk(authority), invitation_for(authority)
    authority.revoke(NAME)
    asked = request()
    for proof in (bytes(64), invitation.proof(asked)) * WRONG_SECRETS_ALLOWED:
        assert refusal(CryptoError, lambda tried=proof: desk.enrol(invitation.id, tried, asked)) == "INVITATION_INVALID"  # type: ignore[misc]
    assert authority.register.certificates(NAME) == []


def test_a_proof_serves_the_request_it_was_made_for_and_no_other(authority: CertificateAuthority) -> None:
    """All that somebody learns who poses as the authority: the secret itself is never sent."""
    desk, invitation, other = EnrolmentDesk(authority), invitation_for(authority), invitation_for(authority, name="hospital-b")
    asked = request()
    proof = invitation.proof(asked)
    assert refusal(CryptoError, lambda: desk.enrol(invitation.id, proof, request())) == "INVITATION_INVALID"
    assert refusal(CryptoError, lambda: desk.enrol(other.id, proof, asked)) == "INVITATION_INVALID"
    desk.enrol(invitation.id, proof, asked)


def test_a_new_invitation_takes_the_place_of_the_one_that_was_lost(authority: CertificateAuthority) -> None:
    desk = EnrolmentDesk(authority)
    lost, again = invitation_for(authority), invitation_for(authority)
    other = invitation_for(authority, name="hospital-b")

    def use(invitation: Invitation) -> bytes:
        asked = request()
        return desk.enrol(invitation.id, invitation.proof(asked), asked)

    assert refusal(CryptoError, lambda: use(lost)) == "INVITATION_INVALID"
    use(again)
    use(other)
    assert len(authority.holders(NAME)) == 1


def test_an_enrolment_that_was_cut_short_is_finished_unless_its_name_was_invited_again(
    authority: CertificateAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = EnrolmentDesk(authority)

    def begun(name: str) -> Callable[[], bytes]:
        invitation, asked = invitation_for(authority, name=name), request()

        def killed(*_: Any) -> Any:
            raise KeyboardInterrupt

        def use() -> bytes:
            return desk.enrol(invitation.id, invitation.proof(asked), asked)

        with monkeypatch.context() as patch:
            patch.setattr("fedrep_identity.authority.leaf_certificate", killed)
            with pytest.raises(KeyboardInterrupt):
                use()
        return use

    first, other = begun(NAME), begun("hospital-b")
    again, asked = invitation_for(authority), request()
    assert refusal(CryptoError, first) == "INVITATION_INVALID"
    desk.enrol(again.id, again.proof(asked), asked)
    assert other() == other()


def test_one_key_that_enrols_under_two_names_at_once_gets_one(
    authority: CertificateAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk, asked = EnrolmentDesk(authority), request()
    first, second = invitation_for(authority), invitation_for(authority, name="hospital-b")

    def both_looked(self: CertificateAuthority, identity: Identity) -> None:
        monkeypatch.undo()
        desk.enrol(second.id, second.proof(asked), asked)

    monkeypatch.setattr(CertificateAuthority, "_check_one_role", both_looked)
    assert refusal(ConflictError, lambda: desk.enrol(first.id, first.proof(asked), asked)) == "KEY_IN_USE"
    assert authority.register.names_of_key(request_fingerprint(asked)) == {"hospital-b"}


def test_an_invitation_is_no_way_in_while_another_key_holds_the_name(authority: CertificateAuthority) -> None:
    desk, invitation = EnrolmentDesk(authority), invitation_for(authority)
    authority.sign(request(), Identity(NAME, Role.SILO, "demo"))
    asked = request()
    act = lambda: desk.enrol(invitation.id, invitation.proof(asked), asked)  # noqa: E731
    assert refusal(ConflictError, act) == "NAME_IN_USE"
    assert len(authority.holders(NAME)) == 1


@pytest.mark.parametrize("step", ["enrol", "renew"])
def test_a_revocation_in_the_middle_of_it_leaves_no_valid_certificate(
    step: str, authority: CertificateAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk, asked = EnrolmentDesk(authority), request()
    peer = enrolled(desk, asked) if step == "renew" else None
    invitation = invitation_for(authority) if peer is None else None

    def revoked_meanwhile(*arguments: Any) -> Any:
        authority.revoke(NAME)
        return leaf_certificate(*arguments)

    monkeypatch.setattr("fedrep_identity.authority.leaf_certificate", revoked_meanwhile)

    def act() -> bytes:
        if peer is not None:
            return desk.renew(peer, asked)
        assert invitation is not None
        return desk.enrol(invitation.id, invitation.proof(asked), asked)

    assert refusal(RefusedError, act) == "NO_LONGER_WELCOME"
    assert authority.holders(NAME) == set()


def test_a_second_key_that_came_in_the_middle_of_an_enrolment_keeps_the_name(
    authority: CertificateAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk, invitation = EnrolmentDesk(authority), invitation_for(authority)

    def signed_meanwhile(*arguments: Any) -> Any:
        monkeypatch.undo()
        authority.sign(request(), Identity(NAME, Role.SILO, "demo"))
        return leaf_certificate(*arguments)

    monkeypatch.setattr("fedrep_identity.authority.leaf_certificate", signed_meanwhile)
    asked = request()
    act = lambda: desk.enrol(invitation.id, invitation.proof(asked), asked)  # noqa: E731
    assert refusal(RefusedError, act) == "NO_LONGER_WELCOME"
    assert len(authority.holders(NAME)) == 1


def test_a_key_that_was_replaced_renews_nothing_but_may_ask_for_its_successor_again(authority: CertificateAuthority) -> None:
    desk, first, second = EnrolmentDesk(authority), request(), request()
    old = enrolled(desk, first)
    new = authority.trust_store().verify(desk.renew(old, second))
    assert refusal(RefusedError, lambda: desk.renew(old, first)) == "KEY_REPLACED"
    assert refusal(RefusedError, lambda: desk.renew(old, request())) == "KEY_REPLACED"
    assert authority.trust_store().verify(desk.renew(old, second)).fingerprint == new.fingerprint
    desk.renew(new, second)


def test_a_key_that_is_replaced_in_the_middle_of_its_renewal_is_not_renewed(
    authority: CertificateAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk, first = EnrolmentDesk(authority), request()
    old = enrolled(desk, first)

    def replaced_meanwhile(*arguments: Any) -> Any:
        monkeypatch.undo()
        desk.renew(old, request())
        return leaf_certificate(*arguments)

    monkeypatch.setattr("fedrep_identity.authority.leaf_certificate", replaced_meanwhile)
    assert refusal(RefusedError, lambda: desk.renew(old, first)) == "NO_LONGER_WELCOME"


def test_a_new_key_whose_answer_was_lost_comes_when_it_is_asked_for_again(
    authority: CertificateAuthority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "silo"

    async def body(server: AuthorityServer) -> None:
        before = await enrol(invitation_for(authority, server).token(), folder)
        with monkeypatch.context() as line:
            line.setattr("fedrep_identity.enrolment_client.install", _lost)
            with pytest.raises(ConnectionError):
                await renew(folder, new_key=True)
        with pytest.raises(RefusedError, match="repeat fedrep renew --new-key"):
            await renew(folder)
        after = await renew(folder, new_key=True)
        assert after.fingerprint != before.fingerprint
        assert Credentials.load(folder).fingerprint == after.fingerprint
        await renew(folder)

    with_server(authority, body)


def _lost(*_: object, **__: object) -> Credentials:
    raise ConnectionError("the answer was lost")
