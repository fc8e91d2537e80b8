"""What `fedrep run show` reckons from a run's finished rounds: who stands out, and the traffic against dense training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fedrep import suspicion
from fedrep.wire.v1 import observer_pb2 as pb
from fedrep_runtime.observed_rounds import against_dense, seated

OVER = ("finished", "stopped")


def reckoned(run: pb.GetRunResponse, rounds: Sequence[pb.Round]) -> dict[str, Any]:
    every = run.manifest.manifest.reshuffle_every
    found = suspicion.standings((seated(item) for item in rounds), every, over=run.summary.state in OVER)
    traffic = against_dense(run, rounds)
    return {
        "suspicion": {
            "sentence": suspicion.sentence(found),
            "caution": suspicion.CAUTION,
            "silos": [{**asdict(one), "stands_out": one.stands_out} for one in found],
        },
        "traffic": {"sent": traffic.sent, "dense": traffic.dense, "sentence": traffic.sentence},
    }


def lines(result: Mapping[str, Any]) -> list[str]:
    """The same for a person."""
    told, traffic = result["suspicion"], result["traffic"]
    found = []
    if traffic["sentence"]:
        found.append(
            f"Traffic of all silos in finished rounds: {traffic['sent'] / 1e6:.2f} MB up and down, {traffic['sentence']}; "
            f"dense float32 vectors would have taken {traffic['dense'] / 1e6:.2f} MB."
        )
    if told["silos"]:
        found.append(f"Suspected buffers: {told['sentence']}")
    if any(one["stands_out"] for one in told["silos"]):
        found.append(f"{told['caution']}.")
    return found
