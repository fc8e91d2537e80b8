"""Renewal over real TLS: by hand, by the daemons, and after a revocation."""

from __future__ import annotations

import asyncio
import datetime as dt
import errno
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from fedrep.errors import CryptoError
from fedrep_identity.authority import CertificateAuthority, certificate_request, issue_credentials
from fedrep_identity.authority_server import AuthorityServer
from fedrep_identity.certificates import Credentials, Identity, Role
from fedrep_identity.enrolment_client import enrol, renew
from fedrep_identity.folder import renewal_time
from fedrep_identity.upkeep import keep_renewed, tend_credentials
from tests.harness.enrolment_desk import invitation_for, with_server

SECONDS = 120.0  # for what would otherwise hang


def test_renewal_keeps_name_role_and_key_and_needs_no_token(authority: CertificateAuthority, tmp_path: Path) -> None:
    folder = tmp_path / "silo"

    async def body(server: AuthorityServer) -> None:
        before = await enrol(invitation_for(authority, server).token(), folder)
        after = await renew(folder)
        assert after.identity == before.identity
        assert after.fingerprint == before.fingerprint
        assert after.certificate.serial_number != before.certificate.serial_number
        rotated = await renew(folder, new_key=True)
        assert rotated.identity == before.identity
        assert rotated.fingerprint != before.fingerprint
        assert Credentials.load(folder).fingerprint == rotated.fingerprint

    with_server(authority, body)


def test_a_revoked_silo_can_neither_renew_nor_ask_anything(authority: CertificateAuthority, tmp_path: Path) -> None:
    async def body(server: AuthorityServer) -> None:
        await enrol(invitation_for(authority, server).token(), tmp_path / "silo")
        authority.revoke("hospital-a")
        with pytest.raises(CryptoError, match="was revoked on") as refused:
            await renew(tmp_path / "silo")
        assert refused.value.reason == "CERTIFICATE_REVOKED"

    with_server(authority, body)
    assert len(authority.register.certificates("hospital-a")) == 1


