"""The `[trainer]` table of a silo's TOML. Imports no torch: a bad file is refused before anything heavy loads."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedrep.record_privacy import Budget

Count = Annotated[int, Field(ge=1)]
_USER_CODE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


class PrivacySettings(BaseModel):
    """The silo's `[privacy]` table: what its records may cost, and how training pays for it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    epsilon: float = Field(gt=0, allow_inf_nan=False, description="most the records may cost, over all trainings ever")
    delta: float = Field(gt=0, lt=1, description="the guarantee's delta; well below one in the number of records")
    clip_norm: float = Field(default=1.0, gt=0, allow_inf_nan=False, description="C: each record's gradient is cut to this norm")
    noise: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="standard deviation over C; None: computed from the budget"
    )
    coordinates: Literal["public", "top"] = Field(
        default="public",
        description="what is sent: where the model has moved furthest, which anybody can work out, or this silo's largest values",
    )
    rounds: Count | None = Field(default=None, description="trainings the budget should last for; None: what the run has left")

    records_at_once: Count = Field(default=16, description="gradients of so many records are in memory together")

    @property
    def budget(self) -> Budget:
        return Budget(self.epsilon, self.delta)


class TrainerSettings(BaseModel):
    """Defaults train a small network on scikit-learn's digits, which needs no download."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # Either user code makes the whole trainer, or the built-in data and model below do.
    user_code: str | None = Field(default=None, description="module:function that takes these settings")
    user_code_dir: Path | None = Field(default=None, description="folder of that module; set from the TOML's folder")
    options: dict[str, Any] = Field(default_factory=dict, description="free for user code; unused by built-in trainers")

    dataset: Literal["digits", "fashion_mnist", "cifar10"] = "digits"
    data_dir: Path | None = None
    cache_dir: Path | None = Field(default=None, description="where decoded images are kept; default in data_dir")
    split: Literal["iid", "dirichlet"] = "iid"
    dirichlet_alpha: float = Field(default=0.5, gt=0)
    shard_index: int = Field(default=0, ge=0)
    shard_count: Count = 1
    augment: bool | None = Field(default=None, description="random crops and flips; None: only for cifar10")
    evaluation_shard: bool = Field(default=False, description="evaluate on this shard's part of the test split, not on all of it")
    evaluation_samples: Count | None = Field(default=None, description="at most so many of them; None: all")
    evaluation_batch_size: Count = 500
    calibration_samples: int = Field(
        default=1000, ge=0, description="samples that re-estimate batch-norm statistics for evaluation; 0: keep own"
    )

    model: str = "mlp"
    model_options: dict[str, Any] = Field(default_factory=dict)

    optimizer: str = Field(default="momentum_sgd", description="momentum_sgd, sgd or torch.optim.<Name>")
    optimizer_options: dict[str, Any] = Field(default_factory=dict, description="for torch.optim.<Name> only")
    learning_rate: float = Field(default=0.1, ge=0)
    momentum: float = Field(default=0.9, ge=0, lt=1, description="beta of local momentum SGD")
    weight_decay: float = Field(default=0.0, ge=0)
    clip_norm: float | None = Field(default=None, gt=0, description="largest norm of a gradient; None: no clipping")
    interval: Count = Field(default=1, description="local steps per round, the paper's I")
    batch_size: Count = 25

    schedule: Literal["constant", "step", "cosine"] = "constant"
    milestones: tuple[int, ...] = Field(default=(), description="rounds from which the rate is multiplied by gamma")
    gamma: float = Field(default=0.1, gt=0)
    total_rounds: Count | None = Field(
        default=None, description="how many rounds the cosine schedule falls over; after them the rate is zero"
    )
    warmup_rounds: int = Field(default=0, ge=0)

    privacy: PrivacySettings | None = Field(default=None, description="set from the silo's [privacy] table")

    device: str = Field(default="auto", description="auto (cuda, then mps, then cpu) or a torch device")
    autocast: Literal["off", "bfloat16"] = "off"
    threads: Count | None = Field(default=None, description="CPU threads of torch; None: torch's own choice")
    seed: int = Field(default=0, ge=0, description="the initial model and the split; the same on every silo")

    @model_validator(mode="after")
    def _fits_together(self) -> TrainerSettings:
        problems: list[str] = []
        if self.user_code is not None and not _USER_CODE.fullmatch(self.user_code):
            problems.append(f"user_code must look like 'module:function', not {self.user_code!r}")
        if self.user_code is None and self.shard_index >= self.shard_count:
            problems.append(f"shard_index {self.shard_index} must be below shard_count {self.shard_count}")
        if self.schedule == "step" and not self.milestones:
            problems.append("schedule = 'step' needs milestones, for example milestones = [800]")
        if list(self.milestones) != sorted(set(self.milestones)):
            problems.append(f"milestones must ascend, not {list(self.milestones)}")
        if self.schedule == "cosine" and self.total_rounds is None:
            problems.append("schedule = 'cosine' needs total_rounds")
        if self.optimizer_options and self.optimizer in ("sgd", "momentum_sgd"):
            problems.append(f"optimizer_options are for torch.optim optimizers; {self.optimizer} takes none")
        if problems:
            raise ValueError("; ".join(problems))
        return self

    @property
    def source(self) -> str:
        """What makes the trainer, for people."""
        return self.user_code or f"{self.model} on {self.dataset}"

    @property
    def augments(self) -> bool:
        return self.dataset == "cifar10" if self.augment is None else self.augment
