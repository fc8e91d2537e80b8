"""An attack that this silo plays on purpose, in runs whose manifest allows drills, to see whether the federation holds.

With a channel the attackers of a drill know each other's updates, and act together; without one, each knows its own alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import structlog
from numpy.typing import NDArray

from fedrep.attacks import ATTACKS
from fedrep.errors import FedrepError, RefusedError, SettingsError
from fedrep.protocol.collusion import Attack, Numbers, sent_by_all
from fedrep.protocol.manifests import RunManifest, SiloName
from fedrep.secagg.transcript import digest
from fedrep_silo.config import DrillSettings
from fedrep_silo.drill_channel import Channel

log = structlog.get_logger(__name__)

Vector = NDArray[np.float32]
NOBODY = SiloName("")
# A try-out before there is a run: of an attack that needs no more than these numbers nothing else is known yet.
SOME_RUN = Numbers(silos=10, buffer_size=2, attackers=2)


@dataclass(frozen=True, slots=True)
class Drill:
    """An attack without a name is none."""

    plays: Attack = field(default_factory=Attack)
    channel: Channel | None = None
    silo: SiloName = NOBODY

    @classmethod
    def of(cls, settings: DrillSettings, silo: str = "") -> Drill:
        """A misspelt option, or an attack that one cannot play alone, is found before anything starts."""
        attack = Attack(settings.attack, settings.options)
        drill = cls(attack, Channel(settings.channel) if settings.channel is not None else None, SiloName(silo))
        if not settings.attack:
            return drill
        if settings.attack not in ATTACKS:
            raise SettingsError(f"there is no attack {settings.attack!r} to drill; choose one of {', '.join(sorted(ATTACKS))}")
        try:
            attack.check_options()
            attack.settled(SOME_RUN).rehearse(SOME_RUN.attackers if drill.channel is not None else 1)
        except FedrepError as error:
            hint = "" if drill.channel is not None else " (attackers with one folder as their [drill] channel tell each other)"
            raise SettingsError(f"[drill] cannot play {settings.attack!r}: {error}{hint}") from error
        return drill

    @property
    def attack(self) -> str:
        return self.plays.name

    def check(self, run: RunManifest) -> None:
        if not self.attack:
            return
        if not run.drills:
            raise RefusedError(
                f"run {run.name!r} does not allow attack drills; remove [drill] from the silo's settings, or use a run created "
                "with drills = true",
                reason="NO_DRILLS",
            )
        try:
            self.plays.checked(_numbers(run, 1 if self.channel is None else 2))
        except SettingsError as error:
            raise RefusedError(f"[drill] in run {run.name!r}: {error}", reason="NO_DRILLS") from error

    def share(self, run: RunManifest, round_number: int, g: Vector) -> None:
        if self.attack and self.channel is not None:
            self.channel.tell(run.digest().hex(), round_number, self.silo, g)

    def of_update(self, run: RunManifest, round_number: int, g: Vector) -> Vector:
        """g, or what the attack makes of it and of what the other attackers have told."""
        if not self.attack:
            return g
        known = {self.silo: g}
        if self.channel is not None:
            known = self.channel.heard(run.digest().hex(), round_number, run.silos, g.size) | known
        try:
            attack = self.plays.settled(_numbers(run, len(known)))
            sent = sent_by_all(attack, run, known, lambda purpose: _dice(run, round_number, purpose))[self.silo]
        except FedrepError as error:  # such as a target that is missing today: a drill never breaks the silo
            log.warning("drill", text=f"this round is played honestly: {error}", round=round_number, attackers=len(known))
            return g
        log.info("drill", attack=self.attack, round=round_number, attackers=len(known))
        return sent


def _numbers(run: RunManifest, attackers: int) -> Numbers:
    """The run's f, which is signed, unless more attackers than that are known of."""
    return Numbers.of(run, max(run.byzantine, attackers))


def _dice(run: RunManifest, round_number: int, purpose: str) -> np.random.Generator:
    """The same for all attackers of a round, without a word between them."""
    return np.random.default_rng(int.from_bytes(digest("fedrep/drill", run.digest(), round_number, purpose), "little"))
