"""Settings of `fedrep ca serve`, and the addresses that an authority writes into its invitations."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from fedrep.errors import SettingsError
from fedrep_identity.authority_server import Addresses, Limits
from fedrep_identity.rate_limit import RateLimit
from fedrep_runtime.files import write_atomically
from fedrep_runtime.json_text import parsed

ADDRESSES_FILE = "addresses.json"
ENVIRONMENT = "FEDREP_CA"


class AuthoritySettings(BaseModel):
    model_config = ConfigDict(frozen=True)

    folder: Path = Path("ca")
    host: str = "0.0.0.0"
    enrolment_port: int | None = Field(default=None, ge=0, le=65535, description="absent: the one that `ca init` told silos")
    certificate_port: int | None = Field(default=None, ge=0, le=65535, description="likewise")
    health_port: int | None = Field(default=None, ge=0, le=65535)
    metrics_host: str = Field(default="127.0.0.1", description="address the metrics port listens on; it names everybody")
    metrics_port: int | None = Field(default=None, ge=0, le=65535, description="plaintext Prometheus port: when certificates end")
    days: float = Field(default=30, gt=0, le=365)
    enrolments_per_source: int = Field(default=10, ge=1, description="at once from one address; more if silos share one")
    passphrase_file: Path | None = None
    log_json: bool | None = None

    def listening(self, public: PublicAddresses | None) -> Addresses:
        """Where nothing else is set, on the ports that invitations name: an authority made for others must be found there."""
        told = (
            Addresses()
            if public is None
            else Addresses(enrolment_port=public.port_of(public.enrolment), certificate_port=public.port_of(public.certificates))
        )
        return Addresses(
            self.host,
            told.enrolment_port if self.enrolment_port is None else self.enrolment_port,
            told.certificate_port if self.certificate_port is None else self.certificate_port,
            self.health_port,
            None if public is None else public.certificates,
        )

    def limits(self) -> Limits:
        return Limits(enrol_per_source=RateLimit(burst=self.enrolments_per_source, per_second=0.1))


@dataclass(frozen=True)
class PublicAddresses:
    """How silos reach the authority and the federation server, as host:port."""

    enrolment: str
    certificates: str
    server: str

    @classmethod
    def load(cls, folder: Path) -> PublicAddresses:
        try:
            return cls(**parsed((folder / ADDRESSES_FILE).read_text(encoding="utf-8")))
        except (FileNotFoundError, ValueError, TypeError):
            raise SettingsError(
                f"{folder / ADDRESSES_FILE} is missing or damaged. Give --ca and --server, or make the folder with "
                "`fedrep ca init`, which writes it."
            ) from None

    @staticmethod
    def port_of(address: str) -> int:
        return int(address.rpartition(":")[2])

    def save(self, folder: Path) -> None:
        write_atomically(folder / ADDRESSES_FILE, (json.dumps(asdict(self), indent=2) + "\n").encode(), 0o644)
