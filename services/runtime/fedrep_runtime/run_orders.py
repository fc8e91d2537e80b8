"""What an admin signs about a run that is under way, from what the server says of it."""

from __future__ import annotations

from fedrep.errors import NotFoundError
from fedrep.protocol.manifests import RunHash
from fedrep.protocol.messages import SignedRollback, rollback_message
from fedrep.secagg.keys import SigningKey
from fedrep.wire import codec
from fedrep.wire.v1 import observer_pb2 as pb


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
