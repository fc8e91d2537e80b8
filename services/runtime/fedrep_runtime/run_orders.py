"""What an admin signs about a run that is under way, from what the server says of it."""

from __future__ import annotations

from collections.abc import Collection

from fedrep.errors import NotFoundError, SettingsError
from fedrep.protocol.advice import advise
from fedrep.protocol.amendments import amended
from fedrep.protocol.manifests import RunHash, RunManifest
from fedrep.protocol.messages import SignedRollback, rollback_message
from fedrep.secagg.keys import SigningKey
from fedrep.wire import codec
from fedrep.wire.v1 import observer_pb2 as pb
from fedrep_runtime.run_config import sign_run

Signer = tuple[str, bytes, SigningKey]

# A round that ended meanwhile makes an order worthless; it is then signed again over the run as it stands, a few times.
OVERTAKEN = ("MODEL_MOVED", "EPOCH_MOVED", "BAD_AMENDMENT")
ORDER_TRIES = 5
AMENDABLE = ("silos", "quorum")  # of what the preflight may propose to change


def amended_manifest(run: pb.GetRunResponse, add: Collection[str], remove: Collection[str], quorum: int | None) -> RunManifest:
    """Another list of silos for the next epoch; whether it can work is the preflight's business."""
    before = codec.run_manifest_from_wire(run.manifest.manifest)
    return amended(before, add, remove, max(run.summary.round, run.open_round), quorum)


def amend_request(
    run: pb.GetRunResponse,
    add: Collection[str],
    remove: Collection[str],
    quorum: int | None,
    signer: Signer,
) -> pb.AmendRunRequest:
    """Another list of silos for the next epoch, signed as (admin, certificate, key). All problems of it at once."""
    manifest = amended_manifest(run, add, remove, quorum)
    advice = advise(manifest, may_change=AMENDABLE)
    if advice.problems:
        raise SettingsError(f"the amended run cannot work: {advice.sentence}", reason="PREFLIGHT")
    return pb.AmendRunRequest(name=run.summary.name, manifest=codec.signed_run_to_wire(sign_run(manifest, *signer)))


def rollback_request(
    run: pb.GetRunResponse, version: int, admin: str, certificate: bytes, key: SigningKey
) -> pb.RollBackRunRequest:
    """The kept `version` as the next one. Another model in between makes it worthless: the server then asks for a new one."""
    kept = next((model for model in run.models if model.version == version), None)
    if kept is None:
        known = ", ".join(str(model.version) for model in run.models)
        raise NotFoundError(
            f"version {version} of run {run.summary.name!r} is not kept on this server; kept are {known}", reason="UNKNOWN_MODEL"
        )
    run_hash, following = RunHash(run.summary.run), run.summary.model_version + 1
    signature = key.sign(rollback_message(run_hash, following, kept.model_hash))
    order = SignedRollback(run_hash, following, kept.model_hash, admin, certificate, signature)
    return pb.RollBackRunRequest(name=run.summary.name, version=version, order=codec.rollback_to_wire(order))
