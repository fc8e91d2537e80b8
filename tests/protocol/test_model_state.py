"""The model on both sides of the wire: the same bits, a residual that loses nothing, a chain that tells every history apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from blake3 import blake3
from numpy.typing import NDArray

from fedrep.coding import encode_coordinates
from fedrep.errors import DecodeError, NonFiniteError, RefusedError
from fedrep.protocol.manifests import RunHash
from fedrep.protocol.messages import Descent, Evidence, Outcome, Update
from fedrep.protocol.model_state import (
    BLAKE3,
    ModelState,
    ServerModel,
    decode_descent,
    encode_levels,
    first_link,
    indices_of,
    model_hash,
    next_link,
)
from fedrep.secagg.transcript import digest
from tests.protocol.federation import Federation

D = 500


def updates(model: ServerModel, rounds: int, bits: int = 16) -> list[tuple[ServerModel, NDArray[np.int64], Update]]:
    """Some rounds of random updates, as (server after it, I, what goes down)."""
    rng = np.random.default_rng(0)
    history = []
    for number in range(1, rounds + 1):
        indices = np.sort(rng.choice(D, 60, replace=False))
        model, descent = model.apply(indices, b"", rng.normal(size=60).astype(np.float32), bits)
        evidence = Evidence(opened=(0,))
        update = Update(RunHash(b"run"), number, Outcome.APPLIED, "", model.state.name, evidence, descent)
        history.append((model, indices, update))
    return history


def initial(seed: int = 1) -> ServerModel:
    return ServerModel.initial(np.random.default_rng(seed).normal(size=D).astype(np.float32))


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_a_silo_that_follows_holds_the_servers_model_bit_for_bit(bits: int) -> None:
    server = initial()
    silo = server.state
    for model, indices, update in updates(server, 20, bits):
        silo = silo.follow(update, indices)
        assert silo.vector.tobytes() == model.state.vector.tobytes()
        assert silo.name == update.model
    assert silo.version == 20


def test_a_silo_that_knows_i_keeps_its_own_and_not_what_the_update_says() -> None:
    """What it keeps is what a restart applies again: with a server's other coordinates the silo would lose its model over it."""
    server = initial()
    ((_, indices, update),) = updates(server, 1)
    assert update.descent is not None
    lie = replace(update, descent=replace(update.descent, coordinates=encode_coordinates(np.arange(60), D)))
    known = encode_coordinates(indices, D)
    followed = server.state.follow(lie, indices, known)
    assert followed.descent is not None
    assert followed.descent.coordinates == known


def test_a_model_that_takes_the_memory_of_the_one_before_has_the_same_bits() -> None:
    server = initial()
    silo = replace(server.state, vector=server.state.vector.copy())
    memory = silo.vector
    for model, indices, update in updates(server, 5):
        silo = silo.follow(update, indices, in_place=True)
        assert silo.vector is memory
        assert silo.vector.tobytes() == model.state.vector.tobytes()


def test_a_refused_update_leaves_a_model_as_it_was_even_in_place() -> None:
    server = initial()
    before = server.state.vector.tobytes()
    _, indices, update = updates(server, 1)[0]
    other = replace(update, model=replace(update.model, hash=bytes(33)))
    with pytest.raises(RefusedError, match="not the one the server names"):
        server.state.follow(other, indices, in_place=True)
    assert server.state.vector.tobytes() == before
    assert update.descent is not None
    huge = replace(update, descent=replace(update.descent, levels=encode_levels(np.full(60, 32767, "<i2")), scale=1e34))
    full = replace(server.state, vector=np.full(D, -3e38, np.float32))
    with pytest.raises(NonFiniteError):
        full.follow(huge, indices, in_place=True)
    assert (full.vector == np.float32(-3e38)).all()


def test_a_run_that_began_with_sha_256_keeps_it() -> None:
    """Hashes and manifests of older runs stay valid: their model is hashed as it always was."""
    vector = np.arange(D, dtype=np.float32)
    old = digest("fedrep/model", vector.tobytes())
    assert model_hash(vector, old) == old
    server = ServerModel.initial(vector, old)
    silo = server.state
    for _, indices, update in updates(server, 3):
        assert len(update.model.hash) == len(old)
        silo = silo.follow(update, indices)
        assert silo.hash == digest("fedrep/model", silo.vector.tobytes())


