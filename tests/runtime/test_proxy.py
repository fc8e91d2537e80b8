"""A machine that reaches the world only through a proxy: names that nobody here can resolve are reached by CONNECT."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path

import pytest

from fedrep_identity.authority import CertificateAuthority
from fedrep_identity.authority_server import Addresses, AuthorityServer
from fedrep_identity.diagnosis import Outcome, diagnose
from fedrep_identity.enrolment import EnrolmentDesk
from fedrep_identity.enrolment_client import UnreachableError, enrol
from fedrep_identity.invitations import invite
from fedrep_identity.names import Identity, Role
from fedrep_runtime.proxy import Proxy, proxy_for, take_capitals
from tests.harness.forward_proxy import proxy_to

FAR = "authority.invalid:8551"
VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy", "no_proxy", "all_proxy")


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def token(authority: CertificateAuthority) -> str:
    identity = Identity("hospital-a", Role.SILO, "demo")
    made = invite(authority.register, authority.root, identity, enrolment_address=FAR, server_address="server.invalid:8550")
    return made.token()


def test_a_silo_enrols_through_the_proxy_and_the_doctor_goes_the_same_way(
    authority: CertificateAuthority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def scenario() -> None:
        server = AuthorityServer(EnrolmentDesk(authority), Addresses("127.0.0.1", 0, 0, 0))
        await server.start()
        async with proxy_to(server.enrolment_port, asked) as port:
            monkeypatch.setenv("HTTPS_PROXY", f"http://someone:pass%20word@127.0.0.1:{port}")
            monkeypatch.setenv("https_proxy", "")  # put back afterwards, and filled by what follows
            monkeypatch.delenv("https_proxy")
            take_capitals()
            credentials = await enrol(token(authority), tmp_path / "silo")
            assert credentials.identity.name == "hospital-a"
            assert {request.split("\r\n")[0] for request in asked} == {f"CONNECT {FAR} HTTP/1.1"}
            expected = base64.b64encode(b"someone:pass word").decode()
            assert all(f"Proxy-Authorization: Basic {expected}" in request for request in asked)
            found = {item.check: item for item in await diagnose(tmp_path / "silo", FAR)}
            assert "DNS" not in found
            assert "someone" not in found["proxy"].text
            assert {found["proxy"].outcome, found["TCP"].outcome} == {Outcome.OK}
        await server.stop(0)

    asyncio.run(scenario())


def test_a_proxy_that_says_no_is_named_with_its_words(
    authority: CertificateAuthority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with proxy_to(1, [], b"403 Forbidden by policy") as port:
            monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{port}")
            with pytest.raises(UnreachableError, match=rf"the proxy 127.0.0.1:{port} .*403 Forbidden by policy"):
                await enrol(token(authority), tmp_path / "silo")

    asyncio.run(scenario())


def test_hosts_in_no_proxy_are_reached_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "proxy.example:3128")
    monkeypatch.setenv("no_proxy", "inside.example,127.0.0.1")
    assert proxy_for("outside.example") == Proxy("proxy.example", 3128)
    assert proxy_for("silo.inside.example") is None
    assert proxy_for("127.0.0.1") is None
