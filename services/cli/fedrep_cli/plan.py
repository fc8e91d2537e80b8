"""`fedrep plan`: what a run's settings will give, before anybody joins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from fedrep import buffers, privacy
from fedrep.protocol import plan
from fedrep.protocol.advice import advise
from fedrep.protocol.manifests import RunManifest
from fedrep.protocol.seats import largest_seat
from fedrep_cli import epsilon, plan_records
from fedrep_cli.epsilon import text
from fedrep_cli.output import JSON_HELP, emit
from fedrep_runtime.run_config import AggregatorConfig, RunConfig
from fedrep_runtime.settings import load_settings

app = typer.Typer(add_completion=False)

_INDENT = " " * 14
# Which model it is makes no difference to the answer; how large it is does.
_ANY_HASH = bytes(32)


def _above_zero(share: float) -> float:
    if share == 0.0:
        raise typer.BadParameter("a run that sends nothing learns nothing; choose a share above 0")
    return share


@app.command("plan")
def plan_run(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option("--config", help="A run file (see fedrep run init); beside it only --d and --records count.")
    ] = None,
    d: Annotated[int, typer.Option("--d", "--parameters", min=1, help="Parameters of the model.")] = 272_474,
    silos: Annotated[int, typer.Option("--silos", "-m", min=2, help="Silos, m.")] = 32,
    density: Annotated[
        float, typer.Option("--density", min=0.0, max=1.0, callback=_above_zero, help="K / d, if K is not given.")
    ] = 0.05,
    coordinates: Annotated[int | None, typer.Option("--K", min=1, help="Coordinates of all silos together.")] = None,
    buffer_size: Annotated[int, typer.Option("--buffer-size", "-s", min=1, help="Silos per buffer, s.")] = 2,
    alpha: Annotated[float, typer.Option("--alpha", min=0.0, max=1.0, help="Obfuscation of proposals.")] = 0.95,
    byzantine: Annotated[int, typer.Option("--byzantine", "-f", min=0, help="Byzantine silos at most, f.")] = 7,
    colluders: Annotated[int | None, typer.Option("--colluders", "-c", min=0, help="Silos that may help the server.")] = None,
    quorum: Annotated[int | None, typer.Option("--quorum", min=1, help="Silos that must propose.")] = None,
    min_survivors: Annotated[int | None, typer.Option("--min-survivors", min=1, help="Survivors to open a buffer.")] = None,
    ring_bits: Annotated[int, typer.Option("--ring-bits", help="B: 8, 16 or 32.")] = 16,
    downlink_bits: Annotated[int, typer.Option("--downlink-bits", help="8, 16 or 32.")] = 16,
    aggregator: Annotated[str | None, typer.Option("--aggregator", help="The rule over buffers.")] = None,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Rounds of the run.")] = 100,
    records: Annotated[
        int | None,
        typer.Option("--records", min=1, help="Training records of a silo: what hiding each of them takes."),
    ] = None,
    batch: Annotated[int, typer.Option("--batch", min=1, help="With --records: how many a step sees on average.")] = 25,
    steps: Annotated[int, typer.Option("--steps", min=1, help="With --records: local steps per round, interval.")] = 1,
    budget: Annotated[float, typer.Option("--epsilon", min=0.0, help="With --records: what a record may cost at most.")] = 8.0,
    delta: Annotated[float, typer.Option("--delta", min=0.0, max=1.0, help="With --records: the delta of that.")] = 1e-5,
    as_json: Annotated[bool, typer.Option("--json", help=JSON_HELP)] = False,
) -> None:
    """Contraction, buffers, slack for dropouts, traffic and privacy of a run. Defaults are the paper's experiment.

    Ends with exit code 1 if such a run would be refused; the reasons are listed.
    """
    about_records = plan_records.RecordsAsked(records, batch, steps, budget, delta)
    about_records.require_sense(given(context))
    if config is not None:
        show(run_of_file(config, context, d), as_json, about_records)
        return
    run = RunConfig(
        name="plan",
        silos=tuple(f"silo-{number:03}" for number in range(silos)),
        rounds=rounds,
        fraction=density if coordinates is None else coordinates / d,
        alpha=alpha,
        buffer_size=buffer_size,
        byzantine_count=byzantine,
        colluders=colluders,
        min_survivors=min_survivors,
        quorum=quorum,
        ring_bits=ring_bits,
        downlink_bits=downlink_bits,
        aggregator=AggregatorConfig(name=aggregator or ("geometric_median" if byzantine else "mean")),
    )
    show(run.manifest(d, _ANY_HASH, _ANY_HASH), as_json, about_records)


def given(context: typer.Context) -> set[str]:
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}


def run_of_file(config: Path, context: typer.Context, d: int) -> RunManifest:
    """The run as its admin wrote it down. Other options would contradict it, and the size of the model is not in it."""
    options = given(context)
    if "d" not in options:
        raise typer.BadParameter("a run file does not say how large the model is: give --d too")
    if others := options - {"config", "d", "as_json", "records"} - set(plan_records.OPTIONS):
        raise typer.BadParameter(f"the run file decides, so leave out what else you gave ({', '.join(sorted(others))})")
    return load_settings(RunConfig, config, "FEDREP_RUN").manifest(d, _ANY_HASH, _ANY_HASH)


def show(run: RunManifest, as_json: bool, about_records: plan_records.RecordsAsked) -> None:
    result = assess(run)
    if about_records.records is not None:
        result["records"] = plan_records.assess(run, about_records)
    emit(result, as_json, render)
    if result["problems"]:
        raise typer.Exit(1)


def assess(run: RunManifest) -> dict[str, Any]:
    return {
        "d": run.parameters,
        "K": run.coordinates,
        "k": plan.per_silo(run),
        "silos": len(run.silos),
        "byzantine": run.byzantine,
        "aggregator": run.aggregator,
        "quorum": run.quorum,
        "rounds": run.rounds,
        "contraction": contraction(run),
        "buffers": buffer_sizes(run),
        "slack": asdict(plan.slack(run)),
        "traffic": traffic(run),
        "privacy": cost(run),
        **advise(run).described(),
    }


def contraction(run: RunManifest) -> dict[str, Any]:
    d_cons = plan.contraction(run)
    if d_cons is None:
        return {"d_cons": None, "memory": None, "sent_fraction": None}
    return {"d_cons": d_cons, "memory": run.parameters / d_cons, "sent_fraction": d_cons / run.parameters}


def buffer_sizes(run: RunManifest) -> dict[str, Any]:
    m = len(run.silos)
    return {
        "count": buffers.number_of_buffers(m, run.buffer_size),
        "sizes": buffers.sizes(m, run.buffer_size),
        "largest": largest_seat(run),
        "value_bits": run.value_bits,
        "ring_bits": run.ring_bits,
    }


def traffic(run: RunManifest) -> dict[str, Any]:
    found = plan.traffic(run)
    if found is None:
        return {"bits_up": None, "bits_down": None, "bits_per_round": None, "against_paper": None, "against_dense": None}
    return {
        "bits_up": found.bits_up,
        "bits_down": found.bits_down,
        "bits_per_round": found.bits,
        "against_paper": found.bits / found.paper_bits,
        "against_dense": found.bits / found.dense_bits,
        "bytes_total": found.total_bytes(found.bits),
        "dense_bytes_total": found.total_bytes(found.dense_bits),
        "comparison": found.against_dense.sentence,
    }


def cost(run: RunManifest) -> dict[str, Any]:
    found = plan.coordinate_privacy(run)
    records = {"records_meaning": plan.record_meaning(run)}
    if found is None:
        return {"alpha": run.alpha, "epsilon_round": None, "epsilon_total": None, "meaningful": False, **records}
    return {
        "alpha": found.alpha,
        "epsilon_round": epsilon.number_or_none(found.epsilon_round),
        "epsilon_theorem2": epsilon.number_or_none(found.epsilon_theorem2),
        "epsilon_total": epsilon.number_or_none(found.epsilon_total),
        "meaningful": found.meaningful,
        "meaning": found.meaning,
        "remedy": found.remedy,
        "covers": privacy.COVERS,
        "alpha_for_meaningful_total": found.alpha_for_meaningful_total,
        **records,
    }


def render(result: Mapping[str, Any]) -> str:
    lines = [
        f"{result['silos']} silos, d = {result['d']:,}, K = {result['K']:,}, k = {result['k']:,} coordinates per silo, "
        f"{result['aggregator']}, a quorum of {result['quorum']}, {result['rounds']:,} rounds",
        *contraction_lines(result["contraction"]),
        *buffer_lines(result["buffers"], result["slack"]),
        *traffic_lines(result["traffic"]),
        *privacy_lines(result["privacy"]),
    ]
    if "records" in result:
        lines += plan_records.lines(result["records"], result["K"], result["d"])
    if result["problems"]:
        lines += ["", "This run would be refused:", *(f"  - {problem}" for problem in result["problems"])]
        lines += ["", f"What to do: {result['conclusion']}."]
    return "\n".join(lines)


def contraction_lines(contraction: Mapping[str, Any]) -> list[str]:
    if contraction["d_cons"] is None:
        return ["contraction   none can be promised with these settings"]
    return [
        f"contraction   a round sends at least {contraction['sent_fraction']:.3%} of an update's squared length "
        f"(d'_cons = {contraction['d_cons']:,.1f}, H = {contraction['memory']:,.1f})"
    ]


def buffer_lines(shape: Mapping[str, Any], slack: Mapping[str, int]) -> list[str]:
    groups = ", ".join(f"{count} of {size}" for size, count in sorted(Counter(shape["sizes"]).items(), reverse=True))
    until = "a round is skipped" if slack["then_skipped"] else "robustness rests on the missing silos being the Byzantine ones"
    return [
        f"buffers       {shape['count']} ({groups}); {shape['value_bits']} bits per value in a ring of {shape['ring_bits']}",
        f"slack         {slack['absent_silos']} silos may be absent, {slack['silent_holders']} may fall silent after proposing, "
        f"{slack['dropouts_per_buffer']} may drop out of a buffer before it is lost; "
        f"{slack['lost_buffers']} buffers may be lost to honest dropouts before {until}",
    ]


def traffic_lines(traffic: Mapping[str, Any]) -> list[str]:
    if traffic["bits_per_round"] is None:
        return ["traffic       cannot be counted: every silo must propose between 1 and d coordinates"]
    return [
        f"traffic       {traffic['bits_per_round']:,} bits per silo and round ({traffic['bits_up']:,} up, "
        f"{traffic['bits_down']:,} down)",
        f"{_INDENT}{traffic['against_paper']:.2f} of the paper's count, "
        f"{traffic['against_dense']:.4f} of dense float32 both ways",
        _indented(
            f"{traffic['bytes_total']:,} bytes over the run, all silos together, {traffic['dense_bytes_total']:,} if dense: "
            f"{traffic['comparison']}"
        ),
    ]


def privacy_lines(cost: Mapping[str, Any]) -> list[str]:
    if cost["epsilon_round"] is None:
        return ["privacy       cannot be counted: every silo must propose between 1 and d coordinates"]
    return [
        f"privacy       epsilon {text(cost['epsilon_round'])} per round, {text(cost['epsilon_total'])} in total "
        f"(alpha = {cost['alpha']:g})",
        _indented(f"{cost['meaning']} {cost['remedy']}".strip()),
        _indented(f"It covers {cost['covers']}."),
        _indented(cost["records_meaning"]),
    ]


def _indented(sentence: str) -> str:
    return f"{_INDENT}{sentence}"
