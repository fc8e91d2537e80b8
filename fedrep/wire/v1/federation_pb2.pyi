from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SecretKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SECRET_KIND_UNSPECIFIED: _ClassVar[SecretKind]
    SECRET_KIND_SEED: _ClassVar[SecretKind]
    SECRET_KIND_KEY: _ClassVar[SecretKind]

class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTCOME_UNSPECIFIED: _ClassVar[Outcome]
    OUTCOME_APPLIED: _ClassVar[Outcome]
    OUTCOME_SKIPPED: _ClassVar[Outcome]
SECRET_KIND_UNSPECIFIED: SecretKind
SECRET_KIND_SEED: SecretKind
SECRET_KIND_KEY: SecretKind
OUTCOME_UNSPECIFIED: Outcome
OUTCOME_APPLIED: Outcome
OUTCOME_SKIPPED: Outcome

class Deadlines(_message.Message):
    __slots__ = ("propose", "submit", "confirm", "reveal")
    PROPOSE_FIELD_NUMBER: _ClassVar[int]
    SUBMIT_FIELD_NUMBER: _ClassVar[int]
    CONFIRM_FIELD_NUMBER: _ClassVar[int]
    REVEAL_FIELD_NUMBER: _ClassVar[int]
    propose: float
    submit: float
    confirm: float
    reveal: float
    def __init__(self, propose: _Optional[float] = ..., submit: _Optional[float] = ..., confirm: _Optional[float] = ..., reveal: _Optional[float] = ...) -> None: ...

class RunManifest(_message.Message):
    __slots__ = ("name", "silos", "parameters", "layout_hash", "model_hash", "coordinates", "alpha", "buffer_size", "reshuffle_every", "ring_bits", "value_bits", "downlink_bits", "initial_range", "smallest_range", "largest_range", "quorum", "min_survivors", "colluders", "byzantine", "aggregator", "aggregator_settings", "rounds", "deadlines", "drills", "buffer_seed", "predecessor", "from_round", "record_epsilon_at_most", "delta_at_most")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SILOS_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_HASH_FIELD_NUMBER: _ClassVar[int]
    MODEL_HASH_FIELD_NUMBER: _ClassVar[int]
    COORDINATES_FIELD_NUMBER: _ClassVar[int]
    ALPHA_FIELD_NUMBER: _ClassVar[int]
    BUFFER_SIZE_FIELD_NUMBER: _ClassVar[int]
    RESHUFFLE_EVERY_FIELD_NUMBER: _ClassVar[int]
    RING_BITS_FIELD_NUMBER: _ClassVar[int]
    VALUE_BITS_FIELD_NUMBER: _ClassVar[int]
    DOWNLINK_BITS_FIELD_NUMBER: _ClassVar[int]
    INITIAL_RANGE_FIELD_NUMBER: _ClassVar[int]
    SMALLEST_RANGE_FIELD_NUMBER: _ClassVar[int]
    LARGEST_RANGE_FIELD_NUMBER: _ClassVar[int]
    QUORUM_FIELD_NUMBER: _ClassVar[int]
    MIN_SURVIVORS_FIELD_NUMBER: _ClassVar[int]
    COLLUDERS_FIELD_NUMBER: _ClassVar[int]
    BYZANTINE_FIELD_NUMBER: _ClassVar[int]
    AGGREGATOR_FIELD_NUMBER: _ClassVar[int]
    AGGREGATOR_SETTINGS_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    DEADLINES_FIELD_NUMBER: _ClassVar[int]
    DRILLS_FIELD_NUMBER: _ClassVar[int]
    BUFFER_SEED_FIELD_NUMBER: _ClassVar[int]
    PREDECESSOR_FIELD_NUMBER: _ClassVar[int]
    FROM_ROUND_FIELD_NUMBER: _ClassVar[int]
    RECORD_EPSILON_AT_MOST_FIELD_NUMBER: _ClassVar[int]
    DELTA_AT_MOST_FIELD_NUMBER: _ClassVar[int]
    name: str
    silos: _containers.RepeatedScalarFieldContainer[str]
    parameters: int
    layout_hash: bytes
    model_hash: bytes
    coordinates: int
    alpha: float
    buffer_size: int
    reshuffle_every: int
    ring_bits: int
    value_bits: int
    downlink_bits: int
    initial_range: float
    smallest_range: float
    largest_range: float
    quorum: int
    min_survivors: int
    colluders: int
    byzantine: int
    aggregator: str
    aggregator_settings: str
    rounds: int
    deadlines: Deadlines
    drills: bool
    buffer_seed: bytes
    predecessor: bytes
    from_round: int
    record_epsilon_at_most: float
    delta_at_most: float
    def __init__(self, name: _Optional[str] = ..., silos: _Optional[_Iterable[str]] = ..., parameters: _Optional[int] = ..., layout_hash: _Optional[bytes] = ..., model_hash: _Optional[bytes] = ..., coordinates: _Optional[int] = ..., alpha: _Optional[float] = ..., buffer_size: _Optional[int] = ..., reshuffle_every: _Optional[int] = ..., ring_bits: _Optional[int] = ..., value_bits: _Optional[int] = ..., downlink_bits: _Optional[int] = ..., initial_range: _Optional[float] = ..., smallest_range: _Optional[float] = ..., largest_range: _Optional[float] = ..., quorum: _Optional[int] = ..., min_survivors: _Optional[int] = ..., colluders: _Optional[int] = ..., byzantine: _Optional[int] = ..., aggregator: _Optional[str] = ..., aggregator_settings: _Optional[str] = ..., rounds: _Optional[int] = ..., deadlines: _Optional[_Union[Deadlines, _Mapping]] = ..., drills: _Optional[bool] = ..., buffer_seed: _Optional[bytes] = ..., predecessor: _Optional[bytes] = ..., from_round: _Optional[int] = ..., record_epsilon_at_most: _Optional[float] = ..., delta_at_most: _Optional[float] = ...) -> None: ...

