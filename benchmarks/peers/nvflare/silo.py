"""A silo of NVFlare's simulator: receives the model, trains (see digits.py, which is on the path), sends the model back.

The first silo also notes when each model came, and how accurate it is: from one model to the next is a round.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
import nvflare.client as flare
from nvflare.app_common.np.constants import NPConstants


def main() -> None:
    task, notes = sys.argv[1], Path(sys.argv[2])
    flare.init()
    number = int(flare.get_site_name().rpartition("-")[2]) - 1
    while flare.is_running():
        received = flare.receive()
        if received is None:
            break
        arrived = time.monotonic()
        model = np.asarray(received.params[NPConstants.NUMPY_KEY], np.float32)
        note = {"at": arrived}
        if task == "digits":
            import digits

            note["accuracy"] = digits.accuracy(model)
            learned = digits.train(model, number, int(received.current_round) + 1)
        else:
            learned = model + np.random.default_rng(number).normal(0, 0.01, model.size).astype(np.float32)
        if number == 0:
            with notes.open("a", encoding="utf-8") as file:
                file.write(json.dumps(note) + "\n")
        flare.send(flare.FLModel(params={NPConstants.NUMPY_KEY: learned}, params_type="FULL"))


if __name__ == "__main__":
    main()
