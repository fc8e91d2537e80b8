"""The peer's side of `benchmarks.secagg`: runs inside flwr's own environment and times flwr's own SecAgg+ functions.

Reads one request per line (`{"case": ..., "d": ..., ...}`), does the work once, answers with one line of JSON. The calls follow
the order of flwr's client mod and server workflow, less what is not asked about there (weighting, share decryption).
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import numpy as np
from flwr.client.mod.secure_aggregation.secaggplus_mod import secaggplus_mod
from flwr.common import bytes_to_ndarray, ndarray_to_bytes, ndarrays_to_parameters
from flwr.common.secure_aggregation.crypto.shamir import combine_shares, create_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import generate_shared_key
from flwr.common.secure_aggregation.ndarrays_arithmetic import (
    factor_combine,
    factor_extract,
    get_parameters_shape,
    parameters_addition,
    parameters_mod,
    parameters_subtraction,
)
from flwr.common.secure_aggregation.quantization import dequantize, quantize
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
from flwr.supercore.primitives.asymmetric import (
    bytes_to_private_key,
    bytes_to_public_key,
    generate_key_pairs,
    private_key_to_bytes,
    public_key_to_bytes,
)

# flwr's defaults.
CLIP, TARGET, MODULUS = 8.0, 1 << 22, 1 << 32


class Pair:
    def __init__(self) -> None:
        secret, public = generate_key_pairs()
        self.secret, self.public = private_key_to_bytes(secret), public_key_to_bytes(public)


PAIRS = [Pair() for _ in range(17)]


@cache
def update(d: int) -> Any:
    return np.random.default_rng(d).normal(0, 0.01, d).astype(np.float32)


def pair_key(own: int, mate: int) -> Any:
    return generate_shared_key(bytes_to_private_key(PAIRS[own].secret), bytes_to_public_key(PAIRS[mate].public))


@cache
def agreed(mates: int) -> list[bytes]:
    return agree(mates)


def agree(mates: int) -> list[bytes]:
    return [pair_key(0, mate) for mate in range(1, mates + 1)]


def client(d: int, mates: int) -> list[bytes]:
    vector = factor_combine(1, quantize([update(d)], CLIP, TARGET))
    shapes = get_parameters_shape(vector)
    vector = parameters_addition(vector, pseudo_rand_gen(b"s" * 32, MODULUS, shapes))
    for mate, key in enumerate(agreed(mates)):
        add = parameters_addition if mate % 2 else parameters_subtraction
        vector = add(vector, pseudo_rand_gen(key, MODULUS, shapes))
    return [ndarray_to_bytes(part) for part in parameters_mod(vector, MODULUS)]


@cache
def masked_sum(d: int) -> list[Any]:
    return [bytes_to_ndarray(part) for part in client(d, 1)]


def server(d: int, s: int, dropped: int) -> Any:
    vector = masked_sum(d)
    shapes = get_parameters_shape(vector)
    survivors = range(dropped, s)
    for silo in survivors:
        vector = parameters_subtraction(vector, pseudo_rand_gen(bytes([silo]) * 32, MODULUS, shapes))
    for lost in range(dropped):
        for silo in survivors:
            vector = parameters_addition(vector, pseudo_rand_gen(pair_key(lost, silo), MODULUS, shapes))
    _, opened = factor_extract(parameters_mod(vector, MODULUS))
    mean = dequantize(opened, CLIP, TARGET)
    for part in mean:
        part += -(len(survivors) - 1) * CLIP
        part *= 1 / len(survivors)
    return mean


@cache
def shares(holders: int, threshold: int) -> Any:
    return create_shares(b"k" * 32, threshold, holders)


def shamir_create(holders: int, threshold: int) -> Any:
    return create_shares(os.urandom(32), threshold, holders)


def shamir_combine(holders: int, threshold: int) -> Any:
    return combine_shares(shares(holders, threshold)[:threshold])


def prepare(case: str, arguments: dict[str, int]) -> None:
    """What is there before the clock starts: keys, updates, sums and shares."""
    if case == "client":
        agreed(arguments["mates"])
    if "d" in arguments:
        update(arguments["d"])
    if case == "server":
        masked_sum(arguments["d"])
    if case == "shamir_combine":
        shares(**arguments)


def federation(d: int, silos: int, shares: int, threshold: int) -> Callable[[], dict[str, Any]]:
    """A whole SecAgg+ round of flwr's workflow and client mod in this process, without network, engine or training."""
    from flwr.app import ConfigRecord, Context, Message, RecordDict
    from flwr.common import Code, FitRes, Status
    from flwr.compat.common import recorddict_compat as compat
    from flwr.server.client_manager import SimpleClientManager
    from flwr.server.compat.grid_client_proxy import GridClientProxy
    from flwr.server.compat.legacy_context import LegacyContext
    from flwr.server.strategy import FedAvg
    from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key
    from flwr.server.workflow.secure_aggregation.secaggplus_workflow import SecAggPlusWorkflow
    from flwr.serverapp.grid import Grid
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 1
    updates = [np.random.default_rng(silo).normal(0, 0.01, d).astype(np.float32) for silo in range(silos)]

    def payload(record: Any) -> int:
        """Array and configuration bytes, without flwr's envelope."""
        total = sum(len(array.data) for arrays in record.array_records.values() for array in arrays.values())
        for values in record.config_records.values():
            for value in values.values():
                items = value if isinstance(value, list) else [value]
                total += sum(len(item) if isinstance(item, bytes) else 8 for item in items)
        return total

    class InProcess(Grid):  # type: ignore[misc]
        def __init__(self) -> None:
            self.contexts = {
                silo + 1: Context(run_id=1, node_id=silo + 1, node_config={}, state=RecordDict(), run_config={})
                for silo in range(silos)
            }
            self.up = self.down = 0

        def send_and_receive(self, messages: Iterable[Any], **_: Any) -> list[Any]:
            return [self.answer(message) for message in messages]

        def answer(self, message: Any) -> Any:
            self.down += payload(message.content)
            node = message.metadata.dst_node_id
            # The workflow sends one object to all; the mod consumes what it gets, so each silo needs its own as on a network.
            settings = {name: ConfigRecord(dict(values)) for name, values in message.content.config_records.items()}
            arrays, metrics = message.content.array_records, message.content.metric_records
            message.content = RecordDict({**arrays, **metrics, **settings})

            def train(incoming: Any, _: Any) -> Any:
                result = FitRes(Status(Code.OK, ""), ndarrays_to_parameters([updates[node - 1]]), 1000, {})
                return Message(compat.fitres_to_recorddict(result, keep_input=False), reply_to=incoming)

            reply = secaggplus_mod(message, self.contexts[node], train)
            self.up += payload(reply.content)
            return reply

        def set_run(self, run: Any) -> None: ...

        @property
        def run(self) -> Any: ...

        def create_message(self, *_: Any, **__: Any) -> Any: ...

        def get_node_ids(self) -> list[int]:
            return list(self.contexts)

        def push_messages(self, _: Iterable[Any]) -> list[str]:
            return []

        def pull_messages(self, _: Iterable[str]) -> list[Any]:
            return []

    def play() -> dict[str, Any]:
        grid, manager = InProcess(), SimpleClientManager()
        for node in grid.contexts:
            manager.register(GridClientProxy(node, grid, 1))
        strategy = FedAvg(fraction_fit=1.0, min_fit_clients=silos, min_available_clients=silos)
        blank = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config={})
        context = LegacyContext(blank, strategy=strategy, client_manager=manager)
        start = ndarrays_to_parameters([np.zeros(d, dtype=np.float32)])
        context.state.array_records[MAIN_PARAMS_RECORD] = compat.parameters_to_arrayrecord(start, True)
        context.state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord({Key.CURRENT_ROUND: 1})
        begun = time.process_time()
        SecAggPlusWorkflow(shares, threshold)(grid, context)
        spent = time.process_time() - begun
        result = next(iter(context.state.array_records[MAIN_PARAMS_RECORD].values())).numpy()
        error = float(np.abs(result - np.mean(updates, axis=0)).max())
        return {"ms": 1e3 * spent, "up": grid.up // silos, "down": grid.down // silos, "error": error}

    return play


CASES: dict[str, Callable[..., Any]] = {
    "agree": agree,
    "client": client,
    "server": server,
    "shamir_create": shamir_create,
    "shamir_combine": shamir_combine,
}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    case = request.pop("case")
    if case == "round":
        return federation(**request)()
    prepare(case, request)
    begun = time.process_time()
    CASES[case](**request)
    return {"ms": 1e3 * (time.process_time() - begun)}


def main() -> None:
    logging.disable(logging.WARNING)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
