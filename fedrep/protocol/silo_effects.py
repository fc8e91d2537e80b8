"""What goes into the silo's machine and what comes out of it: requests, events, effects, news for its operator.

An effect that speaks is constructed from the `Save` it needs (`save.send(message)`), so that no message can be written down
whose state is not: whoever carries effects out makes the state durable first, and has the receipt to show for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedrep.errors import FedrepError
from fedrep.patched import Difference
from fedrep.protocol.error_memory import Fate
from fedrep.protocol.manifests import (
    RecordPromise,
    RosterEntry,
    RoundManifest,
    RunHash,
    RunManifest,
    SignedRoundManifest,
    SignedRunManifest,
    SiloName,
)
from fedrep.protocol.messages import (
    Abstention,
    Confirmation,
    Consensus,
    ModelName,
    Outcome,
    Proposal,
    Reveal,
    Signatures,
    SignedRollback,
    Statement,
    Submission,
    SurvivorSet,
    Update,
)
from fedrep.protocol.model_state import ModelState
from fedrep.protocol.silo_state import SiloState, TrainerState


@dataclass(frozen=True, slots=True)
class Join:
    """With a session key the silo announces itself; without one it only asks for news.

    `kept` is the session key that rosters listed last, if the silo still has what it agreed on with it.
    """

    run_name: str
    model_version: int | None
    session_key: bytes = b""
    signature: bytes = b""
    promise: RecordPromise | None = None
    kept: bytes = b""


@dataclass(frozen=True, slots=True)
class GetModel:
    run: RunHash
    version: int


@dataclass(frozen=True, slots=True)
class GetCertificates:
    run: RunHash
    fingerprints: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class GetConsensus:
    run: RunHash
    round: int


@dataclass(frozen=True, slots=True)
class GetSurvivors:
    run: RunHash
    round: int


@dataclass(frozen=True, slots=True)
class GetUpdate:
    """`roster` is the one that this silo holds and need not be sent again."""

    run: RunHash
    round: int
    statement: Statement | None = None
    omit_agreement: bool = False
    roster: tuple[RosterEntry, ...] = field(default=(), repr=False)


Speech = Join | Proposal | Abstention | GetConsensus | Submission | GetSurvivors | Confirmation | Reveal | GetUpdate
Question = Join | GetModel | GetCertificates | GetUpdate
Request = Speech | Question


@dataclass(frozen=True, slots=True)
class Joined:
    """What Join tells: the run's rules, the latest model's name, and the open round, if there is one.

    `predecessors` are the manifests before an amended one, oldest first; `best` is the evaluator's figure that decides.
    """

    run: SignedRunManifest
    round: SignedRoundManifest | None
    model: ModelName
    state: str
    server_certificate: bytes
    last_round: int
    evaluation_interval: int
    rollback: SignedRollback | None = None
    predecessors: tuple[SignedRunManifest, ...] = ()
    best: str = ""


@dataclass(frozen=True, slots=True)
class FetchedModel:
    version: int
    vector: NDArray[np.float32] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM chains by fingerprint; what nobody has is missing or empty."""

    chains: Mapping[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Accepted:
    """The answer to a message that asks for nothing."""


@dataclass(frozen=True, slots=True)
class Confirmations:
    """The answer to ConfirmSurvivors."""

    signatures: Signatures
    macs: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Concluded:
    """What GetUpdate tells."""

    update: Update
    next_round: SignedRoundManifest | None
    state: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """There is no answer: the server does not take the request, or what it said cannot be read.

    A rule of the silo's own is an exception and never this.
    """

    error: FedrepError
    said_by_server: bool = True


Answer = Joined | FetchedModel | Certificates | Accepted | Consensus | SurvivorSet | Confirmations | Concluded | Refusal


@dataclass(frozen=True, slots=True)
class Answered:
    request: Request
    answer: Answer


@dataclass(frozen=True, slots=True)
class Started:
    """The process is up; its state is what was saved last."""


@dataclass(frozen=True, slots=True)
class Trained:
    """`update` is w^t - w_k^{t+1}, and `state` the trainer's state after exactly this training."""

    version: int
    update: NDArray[np.float32] | Difference = field(repr=False)
    state: TrainerState = field(repr=False)
    loss: float = 0.0
    samples: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class TrainingFailed:
    version: int
    text: str


@dataclass(frozen=True, slots=True)
class TrainingRefused:
    """The books of this silo's data set allow no further training: nothing was trained, and nothing will be."""

    version: int
    error: FedrepError


@dataclass(frozen=True, slots=True)
class TimePassed:
    """The time of a `Wait` is over."""

    wait: Wait


@dataclass(frozen=True, slots=True)
class LineLost:
    """The server was out of reach for a while: it may have forgotten that this silo is there."""


@dataclass(frozen=True, slots=True)
class StopAsked:
    """The operator wants the silo to leave after the round it has promised to take part in."""


Event = Started | Answered | Trained | TrainingFailed | TrainingRefused | TimePassed | LineLost | StopAsked


@dataclass(frozen=True, slots=True)
class Moment:
    """Time as it is handed in: seconds of a clock that never goes back, and the hour of the operator's day."""

    seconds: float = 0.0
    hour: int = 0


@dataclass(frozen=True, slots=True)
class Save:
    """On disk before any effect made from it."""

    state: SiloState

    def send(self, message: Speech, **details: object) -> Send:
        return Send(message, self, details)


@dataclass(frozen=True, slots=True)
class Send:
    """A message that binds this silo: it leaves only after `needs` is durable, and again, unchanged, when its answer is lost.

    `details` go into the operator's audit.
    """

    message: Speech
    needs: Save
    details: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ask:
    """A question that binds nobody."""

    question: Question


@dataclass(frozen=True, slots=True)
class Train:
    """One training at a time; the trainer is put back to `start_from` first.

    It is charged to `run` on the books of the data set before it starts; `trainings` is how many the run may still ask for.
    With `coordinates` only these will be sent, and no other need move.
    """

    model: ModelState
    round: int
    start_from: TrainerState = field(repr=False)
    run: str = ""
    trainings: int = 1
    coordinates: NDArray[np.int64] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Wait:
    """Identity matters, not the number: only the last one asked for counts."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Report:
    news: News


@dataclass(frozen=True, slots=True)
class Stop:
    """The silo's work is over; `error` says why if it had to stop, and the server is told when `polite`."""

    error: FedrepError | None = None
    polite: bool = False


Effect = Save | Send | Ask | Train | Wait | Report | Stop


@dataclass(frozen=True, slots=True)
class Doing:
    """What the silo is about to do, for whoever looks."""

    what: str
    round: int | None = None


@dataclass(frozen=True, slots=True)
class HasJoined:
    run: RunManifest
    joined: Joined


@dataclass(frozen=True, slots=True)
class RunRefused:
    """A run outside this silo's policy: the consortium should see it."""

    run: RunManifest
    last_round: int
    error: FedrepError


@dataclass(frozen=True, slots=True)
class Problem:
    """`own` is a rule or policy of this silo; what the server said itself it need not hear again."""

    manifest: RoundManifest
    error: FedrepError
    own: bool


@dataclass(frozen=True, slots=True)
class FailedTraining:
    manifest: RoundManifest
    text: str


@dataclass(frozen=True, slots=True)
class HasTrained:
    trained: Trained


@dataclass(frozen=True, slots=True)
class Settled:
    round: int
    fate: Fate


@dataclass(frozen=True, slots=True)
class RoundOver:
    manifest: RoundManifest
    update: Update
    state: SiloState

    @property
    def applied(self) -> bool:
        return self.update.outcome is Outcome.APPLIED


@dataclass(frozen=True, slots=True)
class Remark:
    """A line for the log alone."""

    event: str
    why: str
    round: int | None = None


News = Doing | HasJoined | RunRefused | Problem | FailedTraining | HasTrained | Settled | RoundOver | Remark


def mates_of(consensus: Consensus, silo: SiloName) -> tuple[SiloName, ...]:
    """Who shares a buffer with this silo; nobody if it has no place."""
    for buffer in consensus.assignment:
        names = tuple(place.silo for place in buffer)
        if silo in names:
            return tuple(name for name in names if name != silo)
    return ()
