"""Every decoder of bytes that somebody else wrote, or a crash left behind: each answers, or refuses with an error of ours.

A target takes any bytes and says whether they were accepted. An exception that is not a `FedrepError` is a fault, and so is an
answer that does not hold what the decoder promises. Where a checksum would stop every guess, the target computes it.
"""

from __future__ import annotations

import json
import shutil
import struct
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError as ProtobufDecodeError

from fedrep.coding import decode_coordinates, decode_values, encode_coordinates, encode_values
from fedrep.errors import FedrepError
from fedrep.protocol.manifests import RunHash, SiloName
from fedrep.protocol.messages import Descent
from fedrep.protocol.model_state import decode_descent, model_hash
from fedrep.secagg.keys import AgreementKey, SecretBytes, load_verify_key
from fedrep.secagg.shamir import ELEMENT_BYTES, combine
from fedrep.secagg.shares import open_share
from fedrep.wire import codec
from fedrep.wire.chunks import Assembler
from fedrep.wire.v1 import federation_pb2 as pb
from fedrep_identity.authority import public_key_of
from fedrep_identity.certificates import load_chain
from fedrep_identity.folder import FEDERATION_FILE, FederationAddresses
from fedrep_identity.invitations import PREFIX, Invitation, _checksum, _text
from fedrep_identity.names import identity_of
from fedrep_identity.revocation import parse_revocations
from fedrep_identity.roster import load_pinned_roster
from fedrep_runtime.model_files import read_flat_vector, read_model
from fedrep_runtime.run_config import RunConfig
from fedrep_runtime.settings import load_settings
from fedrep_server.config import ServerSettings
from fedrep_server.rounds.model_store import STEP_SUFFIX, FolderModelStore
from fedrep_silo.audit import Audit
from fedrep_silo.change_log import MARK, read_log
from fedrep_silo.config import load_silo_settings
from fedrep_silo.ledgers import LedgerFolder
from fedrep_silo.record_books import RecordBooks
from fedrep_silo.state import StateFolder
from fedrep_trainers.files import read_cifar_batch, read_idx

A = SiloName("a")
RUN = RunHash(b"r" * 32)
PARAMETERS = 6
_OWN = AgreementKey(SecretBytes(b"\x07" * 32))


class UnsoundError(AssertionError):
    """The decoder accepted something that it promises to refuse."""


@dataclass(frozen=True)
class Message:
    """A decoder of protobuf messages: `kind` says how to build others. A header has its length before it, a payload behind."""

    kind: Any
    decode: Callable[[Any, bytes], object]
    headed: bool = False

    def __call__(self, data: bytes) -> object:
        header, payload = self.parts(data)
        return self.decode(self.kind.FromString(header), payload)

    def parts(self, data: bytes) -> tuple[bytes, bytes]:
        if not self.headed:
            return data, b""
        size = int.from_bytes(data[:2], "little")
        return data[2 : 2 + size], data[2 + size :]

    def joined(self, header: bytes, payload: bytes) -> bytes:
        return len(header).to_bytes(2, "little") + header + payload if self.headed else header


@dataclass(frozen=True)
class Target:
    decode: Callable[[bytes], object]

    def accepts(self, data: bytes) -> bool:
        try:
            self.decode(data)
        except (FedrepError, ProtobufDecodeError):
            return False
        return True


def _coordinates(data: bytes) -> None:
    """d and the largest count come first."""
    d, most, message = int.from_bytes(data[:4], "little"), int.from_bytes(data[4:6], "little"), data[6:]
    members = decode_coordinates(message, max(d, 1), most)
    if members.size > most:
        raise UnsoundError("more coordinates than allowed")
    if encode_coordinates(members, max(d, 1)) != message:
        raise UnsoundError("two messages stand for one set")


def _values(data: bytes) -> None:
    dtype = ("u1", "u2", "u4", "i2", "f4")[data[0] % 5] if data else "u1"
    count = int.from_bytes(data[1:5], "little")
    if encode_values(decode_values(data[5:], dtype, count)) != data[5:]:
        raise UnsoundError("values do not encode to the bytes they came from")


