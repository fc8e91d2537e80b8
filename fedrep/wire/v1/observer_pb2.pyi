from fedrep.wire.v1 import federation_pb2 as _federation_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RunSummary(_message.Message):
    __slots__ = ("name", "run", "state", "state_reason", "created_at", "round", "rounds_planned", "rounds_applied", "rounds_skipped", "model_version", "accuracy", "loss", "bytes_up", "bytes_down", "epsilon_total", "epsilon_budget", "silos_present", "silos_allowed", "aggregator", "drills", "best_accuracy", "records", "waiting", "metrics", "tags")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STATE_REASON_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_PLANNED_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_APPLIED_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_SKIPPED_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    ACCURACY_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    BYTES_UP_FIELD_NUMBER: _ClassVar[int]
    BYTES_DOWN_FIELD_NUMBER: _ClassVar[int]
    EPSILON_TOTAL_FIELD_NUMBER: _ClassVar[int]
    EPSILON_BUDGET_FIELD_NUMBER: _ClassVar[int]
    SILOS_PRESENT_FIELD_NUMBER: _ClassVar[int]
    SILOS_ALLOWED_FIELD_NUMBER: _ClassVar[int]
    AGGREGATOR_FIELD_NUMBER: _ClassVar[int]
    DRILLS_FIELD_NUMBER: _ClassVar[int]
    BEST_ACCURACY_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    name: str
    run: bytes
    state: str
    state_reason: str
    created_at: float
    round: int
    rounds_planned: int
    rounds_applied: int
    rounds_skipped: int
    model_version: int
    accuracy: float
    loss: float
    bytes_up: int
    bytes_down: int
    epsilon_total: float
    epsilon_budget: float
    silos_present: int
    silos_allowed: int
    aggregator: str
    drills: bool
    best_accuracy: float
    records: RecordTotals
    waiting: Waiting
    metrics: _containers.ScalarMap[str, float]
    tags: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., run: _Optional[bytes] = ..., state: _Optional[str] = ..., state_reason: _Optional[str] = ..., created_at: _Optional[float] = ..., round: _Optional[int] = ..., rounds_planned: _Optional[int] = ..., rounds_applied: _Optional[int] = ..., rounds_skipped: _Optional[int] = ..., model_version: _Optional[int] = ..., accuracy: _Optional[float] = ..., loss: _Optional[float] = ..., bytes_up: _Optional[int] = ..., bytes_down: _Optional[int] = ..., epsilon_total: _Optional[float] = ..., epsilon_budget: _Optional[float] = ..., silos_present: _Optional[int] = ..., silos_allowed: _Optional[int] = ..., aggregator: _Optional[str] = ..., drills: _Optional[bool] = ..., best_accuracy: _Optional[float] = ..., records: _Optional[_Union[RecordTotals, _Mapping]] = ..., waiting: _Optional[_Union[Waiting, _Mapping]] = ..., metrics: _Optional[_Mapping[str, float]] = ..., tags: _Optional[_Iterable[str]] = ...) -> None: ...

class Waiting(_message.Message):
    __slots__ = ("what", "silos", "without", "until", "since", "present", "quorum", "standing_still")
    WHAT_FIELD_NUMBER: _ClassVar[int]
    SILOS_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    PRESENT_FIELD_NUMBER: _ClassVar[int]
    QUORUM_FIELD_NUMBER: _ClassVar[int]
    STANDING_STILL_FIELD_NUMBER: _ClassVar[int]
    what: str
    silos: _containers.RepeatedCompositeFieldContainer[WaitedSilo]
    without: _containers.RepeatedCompositeFieldContainer[WaitedSilo]
    until: float
    since: float
    present: int
    quorum: int
    standing_still: bool
    def __init__(self, what: _Optional[str] = ..., silos: _Optional[_Iterable[_Union[WaitedSilo, _Mapping]]] = ..., without: _Optional[_Iterable[_Union[WaitedSilo, _Mapping]]] = ..., until: _Optional[float] = ..., since: _Optional[float] = ..., present: _Optional[int] = ..., quorum: _Optional[int] = ..., standing_still: _Optional[bool] = ...) -> None: ...

