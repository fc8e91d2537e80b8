"""Links in a process of their own, so that what they carry does not wait for the program that measures or breaks them.

The program speaks to the process over a socket of this machine: one JSON object a line, one answer each. Any other process that
knows the port may do so too (`LinkControl`).

    with LinkProcess.start() as links:
        port = links.open("silo-0", target=server_port, delay=0.05, bytes_per_second=2.5e6)
        links.set("silo-0", black_hole=True)
        links.counts("silo-0")["round_trips"]
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from contextlib import AsyncExitStack
from dataclasses import astuple, dataclass
from typing import Any

from tests.harness.link import Conditions, Link, Piece, Way
from tests.harness.processes import REPOSITORY


class LinkControl:
    """Steers the links of a process by the port on which it listens for orders."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._file = self._socket.makefile("rwb")

    def open(self, name: str, target: int, port: int = 0, *, traced: bool = False, **conditions: Any) -> int:
        """A new link; returns the port on which it listens."""
        return int(self._ask(do="open", link=name, target=target, port=port, traced=traced, conditions=conditions)["port"])

    def set(self, name: str, **conditions: Any) -> None:
        self._ask(do="set", link=name, conditions=conditions)

    def lead_to(self, name: str, target: int) -> None:
        """Where the connections that follow end; those that are open stay as they are."""
        self._ask(do="target", link=name, target=target)

    def reset(self, name: str) -> int:
        """How many connections it was."""
        return int(self._ask(do="reset", link=name)["connections"])

    def half_close(self, name: str, way: Way) -> int:
        return int(self._ask(do="half_close", link=name, way=way)["connections"])

    def counts(self, name: str) -> dict[str, Any]:
        return dict(self._ask(do="counts", link=name)["counts"])

    def pieces(self, name: str) -> list[Piece]:
        """What a traced link has carried since it was last asked."""
        return [Piece(*piece) for piece in self._ask(do="pieces", link=name)["pieces"]]

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def _ask(self, **order: Any) -> dict[str, Any]:
        self._file.write(json.dumps(order).encode() + b"\n")
        self._file.flush()
        line = self._file.readline()
        if not line:
            raise ConnectionError("the process with the links has ended")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ValueError(answer["error"])
        return answer


@dataclass
class LinkProcess:
    process: subprocess.Popen[bytes]
    control: LinkControl

    @classmethod
    def start(cls) -> LinkProcess:
        variables = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.harness.link_process"],
            cwd=REPOSITORY,
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        return cls(process, LinkControl(int(process.stdout.readline())))

    def __enter__(self) -> LinkControl:
        return self.control

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self.control.close()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()  # it ends with its standard input, so that it outlives nobody
        self.process.wait(30)
        self.process.stdout.close()


class _Desk:
    """Carries out orders."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self._links: dict[str, Link] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            try:
                answer = await self._carry_out(**json.loads(line))
            except (KeyError, TypeError, ValueError, OSError) as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        writer.close()

    async def _carry_out(self, do: str, link: str, **details: Any) -> dict[str, Any]:
        if do == "open":
            made = Link(details["target"], Conditions(), traced=details["traced"])
            made.set(**details["conditions"])
            await self._stack.enter_async_context(made.listening(details["port"]))
            self._links[link] = made
            return {"port": made.port}
        known = self._links[link]
        match do:
            case "set":
                known.set(**details["conditions"])
            case "target":
                known.target = details["target"]
            case "reset":
                return {"connections": known.reset()}
            case "half_close":
                return {"connections": known.half_close(details["way"])}
            case "counts":
                return {"counts": known.snapshot()}
            case "pieces":
                carried, known.pieces = known.pieces or [], []
                return {"pieces": [astuple(piece) for piece in carried]}
            case _:
                raise ValueError(f"no such order: {do}")
        return {}


async def _main() -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(sys.stdin.fileno(), lambda: ended.set() if not os.read(sys.stdin.fileno(), 1024) else None)
    async with AsyncExitStack() as stack:
        desk = _Desk(stack)
        server = await asyncio.start_server(desk.serve, "127.0.0.1", 0)
        sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
        sys.stdout.flush()
        await ended.wait()
        server.close()


if __name__ == "__main__":
    asyncio.run(_main())
