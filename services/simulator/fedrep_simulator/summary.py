"""What came of a simulation, put together from the rounds and written; first without, then with what it is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedrep.privacy import COVERS
from fedrep.record_privacy import COVERS as RECORD_COVERS
from fedrep_simulator import deployment
from fedrep_simulator.engines import Engine
from fedrep_simulator.folder import Row, told, write_result
from fedrep_simulator.models import state_dict, write_model
from fedrep_simulator.results import SimulationResult, best, last
from fedrep_simulator.simulation import Simulation
from fedrep_simulator.terms import Terms


def figures(terms: Terms, rows: list[Row]) -> dict[str, Any]:
    return {
        "run": terms.run.name,
        "aggregator": terms.run.aggregator.name,
        "accuracy": last(rows, "accuracy"),
        "best_accuracy": best(rows, "accuracy"),
        "loss": last(rows, "loss"),
        "rounds_applied": sum(row["outcome"] == "applied" for row in rows),
        "rounds_skipped": sum(row["outcome"] != "applied" for row in rows),
    }


def own_result(engine_name: str, engine: Engine, main: Simulation, notes: Sequence[str], out: Path | None) -> SimulationResult:
    """Of the rounds alone, written before anything is compared with them: that takes long, and may fail."""
    terms, rows = main.terms, told(main.rows)
    arrays, note = state_dict(engine, main.model)
    traffic = main.sitting.traffic.values()
    summary: dict[str, Any] = {
        **figures(terms, rows),
        "ended": main.ended,
        "silos": len(terms.run.silos),
        "byzantine": terms.byzantine,
        "attack": terms.attack.name,
        "engine": engine_name,
        "cryptography": not terms.fast,
        "parameters": engine.layout.size,
        "central_accuracy": None,
        "mean_accuracy": None,
        "bytes_up_per_silo": _mean([up for up, _ in traffic]),
        "bytes_down_per_silo": _mean([down for _, down in traffic]),
        "bytes_are": "reckoned" if terms.fast else "counted",
        "epsilon_total": rows[-1]["epsilon"],
        "epsilon_covers": COVERS,
        **_record_figures(terms, rows),
        "notes": [*notes, *([note] if note else [])],
    }
    if out is not None:
        write_model(out, engine, arrays)
        deployment.write_files(out, terms)
        summary["folder"] = str(out)
    summary["deploy"] = [{"where": where, "commands": lines} for where, lines in deployment.commands(terms, out)]
    return written(SimulationResult(rows, arrays, summary, folder=out))


def compared(result: SimulationResult, central: Row | None, note: str, other: SimulationResult | None) -> SimulationResult:
    """`note` says why there is no central model, if there should be one."""
    summary = result.summary | {
        "central_accuracy": central.get("accuracy") if central is not None else None,
        "mean_accuracy": other.accuracy if other is not None else None,
        "notes": [*result.summary["notes"], *([note] if note else [])],
    }
    return written(replace(result, summary=summary, central=central, comparison=other))


def written(result: SimulationResult) -> SimulationResult:
    if result.folder is not None:
        comparison = result.comparison.summary if result.comparison is not None else None
        write_result(result.folder, result.summary | {"comparison": comparison, "central": result.central})
    return result


def _record_figures(terms: Terms, rows: list[Row]) -> dict[str, Any]:
    """Only where the silos keep a budget for their records."""
    budget = terms.trainer.privacy
    if budget is None:
        return {}
    return {
        "record_epsilon": rows[-1]["record_epsilon"],
        "record_delta": budget.delta,
        "record_budget": budget.epsilon,
        "record_covers": RECORD_COVERS,
    }


def _mean(values: list[int]) -> int:
    return round(sum(values) / len(values)) if values else 0
