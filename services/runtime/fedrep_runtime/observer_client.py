"""The observer service for command line programs: blocking calls, the server's refusals as errors of this project."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import grpc
import numpy as np
from numpy.typing import NDArray

from fedrep.errors import FedrepError
from fedrep.protocol.manifests import SignedRunManifest
from fedrep.wire import codec
from fedrep.wire.chunks import Assembler, cut_into_chunks
from fedrep.wire.v1 import observer_pb2 as pb
from fedrep.wire.v1.observer_pb2_grpc import ObserverServiceStub
from fedrep_runtime.status import error_of
from fedrep_runtime.tls import KeyPair, channel_options, client_channel_credentials

T = TypeVar("T")
CALL_SECONDS = 30.0
LARGEST_FILE = 16 * 2**30
_SERVICE = pb.DESCRIPTOR.services_by_name["ObserverService"].full_name
# Calls that only ask: repeating one that met a restarting server changes nothing.
ASKING = tuple((_SERVICE, method) for method in ("ListRuns", "GetRun", "ListRounds", "DownloadModel"))


class ObserverClient:
    def __init__(self, address: str, root: bytes, pair: KeyPair, server_name: str | None = None) -> None:
        credentials = client_channel_credentials(root, pair)
        self._channel = grpc.secure_channel(address, credentials, options=channel_options(ASKING, server_name=server_name))
        self.stub: Any = ObserverServiceStub(self._channel)  # type: ignore[no-untyped-call]

    def close(self) -> None:
        self._channel.close()

    def call(self, method: str, request: Any) -> Any:
        return _translated(lambda: getattr(self.stub, method)(request, timeout=CALL_SECONDS))

    def create_run(
        self, signed: SignedRunManifest, options: pb.RunOptions, vector: NDArray[np.float32] | None
    ) -> pb.CreateRunResponse:
        parts = create_run_requests(signed, options, vector)
        response: pb.CreateRunResponse = _translated(lambda: self.stub.CreateRun(parts, timeout=10 * CALL_SECONDS))
        return response

    def rounds(self, run: str) -> list[pb.Round]:
        """All that have ended, page by page."""
        found: list[pb.Round] = []
        following = 1
        while following:
            answer = self.call("ListRounds", pb.ListRoundsRequest(name=run, from_round=following))
            found += answer.rounds
            following = answer.next_round
        return found

    def watch(self, run: str, after: int = 0) -> Iterator[pb.WatchRunResponse]:
        stream = self.stub.WatchRun(pb.WatchRunRequest(name=run, after=after))
        while True:
            try:
                yield _translated(lambda: next(stream))
            except StopIteration:
                return

    def download(self, run: str, *, version: int | None = None, best: bool = False) -> tuple[int, bytes]:
        """(version, safetensors file)."""

        def fetch() -> tuple[int, bytes]:
            stream = self.stub.DownloadModel(pb.DownloadModelRequest(name=run, version=version, best=best))
            header = next(stream).header
            assembler = Assembler(header.size, header.sha256, LARGEST_FILE, "the model file")
            for message in stream:
                assembler.add(message.chunk)
            return header.version, assembler.finish()

        return _translated(fetch)


def create_run_requests(
    signed: SignedRunManifest, options: pb.RunOptions, vector: NDArray[np.float32] | None
) -> Iterator[pb.CreateRunRequest]:
    """The stream of a CreateRun. Without a vector it is a rehearsal: the server checks and creates nothing."""
    data = memoryview(b"") if vector is None else np.ascontiguousarray(vector, "<f4").view(np.uint8).data
    yield pb.CreateRunRequest(
        header=pb.CreateRunHeader(
            manifest=codec.signed_run_to_wire(signed),
            options=options,
            dry_run=vector is None,
            parameters=signed.manifest.parameters,
            sha256=hashlib.sha256(data).digest(),
        )
    )
    for chunk in cut_into_chunks(data):
        yield pb.CreateRunRequest(chunk=chunk)


def _translated(call: Callable[[], T]) -> T:
    try:
        return call()
    except grpc.RpcError as error:
        refusal = error_of(error)
        if refusal is not None:
            raise refusal from error
        raise
    except FedrepError:
        raise
