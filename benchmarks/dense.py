"""Dense FedAvg as plain as gRPC can carry it: every silo uploads d floats, gets their mean back. One call a round, over TLS.

What the compressed round is held against on a slow network: nothing is masked, checked or written down.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc
import numpy as np
from numpy.typing import NDArray

from fedrep_identity.authority import CertificateAuthority, issue_credentials
from fedrep_identity.certificates import Credentials, Identity, Role
from fedrep_runtime.tls import channel_options, client_channel_credentials, server_credentials, server_options

CHUNK = 512 * 1024
METHOD = "/fedrep.benchmark.Dense/Average"


class Averaging:
    """One mean at a time, of as many vectors as there are silos."""

    def __init__(self, silos: int, parameters: int) -> None:
        self._silos = silos
        self._sum: NDArray[np.float32] = np.zeros(parameters, np.float32)
        self._arrived = 0
        self._complete: asyncio.Future[bytes] | None = None

    async def average(self, parts: AsyncIterator[bytes], _: grpc.aio.ServicerContext[bytes, bytes]) -> AsyncIterator[bytes]:
        data = b"".join([part async for part in parts])
        if self._complete is None:
            self._complete = asyncio.get_running_loop().create_future()
            self._sum[:] = 0
        complete = self._complete
        self._sum += np.frombuffer(data, "<f4")
        self._arrived += 1
        if self._arrived == self._silos:
            self._arrived, self._complete = 0, None
            complete.set_result((self._sum / np.float32(self._silos)).tobytes())
        mean = await complete
        for start in range(0, len(mean), CHUNK):
            yield mean[start : start + CHUNK]


async def play_dense(silos: int, parameters: int, rounds: int, route: Callable[[str, int], int]) -> list[float]:
    """Seconds of each round, from the first upload to the last silo that has the mean; one round before them does not count."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        authority = CertificateAuthority.create(folder / "ca", "benchmark", "a passphrase for benchmarks")

        def issue(who: str, role: Role, **options: tuple[str, ...]) -> Credentials:
            return issue_credentials(authority, folder / who, Identity(who, role, "benchmark"), **options)  # type: ignore[arg-type]

        own = issue("server", Role.SERVER, dns_names=("localhost",), ips=("127.0.0.1",))
        averaging = Averaging(silos, parameters)
        server = grpc.aio.server(options=server_options())
        handler = grpc.stream_stream_rpc_method_handler(averaging.average)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("fedrep.benchmark.Dense", {"Average": handler}),))
        port = server.add_secure_port("localhost:0", server_credentials(lambda: own.key_pair, own.root))
        await server.start()
        vector = np.random.default_rng(0).standard_normal(parameters, dtype=np.float32).tobytes()
        names = [f"silo-{number:03d}" for number in range(silos)]
        channels = []
        for who in names:
            credentials = issue(who, Role.SILO)
            secured = client_channel_credentials(credentials.root, credentials.key_pair)
            channels.append(grpc.aio.secure_channel(f"localhost:{route(who, port)}", secured, options=channel_options()))

        async def parts() -> AsyncIterator[bytes]:
            for start in range(0, len(vector), CHUNK):
                yield vector[start : start + CHUNK]

        async def take_part(channel: grpc.aio.Channel) -> None:
            received = 0
            async for part in channel.stream_stream(METHOD, None, None)(parts()):
                received += len(part)
            if received != len(vector):
                raise RuntimeError(f"a mean of {received} bytes came back for a vector of {len(vector)}")

        seconds = []
        for _ in range(rounds + 1):
            begun = time.perf_counter()
            async with asyncio.TaskGroup() as group:
                for channel in channels:
                    group.create_task(take_part(channel))
            seconds.append(time.perf_counter() - begun)
        for channel in channels:
            await channel.close(None)
        await server.stop(None)
        return seconds[1:]
