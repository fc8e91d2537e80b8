"""The silo's settings: where the federation is, who this silo is, what it trains, and what it allows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedrep.protocol.silo_rules import Policy
from fedrep_identity.folder import learned_server
from fedrep_identity.roster import load_pinned_roster
from fedrep_runtime.settings import load_settings
from fedrep_runtime.trackers import TrackingSettings
from fedrep_trainers.settings import PrivacySettings, TrainerSettings

Hour = Annotated[int, Field(ge=0, le=24)]
Hash = Annotated[str, Field(pattern="^([0-9a-f]{64}|1e[0-9a-f]{64})$")]


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PolicySettings(Section):
    """What this silo's operator allows, whatever an admin signs. A manifest outside it is refused with the reason."""

    smallest_roster: int = Field(default=3, ge=2, description="fewest silos in a round")
    smallest_buffer: int = Field(default=2, ge=2, description="fewest silos that share a buffer")
    smallest_sum: int = Field(default=2, ge=2, description="fewest silos in a sum that may be opened (the run's min_survivors)")
    least_alpha: float = Field(default=0.0, ge=0, le=1, description="least share of random coordinates in a proposal")
    epsilon_budget: float | None = Field(default=None, gt=0, description="most epsilon spent on proposals over all rounds")
    largest_fraction: float = Field(default=1.0, gt=0, le=1, description="largest K/d")
    smallest_range: float = Field(default=0.0, ge=0, description="smallest clip range R")
    least_epoch: int = Field(default=1, ge=1, description="fewest rounds in which buffers stay the same (reshuffle_every)")
    whole_buffers: bool = Field(default=False, description="open sums over whole buffers only, so that no two can be subtracted")
    others_record_epsilon: float | None = Field(
        default=None, gt=0, description="most epsilon for one training record that all silos of a run must promise"
    )
    others_record_delta: float | None = Field(default=None, gt=0, lt=1, description="largest delta of that promise")
    allowed_runs: tuple[str, ...] | None = Field(default=None, description="names of runs; absent means any")
    model_hash: Hash | None = Field(default=None, description="hash of the initial model this silo expects")
    roster_file: Path | None = Field(
        default=None, description="file with one key fingerprint (hex) per line: the only silos trusted"
    )
    admins_file: Path | None = Field(
        default=None, description="file with one key fingerprint (hex) per line: the only admins whose runs count"
    )
    hours: tuple[Hour, Hour] | None = Field(
        default=None, description="hours of the day (local, from, to) in which this silo trains, for example [22, 6]"
    )
    allow_drills: bool = Field(default=False, description="whether this silo takes part in runs that allow attack drills")

    def rules(self, layout_hash: bytes | None) -> Policy:
        """As the core knows it; the roster file is read here, once."""
        pinned = load_pinned_roster(self.roster_file) if self.roster_file is not None else None
        return Policy(
            smallest_roster=self.smallest_roster,
            smallest_buffer=self.smallest_buffer,
            smallest_sum=self.smallest_sum,
            least_alpha=self.least_alpha,
            epsilon_budget=self.epsilon_budget,
            largest_fraction=self.largest_fraction,
            smallest_range=self.smallest_range,
            allowed_runs=self.allowed_runs,
            expected_model_hash=bytes.fromhex(self.model_hash) if self.model_hash is not None else None,
            expected_layout_hash=layout_hash,
            allow_drills=self.allow_drills,
            pinned_fingerprints=pinned,
            pinned_admins=load_pinned_roster(self.admins_file) if self.admins_file is not None else None,
            least_epoch=self.least_epoch,
            whole_buffers=self.whole_buffers,
            others_record_epsilon=self.others_record_epsilon,
            others_record_delta=self.others_record_delta,
            hours=self.hours,
        )


class DrillSettings(Section):
    """An attack this silo plays on purpose, in runs that allow drills."""

    attack: str = Field(default="", description="name of the attack, empty for none")
    options: dict[str, Any] = Field(default_factory=dict, description="settings of the attack, for example epsilon = 10")
    channel: Path | None = Field(
        default=None,
        description="folder shared by the attackers of a drill, who tell each other there what they would send",
    )


