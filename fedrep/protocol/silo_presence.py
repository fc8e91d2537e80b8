"""A silo's membership from round to round: its session keys, and when it is time to join again.

Shares are sealed to session keys, which are never on disk; a restarted process has none, and joins again.
"""

from __future__ import annotations

from fedrep.protocol.manifests import RecordPromise, RosterEntry, RunHash, session_key_message
from fedrep.secagg.keys import AgreementKey, Entropy, SigningKey
from fedrep.secagg.pairs import Pairs

ANNOUNCE_SECONDS = 30.0
LONGEST_PAUSE = 64
MOST_KEYS = 8  # announced and not yet listed: the server may have heard of an older one only


class Sessions:
    """`keys` are announced and may be listed next; `pairs` is what is left of the one that was. `verified` are the others'."""

    def __init__(self, entropy: Entropy) -> None:
        self.keys: dict[bytes, AgreementKey] = {}
        self.pairs = Pairs()
        self._verified: dict[tuple[RunHash, int], set[RosterEntry]] = {}
        self._entropy = entropy
        self._announced_at = 0.0

    def announced_long_ago(self, now: float) -> bool:
        """Between rounds, joining anew now and then costs little and mends whatever the two sides see differently."""
        return now - self._announced_at > ANNOUNCE_SECONDS

    def new(self) -> AgreementKey:
        key = AgreementKey.generate(self._entropy)
        self.keys[key.public] = key
        while len(self.keys) > MOST_KEYS:
            del self.keys[next(iter(self.keys))]
        return key

    def verified(self, run: RunHash, start: int) -> set[RosterEntry]:
        """Entries of this session whose signatures were checked; those of earlier sessions are forgotten."""
        if (run, start) not in self._verified:
            self._verified = {(run, start): set()}
        return self._verified[run, start]

    def announced(
        self, run: bytes, signing_key: SigningKey, now: float, promise: RecordPromise | None = None
    ) -> tuple[bytes, bytes]:
        """The newest key and its signature, for Join."""
        if not self.keys:
            self.new()
        self._announced_at = now
        newest = next(reversed(self.keys))
        return newest, signing_key.sign(session_key_message(run, newest, promise))

    def entered(self, listed: bytes) -> None:
        """A key is erased once a manifest lists it and every other holder's is known, with those announced before it."""
        for public in list(self.keys) if listed in self.keys else ():
            del self.keys[public]
            if public == listed:
                return

    def holds(self, key: bytes) -> bool:
        return key in self.keys or (key == self.pairs.own and key != b"")

    def forget_all(self) -> None:
        self.keys = {}
        self.pairs.forget()


class RosterWatch:
    """A silo that stays silent for a round is left out of the next rosters until it joins again.

    One that had to leave its rounds again and again waits 1, 2, 4, ... rounds before it joins, so that the others need not
    wait for it in every round.
    """

    def __init__(self) -> None:
        self._left = 0
        self._absent = 0

    @property
    def overlooked(self) -> bool:
        return self._absent >= min(1 << max(self._left - 1, 0), LONGEST_PAUSE)

    def absent(self) -> None:
        self._absent += 1

    def left(self) -> None:
        self._left += 1

    def took_part(self) -> None:
        self._left = self._absent = 0

    def joined(self) -> None:
        self._absent = 0
