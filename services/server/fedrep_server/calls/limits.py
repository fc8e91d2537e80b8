"""How much one caller may ask for: bytes of each message, calls at once, calls a second.

All of it is known before anything is decoded. The bytes of a message follow from what it may hold for the largest roster there
can be; what a run allows, being smaller, is asked for in `expected` once the run is known.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedrep.errors import DecodeError, LimitError
from fedrep.secagg.pairs import MAC_BYTES
from fedrep.secagg.shamir import MAX_HOLDERS
from fedrep.wire.chunks import CHUNK_BYTES
from fedrep_server.calls.permissions import FEDERATION

# Of one message on its way in: a chunk, or the header of CreateRun with the layout of a model.
LARGEST_RECEIVED = 1 << 20

ENVELOPE = 1024  # a run, a round, names, one key and two signatures, with their tags
PER_SHARE_REVEALED = 33 + 63 + 16  # a share, its dealer's name, the secret's kind, and their tags
PER_HOLDER_PROPOSED = 82 + 32 + 32 + 8  # a sealed pair, two hashes, and their tags
PER_FINGERPRINT = 32 + 2
REPORT = 16 * 1024  # the longest text the store keeps, in the widest letters

_SINGLE = {
    "GetCertificates": ENVELOPE + PER_FINGERPRINT * (MAX_HOLDERS + 1),
    "ConfirmSurvivors": ENVELOPE + MAC_BYTES * MAX_HOLDERS,
    "RevealShares": ENVELOPE + PER_SHARE_REVEALED * MAX_HOLDERS,
    "ReportMetrics": REPORT,
    "Play": CHUNK_BYTES + ENVELOPE,  # what each call in it may hold is asked for when it is known which it is
}
_HEADERS = {
    "ProposeCoordinates": ENVELOPE + PER_HOLDER_PROPOSED * MAX_HOLDERS,
    "SubmitMaskedShare": ENVELOPE + MAC_BYTES * MAX_HOLDERS,
}


def check_message(method: str, size: int, *, first: bool) -> None:
    """Before a message is decoded; `first` is the only message of a call, or the header of a stream."""
    if not method.startswith(FEDERATION):
        return  # admins and viewers: gRPC's own limit
    name = method.removeprefix(FEDERATION)
    largest = _HEADERS.get(name) or _SINGLE.get(name, ENVELOPE)
    if not first and name != "Play":
        largest = CHUNK_BYTES + 16
    if size > largest:
        raise DecodeError(
            f"{name} takes at most {largest} bytes in one message, {size} came; update the program that sent them",
            reason="TOO_LARGE",
        )


TOO_MANY_CALLS = "TOO_MANY_CALLS"


@dataclass
class _Account:
    tokens: float
    at: float
    open: int = 0


class Turnstile:
    """Counts the calls of each caller: so many at once, so many a second, ten seconds' worth of them in one go."""

    BURST_SECONDS = 10.0

    def __init__(self, at_once: int, per_second: float) -> None:
        self._at_once = at_once
        self._per_second = per_second
        self._accounts: dict[str, _Account] = {}

    def enter(self, caller: str, now: float) -> None:
        """Every caller has a certificate, so there are no more accounts than the federation has members."""
        full = self._per_second * self.BURST_SECONDS
        account = self._accounts.setdefault(caller, _Account(full, now))
        account.tokens = min(full, account.tokens + (now - account.at) * self._per_second)
        account.at = now
        if account.open >= self._at_once:
            raise LimitError(
                f"{caller} has {account.open} calls open, and gets no more at once; wait for their answers",
                reason=TOO_MANY_CALLS,
            )
        if account.tokens < 1:
            raise LimitError(
                f"{caller} makes more than {self._per_second:g} calls a second; wait and try again", reason=TOO_MANY_CALLS
            )
        account.tokens -= 1
        account.open += 1

    def leave(self, caller: str) -> None:
        self._accounts[caller].open -= 1