def test_a_new_runs_hash_is_blake3_and_says_so() -> None:
    vector = np.arange(D, dtype=np.float32)
    context = "fedrep/v1 fedrep/model"
    assert model_hash(vector) == BLAKE3 + blake3(vector.tobytes(), derive_key_context=context).digest()
    large = np.arange(10**6, dtype=np.float32)  # on several threads
    assert model_hash(large) == BLAKE3 + blake3(large.tobytes(), derive_key_context=context).digest()


def test_a_hash_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(RefusedError, match="upgrade fedrep") as refused:
        model_hash(np.zeros(3, np.float32), b"\x7f" + bytes(32))
    assert refused.value.reason == "UNKNOWN_HASH"


def test_what_16_bits_cannot_carry_stays_in_the_residual_and_comes_next_time() -> None:
    server = initial()
    start = server.state.vector.astype(np.float64)
    wanted = np.zeros(D)
    rng = np.random.default_rng(0)
    for _ in range(200):
        indices = np.sort(rng.choice(D, 60, replace=False))
        aggregate = rng.normal(size=60).astype(np.float32)
        wanted[indices] += aggregate
        server, descent = server.apply(indices, b"", aggregate, 16)
        assert np.abs(server.residual[indices]).max() <= descent.scale * 0.51
    reached = start - server.state.vector - wanted + server.residual
    assert np.abs(reached).max() < 1e-4, "model and residual together hold every update"
    assert np.abs(server.residual).max() > 0


def test_the_residual_off_i_is_left_alone() -> None:
    server = replace(initial(), residual=np.arange(D, dtype=np.float32))
    after, _ = server.apply(np.array([3, 7]), b"", np.zeros(2, np.float32), 16)
    untouched = np.delete(np.arange(D), [3, 7])
    np.testing.assert_array_equal(after.residual[untouched], server.residual[untouched])
    assert after.residual[3] != 3.0


def test_applying_leaves_the_old_state_as_it_was() -> None:
    server = initial()
    before = (server.state.vector.tobytes(), server.residual.tobytes())
    updates(server, 2)
    assert (server.state.vector.tobytes(), server.residual.tobytes()) == before


def test_the_servers_next_model_takes_the_memory_of_the_last_and_has_the_same_bits() -> None:
    rng = np.random.default_rng(8)
    copied = ServerModel.initial(rng.normal(size=D).astype(np.float32))
    taken = ServerModel.initial(copied.state.vector.copy())
    place = taken.state.vector.ctypes.data
    for _ in range(3):
        indices, values = np.sort(rng.choice(D, 3, replace=False)), rng.normal(size=3).astype(np.float32)
        coded, before = encode_coordinates(indices, D), taken
        copied, down = copied.apply(indices, coded, values, 16)
        taken, same = before.apply(indices, coded, values, 16, in_place=True)
        assert (taken.state.name, same) == (copied.state.name, down)
        assert np.array_equal(taken.residual, copied.residual)
        assert taken.state.vector.ctypes.data == place
        assert before.tenure.is_over
        assert not taken.tenure.is_over
        with pytest.raises(AssertionError, match="taken this one's memory"):
            before.apply(indices, coded, values, 16)


def test_a_model_that_somebody_reads_keeps_its_memory() -> None:
    indices, values = np.array([1]), np.ones(1, np.float32)
    coded = encode_coordinates(indices, D)
    holds: list[Callable[[ServerModel], object]] = [
        lambda model: model.state.vector,
        lambda model: model.state.vector[2:].data,
        lambda model: model.residual,
    ]
    for held in holds:
        model = ServerModel.initial(np.zeros(D, np.float32))
        reader = held(model)
        model.apply(indices, coded, values, 16, in_place=True)
        assert not model.tenure.is_over
        assert not model.state.vector.any()
        del reader
        model.apply(indices, coded, values, 16, in_place=True)
        assert model.tenure.is_over


