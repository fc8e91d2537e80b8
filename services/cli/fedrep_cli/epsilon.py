"""`fedrep epsilon`: what proposing coordinates costs in privacy, before a run is started."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from fedrep import privacy
from fedrep_cli.output import JSON_HELP, emit

app = typer.Typer(add_completion=False)


@app.command()
def epsilon(
    d: Annotated[int, typer.Option("--d", help="Parameters of the model.")],
    k: Annotated[int, typer.Option("--k", help="Coordinates one silo proposes per round, floor(K / m).")],
    alpha: Annotated[
        float | None, typer.Option("--alpha", help="Obfuscation, 0 to 1. Without it, the least that meets --budget.")
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Rounds, which add up.")] = 1,
    budget: Annotated[float | None, typer.Option("--budget", help="Largest total epsilon a silo accepts.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help=JSON_HELP)] = False,
) -> None:
    """Epsilon of the coordinates a silo proposes: exact and by the paper's bound, per round and in total."""
    if alpha is None and budget is None:
        raise typer.BadParameter("give --alpha, or --budget to learn the least alpha that meets it")
    if budget is not None and not math.isfinite(budget):
        raise typer.BadParameter(f"--budget must be a number, not {budget}; leave it out for none")
    emit(assess(d, k, alpha, rounds, budget), as_json, render)


def assess(d: int, k: int, alpha: float | None, rounds: int, budget: float | None) -> dict[str, Any]:
    needed = None if budget is None else privacy.alpha_for_budget(d, k, budget, rounds)
    chosen = alpha if alpha is not None else needed
    assert chosen is not None  # the command asked for one of the two
    per_round = privacy.coordinate_epsilon(d, k, chosen)
    total = None if per_round is None else rounds * per_round
    result: dict[str, Any] = {
        "d": d,
        "k": k,
        "alpha": chosen,
        "rounds": rounds,
        "epsilon_round": number_or_none(per_round),
        "epsilon_theorem2": number_or_none(privacy.theorem2_epsilon(d, k, chosen)),
        "epsilon_total": number_or_none(total),
        "meaningful": privacy.meaningful(total),
        "covers": privacy.COVERS,
    }
    if chosen >= 0.5:
        result["epsilon_high_alpha"] = privacy.high_alpha_epsilon(d, k, chosen)
    if budget is not None:
        result["budget"] = budget
        result["alpha_for_budget"] = needed
        result["within_budget"] = total is not None and total <= budget
        result["rounds_within_budget"] = rounds_within(per_round, budget)
    return result


def number_or_none(epsilon: float | None) -> float | str:
    """No guarantee is the word "none" in JSON too: a null is easily read as zero."""
    return "none" if epsilon is None else epsilon


def rounds_within(per_round: float | None, budget: float) -> int | str:
    if per_round is None:
        return 0
    if per_round == 0.0:
        return "any number"
    rounds = int(budget / per_round)
    return rounds if rounds * per_round <= budget else rounds - 1


def render(result: Mapping[str, Any]) -> str:
    exact, bound = result["epsilon_round"], result["epsilon_theorem2"]
    lines = [
        f"Proposing k = {result['k']:,} of d = {result['d']:,} coordinates with alpha = {result['alpha']}",
        f"  per round, exact      {text(exact):>12}",
        f"  Theorem 2 promises    {text(bound):>12}{theorem_remark(exact, bound)}",
        f"  total, rounds: {result['rounds']:<6,} {text(result['epsilon_total']):>12}",
        f"It covers {result['covers']}.",
    ]
    if exact == "none":
        lines.append("With alpha = 0 there is no guarantee: a proposal is the top-k set itself.")
    elif not result["meaningful"]:
        lines.append(f"A total above {privacy.TOO_LARGE_TO_MEAN_MUCH:g} is too large to mean much.")
    if "budget" in result:
        verdict = "within" if result["within_budget"] else "over"
        lasts = result["rounds_within_budget"]
        lines.append(
            f"That is {verdict} the budget of {result['budget']:g}. With this alpha it lasts for "
            f"{lasts if isinstance(lasts, int) else 'any number of'} rounds; to last for {result['rounds']:,} it needs "
            f"alpha >= {result['alpha_for_budget']!r}."
        )
    return "\n".join(lines)


def text(epsilon: float | str) -> str:
    return epsilon if isinstance(epsilon, str) else privacy.shown(epsilon)


def theorem_remark(exact: float | str, bound: float | str) -> str:
    if isinstance(exact, float) and isinstance(bound, float) and exact > bound:
        return "  (too small: the theorem fails for k = 1 and this alpha)"
    return ""
