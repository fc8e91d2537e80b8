"""Finished rounds as the server tells them, for those who reckon with them: who sat where, and traffic against dense training."""

from __future__ import annotations

import math
from collections.abc import Iterable

from fedrep.communication import AgainstDense, paper_bits
from fedrep.suspicion import Seat, SeatedRound
from fedrep.wire.v1 import observer_pb2 as pb


def seated(item: pb.Round) -> SeatedRound:
    return SeatedRound(item.round, tuple(Seat(b.number, tuple(b.members), _distance(b)) for b in item.buffers))


def _distance(buffer: pb.BufferRound) -> float | None:
    """Of a buffer whose mean was used; a peer's word, so it may be anything."""
    used = buffer.opened and not buffer.discarded and buffer.HasField("distance")
    return buffer.distance if used and math.isfinite(buffer.distance) else None


def against_dense(run: pb.GetRunResponse, rounds: Iterable[pb.Round]) -> AgainstDense:
    sent, dense, paper = 0, 0, 0.0
    for item in rounds:
        sent += item.bytes_up + item.bytes_down
        dense += run.dense_bytes_per_silo_round * item.proposed
        paper += paper_bits(run.manifest.manifest.coordinates, max(item.roster_size, 1)) / 8 * item.proposed
    return AgainstDense(sent, dense, paper)
