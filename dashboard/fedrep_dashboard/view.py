"""Protobuf from the server into the shapes of the REST interface."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from fedrep import privacy, record_privacy
from fedrep.communication import AgainstDense
from fedrep.wire.v1 import federation_pb2, observer_pb2
from fedrep_dashboard import schema
from fedrep_runtime.waiting_text import away_text, waiting_text

PACE_ROUNDS = 20


def run_of(item: observer_pb2.RunSummary, alerts: int = 0, last_alert: str = "") -> schema.Run:
    return schema.Run(
        name=item.name,
        hash=item.run.hex(),
        state=item.state,
        state_reason=item.state_reason,
        created_at=item.created_at,
        round=item.round,
        rounds_planned=item.rounds_planned,
        rounds_applied=item.rounds_applied,
        rounds_skipped=item.rounds_skipped,
        model_version=item.model_version,
        accuracy=optional(item, "accuracy"),
        best_accuracy=optional(item, "best_accuracy"),
        loss=optional(item, "loss"),
        metrics=dict(item.metrics),
        bytes_up=item.bytes_up,
        bytes_down=item.bytes_down,
        epsilon_total=optional(item, "epsilon_total"),
        epsilon_budget=optional(item, "epsilon_budget"),
        records=schema.RecordTotals(
            epsilon=optional(item.records, "epsilon"),
            delta=optional(item.records, "delta"),
            reporting=item.records.reporting,
            without=item.records.without,
        ),
        silos_present=item.silos_present,
        silos_allowed=item.silos_allowed,
        waiting=schema.Waiting(
            what=item.waiting.what,
            sentence=waiting_text(item.waiting, None),
            until=item.waiting.until or None,
            standing_still=item.waiting.standing_still,
        ),
        aggregator=item.aggregator,
        drills=item.drills,
        tags=list(item.tags),
        alerts=alerts,
        last_alert=last_alert,
    )


def silo_of(item: observer_pb2.SiloStatus) -> schema.Silo:
    return schema.Silo(
        name=item.name,
        state=item.state,
        last_seen=item.last_seen or None,
        software_version=item.software_version,
        bytes_up=item.bytes_up,
        bytes_down=item.bytes_down,
        certificate_expires=item.certificate_expires or None,
        strikes=item.strikes,
        back_in_round=item.back_in_round or None,
        epsilon_total=optional(item, "epsilon_total"),
        epsilon_budget=optional(item, "epsilon_budget"),
        drill=item.drill,
        problem=item.problem,
        reason=away_text(item.reason, item.away_since, None),
        given_up=item.given_up,
        record_epsilon=optional(item, "record_epsilon"),
        record_delta=optional(item, "record_delta"),
        record_budget=optional(item, "record_budget"),
        record_none=item.record_none,
    )


def event_of(item: observer_pb2.Event) -> schema.EventRow:
    return schema.EventRow(
        position=item.position,
        at=item.at,
        kind=item.kind,
        severity=item.severity,
        round=item.round,
        silo=item.silo,
        text=item.text,
    )


def settings_of(manifest: federation_pb2.RunManifest) -> dict[str, Any]:
    return {
        "silos": list(manifest.silos),
        "parameters": manifest.parameters,
        "coordinates": manifest.coordinates,
        "alpha": manifest.alpha,
        "buffer_size": manifest.buffer_size,
        "reshuffle_every": manifest.reshuffle_every,
        "ring_bits": manifest.ring_bits,
        "value_bits": manifest.value_bits,
        "downlink_bits": manifest.downlink_bits,
        "initial_range": manifest.initial_range,
        "smallest_range": manifest.smallest_range,
        "largest_range": manifest.largest_range,
        "quorum": manifest.quorum,
        "min_survivors": manifest.min_survivors,
        "colluders": manifest.colluders,
        "byzantine": manifest.byzantine,
        "aggregator": manifest.aggregator,
        "aggregator_settings": _json_object(manifest.aggregator_settings),
        "rounds": manifest.rounds,
        "deadlines": {
            "propose": manifest.deadlines.propose,
            "submit": manifest.deadlines.submit,
            "confirm": manifest.deadlines.confirm,
            "reveal": manifest.deadlines.reveal,
        },
        "drills": manifest.drills,
        "record_epsilon_at_most": optional(manifest, "record_epsilon_at_most"),
        "delta_at_most": optional(manifest, "delta_at_most"),
    }


def options_of(options: observer_pb2.RunOptions) -> dict[str, Any]:
    return {
        "evaluation_interval": options.evaluation_interval,
        "target_accuracy": options.target_accuracy,
        "epsilon_budget": options.epsilon_budget,
        "keep_models": options.keep_models,
        "best": options.best,
    }


def epsilon_of(run: schema.Run, rows_last: schema.RoundRow | None, option_budget: float) -> schema.Epsilon:
    """The projection assumes that every further round costs what the last one did."""
    budgets = [b for b in (run.epsilon_budget, option_budget) if b]
    budget = min(budgets) if budgets else None
    per_round = rows_last.epsilon if rows_last else None
    total = run.epsilon_total  # absent where a proposal had no guarantee: no sum of the others may stand in for it
    ends = None
    if budget is not None and per_round and total is not None:
        ends = run.round + max(0, int((budget - total) / per_round + 1e-9))
    return schema.Epsilon(
        covers=privacy.COVERS,
        per_round=per_round,
        total=total,
        budget=budget,
        budget_ends_in_round=ends,
        meaningful=privacy.meaningful(total),
    )


def detail_of(
    answer: observer_pb2.GetRunResponse, run: schema.Run, rows: Sequence[schema.RoundRow], last_event: int
) -> schema.RunDetail:
    last_row = rows[-1] if rows else None
    return schema.RunDetail(
        run=run,
        phase=answer.phase,
        open_round=answer.open_round,
        last_event=last_event,
        settings=settings_of(answer.manifest.manifest),
        options=options_of(answer.options),
        models=[
            schema.Model(
                version=m.version,
                hash=m.model_hash.hex(),
                accuracy=optional(m, "accuracy"),
                size=m.size,
                best=m.best,
                score=optional(m, "score"),
            )
            for m in answer.models
        ],
        epsilon=epsilon_of(run, last_row, answer.options.epsilon_budget),
        records=schema.Records(
            covers=record_privacy.COVERS,
            epsilon_at_most=optional(answer.manifest.manifest, "record_epsilon_at_most"),
            delta_at_most=optional(answer.manifest.manifest, "delta_at_most"),
        ),
        traffic=traffic_of(last_row),
        pace=pace_of(run, rows),
        dense_bytes_per_silo_round=answer.dense_bytes_per_silo_round,
        signed_by=answer.manifest.admin,
    )


def traffic_of(last: schema.RoundRow | None) -> schema.TrafficTold:
    if last is None:
        return schema.TrafficTold(sent=0, dense=0, sentence="")
    told = AgainstDense(last.bytes_total, last.dense_total, last.paper_total)
    return schema.TrafficTold(sent=told.sent, dense=told.dense, sentence=told.sentence)


def pace_of(run: schema.Run, rows: Sequence[schema.RoundRow]) -> schema.Pace:
    """Silos come and go, so what is left is reckoned from the latest rounds, not from all."""
    if not rows:
        return schema.Pace(started_at=None, ended_at=None, seconds=None, rounds_per_hour=None, seconds_left=None)
    latest = rows[-PACE_ROUNDS:]
    begun, ended = rows[0].started_at, ended_at(rows[-1])
    span = ended - latest[0].started_at
    rate = (latest[-1].round - latest[0].round + 1) / span if span > 0 else None
    left = (run.rounds_planned - rows[-1].round) / rate if rate is not None and run.state == "running" else None
    return schema.Pace(
        started_at=begun,
        ended_at=ended,
        seconds=ended - begun,
        rounds_per_hour=None if rate is None else 3600 * rate,
        seconds_left=left,
    )


def ended_at(row: schema.RoundRow) -> float:
    return row.started_at + sum(row.phase_seconds)


def optional(message: Any, field: str) -> float | None:
    if not message.HasField(field):
        return None
    value = float(getattr(message, field))
    return value if math.isfinite(value) else None  # JSON has no word for the others


def _json_object(text: str) -> Any:
    try:
        return json.loads(text) if text else {}
    except ValueError:
        return text
