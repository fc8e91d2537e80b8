"""The benchmark's task as a job of NVFlare, played by its simulator: `nvflare_job.py SETTINGS`. Runs in NVFlare's environment.

NVFlare's own FedAvg, with its streaming aggregation, over numpy models.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
from nvflare.recipe.sim_env import SimEnv


def main() -> None:
    settings = json.loads(sys.argv[1])
    output, task, silos = Path(settings["output"]), settings["task"], int(settings["silos"])
    if task == "digits":
        import digits

        start = digits.initial()
    else:
        start = np.zeros(int(settings["parameters"]), np.float32)
    checkpoint, notes = output.with_suffix(".npy"), output.with_suffix(".notes")
    np.save(checkpoint, start)
    notes.unlink(missing_ok=True)
    recipe = NumpyFedAvgRecipe(
        name="peer",
        initial_ckpt=str(checkpoint),
        min_clients=silos,
        num_rounds=int(settings["rounds"]),
        train_script=str(Path(__file__).with_name("silo.py")),
        train_args=f"{task} {notes}",
    )
    recipe.execute(SimEnv(num_clients=silos, num_threads=silos, workspace_root=str(output.parent), log_config="concise"))
    noted = [json.loads(line) for line in notes.read_text(encoding="utf-8").splitlines()]
    last = np.load(next(output.parent.rglob("server.npy")))
    accuracies = [note["accuracy"] for note in noted if "accuracy" in note]
    if task == "digits":
        accuracies.append(digits.accuracy(last))
    seconds = list(np.diff([note["at"] for note in noted]))
    result = {"seconds": seconds, "accuracies": accuracies, "moved": float(np.abs(last - start).max())}
    output.write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
