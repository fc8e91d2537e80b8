"""Who may no longer call: the server's revocation lists, from a file, from the authority itself, or both.

The authority's answer is kept in the data folder: a server that starts while the authority is away knows what it knew. A server
without any list accepts every certificate until it ends, so it says that loudly, and again.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Coroutine, Iterator
from typing import Any

import structlog
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from fedrep_identity.certificates import REVOCATIONS_FILE, Credentials, TrustStore
from fedrep_identity.enrolment_client import AuthorityRevocations
from fedrep_identity.peer import RevocationsFile, RevocationSource, follow_revocations, refresh_revocations
from fedrep_server.config import ServerSettings

log = structlog.get_logger(__name__)

SAY_AGAIN_SECONDS = 600.0
ASK_AUTHORITY_SECONDS = 5.0


class ServerRevocations(Collector):
    def __init__(self, settings: ServerSettings, trust: TrustStore) -> None:
        self._trust = trust
        self._files: list[RevocationSource] = [RevocationsFile(settings.revocations or settings.credentials / REVOCATIONS_FILE)]
        self._authority: AuthorityRevocations | None = None
        if settings.authority is not None:
            kept = settings.data / REVOCATIONS_FILE
            self._files.append(RevocationsFile(kept))
            self._authority = AuthorityRevocations(settings.authority, lambda: Credentials.load(settings.credentials), keep=kept)

    async def load(self) -> None:
        """What lies here already; a list that cannot be believed stops the start."""
        for source in self._files:
            await refresh_revocations(self._trust, source)

    def follow(self) -> list[Coroutine[Any, Any, None]]:
        """To be run beside the server for as long as it lives."""
        work: list[Coroutine[Any, Any, None]] = [follow_revocations(self._trust, source) for source in self._files]
        if self._authority is not None:
            work.append(follow_revocations(self._trust, self._authority, ASK_AUTHORITY_SECONDS))
        return [*work, self._warn()]

    async def close(self) -> None:
        if self._authority is not None:
            await self._authority.close()

    async def _warn(self) -> None:
        # The authority is asked beside this: it gets the time to answer before anything is said.
        await asyncio.sleep(ASK_AUTHORITY_SECONDS)
        while True:
            if not self._trust.revoked.lists:
                log.warning(
                    "no_revocation_list",
                    means="revoking a certificate has no effect here until it ends",
                    do="set `authority` to the host:port of the certificate authority, or put crl.pem where `revocations` says",
                )
            await asyncio.sleep(SAY_AGAIN_SECONDS)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        lists = self._trust.revoked.lists.values()
        yield GaugeMetricFamily("fedrep_revocation_lists", "Authorities whose revocation list is known here", len(lists))
        if lists:
            yield GaugeMetricFamily(
                "fedrep_revocations_issued_timestamp_seconds",
                "When the oldest of them was signed",
                _oldest(r.issued for r in lists),
            )
            yield GaugeMetricFamily(
                "fedrep_revocations_due_timestamp_seconds",
                "By when its authority promised a newer one",
                _oldest(r.next_update for r in lists),
            )


def _oldest(moments: Iterator[dt.datetime]) -> float:
    return min(moments).timestamp()
