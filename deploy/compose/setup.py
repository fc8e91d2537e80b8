"""Once, before anything else starts: the demo federation's certificate authority, everybody's certificates, and the passwords.

Each identity goes into a volume of its own, so that nobody sees another's key. What exists is left alone. The authority
stays in its own volume, which no other container mounts; a real consortium keeps it elsewhere (docs/identity.md).
"""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

from fedrep_identity.authority import AUTHORITY_KEY, CertificateAuthority, issue_credentials
from fedrep_identity.certificates import CERTIFICATE_FILE
from fedrep_identity.names import Identity, Role
from fedrep_identity.settings import PublicAddresses
from fedrep_runtime.files import write_atomically

FEDERATION = "demo"
DAYS = 365.0
USER = 10001
PEOPLE = {
    "server": Role.SERVER,
    "dashboard": Role.ADMIN,
    "admin": Role.ADMIN,
    "evaluator": Role.EVALUATOR,
    "silo-1": Role.SILO,
    "silo-2": Role.SILO,
    "silo-3": Role.SILO,
}
SECRETS = ("database/password", "dashboard/admin-token", "dashboard/viewer-token", "dashboard/session-secret")


def set_up(home: Path) -> None:
    folders = [home / "identities" / name for name in PEOPLE]
    if not all((folder / CERTIFICATE_FILE).exists() for folder in folders):
        authority = _authority(home / "ca")
        for folder, (name, role) in zip(folders, PEOPLE.items(), strict=True):
            if not (folder / CERTIFICATE_FILE).exists():  # the last of its files
                dns = ("server", "localhost") if role is Role.SERVER else ()
                issue_credentials(authority, folder, Identity(name, role, FEDERATION), dns, (), DAYS)
    for name in SECRETS:
        path = home / "secrets" / name
        if not path.exists():
            write_atomically(path, secrets.token_urlsafe(32).encode())
    authority = home / "ca"
    for path in (*folders, authority, *(file for folder in (*folders, authority) for file in folder.iterdir())):
        _give(path)
    for name in SECRETS:
        (home / "secrets" / name).chmod(0o444)  # PostgreSQL reads its password as a user of its own
    sys.stdout.write("The federation is set up. The dashboard's token: docker compose exec dashboard cat /secrets/admin-token\n")


def _authority(folder: Path) -> CertificateAuthority:
    """Its key is written last: a kill before that leaves nothing that could not be made again."""
    passphrase = folder / "passphrase"
    if (folder / AUTHORITY_KEY).exists():
        return CertificateAuthority.open(folder, passphrase.read_text())
    made = secrets.token_urlsafe(32)
    write_atomically(passphrase, made.encode())
    PublicAddresses(enrolment="localhost:8551", certificates="localhost:8552", server="localhost:8550").save(folder)
    return CertificateAuthority.create(folder, FEDERATION, made)


def _give(path: Path) -> None:
    if os.geteuid() == 0:
        os.chown(path, USER, 0)


if __name__ == "__main__":
    set_up(Path(sys.argv[1] if len(sys.argv) > 1 else "/setup"))
