"""A token bucket per source and one for all, in bounded memory: what stands in front of code that anybody may call."""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

_REMEMBERED_SOURCES = 10_000


@dataclass
class Bucket:
    level: float
    at: float


@dataclass
class RateLimit:
    """`burst` calls at once, then `per_second` on average."""

    burst: float
    per_second: float
    clock: Callable[[], float] = time.monotonic
    _buckets: OrderedDict[str, Bucket] = field(default_factory=OrderedDict)

    def allows(self, source: str) -> bool:
        now = self.clock()
        bucket = self._buckets.pop(source, None) or Bucket(self.burst, now)
        bucket.level = min(self.burst, bucket.level + (now - bucket.at) * self.per_second)
        bucket.at = now
        allowed = bucket.level >= 1
        if allowed:
            bucket.level -= 1
        self._buckets[source] = bucket
        # Forgetting the source that was silent longest is safe only because the limit for all still holds.
        if len(self._buckets) > _REMEMBERED_SOURCES:
            self._buckets.popitem(last=False)
        return allowed


def source_of(peer: str) -> str:
    """The network of a gRPC peer string such as `ipv4:192.0.2.7:41234`. One IPv6 host commands a whole /64."""
    kind, _, rest = peer.partition(":")
    host = rest.rpartition(":")[0].strip("[]").replace("%5B", "").replace("%5D", "").partition("%")[0]
    if kind == "ipv6":
        try:
            address = ipaddress.IPv6Address(host)
            return str(address.ipv4_mapped or ipaddress.IPv6Network((address, 64), strict=False))
        except ValueError:
            return "unknown"
    return host or kind
