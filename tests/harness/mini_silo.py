"""A second silo, written from the proto files and docs/wire-format.md alone: nothing of `fedrep` but the generated messages.

It keeps no rule that protects a silo; it only shows that the documents suffice to take part. Lists of Python integers stand
where the service's own silo uses arrays, so the two share no code path. `tests.contract` also uses it to make valid messages, and
then bends them.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
from blake3 import blake3
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedrep.wire.v1 import federation_pb2 as pb
from fedrep.wire.v1.federation_pb2_grpc import FederationServiceStub

PRIME = 2**256 + 297
SECONDS = 120.0  # for what would otherwise hang


def encoded(*fields: Any) -> bytes:
    """Transcripts: a type letter, a length of eight bytes, the content."""
    out = b""
    for item in fields:
        if isinstance(item, bool):
            out += (b"t" if item else b"f") + bytes(8)
        elif isinstance(item, bytes):
            out += b"b" + struct.pack(">Q", len(item)) + item
        elif isinstance(item, str):
            text = item.encode("utf-8")
            out += b"s" + struct.pack(">Q", len(text)) + text
        elif isinstance(item, int):
            body = item.to_bytes(item.bit_length() // 8 + 1, "big", signed=True)
            out += b"i" + struct.pack(">Q", len(body)) + body
        elif isinstance(item, float):
            out += b"d" + struct.pack(">Qd", 8, item)
        else:
            out += b"l" + struct.pack(">Q", len(item)) + b"".join(encoded(part) for part in item)
    return out


def digest(tag: str, *fields: Any) -> bytes:
    return hashlib.sha256(encoded("fedrep/v1", tag, *fields)).digest()


def model_hash(parameters: bytes) -> bytes:
    return b"\x1e" + blake3(parameters, derive_key_context="fedrep/v1 fedrep/model").digest()


def pairs(message: Any) -> Any:
    """A message as its list of (field name, value), in the order of the field numbers."""
    listed = []
    for known in sorted(message.DESCRIPTOR.fields, key=lambda known: known.number):
        if known.containing_oneof is not None and not message.HasField(known.name):
            continue  # marked optional, and absent
        value = getattr(message, known.name)
        if known.is_repeated:
            listed.append([known.name, [pairs(item) if known.message_type else item for item in value]])
        else:
            listed.append([known.name, pairs(value) if known.message_type else value])
    return listed


def derived(secret: bytes, label: str, *context: Any) -> bytes:
    return HKDF(hashes.SHA256(), 32, None, encoded(label, *context)).derive(secret)


def rice_encoded(coordinates: Sequence[int]) -> bytes:
    """The shortest Rice code of an ascending set, with the smallest parameter that gives it."""
    gaps = [now - before - 1 for before, now in zip([-1, *coordinates], coordinates, strict=False)]
    r = min(range(32), key=lambda bits: sum(bits + 1 + (gap >> bits) for gap in gaps))
    out = struct.pack("<IB", len(gaps), r)
    for plane in range(r // 8):
        out += bytes((gap >> (8 * plane)) & 255 for gap in gaps)
    width = r % 8
    out += packed("".join(f"{(gap >> (r - width)) & ((1 << width) - 1):0{width}b}"[::-1] for gap in gaps) if width else "")
    return out + packed("".join("0" * (gap >> r) + "1" for gap in gaps))


def packed(bits: str) -> bytes:
    """The first bit is the lowest bit of the first byte."""
    return bytes(int(bits[start : start + 8][::-1], 2) for start in range(0, len(bits), 8))


def rice_decoded(data: bytes) -> list[int]:
    count, r = struct.unpack("<IB", data[:5])
    at = 5
    gaps = [0] * count
    for plane in range(r // 8):
        for n in range(count):
            gaps[n] |= data[at + n] << (8 * plane)
        at += count
    width = r % 8
    size = -(-count * width // 8)
    bits = "".join(f"{byte:08b}"[::-1] for byte in data[at : at + size])
    for n in range(count if width else 0):
        gaps[n] |= int(bits[n * width : (n + 1) * width][::-1], 2) << (r - width)
    quotients = "".join(f"{byte:08b}"[::-1] for byte in data[at + size :]).split("1")[:count]
    coordinates, last = [], -1
    for gap, zeros in zip(gaps, quotients, strict=True):
        last += 1 + gap + (len(zeros) << r)
        coordinates.append(last)
    return coordinates


def expanded(secret: bytes, label: str, *context: Any) -> bytes:
    """One block of HKDF-Expand."""
    return hmac.digest(secret, encoded(label, *context) + b"\x01", "sha256")


def shares_of(secret: bytes, threshold: int, holders: int) -> list[bytes]:
    polynomial = [int.from_bytes(secret, "big"), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    return [
        (sum(c * pow(point, power, PRIME) for power, c in enumerate(polynomial)) % PRIME).to_bytes(33, "big")
        for point in range(1, holders + 1)
    ]


def keystream(key: bytes, count: int, bits: int) -> list[int]:
    size = bits // 8
    stream = Cipher(AES(key), CTR(bytes(16))).encryptor().update(bytes(count * size))
    return [int.from_bytes(stream[n * size : (n + 1) * size], "little") for n in range(count)]


@dataclass
class MiniSilo:
    """One silo of one run. `channel` is an open mTLS channel with the silo's own certificate."""

    name: str
    key_pem: bytes
    channel: grpc.Channel
    model: list[float] = field(default_factory=list)
    version: int = -1
    promise: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        self.stub: Any = FederationServiceStub(self.channel)  # type: ignore[no-untyped-call]
        key = serialization.load_pem_private_key(self.key_pem, None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        self._key = key
        self.session = X25519PrivateKey.generate()
        self.sessions = {self.session.public_key().public_bytes_raw(): self.session}
        self.run = b""

    def sign(self, message: bytes) -> bytes:
        return self._key.sign(message, ec.ECDSA(hashes.SHA256()))

    def join_request(self, run_name: str, run: bytes = b"") -> pb.JoinRequest:
        """Without the run's hash it is a first look."""
        if not run:
            return pb.JoinRequest(run_name=run_name, protocol_version=3)
        public = self.session.public_key().public_bytes_raw()
        signature = self.sign(digest("fedrep/session-key", run, public, *(self.promise or ())))
        request = pb.JoinRequest(run_name=run_name, session_key=public, session_signature=signature, protocol_version=3)
        if self.promise is not None:
            request.promise.epsilon, request.promise.delta = self.promise
        return request

    def join(self, run_name: str) -> pb.JoinResponse:
        first = self.stub.Join(self.join_request(run_name), timeout=SECONDS)
        self.run = digest("fedrep/run", pairs(first.run.manifest))
        self.rules = first.run.manifest
        joined: pb.JoinResponse = self.stub.Join(self.join_request(run_name, self.run), timeout=SECONDS)
        return joined

    def fetch_model(self, version: int) -> None:
        stream = self.stub.GetModel(pb.GetModelRequest(run=self.run, version=version), timeout=SECONDS)
        header = next(stream).header
        data = b"".join(part.chunk for part in stream)
        assert hashlib.sha256(data).digest() == header.sha256
        assert model_hash(data) == header.model_hash
        self.model = list(struct.unpack(f"<{header.parameters}f", data))
        self.version = version

    def enter(self, manifest: pb.RoundManifest) -> None:
        self.manifest = manifest
        self.roster = {entry.name: entry for entry in manifest.roster}
        if self.name in self.roster:
            self.session = self.sessions.get(self.roster[self.name].session_key, self.session)
        self.c1 = digest("fedrep/c1", manifest.run, manifest.round, pairs(manifest))
        self.threshold = 2 * len(manifest.roster) // 3 + 1

    def proposal(self, coordinates: Sequence[int]) -> tuple[pb.ProposalHeader, bytes]:
        manifest = self.manifest
        self.mask_key, self.next_session = X25519PrivateKey.generate(), X25519PrivateKey.generate()
        self.sessions[self.next_session.public_key().public_bytes_raw()] = self.next_session
        self.seed = secrets.token_bytes(32)
        seeds = shares_of(self.seed, self.threshold, len(manifest.roster))
        keys = shares_of(self.mask_key.private_bytes_raw(), self.threshold, len(manifest.roster))
        sealed = [self._sealed(entry, seed + key) for entry, seed, key in zip(manifest.roster, seeds, keys, strict=True)]
        hashes_of = [[digest("fedrep/share", share) for share in listed] for listed in (seeds, keys)]
        record = pb.Record(
            silo=self.name,
            mask_key=self.mask_key.public_key().public_bytes_raw(),
            seed_commitment=digest("commitment", self.seed),
            next_session_key=self.next_session.public_key().public_bytes_raw(),
            shares_digest=digest("fedrep/share-list", *hashes_of),
        )
        record.signature = self.sign(self.record_digest(record))
        code = rice_encoded(coordinates)
        header = pb.ProposalHeader(
            run=manifest.run,
            round=manifest.round,
            record=record,
            next_session_signature=self.sign(
                digest("fedrep/session-key", manifest.run, record.next_session_key, *(self.promise or ()))
            ),
            sealed_shares=sealed,
            seed_share_hashes=hashes_of[0],
            key_share_hashes=hashes_of[1],
            coordinates_size=len(code),
            coordinates_sha256=hashlib.sha256(code).digest(),
        )
        self.coordinates = list(coordinates)
        return header, code

    def record_digest(self, record: pb.Record) -> bytes:
        committed = (record.mask_key, record.seed_commitment, record.next_session_key, record.shares_digest)
        return digest("fedrep/record", self.c1, record.silo, *committed)

    def shared_with(self, other: pb.RosterEntry) -> bytes:
        """This round's link of the chain that begins with what two session keys agree on."""
        lasts = max(1, min(self.rules.reshuffle_every, 16))
        first = self.manifest.round - self.manifest.round % lasts
        agreed = self.session.exchange(X25519PublicKey.from_public_bytes(other.session_key))
        link = derived(agreed, "session", self.run, first)
        for _ in range(self.manifest.round - first):
            link = expanded(link, "next")
        return link

    def _sealed(self, holder: pb.RosterEntry, plain: bytes) -> bytes:
        names = (self.c1, self.name, holder.name)
        return AESGCM(expanded(self.shared_with(holder), "share", *names)).encrypt(bytes(12), plain, encoded(*names))

    def propose(self, header: pb.ProposalHeader, code: bytes) -> pb.ProposeCoordinatesResponse:
        answer: pb.ProposeCoordinatesResponse = self.stub.ProposeCoordinates(
            streamed(pb.ProposeCoordinatesRequest, header, code), timeout=SECONDS
        )
        return answer

    def consensus(self) -> pb.ConsensusHeader:
        stream = self.stub.GetConsensus(pb.GetConsensusRequest(run=self.run, round=self.manifest.round), timeout=SECONDS)
        header: pb.ConsensusHeader = next(stream).header
        code = b"".join(part.chunk for part in stream)
        assert hashlib.sha256(code).digest() == header.coordinates_sha256
        self.assignment = header.assignment
        self.indices = rice_decoded(code)
        places = [[[place.silo, place.record_digest] for place in buffer.members] for buffer in header.assignment]
        self.c2 = digest("fedrep/c2", self.c1, digest("fedrep/consensus", code), digest("fedrep/assignment", places))
        self.mates = {record.silo: record for record in header.mates}
        self.held = {share.dealer: self._opened(share) for share in header.shares}
        return header

    def _opened(self, share: pb.SealedShare) -> tuple[bytes, bytes]:
        names = (self.c1, share.dealer, self.name)
        key = expanded(self.shared_with(self.roster[share.dealer]), "share", *names)
        plain = AESGCM(key).decrypt(bytes(12), share.ciphertext, encoded(*names))
        return plain[:33], plain[33:]

    def submission(self, update: Sequence[float]) -> tuple[pb.SubmissionHeader, bytes]:
        """Quantized to the nearest level; the paper's stochastic rounding needs no agreement with anybody."""
        bits, limit = self.manifest.ring_bits, (1 << (self.manifest.value_bits - 1)) - 1
        scale = limit / self.manifest.clip_range
        levels = [max(-limit, min(limit, round(update[index] * scale))) for index in self.indices]
        place = next(n for n, buffer in enumerate(self.assignment) if any(p.silo == self.name for p in buffer.members))
        masks = [(1, derived(self.seed, "self", self.c2, place, self.name))]
        for member in self.assignment[place].members:
            if member.silo != self.name:
                record = self.mates[member.silo]
                assert self.record_digest(record) == member.record_digest
                agreed = self.mask_key.exchange(X25519PublicKey.from_public_bytes(record.mask_key))
                smaller, larger = sorted((self.name, member.silo), key=str.encode)
                masks.append((1 if self.name == smaller else -1, derived(agreed, "pair", self.c2, place, smaller, larger)))
        for sign, key in masks:
            levels = [level + sign * value for level, value in zip(levels, keystream(key, len(levels), bits), strict=True)]
        masked = b"".join((level % 2**bits).to_bytes(bits // 8, "little") for level in levels)
        header = pb.SubmissionHeader(
            run=self.run,
            round=self.manifest.round,
            signature=self.sign(digest("fedrep/submission", self.c2, self.name)),
            masked_size=len(masked),
            masked_sha256=hashlib.sha256(masked).digest(),
        )
        return header, masked

    def has_company(self) -> bool:
        """Whether enough of this silo's buffer proposed for it to be opened; else the silo is a holder only."""
        own = next((buffer.members for buffer in self.assignment if self.name in [m.silo for m in buffer.members]), ())
        return bool(len(own) >= self.rules.min_survivors)

    def submit(self, header: pb.SubmissionHeader, masked: bytes) -> pb.SubmitMaskedShareResponse:
        answer: pb.SubmitMaskedShareResponse = self.stub.SubmitMaskedShare(
            streamed(pb.SubmitMaskedShareRequest, header, masked), timeout=SECONDS
        )
        return answer

    def survivors(self) -> pb.SurvivorSet:
        request = pb.GetSurvivorsRequest(run=self.run, round=self.manifest.round)
        survivors: pb.SurvivorSet = self.stub.GetSurvivors(request, timeout=SECONDS).survivors
        self.alive = survivors
        return survivors

    def confirmation(self) -> pb.ConfirmSurvivorsRequest:
        listed = [[survivor.silo for survivor in buffer.survivors] for buffer in self.alive.buffers]
        message = digest("fedrep/confirmation", self.c2, digest("fedrep/survivors", listed))
        return pb.ConfirmSurvivorsRequest(run=self.run, round=self.manifest.round, signature=self.sign(message))

    def reveal(self) -> pb.RevealSharesRequest:
        shares = []
        for buffer, alive in zip(self.assignment, self.alive.buffers, strict=True):
            names = {survivor.silo for survivor in alive.survivors}
            if len(names) < self.rules.min_survivors:
                continue
            for place in buffer.members:
                kind = pb.SECRET_KIND_SEED if place.silo in names else pb.SECRET_KIND_KEY
                seed, key = self.held[place.silo]
                share = seed if kind == pb.SECRET_KIND_SEED else key
                shares.append(pb.RevealedShare(dealer=place.silo, secret=kind, share=share))
        return pb.RevealSharesRequest(run=self.run, round=self.manifest.round, shares=shares)

    def statement(self, number: int) -> pb.Statement:
        message = digest("fedrep/statement", self.run, number, self.c1, self.name)
        return pb.Statement(silo=self.name, signature=self.sign(message), c1=self.c1)

    def update(self, number: int) -> tuple[pb.UpdateHeader, bytes]:
        stream = self.stub.GetUpdate(pb.GetUpdateRequest(run=self.run, round=number), timeout=SECONDS)
        header: pb.UpdateHeader = next(stream).header
        payload = b"".join(part.chunk for part in stream)
        assert hashlib.sha256(payload).digest() == header.payload_sha256
        return header, payload

    def follow(self, header: pb.UpdateHeader, payload: bytes) -> None:
        """Apply G in float32, as every silo and the server do, and compare the hash."""
        if header.outcome != pb.OUTCOME_APPLIED:
            return
        coordinates = rice_decoded(payload[: header.coordinates_size])
        levels = struct.unpack(f"<{len(coordinates)}h", payload[header.coordinates_size :])
        for index, level in zip(coordinates, levels, strict=True):
            self.model[index] = single(self.model[index] - single(level * header.scale))
        self.version = header.model_version
        assert model_hash(struct.pack(f"<{len(self.model)}f", *self.model)) == header.model_hash


def single(value: float) -> float:
    """Rounded to float32. A sum or product of two float32 is exact enough in float64 for this to be the float32 result."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def streamed(request: Any, header: Any, data: bytes, size: int = 1 << 19) -> Iterator[Any]:
    yield request(header=header)
    for start in range(0, len(data), size):
        yield request(chunk=data[start : start + size])


def play_round(silos: Iterable[MiniSilo], manifest: pb.RoundManifest, updates: dict[str, list[float]]) -> pb.UpdateHeader:
    """A whole round of honest silos, in one thread but for the calls that wait for each other."""
    silos = list(silos)
    for silo in silos:
        silo.enter(manifest)
        values = updates[silo.name]
        top = sorted(range(len(values)), key=lambda index: -abs(values[index]))[: manifest.per_silo]
        silo.propose(*silo.proposal(sorted(top)))
    for silo in silos:
        silo.consensus()
        if silo.has_company():
            silo.submit(*silo.submission(updates[silo.name]))
    for silo in silos:
        silo.survivors()
    waiting = [silo.stub.ConfirmSurvivors.future(silo.confirmation(), timeout=SECONDS) for silo in silos]
    for silo, confirmed in zip(silos, waiting, strict=True):
        assert len(confirmed.result().signatures) >= silo.threshold - 1, "with its own they reach the threshold"
    for silo in silos:
        silo.stub.RevealShares(silo.reveal(), timeout=SECONDS)
    for silo in silos:
        header, payload = silo.update(manifest.round)
        silo.follow(header, payload)
    return header
