"""What a silo brings to the federation: one object that turns a flat float32 vector into a trained one.

The daemon knows nothing of PyTorch. It hands the run's model to `train`, sends (masked, sparsified) what changed, and
saves `state` in the same atomic write as the residual. Anything with these members is a trainer; a complete one that
needs only numpy, for least squares on local data:

    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from fedrep_trainers import Evaluation, ModelLayout, TrainResult

    Vector = NDArray[np.float32]


    class LeastSquares:
        def __init__(self, inputs: Vector, targets: Vector) -> None:
            self._inputs, self._targets = inputs, targets
            self.layout = ModelLayout.of([("weight", (inputs.shape[1],))])

        def initial(self) -> Vector:
            return np.zeros(self.layout.size, dtype=np.float32)

        def train(self, model: Vector, round_number: int) -> TrainResult:
            self.layout.require_vector(model)
            error = self._inputs @ model - self._targets
            trained = model - np.float32(0.1) * (self._inputs.T @ error) / len(error)
            return TrainResult(model=trained, loss=float(np.mean(error**2)), samples=len(error))

        def evaluate(self, model: Vector) -> Evaluation:
            error = self._inputs @ model - self._targets
            return Evaluation(loss=float(np.mean(error**2)), accuracy=None, samples=len(error))

        def state(self) -> Mapping[str, NDArray[np.generic]]:
            return {}

        def load_state(self, state: Mapping[str, NDArray[np.generic]]) -> None:
            pass

`check_trainer`, also from `fedrep_trainers`, checks all of the promises below; `fedrep client check` runs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedrep.record_privacy import Budget, RecordLedger, TrainingPrivacy
from fedrep_trainers.layout import ModelLayout, Vector

TrainerState = Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True)
class TrainResult:
    """`model` is the silo's own model after local training, w_k^{t+1}; the daemon subtracts."""

    model: Vector
    loss: float
    samples: int


@dataclass(frozen=True)
class Evaluation:
    """`accuracy` is a fraction in [0, 1], or None where the task has no such thing; `metrics` are figures of your own by name."""

    loss: float
    accuracy: float | None
    samples: int
    metrics: Mapping[str, float] = field(default_factory=dict)


class Trainer(Protocol):
    @property
    def layout(self) -> ModelLayout:
        """The trainable parameters in the order of the vector; compared with the run's before anything is trained."""
        ...

    def initial(self) -> Vector:
        """The parameters before any training; the same at every call and on every silo with the same settings."""
        ...

    def train(self, model: Vector, round_number: int) -> TrainResult:
        """Train locally from `model`, which is left as it is.

        A function of the model, the round number, the state and the settings alone, so a restarted silo goes on as if
        it had never stopped; what a private trainer draws at random is the exception. When it raises, the state is what
        it was before.
        """
        ...

    def evaluate(self, model: Vector) -> Evaluation:
        """Loss and accuracy on this silo's evaluation data; changes no state."""
        ...

    def state(self) -> TrainerState:
        """Copies of everything that lives from round to round: momentum, batch-norm statistics, sample position."""
        ...

    def load_state(self, state: TrainerState) -> None:
        """Take back what `state` returned, perhaps in another process."""
        ...


@runtime_checkable
class ModelExporter(Protocol):
    """A trainer that can also write out a model complete with what the vector leaves out."""

    def export(self, model: Vector) -> dict[str, NDArray[np.generic]]:
        """Every tensor of a usable model by name, batch-norm statistics included, or an error that says why not."""
        ...


@runtime_checkable
class ProjectingTrainer(Protocol):
    """A trainer that can do better when it knows which coordinates will be sent."""

    def train_on(self, model: Vector, round_number: int, coordinates: NDArray[np.int64]) -> TrainResult:
        """Like `train`, where only these coordinates of the result count: clipping and noise need spend nothing on others."""
        ...


@dataclass(frozen=True)
class Allowance:
    """What the silo's books tell a trainer that asks how much noise to add. `trainings`: how many more the run will ask for."""

    budget: Budget
    ledger: RecordLedger
    run: str
    trainings: int


@runtime_checkable
class PrivateTrainer(Protocol):
    """A trainer that states what its training costs the records it trains on."""

    def privacy(self, allowance: Allowance | None) -> TrainingPrivacy | None:
        """What the next training will cost; asked before each, and charged before it starts. None states nothing.

        `Stated(epsilon, delta)` is the whole answer of a trainer that brings its own mechanism. Without
        an allowance nobody keeps books: nothing that is trained then may leave the silo.
        """
        ...
