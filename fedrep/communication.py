"""What one silo sends and receives in a round, against the paper's own count and against dense training.

Section 3.2 counts K/m + K integers and 2K floats of 32 bits: (96 + 32/m) K bits per silo. Here coordinates are Rice-coded,
values have B bits up and 16 or 32 down, and the keys, shares and signatures that the paper leaves out are counted. Sizes are
those of the protobuf messages of a round in which everybody takes part, before gRPC and TLS framing; signatures count with
their longest encoding. GetModel, GetCertificates and Join happen once, not every round.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedrep.buffers import sizes
from fedrep.coding import HEADER_BYTES
from fedrep.errors import InvalidInputError
from fedrep.secagg.pairs import MAC_BYTES
from fedrep.secagg.shamir import ELEMENT_BYTES
from fedrep.secagg.shares import SEALED_BYTES

_HASH = 32
_KEY = 32
_SIGNATURE = 72
_METRICS = 120


@dataclass(frozen=True)
class Exchange:
    """One remote call: coordinates or values apart from everything that protects them, in bits."""

    call: str
    payload_up: int
    protection_up: int
    payload_down: int
    protection_down: int


@dataclass(frozen=True)
class RoundTraffic:
    """Bits per silo and round, call by call, beside the two yardsticks."""

    exchanges: tuple[Exchange, ...]
    paper_bits: float
    dense_bits: int

    @property
    def up(self) -> int:
        return sum(call.payload_up + call.protection_up for call in self.exchanges)

    @property
    def down(self) -> int:
        return sum(call.payload_down + call.protection_down for call in self.exchanges)

    @property
    def total(self) -> int:
        return self.up + self.down

    @property
    def payload(self) -> int:
        """Coordinates and values alone."""
        return sum(call.payload_up + call.payload_down for call in self.exchanges)

    @property
    def protection(self) -> int:
        """Keys, shares, signatures, hashes, names and manifests."""
        return self.total - self.payload

    @property
    def ratio_to_paper(self) -> float:
        return self.total / self.paper_bits

    @property
    def ratio_to_dense(self) -> float:
        return self.total / self.dense_bits


@dataclass(frozen=True)
class AgainstDense:
    """Bytes of finished rounds, all silos together, up and down: what was sent, protection included, what dense float32
    vectors of the silos that proposed would have taken, and the paper's count for the same silos."""

    sent: int
    dense: int
    paper: float

    @property
    def sentence(self) -> str:
        if not self.sent or not self.dense:
            return ""
        ratio = self.sent / self.dense
        if 0.95 < ratio < 1.05:
            return "as much as dense"
        if ratio < 1:
            return f"{1 / ratio:.1f}x less than dense"
        too_small = "too small a model for the fixed costs (keys, shares, signatures)"
        too_many = "too many coordinates (K) for this model"
        return f"{ratio:.1f}x more than dense: {too_small if self.paper < self.dense else too_many}"


def paper_bits(K: int, m: int) -> float:
    """(96 + 32/m) K: coordinates up and down, values up and down, 32 bits each (section 3.2)."""
    return (96 + 32 / m) * K


def dense_bits(d: int) -> int:
    """The whole model as float32, up and down."""
    return 64 * d


