"""Old and new releases side by side: who speaks another version of the protocol learns it in a sentence."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from fedrep_runtime.status import reason_of
from fedrep_runtime.tls import channel_options, client_channel_credentials
from tests.harness.federation import Federation
from tests.harness.processes import run_scenario


@pytest.mark.parametrize(("version", "advice"), [(0, "Upgrade your fedrep"), (2, "Upgrade the server")])
def test_a_silo_of_another_protocol_version_is_told_which_one_is_spoken(version: int, advice: str, tmp_path: Path) -> None:
    federation = Federation.create(tmp_path, silos=1)
    silo = federation.credentials("silo-0")

    def call() -> Any:
        channel: Any  # the stubs do not know that serializers may be left out
        secure = client_channel_credentials(silo.root, silo.key_pair)
        with grpc.secure_channel(federation.address, secure, channel_options()) as channel:
            join = channel.unary_unary(f"/fedrep.wire.v{version}.FederationService/Join")
            with pytest.raises(grpc.RpcError) as caught:
                join(b"a message of another time", timeout=120)
            return caught.value

    async def scenario() -> Any:
        async with federation.serving():
            return await asyncio.to_thread(call)

    error = run_scenario(scenario())
    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert reason_of(error) == "OTHER_VERSION"
    assert f"speaks version {version} of the protocol" in error.details()
    assert advice in error.details()


def test_a_method_that_is_not_of_this_protocol_is_not_found(tmp_path: Path) -> None:
    federation = Federation.create(tmp_path, silos=1)
    silo = federation.credentials("silo-0")

    def call() -> grpc.StatusCode:
        channel: Any
        with grpc.secure_channel(federation.address, client_channel_credentials(silo.root, silo.key_pair)) as channel:
            with pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary("/somebody.else.Service/Call")(b"", timeout=120)
            return caught.value.code()

    async def scenario() -> grpc.StatusCode:
        async with federation.serving():
            return await asyncio.to_thread(call)

    assert run_scenario(scenario()) is grpc.StatusCode.UNIMPLEMENTED
