"""One sentence for people: whom a run waits for, for how long, and without whom it goes on."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from fedrep.wire.v1 import observer_pb2 as pb

MOST_NAMES = 5
DAY = 86400.0


def waiting_text(waiting: pb.Waiting, now: float | None) -> str:
    """Empty while nobody is waited for. Without `now` the time left is not said: for whoever counts it down."""
    match waiting.what:
        case "silos":
            left = f", {time_left(waiting.until - now)} left" if now is not None and waiting.until else ""
            without = f"; going on without {_listed(waiting.without, now)}" if waiting.without else ""
            return f"waiting for {_listed(waiting.silos, now)}{left}{without}"
        case "quorum":
            missing = f"; {_listed(waiting.silos, now)}" if waiting.silos else ""
            return f"below quorum: {waiting.present} of {waiting.quorum}{missing}"
        case "gathering":
            return f"about to start; not here: {_listed(waiting.silos, now)}" if waiting.silos else ""
        case _:
            return ""


def time_left(seconds: float) -> str:
    whole = max(int(seconds), 0)
    minutes, hours = whole // 60, whole // 3600
    return f"{hours}:{minutes % 60:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


def _listed(silos: Sequence[pb.WaitedSilo], now: float | None) -> str:
    named = [_one(silo, now) for silo in silos[:MOST_NAMES]]
    more = [f"{len(silos) - MOST_NAMES} more"] if len(silos) > MOST_NAMES else []
    return ", ".join((*named, *more))


def _one(silo: pb.WaitedSilo, now: float | None) -> str:
    return f"{silo.name} ({away_text(silo.reason, silo.since, now)})" if silo.reason else str(silo.name)


def away_text(reason: str, since: float, now: float | None) -> str:
    """The time stands before the silo's own words: left since 11:02 UTC: training failed."""
    what, colon, words = reason.partition(": ")
    return f"{what} since {moment(since, now)}{colon}{words}" if since else reason


def moment(at: float, now: float | None) -> str:
    date = dt.datetime.fromtimestamp(at, dt.UTC)
    return f"{date:%H:%M} UTC" if now is None or now - at < DAY else f"{date:%Y-%m-%d %H:%M} UTC"
