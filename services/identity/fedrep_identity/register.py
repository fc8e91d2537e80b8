"""The authority's book: every certificate issued, every invitation written, in one SQLite file beside the signing key.

`fedrep ca serve` and the commands an administrator types meanwhile are different processes on this file; each step that
must happen once (a token is used, a failure is counted) is one statement.
"""

from __future__ import annotations

import datetime as dt
import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fedrep_identity.names import Role

_SCHEMA = """
CREATE TABLE IF NOT EXISTS certificates (
    serial TEXT PRIMARY KEY, name TEXT NOT NULL, role TEXT NOT NULL, fingerprint TEXT NOT NULL, hosts TEXT NOT NULL,
    not_before TEXT NOT NULL, not_after TEXT NOT NULL, chain BLOB NOT NULL, revoked_at TEXT
);
CREATE INDEX IF NOT EXISTS certificates_by_name ON certificates (name);
CREATE TABLE IF NOT EXISTS invitations (
    id TEXT PRIMARY KEY, public_key BLOB NOT NULL, name TEXT NOT NULL, role TEXT NOT NULL, hosts TEXT NOT NULL,
    created_at TEXT NOT NULL, expires_at TEXT NOT NULL, failures INTEGER NOT NULL DEFAULT 0, used_by TEXT, void INTEGER
    NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
"""


@dataclass(frozen=True)
class Hosts:
    """DNS names and IP addresses under which a server is reached; empty for every other role."""

    dns: tuple[str, ...] = ()
    ips: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.dns or self.ips)

    def as_json(self) -> str:
        return json.dumps([self.dns, self.ips])

    @classmethod
    def from_json(cls, text: str) -> Hosts:
        dns, ips = json.loads(text)
        return cls(tuple(dns), tuple(ips))


@dataclass(frozen=True)
class IssuedCertificate:
    serial: int
    name: str
    role: Role
    fingerprint: bytes
    hosts: Hosts
    not_before: dt.datetime
    not_after: dt.datetime
    chain: bytes = field(repr=False)
    revoked_at: dt.datetime | None = None

    def status(self, now: dt.datetime) -> str:
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if now > self.not_after else "valid"


@dataclass(frozen=True)
class StoredInvitation:
    """`used_by` is the fingerprint of the key that used it: that key, and no other, may ask again after a lost answer."""

    id: str
    public_key: bytes
    name: str
    role: Role
    hosts: Hosts
    created_at: dt.datetime
    expires_at: dt.datetime
    failures: int = 0
    used_by: str | None = None
    void: bool = False

    def status(self, now: dt.datetime) -> str:
        if self.used_by is not None:
            return "used"
        if self.void:
            return "void"
        return "expired" if now > self.expires_at else "open"