def coordinate_bits(count: int, d: int) -> int:
    """The expected message of `count` coordinates spread evenly over [0, d), in bits."""
    if not 0 <= count <= d:
        raise InvalidInputError(f"{count} distinct coordinates do not fit into [0, {d}).")
    if count == 0:
        return 8 * HEADER_BYTES
    absent = 1 - count / d
    costs = []
    for r in range(d.bit_length()):
        tail = absent ** (1 << r)
        costs.append(count * (r + 1 + (tail / (1 - tail) if tail < 1 else d / count)))
    return 8 * HEADER_BYTES + 8 * -(-round(min(costs)) // 8)


def bits_per_round(
    d: int,
    K: int,
    m: int,
    s: int,
    B: int,
    gamma: float | None = None,
    downlink_bits: int = 16,
    name_bytes: int = 8,
) -> RoundTraffic:
    """The traffic of one silo. gamma = |I|/d, if it is known; otherwise the proposals are taken as disjoint, |I| = m k."""
    k = K // m if m > 0 else 0
    if not 1 <= k <= d:
        raise InvalidInputError(f"{m} silos with K = {K} coordinates of d = {d}: each must propose between 1 and d.")
    if gamma is not None and not k / d <= gamma <= min(1.0, m * k / d):
        raise InvalidInputError(f"gamma = |I|/d lies between {k / d:g} and {min(1.0, m * k / d):g} here, not at {gamma}.")
    agreed = min(d, m * k) if gamma is None else round(gamma * d)
    parts = _Parts(sizes(m, s), name_bytes)
    coordinates = coordinate_bits(agreed, d)
    exchanges = (
        Exchange("ProposeCoordinates", coordinate_bits(k, d), 8 * parts.proposal(), 0, 0),
        Exchange("GetConsensus", 0, 8 * parts.question(), coordinates, 8 * parts.consensus()),
        Exchange("SubmitMaskedShare", B * agreed, 8 * parts.submission(), 0, 0),
        Exchange("GetSurvivors", 0, 8 * parts.question(), 0, 8 * (_field(parts.survivors()) + parts.macs())),
        Exchange("ConfirmSurvivors", 0, 8 * parts.confirmation(), 0, 8 * parts.told_confirmations()),
        Exchange("RevealShares", 0, 8 * parts.reveal(), 0, 0),
        Exchange("GetUpdate", 0, 8 * parts.question(), downlink_bits * agreed, 8 * parts.update()),
        Exchange("ReportMetrics", 0, 8 * _METRICS, 0, 0),
    )
    return RoundTraffic(exchanges, paper_bits(K, m), dense_bits(d))


def _field(length: int) -> int:
    """Bytes of a protobuf field that holds `length` bytes: tag, length, content."""
    return 1 + max(1, -(-length.bit_length() // 7)) + length


@dataclass(frozen=True)
class _Parts:
    """Bytes of everything in a round's messages that is neither coordinate nor value."""

    buffer_sizes: list[int]
    name_bytes: int

    @property
    def silos(self) -> int:
        return sum(self.buffer_sizes)

    def question(self) -> int:
        return _field(_HASH) + _NUMBER

    def record(self) -> int:
        return _field(self.name_bytes) + 2 * _field(_KEY) + 2 * _field(_HASH) + _field(_SIGNATURE)

    def proposal(self) -> int:
        per_holder = _field(SEALED_BYTES) + 2 * _field(_HASH)
        return self.question() + _field(self.record()) + _field(_SIGNATURE) + self.silos * per_holder + _STREAM

    def consensus(self) -> int:
        place = _field(_field(self.name_bytes) + _field(_HASH))
        assignment = sum(_field(size * place) for size in self.buffer_sizes)
        mates = (max(self.buffer_sizes) - 1) * _field(self.record())
        shares = self.silos * _field(_field(self.name_bytes) + _field(SEALED_BYTES))
        return self.question() + assignment + mates + shares + _STREAM

    def submission(self) -> int:
        return self.question() + _field(_SIGNATURE) + self.macs() + _STREAM

    def macs(self) -> int:
        return _field(MAC_BYTES * self.silos)

    def survivors(self) -> int:
        survivor = _field(_field(self.name_bytes) + _field(_SIGNATURE))
        return sum(_field(size * survivor) for size in self.buffer_sizes)

    def confirmation(self) -> int:
        return self.question() + _field(_SIGNATURE) + self.macs()

    def confirmations(self) -> int:
        return self.silos * self.holder_signature()

    def told_confirmations(self) -> int:
        """One less than the threshold, floor(2m/3) + 1, and what each of them vouched for: the own one is known."""
        others = 2 * self.silos // 3
        return others * self.holder_signature() + _field(MAC_BYTES * others)

    def holder_signature(self) -> int:
        return _field(_field(self.name_bytes) + _field(_SIGNATURE))

    def reveal(self) -> int:
        return self.question() + self.silos * _field(_field(self.name_bytes) + 2 + _field(ELEMENT_BYTES))

    def update(self) -> int:
        outcome = 2 + _field(len(self.buffer_sizes)) + _NUMBER + 2 * _field(_HASH) + _SCALE + _STREAM + _NUMBER + _STATE
        proof = _field(self.survivors()) + self.confirmations()
        return self.question() + outcome + proof + _field(self.round_manifest())

    def round_manifest(self) -> int:
        entry = _field(self.name_bytes) + _field(_HASH) + _field(_KEY) + _field(_SIGNATURE)
        manifest = 3 * _field(_HASH) + self.silos * _field(entry) + _MANIFEST_NUMBERS
        return _field(manifest) + _field(_SIGNATURE)


_NUMBER = 4
_STREAM = 4 + _field(_HASH)
_SCALE = 5 + 2
_STATE = _field(7)
# Two rounds or versions, d, K, k, s, B, q, f, alpha and R as doubles, four deadlines.
_MANIFEST_NUMBERS = 2 * _NUMBER + 3 * _NUMBER + 4 * 2 + 2 * 9 + _field(4 * 9)
