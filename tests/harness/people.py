"""Everyone's certificates in a federation of tests: one authority, and a folder for each name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedrep_identity.authority import CertificateAuthority, issue_credentials
from fedrep_identity.certificates import Credentials, Identity, Role

FEDERATION = "testers"
ROLES = {"admin": Role.ADMIN, "viewer": Role.VIEWER, "evaluator": Role.EVALUATOR}


@dataclass
class People:
    """A server on this machine, one of each other role, and silos. `credentials` holds what was issued last under a name."""

    authority: CertificateAuthority
    folder: Path
    credentials: dict[str, Credentials] = field(default_factory=dict)

    @classmethod
    def create(cls, folder: Path, silos: Iterable[str]) -> People:
        made = cls(CertificateAuthority.create(folder / "ca", FEDERATION, "a passphrase for tests"), folder)
        made.issue("server", Role.SERVER, dns_names=("localhost",), ips=("127.0.0.1",))
        for name, role in {**ROLES, **dict.fromkeys(silos, Role.SILO)}.items():
            made.issue(name, role)
        return made

    def issue(self, name: str, role: Role, **options: Any) -> Credentials:
        made = issue_credentials(self.authority, self.folder / name, Identity(name, role, FEDERATION), **options)
        self.credentials[name] = made
        return made
