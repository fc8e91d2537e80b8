"""What the REST interface answers: the shapes a stranger finds in the OpenAPI document. Times are Unix seconds, sizes bytes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from fedrep_identity.names import NAME_PATTERN

RunState = Literal["waiting", "running", "paused", "finished", "stopped"]
NAME = f"^{NAME_PATTERN}$"
Name = Annotated[str, Field(pattern=NAME, description="Lower-case letters, digits, dots, dashes, underscores.")]


class Shape(BaseModel):
    model_config = ConfigDict(frozen=True)


class Problem(Shape):
    """Every error has this form."""

    reason: str = Field(description="A stable word for programs, e.g. NOT_FOUND.")
    detail: str = Field(description="What is wrong and what to do, for people.")


class ServerState(Shape):
    reachable: bool
    since: float = Field(description="Since when it is or is not reachable.")
    address: str
    problem: str = Field(default="", description="Why the server refuses this dashboard, if it answers but does.")


class Status(Shape):
    server: ServerState
    version: str
    now: float


class Signer(Shape):
    name: str
    fingerprint: str = Field(description="Of its key, in hex: what a silo's admins_file lists, if the silo has one.")


class Session(Shape):
    signed_in: bool
    user: str = ""
    role: Literal["admin", "viewer", ""] = ""
    csrf: str = Field(default="", description="Send as X-CSRF-Token with every change, if signed in by cookie.")
    may_act: bool = Field(default=False, description="Whether this session may pause, resume, stop, exclude and readmit.")
    may_create: bool = Field(default=False, description="Whether this session may create, amend and roll back runs.")
    signer: Signer | None = Field(default=None, description="As whom the dashboard signs, for sessions that may create.")
    note: str = Field(default="", description="Why actions are not offered, for people.")


class SignIn(BaseModel):
    token: str = Field(min_length=1, max_length=500)


class RecordTotals(Shape):
    """What silos say that one training record has cost. Each is about its own records: nothing here is a sum."""

    epsilon: float | None = Field(default=None, description="Largest that any silo reported; null if none did.")
    delta: float | None = Field(default=None, description="Largest delta of these figures.")
    reporting: int = Field(default=0, description="Silos that reported an epsilon.")
    without: int = Field(default=0, description="Silos that said that they have no guarantee; the others did not report.")


class Waiting(Shape):
    """Whom a run waits for."""

    what: str = Field(default="", description="silos, quorum, gathering, or empty: it waits for nobody.")
    sentence: str = Field(default="", description="Whom it waits for, and without whom it goes on; without the time left.")
    until: float | None = Field(default=None, description="When it goes on without them; null: not before they come.")
    standing_still: bool = Field(default=False, description="Nothing has moved for longer than it should take.")


class Run(Shape):
    name: str
    hash: str
    state: str
    state_reason: str
    created_at: float
    round: int
    rounds_planned: int
    rounds_applied: int
    rounds_skipped: int
    model_version: int
    accuracy: float | None
    best_accuracy: float | None
    loss: float | None
    metrics: dict[str, float] = Field(default_factory=dict, description="The evaluator's latest further figures by name.")
    bytes_up: int
    bytes_down: int
    epsilon_total: float | None = Field(
        description="Largest epsilon any silo spent, in all runs over its data; null when there is no guarantee."
    )
    epsilon_budget: float | None
    records: RecordTotals = RecordTotals()
    silos_present: int
    silos_allowed: int
    waiting: Waiting = Waiting()
    aggregator: str
    drills: bool
    tags: list[str] = Field(default=[], description="By which people find the run.")
    alerts: int = Field(default=0, description="Alerts among the events the dashboard has seen.")
    last_alert: str = ""


class Runs(Shape):
    runs: list[Run]


class Silo(Shape):
    name: str
    state: str
    last_seen: float | None
    software_version: str
    bytes_up: int
    bytes_down: int
    certificate_expires: float | None
    strikes: int
    back_in_round: int | None
    epsilon_total: float | None = Field(description="In all runs over its data; null when there is no guarantee.")
    epsilon_budget: float | None
    drill: str
    problem: str
    reason: str = Field(default="", description="Why it is away, and since when, or why it takes no part in the open round.")
    given_up: int
    record_epsilon: float | None = Field(
        default=None,
        description="What it says that one training record has cost; null if it did not report, or has no guarantee.",
    )
    record_delta: float | None = None
    record_budget: float | None = None
    record_none: bool = Field(default=False, description="It said that its records have no guarantee.")


class Silos(Shape):
    silos: list[Silo]


class Model(Shape):
    version: int
    hash: str
    accuracy: float | None
    size: int
    best: bool
    score: float | None = Field(default=None, description="By which the best is chosen; larger is better.")


class Epsilon(Shape):
    covers: str = Field(description="What epsilon is about, in one sentence.")
    per_round: float | None
    total: float | None
    budget: float | None
    budget_ends_in_round: int | None = Field(description="Last round that the budget still allows at the present cost.")
    meaningful: bool = Field(description="Whether the total is small enough to promise anything.")


class Records(Shape):
    covers: str = Field(description="What the record epsilon is about, in one sentence.")
    epsilon_at_most: float | None = Field(description="What every silo of the run had to promise; null if nothing.")
    delta_at_most: float | None


class TrafficTold(Shape):
    """Of finished rounds, all silos together, up and down."""

    sent: int = Field(description="What was sent, with keys, shares and signatures.")
    dense: int = Field(description="What dense float32 vectors of the silos that proposed would have taken.")
    sentence: str = Field(description="How much less or more than dense, and why if more.")


class Pace(Shape):
    started_at: float | None = Field(description="When the first finished round began.")
    ended_at: float | None = Field(description="When the last finished round ended.")
    seconds: float | None = Field(description="From the one to the other.")
    rounds_per_hour: float | None = Field(description="Over the latest rounds, waiting between them included.")
    seconds_left: float | None = Field(description="For the planned rounds at this pace; null unless the run is running.")


class RunDetail(Shape):
    run: Run
    phase: str
    open_round: int
    last_event: int
    settings: dict[str, Any] = Field(description="The run manifest's numbers, in the paper's words.")
    options: dict[str, Any]
    models: list[Model]
    epsilon: Epsilon
    records: Records
    traffic: TrafficTold
    pace: Pace
    dense_bytes_per_silo_round: int
    signed_by: str


class Buffer(Shape):
    number: int
    members: list[str]
    survivors: int
    opened: bool
    discarded: str
    distance: float | None
    weight: float | None
    mark: str = Field(description="used, discarded, or suspected: more than twice as far from the update as the median buffer.")


class SiloInRound(Shape):
    silo: str
    status: str
    bytes_up: int
    bytes_down: int
    record_epsilon: float | None = None
    record_none: bool = False


class RoundRow(Shape):
    """A finished round with running totals over all rounds before it."""

    round: int
    outcome: Literal["applied", "skipped"]
    reason: str
    started_at: float
    phase_seconds: list[float] = Field(description="propose, submit, confirm, reveal, closing")
    consensus_size: int
    roster_size: int
    proposed: int
    survivors: int
    bytes_up: int
    bytes_down: int
    bytes_up_total: int
    bytes_down_total: int
    bytes_total: int
    dense_bytes: int = Field(description="What dense float32 FedAvg would have moved for the silos that proposed.")
    dense_total: int
    paper_bytes: float = Field(description="(96 + 32/m) K bits per silo that proposed, in bytes.")
    paper_total: float
    epsilon: float | None
    epsilon_theorem2: float | None
    epsilon_sum: float | None = Field(description="For a silo that proposed in every round of this run, which alone is counted.")
    epsilon_theorem2_sum: float | None
    clip_range: float
    clip_rate: float | None
    update_norm: float | None
    accuracy: float | None
    loss: float | None
    metrics: dict[str, float] = Field(default_factory=dict, description="The evaluator's further figures by name.")
    records: dict[str, float] = Field(
        default_factory=dict, description="By silo: what it said that one of its training records had cost. Never summed."
    )
    silo_accuracy_min: float | None
    silo_accuracy_median: float | None
    silo_accuracy_max: float | None
    silo_loss_min: float | None
    silo_loss_median: float | None
    silo_loss_max: float | None
    model_version: int
    tolerated: int


class Rounds(Shape):
    rows: list[RoundRow]
    total: int = Field(description="Rounds before thinning.")
    last_event: int = Field(description="Position from which the live stream continues this answer.")


class RoundDetail(Shape):
    row: RoundRow
    buffers: list[Buffer]
    silos: list[SiloInRound]
    previous: int | None = Field(default=None, description="The finished round before this one.")
    following: int | None = Field(default=None, description="The finished round after this one.")


class SeatDetail(Shape):
    """Who sat in a buffer, in the round that a cell shows."""

    round: int
    members: list[str]
    weight: float | None = Field(description="What the rule gave it, in [0, 1]; null where the rule gives no weights.")
    why: str = Field(default="", description="Why it was discarded, if it was.")


class HeatMap(Shape):
    """Columns are rounds, or groups of neighbouring rounds in a long run; each cell then shows the group's worst."""

    rows: list[str]
    first_round: list[int]
    last_round: list[int]
    cells: list[list[str]] = Field(description="One list per row, one word per column; empty where the row had no part.")
    values: list[list[float | None]] = Field(default=[], description="Distances, for buffers.")
    details: list[list[SeatDetail | None]] = Field(default=[], description="Members and weights, for buffers.")


