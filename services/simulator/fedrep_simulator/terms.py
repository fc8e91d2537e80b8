"""What a simulation plays: the silos' settings and the run's terms as a federation has them, and who attacks.

Equal terms end with the same model to the bit, wherever and in how many sittings they are played.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedrep.errors import SettingsError
from fedrep.protocol.advice import advise
from fedrep.protocol.collusion import Attack, Numbers
from fedrep.protocol.goals import Goals
from fedrep.protocol.manifests import RecordPromise, RunManifest
from fedrep.protocol.model_state import model_hash
from fedrep_runtime.run_config import AggregatorConfig, RunConfig
from fedrep_runtime.settings import checked_settings, load_settings
from fedrep_runtime.trackers import TrackingSettings
from fedrep_silo.config import PolicySettings, load_silo_settings
from fedrep_simulator.attackers import Coalition
from fedrep_simulator.engines import names_of
from fedrep_simulator.playing import Scene
from fedrep_simulator.seeds import seed_bytes
from fedrep_trainers.layout import ModelLayout, Vector
from fedrep_trainers.settings import PrivacySettings, TrainerSettings

CLIENT_FILE = Path("client.toml")
RUN_FILE = Path("run.toml")
SILOS = 10
MEAN = "mean"
PRIVATE_EPSILON, PRIVATE_DELTA = 8.0, 1e-5
ATTACKERS = "byzantine ="  # as the command's option and the argument in Python are called
# Of the silos' policy all counts but what is about real people and real hours.
NOT_SIMULATED = {"roster_file": None, "admins_file": None, "hours": None}


@dataclass(frozen=True)
class Terms:
    """`client_file` is the silos' settings file, for those who deploy them; None unless it says what is played."""

    run: RunConfig
    trainer: TrainerSettings
    policy: PolicySettings = field(default_factory=PolicySettings)
    byzantine: int = 0
    attack: Attack = field(default_factory=Attack)
    seed: int = 0
    fast: bool = False
    client_file: Path | None = None
    tracking: TrackingSettings = field(default_factory=TrackingSettings)

    def with_plain_mean(self) -> Terms:
        """The same silos and attackers against a server that takes the mean."""
        mean = AggregatorConfig(name=MEAN)
        changes = {"name": f"{self.run.name}-mean", "aggregator": mean, "byzantine_count": 0, "quorum": None}
        run = self.run.model_copy(update=changes)
        return replace(self, run=run)

    def checked(self) -> Terms:
        run = self.run
        attack = self.attack.checked(Numbers(len(run.silos), run.buffer_size, self.byzantine, run.aggregator.name))
        return replace(self, attack=attack, run=self.run.model_copy(update={"drills": self.byzantine > 0}))

    def scene(self, layout: ModelLayout, initial: Vector) -> Scene:
        """Refused with all its problems at once if the run could not be created."""
        manifest = self._manifest(layout, initial)
        # A number of attackers that the run file states is changed there, and not by how many attack.
        stated = {"byzantine_count": ATTACKERS} if manifest.byzantine == self.byzantine else {}
        advice = advise(manifest, {"silos": "silos =", **stated})
        if advice.problems:
            raise SettingsError(f"the run cannot work: {advice.conclusion}", reason="PREFLIGHT")
        attackers = manifest.silos[len(manifest.silos) - self.byzantine :]
        policy = self.policy.model_copy(update={**NOT_SIMULATED, **({"allow_drills": True} if attackers else {})})
        stop, budget = self.run.stop, self.trainer.privacy
        return Scene(
            manifest,
            Goals(manifest.rounds, stop.target_accuracy, stop.epsilon_budget),
            policy.rules(bytes.fromhex(layout.digest)),
            Coalition(self.attack, attackers, manifest, self.seed),
            self.seed,
            RecordPromise(budget.epsilon, budget.delta) if budget is not None else None,
            initial if budget is not None and budget.coordinates == "public" else None,
        )

    def _manifest(self, layout: ModelLayout, initial: Vector) -> RunManifest:
        made = self.run.manifest(initial.size, bytes.fromhex(layout.digest), model_hash(initial))
        return replace(made, buffer_seed=seed_bytes(self.seed, "buffers"))

    def described(self) -> dict[str, Any]:
        """As JSON: what another simulation must have in common to go on with this one."""
        return {
            "run": self.run.model_dump(mode="json"),
            "trainer": self.trainer.model_dump(mode="json"),
            "policy": self.policy.model_dump(mode="json"),
            "byzantine": self.byzantine,
            "attack": self.attack.name,
            "attack_options": dict(self.attack.options),
            "seed": self.seed,
            "fast": self.fast,
        }


