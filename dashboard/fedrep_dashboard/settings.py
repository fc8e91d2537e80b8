"""The dashboard's settings: one frozen object from `dashboard.toml` and `FEDREP_DASHBOARD__...`, read once at the start."""

from __future__ import annotations

import ipaddress
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

SHORTEST_TOKEN = 20


class ProxySettings(BaseModel):
    """A reverse proxy that signs people in and names them in a header. Off unless `user_header` is set."""

    model_config = ConfigDict(frozen=True)

    user_header: str = Field(min_length=1, description="Header with the signed-in user's name, e.g. X-Forwarded-User.")
    trusted: tuple[str, ...] = Field(min_length=1, description="Addresses or networks the proxy connects from.")
    admins: tuple[str, ...] = Field(default=(), description="Users who may steer runs; everybody else named may look.")

    @field_validator("trusted")
    @classmethod
    def _networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for network in value:
            ipaddress.ip_network(network, strict=False)
        return value

    def trusts(self, address: str) -> bool:
        try:
            peer = ipaddress.ip_address(address)
        except ValueError:
            return False
        if isinstance(peer, ipaddress.IPv6Address):
            peer = peer.ipv4_mapped or peer  # so a socket for both families names callers of the older one
        return any(peer in ipaddress.ip_network(network, strict=False) for network in self.trusted)


class DashboardSettings(BaseModel):
    model_config = ConfigDict(frozen=True)

    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65535)
    metrics_host: str = Field(default="127.0.0.1", description="Address the metrics port listens on.")
    metrics_port: int | None = Field(
        default=None, ge=0, le=65535, description="Prometheus port, plaintext and without a password; none if absent."
    )
    server: str = Field(default="localhost:8550", description="Address of the federation server's gRPC port.")
    server_name: str | None = Field(default=None, description="Name in the server's certificate, if not the address.")
    credentials: Path | None = Field(default=None, description="Folder with key.pem, cert.pem, root.pem; role viewer or admin.")
    admin_token: SecretStr | None = None
    viewer_token: SecretStr | None = None
    session_secret: SecretStr | None = Field(default=None, description="Same on all replicas; random at each start if absent.")
    session_hours: float = Field(default=12.0, gt=0, le=24 * 30)
    secure_cookies: bool | None = Field(default=None, description="Absent: secure except on a loopback address without TLS.")
    web_certificate: Path | None = Field(default=None, description="PEM chain for HTTPS; absent where a proxy terminates TLS.")
    web_key: Path | None = None
    proxy: ProxySettings | None = None
    poll_seconds: float = Field(default=2.0, gt=0, le=60)
    heartbeat_seconds: float = Field(default=10.0, gt=0, le=60)
    chart_points: int = Field(default=600, ge=50, le=5000, description="Most rounds a chart is sent; longer runs are thinned.")
    largest_model_mb: int = Field(
        default=256, ge=1, description="Most megabytes of an uploaded model file; checking one takes three times that in memory."
    )
    log_level: str = "INFO"

    @field_validator("admin_token", "viewer_token", "session_secret")
    @classmethod
    def _long_enough(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and len(value.get_secret_value()) < SHORTEST_TOKEN:
            raise ValueError(f"must have at least {SHORTEST_TOKEN} characters; `openssl rand -hex 24` makes a good one")
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> DashboardSettings:
        if (self.web_certificate is None) != (self.web_key is None):
            raise ValueError("`web_certificate` and `web_key` belong together: set both for HTTPS, or neither.")
        admin, viewer = self.admin_token, self.viewer_token
        if admin is not None and viewer is not None and admin.get_secret_value() == viewer.get_secret_value():
            raise ValueError("`admin_token` and `viewer_token` are equal, so every viewer would be an admin: change one.")
        return self

    @property
    def on_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False
