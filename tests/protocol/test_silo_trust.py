"""Whom a silo believes: an admin's signature under a run, the server's under a round, and pinned admins where it pins them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedrep.errors import CryptoError, RefusedError
from fedrep.protocol.manifests import SiloName
from fedrep.protocol.messages import SignedRollback, rollback_message
from fedrep.protocol.silo_effects import Join, Joined
from fedrep.protocol.silo_rules import PeerIdentity
from fedrep.protocol.silo_table import Phase
from fedrep.protocol.silo_trust import Chains, check_rollback, check_round_signature, check_run_signature
from tests.protocol.federation import ADMIN, SERVER, Federation, fingerprint_of


def test_a_run_counts_with_an_admins_signature_and_no_other() -> None:
    federation = Federation.of(4)
    signed = federation.signed_run()
    assert check_run_signature(signed, federation) == federation.run
    for forged in (
        replace(signed, signature=SERVER.sign(b"something")),
        replace(signed, manifest=replace(signed.manifest, min_survivors=3)),
    ):
        with pytest.raises(RefusedError) as caught:
            check_run_signature(forged, federation)
        assert caught.value.reason == "BAD_RUN"


def test_a_silo_that_pins_admins_believes_no_other_one() -> None:
    federation = Federation.of(4)
    signed = federation.signed_run()
    assert check_run_signature(signed, federation, frozenset({fingerprint_of("admin")})) == federation.run
    with pytest.raises(RefusedError, match="not among the admins this silo has pinned"):
        check_run_signature(signed, federation, frozenset({fingerprint_of("another")}))


class Later:
    """The trust store of a silo a year later: the admin's certificate has ended."""

    def __init__(self, federation: Federation) -> None:
        self._federation = federation

    def member(self, chain: bytes, role: str, *, ended: bool = False) -> PeerIdentity:
        if role == "admin" and not ended:
            raise CryptoError("The certificate of admin ada expired.", reason="CERTIFICATE_EXPIRED")
        return self._federation.member(chain, role, ended=ended)


def test_a_run_outlives_the_certificate_of_the_admin_who_signed_it_for_those_who_take_part() -> None:
    federation = Federation.of(4)
    federation.play()
    silo, *_ = federation.silos.values()
    silo.machine._own = replace(silo.machine._own, trust=Later(federation))
    signed = federation.signed_run()
    with pytest.raises(RefusedError, match="new ones can join once an admin has signed another list") as caught:
        check_run_signature(signed, Later(federation))
    assert caught.value.reason == "BAD_RUN"
    silo.player.restart()
    silo.player.news.clear()
    silo.player.start()
    silo.player.answer(
        Join, Joined(signed, None, federation.model.state.name, "running", b"server", federation.round_number, 1, None)
    )
    assert silo.player.stopped is None
    assert silo.machine.phase is not Phase.ASKING


def test_a_round_counts_with_the_servers_signature_and_no_other() -> None:
    federation = Federation.of(4)
    federation.open_round()
    signed = federation.signed()
    assert check_round_signature(signed, b"server", federation) == signed.manifest
    with pytest.raises(RefusedError) as caught:
        check_round_signature(replace(signed, manifest=replace(signed.manifest, clip_range=2.0)), b"server", federation)
    assert caught.value.reason == "BAD_ROUND"


def test_a_rollback_counts_for_its_run_with_an_admins_signature_and_where_it_is_pinned() -> None:
    federation = Federation.of(4)
    run = federation.run
    signature = ADMIN.sign(rollback_message(run.digest(), 5, b"h" * 32))
    order = SignedRollback(run.digest(), 5, b"h" * 32, "admin", b"admin", signature)
    assert check_rollback(order, [run], federation) is order
    assert check_rollback(None, [run], federation) is None
    assert check_rollback(replace(order, version=6), [run], federation) is None
    assert check_rollback(replace(order, model_hash=b"x" * 32), [run], federation) is None
    assert check_rollback(order, [replace(run, rounds=7)], federation) is None
    assert check_rollback(order, [run], federation, frozenset({fingerprint_of("another")})) is None


class Dated:
    """A trust store to which a chain is a name and the last day on which it is valid."""

    def __init__(self) -> None:
        self.day = 0

    def member(self, chain: bytes, role: str, *, ended: bool = False) -> PeerIdentity:
        name, _, last = chain.decode().partition(" until ")
        if not last or (self.day > int(last) and not ended):
            raise CryptoError("no certificate that is valid today")
        return PeerIdentity(SiloName(name), role, fingerprint_of(name), SERVER.verify_key)


def test_certificates_are_judged_anew_and_asked_for_again_before_a_round_is_refused_over_them() -> None:
    federation = Federation.of(4)
    federation.open_round()
    manifest, trust, chains = federation.signed().manifest, Dated(), Chains()
    assert chains.peers(manifest, trust) == {}, "everybody is a stranger"
    first, *others = manifest.names
    chains.learn({fingerprint_of(name): f"{name} until {30 if name == first else 60}".encode() for name in manifest.names})
    assert set(chains.peers(manifest, trust)) == set(manifest.names)
    trust.day = 31
    assert set(chains.peers(manifest, trust)) == set(others), "the first one's has ended, under the same key as its next one"
    chains.learn({fingerprint_of(first): f"{first} until 60".encode()})
    assert set(chains.peers(manifest, trust)) == set(manifest.names)


def test_a_valid_certificate_of_another_silo_is_not_kept_for_the_one_that_was_asked_for() -> None:
    federation = Federation.of(4)
    federation.open_round()
    manifest, trust, chains = federation.signed().manifest, Dated(), Chains()
    one, two, *others = manifest.names
    right = {fingerprint_of(name): f"{name} until 60".encode() for name in manifest.names}
    chains.learn({**right, fingerprint_of(one): right[fingerprint_of(two)], fingerprint_of(two): right[fingerprint_of(one)]})
    assert set(chains.peers(manifest, trust)) == set(others)
    chains.learn(right)
    assert set(chains.peers(manifest, trust)) == set(manifest.names)
