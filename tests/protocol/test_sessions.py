"""Session keys that last for some rounds, and what a silo vouches for to each holder: a liar gains nothing from either."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from fedrep.errors import CryptoError, InvalidInputError, RefusedError
from fedrep.protocol.attendance import Attendance, RoundReport
from fedrep.protocol.manifests import LONGEST_SESSION, RosterEntry, SiloName
from fedrep.protocol.messages import SurvivorSet, submission_message
from fedrep.protocol.silo_rules import check_survivors, count_confirmations
from fedrep.secagg.keys import AgreementKey
from fedrep.secagg.pairs import MAC_BYTES, Pairs, RoundPairs, link
from tests.protocol.federation import Federation, run_manifest
from tests.protocol.refusal import assert_refused

RUN = b"run" * 8
ANNA, BERT = AgreementKey.from_secret(b"a" * 32), AgreementKey.from_secret(b"b" * 32)
SHARES = bytes(range(33)), bytes(range(100, 133))


def round_of(own: AgreementKey, name: str, peer: AgreementKey, other: str, number: int, pairs: Pairs | None = None) -> RoundPairs:
    shared = (pairs or Pairs()).at((RUN, own.public, 10), number, [own.public, peer.public], own)
    assert shared is not None
    return RoundPairs(name, b"c1", {name: shared[own.public], other: shared[peer.public]})


def test_two_silos_agree_whichever_round_each_of_them_enters_first() -> None:
    walked = Pairs()
    for number in (10, 12, 13):
        here = round_of(ANNA, "anna", BERT, "bert", number, walked)
        there = round_of(BERT, "bert", ANNA, "anna", number)
        assert there.open("anna", here.seal("bert", *SHARES)) == SHARES
        assert there.vouched("anna", here.macs(b"said")[MAC_BYTES:], b"said")


def test_what_a_silo_holds_in_a_round_opens_nothing_of_the_rounds_before() -> None:
    """Forward secrecy: links and names of the session are all that is left, the private key is erased."""
    sealed = round_of(ANNA, "anna", BERT, "bert", 11).seal("bert", *SHARES)
    held = Pairs()
    round_of(BERT, "bert", ANNA, "anna", 12, held)
    assert held.at((RUN, BERT.public, 10), 11, [ANNA.public], None) is None, "a link leads to the next, and not back"
    later = round_of(BERT, "bert", ANNA, "anna", 12)
    with pytest.raises(CryptoError):
        later.open("anna", sealed)


def test_a_session_is_worth_nothing_in_the_next_one() -> None:
    held = Pairs()
    round_of(ANNA, "anna", BERT, "bert", 10, held)
    assert held.at((RUN, ANNA.public, 20), 20, [BERT.public], None) is None
    agreed = ANNA.exchange(BERT.public)
    assert link(agreed, RUN, 10, 20).reveal() != link(agreed, RUN, 20, 20).reveal()
    assert link(agreed, b"another run", 10, 11).reveal() != link(agreed, RUN, 10, 11).reveal()


def test_nobody_new_is_let_into_a_session_without_the_private_key() -> None:
    held = Pairs()
    round_of(ANNA, "anna", BERT, "bert", 10, held)
    stranger = AgreementKey.generate()
    assert held.at((RUN, ANNA.public, 10), 11, [BERT.public, stranger.public], None) is None


def test_a_session_ends_with_its_epoch_and_is_never_long() -> None:
    vector = Federation.of(4).model.state.vector
    assert run_manifest(4, vector, reshuffle_every=1).session_rounds == 1
    ten = run_manifest(4, vector, reshuffle_every=10)
    assert [ten.session_start(number) for number in (1, 9, 10, 19, 20)] == [0, 0, 10, 10, 20]
    assert run_manifest(4, vector, reshuffle_every=10_000).session_rounds == LONGEST_SESSION


def play_rounds(federation: Federation, count: int) -> list[frozenset[bytes]]:
    """The session keys that each round listed; silos are listed again with the same while the session lasts."""
    seen = []
    for _ in range(count):
        start = federation.run.session_start(federation.round_number + 1)
        for silo in federation.silos.values():
            silo.listed = silo.pairs.own if federation.round_number and start <= federation.round_number else b""
        manifest = federation.open_round()
        seen.append(frozenset(entry.session_key for entry in manifest.roster))
        for silo in federation.members:
            federation.propose(silo)
        for silo in federation.members:
            federation.submit(silo)
        for silo in federation.members:
            federation.confirm(silo)
        for silo in federation.members:
            federation.reveal(silo)
    return seen


def test_rounds_of_one_session_list_the_same_keys_and_open() -> None:
    federation = Federation.of(6, reshuffle_every=3)
    keys = play_rounds(federation, 4)
    assert keys[0] == keys[1] != keys[2] == keys[3]
    assert federation.round.result is not None
    assert federation.round.result.combined is not None


def test_a_private_session_key_is_gone_as_soon_as_its_round_is_entered() -> None:
    federation = Federation.of(5, reshuffle_every=10)
    manifest = federation.open_round()
    for silo in federation.members:
        entry = manifest.entry(silo.name)
        assert entry is not None
        assert silo.pairs.own == entry.session_key
        assert entry.session_key not in silo.sessions


def confirming(count: int = 6) -> Federation:
    federation = Federation.of(count)
    federation.open_round()
    for silo in federation.members:
        federation.propose(silo)
    for silo in federation.members:
        federation.submit(silo)
    return federation


class Unreadable:
    """Instead of a certificate's key: whoever looks at a signature is caught."""

    encoded = b""

    def verify(self, signature: bytes, message: bytes) -> None:  # noqa: ARG002
        raise CryptoError("looked at a signature")


