"""The dashboard looks after its own certificate while it runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
from cryptography import x509

from fedrep_dashboard.app import create_app
from fedrep_dashboard.connection import Connection
from fedrep_identity.authority import CertificateAuthority, issue_credentials
from fedrep_identity.certificates import Credentials
from fedrep_identity.folder import FederationAddresses
from fedrep_identity.names import Identity, Role
from tests.harness.dashboard_site import insecure, settings_for, shared_loop
from tests.harness.enrolment_desk import PASSPHRASE, serving

NOWHERE = "127.0.0.1:1"
NEARLY_OVER = 0.0015  # days; certificates begin five minutes ago, so more than two thirds of this life are gone at once


def test_the_dashboard_renews_its_certificate_and_presents_the_new_one(tmp_path: Path) -> None:
    authority = CertificateAuthority.create(tmp_path / "ca", "demo", PASSPHRASE)
    folder = tmp_path / "dashboard"
    issue_credentials(authority, folder, Identity("dashboard", Role.VIEWER, "demo"), days=NEARLY_OVER)

    async def play() -> None:
        presented: asyncio.Queue[x509.Certificate] = asyncio.Queue()

        def open_channel() -> grpc.aio.Channel:
            presented.put_nowait(Credentials.load(folder).certificate)
            return insecure(NOWHERE).open_channel()

        async with serving(authority) as server:
            FederationAddresses("demo", NOWHERE, NOWHERE, f"127.0.0.1:{server.certificate_port}").save(folder)
            app = create_app(settings_for(NOWHERE, credentials=folder), Connection(open_channel, may_act=False))
            async with app.router.lifespan_context(app):
                first = await presented.get()
                second = await asyncio.wait_for(presented.get(), 120)
        assert second.not_valid_after_utc > first.not_valid_after_utc
        assert second.public_key() == first.public_key()

    asyncio.run_coroutine_threadsafe(play(), shared_loop()).result(120)
