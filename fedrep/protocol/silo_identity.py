"""Who a silo is and how it means to behave, as its machine is told: keys, policy, ledgers, randomness, a drill."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedrep.privacy import Ledger
from fedrep.protocol.manifests import RecordPromise, RunManifest, SiloName
from fedrep.protocol.silo_rules import Policy
from fedrep.protocol.silo_trust import Trust
from fedrep.secagg.draws import Draws
from fedrep.secagg.keys import Entropy, SigningKey


class Ledgers(Protocol):
    """What proposals from this silo's data set have cost, run by run: kept outside any run's state, and never forgotten."""

    def of(self, run: str, /) -> Ledger: ...
    def elsewhere(self, run: str, /) -> float | None:
        """In all other runs; None if one of them had no guarantee."""
        ...


class Drill(Protocol):
    """An attack that this silo plays on purpose, in runs that allow it; `attack` is empty for none."""

    @property
    def attack(self) -> str: ...
    def check(self, run: RunManifest) -> None: ...
    def share(self, run: RunManifest, round_number: int, g: NDArray[np.float32]) -> None:
        """Before g is proposed: so whoever is in the consensus has told the other attackers."""
        ...

    def of_update(self, run: RunManifest, round_number: int, g: NDArray[np.float32]) -> NDArray[np.float32]: ...


@dataclass(frozen=True, slots=True)
class Randomness:
    """Secrets, lots for decoys, and a fresh generator for rounding. Neither of the first two may be predictable: whoever can tell
    a proposal's decoys has what epsilon is about."""

    secrets: Entropy
    decoys: Callable[[], Draws | np.random.Generator]
    rounding: Callable[[], np.random.Generator]


@dataclass(frozen=True, slots=True)
class SiloIdentity:
    """Who this silo is. The key is asked for at every announcement: it may have been replaced meanwhile.

    `promise` is what its settings keep about its training records.
    With `public_start`, the model before any training, this silo proposes what anybody can work out (`public_coordinates`),
    and keeps no error memory: the noise of its training would pile up there. `room` is asked where the next g may be put; whoever
    offers some must not need it before that g is settled. With `in_place` a model takes the memory of the one before it, while no
    training reads that.
    """

    name: SiloName
    signing_key: Callable[[], SigningKey]
    trust: Trust
    policy: Policy
    drill: Drill
    ledgers: Ledgers
    randomness: Randomness
    promise: RecordPromise | None = None
    public_start: NDArray[np.float32] | None = field(default=None, repr=False)
    room: Callable[[], NDArray[np.float32] | None] = lambda: None
    in_place: bool = False


@dataclass(frozen=True, slots=True)
class Conduct:
    """What the operator settled about this silo's behaviour, apart from the policy."""

    run_name: str
    training_failures: int = 5
    give_up_after: float = 86400.0
