"""mTLS for every gRPC port: TLS 1.3, client certificates required, certificates replaced without a restart.

Works on PEM bytes only; whose certificate it is, and whether it is still welcome, is checked per call in
`fedrep_identity.peer`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import grpc
import structlog

from fedrep.errors import CryptoError

log = structlog.get_logger()

ChannelOptions = list[tuple[str, Any]]

# A chunk of a stream is far smaller; a unary message (assignment, certificates) of a large federation fits too.
LARGEST_MESSAGE = 16 * 2**20


@dataclass(frozen=True)
class KeyPair:
    """A private key and its certificate chain, leaf first, both PEM."""

    private_key: bytes = field(repr=False)
    chain: bytes


class SecuredContext(Protocol):
    """The part of a gRPC servicer context that is needed here; grpc and grpc.aio both have it."""

    def auth_context(self) -> Mapping[str, Iterable[bytes]]: ...


def require_tls13(context: SecuredContext) -> None:
    """Normally no older handshake succeeds (see `ciphers.py`); this holds even where grpc was imported first."""
    versions = list(context.auth_context().get("ssl_tls_version", ()))
    if versions != [b"TLSv1.3"]:
        raise CryptoError(
            "This connection does not use TLS 1.3, which this federation requires. "
            "Update the program that connects, or the proxy between.",
            reason="TLS_TOO_OLD",
        )


def server_credentials(load: Callable[[], KeyPair], root: bytes | None, *, require_client: bool = True) -> grpc.ServerCredentials:
    """`load` is asked at every handshake, so a renewed certificate is used from the next connection on.

    When `load` fails (a file half replaced by hand, for instance) the certificate in use stays, and the log says so once.
    """
    current = load()
    problem = ""

    def configuration(pair: KeyPair) -> Any:
        return grpc.ssl_server_certificate_configuration([(pair.private_key, pair.chain)], root_certificates=root)

    def fetch() -> Any:
        nonlocal current, problem
        try:
            fresh = load()
        except Exception as error:  # gRPC would refuse every new connection if this callback raised
            if str(error) != problem:
                log.warning("certificate_not_read", why=str(error), meanwhile="the one in use stays")
            problem = str(error)
            return None
        problem = ""
        if fresh == current:
            return None
        current = fresh
        return configuration(fresh)

    return grpc.dynamic_ssl_server_credentials(configuration(current), fetch, require_client_authentication=require_client)


def client_channel_credentials(root: bytes, pair: KeyPair | None = None) -> grpc.ChannelCredentials:
    """Without `pair` only the server proves who it is: the enrolment port."""
    if pair is None:
        return grpc.ssl_channel_credentials(root_certificates=root)
    return grpc.ssl_channel_credentials(root, pair.private_key, pair.chain)


def server_options(largest_message: int = LARGEST_MESSAGE) -> ChannelOptions:
    """Counterpart of `channel_options`: allows the pings that keep an idle channel open, and sends its own."""
    return [
        ("grpc.max_receive_message_length", largest_message),
        ("grpc.max_send_message_length", LARGEST_MESSAGE),
        ("grpc.keepalive_time_ms", 20_000),  # a cable that was pulled shows after these two, and the round goes on
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.so_reuseport", 0),  # a second server on the same port must fail to start, not share the silos
    ]


def channel_options(
    idempotent: Sequence[tuple[str, str]] = (),
    *,
    server_name: str | None = None,
    largest_message: int = LARGEST_MESSAGE,
) -> ChannelOptions:
    """Options that keep a channel alive through hours of local training, behind middleboxes that drop idle connections.

    `idempotent` lists (service, method) whose calls gRPC may repeat by itself when the server was unreachable.
    `server_name` is the name to expect in the server's certificate, where it differs from the address dialled.
    """
    options: ChannelOptions = [
        ("grpc.max_receive_message_length", largest_message),
        ("grpc.max_send_message_length", largest_message),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", 500),
        ("grpc.max_reconnect_backoff_ms", 15_000),
    ]
    if server_name is not None:
        options.append(("grpc.ssl_target_name_override", server_name))
    if idempotent:
        options.append(("grpc.service_config", retry_config(idempotent)))
    return options


def retry_config(idempotent: Sequence[tuple[str, str]]) -> str:
    """gRPC service config (gRFC A6): jittered exponential backoff, only for UNAVAILABLE, only for the calls listed."""
    policy = {
        "maxAttempts": 5,
        "initialBackoff": "0.2s",
        "maxBackoff": "5s",
        "backoffMultiplier": 2,
        "retryableStatusCodes": ["UNAVAILABLE"],
    }
    names = [{"service": service, "method": method} for service, method in idempotent]
    return json.dumps({"methodConfig": [{"name": names, "retryPolicy": policy}]})
