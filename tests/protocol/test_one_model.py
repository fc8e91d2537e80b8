"""One model for all: a silo goes on from where its own updates lead, or from where an admin's order does, or stops (N5)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedrep.errors import RefusedError
from fedrep.protocol.manifests import RunHash
from fedrep.protocol.messages import Outcome, Phase, Update
from fedrep.protocol.model_state import ModelState
from fedrep.protocol.silo_effects import Concluded, GetCertificates, GetModel, GetUpdate, RoundOver
from fedrep.protocol.silo_rules import PeerIdentity
from fedrep.protocol.silo_table import Phase as SiloPhase
from tests.protocol.federation import Federation, Silo
from tests.protocol.silo_refusal import refused

D = 32


def after_a_round() -> tuple[Federation, Silo]:
    federation = Federation.of(4, parameters=D)
    assert federation.play().outcome is Outcome.APPLIED
    silo = federation.silos[federation.run.silos[0]]
    assert silo.machine.state.model is not None
    assert silo.machine.state.model.version == 1
    return federation, silo


def serve(federation: Federation, version: int, seed: int = 1) -> None:
    """The server goes on from another model, without a word of how it came to be."""
    vector = np.random.default_rng(seed).normal(size=D).astype(np.float32)
    state = replace(ModelState.initial(vector), version=version)
    federation.model = replace(federation.model, state=state)


# What a server shows after a round that led to version 1.
OTHERS = {"another model of the same version": 1, "an older version": 0, "the next version at once": 2, "a later version": 7}


@pytest.mark.parametrize("version", OTHERS.values(), ids=OTHERS)
def test_a_model_that_the_own_updates_do_not_lead_to_stops_the_silo(version: int) -> None:
    """It asks once whether an admin ordered it, fetches nothing, and says in a sentence what to do."""
    federation, silo = after_a_round()
    held = silo.machine.state.model
    serve(federation, version)
    federation.new_round()
    text = refused("MODEL_DIVERGED", lambda: federation.announce(silo))
    assert "ask an admin" in text
    assert f"version {version}" in text
    assert not silo.player.waits_for(GetModel)
    assert silo.machine.state.model is held
    assert silo.machine.phase is SiloPhase.ENDED
    assert silo.player.stopped is not None
    assert silo.player.stopped.polite, "the server is told, so that the others need not wait"
    assert isinstance(silo.player.stopped.error, RefusedError)


def test_a_run_begins_with_the_model_that_an_admin_signed_and_with_no_other() -> None:
    """A silo without a model has no updates to go by, but the run that it joined names the first one."""
    federation = Federation.of(4, parameters=D)
    serve(federation, 0)
    federation.new_round()
    silo = federation.silos[federation.run.silos[0]]
    text = refused("MODEL_DIVERGED", lambda: federation.announce(silo))
    assert "version 0, which is not the run's own" in text
    assert not silo.player.waits_for(GetModel)
    assert silo.machine.state.model is None


def test_an_order_counts_once_also_if_the_round_that_came_with_it_was_refused() -> None:
    """Else a server shows it with a round that nobody can play, and again whenever it likes."""
    federation, silo = after_a_round()
    serve(federation, 1)
    federation.order_rollback()
    federation.new_round()
    assert federation.manifest is not None
    federation.manifest = replace(federation.manifest, clip_range=1.5 * federation.run.initial_range)
    refused("ROUND_OUTSIDE_POLICY", lambda: federation.announce(silo))
    held = silo.machine.state.model
    assert held is not None
    assert held.hash == federation.model.state.hash
    assert len(silo.machine.state.journal.orders) == 1
    assert silo.machine.state.journal.not_yet_followed(federation.rollback) is None


@pytest.mark.parametrize("version", OTHERS.values(), ids=OTHERS)
def test_with_an_admins_order_every_silo_goes_on_from_there(version: int) -> None:
    federation, silo = after_a_round()
    serve(federation, version)
    federation.order_rollback()
    federation.open_round()
    for each in federation.silos.values():
        assert each.machine.phase is SiloPhase.TRAINING
        assert each.machine.state.model is not None
        assert each.machine.state.model.hash == federation.model.state.hash
    assert silo.machine.part is not None


@pytest.mark.parametrize(
    "order", [{"run": RunHash(bytes(32))}, {"version": 8}, {"model_hash": bytes(32)}, {"by": "the server"}, {"certificate": b"x"}]
)
def test_an_order_about_something_else_or_not_of_an_admin_is_none(order: dict[str, object]) -> None:
    federation, silo = after_a_round()
    serve(federation, 7)
    by = order.pop("by", None)
    federation.order_rollback(**({"by": silo.signing_key} if by else {}), **order)  # type: ignore[arg-type]
    federation.new_round()
    if "certificate" in order:  # a certificate that is nobody's; the others of these tests are valid
        silo.machine._own = replace(silo.machine._own, trust=Strict(federation))
    refused("MODEL_DIVERGED", lambda: federation.announce(silo))


class Strict:
    """A federation's trust store that looks at the certificate even of an admin."""

    def __init__(self, federation: Federation) -> None:
        self._federation = federation

    def member(self, chain: bytes, role: str, *, ended: bool = False) -> PeerIdentity:  # noqa: ARG002  these last for ever
        if role == "admin" and chain != b"admin":
            return self._federation.member(b"nobody", "nobody")
        return self._federation.member(chain, role)


