"""A server that asks the certificate authority who was revoked, says so when nobody tells it, and refuses when told to."""

from __future__ import annotations

import asyncio
import datetime as dt
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from fedrep.errors import CryptoError
from fedrep_identity.authority_server import Addresses, AuthorityServer
from fedrep_identity.certificates import REVOCATIONS_FILE
from fedrep_identity.enrolment import EnrolmentDesk
from fedrep_identity.revocation import parse_revocations
from fedrep_server.operations.revocations import ServerRevocations
from tests.harness.federation import Federation
from tests.harness.processes import run_scenario


def test_a_revocation_reaches_a_server_that_knows_only_the_authoritys_address(tmp_path: Path) -> None:
    federation = Federation.create(tmp_path, silos=3)

    async def scenario() -> None:
        authority = AuthorityServer(EnrolmentDesk(federation.authority), Addresses("127.0.0.1", 0, 0, 0))
        await authority.start()
        federation.server_options["authority"] = f"127.0.0.1:{authority.certificate_port}"
        (federation.identity_folder("server") / REVOCATIONS_FILE).unlink(missing_ok=True)
        async with federation.serving():
            await federation.create_run(rounds=1)
            waiting = asyncio.create_task(federation.daemon(0).run())
            await federation.until(lambda status: status.silos[0].state == "present")
            federation.authority.revoke("silo-0")
            with pytest.raises(CryptoError, match="revoked"):
                await waiting
        await authority.stop(0)
        kept = federation.server_settings().data / REVOCATIONS_FILE
        assert kept.exists(), "a start while the authority is away must know what was known"

    run_scenario(scenario())


def test_without_a_list_nobody_is_believed_when_lists_are_required_and_everybody_otherwise(tmp_path: Path) -> None:
    federation = Federation.create(tmp_path, silos=1)
    server, silo = federation.credentials("server"), federation.credentials("silo-0")
    assert server.trust_store().verify(silo.chain).identity.name == "silo-0"
    strict = server.trust_store(needs_lists=True)
    with pytest.raises(CryptoError) as caught:
        strict.verify(silo.chain)
    assert caught.value.reason == "NO_REVOCATION_LIST"
    bundle = federation.authority.publish_revocations()
    strict.update_revocations(bundle)
    assert strict.verify(silo.chain).identity.name == "silo-0"


def test_a_list_older_than_its_authority_has_signed_is_no_list(tmp_path: Path) -> None:
    federation = Federation.create(tmp_path, silos=1)
    server, silo = federation.credentials("server"), federation.credentials("silo-0")
    strict = server.trust_store(federation.authority.publish_revocations(), needs_lists=True)
    (known,) = strict.revoked.lists.values()
    with pytest.raises(CryptoError) as caught:
        strict.verify(silo.chain, known.next_update + dt.timedelta(seconds=1))
    assert caught.value.reason == "NO_REVOCATION_LIST"
    strict.verify(silo.chain, known.next_update)


def test_the_age_of_the_list_is_a_figure_and_having_none_is_one_too(tmp_path: Path) -> None:
    federation = Federation.create(tmp_path, silos=1)
    settings = federation.server_settings()
    crl = settings.credentials / REVOCATIONS_FILE
    bundle = federation.authority.publish_revocations()
    crl.unlink(missing_ok=True)
    trust = federation.credentials("server").trust_store()
    revocations = ServerRevocations(settings, trust)
    registry = CollectorRegistry()
    registry.register(revocations)
    assert registry.get_sample_value("fedrep_revocation_lists") == 0
    assert registry.get_sample_value("fedrep_revocations_issued_timestamp_seconds") is None
    crl.write_bytes(bundle)
    asyncio.run(revocations.load())
    (signed,) = parse_revocations(bundle, [trust.root])
    assert registry.get_sample_value("fedrep_revocation_lists") == 1
    assert registry.get_sample_value("fedrep_revocations_issued_timestamp_seconds") == signed.issued.timestamp()
    assert registry.get_sample_value("fedrep_revocations_due_timestamp_seconds") == signed.next_update.timestamp()