def judge(federation: Federation, survivors: SurvivorSet, *, signatures: bool) -> None:
    holder = federation.members[0]
    assert holder.submitted is not None
    agreement = holder.submitted.agreement
    peers = dict(federation.peers)
    if not signatures:
        peers = {name: replace(peer, verify_key=Unreadable()) for name, peer in peers.items()}
    check_survivors(survivors, agreement.assignment, agreement.c2, peers, agreement.ready.pairs)


def test_what_survivors_vouched_for_to_this_silo_needs_no_signature() -> None:
    federation = confirming()
    judge(federation, federation.round.survivors_for(federation.members[0].name), signatures=False)


Macs = tuple[bytes, ...]


@dataclass(frozen=True)
class Lie:
    """`of` makes a list of MACs from those for the holder, and those for another one."""

    of: Callable[[Macs, Macs], Macs]


LIES = {
    "none came": Lie(lambda _own, _others: ()),
    "one left it out": Lie(lambda own, _: (b"", *own[1:])),
    "one is zeros": Lie(lambda own, _: (bytes(16), *own[1:])),
    "one is cut": Lie(lambda own, _: (own[0][:-1], *own[1:])),
    "in another order": Lie(lambda own, _: own[::-1]),
    "made for another holder": Lie(lambda _, others: others),
    "one is guessed": Lie(lambda own, _: (secrets.token_bytes(16), *own[1:])),
}


@pytest.mark.parametrize("kind", LIES)
def test_a_wrong_mac_costs_a_look_at_the_signature_and_never_the_round(kind: str) -> None:
    federation = confirming()
    first, second = federation.members[:2]
    told, others = (federation.round.survivors_for(silo.name) for silo in (first, second))
    lied = replace(told, macs=LIES[kind].of(told.macs, others.macs))
    judge(federation, lied, signatures=True)
    with pytest.raises(RefusedError) as caught:
        judge(federation, lied, signatures=False)
    assert caught.value.reason == "BAD_SURVIVORS"


def test_a_survivor_that_signed_another_consensus_is_refused_whatever_macs_come_along() -> None:
    """The server can make up no MAC: it holds the secret of no pair. Here it brings those of other messages."""
    federation = confirming()
    first, second, third = federation.members[:3]
    assert second.submitted is not None
    assert second.ready is not None
    for said in (
        submission_message(b"another C2" * 4, second.name),
        submission_message(second.submitted.agreement.c2, third.name),
    ):
        told = federation.round.survivors_for(first.name)
        names = [survivor.silo for buffer in told.buffers for survivor in buffer]
        macs = list(told.macs)
        macs[names.index(second.name)] = second.ready.pairs.macs(said)[:MAC_BYTES]
        signed = [
            tuple(replace(each, signature=second.signing_key.sign(said)) if each.silo == second.name else each for each in buffer)
            for buffer in told.buffers
        ]
        with pytest.raises(RefusedError):
            judge(federation, SurvivorSet(tuple(signed), tuple(macs)), signatures=True)


