"""A silo's pinned roster: the key fingerprints of its partners, learned by another way than from the server.

With it, a silo notices even a certificate authority that mints a silo. Fingerprints are of keys, so they outlive renewals.
"""

from __future__ import annotations

import datetime as dt
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

from fedrep.errors import SettingsError
from services.identity.names import Role
from services.identity.register import IssuedCertificate


def load_pinned_roster(path: Path) -> dict[str, bytes]:
    """Name to key fingerprint, from the `[silos]` table of a TOML file."""
    try:
        silos = tomllib.loads(path.read_text(encoding="utf-8"))["silos"]
        pins = {str(name): bytes.fromhex(pin) for name, pin in silos.items()}
        if not pins or any(len(pin) != 32 for pin in pins.values()):
            raise ValueError
    except FileNotFoundError:
        raise SettingsError(f"There is no pinned roster at {path}.") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise SettingsError(
            f'The pinned roster {path} cannot be read. It holds a table [silos] with lines like hospital-a = "64 hex digits"; '
            "`fedrep ca roster` prints one."
        ) from None
    return pins


def roster_toml(issued: Iterable[IssuedCertificate], now: dt.datetime) -> str:
    pins = silo_pins(issued, now)
    return "[silos]\n" + "".join(f'"{name}" = "{pin.hex()}"\n' for name, pin in sorted(pins.items()))


def silo_pins(issued: Iterable[IssuedCertificate], now: dt.datetime) -> Mapping[str, bytes]:
    """The newest valid key of every silo."""
    return {entry.name: entry.fingerprint for entry in issued if entry.role is Role.SILO and entry.status(now) == "valid"}
