"""The HTTPS proxy of the environment, for connections that are made by hand. gRPC finds it by itself, in small letters only."""

from __future__ import annotations

import base64
import os
import socket
import urllib.request
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

VARIABLES = ("https_proxy", "http_proxy", "no_proxy")
KINDS = ("grpc", "https", "http")  # gRPC's order: grpc_proxy, https_proxy, http_proxy
LONGEST_ANSWER = 8192
END = b"\r\n\r\n"


@dataclass(frozen=True)
class Proxy:
    host: str
    port: int
    authorization: str = field(default="", repr=False)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def take_capitals() -> None:
    """A proxy in capitals works like one in small letters, the only ones that gRPC reads."""
    for name in VARIABLES:
        if name.upper() in os.environ:
            os.environ.setdefault(name, os.environ[name.upper()])


def proxy_for(host: str) -> Proxy | None:
    """The proxy on the way to `host`, unless `no_proxy` lists it."""
    known = urllib.request.getproxies_environment()
    url = next((known[kind] for kind in KINDS if known.get(kind)), None)
    if url is None or urllib.request.proxy_bypass(host):
        return None
    parts = urlsplit(url if "://" in url else f"http://{url}")
    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else ""
    return Proxy(parts.hostname or "", parts.port or 80, base64.b64encode(login.encode()).decode())


def open_connection(host: str, port: int, timeout: float) -> socket.socket:
    """Straight, or by CONNECT through the proxy. Raises OSError."""
    proxy = proxy_for(host)
    if proxy is None:
        return socket.create_connection((host, port), timeout)
    way = socket.create_connection((proxy.host, proxy.port), timeout)
    try:
        target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        login = f"Proxy-Authorization: Basic {proxy.authorization}\r\n" if proxy.authorization else ""
        way.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{login}\r\n".encode())
        _require_success(_answer(way), proxy)
    except BaseException:
        way.close()
        raise
    return way


def _answer(way: socket.socket) -> bytes:
    """Byte by byte: what follows the empty line belongs to the other side."""
    answer = b""
    while not answer.endswith(END) and len(answer) < LONGEST_ANSWER:
        more = way.recv(1)
        if not more:
            break
        answer += more
    return answer


def _require_success(answer: bytes, proxy: Proxy) -> None:
    said = answer.split(b"\r\n")[0].decode("latin-1")
    status = said.split()[1:2]
    if not said.startswith("HTTP/") or not status or not status[0].startswith("2"):
        raise OSError(f"the proxy {proxy} does not let this connection through ({said or 'no answer'})")