def test_confirmations_are_counted_once_per_holder_by_mac_or_by_signature() -> None:
    federation = confirming()
    first, *others = federation.members
    for silo in federation.members:
        federation.confirm(silo)
    assert first.confirmed is not None
    survivors, agreement = first.confirmed.survivors, first.confirmed.agreement
    signatures, macs = federation.round.confirmations_for(first.name)
    keys = {silo.name: silo.signing_key.verify_key for silo in others}
    blind = {name: Unreadable() for name in keys}
    pairs = agreement.ready.pairs

    def counted(holders: dict[SiloName, object], given: tuple[bytes, ...], times: int = 1) -> int:
        listed, beside = signatures * times, given * times
        return count_confirmations(listed, agreement.c2, survivors, holders, 99, beside, pairs)  # type: ignore[arg-type]

    assert counted(dict(blind), macs) == counted(dict(keys), ()) == len(signatures)
    assert counted(dict(blind), macs, times=3) == len(signatures)
    assert counted(dict(blind), ()) == 0
    assert counted(dict(blind), macs[1:]) == 0, "the MAC of one holder beside the name of another counts for neither"


@pytest.mark.parametrize("size", [1, 15, 16, 17, 16 * 5, 16 * 7, 16 * 6 + 1])
def test_macs_of_another_size_are_refused_by_the_server(size: int) -> None:
    federation = confirming()
    last = federation.members[-1]
    assert last.submitted is not None
    message = last.submitted.on_survivors(federation.round.survivors()).message
    assert_refused(federation.round, replace(message, macs=bytes(size)), InvalidInputError, "WRONG_MACS")


def entry(name: str, key: bytes = b"", **changes: object) -> RosterEntry:
    return replace(RosterEntry(SiloName(name), name.encode() * 32, key or name.encode(), b"signed"), **changes)  # type: ignore[arg-type]


SESSION = (RUN, 10)


def attendance(*names: str) -> Attendance:
    joined = Attendance()
    for name in names:
        joined = joined.join(entry(name, b"first of " + name.encode()), 9)
    return joined.opened(SESSION, joined.roster(10, SESSION))


def keys_of(known: Attendance, number: int = 11, session: tuple[bytes, int] = SESSION) -> list[bytes]:
    return [each.session_key for each in known.roster(number, session)]


def test_a_roster_lists_the_keys_of_its_session_while_everyone_has_part_in_it() -> None:
    known = attendance("a", "b", "c")
    assert keys_of(known.leave(SiloName("b"))) == [b"first of a", b"first of c"]
    assert keys_of(known, 20, (RUN, 20)) == keys_of(known.join(entry("a", b"first of a"), 10), 20, (RUN, 20))


@pytest.mark.parametrize(
    ("name", "kept", "changes"),
    [
        pytest.param("d", b"", {}, id="a newcomer"),
        pytest.param("a", b"", {}, id="a process that started again"),
        pytest.param("a", b"another", {}, id="one that kept another session"),
        pytest.param("a", b"first of a", {"fingerprint": b"renewed" * 4}, id="one with another certificate"),
    ],
)
def test_whoever_has_no_part_in_the_session_makes_everybody_list_new_keys(
    name: str, kept: bytes, changes: dict[str, object]
) -> None:
    known = attendance("a", "b", "c")
    standings = {
        each: replace(standing, entry=replace(standing.entry, session_key=b"next of " + each.encode()))
        for each, standing in known.standings.items()
    }
    known = replace(known, standings=standings).join(entry(name, b"new", **changes), 10, kept)
    assert not set(keys_of(known)) & {b"first of a", b"first of b", b"first of c"}


def test_a_silo_that_lost_only_its_connection_stays_in_the_session() -> None:
    known = attendance("a", "b", "c").join(entry("a", b"new", fingerprint=b"a" * 32), 10, b"first of a")
    assert keys_of(known) == [b"first of a", b"first of b", b"first of c"]


def after_a_round_in_which_a_joined_with_its_listed_key() -> Attendance:
    """The call was on the way while the round was opened: it kept a key of the session before, and announced the listed one."""
    names = tuple(SiloName(name) for name in "abc")
    announced = {name: (b"next of " + name.encode(), b"signed") for name in names}
    report = RoundReport(names, frozenset(names), frozenset(names), frozenset(), frozenset(), announced)
    return attendance("a", "b", "c").join(entry("a", b"first of a"), 10, b"of the last session").after_round(10, report)


def test_a_silo_whose_joining_was_on_the_way_while_a_round_listed_its_key_stays_in_the_session() -> None:
    known = after_a_round_in_which_a_joined_with_its_listed_key()
    assert keys_of(known) == [b"first of a", b"first of b", b"first of c"]


def test_and_takes_part_in_the_next_session_with_the_key_that_it_announced_in_that_round() -> None:
    """The listed one is erased where the round was entered."""
    known = after_a_round_in_which_a_joined_with_its_listed_key()
    assert keys_of(known, 20, (RUN, 20)) == [b"next of a", b"next of b", b"next of c"]
