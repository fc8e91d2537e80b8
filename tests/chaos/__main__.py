"""`python -m tests.chaos`: break a real federation at random, and check that nothing is lost, counted twice or revealed."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
import tempfile
from pathlib import Path

from benchmarks.machine import save
from fedrep_cli.processes import orderly_end
from tests.chaos.drill import Drill, table
from tests.chaos.plan import Plan, make_plan
from tests.chaos.stage import SILOS, Stage


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, help="of the plan; drawn and shown if absent")
    parser.add_argument("--faults", type=int, default=520)
    parser.add_argument("--pause", type=float, default=1.2, help="seconds between faults, on average")
    parser.add_argument("--replay", type=Path, help="play this plan, which an earlier drill has saved")
    parser.add_argument("--plan", type=Path, help="save the plan here (always saved in the drill's folder)")
    parser.add_argument("--folder", type=Path, help="keep logs, traces and plan here; else they go unless a check fails")
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else secrets.randbits(32)
    names = [f"silo-{number}" for number in range(SILOS)]
    plan = Plan.load(options.replay) if options.replay else make_plan(seed, options.faults, names, options.pause)
    folder = options.folder or Path(tempfile.mkdtemp(prefix="fedrep-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    saved = options.plan or folder / "plan.json"
    plan.save(saved)
    print(f"seed {plan.seed}, {len(plan.faults)} faults; the plan is in {saved}: play it again with --replay", flush=True)
    print("\n".join(plan.lines()), flush=True)
    stage = Stage(folder / "federation")
    with orderly_end():
        result = asyncio.run(Drill(stage, plan, lambda text: print(text, flush=True)).play())
    print("\n".join(["", *table(result)]))
    if options.json:
        save(options.json, result)
    if result["problems"]:
        print(f"logs and traces are in {folder}", file=sys.stderr)
        return 1
    if options.folder is None:
        stage.clean()
    return 0


if __name__ == "__main__":
    sys.exit(main())