def fingerprint(described: Mapping[str, Any], layout: ModelLayout, initial: Vector) -> str:
    text = json.dumps([described, layout.digest, model_hash(initial).hex()], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Wishes:
    """What was asked for on the command line or in Python; None leaves the files' word."""

    silos: int | None = None
    rounds: int | None = None
    aggregator: str | None = None
    byzantine: int = 0
    attack: str = ""
    attack_options: Mapping[str, Any] = field(default_factory=dict)
    alpha: float | None = None
    fraction: float | None = None
    buffer_size: int | None = None
    seed: int = 0
    fast: bool = False
    private: bool = False

    def terms(self, run: RunConfig | None, trainer: TrainerSettings, policy: PolicySettings | None = None) -> Terms:
        if (self.attack or self.attack_options) and not self.byzantine:
            raise SettingsError("--attack needs --byzantine: say how many of the silos attack")
        if self.private and trainer.privacy is None:
            trainer = trainer.model_copy(update={"privacy": PrivacySettings(epsilon=PRIVATE_EPSILON, delta=PRIVATE_DELTA)})
        return Terms(
            self._run(run),
            trainer,
            policy if policy is not None else PolicySettings(),
            self.byzantine,
            Attack(self.attack, dict(self.attack_options)),
            self.seed,
            self.fast,
        ).checked()

    def run_config(self, given: Mapping[str, Any]) -> RunConfig:
        """A run of its own, unless a name and silos are given."""
        return checked_settings(RunConfig, {"name": "simulation", "silos": silo_names(self.silos or SILOS), **given})

    def _run(self, given: RunConfig | None) -> RunConfig:
        run = given if given is not None else self.run_config({})
        changes: dict[str, Any] = {}
        if self.silos is not None and self.silos != len(run.silos):
            changes["silos"] = silo_names(self.silos)
        for name in ("rounds", "alpha", "fraction", "buffer_size"):
            if getattr(self, name) is not None:
                changes[name] = getattr(self, name)
        if self.aggregator is not None and self.aggregator != run.aggregator.name:
            changes["aggregator"] = AggregatorConfig(name=self.aggregator)
        rule = changes.get("aggregator", run.aggregator).name
        if rule == MEAN:
            changes["byzantine_count"] = 0
        elif "byzantine_count" not in run.model_fields_set:
            changes["byzantine_count"] = self.byzantine
        # Through the class once more, so that what was changed is checked as if it stood in the file.
        return checked_settings(RunConfig, {**run.model_dump(exclude_unset=True), **_plain(changes)})


def _plain(changes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.model_dump() if isinstance(value, AggregatorConfig) else value for name, value in changes.items()}


def silo_names(count: int) -> tuple[str, ...]:
    width = max(2, len(str(count)))
    return tuple(f"silo-{number:0{width}d}" for number in range(1, count + 1))


def read_files(wishes: Wishes, trainer: str | None, client_file: Path | None = None, run_file: Path | None = None) -> Terms:
    """From client.toml and run.toml of the current folder, where they are there or named."""
    client = client_file if client_file is not None else CLIENT_FILE if CLIENT_FILE.exists() else None
    if client is None and trainer is None:
        raise SettingsError(
            f"there is no {CLIENT_FILE} here and no --trainer: name the function that makes your trainer with --trainer "
            "module:function, or start from a template with `fedrep new NAME`"
        )
    settings = load_silo_settings(client)
    if trainer is not None:
        code = {"user_code": trainer, "user_code_dir": settings.trainer.user_code_dir or Path.cwd()}
        settings = settings.model_copy(update={"trainer": checked_settings(TrainerSettings, _given(settings.trainer) | code)})
    run_path = run_file if run_file is not None else RUN_FILE if RUN_FILE.exists() else None
    run = load_settings(RunConfig, run_path, "FEDREP_RUN") if run_path is not None else None
    terms = wishes.terms(run, settings.trainer, settings.policy)
    deployed = client if client is not None and _says(client, terms) else None
    return replace(terms, client_file=deployed, tracking=settings.tracking)


def _says(client: Path, terms: Terms) -> bool:
    """Whether the file alone, without options and environment, lets a silo do what is played."""
    try:
        alone = load_silo_settings(client, {})
    except SettingsError:
        return False
    return (alone.trainer, alone.policy) == (terms.trainer, terms.policy)


def _given(trainer: TrainerSettings) -> dict[str, Any]:
    return trainer.model_dump(exclude_unset=True)


__all__ = ["Terms", "Wishes", "fingerprint", "names_of", "read_files", "silo_names"]
