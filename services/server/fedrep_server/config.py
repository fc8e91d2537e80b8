"""The server's settings: one frozen object, read once, all errors shown before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Retention(Section):
    """What is kept of the past."""

    models: int = Field(default=3, ge=1, description="latest model versions kept, besides the best one")
    updates: int = Field(default=200, ge=1, description="rounds whose update a late silo can still fetch")
    events: int = Field(default=200_000, ge=1, description="latest events kept of each run")
    details_days: float | None = Field(
        default=None,
        gt=0,
        description="days after which what each silo and buffer did in a round goes, and what silos reported about it, except "
        "for what they have spent; absent: with its run",
    )
    finished_days: float | None = Field(
        default=None,
        gt=0,
        description="days after its end until a run is deleted, except for what silos have spent; absent: never",
    )


class Alerts(Section):
    """Where alerts go besides the event log."""

    webhook: str | None = Field(default=None, description="URL that gets a JSON POST for every alert")
    stalled_after: float = Field(default=600, gt=0, description="seconds without a finished round until a run counts as stalled")
    missing_after: float = Field(
        default=60, ge=0, description="seconds a silo of a running run may be away until it counts as missing"
    )
    epsilon_warning: float = Field(default=0.9, gt=0, le=1, description="share of an epsilon budget at which a warning is raised")


class ServerSettings(Section):
    host: str = Field(default="0.0.0.0", description="address the federation port listens on")
    port: int = Field(default=8550, ge=0, le=65535, description="mTLS port for silos, admins and the dashboard")
    advertise: str | None = Field(
        default=None,
        description="host:port at which other servers on its database reach this one: a standby passes calls on and is ready",
    )
    health_host: str = Field(default="127.0.0.1", description="address the health port listens on")
    health_port: int | None = Field(default=8553, ge=0, le=65535, description="plaintext port with gRPC health only, for probes")
    metrics_host: str = Field(
        default="127.0.0.1", description="address the metrics port listens on; it names silos and tells their bytes and epsilon"
    )
    metrics_port: int | None = Field(default=8554, ge=0, le=65535, description="plaintext Prometheus port")
    data: Path = Field(default=Path("var/server"), description="folder for the database and the models")
    database: str | None = Field(default=None, description="database URL; SQLite in the data folder when absent")
    models: Literal["folder", "database"] | None = Field(
        default=None, description="where models live; absent: in the database if that is PostgreSQL, else in the data folder"
    )
    credentials: Path = Field(default=Path("credentials"), description="folder with key.pem, cert.pem and root.pem")
    revocations: Path | None = Field(default=None, description="revocation list; crl.pem in the credentials folder when absent")
    authority: str | None = Field(
        default=None, description="host:port of the certificate authority (8552), which is asked for the revocation list"
    )
    require_revocations: bool = Field(
        default=False, description="refuse callers while no revocation list is known, or it is older than its authority allows"
    )
    gather_seconds: float = Field(default=5.0, ge=0, description="how long a quorum waits for the other silos before a round")
    line_grace_seconds: float = Field(
        default=5.0, ge=0, description="how long a silo whose connection broke is waited for before a round goes on without it"
    )
    pace_factor: float = Field(
        default=3.0,
        ge=0,
        description="a round waits for proposals this many times as long as its slowest silo lately took, and never longer than "
        "the run's deadline; 0: always until the deadline",
    )
    pace_floor: float = Field(default=30.0, gt=0, description="seconds below which that never goes")
    wait_seconds: float = Field(default=50.0, gt=0, description="longest a waiting call is held before the silo asks again")
    receive_seconds: float = Field(default=120.0, gt=0, description="longest a silo's proposal or submission may take to arrive")
    calls_at_once: int = Field(default=32, ge=4, description="calls that one silo or evaluator may have open at a time")
    calls_per_second: float = Field(
        default=100.0, gt=0, description="calls that one silo or evaluator may make, ten seconds' worth in one go"
    )
    grace_seconds: float = Field(default=20.0, gt=0, description="time to finish the open round when asked to stop")
    log_json: bool | None = Field(default=None, description="JSON log lines; by default JSON unless on a terminal")
    telemetry: str | None = Field(default=None, description="OTLP endpoint for traces")
    retention: Retention = Retention()
    alerts: Alerts = Alerts()

    @property
    def database_url(self) -> str:
        return self.database or f"sqlite:///{self.data / 'fedrep.sqlite3'}"

    @property
    def model_store(self) -> Literal["folder", "database"]:
        """Servers that share a database must all reach the models; a folder is one machine's."""
        if self.models is not None:
            return self.models
        return "folder" if self.database_url.startswith("sqlite") else "database"