class Register:
    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._connection() as connection:
            connection.executescript(_SCHEMA)
            columns = {row[1] for row in connection.execute("PRAGMA table_info(invitations)")}
            if "secret_hash" in columns:  # invitations of then are of no use any more
                connection.execute("ALTER TABLE invitations RENAME COLUMN secret_hash TO public_key")
        path.chmod(0o600)

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """A connection per use: cheap for a file this small, and safe from any thread."""
        connection = sqlite3.connect(self._path, timeout=10)
        connection.execute("PRAGMA synchronous = FULL")
        try:
            with connection:
                yield connection
        finally:
            connection.close()

    def add_certificate(self, issued: IssuedCertificate) -> bool:
        return self._add_certificate(issued, "1", ())

    def add_enrolled(self, issued: IssuedCertificate, invitation_id: str, now: dt.datetime) -> bool:
        """False if the invitation was withdrawn, or another key came to hold the name, while the certificate was made."""
        key = issued.fingerprint.hex()
        return self._add_certificate(
            issued,
            "EXISTS (SELECT 1 FROM invitations WHERE id = ? AND void = 0 AND used_by = ?) AND NOT EXISTS "
            "(SELECT 1 FROM certificates WHERE name = ? AND fingerprint != ? AND revoked_at IS NULL AND not_after > ?)",
            (invitation_id, key, issued.name, key, now.isoformat()),
        )

    def add_renewed(self, issued: IssuedCertificate, by: bytes) -> bool:
        """False if the key `by` was revoked or replaced, before or while the certificate was made."""
        return self._add_certificate(
            issued,
            "EXISTS (SELECT 1 FROM certificates WHERE name = ? AND fingerprint = ? AND revoked_at IS NULL) AND "
            "(SELECT fingerprint FROM certificates WHERE name = ? AND revoked_at IS NULL ORDER BY rowid DESC LIMIT 1) IN (?, ?)",
            (issued.name, by.hex(), issued.name, by.hex(), issued.fingerprint.hex()),
        )

    def _add_certificate(self, issued: IssuedCertificate, condition: str, arguments: tuple[str, ...]) -> bool:
        """One statement: nothing that another process does comes between the conditions and the entry. That its key is no other
        name's is always one of them."""
        own_key = "NOT EXISTS (SELECT 1 FROM certificates WHERE fingerprint = ? AND name != ?)"
        with self._connection() as connection:
            cursor = connection.execute(
                f"INSERT INTO certificates SELECT ?, ?, ?, ?, ?, ?, ?, ?, NULL WHERE {own_key} AND {condition}",
                (
                    f"{issued.serial:x}",
                    issued.name,
                    issued.role.value,
                    issued.fingerprint.hex(),
                    issued.hosts.as_json(),
                    issued.not_before.isoformat(),
                    issued.not_after.isoformat(),
                    issued.chain,
                    issued.fingerprint.hex(),
                    issued.name,
                    *arguments,
                ),
            )
            return cursor.rowcount == 1

    def certificates(self, name: str | None = None) -> list[IssuedCertificate]:
        """Oldest first."""
        where, arguments = ("", ()) if name is None else (" WHERE name = ?", (name,))
        with self._connection() as connection:
            rows = connection.execute(f"SELECT * FROM certificates{where} ORDER BY rowid", arguments).fetchall()
        return [
            IssuedCertificate(
                int(row[0], 16),
                row[1],
                Role(row[2]),
                bytes.fromhex(row[3]),
                Hosts.from_json(row[4]),
                dt.datetime.fromisoformat(row[5]),
                dt.datetime.fromisoformat(row[6]),
                row[7],
                dt.datetime.fromisoformat(row[8]) if row[8] else None,
            )
            for row in rows
        ]

    def names_of_key(self, fingerprint: bytes) -> set[str]:
        with self._connection() as connection:
            rows = connection.execute("SELECT name FROM certificates WHERE fingerprint = ?", (fingerprint.hex(),))
            return {row[0] for row in rows}

    def mark_revoked(self, name: str, now: dt.datetime) -> int:
        """Revokes every certificate of `name` and voids its invitations, used ones too; counts the certificates."""
        with self._connection() as connection:
            connection.execute("UPDATE invitations SET void = 1 WHERE name = ?", (name,))
            cursor = connection.execute(
                "UPDATE certificates SET revoked_at = ? WHERE name = ? AND revoked_at IS NULL", (now.isoformat(), name)
            )
            return cursor.rowcount

    def add_invitation(self, invitation: StoredInvitation) -> None:
        """The newest of a name is the only one: whoever finds an older one must not get in beside its owner, nor finish what was
        begun with it. Nobody is invited whose certificate is valid, so no answer is lost with it."""
        with self._connection() as connection:
            connection.execute("UPDATE invitations SET void = 1 WHERE name = ?", (invitation.name,))
            connection.execute(
                "INSERT INTO invitations (id, public_key, name, role, hosts, created_at, expires_at) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    invitation.id,
                    invitation.public_key,
                    invitation.name,
                    invitation.role.value,
                    invitation.hosts.as_json(),
                    invitation.created_at.isoformat(),
                    invitation.expires_at.isoformat(),
                ),
            )

    def invitation(self, invitation_id: str) -> StoredInvitation | None:
        return next(iter(self._invitations(" WHERE id = ?", (invitation_id,))), None)

    def invitations(self) -> list[StoredInvitation]:
        return self._invitations("", ())

    def _invitations(self, where: str, arguments: tuple[str, ...]) -> list[StoredInvitation]:
        columns = "id, public_key, name, role, hosts, created_at, expires_at, failures, used_by, void"
        with self._connection() as connection:
            rows = connection.execute(f"SELECT {columns} FROM invitations{where} ORDER BY rowid", arguments).fetchall()
        return [
            StoredInvitation(
                row[0],
                row[1],
                row[2],
                Role(row[3]),
                Hosts.from_json(row[4]),
                dt.datetime.fromisoformat(row[5]),
                dt.datetime.fromisoformat(row[6]),
                row[7],
                row[8],
                bool(row[9]),
            )
            for row in rows
        ]

    def claim_invitation(self, invitation_id: str, fingerprint: bytes) -> bool:
        """True for exactly one key, however many ask at once."""
        with self._connection() as connection:
            cursor = connection.execute(
                "UPDATE invitations SET used_by = ? WHERE id = ? AND void = 0 AND (used_by IS NULL OR used_by = ?)",
                (fingerprint.hex(), invitation_id, fingerprint.hex()),
            )
            return cursor.rowcount == 1

    def count_failure(self, invitation_id: str, limit: int) -> None:
        """A wrong secret; at `limit` the invitation is void. One that was withdrawn stays so."""
        with self._connection() as connection:
            connection.execute(
                "UPDATE invitations SET failures = failures + 1, void = (void OR failures + 1 >= ?) "
                "WHERE id = ? AND used_by IS NULL",
                (limit, invitation_id),
            )

    def next_number(self, counter: str, at_least: int) -> int:
        """Higher than every one before, and than those of a register that was lost, if `at_least` grows with time."""
        with self._connection() as connection:
            row = connection.execute(
                "INSERT INTO counters VALUES (?1, ?2) "
                "ON CONFLICT (name) DO UPDATE SET value = max(value + 1, ?2) RETURNING value",
                (counter, at_least),
            ).fetchone()
            return int(row[0])