class WaitedSilo(_message.Message):
    __slots__ = ("name", "reason", "since")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    name: str
    reason: str
    since: float
    def __init__(self, name: _Optional[str] = ..., reason: _Optional[str] = ..., since: _Optional[float] = ...) -> None: ...

class RecordTotals(_message.Message):
    __slots__ = ("epsilon", "delta", "reporting", "without")
    EPSILON_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    REPORTING_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_FIELD_NUMBER: _ClassVar[int]
    epsilon: float
    delta: float
    reporting: int
    without: int
    def __init__(self, epsilon: _Optional[float] = ..., delta: _Optional[float] = ..., reporting: _Optional[int] = ..., without: _Optional[int] = ...) -> None: ...

class SiloStatus(_message.Message):
    __slots__ = ("name", "state", "last_seen", "software_version", "bytes_up", "bytes_down", "certificate_expires", "strikes", "back_in_round", "epsilon_total", "epsilon_budget", "drill", "problem", "given_up", "record_epsilon", "record_delta", "record_budget", "record_none", "reason", "away_since")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_VERSION_FIELD_NUMBER: _ClassVar[int]
    BYTES_UP_FIELD_NUMBER: _ClassVar[int]
    BYTES_DOWN_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_EXPIRES_FIELD_NUMBER: _ClassVar[int]
    STRIKES_FIELD_NUMBER: _ClassVar[int]
    BACK_IN_ROUND_FIELD_NUMBER: _ClassVar[int]
    EPSILON_TOTAL_FIELD_NUMBER: _ClassVar[int]
    EPSILON_BUDGET_FIELD_NUMBER: _ClassVar[int]
    DRILL_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    GIVEN_UP_FIELD_NUMBER: _ClassVar[int]
    RECORD_EPSILON_FIELD_NUMBER: _ClassVar[int]
    RECORD_DELTA_FIELD_NUMBER: _ClassVar[int]
    RECORD_BUDGET_FIELD_NUMBER: _ClassVar[int]
    RECORD_NONE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    AWAY_SINCE_FIELD_NUMBER: _ClassVar[int]
    name: str
    state: str
    last_seen: float
    software_version: str
    bytes_up: int
    bytes_down: int
    certificate_expires: float
    strikes: int
    back_in_round: int
    epsilon_total: float
    epsilon_budget: float
    drill: str
    problem: str
    given_up: int
    record_epsilon: float
    record_delta: float
    record_budget: float
    record_none: bool
    reason: str
    away_since: float
    def __init__(self, name: _Optional[str] = ..., state: _Optional[str] = ..., last_seen: _Optional[float] = ..., software_version: _Optional[str] = ..., bytes_up: _Optional[int] = ..., bytes_down: _Optional[int] = ..., certificate_expires: _Optional[float] = ..., strikes: _Optional[int] = ..., back_in_round: _Optional[int] = ..., epsilon_total: _Optional[float] = ..., epsilon_budget: _Optional[float] = ..., drill: _Optional[str] = ..., problem: _Optional[str] = ..., given_up: _Optional[int] = ..., record_epsilon: _Optional[float] = ..., record_delta: _Optional[float] = ..., record_budget: _Optional[float] = ..., record_none: _Optional[bool] = ..., reason: _Optional[str] = ..., away_since: _Optional[float] = ...) -> None: ...

class BufferRound(_message.Message):
    __slots__ = ("number", "members", "survivors", "opened", "discarded", "distance", "weight")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    SURVIVORS_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    DISCARDED_FIELD_NUMBER: _ClassVar[int]
    DISTANCE_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    number: int
    members: _containers.RepeatedScalarFieldContainer[str]
    survivors: int
    opened: bool
    discarded: str
    distance: float
    weight: float
    def __init__(self, number: _Optional[int] = ..., members: _Optional[_Iterable[str]] = ..., survivors: _Optional[int] = ..., opened: _Optional[bool] = ..., discarded: _Optional[str] = ..., distance: _Optional[float] = ..., weight: _Optional[float] = ...) -> None: ...