class RecordPromise(_message.Message):
    __slots__ = ("epsilon", "delta")
    EPSILON_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    epsilon: float
    delta: float
    def __init__(self, epsilon: _Optional[float] = ..., delta: _Optional[float] = ...) -> None: ...

class SignedRunManifest(_message.Message):
    __slots__ = ("manifest", "admin", "certificate", "signature")
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    ADMIN_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    manifest: RunManifest
    admin: str
    certificate: bytes
    signature: bytes
    def __init__(self, manifest: _Optional[_Union[RunManifest, _Mapping]] = ..., admin: _Optional[str] = ..., certificate: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class RosterEntry(_message.Message):
    __slots__ = ("name", "fingerprint", "session_key", "session_signature", "promise")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    SESSION_KEY_FIELD_NUMBER: _ClassVar[int]
    SESSION_SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    PROMISE_FIELD_NUMBER: _ClassVar[int]
    name: str
    fingerprint: bytes
    session_key: bytes
    session_signature: bytes
    promise: RecordPromise
    def __init__(self, name: _Optional[str] = ..., fingerprint: _Optional[bytes] = ..., session_key: _Optional[bytes] = ..., session_signature: _Optional[bytes] = ..., promise: _Optional[_Union[RecordPromise, _Mapping]] = ...) -> None: ...

class RoundManifest(_message.Message):
    __slots__ = ("run", "round", "model_version", "model_hash", "chain", "roster", "parameters", "coordinates", "per_silo", "alpha", "buffer_size", "ring_bits", "value_bits", "clip_range", "byzantine", "deadlines")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_HASH_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    ROSTER_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    COORDINATES_FIELD_NUMBER: _ClassVar[int]
    PER_SILO_FIELD_NUMBER: _ClassVar[int]
    ALPHA_FIELD_NUMBER: _ClassVar[int]
    BUFFER_SIZE_FIELD_NUMBER: _ClassVar[int]
    RING_BITS_FIELD_NUMBER: _ClassVar[int]
    VALUE_BITS_FIELD_NUMBER: _ClassVar[int]
    CLIP_RANGE_FIELD_NUMBER: _ClassVar[int]
    BYZANTINE_FIELD_NUMBER: _ClassVar[int]
    DEADLINES_FIELD_NUMBER: _ClassVar[int]
    run: bytes
    round: int
    model_version: int
    model_hash: bytes
    chain: bytes
    roster: _containers.RepeatedCompositeFieldContainer[RosterEntry]
    parameters: int
    coordinates: int
    per_silo: int
    alpha: float
    buffer_size: int
    ring_bits: int
    value_bits: int
    clip_range: float
    byzantine: int
    deadlines: Deadlines
    def __init__(self, run: _Optional[bytes] = ..., round: _Optional[int] = ..., model_version: _Optional[int] = ..., model_hash: _Optional[bytes] = ..., chain: _Optional[bytes] = ..., roster: _Optional[_Iterable[_Union[RosterEntry, _Mapping]]] = ..., parameters: _Optional[int] = ..., coordinates: _Optional[int] = ..., per_silo: _Optional[int] = ..., alpha: _Optional[float] = ..., buffer_size: _Optional[int] = ..., ring_bits: _Optional[int] = ..., value_bits: _Optional[int] = ..., clip_range: _Optional[float] = ..., byzantine: _Optional[int] = ..., deadlines: _Optional[_Union[Deadlines, _Mapping]] = ...) -> None: ...

class SignedRoundManifest(_message.Message):
    __slots__ = ("manifest", "signature", "certificate")
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    manifest: RoundManifest
    signature: bytes
    certificate: bytes
    def __init__(self, manifest: _Optional[_Union[RoundManifest, _Mapping]] = ..., signature: _Optional[bytes] = ..., certificate: _Optional[bytes] = ...) -> None: ...

class Record(_message.Message):
    __slots__ = ("silo", "mask_key", "seed_commitment", "next_session_key", "shares_digest", "signature")
    SILO_FIELD_NUMBER: _ClassVar[int]
    MASK_KEY_FIELD_NUMBER: _ClassVar[int]
    SEED_COMMITMENT_FIELD_NUMBER: _ClassVar[int]
    NEXT_SESSION_KEY_FIELD_NUMBER: _ClassVar[int]
    SHARES_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    silo: str
    mask_key: bytes
    seed_commitment: bytes
    next_session_key: bytes
    shares_digest: bytes
    signature: bytes
    def __init__(self, silo: _Optional[str] = ..., mask_key: _Optional[bytes] = ..., seed_commitment: _Optional[bytes] = ..., next_session_key: _Optional[bytes] = ..., shares_digest: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class JoinRequest(_message.Message):
    __slots__ = ("run_name", "session_key", "session_signature", "model_version", "software_version", "protocol_version", "promise", "kept_session_key")
    RUN_NAME_FIELD_NUMBER: _ClassVar[int]
    SESSION_KEY_FIELD_NUMBER: _ClassVar[int]
    SESSION_SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_VERSION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    PROMISE_FIELD_NUMBER: _ClassVar[int]
    KEPT_SESSION_KEY_FIELD_NUMBER: _ClassVar[int]
    run_name: str
    session_key: bytes
    session_signature: bytes
    model_version: int
    software_version: str
    protocol_version: int
    promise: RecordPromise
    kept_session_key: bytes
    def __init__(self, run_name: _Optional[str] = ..., session_key: _Optional[bytes] = ..., session_signature: _Optional[bytes] = ..., model_version: _Optional[int] = ..., software_version: _Optional[str] = ..., protocol_version: _Optional[int] = ..., promise: _Optional[_Union[RecordPromise, _Mapping]] = ..., kept_session_key: _Optional[bytes] = ...) -> None: ...

class SignedRollback(_message.Message):
    __slots__ = ("run", "version", "model_hash", "admin", "certificate", "signature")
    RUN_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_HASH_FIELD_NUMBER: _ClassVar[int]
    ADMIN_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    run: bytes
    version: int
    model_hash: bytes
    admin: str
    certificate: bytes
    signature: bytes
    def __init__(self, run: _Optional[bytes] = ..., version: _Optional[int] = ..., model_hash: _Optional[bytes] = ..., admin: _Optional[str] = ..., certificate: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class JoinResponse(_message.Message):
    __slots__ = ("run", "round", "model_version", "model_hash", "chain", "state", "server_certificate", "last_round", "evaluation_interval", "protocol_version", "rollback", "predecessors", "best")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_HASH_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SERVER_CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    LAST_ROUND_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    ROLLBACK_FIELD_NUMBER: _ClassVar[int]
    PREDECESSORS_FIELD_NUMBER: _ClassVar[int]
    BEST_FIELD_NUMBER: _ClassVar[int]
    run: SignedRunManifest
    round: SignedRoundManifest
    model_version: int
    model_hash: bytes
    chain: bytes
    state: str
    server_certificate: bytes
    last_round: int
    evaluation_interval: int
    protocol_version: int
    rollback: SignedRollback
    predecessors: _containers.RepeatedCompositeFieldContainer[SignedRunManifest]
    best: str
    def __init__(self, run: _Optional[_Union[SignedRunManifest, _Mapping]] = ..., round: _Optional[_Union[SignedRoundManifest, _Mapping]] = ..., model_version: _Optional[int] = ..., model_hash: _Optional[bytes] = ..., chain: _Optional[bytes] = ..., state: _Optional[str] = ..., server_certificate: _Optional[bytes] = ..., last_round: _Optional[int] = ..., evaluation_interval: _Optional[int] = ..., protocol_version: _Optional[int] = ..., rollback: _Optional[_Union[SignedRollback, _Mapping]] = ..., predecessors: _Optional[_Iterable[_Union[SignedRunManifest, _Mapping]]] = ..., best: _Optional[str] = ...) -> None: ...

class Amendments(_message.Message):
    __slots__ = ("manifests", "in_force")
    MANIFESTS_FIELD_NUMBER: _ClassVar[int]
    IN_FORCE_FIELD_NUMBER: _ClassVar[int]
    manifests: _containers.RepeatedCompositeFieldContainer[SignedRunManifest]
    in_force: int
    def __init__(self, manifests: _Optional[_Iterable[_Union[SignedRunManifest, _Mapping]]] = ..., in_force: _Optional[int] = ...) -> None: ...

class FindRunsRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class OfferedRun(_message.Message):
    __slots__ = ("name", "run", "state", "layout_hash", "parameters", "created_at", "layout")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_HASH_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    name: str
    run: bytes
    state: str
    layout_hash: bytes
    parameters: int
    created_at: float
    layout: str
    def __init__(self, name: _Optional[str] = ..., run: _Optional[bytes] = ..., state: _Optional[str] = ..., layout_hash: _Optional[bytes] = ..., parameters: _Optional[int] = ..., created_at: _Optional[float] = ..., layout: _Optional[str] = ...) -> None: ...

class FindRunsResponse(_message.Message):
    __slots__ = ("runs",)
    RUNS_FIELD_NUMBER: _ClassVar[int]
    runs: _containers.RepeatedCompositeFieldContainer[OfferedRun]
    def __init__(self, runs: _Optional[_Iterable[_Union[OfferedRun, _Mapping]]] = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ("run", "version", "offset", "length")
    RUN_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    run: bytes
    version: int
    offset: int
    length: int
    def __init__(self, run: _Optional[bytes] = ..., version: _Optional[int] = ..., offset: _Optional[int] = ..., length: _Optional[int] = ...) -> None: ...

class ModelHeader(_message.Message):
    __slots__ = ("version", "parameters", "model_hash", "chain", "sha256")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    MODEL_HASH_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    version: int
    parameters: int
    model_hash: bytes
    chain: bytes
    sha256: bytes
    def __init__(self, version: _Optional[int] = ..., parameters: _Optional[int] = ..., model_hash: _Optional[bytes] = ..., chain: _Optional[bytes] = ..., sha256: _Optional[bytes] = ...) -> None: ...

class GetModelResponse(_message.Message):
    __slots__ = ("header", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: ModelHeader
    chunk: bytes
    def __init__(self, header: _Optional[_Union[ModelHeader, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class GetCertificatesRequest(_message.Message):
    __slots__ = ("run", "fingerprints")
    RUN_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINTS_FIELD_NUMBER: _ClassVar[int]
    run: bytes
    fingerprints: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, run: _Optional[bytes] = ..., fingerprints: _Optional[_Iterable[bytes]] = ...) -> None: ...

class GetCertificatesResponse(_message.Message):
    __slots__ = ("certificates",)
    CERTIFICATES_FIELD_NUMBER: _ClassVar[int]
    certificates: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, certificates: _Optional[_Iterable[bytes]] = ...) -> None: ...

class ProposalHeader(_message.Message):
    __slots__ = ("run", "round", "record", "next_session_signature", "sealed_shares", "seed_share_hashes", "key_share_hashes", "coordinates_size", "coordinates_sha256", "clips", "quiet")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    NEXT_SESSION_SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    SEALED_SHARES_FIELD_NUMBER: _ClassVar[int]
    SEED_SHARE_HASHES_FIELD_NUMBER: _ClassVar[int]
    KEY_SHARE_HASHES_FIELD_NUMBER: _ClassVar[int]
    COORDINATES_SIZE_FIELD_NUMBER: _ClassVar[int]
    COORDINATES_SHA256_FIELD_NUMBER: _ClassVar[int]
    CLIPS_FIELD_NUMBER: _ClassVar[int]
    QUIET_FIELD_NUMBER: _ClassVar[int]
    run: bytes
    round: int
    record: Record
    next_session_signature: bytes
    sealed_shares: _containers.RepeatedScalarFieldContainer[bytes]
    seed_share_hashes: _containers.RepeatedScalarFieldContainer[bytes]
    key_share_hashes: _containers.RepeatedScalarFieldContainer[bytes]
    coordinates_size: int
    coordinates_sha256: bytes
    clips: bool
    quiet: bool
    def __init__(self, run: _Optional[bytes] = ..., round: _Optional[int] = ..., record: _Optional[_Union[Record, _Mapping]] = ..., next_session_signature: _Optional[bytes] = ..., sealed_shares: _Optional[_Iterable[bytes]] = ..., seed_share_hashes: _Optional[_Iterable[bytes]] = ..., key_share_hashes: _Optional[_Iterable[bytes]] = ..., coordinates_size: _Optional[int] = ..., coordinates_sha256: _Optional[bytes] = ..., clips: _Optional[bool] = ..., quiet: _Optional[bool] = ...) -> None: ...

class AbstainRequest(_message.Message):
    __slots__ = ("run", "round", "next_session_key", "next_session_signature")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    NEXT_SESSION_KEY_FIELD_NUMBER: _ClassVar[int]
    NEXT_SESSION_SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    run: bytes
    round: int
    next_session_key: bytes
    next_session_signature: bytes
    def __init__(self, run: _Optional[bytes] = ..., round: _Optional[int] = ..., next_session_key: _Optional[bytes] = ..., next_session_signature: _Optional[bytes] = ...) -> None: ...

class AbstainResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ProposeCoordinatesRequest(_message.Message):
    __slots__ = ("header", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: ProposalHeader
    chunk: bytes
    def __init__(self, header: _Optional[_Union[ProposalHeader, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class ProposeCoordinatesResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetConsensusRequest(_message.Message):
    __slots__ = ("run", "round")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    run: bytes
    round: int
    def __init__(self, run: _Optional[bytes] = ..., round: _Optional[int] = ...) -> None: ...

class Assigned(_message.Message):
    __slots__ = ("silo", "record_digest")
    SILO_FIELD_NUMBER: _ClassVar[int]
    RECORD_DIGEST_FIELD_NUMBER: _ClassVar[int]
    silo: str
    record_digest: bytes
    def __init__(self, silo: _Optional[str] = ..., record_digest: _Optional[bytes] = ...) -> None: ...

class Buffer(_message.Message):
    __slots__ = ("members",)
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    members: _containers.RepeatedCompositeFieldContainer[Assigned]
    def __init__(self, members: _Optional[_Iterable[_Union[Assigned, _Mapping]]] = ...) -> None: ...

class SealedShare(_message.Message):
    __slots__ = ("dealer", "ciphertext")
    DEALER_FIELD_NUMBER: _ClassVar[int]
    CIPHERTEXT_FIELD_NUMBER: _ClassVar[int]
    dealer: str
    ciphertext: bytes
    def __init__(self, dealer: _Optional[str] = ..., ciphertext: _Optional[bytes] = ...) -> None: ...

class ConsensusHeader(_message.Message):
    __slots__ = ("run", "round", "assignment", "mates", "shares", "coordinates_size", "coordinates_sha256")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    MATES_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    COORDINATES_SIZE_FIELD_NUMBER: _ClassVar[int]
    COORDINATES_SHA256_FIELD_NUMBER: _ClassVar[int]
    run: bytes
    round: int
    assignment: _containers.RepeatedCompositeFieldContainer[Buffer]
    mates: _containers.RepeatedCompositeFieldContainer[Record]
    shares: _containers.RepeatedCompositeFieldContainer[SealedShare]
    coordinates_size: int
    coordinates_sha256: bytes
    def __init__(self, run: _Optional[bytes] = ..., round: _Optional[int] = ..., assignment: _Optional[_Iterable[_Union[Buffer, _Mapping]]] = ..., mates: _Optional[_Iterable[_Union[Record, _Mapping]]] = ..., shares: _Optional[_Iterable[_Union[SealedShare, _Mapping]]] = ..., coordinates_size: _Optional[int] = ..., coordinates_sha256: _Optional[bytes] = ...) -> None: ...

class GetConsensusResponse(_message.Message):
    __slots__ = ("header", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: ConsensusHeader
    chunk: bytes
    def __init__(self, header: _Optional[_Union[ConsensusHeader, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class SubmissionHeader(_message.Message):
    __slots__ = ("run", "round", "signature", "masked_size", "masked_sha256", "macs")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    MASKED_SIZE_FIELD_NUMBER: _ClassVar[int]
    MASKED_SHA256_FIELD_NUMBER: _ClassVar[int]
    MACS_FIELD_NUMBER: _ClassVar[int]
    run: bytes
    round: int
    signature: bytes
    masked_size: int
    masked_sha256: bytes
    macs: bytes
    def __init__(self, run: _Optional[bytes] = ..., round: _Optional[int] = ..., signature: _Optional[bytes] = ..., masked_size: _Optional[int] = ..., masked_sha256: _Optional[bytes] = ..., macs: _Optional[bytes] = ...) -> None: ...

class SubmitMaskedShareRequest(_message.Message):
    __slots__ = ("header", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: SubmissionHeader
    chunk: bytes
    def __init__(self, header: _Optional[_Union[SubmissionHeader, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class SubmitMaskedShareResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetSurvivorsRequest(_message.Message):
    __slots__ = ("run", "round")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    run: bytes
    round: int
    def __init__(self, run: _Optional[bytes] = ..., round: _Optional[int] = ...) -> None: ...

class Survivor(_message.Message):
    __slots__ = ("silo", "signature")
    SILO_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    silo: str
    signature: bytes
    def __init__(self, silo: _Optional[str] = ..., signature: _Optional[bytes] = ...) -> None: ...

class SurvivingBuffer(_message.Message):
    __slots__ = ("survivors",)
    SURVIVORS_FIELD_NUMBER: _ClassVar[int]
    survivors: _containers.RepeatedCompositeFieldContainer[Survivor]
    def __init__(self, survivors: _Optional[_Iterable[_Union[Survivor, _Mapping]]] = ...) -> None: ...

class SurvivorSet(_message.Message):
    __slots__ = ("buffers",)
    BUFFERS_FIELD_NUMBER: _ClassVar[int]
    buffers: _containers.RepeatedCompositeFieldContainer[SurvivingBuffer]
    def __init__(self, buffers: _Optional[_Iterable[_Union[SurvivingBuffer, _Mapping]]] = ...) -> None: ...

class GetSurvivorsResponse(_message.Message):
    __slots__ = ("survivors", "macs")
    SURVIVORS_FIELD_NUMBER: _ClassVar[int]
    MACS_FIELD_NUMBER: _ClassVar[int]
    survivors: SurvivorSet
    macs: bytes
    def __init__(self, survivors: _Optional[_Union[SurvivorSet, _Mapping]] = ..., macs: _Optional[bytes] = ...) -> None: ...

class HolderSignature(_message.Message):
    __slots__ = ("silo", "signature")
    SILO_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    silo: str
    signature: bytes
    def __init__(self, silo: _Optional[str] = ..., signature: _Optional[bytes] = ...) -> None: ...

class ConfirmSurvivorsRequest(_message.Message):
    __slots__ = ("run", "round", "signature", "macs")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    MACS_FIELD_NUMBER: _ClassVar[int]
    run: bytes
    round: int
    signature: bytes
    macs: bytes
    def __init__(self, run: _Optional[bytes] = ..., round: _Optional[int] = ..., signature: _Optional[bytes] = ..., macs: _Optional[bytes] = ...) -> None: ...

class ConfirmSurvivorsResponse(_message.Message):
    __slots__ = ("signatures", "macs")
    SIGNATURES_FIELD_NUMBER: _ClassVar[int]
    MACS_FIELD_NUMBER: _ClassVar[int]
    signatures: _containers.RepeatedCompositeFieldContainer[HolderSignature]
    macs: bytes
    def __init__(self, signatures: _Optional[_Iterable[_Union[HolderSignature, _Mapping]]] = ..., macs: _Optional[bytes] = ...) -> None: ...

class RevealedShare(_message.Message):
    __slots__ = ("dealer", "secret", "share")
    DEALER_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    dealer: str
    secret: SecretKind
    share: bytes
    def __init__(self, dealer: _Optional[str] = ..., secret: _Optional[_Union[SecretKind, str]] = ..., share: _Optional[bytes] = ...) -> None: ...

class RevealSharesRequest(_message.Message):
    __slots__ = ("run", "round", "shares")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    run: bytes
    round: int
    shares: _containers.RepeatedCompositeFieldContainer[RevealedShare]
    def __init__(self, run: _Optional[bytes] = ..., round: _Optional[int] = ..., shares: _Optional[_Iterable[_Union[RevealedShare, _Mapping]]] = ...) -> None: ...

class RevealSharesResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Statement(_message.Message):
    __slots__ = ("silo", "signature", "c1")
    SILO_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    C1_FIELD_NUMBER: _ClassVar[int]
    silo: str
    signature: bytes
    c1: bytes
    def __init__(self, silo: _Optional[str] = ..., signature: _Optional[bytes] = ..., c1: _Optional[bytes] = ...) -> None: ...

class GetUpdateRequest(_message.Message):
    __slots__ = ("run", "round", "statement", "omit_agreement", "known_roster")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STATEMENT_FIELD_NUMBER: _ClassVar[int]
    OMIT_AGREEMENT_FIELD_NUMBER: _ClassVar[int]
    KNOWN_ROSTER_FIELD_NUMBER: _ClassVar[int]
    run: bytes
    round: int
    statement: Statement
    omit_agreement: bool
    known_roster: bytes
    def __init__(self, run: _Optional[bytes] = ..., round: _Optional[int] = ..., statement: _Optional[_Union[Statement, _Mapping]] = ..., omit_agreement: _Optional[bool] = ..., known_roster: _Optional[bytes] = ...) -> None: ...

class UpdateHeader(_message.Message):
    __slots__ = ("run", "round", "outcome", "reason", "survivors", "confirmations", "statements", "opened", "model_version", "model_hash", "chain", "scale", "downlink_bits", "coordinates_size", "levels_size", "payload_sha256", "next_round", "state", "same_roster")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SURVIVORS_FIELD_NUMBER: _ClassVar[int]
    CONFIRMATIONS_FIELD_NUMBER: _ClassVar[int]
    STATEMENTS_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_HASH_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    DOWNLINK_BITS_FIELD_NUMBER: _ClassVar[int]
    COORDINATES_SIZE_FIELD_NUMBER: _ClassVar[int]
    LEVELS_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_SHA256_FIELD_NUMBER: _ClassVar[int]
    NEXT_ROUND_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SAME_ROSTER_FIELD_NUMBER: _ClassVar[int]
    run: bytes
    round: int
    outcome: Outcome
    reason: str
    survivors: SurvivorSet
    confirmations: _containers.RepeatedCompositeFieldContainer[HolderSignature]
    statements: _containers.RepeatedCompositeFieldContainer[Statement]
    opened: _containers.RepeatedScalarFieldContainer[int]
    model_version: int
    model_hash: bytes
    chain: bytes
    scale: float
    downlink_bits: int
    coordinates_size: int
    levels_size: int
    payload_sha256: bytes
    next_round: SignedRoundManifest
    state: str
    same_roster: bool
    def __init__(self, run: _Optional[bytes] = ..., round: _Optional[int] = ..., outcome: _Optional[_Union[Outcome, str]] = ..., reason: _Optional[str] = ..., survivors: _Optional[_Union[SurvivorSet, _Mapping]] = ..., confirmations: _Optional[_Iterable[_Union[HolderSignature, _Mapping]]] = ..., statements: _Optional[_Iterable[_Union[Statement, _Mapping]]] = ..., opened: _Optional[_Iterable[int]] = ..., model_version: _Optional[int] = ..., model_hash: _Optional[bytes] = ..., chain: _Optional[bytes] = ..., scale: _Optional[float] = ..., downlink_bits: _Optional[int] = ..., coordinates_size: _Optional[int] = ..., levels_size: _Optional[int] = ..., payload_sha256: _Optional[bytes] = ..., next_round: _Optional[_Union[SignedRoundManifest, _Mapping]] = ..., state: _Optional[str] = ..., same_roster: _Optional[bool] = ...) -> None: ...

class GetUpdateResponse(_message.Message):
    __slots__ = ("header", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: UpdateHeader
    chunk: bytes
    def __init__(self, header: _Optional[_Union[UpdateHeader, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class ReportMetricsRequest(_message.Message):
    __slots__ = ("run", "round", "model_version", "train_loss", "loss", "accuracy", "samples", "clip_rate", "train_seconds", "epsilon_total", "epsilon_budget", "drill", "problem", "given_up", "record_epsilon", "record_delta", "record_budget", "record_none", "epsilon_none", "metrics")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    TRAIN_LOSS_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    ACCURACY_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    CLIP_RATE_FIELD_NUMBER: _ClassVar[int]
    TRAIN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    EPSILON_TOTAL_FIELD_NUMBER: _ClassVar[int]
    EPSILON_BUDGET_FIELD_NUMBER: _ClassVar[int]
    DRILL_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    GIVEN_UP_FIELD_NUMBER: _ClassVar[int]
    RECORD_EPSILON_FIELD_NUMBER: _ClassVar[int]
    RECORD_DELTA_FIELD_NUMBER: _ClassVar[int]
    RECORD_BUDGET_FIELD_NUMBER: _ClassVar[int]
    RECORD_NONE_FIELD_NUMBER: _ClassVar[int]
    EPSILON_NONE_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    run: bytes
    round: int
    model_version: int
    train_loss: float
    loss: float
    accuracy: float
    samples: int
    clip_rate: float
    train_seconds: float
    epsilon_total: float
    epsilon_budget: float
    drill: str
    problem: str
    given_up: int
    record_epsilon: float
    record_delta: float
    record_budget: float
    record_none: bool
    epsilon_none: bool
    metrics: _containers.ScalarMap[str, float]
    def __init__(self, run: _Optional[bytes] = ..., round: _Optional[int] = ..., model_version: _Optional[int] = ..., train_loss: _Optional[float] = ..., loss: _Optional[float] = ..., accuracy: _Optional[float] = ..., samples: _Optional[int] = ..., clip_rate: _Optional[float] = ..., train_seconds: _Optional[float] = ..., epsilon_total: _Optional[float] = ..., epsilon_budget: _Optional[float] = ..., drill: _Optional[str] = ..., problem: _Optional[str] = ..., given_up: _Optional[int] = ..., record_epsilon: _Optional[float] = ..., record_delta: _Optional[float] = ..., record_budget: _Optional[float] = ..., record_none: _Optional[bool] = ..., epsilon_none: _Optional[bool] = ..., metrics: _Optional[_Mapping[str, float]] = ...) -> None: ...

class ReportMetricsResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: bytes
    def __init__(self, run: _Optional[bytes] = ...) -> None: ...

class LeaveResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AttendRequest(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: bytes
    def __init__(self, run: _Optional[bytes] = ...) -> None: ...

class AttendResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PlayRequest(_message.Message):
    __slots__ = ("call", "method", "message", "last", "cancelled", "more")
    CALL_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    call: int
    method: str
    message: bytes
    last: bool
    cancelled: bool
    more: _containers.RepeatedCompositeFieldContainer[PlayRequest]
    def __init__(self, call: _Optional[int] = ..., method: _Optional[str] = ..., message: _Optional[bytes] = ..., last: _Optional[bool] = ..., cancelled: _Optional[bool] = ..., more: _Optional[_Iterable[_Union[PlayRequest, _Mapping]]] = ...) -> None: ...

class PlayResponse(_message.Message):
    __slots__ = ("call", "message", "last", "status", "more")
    CALL_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    call: int
    message: bytes
    last: bool
    status: bytes
    more: _containers.RepeatedCompositeFieldContainer[PlayResponse]
    def __init__(self, call: _Optional[int] = ..., message: _Optional[bytes] = ..., last: _Optional[bool] = ..., status: _Optional[bytes] = ..., more: _Optional[_Iterable[_Union[PlayResponse, _Mapping]]] = ...) -> None: ...