class Standing(Shape):
    silo: str
    suspected: int = Field(description="Suspected buffers that it sat in.")
    judged: int = Field(description="Buffers that it sat in and that could be judged.")
    ratio: float = Field(description="log10 of the likelihood that it brings suspicion about, against that seats explain it.")
    chance: float = Field(description="Largest probability that any silo of a federation without a bad one ever gets there.")
    stands_out: bool


class Suspicion(Shape):
    """Who sat in suspected buffers more often than seats that change explain. A buffer is not a silo."""

    sentence: str
    caution: str
    suspected: int = Field(description="Suspected buffers of the run.")
    silos: list[Standing] = Field(description="The most suspicious first.")


class EventRow(Shape):
    position: int
    at: float
    kind: str
    severity: str
    round: int
    silo: str
    text: str


class Events(Shape):
    events: list[EventRow]
    last_event: int


class ComparedRun(Shape):
    run: Run
    settings: dict[str, Any]
    rows: list[RoundRow]


class Comparison(Shape):
    runs: list[ComparedRun]


# The server refuses others, in a sentence.
Tag = Annotated[str, Field(json_schema_extra={"minLength": 1, "maxLength": 40, "pattern": "^[A-Za-z0-9_][A-Za-z0-9_.:/+-]*$"})]


class Tags(BaseModel):
    tags: list[Tag] = Field(max_length=16, description="All tags from now on.")


class Reason(BaseModel):
    reason: str = Field(default="", max_length=300, description="Shown to everyone.")
