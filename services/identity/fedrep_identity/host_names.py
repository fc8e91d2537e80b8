"""Names under which a server is dialled, as they may stand in its certificate (RFC 1123)."""

from __future__ import annotations

import ipaddress
import re

from fedrep.errors import InvalidInputError
from fedrep_identity.authority_name import AUTHORITY_NAME

LONGEST = 253
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*", re.IGNORECASE)


def is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def check_host_name(text: str) -> None:
    """One name: whoever holds a certificate for `*.example.org` can pose as every machine there."""
    if is_address(text):
        raise InvalidInputError(f"{text!r} is an address; give it with --ip.", reason="BAD_HOST_NAME")
    if len(text) > LONGEST or not _NAME.fullmatch(text):
        raise InvalidInputError(
            f"{text[:80]!r} is not a host name. Give it as silos dial it, without port, path or *, such as fed.example.org; "
            "letters that are not English in the form xn--...",
            reason="BAD_HOST_NAME",
        )


def stands_for_authority(name: str) -> bool:
    """Whether TLS would take a certificate for `name` for the authority's own."""
    wanted, (_, _, parent) = name.lower().rstrip("."), AUTHORITY_NAME.partition(".")
    return wanted in (AUTHORITY_NAME, f"*.{parent}")