class SiloSettings(Section):
    server: str = Field(
        default="localhost:8550", description="host:port of the federation server; absent: the one learned at enrolment"
    )
    server_name: str | None = Field(
        default=None, description="name in the server's certificate, where it differs from the address"
    )
    run: str = Field(default="", description='name of the run to take part in; "*" for every run that lists this silo')
    runs: tuple[str, ...] = Field(default=(), description="names of runs, one after the other; run = [...] means the same")
    role: Literal["silo", "evaluator"] = Field(default="silo", description="silo trains; evaluator only tests the model")
    credentials: Path = Field(default=Path("credentials"), description="folder with key.pem, cert.pem and root.pem")
    state: Path = Field(default=Path("state"), description="folder for this run's residual, momentum, model and journal")
    ledger: Path = Field(
        default=Path("ledger"),
        description="folder with what proposals from this data set have cost, in all runs over it",
    )
    report: Literal["none", "counts", "all"] = Field(
        default="counts", description="figures sent to the server, unmasked: none, counts (epsilon, rounds, samples) or all"
    )
    evaluate_every: int | None = Field(
        default=None, ge=1, description="rounds between evaluations; absent: as many as the run's evaluation_interval says"
    )
    when_done: Literal["end", "wait"] = Field(
        default="end",
        description="when its runs are over: end, or wait with the trainer let go, for supervisors that start whatever ends",
    )
    give_up_after: float = Field(default=86400.0, gt=0, description="seconds to keep trying while the server is away")
    training_failures: int = Field(default=5, ge=1, description="failed trainings in a row after which the silo stops")
    grace_seconds: float = Field(default=30.0, ge=0, description="when asked to stop: time to finish a round already promised")
    log_json: bool | None = Field(default=None, description="JSON log lines; by default JSON unless on a terminal")
    trainer: TrainerSettings = TrainerSettings()
    privacy: PrivacySettings | None = Field(default=None, description="what training may cost the records; absent: no guarantee")
    policy: PolicySettings = PolicySettings()
    drill: DrillSettings = DrillSettings()
    tracking: TrackingSettings = TrackingSettings()

    @property
    def follows(self) -> bool:
        """Whether the daemon goes from run to run."""
        return self.run == "*" or bool(self.runs)

    @model_validator(mode="before")
    @classmethod
    def _one_or_several(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and isinstance(given.get("run"), list | tuple):
            return {**given, "run": "", "runs": given["run"]}
        return given

    @model_validator(mode="after")
    def _nothing_else_leaves(self) -> SiloSettings:
        if self.privacy is not None and self.report == "all":
            raise ValueError(
                'report = "all" sends losses, accuracy and timings of the training data as they are, which [privacy] does not '
                'cover; use report = "counts" or "none"'
            )
        if self.trainer.privacy is not None and self.trainer.privacy != self.privacy:
            raise ValueError("the record budget is a table of its own: write [privacy], not [trainer.privacy]")
        return self


def load_silo_settings(path: Path | None, environ: Mapping[str, str] | None = None) -> SiloSettings:
    """The silo's settings; relative paths are meant from the file's own folder, wherever the command is started."""
    settings = load_settings(SiloSettings, path, "FEDREP_CLIENT", environ)
    home = path.resolve().parent if path is not None else Path.cwd()
    trainer = settings.trainer
    folders = {name: home / value for name in ("data_dir", "cache_dir") if (value := getattr(trainer, name)) is not None} | {
        "user_code_dir": home / (trainer.user_code_dir or ".")
    }
    policy = settings.policy
    files = {name: home / file for name in ("roster_file", "admins_file") if (file := getattr(policy, name)) is not None}
    policy = policy.model_copy(update=files)
    folders["privacy"] = settings.privacy
    channel = settings.drill.channel
    drill = settings.drill.model_copy(update={"channel": home / channel if channel is not None else None})
    places = {
        name: home / place for name in ("tensorboard", "wandb_dir") if (place := getattr(settings.tracking, name)) is not None
    }
    credentials = home / settings.credentials
    return settings.model_copy(
        update={
            "server": settings.server if "server" in settings.model_fields_set else learned_server(credentials),
            "credentials": credentials,
            "state": home / settings.state,
            "ledger": home / settings.ledger,
            "trainer": trainer.model_copy(update=folders),
            "policy": policy,
            "drill": drill,
            "tracking": settings.tracking.model_copy(update=places),
        }
    )
