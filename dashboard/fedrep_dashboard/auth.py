"""Who is at the other end: a bearer token, a session cookie made from one, or a name a trusted proxy put in a header.

A cookie alone never changes anything: a page must also send the session's CSRF token in a header, which a foreign page
cannot read. All comparisons of secrets take constant time.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import time
from dataclasses import dataclass
from typing import Any, Literal

from fastapi import Request, Response

from fedrep.errors import FedrepError
from fedrep_dashboard.settings import DashboardSettings
from fedrep_dashboard.signed_out import SignedOut

Role = Literal["admin", "viewer"]
CSRF_HEADER = "X-CSRF-Token"


class NotSignedInError(FedrepError):
    """Nobody is signed in."""

    status = "UNAUTHENTICATED"
    default_reason = "NOT_SIGNED_IN"


class NotAllowedError(FedrepError):
    """Signed in, but this needs another role, or the request did not come from the dashboard's own page."""

    status = "PERMISSION_DENIED"
    default_reason = "NOT_ALLOWED"


@dataclass(frozen=True)
class Principal:
    user: str
    role: Role
    csrf: str = ""  # empty where no cookie or proxy vouches for the caller, so that nothing can be forged
    ambient: bool = False  # the browser sends the proof by itself


class Gate:
    def __init__(self, settings: DashboardSettings) -> None:
        self._settings = settings
        pairs: list[tuple[Role, str | None]] = [
            ("admin", settings.admin_token.get_secret_value() if settings.admin_token else None),
            ("viewer", settings.viewer_token.get_secret_value() if settings.viewer_token else None),
        ]
        self._tokens = [(role, _digest(token)) for role, token in pairs if token is not None]
        given = settings.session_secret
        secret = given.get_secret_value().encode() if given is not None else secrets.token_bytes(32)
        # A changed token, or one that gives another role now, ends the sessions made before, at every replica.
        given_roles = b"".join(role.encode() + b"=" + known for role, known in self._tokens)
        self._key = hmac.new(secret, given_roles, hashlib.sha256).digest()
        self._signed_out = SignedOut()

    def role_of_token(self, token: str) -> Role | None:
        """Every known token is compared, so that the time does not tell which one was close."""
        digest, found = _digest(token), None
        for role, known in self._tokens:
            if hmac.compare_digest(digest, known):
                found = role
        return found

    def identify(self, request: Request) -> Principal | None:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            role = self.role_of_token(token.strip())
            return Principal(f"{role} token", role) if role else None
        return self._from_proxy(request) or self._from_cookie(request)

    def sign_in(self, response: Response, token: str) -> Principal:
        role = self.role_of_token(token.strip())
        if role is None:
            raise NotSignedInError(
                "This token is not known here. Copy it again, whole; it was printed when the dashboard or the demo started.",
                reason="WRONG_TOKEN",
            )
        hours = self._settings.session_hours
        body = {"role": role, "until": time.time() + hours * 3600, "id": secrets.token_urlsafe(12)}
        name, secure = self._cookie()
        response.set_cookie(
            name,
            self._seal(json.dumps(body).encode()),
            max_age=int(hours * 3600),
            path="/",
            secure=secure,
            httponly=True,
            samesite="strict",
        )
        return self._principal(role, str(body["id"]))

    def sign_out(self, request: Request, response: Response) -> None:
        session = self._session(request)
        if session is not None:
            self._signed_out.add(session["id"], session["until"])
        name, secure = self._cookie()
        response.delete_cookie(name, path="/", secure=secure, httponly=True, samesite="strict")

    def require_own_page(self, request: Request, principal: Principal) -> None:
        """Refuse a change that a foreign page may have caused."""
        if not principal.ambient:
            return
        sent = request.headers.get(CSRF_HEADER, "")
        site = request.headers.get("sec-fetch-site", "same-origin")
        if site not in ("same-origin", "none") or not hmac.compare_digest(sent.encode(), principal.csrf.encode()):
            raise NotAllowedError(
                f"This change was not asked for by the dashboard's own page: the {CSRF_HEADER} header is missing or wrong. "
                "Reload the page and try again; programs use a bearer token instead of the cookie.",
                reason="CSRF",
            )

    def _from_proxy(self, request: Request) -> Principal | None:
        proxy = self._settings.proxy
        if proxy is None or request.client is None or not proxy.trusts(request.client.host):
            return None
        user = request.headers.get(proxy.user_header, "").strip()
        if not user:
            return None
        role: Role = "admin" if user in proxy.admins else "viewer"
        return Principal(user[:200], role, self._mac(f"csrf/proxy/{user}".encode()), ambient=True)

    def _from_cookie(self, request: Request) -> Principal | None:
        session = self._session(request)
        return self._principal(session["role"], session["id"]) if session is not None else None

    def _session(self, request: Request) -> dict[str, Any] | None:
        """What a cookie of ours says, while it counts."""
        sealed = request.cookies.get(self._cookie()[0], "")
        encoded, _, mac = sealed.partition(".")
        if not hmac.compare_digest(mac.encode(), self._mac(b"session/" + encoded.encode()).encode()):
            return None
        body: dict[str, Any] = json.loads(base64.urlsafe_b64decode(encoded))
        ended = body["until"] <= time.time() or self._signed_out.has(body["id"], body["until"])
        return None if ended else body

    def _principal(self, role: Role, session: str) -> Principal:
        return Principal(f"{role} token", role, self._mac(f"csrf/session/{session}".encode()), ambient=True)

    def _cookie(self) -> tuple[str, bool]:
        """The __Host- prefix makes browsers refuse the cookie from a subdomain or without TLS."""
        secure = self._settings.secure_cookies
        if secure is None:
            secure = self._settings.web_certificate is not None or not self._settings.on_loopback
        return ("__Host-fedrep" if secure else "fedrep"), secure

    def _seal(self, body: bytes) -> str:
        encoded = base64.urlsafe_b64encode(body).decode()
        return f"{encoded}.{self._mac(b'session/' + encoded.encode())}"

    def _mac(self, message: bytes) -> str:
        return hmac.new(self._key, message, hashlib.sha256).hexdigest()


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
