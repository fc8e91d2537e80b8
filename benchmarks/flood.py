"""What an honest silo's Join waits for while another listed silo floods the server, as a ratio to a quiet server in the same run.

The flood comes from a process of its own with a valid certificate. Each kind is one that once stopped the server: reveals of
15 MiB with no round open, Joins with a fresh key each, and proposals that start and never end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import secrets
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import grpc

from benchmarks.idle_silos import FEDERATION, RUN, Shape, create_run, subtracting
from benchmarks.server_process import run_server
from fedrep.protocol.manifests import RunHash, session_key_message
from fedrep.secagg.keys import AgreementKey
from fedrep.wire import codec
from fedrep.wire.v1 import federation_pb2 as pb
from fedrep.wire.v1.federation_pb2_grpc import FederationServiceStub
from fedrep_identity.authority import CertificateAuthority, issue_credentials
from fedrep_identity.certificates import Credentials, Identity, Role
from fedrep_runtime.tls import channel_options, client_channel_credentials

HONEST, FLOODER = "silo-000", "silo-001"
LARGEST = 15 << 20
AT_ONCE = 16
UNDER_WAY = 1.0
PREFIX = "/fedrep.wire.v1.FederationService/"

Call = Callable[[], Any]


class Caller:
    def __init__(self, folder: Path, address: str, run: RunHash) -> None:
        self.own = Credentials.load(folder)
        self.run = run
        secure = client_channel_credentials(self.own.root, self.own.key_pair)
        self.channel = grpc.aio.secure_channel(address, secure, options=channel_options())
        self.stub: Any = FederationServiceStub(self.channel)  # type: ignore[no-untyped-call]

    def join_request(self) -> pb.JoinRequest:
        key = AgreementKey.generate()
        signature = self.own.signing_key.sign(session_key_message(self.run, key.public))
        return pb.JoinRequest(
            run_name=RUN, session_key=key.public, session_signature=signature, protocol_version=codec.PROTOCOL_VERSION
        )

    async def joins(self, count: int) -> list[float]:
        seconds = []
        for _ in range(count):
            request = self.join_request()
            started = time.perf_counter()
            await self.stub.Join(request)
            seconds.append(time.perf_counter() - started)
            await asyncio.sleep(0.05)
        return seconds


def reveals(caller: Caller) -> Call:
    share = pb.RevealedShare(dealer="silo-002", secret=pb.SECRET_KIND_SEED, share=secrets.token_bytes(33))
    shares = [share] * (LARGEST // (share.ByteSize() + 2))
    data = pb.RevealSharesRequest(run=caller.run, round=1, shares=shares).SerializeToString()
    channel: Any = caller.channel
    return lambda: channel.unary_unary(PREFIX + "RevealShares")(data)


def joins(caller: Caller) -> Call:
    return lambda: caller.stub.Join(caller.join_request())


def stalls(caller: Caller) -> Call:
    header = pb.ProposalHeader(run=caller.run, round=1, seed_share_hashes=[bytes(32)] * (LARGEST // 34))
    data = pb.ProposeCoordinatesRequest(header=header).SerializeToString()
    channel: Any = caller.channel

    async def parts() -> AsyncIterator[bytes]:
        yield data
        await asyncio.sleep(3600)

    return lambda: channel.stream_unary(PREFIX + "ProposeCoordinates")(parts())


async def repeat(call: Call) -> None:
    while True:
        try:
            await call()
        except grpc.aio.AioRpcError:  # refused: that is what it should be
            continue


FLOODS: dict[str, Callable[[Caller], Call]] = {"reveals of 15 MiB": reveals, "Joins with fresh keys": joins, "stalls": stalls}


def flood(kind: str, folder: Path, address: str, run: RunHash, pipe: Connection) -> None:
    async def work() -> None:
        caller = Caller(folder, address, run)
        call = FLOODS[kind](caller)
        tasks = [asyncio.create_task(repeat(call)) for _ in range(AT_ONCE)]
        await asyncio.sleep(UNDER_WAY)
        pipe.send("flooding")
        await asyncio.gather(*tasks)

    asyncio.run(work())


def held_mb(pid: int | None) -> float:
    """What the process holds now; its peak starts anew from here, as Linux allows."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return peak_mb(pid)


def peak_mb(pid: int | None) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) / 1024


async def measure(count: int) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    shape = Shape(12, 1_000_000, 0.05, 4, 50, "geometric_median", byzantine=0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        authority = CertificateAuthority.create(folder / "ca", FEDERATION, "a passphrase for benchmarks")

        def issue(who: str, role: Role, **options: Any) -> Credentials:
            return issue_credentials(authority, folder / who, Identity(who, role, FEDERATION), **options)

        issue("server", Role.SERVER, dns_names=("localhost",), ips=("127.0.0.1",))
        admin = issue("admin", Role.ADMIN)
        issue(HONEST, Role.SILO)
        issue(FLOODER, Role.SILO)
        pipe, theirs = context.Pipe()
        server = context.Process(target=run_server, args=(folder, theirs), daemon=True)
        server.start()
        try:
            address = f"localhost:{pipe.recv()}"
            trainer = subtracting(shape)(0)
            signed = await asyncio.to_thread(create_run, shape, address, admin, trainer.layout, trainer.initial())
            run = signed.manifest.digest()
            honest = Caller(folder / HONEST, address, run)
            await honest.joins(5)
            quiet = statistics.median(await honest.joins(count))
            result: dict[str, Any] = {"quiet_ms": 1e3 * quiet, "floods": {}}
            for kind in FLOODS:
                before = held_mb(server.pid)
                ours, flooders = context.Pipe()
                flooder = context.Process(target=flood, args=(kind, folder / FLOODER, address, run, flooders), daemon=True)
                flooder.start()
                ours.recv()
                seconds = await honest.joins(count)
                flooder.kill()
                flooder.join()
                result["floods"][kind] = {
                    "median_ratio": statistics.median(seconds) / quiet,
                    "worst_ratio": max(seconds) / quiet,
                    "memory_mb": peak_mb(server.pid) - before,
                }
            await honest.channel.close(None)
            return result
        finally:
            pipe.send("stop")
            server.join(30)
            server.kill()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flood", description=__doc__)
    parser.add_argument("--joins", type=int, default=60, help="honest Joins per kind of flood")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    result = asyncio.run(measure(options.joins))
    print(f"an honest Join on a quiet server: {result['quiet_ms']:.1f} ms; {AT_ONCE} floods at once from one other silo")
    for kind, figures in result["floods"].items():
        ratios = f"median {figures['median_ratio']:.1f} times that, worst {figures['worst_ratio']:.1f} times"
        print(f"  {kind:22s} {ratios}; the server grew by {figures['memory_mb']:.0f} MB")
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
