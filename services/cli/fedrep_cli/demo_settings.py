"""What a demo plays: its trainers, its run, its attackers; and what to change where that cannot work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedrep.errors import SettingsError
from fedrep.protocol.advice import Advice, advise
from fedrep.protocol.collusion import Attack, Numbers
from fedrep.protocol.manifests import RunManifest
from fedrep.protocol.preflight import preflight
from fedrep_runtime.run_config import AggregatorConfig, DeadlineConfig, RunConfig
from fedrep_silo.config import DrillSettings
from fedrep_silo.drill import Drill

ATTACKERS = 2
MEAN = "mean"
# foe and a value that is no number are nothing a person would see with the attacks' own defaults.
ATTACK_OPTIONS: Mapping[str, Mapping[str, Any]] = {"foe": {"epsilon": 10.0}, "nonfinite": {"kind": "huge"}}
MODELS = {"digits": "mlp", "fashion_mnist": "cnn", "cifar10": "cnn"}
OPTIONS = {
    "silos": "--silos",
    "byzantine_count": "--byzantine",
    "buffer_size": "--buffer-size",
    "aggregator": "--aggregator",
}
PRIVACY = {"epsilon": 8.0, "delta": 1e-5}
# A silo has some 140 digits, and noise costs as much per value as per update: a small model, half of it in every round.
PRIVATE_FRACTION = 0.5


@dataclass(frozen=True)
class DemoSettings:
    silos: int = 10
    rounds: int = 60
    byzantine: int | None = None
    attack: str = "foe"
    attack_options: Mapping[str, Any] = field(default_factory=dict)
    aggregator: str = "geometric_median"
    alpha: float = 0.5
    buffer_size: int = 2
    drop_rate: float = 0.0
    dataset: str = "digits"
    data_dir: Path | None = None
    private: bool = False
    compare: bool = False
    folder: Path | None = None

    def check(self) -> None:
        """What neither the trainer nor the preflight would say in a person's words."""
        if self.dataset not in MODELS:
            raise SettingsError(f"there is no dataset {self.dataset!r}; choose one of {', '.join(MODELS)}")
        if self.byzantine != 0:
            Drill.of(self.drill(Path("attackers")))

    @property
    def attackers(self) -> int:
        return self.byzantine or 0

    def drill(self, channel: Path) -> DrillSettings:
        return DrillSettings(attack=self.attack, options=dict(self._attack.options), channel=channel)

    @property
    def _attack(self) -> Attack:
        return Attack(self.attack, {**ATTACK_OPTIONS.get(self.attack, {}), **self.attack_options})

    def settled(self, parameters: int) -> tuple[DemoSettings, str]:
        """With a number of attackers, and a remark if there are fewer than usual; or all that cannot work, before it starts."""
        chosen, remark = (self, "") if self.byzantine is not None else self._with_attackers(parameters)
        for aggregator in dict.fromkeys((self.aggregator, *([MEAN] if self.compare else []))):
            manifest = chosen.manifest(aggregator, parameters)
            advice = advise(manifest, OPTIONS)
            if advice.problems:
                raise SettingsError(f"these settings cannot work: {advice.conclusion}")
            most = 1 - manifest.quorum / self.silos
            if self.drop_rate > most:
                raise SettingsError(
                    f"the drop rate leaves fewer than the quorum of {manifest.quorum} silos; take {most:.2g} at most"
                )
        try:
            chosen._attack.checked(Numbers(self.silos, self.buffer_size, chosen.attackers, self.aggregator))
        except SettingsError as error:
            raise SettingsError(f"{error}. {remark}" if remark else str(error)) from error
        return chosen, remark

    def _with_attackers(self, parameters: int) -> tuple[DemoSettings, str]:
        """As many as usual, or as many as these silos withstand."""
        if self.aggregator == MEAN:
            return replace(self, byzantine=min(ATTACKERS, (self.silos - 1) // 2)), ""
        possible = [replace(self, byzantine=count) for count in range(ATTACKERS, -1, -1)]
        for chosen in possible:
            if not preflight(chosen.manifest(self.aggregator, parameters)):
                usual = possible[0]
                return chosen, "" if chosen is usual else _why_fewer(chosen, advise(usual.manifest(self.aggregator, parameters)))
        return possible[-1], ""

    def manifest(self, aggregator: str, parameters: int) -> RunManifest:
        return self.run_config("demo", aggregator).manifest(parameters, bytes(32), bytes(32))

    def trainer(self, index: int) -> dict[str, Any]:
        values: dict[str, Any] = {
            "dataset": self.dataset,
            "model": MODELS[self.dataset],
            "shard_index": index,
            "shard_count": self.silos,
            "learning_rate": 0.5 if self.dataset == "digits" else 0.1,
            # At so high a rate more momentum fills the silos' memories with steps that wait, and shake the model to the end.
            "momentum": 0.5 if self.dataset == "digits" else 0.9,
            "interval": 5,
            "batch_size": 50,
            "threads": 1,
            "schedule": "step",
            "milestones": [max(2 * self.rounds // 3, 1)],
        }
        if self.private and self.dataset == "digits":
            values |= {"model": "logistic", "batch_size": 70, "interval": 2, "learning_rate": 2.0, "momentum": 0.9}
        if self.data_dir is not None:
            values["data_dir"] = str(self.data_dir.resolve())
        return values

    def run_config(self, name: str, aggregator: str) -> RunConfig:
        return RunConfig(
            name=name,
            silos=tuple(silo_name(index) for index in range(self.silos)),
            rounds=self.rounds,
            alpha=self.alpha,
            fraction=PRIVATE_FRACTION if self.private else 0.05,
            reshuffle_every=1,  # a demo is short, and an epoch leaves the mates of attackers out for as long as it lasts
            record_epsilon_at_most=PRIVACY["epsilon"] if self.private else None,
            delta_at_most=PRIVACY["delta"] if self.private else None,
            buffer_size=self.buffer_size,
            byzantine_count=0 if aggregator == MEAN else self.attackers,
            drills=True,
            # NNM first: with few buffers and unlike shards it brings the honest means together (Allouah et al., 2023).
            aggregator=AggregatorConfig(name=aggregator, pre=[] if aggregator == MEAN else ["nnm"]),
            # Where silos die all the time, a round that waits for one should not wait long.
            deadlines=DeadlineConfig(propose=5, submit=3, confirm=3, reveal=3)
            if self.drop_rate
            else DeadlineConfig(propose=10, submit=5, confirm=5, reveal=5),
        )


def silo_name(index: int) -> str:
    return f"silo-{index + 1:02d}"


def _why_fewer(chosen: DemoSettings, advice: Advice) -> str:
    """And what to change, by the `advice` on the usual number of attackers."""
    withstand = f"{chosen.byzantine} attacker" if chosen.byzantine else "no attacker, so nobody attacks"
    needed = [remedy.settings["silos"] for remedy in advice.remedies if "silos" in remedy.settings]
    more = f" (for {ATTACKERS} take --silos {needed[0]})" if needed else ""
    return f"{chosen.silos} silos in buffers of {chosen.buffer_size} withstand {withstand}{more}"
