"""How the dashboard reaches the server, and as whom: its certificate's role decides what it may do there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import grpc

from fedrep.errors import SettingsError
from fedrep_dashboard.settings import DashboardSettings
from fedrep_identity.certificates import Credentials
from fedrep_identity.names import Role
from fedrep_runtime.tls import channel_options, client_channel_credentials

# The banner should clear soon after the server is back.
LONGEST_BACKOFF_MS = 3000


@dataclass(frozen=True)
class Connection:
    open_channel: Callable[[], grpc.aio.Channel]
    may_act: bool
    credentials: Credentials | None = None  # signs the manifests of runs created here


def connection_from(settings: DashboardSettings) -> Connection:
    if settings.credentials is None:
        raise SettingsError(
            "`credentials` is required: the folder with the dashboard's key.pem, cert.pem and root.pem. "
            "Ask for an invitation of role viewer (to look) or admin (to steer), then run fedrep enroll TOKEN."
        )
    credentials = Credentials.load(settings.credentials)
    role = credentials.identity.role
    if role not in (Role.ADMIN, Role.VIEWER):
        raise SettingsError(
            f"The certificate in {settings.credentials} has the role {role}; a dashboard needs viewer (to look) or "
            "admin (to steer)."
        )

    def open_channel() -> grpc.aio.Channel:
        options = [o for o in channel_options(server_name=settings.server_name) if o[0] != "grpc.max_reconnect_backoff_ms"]
        options.append(("grpc.max_reconnect_backoff_ms", LONGEST_BACKOFF_MS))
        fresh = Credentials.load(settings.credentials) if settings.credentials else credentials
        return grpc.aio.secure_channel(settings.server, client_channel_credentials(fresh.root, fresh.key_pair), options)

    admin = role is Role.ADMIN
    return Connection(open_channel, may_act=admin, credentials=credentials if admin else None)
