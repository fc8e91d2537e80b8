"""What each target starts from: honest messages and files, as the code of now writes them.

`python -m tests.fuzz.seeds` puts them into the corpus.
"""

from __future__ import annotations

import datetime as dt
import gzip
import hashlib
import json
import pickle
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec
from safetensors.numpy import save

from fedrep.coding import encode_coordinates
from fedrep.privacy import CoordinateRelease, Ledger
from fedrep.protocol.manifests import SignedRoundManifest, SignedRunManifest
from fedrep.protocol.model_state import ModelState, ServerModel
from fedrep.protocol.silo_state import Journal
from fedrep.record_privacy import RecordLedger, SampledGaussian
from fedrep.secagg.keys import AgreementKey, SecretBytes, generate_signing_key
from fedrep.secagg.shamir import split
from fedrep.secagg.shares import seal_share
from fedrep.wire import codec
from fedrep.wire.v1 import federation_pb2 as pb
from fedrep_identity.authority import CertificateAuthority, certificate_request
from fedrep_identity.invitations import Invitation
from fedrep_identity.names import Identity, Role
from fedrep_server.rounds.model_steps import StoredStep
from fedrep_server.rounds.model_store import FolderModelStore
from fedrep_silo.audit import Audit
from fedrep_silo.state_files import journal_notes, model_notes
from tests.fuzz.corpus import add
from tests.fuzz.targets import _OWN, PARAMETERS, record_of
from tests.unit import test_wire_codec as examples

VECTOR = np.arange(PARAMETERS, dtype=np.float32)


def _headed(header: Any, payload: bytes) -> bytes:
    encoded = header.SerializeToString()
    return len(encoded).to_bytes(2, "little") + bytes(encoded) + payload


def messages() -> Iterator[tuple[str, bytes]]:
    proposal, consensus, submission = examples.PROPOSAL, examples.CONSENSUS, examples.SUBMISSION
    header, payload = codec.update_to_wire(examples.UPDATE)
    yield "proposal", _headed(codec.proposal_to_wire(proposal), proposal.coordinates)
    yield "consensus", _headed(codec.consensus_to_wire(consensus), consensus.coordinates)
    yield "submission", _headed(codec.submission_to_wire(submission), bytes(submission.masked))
    yield "update", _headed(header, payload)
    run = SignedRunManifest(examples.RUN_MANIFEST, "admin", b"pem", b"sig")
    plain: dict[str, Any] = {
        "run_manifest": codec.run_manifest_to_wire(examples.RUN_MANIFEST),
        "signed_run": codec.signed_run_to_wire(run),
        "amendments": codec.amendments_to_wire((run,), 0),
        "round_manifest": codec.round_manifest_to_wire(examples.ROUND_MANIFEST),
        "signed_round": codec.signed_round_to_wire(SignedRoundManifest(examples.ROUND_MANIFEST, b"pem", b"sig")),
        "promise": pb.JoinRequest(promise=pb.RecordPromise(epsilon=8.0, delta=1e-5)),
        "survivors": codec.survivors_to_wire(examples.SURVIVORS),
        "confirmation": codec.confirmation_to_wire(examples.CONFIRMATION),
        "signatures": pb.ConfirmSurvivorsResponse(signatures=[pb.HolderSignature(silo="a", signature=b"sig")]),
        "reveal": codec.reveal_to_wire(examples.REVEAL),
        "abstention": codec.abstention_to_wire(examples.ABSTENTION),
        "rollback": codec.rollback_to_wire(examples.ROLLBACK),
        "statement": codec.statement_to_wire(examples.STATEMENT),
    }
    for name, message in plain.items():
        yield name, message.SerializeToString()


def numbers() -> Iterator[tuple[str, bytes]]:
    for d, members in ((1, [0]), (300, [1, 7, 8, 250]), (2**31, [5, 2**30]), (64, list(range(64)))):
        yield "coordinates", struct.pack("<IH", d, 500) + encode_coordinates(np.array(members), d)
    for kind, value in enumerate((b"\1\2", b"\1\0\2\0", b"\1\0\0\0\2\0\0\0", b"\1\0\2\0", b"\0\0\x80?\0\0\0@")):
        yield "values", bytes([kind]) + (2).to_bytes(4, "little") + value
    yield "descent", bytes([16, 2]) + struct.pack("<f2h", 0.5, 3, -3)
    yield "descent", bytes([32, 1]) + struct.pack("<2f", 1.0, 0.25)
    shares = split(b"s" * 32, 2, 3, lambda size: b"\1" * size)
    yield "shamir", b"\2" + b"".join(bytes([point]) + share for point, share in enumerate(shares, start=1))
    peer = AgreementKey(SecretBytes(b"\5" * 32))
    yield "sealed_share", peer.public + seal_share(peer.exchange(_OWN.public), b"c" * 32, "a", "b", shares[0], shares[1])
    for key in (generate_signing_key("p256"), generate_signing_key("ed25519")):
        yield "verify_key", key.verify_key.encoded
    data = b"0123456789"
    yield "stream", len(data).to_bytes(8, "little") + hashlib.sha256(data).digest() + b"\4" + data[:4] + b"\6" + data[4:]


