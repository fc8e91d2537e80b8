"""The promises of `fedrep_trainers.trainer`, checked on a living trainer. Tests and `fedrep client check` run the same.

Each check trains at most a few rounds on a copy of the state it found, and puts that state back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedrep.record_privacy import SampledGaussian, Stated, TrainingPrivacy
from fedrep_trainers.layout import ModelLayout, Vector
from fedrep_trainers.trainer import PrivateTrainer, Trainer, TrainerState, TrainResult
from fedrep_trainers.user_errors import explained


@dataclass(frozen=True)
class Finding:
    """One line of the operator's table: green or red, and a sentence either way. `cause` is the error of the silo's own code
    that kept a promise from being checked; one cause may keep several."""

    check: str
    passed: bool
    detail: str
    cause: str = ""


class BrokenPromiseError(Exception):
    """What a check raises; becomes the detail of a red finding."""


def require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise BrokenPromiseError(otherwise)


def check_layout(trainer: Trainer) -> str:
    layout = trainer.layout
    require(isinstance(layout, ModelLayout), f"layout is a {type(layout).__name__}, not a ModelLayout")
    require(trainer.layout.digest == layout.digest, "layout changes from call to call")
    return f"{len(layout.parameters)} trainable parameters, {layout.size} values"


def check_initial(trainer: Trainer) -> str:
    first = trainer.initial()
    _require_model(trainer, first, "initial()")
    second = trainer.initial()
    require(np.array_equal(first, second), "initial() gives other values at the second call; seed the initialisation")
    require(not np.shares_memory(first, second), "initial() hands out the same memory twice; return a copy")
    return "float32, finite, the same at every call"


def check_train(trainer: Trainer) -> str:
    model = trainer.initial()
    given = model.copy()
    result = trainer.train(model, 0)
    _require_result(trainer, result)
    require(np.array_equal(model, given), "train() changed the vector it was given; work on a copy")
    require(not np.shares_memory(result.model, model), "train() returned the vector it was given; return a new one")
    require(not np.array_equal(result.model, model), "train() left the model as it was; is the learning rate 0?")
    kept = result.model.copy()
    trainer.train(result.model, 1)
    require(np.array_equal(result.model, kept), "a later train() overwrote an earlier result; return a copy")
    return f"loss {result.loss:.4g} over {result.samples} samples"


def check_read_only_input(trainer: Trainer) -> str:
    model = trainer.initial().copy()
    model.setflags(write=False)
    trainer.train(model, 0)
    trainer.evaluate(model)
    return "takes vectors that it may not write to"


def check_repeatable(trainer: Trainer) -> str:
    before = trainer.state()
    first = _two_rounds(trainer)
    trainer.load_state(before)
    second = _two_rounds(trainer)
    if _promises_noise(_statement(trainer)):
        require(
            not np.array_equal(first, second),
            "training twice from the same state gives the same bits, so what privacy() states is not so; draw fresh noise from "
            "the operating system (`secrets`) at every step, from no seed, and keep none of it in state()",
        )
        return "the same state and model train to other bits: the noise is fresh"
    if np.array_equal(first, second):
        return "the same state and model train to the same bits"
    largest = float(np.max(np.abs(first - second)))
    require(
        np.allclose(first, second, rtol=1e-3, atol=1e-5),
        f"training twice from the same state differs by {largest:.3g}; seed every random choice, and keep everything "
        "that lives from round to round in state()",
    )
    return f"the same state and model train to within {largest:.1g} (not to the same bits, as is usual on a GPU)"


def check_privacy(trainer: Trainer) -> str:
    match _statement(trainer):
        case None:
            return "states nothing: its records have no guarantee"
        case SampledGaussian(noise, rate, steps):
            return f"DP-SGD: {steps} steps a training, noise {noise:g} times the clip norm, records drawn at a rate of {rate:.3g}"
        case Stated(epsilon, delta):
            return f"epsilon {epsilon:g} and delta {delta:g} a training, by its own word"
        case other:
            raise BrokenPromiseError(f"privacy() gives a {type(other).__name__}; return Stated(epsilon, delta), or None")


def check_state(trainer: Trainer) -> str:
    model = trainer.train(trainer.initial(), 0).model
    saved = trainer.state()
    for name, array in saved.items():
        require(isinstance(name, str) and isinstance(array, np.ndarray), f"state entry {name!r} is not a numpy array")
        require(array.dtype != np.dtype(object), f"state entry {name!r} holds Python objects; keep numbers only")
    copies = {name: array.copy() for name, array in saved.items()}
    trainer.train(model, 1)
    require(_same_state(saved, copies), "training changed a state that was handed out before; return copies")
    trainer.load_state(copies)
    require(_same_state(trainer.state(), copies), "load_state() followed by state() gives another state")
    return f"{len(saved)} arrays, restored exactly"


def check_evaluate(trainer: Trainer) -> str:
    model = trainer.train(trainer.initial(), 0).model
    before, given = trainer.state(), model.copy()
    first = trainer.evaluate(model)
    require(bool(np.isfinite(first.loss)), f"evaluate() gives the loss {first.loss}")
    require(first.accuracy is None or 0 <= first.accuracy <= 1, f"accuracy {first.accuracy} is not a fraction in [0, 1]")
    require(first.samples > 0, "evaluate() used no sample")
    odd = [name for name, value in first.metrics.items() if not (isinstance(name, str) and isinstance(value, float))]
    require(not odd, f"evaluate() gives the metric {odd[:1]}; metrics are floats by name")
    require(np.array_equal(model, given), "evaluate() changed the vector it was given")
    require(_same_state(trainer.state(), before), "evaluate() changed the state that training depends on")
    second = trainer.evaluate(model)
    require(bool(np.isclose(first.loss, second.loss, rtol=1e-3)), "evaluate() gives another loss at the second call")
    accuracy = "" if first.accuracy is None else f", accuracy {first.accuracy:.3f}"
    metrics = "".join(f", {name} {value:.4g}" for name, value in first.metrics.items())
    return f"loss {first.loss:.4g}{accuracy}{metrics} over {first.samples} samples"


def check_refusals(trainer: Trainer) -> str:
    model = trainer.initial()
    broken = model.copy()
    broken[-1] = np.nan
    before = trainer.state()
    for what, vector in {"a vector one value short": model[:-1], "a vector with a NaN": broken}.items():
        try:
            trainer.train(vector, 0)
        except Exception:
            require(_same_state(trainer.state(), before), f"train() refused {what}, but changed its state")
        else:
            raise BrokenPromiseError(f"train() accepted {what}; call layout.require_vector(model) first")
    return "a vector of the wrong length or with a NaN is refused"


CHECKS: dict[str, Callable[[Trainer], str]] = {
    "layout": check_layout,
    "initial model": check_initial,
    "training": check_train,
    "read-only input": check_read_only_input,
    "repeatable": check_repeatable,
    "privacy": check_privacy,
    "state": check_state,
    "evaluation": check_evaluate,
    "refusals": check_refusals,
}


def check_trainer(trainer: Trainer, expected: ModelLayout | None = None) -> list[Finding]:
    """Every promise, one finding each; with `expected`, also whether the trainer's model is the run's."""
    findings = [_run(name, check, trainer) for name, check in CHECKS.items()]
    if expected is not None:
        findings.append(check_against_run(trainer, expected))
    return findings


def check_against_run(trainer: Trainer, expected: ModelLayout) -> Finding:
    difference = trainer.layout.difference(expected)
    if difference is None:
        return Finding("model of the run", True, f"all {len(expected.parameters)} parameters agree in name and shape")
    return Finding("model of the run", False, f"{difference}; use the model that the run was created with")


def failures(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if not finding.passed]


def _run(name: str, check: Callable[[Trainer], str], trainer: Trainer) -> Finding:
    try:
        before = {key: np.array(array) for key, array in trainer.state().items()}
    except Exception as error:
        return Finding(name, False, f"state() raised {explained(error)}", explained(error))
    try:
        _statement(trainer)  # a private trainer trains only once it was asked what that costs
        return Finding(name, True, check(trainer))
    except BrokenPromiseError as broken:
        return Finding(name, False, str(broken))
    except Exception as error:
        # User code may raise anything; the operator's table shows it instead of ending.
        return Finding(name, False, f"raised {explained(error)}", explained(error))
    finally:
        _restore(trainer, before)


def _restore(trainer: Trainer, state: TrainerState) -> None:
    try:
        trainer.load_state(state)
    except Exception:
        # A load_state() that fails is what the "state" check reports; here it would only hide that finding.
        return


def _statement(trainer: Trainer) -> TrainingPrivacy | None:
    return trainer.privacy(None) if isinstance(trainer, PrivateTrainer) else None


def _promises_noise(said: TrainingPrivacy | None) -> bool:
    """Epsilon 0 is the exception: what depends on no record needs no noise."""
    return isinstance(said, SampledGaussian) or (isinstance(said, Stated) and said.epsilon > 0.0)


def _two_rounds(trainer: Trainer) -> Vector:
    model = trainer.train(trainer.initial(), 0).model
    return trainer.train(model, 1).model


def _require_model(trainer: Trainer, vector: NDArray[np.generic], source: str) -> None:
    require(isinstance(vector, np.ndarray), f"{source} gives a {type(vector).__name__}, not a numpy array")
    require(vector.dtype == np.float32, f"{source} gives {vector.dtype}, not float32")
    expected = (trainer.layout.size,)
    require(vector.shape == expected, f"{source} has shape {list(vector.shape)}, the layout needs {list(expected)}")
    require(vector.flags.c_contiguous, f"{source} is not contiguous in memory")
    require(bool(np.isfinite(vector).all()), f"{source} has values that are not finite")


def _require_result(trainer: Trainer, result: TrainResult) -> None:
    require(isinstance(result, TrainResult), f"train() returned a {type(result).__name__}, not a TrainResult")
    _require_model(trainer, result.model, "the model from train()")
    require(bool(np.isfinite(result.loss)), f"train() gives the loss {result.loss}")
    require(result.samples > 0, "train() used no sample")


def _same_state(one: TrainerState, other: TrainerState) -> bool:
    return set(one) == set(other) and all(np.array_equal(one[name], other[name], equal_nan=True) for name in one)
