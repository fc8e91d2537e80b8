"""An authority whose clock was ahead for a while."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from fedrep.errors import CryptoError
from fedrep_identity.authority import CertificateAuthority, issue_credentials
from fedrep_identity.authority_server import AuthorityServer, _OwnCertificate
from fedrep_identity.certificates import Credentials, Identity, Role, TrustStore, load_chain
from fedrep_identity.enrolment import EnrolmentDesk
from fedrep_identity.revocation_file import merged_revocations
from tests.harness.enrolment_desk import PASSPHRASE, with_server

Ahead = Callable[[int], AbstractContextManager[None]]
SECONDS = 120.0  # for what would otherwise hang


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> Ahead:
    """The clock of whoever signs, for the length of a block."""

    @contextmanager
    def days(count: int) -> Iterator[None]:
        class Clock(dt.datetime):
            @classmethod
            def now(cls, tz: dt.tzinfo | None = None) -> Any:
                return dt.datetime.now(tz) + dt.timedelta(days=count)

        class Module:
            datetime = Clock

            def __getattr__(self, name: str) -> Any:
                return getattr(dt, name)

        with monkeypatch.context() as patch:
            for module in ("authority", "authority_server", "certificates", "templates"):
                patch.setattr(f"fedrep_identity.{module}.dt", Module())
            yield

    return days


def revoked_silo(authority: CertificateAuthority, folder: Path) -> Credentials:
    silo = issue_credentials(authority, folder, Identity("hospital-a", Role.SILO, "demo"))
    authority.revoke("hospital-a")
    return silo


def reason(act: Callable[[], object]) -> str:
    with pytest.raises(CryptoError) as caught:
        act()
    return caught.value.reason


def test_a_list_that_was_signed_later_than_now_does_not_bring_a_revoked_silo_back(
    authority: CertificateAuthority, tmp_path: Path, ahead: Ahead
) -> None:
    silo, trust = revoked_silo(authority, tmp_path / "silo"), authority.trust_store()
    with ahead(60):
        bundle = authority.publish_revocations()
    assert reason(lambda: trust.update_revocations(bundle)) == "REVOCATION_LIST_NOT_YET_VALID"
    assert reason(lambda: trust.verify(silo.chain)) == "CERTIFICATE_REVOKED"
    trust.update_revocations(authority.publish_revocations())
    assert reason(lambda: trust.verify(silo.chain)) == "CERTIFICATE_REVOKED"


def test_a_list_of_the_future_takes_no_other_list_out_of_the_file(
    authority: CertificateAuthority, tmp_path: Path, ahead: Ahead
) -> None:
    online = CertificateAuthority.create_intermediate(tmp_path / "online", authority, PASSPHRASE)
    with ahead(60):
        future = online.publish_revocations()
    authority.revoke(next(issued.name for issued in authority.register.certificates()))
    by_hand = (authority.folder / "crl.pem").read_bytes()
    merged = merged_revocations(future + by_hand, online.publish_revocations(), authority.root)
    trust = TrustStore(authority.root)
    trust.update_revocations(merged)
    assert len(trust.revoked) == 1
    assert len(trust.revoked.lists) == 2


def test_an_authority_whose_clock_is_set_right_starts_and_signs_a_list_of_now(
    authority: CertificateAuthority, tmp_path: Path, ahead: Ahead, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedrep_identity.authority_server.LOOK_AT_LIST_SECONDS", 0.01)
    silo = revoked_silo(authority, tmp_path / "silo")
    with ahead(60):
        authority.publish_revocations()

    def known() -> TrustStore:
        return authority.trust_store()

    async def body(_server: AuthorityServer) -> None:
        assert reason(lambda: known().verify(silo.chain)) == "CERTIFICATE_REVOKED"
        with ahead(60):
            authority.publish_revocations()

        async def signed_anew() -> None:
            while authority.list_is_due(dt.timedelta(days=7)):
                await asyncio.sleep(0.01)

        await asyncio.wait_for(signed_anew(), SECONDS)
        assert reason(lambda: known().verify(silo.chain)) == "CERTIFICATE_REVOKED"

    with_server(authority, body)


def test_an_authority_presents_no_certificate_of_the_future_once_its_clock_is_right(
    authority: CertificateAuthority, ahead: Ahead
) -> None:
    own = _OwnCertificate(EnrolmentDesk(authority))
    with ahead(365):
        own.load()
    presented = load_chain(own.load().chain)[0]
    assert presented.not_valid_before_utc <= dt.datetime.now(dt.UTC)
    assert own.load() is own.load()
