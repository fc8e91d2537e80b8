"""The permissions as a page for people: `python -m fedrep_server.calls.permissions_table` prints docs/permissions.md."""

from __future__ import annotations

import sys

from fedrep_identity.certificates import Role
from fedrep_server.calls.permissions import FEDERATION, OBSERVER, PERMISSIONS

ROLES = (Role.SILO, Role.EVALUATOR, Role.VIEWER, Role.ADMIN, Role.SERVER)
TITLES = {FEDERATION: "FederationService", OBSERVER: "ObserverService"}

HEAD = """# Who may call what

Generated from `services/server/fedrep_server/calls/permissions.py` by
`python -m fedrep_server.calls.permissions_table > docs/permissions.md`; a test compares the two, and another calls
every RPC with every kind of certificate (`tests/contract/test_identity_matrix.py`).

The role stands in the caller's certificate and nowhere else. A silo moreover sees only runs whose manifest lists it, and
messages of a round count only from silos of its roster. Health and reflection answer anyone with a certificate of the
federation; health also answers on its own plaintext port.
"""


def page() -> str:
    parts = [HEAD]
    for prefix, title in TITLES.items():
        parts.append(f"\n## {title}\n")
        parts.append("| RPC | " + " | ".join(role.value for role in ROLES) + " |")
        parts.append("|---|" + "---|" * len(ROLES))
        for method, roles in PERMISSIONS.items():
            if method.startswith(prefix):
                marks = " | ".join("yes" if role in roles else "-" for role in ROLES)
                parts.append(f"| `{method.removeprefix(prefix)}` | {marks} |")
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
