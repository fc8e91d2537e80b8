"""What an authority tells Prometheus: when everybody's certificate ends, and its own."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fedrep_identity.authority import CertificateAuthority
from fedrep_identity.certificates import load_chain

if TYPE_CHECKING:
    from prometheus_client.core import GaugeMetricFamily


class AuthorityCollector:
    """Of each name the newest certificate that was not revoked; whoever let it end long ago has left."""

    LEFT_AFTER = dt.timedelta(days=30)

    def __init__(self, authority: CertificateAuthority) -> None:
        self._authority = authority

    def collect(self) -> Iterator[GaugeMetricFamily]:
        from prometheus_client.core import GaugeMetricFamily  # an authority without a metrics port needs no Prometheus

        members = GaugeMetricFamily(
            "fedrep_ca_certificate_expires_timestamp_seconds",
            "Unix time at which the newest certificate of a name ends",
            labels=["name", "role"],
        )
        now = dt.datetime.now(dt.UTC)
        newest: dict[tuple[str, str], float] = {}
        for issued in self._authority.register.certificates():
            if issued.revoked_at is None and now < issued.not_after + self.LEFT_AFTER:
                who = (issued.name, issued.role.value)
                newest[who] = max(newest.get(who, 0.0), issued.not_after.timestamp())
        for who, ends in sorted(newest.items()):
            members.add_metric(who, ends)
        yield members
        own = min(
            self._authority.certificate.not_valid_after_utc, load_chain(self._authority.root)[0].not_valid_after_utc
        ).timestamp()
        yield GaugeMetricFamily("fedrep_ca_expires_timestamp_seconds", "Unix time at which the authority itself ends", own)