def identities() -> Iterator[tuple[str, bytes]]:
    with tempfile.TemporaryDirectory() as temporary:
        authority = CertificateAuthority.create(Path(temporary), "demo", "passphrase of nobody")
        request = certificate_request(ec.generate_private_key(ec.SECP256R1()))
        yield "request", request
        yield "certificates", authority.sign(request, Identity("a", Role.SILO, "demo"))
        yield "revocations", authority.root + b"\0" + authority.publish_revocations()
    when = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
    token = Invitation("i", SecretBytes(b"s" * 32), "a", Role.SILO, "demo", "ca:1", "server:2", b"p" * 32, when).token()
    yield "token", token.encode()
    said = {
        "i": "i",
        "s": "c3" * 21 + "c",
        "n": "a",
        "r": "silo",
        "f": "demo",
        "a": "ca:1",
        "w": "server:2",
        "p": "cA",
        "x": 1893456000,
    }
    yield "token_body", json.dumps(said).encode()
    yield "roster", b"00" * 32 + b"  # a\n"
    addresses = {"federation": "demo", "server": "server:2", "enrolment": "ca:1", "certificates": "ca:3"}
    yield "addresses", json.dumps(addresses).encode()


def states() -> Iterator[tuple[str, bytes]]:
    journal = Journal("r", 3, (1, 2), (), Ledger().charge(CoordinateRelease(3, 100, 5, 0.5)), None, "r")
    notes = journal_notes(journal)
    yield "journal", json.dumps(notes | {"log": 0}).encode()
    model = ModelState.initial(VECTOR)
    kept = {"given_up": 0, "clipped_mass": 0.0, "pending": [], "private": False}
    yield "memory", save({"residual": VECTOR, "trainer.momentum": VECTOR}, {"fedrep": json.dumps(kept)})
    yield "silo_model", save({"model": VECTOR}, {"fedrep": json.dumps(model_notes(model))})
    changes: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"journal": notes}, {}),
        (
            {"memory": {"base": "residual", "settled": True, "given_up": 0, "clipped_mass": 0.0}},
            {"residual.indices": np.array([1], np.uint32), "residual.values": VECTOR[:1]},
        ),
        ({"memory": {"fate": "opened", "given_up": 0, "clipped_mass": 0.0}}, {}),
        (
            {"memory": {"snapshot": {"base": "a", "trainer": "none", "given_up": 0, "clipped_mass": 0.0, "private": False}}},
            {"patch.indices": np.array([1], np.uint32), "patch.values": VECTOR[:1]},
        ),
    ]
    for change, values in changes:
        payload = save(values, {"fedrep": json.dumps(change)})
        yield "change_record", payload
        yield "change_log", record_of(payload) + record_of(payload)[:-3]
    yield "ledger", json.dumps(journal.ledger.to_dict()).encode()
    charged = RecordLedger().charge("r", SampledGaussian(1.1, 0.1, 5))
    yield "record_books", json.dumps(charged.to_dict()).encode()
    with tempfile.TemporaryDirectory() as temporary:
        audit = Audit(Path(temporary) / "audit.jsonl")
        audit.sent("proposal", 12, 1, epsilon_total=0.5)
        yield "audit", (Path(temporary) / "audit.jsonl").read_bytes()


def stored_models() -> Iterator[tuple[str, bytes]]:
    """As a server keeps them: a whole one, and the step to the next."""
    with tempfile.TemporaryDirectory() as temporary:
        store, model = FolderModelStore(Path(temporary)), ServerModel.initial(VECTOR)
        indices = np.array([1, 4])
        after, descent = model.apply(indices, encode_coordinates(indices, PARAMETERS), np.array([0.5, -1.0], np.float32), 16)
        state = after.state
        store.put("r", 1, state.vector, after.residual, state.hash, state.chain)
        yield "checkpoint", store.path("r", 1).read_bytes()
        store.put_step("r", StoredStep(1, descent, after.residual[indices], state.hash, state.chain))
        yield "model_step", store.step_path("r", 1).read_bytes()


def files() -> Iterator[tuple[str, bytes]]:
    yield "model_file", save({"b": VECTOR, "a": VECTOR.reshape(2, 3)}, {"fedrep.order": '["b", "a"]'})
    yield "model_file", save({"b": VECTOR})
    with tempfile.TemporaryDirectory() as temporary:
        np.save(Path(temporary) / "v.npy", VECTOR)
        yield "flat_vector", (Path(temporary) / "v.npy").read_bytes()
    idx = b"\0\0\x08\2" + struct.pack(">2I", 2, 3) + bytes(6)
    yield "idx", idx
    yield "idx_gz", gzip.compress(idx, mtime=0)
    yield "cifar_batch", pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": [3]}, protocol=2)
    yield "run_toml", b'name = "r"\nsilos = ["a", "b"]\nrounds = 3\n[aggregator]\nname = "median"\n[deadlines]\npropose = 5\n'
    yield "client_toml", b'server = "h:1"\nrun = "r"\n[trainer]\ndataset = "digits"\n[policy]\nallow_drills = true\n'
    yield "server_toml", b'host = "127.0.0.1"\nport = 8550\ndata = "d"\n[retention]\n'


def main() -> None:
    for part in (messages(), numbers(), identities(), states(), stored_models(), files()):
        for name, data in part:
            add(name, data)


if __name__ == "__main__":
    main()
