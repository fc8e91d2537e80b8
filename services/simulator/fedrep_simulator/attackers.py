"""The Byzantine silos of a simulation: they train like the others, tell each other what they would send, and send the attack.

Each knows what all of them computed, and nothing of the honest silos: no attacker of a real federation sees more, since values
are masked. Where an attack is for attackers who know everything, their own updates stand in for the honest ones.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrep.attacks import ATTACKS, alie_z
from fedrep.errors import FedrepError, SettingsError
from fedrep.protocol.manifests import RunManifest, SiloName
from fedrep.protocol.opening import configured_rule
from fedrep.protocol.thresholds import expected_byzantine
from fedrep_silo.drill import Drill
from fedrep_simulator.seeds import generator

Vector = NDArray[np.float32]
TRIAL = 16
ALIE = "alie"


@dataclass(frozen=True)
class Attack:
    name: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    def checked(self, count: int, silos: int) -> Attack:
        """This attack with what follows from the numbers of silos, or a sentence on why it cannot be played."""
        if not count:
            return Attack()
        if not self.name:
            raise SettingsError(f"{count} attackers and no attack: add --attack with one of {', '.join(sorted(ATTACKS))}")
        if self.name not in ATTACKS:
            raise SettingsError(f"there is no attack {self.name!r}; choose one of {', '.join(sorted(ATTACKS))}")
        if count >= silos:
            raise SettingsError(f"{count} attackers among {silos} silos leave nobody honest; take fewer attackers")
        known = [each for each in inspect.signature(ATTACKS[self.name]).parameters.values() if each.kind is each.KEYWORD_ONLY]
        names = [each.name for each in known if each.name not in ("own", "rule")]
        unknown = sorted(set(self.options) - set(names))
        if unknown:
            has = f"it has {', '.join(names)}" if names else "it has none"
            raise SettingsError(f"the attack {self.name!r} has no option {unknown[0]!r}; {has}")
        try:
            options = dict(self.options)
            if self.name == ALIE and options.get("z") is None:
                options["z"] = alie_z(silos, count)
            chosen = Attack(self.name, options)
            chosen._rehearse(count)
        except FedrepError as error:
            raise SettingsError(f"the attack {self.name!r} cannot be played by {count} of {silos} silos: {error}") from error
        return chosen

    def _rehearse(self, count: int) -> None:
        """On a small example: what cannot be sent or changes nothing is found before the run."""
        own = np.random.default_rng(0).normal(size=(count, TRIAL)).astype(np.float32)
        crafted = self.crafted(own, np.random.default_rng(1), lambda rows: np.median(rows, axis=0))
        if not np.isfinite(crafted).all():
            raise SettingsError("values that are no finite numbers cannot enter the sums; use the option kind = 'huge'")
        if np.allclose(crafted, own):
            raise SettingsError(
                "the attackers know their own updates only, and so few of them would send what they learned: take more "
                "attackers, or an attack such as foe or signflip"
            )

    def crafted(self, own: NDArray[Any], rng: np.random.Generator, rule: Callable[[NDArray[Any]], Any]) -> NDArray[np.float32]:
        """What each attacker sends, one row each, from what all of them would send honestly."""
        options = dict(self.options)
        if self.name == "bitflip":
            options["own"] = own
        elif self.name.startswith("opt_"):
            options["rule"] = rule
        crafted: NDArray[np.float32] = ATTACKS[self.name](own, len(own), rng, **options).astype(np.float32)
        return crafted

    def note(self, count: int, silos: int) -> str:
        """What somebody who reads the result should know about the attack; empty for nothing."""
        z = self.options.get("z")
        if self.name != ALIE or not isinstance(z, float | int) or z > 0:
            return ""
        return (
            f"ALIE's formula gives z = {z:.2g} for {count} attackers among {silos} silos: they send the mean of their own "
            "updates, which hides well and harms little. More attackers, or the option z, make it stronger"
        )


class Coalition:
    """What the attackers of one run share, round by round."""

    def __init__(self, attack: Attack, members: tuple[SiloName, ...], run: RunManifest, seed: int) -> None:
        self.attack = attack
        self.members = members
        self._run = run
        self._seed = seed
        self._round = 0
        self._known: dict[SiloName, Vector] = {}
        self._crafted: dict[SiloName, Vector] = {}

    def share(self, silo: SiloName, round_number: int, g: Vector) -> None:
        """What this member would send; forgotten with the round."""
        if silo not in self.members:
            return
        if round_number != self._round:
            self._round, self._known = round_number, {}
        self._known[silo], self._crafted = g, {}

    def crafted(self, silo: SiloName, g: Vector) -> Vector:
        if silo not in self._known:  # the same g again, after a round that was skipped
            self.share(silo, self._round, g)
        if not self._crafted:
            present = [name for name in self.members if name in self._known]
            own = np.stack([self._known[name] for name in present])
            rng = generator(self._seed, "attack", self.attack.name, self._round)
            rows = self.attack.crafted(own, rng, self._rule)
            self._crafted = dict(zip(present, rows, strict=True))
        return self._crafted[silo]

    def _rule(self, vectors: NDArray[Any]) -> Any:
        """The run's own, as far as attackers can guess what it will see."""
        rule = configured_rule(self._run.aggregator, self._run.aggregator_settings)
        rng = generator(self._seed, "rule", self.attack.name, self._round)
        return rule(vectors, byzantine_count=expected_byzantine(self._run.byzantine, len(vectors)), rng=rng)

    def drill(self, silo: SiloName) -> Drill | CoalitionDrill:
        return CoalitionDrill(self, silo) if silo in self.members else Drill()


@dataclass(frozen=True)
class CoalitionDrill:
    """One member's attack, as its machine plays a drill."""

    coalition: Coalition
    silo: SiloName

    @property
    def attack(self) -> str:
        return self.coalition.attack.name

    def check(self, run: RunManifest) -> None:
        Drill(self.attack).check(run)

    def of_update(self, g: Vector) -> Vector:
        return self.coalition.crafted(self.silo, g)