def test_a_crash_between_the_two_renames_of_a_new_key_loses_nothing(
    authority: CertificateAuthority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "silo"

    async def body(server: AuthorityServer) -> None:
        await enrol(invitation_for(authority, server).token(), folder)
        real, calls = Path.replace, []

        def replace_once(self: Path, target: Path) -> Path:
            calls.append(target)
            if len(calls) == 2:
                raise KeyboardInterrupt
            return real(self, target)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", replace_once)
            with pytest.raises(KeyboardInterrupt):
                await renew(folder, new_key=True)
        survivor = Credentials.load(folder)
        assert survivor.private_key.public_key() == survivor.certificate.public_key()
        renewed = await renew(folder)
        assert renewed.fingerprint == survivor.fingerprint
        assert not list(folder.glob("next-*"))
        assert Credentials.load(folder).certificate == renewed.certificate != survivor.certificate

    with_server(authority, body)


def test_the_daemon_renews_at_two_thirds_of_life_and_not_before(authority: CertificateAuthority, tmp_path: Path) -> None:
    folder = tmp_path / "silo"

    async def body(server: AuthorityServer) -> None:
        before = await enrol(invitation_for(authority, server).token(), folder)
        due = renewal_time(before.certificate)
        renewed: asyncio.Queue[Credentials] = asyncio.Queue()
        clock = [due - dt.timedelta(seconds=1)]
        looks = asyncio.Event()

        def now() -> dt.datetime:
            looks.set()
            return clock[0]

        task = asyncio.create_task(keep_renewed(folder, renewed.put, check_every=0.01, now=now))
        await looks.wait()
        assert renewed.empty()
        assert Credentials.load(folder).certificate == before.certificate
        clock[0] = due
        fresh = await asyncio.wait_for(renewed.get(), SECONDS)
        task.cancel()
        assert fresh.certificate.serial_number != before.certificate.serial_number

    with_server(authority, body)


def test_a_tended_folder_learns_of_revocations_and_survives_an_authority_that_goes_away(
    authority: CertificateAuthority, tmp_path: Path, lines: list[Any]
) -> None:
    folder = tmp_path / "silo"

    async def body(server: AuthorityServer) -> None:
        await enrol(invitation_for(authority, server).token(), folder)
        before = (folder / "crl.pem").read_bytes()
        task = asyncio.create_task(tend_credentials(folder, list_every=0.02))
        request = certificate_request(ec.generate_private_key(ec.SECP256R1()))
        authority.sign(request, Identity("hospital-b", Role.SILO, "demo"))
        authority.revoke("hospital-b")
        while (folder / "crl.pem").read_bytes() == before:
            await asyncio.sleep(0.02)
        await server.stop(0)
        while not any(line["event"] == "authority_not_reached" for line in lines):
            await asyncio.sleep(0.02)
        assert not task.done()
        task.cancel()

    with_server(authority, body)
    assert (folder / "crl.pem").read_bytes() == (authority.folder / "crl.pem").read_bytes()


def test_a_folder_that_knows_no_authority_is_left_alone(authority: CertificateAuthority, tmp_path: Path) -> None:
    issue_credentials(authority, tmp_path / "offline", Identity("offline", Role.SILO, "demo"))
    asyncio.run(asyncio.wait_for(tend_credentials(tmp_path / "offline"), SECONDS))


def test_a_renewal_that_meets_a_full_disk_is_tried_again(
    authority: CertificateAuthority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[Any]
) -> None:
    folder = tmp_path / "silo"

    async def body(server: AuthorityServer) -> None:
        before = await enrol(invitation_for(authority, server).token(), folder)
        renewed: asyncio.Queue[Credentials] = asyncio.Queue()
        calls: list[Path] = []

        async def full_once(where: Path) -> Credentials:
            calls.append(where)
            if len(calls) == 1:
                raise OSError(errno.ENOSPC, "No space left on device")
            return await renew(where)

        monkeypatch.setattr("fedrep_identity.upkeep.renew", full_once)
        due = renewal_time(before.certificate)
        task = asyncio.create_task(keep_renewed(folder, renewed.put, check_every=0.01, now=lambda: due))
        fresh = await asyncio.wait_for(renewed.get(), SECONDS)
        task.cancel()
        assert fresh.certificate.serial_number != before.certificate.serial_number

    with_server(authority, body)
    assert any(line["event"] == "renewal_failed" and "No space left" in line["problem"] for line in lines)


def test_a_pair_that_could_not_be_read_once_is_renewed_all_the_same(
    authority: CertificateAuthority, tmp_path: Path, lines: list[Any]
) -> None:
    folder = tmp_path / "silo"

    async def body(server: AuthorityServer) -> None:
        before = await enrol(invitation_for(authority, server).token(), folder)
        renewed: asyncio.Queue[Credentials] = asyncio.Queue()
        whole = (folder / "key.pem").read_bytes()
        (folder / "key.pem").write_bytes(whole[:40])
        due = renewal_time(before.certificate)
        task = asyncio.create_task(keep_renewed(folder, renewed.put, check_every=0.01, now=lambda: due))
        while not task.done() and not any(line["event"] == "credentials_not_read" for line in lines):
            await asyncio.sleep(0.01)
        assert not task.done()
        (folder / "key.pem").write_bytes(whole)
        await asyncio.wait_for(renewed.get(), SECONDS)
        task.cancel()

    with_server(authority, body)


def test_a_revocation_list_that_met_a_full_disk_is_published_later(
    authority: CertificateAuthority, monkeypatch: pytest.MonkeyPatch, lines: list[Any]
) -> None:
    publish, calls = CertificateAuthority.publish_revocations, []

    async def body(server: AuthorityServer) -> None:
        written = asyncio.Event()
        loop = asyncio.get_running_loop()

        def full_at_first(self: CertificateAuthority, life: dt.timedelta) -> bytes:
            calls.append(1)
            if len(calls) == 1:
                raise OSError(errno.ENOSPC, "No space left on device")
            bundle = publish(self, life)
            loop.call_soon_threadsafe(written.set)
            return bundle

        monkeypatch.setattr(CertificateAuthority, "publish_revocations", full_at_first)
        await asyncio.wait_for(written.wait(), SECONDS)

    monkeypatch.setattr("fedrep_identity.authority_server.LIST_LIFETIME", dt.timedelta(seconds=0.02))
    monkeypatch.setattr("fedrep_identity.authority_server.LOOK_AT_LIST_SECONDS", 0.01)
    with_server(authority, body)
    assert any(line["event"] == "revocations_not_published" and "No space left" in line["problem"] for line in lines)
