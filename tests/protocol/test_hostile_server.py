"""Whatever bytes a server sends: a silo takes them or refuses them with an error of ours. So does whoever reads a run's rules."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from google.protobuf.message import DecodeError as ProtobufDecodeError
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrep.errors import FedrepError, RefusedError
from fedrep.protocol.error_memory import judge
from fedrep.protocol.manifests import RunManifest, SignedRoundManifest, SignedRunManifest
from fedrep.protocol.messages import Phase, Update
from fedrep.protocol.model_state import ModelState, indices_of
from fedrep.protocol.preflight import preflight
from fedrep.protocol.silo_round import Ready
from fedrep.protocol.silo_rules import Once, Policy, check_run
from fedrep.wire import codec
from fedrep.wire.v1 import federation_pb2 as pb
from tests.protocol.federation import Federation, Silo

EXAMPLES = int(os.environ.get("FEDREP_FUZZ_EXAMPLES", "60"))
Reader = tuple[Message, Callable[[Any], object]]
# Where, how many bytes go, and what stands there afterwards.
EDITS = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 9), st.binary(max_size=10)), min_size=1, max_size=3)


class Listening:
    """One silo after each of its steps, and what an honest server would tell it next."""

    def __init__(self) -> None:
        self.federation = Federation.of(5, key_kind="p256")
        server = self.federation.until(Phase.REVEAL)
        self.silo: Silo = self.federation.members[-1]
        self.before: ModelState = self.federation.model.state
        self.memory = self.silo.memory
        assert self.memory.pending is not None
        self.place = self.memory.pending.place
        self.consensus = server.consensus_for(self.silo.name)
        self.survivors, self.signatures = server.survivors(), server.confirmations()
        for silo in self.federation.members:
            if not self.federation.over:
                self.federation.reveal(silo)
        self.update = self.federation.finish()

    def readers(self) -> dict[str, Reader]:
        assert self.federation.manifest is not None
        consensus = codec.consensus_to_wire(self.consensus)
        survivors = pb.SurvivorSet()
        survivors.CopyFrom(codec.survivors_to_wire(self.survivors))
        signatures = pb.ConfirmSurvivorsResponse(signatures=codec.signatures_to_wire(self.signatures))
        header, payload = codec.update_to_wire(self.update)
        run = SignedRunManifest(self.federation.run, "admin", b"", b"")
        return {
            "run": (codec.signed_run_to_wire(run), lambda wire: consider(codec.signed_run_from_wire(wire).manifest)),
            "round": (codec.signed_round_to_wire(SignedRoundManifest(self.federation.manifest, b"")), self.enter),
            "consensus": (consensus, self.submit),
            "survivors": (survivors, self.confirm),
            "signatures": (signatures, self.reveal),
            "update": (header, lambda wire: self.settle(codec.update_from_wire(wire, payload))),
        }

    def enter(self, wire: pb.SignedRoundManifest) -> object:
        manifest = codec.signed_round_from_wire(wire).manifest
        peers, sessions = self.federation.peers, self.silo.sessions
        member = self.federation.membership(self.silo)
        hash_, pairs = self.before.hash, self.silo.pairs
        return Ready.enter(member, manifest, peers, sessions, last_round=0, model_hash=hash_, pairs=pairs)

    def submit(self, wire: pb.ConsensusHeader) -> object:
        assert self.silo.proposed is not None
        consensus = codec.consensus_from_wire(wire, self.consensus.coordinates)
        return replace(self.silo.proposed, once=Once()).on_consensus(consensus, self.memory.residual, self.silo.rng)

    def confirm(self, wire: pb.SurvivorSet) -> object:
        assert self.silo.submitted is not None
        return replace(self.silo.submitted, once=Once()).on_survivors(codec.survivors_from_wire(wire))

    def reveal(self, wire: pb.ConfirmSurvivorsResponse) -> object:
        assert self.silo.confirmed is not None
        return replace(self.silo.confirmed, once=Once()).on_signatures(codec.signatures_from_wire(wire.signatures))

    def settle(self, update: Update) -> object:
        self.memory.settle(judge(self.place, update.evidence))
        return self.before.follow(update, indices_of(update, self.before.vector.size))


def consider(run: RunManifest) -> None:
    run.digest()
    preflight(run)
    check_run(run, Policy(epsilon_budget=10.0), "silo-00")


@pytest.fixture(scope="module")
def listening() -> Listening:
    return Listening()


@pytest.mark.parametrize("kind", ["run", "round", "consensus", "survivors", "signatures", "update"])
def test_the_honest_message_is_taken(listening: Listening, kind: str) -> None:
    """Else the changed ones below would be refused for some other reason."""
    message, read = listening.readers()[kind]
    read(message)


@pytest.mark.parametrize("kind", ["run", "round", "consensus", "survivors", "signatures", "update"])
@settings(max_examples=EXAMPLES)
@given(edits=EDITS)
def test_a_changed_message_is_taken_or_refused_with_an_error_of_ours(
    listening: Listening, kind: str, edits: list[tuple[int, int, bytes]]
) -> None:
    message, read = listening.readers()[kind]
    data = bytearray(message.SerializeToString())
    for place, gone, instead in edits:
        start = place % (len(data) + 1)
        data[start : start + gone] = instead
    try:
        changed = type(message).FromString(bytes(data))
    except ProtobufDecodeError:
        return
    try:
        read(changed)
    except FedrepError:
        return


NUMBERS = st.sampled_from([0, 1, 2, 255, 2**31, 2**63, 2**64 - 1])
REALS = st.one_of(st.floats(), st.sampled_from([0.0, 1.0]))
TEXTS = st.one_of(st.text(max_size=8), st.sampled_from(["[" * 100_000, '{"pre": [1]}', '{"pre": [{"name": []}]}', "null"]))


@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_rules_of_a_run_that_make_no_sense_are_refused_with_an_error_of_ours(listening: Listening, data: st.DataObject) -> None:
    run = listening.federation.run
    for name in data.draw(st.lists(st.sampled_from(list(run.__dataclass_fields__)), min_size=1, max_size=3)):
        kind = type(getattr(run, name))
        if kind in (int, float, str):
            value: Any = data.draw({int: NUMBERS, float: REALS, str: TEXTS}[kind])
            run = replace(run, **{name: value})
    try:
        consider(run)
    except FedrepError:
        return


def test_a_run_without_parameters_is_refused_by_a_silo(listening: Listening) -> None:
    with pytest.raises(RefusedError, match="K/d inf"):
        check_run(replace(listening.federation.run, parameters=0), Policy(), "silo-00")


def test_settings_nested_without_end_are_one_more_problem_of_a_run(listening: Listening) -> None:
    problems = preflight(replace(listening.federation.run, aggregator_settings="[" * 100_000))
    assert any("not JSON" in problem for problem in problems)