def _descent(data: bytes) -> None:
    bits, count = (data[0], data[1]) if len(data) > 1 else (16, 0)
    (scale,) = struct.unpack("<f", data[2:6].ljust(4, b"\0"))
    decode_descent(Descent(b"", data[6:], scale, bits), count)


def _combined(data: bytes) -> None:
    """Threshold, then a point and a share each."""
    size = 1 + ELEMENT_BYTES
    shares = {data[start]: data[start + 1 : start + size] for start in range(1, len(data), size)}
    combine(shares, data[0] if data else 0)


def _sealed(data: bytes) -> None:
    open_share(_OWN.exchange(data[:32]), b"c" * 32, "a", "b", data[32:])


def _streamed(data: bytes) -> None:
    """Announced size and hash, then chunks with a length byte each."""
    assembler = Assembler(int.from_bytes(data[:8], "little"), data[8:40], limit=1 << 12, what="the vector")
    rest = data[40:]
    while rest:
        assembler.add(rest[1 : 1 + rest[0]])
        rest = rest[1 + rest[0] :]
    assembler.finish()


def _wire(kind: Any, decode: Callable[[Any], object]) -> Message:
    return Message(kind, lambda message, _: decode(message))


def _split(kind: Any, decode: Callable[[Any, bytes], object]) -> Message:
    return Message(kind, decode, headed=True)


def _token(data: bytes) -> None:
    """A body under its right checksum."""
    Invitation.from_token(f"{PREFIX}.{_text(data)}.{_text(_checksum(data))}")


def _certificates(data: bytes) -> None:
    for certificate in load_chain(data):
        identity_of(certificate)


def _revocations(data: bytes) -> None:
    """The authorities' certificates, a zero, then the lists."""
    authorities, _, lists = data.partition(b"\0")
    parse_revocations(lists, load_chain(authorities))


