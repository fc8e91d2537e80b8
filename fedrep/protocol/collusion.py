"""Attackers of one run who tell each other what they would send honestly, and send what an attack makes of it.

Each knows what all of them computed, and nothing of the honest silos: no attacker of a real federation sees more, since values
are masked. Where an attack is for attackers who know everything, their own updates stand in for the honest ones, as its authors
do for attackers who do not. Drills and simulations share this; how the updates get from one to the other is theirs.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedrep.aggregators import AggregatorWarning
from fedrep.aggregators.rules import KRUM
from fedrep.attacks import ATTACKS, alie_z
from fedrep.buffers import number_of_buffers
from fedrep.errors import FedrepError, InvalidInputError, SettingsError
from fedrep.protocol.manifests import RunManifest, SiloName
from fedrep.protocol.opening import configured_rule
from fedrep.protocol.thresholds import expected_byzantine

Vector = NDArray[np.float32]
Rule = Callable[[NDArray[Any]], Any]
TRIAL: Final = 16
ALIE: Final = "alie"
FANG: Final = "fang"
# What follows from the run and from who knows what, and is nobody's choice.
NOT_AN_OPTION: Final = ("own", "rule", "partial")


@dataclass(frozen=True, slots=True)
class Numbers:
    """What an attack makes of a run depends on these, all known before it starts."""

    silos: int
    buffer_size: int
    attackers: int
    aggregator: str = ""

    @classmethod
    def of(cls, run: RunManifest, attackers: int) -> Numbers:
        return cls(len(run.silos), run.buffer_size, attackers, run.aggregator)


@dataclass(frozen=True)
class Attack:
    """An empty name is none."""

    name: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    def checked(self, numbers: Numbers) -> Attack:
        """This attack with what follows from the numbers, or a sentence on why it cannot be played and what to change."""
        if not numbers.attackers:
            if self.name:
                self.check_options()  # a mistake is one whether anybody plays it or not
            return Attack()
        if not self.name:
            names = ", ".join(sorted(ATTACKS))
            raise SettingsError(f"{numbers.attackers} attackers and no attack: add --attack with one of {names}")
        self.check_options()
        if numbers.attackers >= numbers.silos:
            raise SettingsError(
                f"{numbers.attackers} attackers among {numbers.silos} silos leave nobody honest; take fewer attackers"
            )
        try:
            settled = self.settled(numbers)
            settled.rehearse(numbers.attackers)
        except FedrepError as error:
            raise SettingsError(
                f"the attack {self.name!r} cannot be played by {numbers.attackers} of {numbers.silos} silos: {error}"
            ) from error
        return settled

    def check_options(self) -> None:
        if self.name not in ATTACKS:
            raise SettingsError(f"there is no attack {self.name!r}; choose one of {', '.join(sorted(ATTACKS))}")
        known = [each for each in inspect.signature(ATTACKS[self.name]).parameters.values() if each.kind is each.KEYWORD_ONLY]
        names = [each.name for each in known if each.name not in NOT_AN_OPTION]
        unknown = sorted(set(self.options) - set(names) - {"partial"})  # which a settled one has
        if unknown:
            has = f"it has {', '.join(names)}" if names else "it has none"
            raise SettingsError(f"the attack {self.name!r} has no option {unknown[0]!r}; {has}")

    def settled(self, numbers: Numbers) -> Attack:
        options = dict(self.options)
        if self.name == ALIE and options.get("z") is None:
            options["z"] = hiding_z(numbers)
        if self.name == FANG:
            options["partial"] = True
            options.setdefault("against", "krum" if numbers.aggregator in KRUM else "trimmed_mean")
        return replace(self, options=options)

    def rehearse(self, count: int) -> None:
        """On a small example: what cannot be sent or changes nothing is found before the run."""
        own = np.random.default_rng(0).normal(size=(count, TRIAL)).astype(np.float32)
        try:
            crafted = self.crafted(own, np.random.default_rng(1), lambda rows: np.median(rows, axis=0))
        except FedrepError:
            raise
        except (TypeError, ValueError) as error:
            raise SettingsError(f"its options {dict(self.options)} are of the wrong kind ({error})") from error
        if not np.isfinite(crafted).all():
            raise SettingsError("values that are no finite numbers cannot enter the sums; use the option kind = 'huge'")
        if np.allclose(crafted.mean(axis=0), own.mean(axis=0)):
            raise SettingsError(
                "the attackers know their own updates only, and so few of them would send what they learned: take more "
                "attackers, who tell each other, or an attack such as foe or signflip"
            )

    def crafted(self, own: NDArray[Any], rng: np.random.Generator, rule: Rule) -> Vector:
        """What each attacker sends, one row each, from what all of them would send honestly."""
        options = dict(self.options)
        if self.name == "bitflip":
            options["own"] = own
        elif self.name.startswith("opt_"):
            options["rule"] = rule
        crafted: Vector = ATTACKS[self.name](own, len(own), rng, **options).astype(np.float32)
        return crafted


def hiding_z(numbers: Numbers) -> float:
    """ALIE's z, by Baruch et al.'s formula for what the rule sees, which are buffers, or for the silos where that is more.

    A buffer of s has one attacker at most as far as the rule knows. Its mean is to stand z deviations of honest buffers'
    means away, 1 / sqrt(s) of a silo's; the attacker's mates halve, or more, what it adds: together sqrt(s) z of a silo's.
    """
    m, s, f = numbers.silos, numbers.buffer_size, numbers.attackers
    found = []
    for rows, scale in ((number_of_buffers(m, s), math.sqrt(s)), (m, 1.0)):
        try:
            found.append(scale * alie_z(rows, f))
        except InvalidInputError:  # no honest majority among these
            continue
    if not found:
        raise SettingsError(
            "ALIE's formula needs an honest majority of at least three: take fewer attackers or give the option z"
        )
    if max(found) <= 0.0:
        raise SettingsError(
            f"ALIE's formula leaves no room to hide in (z = {max(found):.2g}): take more attackers, fewer silos, or the option z"
        )
    return max(found)


def sent_by_all(
    attack: Attack, run: RunManifest, known: Mapping[SiloName, Vector], dice: Callable[[str], np.random.Generator]
) -> dict[SiloName, Vector]:
    """What each of those who are `known` sends. `dice` are common to all, or they would not send the same."""
    present = sorted(known)
    rule = configured_rule(run.aggregator, run.aggregator_settings)

    def as_the_server(vectors: NDArray[Any]) -> Any:
        """The run's own rule, as far as attackers can guess what it will see."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AggregatorWarning)  # these rows are a guess: what they lack is nobody's concern
            return rule(vectors, byzantine_count=expected_byzantine(run.byzantine, len(vectors)), rng=dice("rule"))

    rows = attack.crafted(np.stack([known[name] for name in present]), dice("attack"), as_the_server)
    return dict(zip(present, rows, strict=True))
