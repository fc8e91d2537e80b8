"""A silo's pinned roster: the key fingerprints of its partners, learned by another way than from the server.

With it, a silo notices even a certificate authority that mints a silo. Fingerprints are of keys, so they outlive renewals.
One per line, in hex; what follows a `#` is for the reader.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from pathlib import Path

from fedrep.errors import SettingsError
from fedrep_identity.names import Role
from fedrep_identity.register import IssuedCertificate


def load_pinned_roster(path: Path) -> frozenset[bytes]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"The pinned roster {path} cannot be read: {error}.") from None
    pins: set[bytes] = set()
    for number, line in enumerate(lines, start=1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        try:
            pin = bytes.fromhex(text)
        except ValueError:
            pin = b""
        if len(pin) != 32:
            raise SettingsError(
                f"Line {number} of the pinned roster {path} is not a key fingerprint: 64 hex digits, then perhaps # and a "
                "name. `fedrep ca roster` prints such a file."
            )
        pins.add(pin)
    if not pins:
        raise SettingsError(f"The pinned roster {path} is empty, so no partner would be trusted. Fill it or leave it out.")
    return frozenset(pins)


def roster_lines(issued: Iterable[IssuedCertificate], now: dt.datetime) -> str:
    return "".join(f"{pin.hex()}  # {name}\n" for name, pin in sorted(silo_pins(issued, now).items()))


def silo_pins(issued: Iterable[IssuedCertificate], now: dt.datetime) -> Mapping[str, bytes]:
    """The newest valid key of every silo."""
    return {entry.name: entry.fingerprint for entry in issued if entry.role is Role.SILO and entry.status(now) == "valid"}
