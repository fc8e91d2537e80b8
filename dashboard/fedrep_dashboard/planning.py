"""The preflight and the plan of a run in the shapes of the REST interface: what an admin reads before signing."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from fedrep import privacy, record_privacy
from fedrep.protocol import plan
from fedrep.protocol.advice import Advice
from fedrep.protocol.manifests import RunManifest
from fedrep_dashboard import schema


class Fact(schema.Shape):
    topic: str
    text: str
    problems: list[str]


class Remedy(schema.Shape):
    settings: dict[str, Any] = Field(description="As the run's settings call them; `silos` is how many there would be.")
    text: str


class Preflight(schema.Shape):
    conclusion: str = Field(description="One sentence; ends with what to do if the run cannot be created.")
    facts: list[Fact]
    remedies: list[Remedy]


class PlannedBytes(schema.Shape):
    """Bytes of all silos together, if everybody takes part in every round."""

    round_up: int
    round_down: int
    round_dense: int = Field(description="Dense float32, up and down.")
    total_up: int
    total_down: int
    total_dense: int
    once: int = Field(description="The model itself, which every silo fetches when it joins; in none of the others.")
    comparison: str


class PlannedEpsilon(schema.Shape):
    per_round: float | None = Field(description="Null is no guarantee.")
    total: float | None
    meaningful: bool
    meaning: str
    remedy: str
    covers: str


class PlannedRecords(schema.Shape):
    epsilon_at_most: float | None = Field(description="Null: no promise is asked for.")
    delta_at_most: float | None
    meaning: str
    covers: str


class Plan(schema.Shape):
    bytes: PlannedBytes | None = Field(description="Null if it cannot be counted: silos propose 1 to d coordinates.")
    coordinates: PlannedEpsilon | None = Field(description="Null as for the bytes.")
    records: PlannedRecords


def preflight_of(advice: Advice) -> Preflight:
    return Preflight.model_validate(advice.described())


def plan_of(run: RunManifest) -> Plan:
    return Plan(bytes=_bytes(run), coordinates=_coordinates(run), records=_records(run))


def _bytes(run: RunManifest) -> PlannedBytes | None:
    found = plan.traffic(run)
    if found is None:
        return None
    return PlannedBytes(
        round_up=found.round_bytes(found.bits_up),
        round_down=found.round_bytes(found.bits_down),
        round_dense=found.round_bytes(found.dense_bits),
        total_up=found.total_bytes(found.bits_up),
        total_down=found.total_bytes(found.bits_down),
        total_dense=found.total_bytes(found.dense_bits),
        once=plan.model_bytes(run),
        comparison=found.against_dense.sentence,
    )


def _coordinates(run: RunManifest) -> PlannedEpsilon | None:
    found = plan.coordinate_privacy(run)
    if found is None:
        return None
    return PlannedEpsilon(
        per_round=found.epsilon_round,
        total=found.epsilon_total,
        meaningful=found.meaningful,
        meaning=found.meaning,
        remedy=found.remedy,
        covers=privacy.COVERS,
    )


def _records(run: RunManifest) -> PlannedRecords:
    return PlannedRecords(
        epsilon_at_most=run.record_epsilon_at_most,
        delta_at_most=run.delta_at_most,
        meaning=plan.record_meaning(run),
        covers=record_privacy.COVERS,
    )