def test_an_update_that_cannot_be_applied_leaves_the_servers_model_its_memory() -> None:
    model = ServerModel.initial(np.full(D, -3e38, np.float32))
    indices = np.array([1])
    with pytest.raises(NonFiniteError):
        model.apply(indices, encode_coordinates(indices, D), np.array([3e38], np.float32), 16, in_place=True)
    assert not model.tenure.is_over
    assert (model.state.vector == np.float32(-3e38)).all()
    assert not model.residual.any()


def test_the_chain_starts_from_the_initial_model_and_grows_by_version_and_hash() -> None:
    server = initial()
    chain = first_link(model_hash(server.state.vector))
    assert server.state.chain == chain
    for model, _, _ in updates(server, 3):
        chain = next_link(chain, model.state.version, model_hash(model.state.vector))
        assert model.state.chain == chain


def test_two_histories_that_meet_in_one_model_have_different_chains() -> None:
    start = initial().state
    other = ModelState.initial(np.zeros(D, np.float32)).succeeded_by(start.vector)
    detour = start.succeeded_by(np.zeros(D, np.float32)).succeeded_by(start.vector)
    assert start.hash == other.hash == detour.hash
    assert len({start.chain, other.chain, detour.chain}) == 3


def test_the_hash_tells_any_two_vectors_apart() -> None:
    zero, minus_zero = np.zeros(D, np.float32), -np.zeros(D, np.float32)
    assert model_hash(zero) != model_hash(minus_zero)
    assert model_hash(zero) != model_hash(zero[:-1])
    assert model_hash(zero) == model_hash(np.zeros(D, ">f4"))


@pytest.mark.parametrize(
    "lie",
    [
        {"hash": bytes(32)},
        {"chain": bytes(32)},
        {"version": 2},
        {"scale": 0.5},
    ],
    ids=lambda lie: next(iter(lie)),
)
def test_a_silo_refuses_an_update_that_does_not_lead_where_it_says(lie: dict[str, Any]) -> None:
    server = initial()
    ((_, indices, update),) = updates(server, 1)
    assert update.descent is not None
    if "scale" in lie:
        update = replace(update, descent=replace(update.descent, **lie))
    else:
        update = replace(update, model=replace(update.model, **lie))
    with pytest.raises(RefusedError) as caught:
        server.state.follow(update, indices)
    assert caught.value.reason == "MODEL_DIVERGED"


def test_a_silo_that_missed_an_update_finds_out() -> None:
    server = initial()
    (_, _, _), (_, indices, second) = updates(server, 2)
    with pytest.raises(RefusedError):
        server.state.follow(second, indices)


@pytest.mark.parametrize(("bits", "count", "length"), [(16, 3, 5), (16, 3, 12), (32, 3, 6), (8, 3, 6), (12, 3, 3)])
def test_levels_of_another_length_are_refused(bits: int, count: int, length: int) -> None:
    with pytest.raises(DecodeError):
        decode_descent(Descent(b"", bytes(length), 1.0, bits), count)


def test_levels_travel_little_endian() -> None:
    assert encode_levels(np.array([1, -2], np.int16)) == b"\x01\x00\xfe\xff"
    values = decode_descent(Descent(b"", b"\x01\x00\xfe\xff", 0.5, 16), 2)
    np.testing.assert_array_equal(values, np.array([0.5, -1.0], np.float32))


def test_silos_of_a_played_federation_follow_the_server_round_by_round() -> None:
    federation = Federation.of(5)
    silo = federation.model.state
    for _ in range(3):
        update = federation.play()
        assert update.outcome is Outcome.APPLIED
        silo = silo.follow(update, indices_of(update, federation.run.parameters))
        assert silo.chain == federation.model.state.chain
    assert silo.version == 3


def test_a_skipped_round_does_not_change_the_model() -> None:
    federation = Federation.of(5)
    before = federation.model
    federation.open_round()
    federation.deadline()
    update = federation.finish()
    assert update.outcome is Outcome.SKIPPED
    assert federation.model is before
    assert (update.model, update.descent) == (before.state.name, None)