def _in_file(name: str, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    """In a folder of its own, which the target finds empty each time."""

    def decode(data: bytes) -> object:
        folder = Path(tempfile.mkdtemp(prefix="fedrep-fuzz-", dir=_MEMORY if _MEMORY.is_dir() else None))
        try:
            (folder / name).write_bytes(data)
            return read(folder / name)
        finally:
            shutil.rmtree(folder)

    return decode


_MEMORY = Path("/dev/shm")


def _audit(path: Path) -> None:
    for entry in Audit(path).entries():
        if not {"at", "what", "bytes", "round"} <= entry.keys():
            raise UnsoundError("an entry without what every entry has")


def record_of(payload: bytes) -> bytes:
    """A record of a change log, with the checksums that it must have."""
    head = struct.pack("<4sQI", MARK, len(payload), zlib.crc32(payload))
    return head + struct.pack("<I", zlib.crc32(head)) + payload


def _logged(data: bytes) -> None:
    """A state folder whose log has one whole record, whatever it says."""

    def read(path: Path) -> None:
        path.with_name("journal.json").write_text(json.dumps(JOURNAL | {"log": 1}))
        state = StateFolder(path.parent)
        state.journal()
        state.memory(PARAMETERS)
        state.model()

    _in_file("changes-1.log", read)(record_of(data))


JOURNAL = {"run": "", "last_round": 0, "revealed": [], "renounced": [], "ledger": {}, "proposal": None}


def _memory(path: Path) -> None:
    StateFolder(path.parent).memory(PARAMETERS)


def _ledger(path: Path) -> None:
    ledger = LedgerFolder(path.parent, "a").of("r")
    if ledger.total is not None and not ledger.total >= 0:
        raise UnsoundError("a ledger with a negative total")


def _journal(path: Path) -> None:
    state = StateFolder(path.parent)
    state.journal()
    state.status()


def _finite_model(path: Path) -> None:
    if not np.isfinite(read_model(path)[1]).all():
        raise UnsoundError("a model that is not finite")


def _of_server(decode: Callable[[FolderModelStore], object]) -> Callable[[Path], object]:
    """The model store of a server, in whose folder of a run the file lies."""

    def read(path: Path) -> object:
        (path.parent / "r").mkdir()
        path.rename(path.parent / "r" / path.name)
        return decode(FolderModelStore(path.parent))

    return read


def _finite_checkpoint(store: FolderModelStore) -> None:
    found = store.get("r", 1)
    if found.version != 1 or model_hash(found.vector, found.hash) != found.hash:
        raise UnsoundError("a model that is not what its hash says")


_DECODERS: dict[str, Callable[[bytes], object]] = {
    "coordinates": _coordinates,
    "values": _values,
    "descent": _descent,
    "shamir": _combined,
    "sealed_share": _sealed,
    "verify_key": load_verify_key,
    "stream": _streamed,
    "run_manifest": _wire(pb.RunManifest, lambda wire: codec.run_manifest_from_wire(wire).digest()),
    "signed_run": _wire(pb.SignedRunManifest, codec.signed_run_from_wire),
    "amendments": _wire(pb.Amendments, codec.amendments_from_wire),
    "round_manifest": _wire(pb.RoundManifest, codec.round_manifest_from_wire),
    "signed_round": _wire(pb.SignedRoundManifest, codec.signed_round_from_wire),
    "promise": _wire(pb.JoinRequest, codec.promise_from_wire),
    "proposal": _split(pb.ProposalHeader, partial(codec.proposal_from_wire, A)),
    "consensus": _split(pb.ConsensusHeader, codec.consensus_from_wire),
    "submission": _split(pb.SubmissionHeader, partial(codec.submission_from_wire, A)),
    "survivors": _wire(pb.SurvivorSet, codec.survivors_from_wire),
    "confirmation": _wire(pb.ConfirmSurvivorsRequest, partial(codec.confirmation_from_wire, A)),
    "signatures": _wire(pb.ConfirmSurvivorsResponse, lambda wire: codec.signatures_from_wire(wire.signatures)),
    "reveal": _wire(pb.RevealSharesRequest, partial(codec.reveal_from_wire, A)),
    "abstention": _wire(pb.AbstainRequest, partial(codec.abstention_from_wire, A)),
    "rollback": _wire(pb.SignedRollback, codec.rollback_from_wire),
    "statement": _wire(pb.Statement, lambda wire: codec.statement_from_wire(wire, RUN, 1)),
    "update": _split(pb.UpdateHeader, codec.update_from_wire),
    "token": lambda data: Invitation.from_token(data.decode("latin-1")),
    "token_body": _token,
    "certificates": _certificates,
    "request": public_key_of,
    "revocations": _revocations,
    "roster": _in_file("roster", load_pinned_roster),
    "addresses": _in_file(FEDERATION_FILE, lambda path: FederationAddresses.load(path.parent)),
    "change_log": _in_file("changes-1.log", read_log),
    "change_record": _logged,
    "journal": _in_file("journal.json", _journal),
    "memory": _in_file("memory.safetensors", _memory),
    "silo_model": _in_file("model.safetensors", lambda path: StateFolder(path.parent).model()),
    "ledger": _in_file("a-r.json", _ledger),
    "record_books": _in_file("records.json", lambda path: RecordBooks(path.parent, None).ledger()),
    "audit": _in_file("audit.jsonl", _audit),
    "model_file": _in_file("model.safetensors", _finite_model),
    "checkpoint": _in_file("1.safetensors", _of_server(_finite_checkpoint)),
    "model_step": _in_file(f"1{STEP_SUFFIX}", _of_server(lambda store: store.step("r", 1))),
    "flat_vector": _in_file("model.npy", lambda path: read_flat_vector(path, "model.npy")),
    "idx": _in_file("images", read_idx),
    "idx_gz": _in_file("images.gz", read_idx),
    "cifar_batch": _in_file("batch", read_cifar_batch),
    "run_toml": _in_file("run.toml", lambda path: load_settings(RunConfig, path, "FEDREP_RUN", {})),
    "client_toml": _in_file("client.toml", lambda path: load_silo_settings(path, {})),
    "server_toml": _in_file("server.toml", lambda path: load_settings(ServerSettings, path, "FEDREP_SERVER", {})),
}
TARGETS = {name: Target(decode) for name, decode in _DECODERS.items()}