class SiloRound(_message.Message):
    __slots__ = ("silo", "status", "bytes_up", "bytes_down", "record_epsilon", "record_none")
    SILO_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    BYTES_UP_FIELD_NUMBER: _ClassVar[int]
    BYTES_DOWN_FIELD_NUMBER: _ClassVar[int]
    RECORD_EPSILON_FIELD_NUMBER: _ClassVar[int]
    RECORD_NONE_FIELD_NUMBER: _ClassVar[int]
    silo: str
    status: str
    bytes_up: int
    bytes_down: int
    record_epsilon: float
    record_none: bool
    def __init__(self, silo: _Optional[str] = ..., status: _Optional[str] = ..., bytes_up: _Optional[int] = ..., bytes_down: _Optional[int] = ..., record_epsilon: _Optional[float] = ..., record_none: _Optional[bool] = ...) -> None: ...

class Round(_message.Message):
    __slots__ = ("round", "outcome", "reason", "started_at", "phase_seconds", "consensus_size", "roster_size", "proposed", "survivors", "bytes_up", "bytes_down", "epsilon", "epsilon_theorem2", "clip_range", "clip_rate", "update_norm", "accuracy", "loss", "silo_accuracy", "silo_loss", "buffers", "silos", "model_version", "per_silo", "tolerated", "metrics")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    ROUND_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    PHASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    CONSENSUS_SIZE_FIELD_NUMBER: _ClassVar[int]
    ROSTER_SIZE_FIELD_NUMBER: _ClassVar[int]
    PROPOSED_FIELD_NUMBER: _ClassVar[int]
    SURVIVORS_FIELD_NUMBER: _ClassVar[int]
    BYTES_UP_FIELD_NUMBER: _ClassVar[int]
    BYTES_DOWN_FIELD_NUMBER: _ClassVar[int]
    EPSILON_FIELD_NUMBER: _ClassVar[int]
    EPSILON_THEOREM2_FIELD_NUMBER: _ClassVar[int]
    CLIP_RANGE_FIELD_NUMBER: _ClassVar[int]
    CLIP_RATE_FIELD_NUMBER: _ClassVar[int]
    UPDATE_NORM_FIELD_NUMBER: _ClassVar[int]
    ACCURACY_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    SILO_ACCURACY_FIELD_NUMBER: _ClassVar[int]
    SILO_LOSS_FIELD_NUMBER: _ClassVar[int]
    BUFFERS_FIELD_NUMBER: _ClassVar[int]
    SILOS_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    PER_SILO_FIELD_NUMBER: _ClassVar[int]
    TOLERATED_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    round: int
    outcome: _federation_pb2.Outcome
    reason: str
    started_at: float
    phase_seconds: _containers.RepeatedScalarFieldContainer[float]
    consensus_size: int
    roster_size: int
    proposed: int
    survivors: int
    bytes_up: int
    bytes_down: int
    epsilon: float
    epsilon_theorem2: float
    clip_range: float
    clip_rate: float
    update_norm: float
    accuracy: float
    loss: float
    silo_accuracy: _containers.RepeatedScalarFieldContainer[float]
    silo_loss: _containers.RepeatedScalarFieldContainer[float]
    buffers: _containers.RepeatedCompositeFieldContainer[BufferRound]
    silos: _containers.RepeatedCompositeFieldContainer[SiloRound]
    model_version: int
    per_silo: int
    tolerated: int
    metrics: _containers.ScalarMap[str, float]
    def __init__(self, round: _Optional[int] = ..., outcome: _Optional[_Union[_federation_pb2.Outcome, str]] = ..., reason: _Optional[str] = ..., started_at: _Optional[float] = ..., phase_seconds: _Optional[_Iterable[float]] = ..., consensus_size: _Optional[int] = ..., roster_size: _Optional[int] = ..., proposed: _Optional[int] = ..., survivors: _Optional[int] = ..., bytes_up: _Optional[int] = ..., bytes_down: _Optional[int] = ..., epsilon: _Optional[float] = ..., epsilon_theorem2: _Optional[float] = ..., clip_range: _Optional[float] = ..., clip_rate: _Optional[float] = ..., update_norm: _Optional[float] = ..., accuracy: _Optional[float] = ..., loss: _Optional[float] = ..., silo_accuracy: _Optional[_Iterable[float]] = ..., silo_loss: _Optional[_Iterable[float]] = ..., buffers: _Optional[_Iterable[_Union[BufferRound, _Mapping]]] = ..., silos: _Optional[_Iterable[_Union[SiloRound, _Mapping]]] = ..., model_version: _Optional[int] = ..., per_silo: _Optional[int] = ..., tolerated: _Optional[int] = ..., metrics: _Optional[_Mapping[str, float]] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("position", "at", "kind", "severity", "round", "silo", "text")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SILO_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    position: int
    at: float
    kind: str
    severity: str
    round: int
    silo: str
    text: str
    def __init__(self, position: _Optional[int] = ..., at: _Optional[float] = ..., kind: _Optional[str] = ..., severity: _Optional[str] = ..., round: _Optional[int] = ..., silo: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class ListRunsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListRunsResponse(_message.Message):
    __slots__ = ("runs",)
    RUNS_FIELD_NUMBER: _ClassVar[int]
    runs: _containers.RepeatedCompositeFieldContainer[RunSummary]
    def __init__(self, runs: _Optional[_Iterable[_Union[RunSummary, _Mapping]]] = ...) -> None: ...

class GetRunRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ModelVersion(_message.Message):
    __slots__ = ("version", "model_hash", "accuracy", "size", "best", "score")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_HASH_FIELD_NUMBER: _ClassVar[int]
    ACCURACY_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    BEST_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    version: int
    model_hash: bytes
    accuracy: float
    size: int
    best: bool
    score: float
    def __init__(self, version: _Optional[int] = ..., model_hash: _Optional[bytes] = ..., accuracy: _Optional[float] = ..., size: _Optional[int] = ..., best: _Optional[bool] = ..., score: _Optional[float] = ...) -> None: ...

class GetRunResponse(_message.Message):
    __slots__ = ("summary", "manifest", "silos", "models", "last_event", "phase", "open_round", "dense_bytes_per_silo_round", "options", "amendment")
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    SILOS_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    LAST_EVENT_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    OPEN_ROUND_FIELD_NUMBER: _ClassVar[int]
    DENSE_BYTES_PER_SILO_ROUND_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    AMENDMENT_FIELD_NUMBER: _ClassVar[int]
    summary: RunSummary
    manifest: _federation_pb2.SignedRunManifest
    silos: _containers.RepeatedCompositeFieldContainer[SiloStatus]
    models: _containers.RepeatedCompositeFieldContainer[ModelVersion]
    last_event: int
    phase: str
    open_round: int
    dense_bytes_per_silo_round: int
    options: RunOptions
    amendment: _federation_pb2.SignedRunManifest
    def __init__(self, summary: _Optional[_Union[RunSummary, _Mapping]] = ..., manifest: _Optional[_Union[_federation_pb2.SignedRunManifest, _Mapping]] = ..., silos: _Optional[_Iterable[_Union[SiloStatus, _Mapping]]] = ..., models: _Optional[_Iterable[_Union[ModelVersion, _Mapping]]] = ..., last_event: _Optional[int] = ..., phase: _Optional[str] = ..., open_round: _Optional[int] = ..., dense_bytes_per_silo_round: _Optional[int] = ..., options: _Optional[_Union[RunOptions, _Mapping]] = ..., amendment: _Optional[_Union[_federation_pb2.SignedRunManifest, _Mapping]] = ...) -> None: ...

class ListRoundsRequest(_message.Message):
    __slots__ = ("name", "from_round", "limit", "downsample")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FROM_ROUND_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    DOWNSAMPLE_FIELD_NUMBER: _ClassVar[int]
    name: str
    from_round: int
    limit: int
    downsample: int
    def __init__(self, name: _Optional[str] = ..., from_round: _Optional[int] = ..., limit: _Optional[int] = ..., downsample: _Optional[int] = ...) -> None: ...

class ListRoundsResponse(_message.Message):
    __slots__ = ("rounds", "next_round")
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    NEXT_ROUND_FIELD_NUMBER: _ClassVar[int]
    rounds: _containers.RepeatedCompositeFieldContainer[Round]
    next_round: int
    def __init__(self, rounds: _Optional[_Iterable[_Union[Round, _Mapping]]] = ..., next_round: _Optional[int] = ...) -> None: ...

class WatchRunRequest(_message.Message):
    __slots__ = ("name", "after")
    NAME_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    name: str
    after: int
    def __init__(self, name: _Optional[str] = ..., after: _Optional[int] = ...) -> None: ...

class WatchRunResponse(_message.Message):
    __slots__ = ("event", "round", "summary")
    EVENT_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    event: Event
    round: Round
    summary: RunSummary
    def __init__(self, event: _Optional[_Union[Event, _Mapping]] = ..., round: _Optional[_Union[Round, _Mapping]] = ..., summary: _Optional[_Union[RunSummary, _Mapping]] = ...) -> None: ...

class RunOptions(_message.Message):
    __slots__ = ("evaluation_interval", "target_accuracy", "epsilon_budget", "keep_models", "layout", "best")
    EVALUATION_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    TARGET_ACCURACY_FIELD_NUMBER: _ClassVar[int]
    EPSILON_BUDGET_FIELD_NUMBER: _ClassVar[int]
    KEEP_MODELS_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    BEST_FIELD_NUMBER: _ClassVar[int]
    evaluation_interval: int
    target_accuracy: float
    epsilon_budget: float
    keep_models: int
    layout: str
    best: str
    def __init__(self, evaluation_interval: _Optional[int] = ..., target_accuracy: _Optional[float] = ..., epsilon_budget: _Optional[float] = ..., keep_models: _Optional[int] = ..., layout: _Optional[str] = ..., best: _Optional[str] = ...) -> None: ...

class CreateRunHeader(_message.Message):
    __slots__ = ("manifest", "options", "dry_run", "parameters", "sha256")
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    manifest: _federation_pb2.SignedRunManifest
    options: RunOptions
    dry_run: bool
    parameters: int
    sha256: bytes
    def __init__(self, manifest: _Optional[_Union[_federation_pb2.SignedRunManifest, _Mapping]] = ..., options: _Optional[_Union[RunOptions, _Mapping]] = ..., dry_run: _Optional[bool] = ..., parameters: _Optional[int] = ..., sha256: _Optional[bytes] = ...) -> None: ...

class CreateRunRequest(_message.Message):
    __slots__ = ("header", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: CreateRunHeader
    chunk: bytes
    def __init__(self, header: _Optional[_Union[CreateRunHeader, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class CreateRunResponse(_message.Message):
    __slots__ = ("run", "problems")
    RUN_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    run: bytes
    problems: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, run: _Optional[bytes] = ..., problems: _Optional[_Iterable[str]] = ...) -> None: ...

class StopRunRequest(_message.Message):
    __slots__ = ("name", "reason")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    name: str
    reason: str
    def __init__(self, name: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class StopRunResponse(_message.Message):
    __slots__ = ("summary",)
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    summary: RunSummary
    def __init__(self, summary: _Optional[_Union[RunSummary, _Mapping]] = ...) -> None: ...

class PauseRunRequest(_message.Message):
    __slots__ = ("name", "reason")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    name: str
    reason: str
    def __init__(self, name: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class PauseRunResponse(_message.Message):
    __slots__ = ("summary",)
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    summary: RunSummary
    def __init__(self, summary: _Optional[_Union[RunSummary, _Mapping]] = ...) -> None: ...

class ResumeRunRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ResumeRunResponse(_message.Message):
    __slots__ = ("summary",)
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    summary: RunSummary
    def __init__(self, summary: _Optional[_Union[RunSummary, _Mapping]] = ...) -> None: ...

class ExcludeSiloRequest(_message.Message):
    __slots__ = ("name", "silo", "reason")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SILO_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    name: str
    silo: str
    reason: str
    def __init__(self, name: _Optional[str] = ..., silo: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class ExcludeSiloResponse(_message.Message):
    __slots__ = ("silo",)
    SILO_FIELD_NUMBER: _ClassVar[int]
    silo: SiloStatus
    def __init__(self, silo: _Optional[_Union[SiloStatus, _Mapping]] = ...) -> None: ...

class ReadmitSiloRequest(_message.Message):
    __slots__ = ("name", "silo")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SILO_FIELD_NUMBER: _ClassVar[int]
    name: str
    silo: str
    def __init__(self, name: _Optional[str] = ..., silo: _Optional[str] = ...) -> None: ...

class ReadmitSiloResponse(_message.Message):
    __slots__ = ("silo",)
    SILO_FIELD_NUMBER: _ClassVar[int]
    silo: SiloStatus
    def __init__(self, silo: _Optional[_Union[SiloStatus, _Mapping]] = ...) -> None: ...

class RollBackRunRequest(_message.Message):
    __slots__ = ("name", "version", "order")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: int
    order: _federation_pb2.SignedRollback
    def __init__(self, name: _Optional[str] = ..., version: _Optional[int] = ..., order: _Optional[_Union[_federation_pb2.SignedRollback, _Mapping]] = ...) -> None: ...

class RollBackRunResponse(_message.Message):
    __slots__ = ("summary",)
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    summary: RunSummary
    def __init__(self, summary: _Optional[_Union[RunSummary, _Mapping]] = ...) -> None: ...

class AmendRunRequest(_message.Message):
    __slots__ = ("name", "manifest")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    name: str
    manifest: _federation_pb2.SignedRunManifest
    def __init__(self, name: _Optional[str] = ..., manifest: _Optional[_Union[_federation_pb2.SignedRunManifest, _Mapping]] = ...) -> None: ...

class AmendRunResponse(_message.Message):
    __slots__ = ("summary",)
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    summary: RunSummary
    def __init__(self, summary: _Optional[_Union[RunSummary, _Mapping]] = ...) -> None: ...

class TagRunRequest(_message.Message):
    __slots__ = ("name", "tags")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    name: str
    tags: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., tags: _Optional[_Iterable[str]] = ...) -> None: ...

class TagRunResponse(_message.Message):
    __slots__ = ("summary",)
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    summary: RunSummary
    def __init__(self, summary: _Optional[_Union[RunSummary, _Mapping]] = ...) -> None: ...

class DeleteRunRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DeleteRunResponse(_message.Message):
    __slots__ = ("silos_kept",)
    SILOS_KEPT_FIELD_NUMBER: _ClassVar[int]
    silos_kept: int
    def __init__(self, silos_kept: _Optional[int] = ...) -> None: ...

class DownloadModelRequest(_message.Message):
    __slots__ = ("name", "version", "best")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    BEST_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: int
    best: bool
    def __init__(self, name: _Optional[str] = ..., version: _Optional[int] = ..., best: _Optional[bool] = ...) -> None: ...

class DownloadHeader(_message.Message):
    __slots__ = ("version", "size", "sha256")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    version: int
    size: int
    sha256: bytes
    def __init__(self, version: _Optional[int] = ..., size: _Optional[int] = ..., sha256: _Optional[bytes] = ...) -> None: ...

class DownloadModelResponse(_message.Message):
    __slots__ = ("header", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: DownloadHeader
    chunk: bytes
    def __init__(self, header: _Optional[_Union[DownloadHeader, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...