def test_a_silo_that_was_away_fetches_the_model_and_checks_its_hash() -> None:
    federation, silo = after_a_round()
    serve(federation, 7)
    federation.round_number = 9
    federation.open_round()
    assert silo.machine.state.model is not None
    assert silo.machine.state.model.hash == federation.model.state.hash
    assert silo.machine.phase is SiloPhase.TRAINING


def test_a_silo_that_was_away_takes_no_other_model_than_the_manifest_names() -> None:
    federation, silo = after_a_round()
    held = silo.machine.state.model
    serve(federation, 7)
    federation.round_number = 9
    federation.new_round()
    serve(federation, 7, seed=2)
    refused("WRONG_MODEL", lambda: federation.announce(silo))
    assert silo.machine.state.model is held
    assert not silo.player.waits_for(GetCertificates)


@pytest.mark.parametrize("version", [0, 1])
def test_being_away_excuses_no_older_model_and_no_other_of_the_same_version(version: int) -> None:
    federation, silo = after_a_round()
    serve(federation, version)
    federation.round_number = 9
    federation.new_round()
    refused("MODEL_DIVERGED", lambda: federation.announce(silo))


def moved_on(federation: Federation, outcome: Outcome = Outcome.APPLIED, steps: int = 1) -> Update:
    """The current round ends without the silo that hears of it; the server's model has another version then."""
    serve(federation, federation.model.state.version + steps, seed=3)
    state = federation.model.state
    return Update(federation.run.digest(), federation.round_number, outcome, "", state.name)


def test_a_silo_that_comes_back_while_a_round_without_it_is_open_fetches_the_model_after_it() -> None:
    """It hears how that round ended, but does not hold the model it started from: it was away all the same."""
    federation, silo = after_a_round()
    serve(federation, 7)
    federation.round_number = 9
    federation.new_round([name for name in federation.run.silos if name != silo.name])
    federation.announce(silo)
    assert silo.machine.phase is SiloPhase.CONCLUDING
    update = moved_on(federation)
    federation.new_round()
    silo.player.answer(GetUpdate, Concluded(update, federation.signed(), "running"))
    federation.answer_join(silo, federation.signed())
    assert silo.machine.state.model is not None
    assert silo.machine.state.model.version == 8
    assert silo.player.train is not None


def test_a_silo_that_was_in_the_round_is_not_told_of_another_model_than_its_update_leads_to() -> None:
    """APPLIED, but two versions on: the silo cannot follow, and has not been away."""
    federation, silo = after_a_round()
    federation.until(Phase.SUBMIT)
    update = moved_on(federation, steps=2)
    federation.miss_the_end(silo)
    federation.new_round()
    silo.player.answer(GetUpdate, Concluded(update, federation.signed(), "running"))
    refused("MODEL_DIVERGED", lambda: federation.answer_join(silo, federation.signed()))


def test_after_a_skipped_round_no_other_model_is_taken() -> None:
    federation, silo = after_a_round()
    federation.until(Phase.SUBMIT)
    update = moved_on(federation, Outcome.SKIPPED)
    federation.miss_the_end(silo)
    federation.new_round()
    while silo.player.waits_for(GetUpdate):
        silo.player.answer(GetUpdate, Concluded(update, federation.signed(), "running"))
    refused("MODEL_DIVERGED", lambda: federation.answer_join(silo, federation.signed()))


def test_an_update_that_does_not_lead_to_the_hash_it_names_stops_the_silo() -> None:
    federation, silo = after_a_round()
    held = silo.machine.state.model
    federation.until(Phase.REVEAL)
    federation.finish_reveals()
    honest = federation.close()
    lie = replace(honest, model=replace(honest.model, hash=bytes(32)))
    federation.miss_the_end(silo)
    silo.player.answer(GetUpdate, Concluded(lie, None, "running"))
    assert silo.machine.phase is SiloPhase.ENDED
    assert silo.player.stopped is not None
    assert silo.player.stopped.error is not None
    assert silo.player.stopped.error.reason == "MODEL_DIVERGED"
    assert silo.machine.state.model is held
    assert any(isinstance(news, RoundOver) for news in silo.player.news)
