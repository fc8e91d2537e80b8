"""Sessions that somebody ended before their time: the cookie itself cannot be taken back from whoever has a copy.

Known to this process alone. Another replica, or this one after a restart with the same `session_secret`, takes the copy until
it expires; what must count everywhere at once is in the key that signs the cookies.
"""

from __future__ import annotations

import threading
import time
from typing import Final

MOST: Final = 10_000


class SignedOut:
    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._until: dict[str, float] = {}
        self._all_until = 0.0
        self._lock = threading.Lock()  # FastAPI calls from several threads

    def __len__(self) -> int:
        return len(self._until)

    def add(self, session: str, until: float) -> None:
        """Where there is no room left, no session comes back to life: all that expire as soon as the one left out end with it."""
        with self._lock:
            now = time.time()
            self._until = {known: end for known, end in self._until.items() if end > now} | {session: until}
            if len(self._until) > self._most:
                soonest = min(self._until, key=self._until.__getitem__)
                self._all_until = max(self._all_until, self._until.pop(soonest))

    def has(self, session: str, until: float) -> bool:
        return session in self._until or until <= self._all_until
