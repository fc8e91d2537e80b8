"""The benchmark's task as a Flower app, for its simulation and its deployment engine alike. Runs in Flower's environment.

`task` is "idle" (silos that send a fixed vector: a round is the engine's own cost) or "digits" (see digits.py, which is on the
path). The server writes when each round ended, and the accuracy then, to `output`. As a program it simulates:
`flower_app.py '{"task": "digits", ...}'`.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import Context, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg, Krum
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import ServerApp

CLIP = 8.0  # Flower's default range of a value under SecAgg+


def masked_if_asked(message: Any, context: Any, following: Any) -> Any:
    """Flower's own mod where the round is one of SecAgg+; it refuses any other."""
    if RECORD_KEY_CONFIGS in message.content.config_records:
        return secaggplus_mod(message, context, following)
    return following(message, context)


class Silo(NumPyClient):  # type: ignore[misc]
    def __init__(self, number: int) -> None:
        self._number = number

    def fit(self, parameters: Any, config: Any) -> Any:
        if config["task"] == "digits":
            import digits

            return [digits.train(parameters[0], self._number, int(config["round"]))], 1, {}
        update = np.random.default_rng(self._number).normal(0, 0.01, parameters[0].size).astype(np.float32)
        return [parameters[0] + update], 1, {}


def client_fn(context: Any) -> Any:
    return Silo(int(context.node_config["partition-id"])).to_client()


client = ClientApp(client_fn=client_fn, mods=[masked_if_asked])
server = ServerApp()
SIMULATED: dict[str, Any] = {}


@server.main()  # type: ignore[untyped-decorator]
def main(grid: Any, context: Context) -> None:
    settings = SIMULATED or dict(context.run_config)
    silos, task = int(settings["silos"]), str(settings["task"])
    moments: list[float] = []
    accuracies: list[float] = []

    def ended(_: int, arrays: Any, __: Any) -> Any:
        moments.append(time.perf_counter())
        if task == "digits":
            import digits

            accuracies.append(digits.accuracy(arrays[0]))
        return 0.0, {}

    if task == "digits":
        import digits

        start = digits.initial()
    else:
        start = np.zeros(int(settings["parameters"]), np.float32)
    options: dict[str, Any] = {
        "fraction_fit": 1.0,
        "fraction_evaluate": 0.0,
        "min_fit_clients": silos,
        "min_available_clients": silos,
        "initial_parameters": ndarrays_to_parameters([start]),
        "evaluate_fn": ended,
        "on_fit_config_fn": lambda number: {"task": task, "round": number},
    }
    strategy = Krum(num_malicious_clients=2, **options) if settings["rule"] == "krum" else FedAvg(**options)
    # Neighbourhoods of 7 shares of which 5 suffice, as the paper's buffers are small groups; of fewer silos, all of them.
    fit = SecAggPlusWorkflow(min(7, silos), 5, clipping_range=CLIP) if settings["secagg"] else None
    legacy = LegacyContext(context=context, config=ServerConfig(num_rounds=int(settings["rounds"])), strategy=strategy)
    grid_ready(grid, silos)
    DefaultWorkflow(fit_workflow=fit)(grid, legacy)
    last = parameters_to_ndarrays(_parameters(legacy))[0]
    result = {"seconds": list(np.diff(moments)), "accuracies": accuracies, "moved": float(np.abs(last - start).max())}
    Path(settings["output"]).write_text(json.dumps(result), encoding="utf-8")


def grid_ready(grid: Any, silos: int) -> None:
    """No round begins before everybody is there: starting is not what is measured."""
    while len(list(grid.get_node_ids())) < silos:
        time.sleep(0.1)


def _parameters(context: Any) -> Any:
    from flwr.compat.common import recorddict_compat as compat
    from flwr.server.workflow.constant import MAIN_PARAMS_RECORD

    return compat.arrayrecord_to_parameters(context.state.array_records[MAIN_PARAMS_RECORD], keep_input=True)


if __name__ == "__main__":
    from flwr.simulation import run_simulation

    SIMULATED.update(json.loads(sys.argv[1]))
    resources = {"init_args": {"_node_ip_address": "127.0.0.1"}, "client_resources": {"num_cpus": 1}}
    run_simulation(server, client, int(SIMULATED["silos"]), backend_config=resources)
