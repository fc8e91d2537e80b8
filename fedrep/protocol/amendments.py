"""When silos leave or join for good: an amended run manifest, in force from the next epoch (N4).

It names the manifest before it by its hash, so one admin's signature under the last of a chain vouches for all of it. Only the
list of silos may change, and what follows from it: the quorum, and the bits that the largest buffer leaves for values.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import pairwise

from fedrep.errors import RefusedError, SettingsError
from fedrep.protocol.manifests import RunManifest, SiloName, signed_fields
from fedrep.protocol.seats import largest_seat
from fedrep.protocol.thresholds import default_quorum
from fedrep.quantize import value_bits

MAY_CHANGE = frozenset({"silos", "quorum", "value_bits", "predecessor", "from_round"})


def amended(
    run: RunManifest, add: Collection[str], remove: Collection[str], last_round: int, quorum: int | None = None
) -> RunManifest:
    """For the first epoch that begins after `last_round`, the last round that was given out. The preflight judges the rest."""
    unknown, known = sorted(set(remove) - set(run.silos)), sorted(set(add) & set(run.silos))
    if unknown or known or not (add or remove):
        problems = [f"{name!r} is not on the list" for name in unknown] + [f"{name!r} is on the list already" for name in known]
        raise SettingsError(f"the list of run {run.name!r} would not change so: " + "; ".join(problems or ["name a silo"]))
    silos = (*(name for name in run.silos if name not in remove), *(SiloName(name) for name in add))
    if len(silos) < run.buffer_size:
        raise SettingsError(f"{len(silos)} silos do not fill one buffer of {run.buffer_size}")
    wanted = quorum if quorum is not None else default_quorum(len(silos), run.buffer_size, run.byzantine)
    following = next_epoch(run, max(last_round, run.from_round))
    listed = replace(run, silos=silos, quorum=wanted, predecessor=bytes(run.digest()), from_round=following)
    return replace(listed, value_bits=max(value_bits(run.ring_bits, largest_seat(listed)), 0))


def next_epoch(run: RunManifest, last_round: int) -> int:
    """The first round of the first epoch that begins after `last_round`."""
    every = max(run.reshuffle_every, 1)
    return (last_round // every + 1) * every


def check_amendment(old: RunManifest, new: RunManifest) -> None:
    """Whether `new` follows `old` and changes nothing but its list. Its signature and a silo's policy are judged elsewhere."""
    problems = [
        f"{field} differs"
        for field in signed_fields(RunManifest)
        if field not in MAY_CHANGE and getattr(old, field) != getattr(new, field)
    ]
    if new.predecessor != old.digest():
        problems.append("it does not follow the manifest before")
    if new.from_round <= old.from_round or new.from_round % max(old.reshuffle_every, 1):
        problems.append(f"round {new.from_round} is not the first of a later epoch")
    if not 1 <= new.buffer_size <= len(new.silos) or new.value_bits != value_bits(new.ring_bits, largest_seat(new)):
        problems.append("value_bits is not what the largest buffer leaves")
    if problems:
        raise RefusedError(
            f"the amended manifest of run {old.name!r} is refused: {'; '.join(problems)}. Only the list of silos may change, and "
            "the quorum and the value bits with it",
            reason="BAD_AMENDMENT",
        )


def check_chain(known: str, chain: Sequence[RunManifest], last_round: int) -> None:
    """From the manifest whose hash a silo `known` has agreed to before, link by link to the last, which an admin signed.

    A silo that spoke in a round from which on the next list counts was kept from that list, and would sit in two groupings of
    one epoch.
    """
    hashes = [manifest.digest().hex() for manifest in chain]
    if known not in hashes:
        raise RefusedError(
            f"this silo's state belongs to another run; use a state folder of its own for run {chain[-1].name!r}",
            reason="OTHER_RUN",
        )
    followed = chain[hashes.index(known) :]
    for old, new in pairwise(followed):
        check_amendment(old, new)
    if len(followed) > 1 and last_round >= followed[1].from_round:
        raise RefusedError(
            f"the list of silos counts from round {followed[1].from_round} on, and this silo already spoke in round {last_round} "
            "under the one before",
            reason="BAD_AMENDMENT",
        )


def followed_to(chain: Sequence[RunManifest]) -> tuple[RunManifest, ...]:
    """The last manifest and those it goes back to, as far as the hashes show it, oldest first."""
    linked = [chain[-1]]
    for earlier in reversed(chain[:-1]):
        if linked[0].predecessor != earlier.digest():
            break
        linked.insert(0, earlier)
    return tuple(linked)


def first_of(chain: Sequence[RunManifest]) -> RunManifest:
    """Under whose hash the run's ledger goes: with a link left out, what a silo has spent in it would be counted anew."""
    first = followed_to(chain)[0]
    if first.predecessor:
        raise RefusedError(
            f"the server leaves out the manifest that the list of run {first.name!r} follows; it must show all of them, from the "
            "first on: tell an admin of the federation",
            reason="BAD_AMENDMENT",
        )
    return first
