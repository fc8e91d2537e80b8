"""The contract's methods over one Play, written from the proto file alone: what a stub of gRPC does, without its calls."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

import grpc
from google.protobuf import message_factory
from google.rpc import status_pb2  # type: ignore[import-untyped]

from fedrep.wire.v1 import federation_pb2 as pb
from fedrep.wire.v1.federation_pb2_grpc import FederationServiceStub

SERVICE = pb.DESCRIPTOR.services_by_name["FederationService"]


class PlayedRefusal(grpc.RpcError):
    def __init__(self, status: bytes) -> None:
        self._status = status_pb2.Status.FromString(status)

    def code(self) -> grpc.StatusCode:
        return next(code for code in grpc.StatusCode if code.value[0] == self._status.code)

    def details(self) -> str:
        return str(self._status.message)

    def trailing_metadata(self) -> Any:
        return (("grpc-status-details-bin", self._status.SerializeToString()),)


class PlayedMethod:
    def __init__(self, stub: PlayedStub, name: str) -> None:
        self._stub = stub
        self._method = SERVICE.methods_by_name[name]

    def __call__(self, request: Any, timeout: float | None = None) -> Any:
        parts = self._begun(request, timeout)
        return parts if self._method.server_streaming else _single(parts)

    def future(self, request: Any, timeout: float | None = None) -> PlayedFuture:
        return PlayedFuture(self._begun(request, timeout))

    def _begun(self, request: Any, timeout: float | None) -> Iterator[Any]:
        parts = request if self._method.client_streaming else iter([request])
        return self._stub.begin(self._method.name, parts, timeout)


class PlayedFuture:
    def __init__(self, parts: Iterator[Any]) -> None:
        self._parts = parts

    def result(self) -> Any:
        return _single(self._parts)


def _single(parts: Iterator[Any]) -> Any:
    (answer,) = parts
    return answer


class PlayedStub:
    def __init__(self, channel: grpc.Channel) -> None:
        self.sending: queue.Queue[pb.PlayRequest | None] = queue.Queue()
        self.last = 0
        self._given_up = False
        self._answers: dict[int, queue.Queue[Any]] = {}
        self._stream: Any = FederationServiceStub(channel).Play(iter(self.sending.get, None))  # type: ignore[no-untyped-call]
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def close(self) -> None:
        """The server ends the stream when it has answered everything; an answer that was given up is not waited for."""
        self.sending.put(None)
        if self._given_up:
            self._stream.cancel()
        self._reader.join()

    def _read(self) -> None:
        try:
            for answer in self._stream:
                for each in (answer, *answer.more):
                    self._answers[each.call].put(each)
        except grpc.RpcError as error:
            for answers in self._answers.values():
                answers.put(error)

    def __getattr__(self, name: str) -> PlayedMethod:
        return PlayedMethod(self, name)

    def begin(self, name: str, parts: Iterator[Any], timeout: float | None = None) -> Iterator[Any]:
        self.last += 1
        number, answers = self.last, queue.Queue[Any]()
        self._answers[number] = answers
        for part in parts:
            self.sending.put(pb.PlayRequest(call=number, method=name, message=part.SerializeToString()))
        self.sending.put(pb.PlayRequest(call=number, method=name, last=True))
        return self._received(name, answers, timeout)

    def _received(self, name: str, answers: queue.Queue[Any], timeout: float | None) -> Iterator[Any]:
        response = message_factory.GetMessageClass(SERVICE.methods_by_name[name].output_type)
        while True:
            try:
                answer = answers.get(timeout=timeout or 120.0)
            except queue.Empty:
                self._given_up = True
                late = status_pb2.Status(code=grpc.StatusCode.DEADLINE_EXCEEDED.value[0])
                raise PlayedRefusal(late.SerializeToString()) from None
            if isinstance(answer, grpc.RpcError):
                raise answer
            if answer.status:
                raise PlayedRefusal(answer.status)
            if answer.HasField("message"):
                yield response.FromString(answer.message)
            if answer.last:
                return
