"""Who may do what, and what a foreign page cannot."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client import generate_latest
from pydantic import SecretStr, ValidationError

from fedrep.errors import SettingsError
from fedrep_cli.dashboard import with_tokens
from fedrep_cli.main import main
from fedrep_dashboard.app import create_app
from fedrep_dashboard.connection import connection_from
from fedrep_dashboard.request_bodies import LARGEST_BODY
from fedrep_dashboard.security import CONTENT_SECURITY_POLICY
from fedrep_dashboard.settings import DashboardSettings
from fedrep_dashboard.signed_out import SignedOut
from fedrep_identity.authority import CertificateAuthority, issue_credentials
from fedrep_identity.names import Identity, Role
from fedrep_runtime.settings import load_settings
from tests.harness.dashboard_site import ADMIN, VIEWER, insecure, settings_for

# Nothing listens there: these tests end before the server is asked.
NOWHERE = "127.0.0.1:9"


class Browser:
    """Keeps cookies between requests that go straight into the application."""

    def __init__(self, app: FastAPI, peer: str) -> None:
        self.cookies = httpx.Cookies()
        self.app = app
        self._peer = peer

    def request(self, method: str, path: str, **parts: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, client=(self._peer, 5000))
            # Secure cookies are sent over https only.
            async with httpx.AsyncClient(transport=transport, base_url="https://dashboard.test", cookies=self.cookies) as client:
                answer = await client.request(method, path, **parts)
                self.cookies = client.cookies
                return answer

        return asyncio.run(ask())

    def get(self, path: str, **parts: Any) -> httpx.Response:
        return self.request("GET", path, **parts)

    def post(self, path: str, **parts: Any) -> httpx.Response:
        return self.request("POST", path, **parts)

    def delete(self, path: str, **parts: Any) -> httpx.Response:
        return self.request("DELETE", path, **parts)


def browser(may_act: bool = True, peer: str = "127.0.0.1", **settings: object) -> Browser:
    return Browser(create_app(settings_for(NOWHERE, **settings), insecure(NOWHERE, may_act)), peer)


def signed_in(client: Browser, token: str = ADMIN) -> dict[str, object]:
    answer = client.post("/api/v1/session", json={"token": token})
    assert answer.status_code == 200, answer.text
    body: dict[str, object] = answer.json()
    return body


def test_without_signing_in_every_figure_is_refused() -> None:
    client = browser()
    document = client.get("/api/v1/openapi.json").json()
    for path, methods in document["paths"].items():
        if path.startswith("/api/v1") and path != "/api/v1/session":
            for method in methods:
                known = path.replace("{name}", "digits").replace("{silo}", "silo-01").replace("{number}", "1")
                known = known.replace("{chart}", "bytes").replace("{metric}", "loss").replace("{version}", "1")
                answer = client.request(method, known, params={"run": "digits"}, json={} if method == "post" else None)
                assert (answer.status_code, answer.json()["reason"]) == (401, "NOT_SIGNED_IN"), (method, path)


@pytest.mark.parametrize("token", ["", " ", "wrong", ADMIN[:-1], ADMIN + "x", ADMIN.upper()])
def test_a_wrong_token_opens_nothing(token: str) -> None:
    client = browser()
    assert client.post("/api/v1/session", json={"token": token}).status_code in (401, 422)
    assert client.get("/api/v1/runs", headers={"Authorization": f"Bearer {token}"}).status_code == 401
    assert not client.cookies


def test_the_session_cookie_is_out_of_reach_of_scripts_and_other_sites() -> None:
    cookie = browser().post("/api/v1/session", json={"token": VIEWER}).headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    secure = browser(secure_cookies=True).post("/api/v1/session", json={"token": VIEWER}).headers["set-cookie"]
    assert secure.startswith("__Host-fedrep=")
    assert "Secure" in secure


def test_cookies_are_secure_by_default_unless_the_dashboard_stays_on_this_machine() -> None:
    assert "Secure" in browser(host="0.0.0.0").post("/api/v1/session", json={"token": VIEWER}).headers["set-cookie"]
    assert "Secure" not in browser().post("/api/v1/session", json={"token": VIEWER}).headers["set-cookie"]


def test_a_changed_cookie_is_no_session() -> None:
    client = browser()
    signed_in(client, VIEWER)
    name, value = next(iter(client.cookies.items()))
    body, _, mac = value.strip('"').partition(".")
    assert client.get("/api/v1/session").json()["signed_in"] is True
    client.cookies.clear()
    for forged in (f"{body[:-2]}AA.{mac}", f"{body}.{'0' * 64}", body, "", ".", "é.é"):
        found = client.get("/api/v1/session", headers={"Cookie": f"{name}={forged}".encode()})
        assert found.json()["signed_in"] is False, forged


def test_a_cookie_alone_changes_nothing_the_csrf_token_must_come_too() -> None:
    client = browser()
    session = signed_in(client)
    for headers in ({}, {"X-CSRF-Token": "guess"}, {"X-CSRF-Token": str(session["csrf"]), "Sec-Fetch-Site": "cross-site"}):
        answer = client.post("/api/v1/runs/digits/stop", json={}, headers=headers)
        assert (answer.status_code, answer.json()["reason"]) == (403, "CSRF")
    assert client.delete("/api/v1/session").status_code == 403
    assert client.delete("/api/v1/session", headers={"X-CSRF-Token": str(session["csrf"])}).status_code == 204


def test_another_sessions_csrf_token_does_not_fit() -> None:
    client = browser()
    other = str(signed_in(client)["csrf"])
    signed_in(client)
    answer = client.post("/api/v1/runs/digits/stop", json={}, headers={"X-CSRF-Token": other})
    assert answer.json()["reason"] == "CSRF"


def test_a_dashboard_with_a_viewers_certificate_offers_no_actions_and_says_why() -> None:
    session = signed_in(browser(may_act=False))
    assert session["may_act"] is False
    assert "role viewer" in str(session["note"])


def test_a_proxys_header_counts_only_when_configured_and_only_from_the_proxy() -> None:
    header = {"X-Forwarded-User": "alice"}
    proxy = {"user_header": "X-Forwarded-User", "trusted": ["10.0.0.0/8"], "admins": ["alice"]}
    assert browser().get("/api/v1/session", headers=header).json()["signed_in"] is False
    assert browser(proxy=proxy, peer="192.0.2.1").get("/api/v1/session", headers=header).json()["signed_in"] is False
    session = browser(proxy=proxy, peer="10.1.2.3").get("/api/v1/session", headers=header).json()
    assert (session["user"], session["role"]) == ("alice", "admin")
    mapped = browser(proxy=proxy, peer="::ffff:10.1.2.3").get("/api/v1/session", headers=header).json()
    assert mapped["user"] == "alice", "a socket for both families names callers of IPv4 like this"
    assert browser(proxy=proxy, peer="2001:db8::1").get("/api/v1/session", headers=header).json()["signed_in"] is False
    bob = browser(proxy=proxy, peer="10.1.2.3").get("/api/v1/session", headers={"X-Forwarded-User": "bob"}).json()
    assert bob["role"] == "viewer"


def test_a_proxys_user_needs_the_csrf_token_too() -> None:
    proxy = {"user_header": "X-Forwarded-User", "trusted": ["10.0.0.0/8"], "admins": ["alice"]}
    client = browser(proxy=proxy, peer="10.1.2.3")
    answer = client.post("/api/v1/runs/digits/stop", json={}, headers={"X-Forwarded-User": "alice"})
    assert answer.json()["reason"] == "CSRF"


@pytest.mark.parametrize("path", ["session", "runs", "runs/digits/pause", "runs/digits/amend", "nowhere"])
@pytest.mark.parametrize("announced", [True, False])
def test_a_stranger_cannot_fill_the_memory_with_a_request(path: str, announced: bool) -> None:
    taken = 0

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal taken
        for _ in range(64):
            taken += 65536
            yield b" " * 65536

    headers = {"Content-Type": "application/json"} | ({"Content-Length": str(64 * 65536)} if announced else {})
    answer = browser().post(f"/api/v1/{path}", content=pieces(), headers=headers)
    assert taken <= (0 if announced else LARGEST_BODY + 65536)
    if announced or path != "nowhere":
        assert (answer.status_code, answer.json()["reason"]) == (413, "TOO_LARGE")
        assert "256 KiB" in answer.json()["detail"]


def test_the_largest_list_of_silos_is_no_too_large_request() -> None:
    names = [f"{number:063}" for number in range(2000)]
    body = {"add": names[:1000], "remove": names[1000:]}
    answer = browser().post("/api/v1/runs/digits/amend", json=body, headers={"Authorization": f"Bearer {VIEWER}"})
    assert answer.json()["reason"] == "NOT_ALLOWED", "asked who it is, that is"


def test_a_stranger_uploads_no_byte_of_a_model() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        raise AssertionError("the body was read before anybody asked who sends it")
        yield b""

    answer = browser().post("/api/v1/models", params={"name": "init.safetensors"}, content=pieces())
    assert answer.json()["reason"] == "NOT_SIGNED_IN"


def test_a_changed_token_ends_old_sessions_even_with_a_shared_session_secret() -> None:
    secret = "a-secret-shared-by-all-replicas"
    first, replica = browser(session_secret=secret), browser(session_secret=secret)
    rotated = browser(session_secret=secret, viewer_token=SecretStr("another-viewer-token-now"))
    signed_in(first, VIEWER)
    replica.cookies, rotated.cookies = first.cookies, first.cookies
    assert replica.get("/api/v1/session").json()["signed_in"] is True
    assert rotated.get("/api/v1/session").json()["signed_in"] is False


def test_a_token_that_now_gives_another_role_ends_old_sessions() -> None:
    secret = "a-secret-shared-by-all-replicas"
    before = browser(session_secret=secret, viewer_token=None)
    after = browser(session_secret=secret, admin_token=None, viewer_token=SecretStr(ADMIN))
    assert signed_in(before)["role"] == "admin"
    after.cookies = before.cookies
    assert after.get("/api/v1/session").json()["signed_in"] is False


def test_a_copied_cookie_is_no_session_once_its_owner_has_signed_out() -> None:
    owner = browser()
    csrf = str(signed_in(owner)["csrf"])
    thief, other = Browser(owner.app, "127.0.0.1"), Browser(owner.app, "127.0.0.1")
    thief.cookies = httpx.Cookies(owner.cookies)
    signed_in(other)
    assert thief.get("/api/v1/session").json()["signed_in"] is True
    assert owner.delete("/api/v1/session", headers={"X-CSRF-Token": csrf}).status_code == 204
    assert thief.get("/api/v1/session").json()["signed_in"] is False
    assert thief.post("/api/v1/runs/digits/stop", json={}, headers={"X-CSRF-Token": csrf}).status_code == 401
    assert other.get("/api/v1/session").json()["signed_in"] is True


def test_signing_out_again_and_again_takes_no_more_room_and_brings_no_session_back() -> None:
    ended, now = SignedOut(most=3), time.time()
    ends = {f"session-{number}": now + 1000 + number for number in range(10)}
    for name, until in ends.items():
        ended.add(name, until)
        assert len(ended) <= 3
    assert all(ended.has(name, until) for name, until in ends.items())
    assert not ended.has("a later one", now + 2000)


def test_a_session_that_has_expired_is_remembered_no_longer() -> None:
    ended, now = SignedOut(), time.time()
    ended.add("expired", now - 1)
    ended.add("lasting", now + 1000)
    assert len(ended) == 1


@pytest.mark.parametrize("path", ["/", "/runs/digits", "/api/v1/session", "/api/v1/runs", "/nowhere", "/healthz"])
def test_every_answer_carries_the_security_headers(path: str) -> None:
    headers = browser().get(path).headers
    assert headers["content-security-policy"] == CONTENT_SECURITY_POLICY
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "no-store"


def test_the_policy_allows_nothing_inline_and_nothing_foreign() -> None:
    assert "unsafe" not in CONTENT_SECURITY_POLICY
    assert "http" not in CONTENT_SECURITY_POLICY
    assert "*" not in CONTENT_SECURITY_POLICY
    assert CONTENT_SECURITY_POLICY.startswith("default-src 'none'")


def test_probes_answer_strangers_and_metrics_have_a_port_of_their_own() -> None:
    client = browser()
    assert client.get("/healthz").json() == {"status": "ok"}
    assert client.get("/readyz").json() == {"status": "ok", "server": "unreachable"}
    assert client.get("/metrics").status_code == 404


def test_metrics_tell_nothing_about_runs() -> None:
    client = browser()
    client.get("/runs/secret-name")
    metrics = generate_latest(client.app.state.metrics.registry).decode()
    assert "fedrep_dashboard_server_reachable 0.0" in metrics
    assert 'route="/runs/{name}"' in metrics
    assert "secret-name" not in metrics


def test_short_or_equal_tokens_are_refused_at_the_start() -> None:
    with pytest.raises(ValidationError, match="at least 20 characters"):
        DashboardSettings(admin_token=SecretStr("short"))
    with pytest.raises(ValidationError, match="every viewer would be an admin"):
        DashboardSettings(admin_token=SecretStr(ADMIN), viewer_token=SecretStr(ADMIN))


@pytest.mark.parametrize(("role", "may_act"), [(Role.VIEWER, False), (Role.ADMIN, True)])
def test_the_dashboards_own_certificate_decides_what_it_may_do(tmp_path: Path, role: Role, may_act: bool) -> None:
    authority = CertificateAuthority.create(tmp_path / "ca", "tests", "a passphrase for tests")
    issue_credentials(authority, tmp_path / "own", Identity("board", role, "tests"))
    connection = connection_from(settings_for(NOWHERE, credentials=tmp_path / "own"))
    assert connection.may_act is may_act
    assert (connection.credentials is not None) is may_act


def test_a_dashboard_without_certificate_or_with_a_silos_does_not_start(tmp_path: Path) -> None:
    authority = CertificateAuthority.create(tmp_path / "ca", "tests", "a passphrase for tests")
    issue_credentials(authority, tmp_path / "own", Identity("silo-01", Role.SILO, "tests"))
    with pytest.raises(SettingsError, match="fedrep enroll TOKEN"):
        connection_from(settings_for(NOWHERE))
    with pytest.raises(SettingsError, match="has the role silo"):
        connection_from(settings_for(NOWHERE, credentials=tmp_path / "own"))


def test_the_written_settings_file_can_be_read_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dashboard", "init", str(tmp_path / "dashboard.toml"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["file"] == str(tmp_path / "dashboard.toml")
    assert load_settings(DashboardSettings, tmp_path / "dashboard.toml", "FEDREP_DASHBOARD", {}) == DashboardSettings()


def test_without_tokens_two_are_made_and_differ_at_every_start() -> None:
    settings, made = with_tokens(DashboardSettings())
    assert settings.admin_token is not None
    assert settings.admin_token.get_secret_value() == made["admin"]
    assert len({*made.values(), *with_tokens(DashboardSettings())[1].values()}) == 4
    assert with_tokens(settings_for(NOWHERE))[1] == {}
