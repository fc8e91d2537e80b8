"""One side of the aggregator benchmark, as a process of its own: `python aggregators_worker.py fedrep|byzfl`.

Reads one JSON command per line and answers with one JSON line. Runs under either interpreter, so it imports neither side
before it is told which one it is.
"""

import json
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

Run = Callable[[], Any]

KEPT: list[Any] = []  # a torch library's declarations end with the object


def fedrep_rule(name: str, f: int, vectors: Any) -> Run:
    rules = import_module("fedrep.aggregators").AGGREGATORS
    pre, _, rule = name.rpartition("+")
    settings: dict[str, Any] = {"pre": pre.split("+") if pre else ()}
    n = len(vectors)
    if rule == "geometric_median":
        settings |= {"smoothing": 0.1, "iterations": 5, "start": "zero"}
    if rule == "centered_clipping":
        settings |= {"radius": 0.5, "iterations": 5, "start": "zero"}
    if rule == "multi_krum":
        settings |= {"selected": n - f - 1}
    return lambda: rules[rule](vectors, byzantine_count=f, **settings).vector


def byzfl_rule(name: str, f: int, vectors: Any) -> Run:
    byzfl = import_byzfl()
    rules = {
        "mean": lambda: byzfl.Average(),
        "median": lambda: byzfl.Median(),
        "trimmed_mean": lambda: byzfl.TrMean(f),
        "geometric_median": lambda: byzfl.GeometricMedian(nu=0.1, T=5),
        "centered_clipping": lambda: byzfl.CenteredClipping(L=5, tau=0.5),
        "krum": lambda: byzfl.Krum(f + 1),  # its Krum counts n - f - 1 neighbours, the paper's n - f - 2
        "multi_krum": lambda: byzfl.MultiKrum(f + 1),
        "meamed": lambda: byzfl.Meamed(f),
    }
    pre_steps = {"nnm": lambda: byzfl.NNM(f), "arc": lambda: byzfl.ARC(f)}
    *pre, rule = name.split("+")

    def run() -> Any:
        rows = vectors
        for step in pre:
            # its ARC overwrites the input
            rows = pre_steps[step]()(rows.copy() if step == "arc" and isinstance(rows, np.ndarray) else rows)
        return rules[rule]()(rows)

    return run


def import_byzfl() -> Any:
    """byzfl imports torchvision, whose compiled operators are missing where only the CPU wheel of torch is at hand.

    None of them is used here, so declaring the two it asks for is enough.
    """
    try:
        return import_module("byzfl")
    except RuntimeError as error:
        if "operator torchvision::nms does not exist" not in str(error):
            raise
    library = import_module("torch").library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    KEPT.append(library)
    for module in [name for name in sys.modules if name.split(".")[0] in ("torchvision", "byzfl")]:
        del sys.modules[module]
    return import_module("byzfl")


def resident(field: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    return 0


def peak_extra(run: Run, d: int) -> int:
    """Bytes beyond the input and the resulting vector at the worst moment of one run."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = resident("VmRSS")
    run()
    return max(0, resident("VmHWM") - before - 4 * d)


def main() -> None:
    build = {"fedrep": fedrep_rule, "byzfl": byzfl_rule}[sys.argv[1]]
    arrays: dict[str, Any] = {}
    for line in sys.stdin:
        command = json.loads(line)
        answer: dict[str, Any] = {}
        try:
            if command["do"] == "load":
                arrays = {"numpy": np.load(command["path"])}
                if sys.argv[1] == "byzfl":
                    arrays["torch"] = import_module("torch").from_numpy(arrays["numpy"])
            else:
                vectors = arrays[command["path"]]
                run = build(command["rule"], command["f"], vectors)
                if command["do"] == "time":
                    started, busy = time.perf_counter(), time.process_time()
                    run()
                    answer["seconds"] = time.perf_counter() - started
                    answer["cpu_seconds"] = time.process_time() - busy
                elif command["do"] == "memory":
                    answer["bytes"] = peak_extra(run, vectors.shape[1])
                elif command["do"] == "save":
                    np.save(command["to"], np.asarray(run(), dtype=np.float32))
        except Exception as error:  # reported to the other side, which prints it as the result
            answer["error"] = f"{type(error).__name__}: {error}"
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
