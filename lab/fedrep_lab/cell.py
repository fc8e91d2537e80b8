"""One cell of an experiment: everything that decides its result, and nothing else.

Defaults are the settings of section 5: 32 silos, 7 of them Byzantine, batches of 25, K = 0.05 d, buffers of two, local
momentum SGD with beta = 0.9, the rate multiplied by 0.1 after two thirds of the training.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from fedrep.downlink import DOWNLINK_BITS
from fedrep.errors import SettingsError

PRECISIONS = ("float32", "bfloat16")
JUDGED_ON = ("test", "validation")
SPLITS = ("iid", "dirichlet")


@dataclass(frozen=True)
class Cell:
    task: str = "train"  # or a measurement by name
    method: str = "fedrep"
    method_settings: Mapping[str, Any] = field(default_factory=dict)
    rule: str = "centered_clipping"
    rule_settings: Mapping[str, Any] = field(default_factory=dict)
    pre: tuple[str, ...] = ()
    attack: str = "none"
    attack_settings: Mapping[str, Any] = field(default_factory=dict)
    coordinate_attack: str = "none"
    m: int = 32
    f: int = 7
    s: int = 2
    ratio: float = 0.05  # K / d
    alpha: float = 0.0
    interval: int = 1  # I
    beta: float = 0.9
    rate: float = 0.5
    batch_size: int = 25
    model: str = "small_cnn"
    model_options: Mapping[str, Any] = field(default_factory=dict)
    dataset: str = "fashion_mnist"
    split: str = "iid"
    dirichlet_alpha: float = 1.0
    rounds: int = 600
    epochs: int = 0  # if positive, decides the number of rounds
    decay_after: float = 2 / 3  # of the rounds
    decay: float = 0.1
    ring_bits: int = 0  # 0: real numbers instead of a ring
    initial_range: float = 1.0
    downlink_bits: int = 0  # 0: the update comes back in real numbers
    dropout: float = 0.0  # the chance that an honest silo proposes and then falls silent
    absence: float = 0.0  # the chance that an honest silo does not even propose
    reshuffle_every: int = 1  # rounds of an epoch, which has its own seats; 1 is the paper, 0: one epoch for all
    selection: str = "top_k"  # whose values FedREP sends: top_k is the paper's
    record_epsilon: float = 0.0  # of all rounds together, for one training record; 0: ordinary training
    record_delta: float = 1e-5
    clip_norm: float = 1.0  # C: no record's gradient is longer
    precision: str = "float32"  # of the products while training; bfloat16 rounds their factors
    judged_on: str = "test"  # or validation: images held out of the training ones
    evaluations: int = 20  # over the training, evenly
    evaluation_samples: int = 2000
    seed: int = 0

    def __post_init__(self) -> None:
        problems = [
            text
            for wrong, text in (
                (self.m < 1, f"m is {self.m}; there must be a silo"),
                (not 0 <= self.f < self.m, f"f is {self.f} of m = {self.m} silos; at least one must be honest"),
                (self.s < 1 or self.s > self.m, f"s is {self.s}; a buffer holds between one silo and all m = {self.m}"),
                (self.ratio <= 0, f"ratio, K/d, is {self.ratio}; it must be positive"),
                (not 0 <= self.alpha <= 1, f"alpha is {self.alpha}; it must lie between 0 and 1"),
                (not 0 <= self.beta < 1, f"beta is {self.beta}; it must lie in [0, 1)"),
                (self.rate <= 0, f"rate is {self.rate}; it must be positive"),
                (not 0 <= self.dropout < 1, f"dropout is {self.dropout}; it must lie in [0, 1)"),
                (not 0 <= self.absence < 1, f"absence is {self.absence}; it must lie in [0, 1)"),
                (self.record_epsilon < 0, f"record_epsilon is {self.record_epsilon}; it is positive, or 0 for ordinary training"),
                (self.clip_norm <= 0, f"clip_norm is {self.clip_norm}; it must be positive"),
                (self.downlink_bits not in (0, *DOWNLINK_BITS), f"downlink_bits is {self.downlink_bits}; choose 0, 8, 16 or 32"),
                (self.precision not in PRECISIONS, f"precision is {self.precision!r}; choose from {', '.join(PRECISIONS)}"),
                (self.judged_on not in JUDGED_ON, f"judged_on is {self.judged_on!r}; choose from {', '.join(JUDGED_ON)}"),
                (self.rounds < 1 and self.epochs <= 0, "either rounds or epochs must be positive"),
                (self.interval < 1, f"interval is {self.interval}; there is at least one local step"),
                (self.batch_size < 1, f"batch_size is {self.batch_size}; there is a record in a batch"),
                (self.split not in SPLITS, f"split is {self.split!r}; choose from {', '.join(SPLITS)}"),
                (self.dirichlet_alpha <= 0, f"dirichlet_alpha is {self.dirichlet_alpha}; it must be positive"),
                (not 0 < self.decay <= 1, f"decay is {self.decay}; it must lie in (0, 1]"),
                (self.initial_range <= 0, f"initial_range is {self.initial_range}; it must be positive"),
                (self.reshuffle_every < 0, f"reshuffle_every is {self.reshuffle_every}; it is positive, or 0 for one epoch"),
                (not 0 < self.record_delta < 1, f"record_delta is {self.record_delta}; it must lie between 0 and 1"),
                (self.evaluations < 1, f"evaluations is {self.evaluations}; there must be one"),
                (self.seed < 0, f"seed is {self.seed}; it must not be negative"),
            )
            if wrong
        ]
        if problems:
            raise SettingsError("A cell of this experiment cannot run: " + "; ".join(problems) + ".")

    @property
    def attackers(self) -> int:
        """Silos that really misbehave; f is what the rule is told to expect."""
        return 0 if self.attack == "none" and self.coordinate_attack == "none" else self.f

    @property
    def honest(self) -> int:
        """The first so many silos do what they should; the rest are the attackers."""
        return self.m - self.attackers

    def take_settings(self, names: Collection[str], whose: str) -> None:
        """A setting that nobody would read is refused: the cell would be called what it is not."""
        unknown = sorted(self.method_settings.keys() - set(names))
        if unknown:
            taken = f"it takes {', '.join(names)}" if names else "it takes none"
            raise SettingsError(f"{whose} has no setting {', '.join(unknown)} in method_settings; {taken}.")

    def setting(self, name: str) -> Any:
        """Of the method's settings, one that has no default."""
        if name not in self.method_settings:
            raise SettingsError(f"The task {self.task} needs {name} in method_settings.")
        return self.method_settings[name]

    def per_silo(self, parameters: int) -> int:
        """k = floor(K/m), as in the service, but at least one; K = m d means that everybody proposes everything: SHARE."""
        return min(parameters, max(1, round(self.ratio * parameters) // self.m))

    def key(self) -> str:
        """The same settings give the same name, also when cells have got another setting since, so a finished cell is found."""
        plain = asdict(Cell())
        told = {name: value for name, value in asdict(self).items() if value != plain[name]}
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]

    def plain(self) -> dict[str, Any]:
        return json.loads(json.dumps(asdict(self)))  # type: ignore[no-any-return]  # json.loads is Any


_KINDS = {name: type(value) for name, value in vars(Cell()).items()}
_CALLED = {int: "a whole number", float: "a number", str: "a name", dict: "a table", tuple: "a list of names"}
NAMES = frozenset(_KINDS)


def cell_from(settings: Mapping[str, Any], where: str) -> Cell:
    unknown = sorted(set(settings) - NAMES)
    if unknown:
        raise SettingsError(f"{where} sets {', '.join(unknown)}, which no cell has; a cell has {', '.join(sorted(NAMES))}.")
    return Cell(**{name: _as_kind(name, value, where) for name, value in settings.items()})


def _as_kind(name: str, value: Any, where: str) -> Any:
    """alpha = 1 and 1.0 are the same cell, and so are rounds = 1000 and 1e3."""
    kind = _KINDS[name]
    if kind is float and type(value) in (int, float) and math.isfinite(value):
        return float(value)
    if kind is int and type(value) is float and value.is_integer():
        return int(value)
    if kind is tuple and isinstance(value, list | tuple) and all(isinstance(each, str | Mapping) for each in value):
        return tuple(value)
    if (kind is dict and isinstance(value, Mapping)) or (kind in (int, str) and type(value) is kind):
        return value
    raise SettingsError(f"{where} sets {name} to {value!r}, which is not {_CALLED[kind]}.")
