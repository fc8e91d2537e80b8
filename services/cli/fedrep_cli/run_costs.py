"""What a run has cost so far, beside the event that tells of its latest round: both epsilons, which are never added up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedrep.privacy import shown
from fedrep.wire.v1 import observer_pb2 as pb
from fedrep_runtime.observer_client import ObserverClient

APPLIED = "round_applied"
WHOSE = "most of any silo, in all its runs"


class Costs:
    """Asks once per new round. Events of the past get none: the server knows the totals of now only."""

    def __init__(self, client: ObserverClient, run: str) -> None:
        self._client = client
        self._run = run
        self._newest = 0

    def of(self, event: pb.Event) -> dict[str, Any]:
        if event.kind != APPLIED or event.round < self._newest:
            return {}
        summary = self._client.call("GetRun", pb.GetRunRequest(name=self._run)).summary
        self._newest = summary.round
        if summary.round != event.round:
            return {}
        return figures(summary)


def figures(summary: pb.RunSummary) -> dict[str, Any]:
    """No guarantee is the word "none"; what no silo reported is not there."""
    found: dict[str, Any] = {"epsilon_total": summary.epsilon_total if summary.HasField("epsilon_total") else "none"}
    if summary.records.without:
        found["record_epsilon"] = "none"
    elif summary.records.HasField("epsilon"):
        found["record_epsilon"] = summary.records.epsilon
    return found


def costs_text(event: Mapping[str, Any]) -> str:
    if "epsilon_total" not in event:
        return ""
    record = f", {_text(event['record_epsilon'])} of a training record" if "record_epsilon" in event else ""
    return f"; epsilon so far {_text(event['epsilon_total'])} ({WHOSE}){record}"


def _text(epsilon: float | str) -> str:
    return epsilon if isinstance(epsilon, str) else shown(epsilon)
