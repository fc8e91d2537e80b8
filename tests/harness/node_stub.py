"""A stub whose calls are made by Node's grpc-js, in a process of its own: another HTTP/2, another TLS, another protobuf."""

from __future__ import annotations

import base64
import itertools
import json
import queue
import shutil
import subprocess
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor

from fedrep.wire.v1 import federation_pb2, observer_pb2
from fedrep_identity.certificates import CERTIFICATE_FILE, KEY_FILE, ROOT_FILE

REPOSITORY = Path(__file__).parents[2]
MODULES = REPOSITORY / ".bench" / "grpc-js" / "node_modules"
SECONDS = 120.0


def missing() -> str:
    """Why there is no Node to call with; empty if there is."""
    if shutil.which("node") is None:
        return "Node is not installed here."
    return "" if (MODULES / "@grpc" / "grpc-js").is_dir() else "grpc-js is not installed: `make foreign-clients` does so."


class NodeRefusal(grpc.RpcError):
    def __init__(self, answer: dict[str, Any]) -> None:
        self._answer = answer

    def code(self) -> grpc.StatusCode:
        return next(code for code in grpc.StatusCode if code.value[0] == self._answer["code"])

    def details(self) -> str:
        return str(self._answer["details"])

    def trailing_metadata(self) -> Any:
        status = base64.b64decode(self._answer["status"])
        return (("grpc-status-details-bin", status),) if status else ()


class NodeCaller:
    """One Node with one identity, for both services."""

    def __init__(self, address: str, credentials: Path) -> None:
        files = [str(credentials / name) for name in (ROOT_FILE, KEY_FILE, CERTIFICATE_FILE)]
        script = Path(__file__).with_name("node_caller.js")
        self._process = subprocess.Popen(
            ["node", str(script), str(MODULES), str(REPOSITORY / "proto"), address, *files],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._numbers = itertools.count(1)
        self._answers: dict[int, queue.Queue[dict[str, Any]]] = {}
        self._writing = threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(SECONDS)
        self._reader.join()
        self._process.stdout.close()

    def stub(self, service: str) -> NodeStub:
        found = {**federation_pb2.DESCRIPTOR.services_by_name, **observer_pb2.DESCRIPTOR.services_by_name}
        return NodeStub(self, found[service])

    def begin(self, method: MethodDescriptor, parts: Iterable[Any]) -> Iterator[Any]:
        number = next(self._numbers)
        self._answers[number] = queue.Queue()
        named = {"id": number, "service": method.containing_service.name, "method": method.name}
        for part in parts:
            self._say(named | {"message": base64.b64encode(part.SerializeToString()).decode()})
        self._say(named | {"last": True})
        return self._received(number, message_factory.GetMessageClass(method.output_type))

    def _received(self, number: int, response: Any) -> Iterator[Any]:
        while "last" not in (answer := self._answers[number].get(timeout=SECONDS)):
            if "code" in answer:
                raise NodeRefusal(answer)
            yield response.FromString(base64.b64decode(answer["message"]))

    def _say(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with self._writing:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            self._answers[answer["id"]].put(answer)


class NodeStub:
    """Called like a stub of gRPC's."""

    def __init__(self, caller: NodeCaller, service: ServiceDescriptor) -> None:
        self._caller = caller
        self._service = service

    def __getattr__(self, name: str) -> NodeMethod:
        return NodeMethod(self._caller, self._service.methods_by_name[name])


class NodeMethod:
    def __init__(self, caller: NodeCaller, method: MethodDescriptor) -> None:
        self._caller = caller
        self._method = method

    def __call__(self, request: Any, timeout: float | None = None) -> Any:
        del timeout  # the limit is the caller's
        parts = self._caller.begin(self._method, request if self._method.client_streaming else [request])
        return parts if self._method.server_streaming else _single(parts)

    def future(self, request: Any, timeout: float | None = None) -> NodeFuture:
        del timeout
        return NodeFuture(self._caller.begin(self._method, [request]))


class NodeFuture:
    def __init__(self, parts: Iterator[Any]) -> None:
        self._parts = parts

    def result(self) -> Any:
        return _single(self._parts)


def _single(parts: Iterator[Any]) -> Any:
    (answer,) = parts
    return answer
