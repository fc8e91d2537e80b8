"""A run as its admin writes it down (run.toml), turned into the manifest that is signed and sent."""

from __future__ import annotations

import json
import secrets
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from fedrep.buffers import sizes
from fedrep.errors import SettingsError
from fedrep.protocol.manifests import Deadlines, RunManifest, SignedRunManifest, SiloName, run_manifest_message
from fedrep.protocol.seats import SEED_BYTES
from fedrep.protocol.thresholds import default_colluders, default_min_survivors, default_quorum
from fedrep.quantize import value_bits
from fedrep.secagg.keys import SigningKey
from fedrep.wire.v1 import observer_pb2


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class AggregatorConfig(Section):
    """The robust rule over the buffers' means."""

    name: str = Field(
        default="geometric_median", description="mean, median, trimmed_mean, geometric_median, centered_clipping, ..."
    )
    settings: dict[str, Any] = Field(default_factory=dict, description="the rule's own settings")
    pre: list[Any] = Field(default_factory=list, description="steps before the rule, for example ['nnm']")


class DeadlineConfig(Section):
    """Seconds each phase may last."""

    propose: float = Field(default=600.0, gt=0, description="local training and proposing")
    submit: float = Field(default=60.0, gt=0)
    confirm: float = Field(default=30.0, gt=0)
    reveal: float = Field(default=30.0, gt=0)


class StopConfig(Section):
    """When the run ends by itself."""

    target_accuracy: float = Field(default=0.0, ge=0, le=1, description="evaluator's accuracy; 0 means never")
    epsilon_budget: float = Field(default=0.0, ge=0, description="largest epsilon total of any silo; 0 means never")


class RunConfig(Section):
    name: str = Field(description="unique on the server")
    silos: tuple[str, ...] = Field(description="names of the silos allowed to take part")
    rounds: int = Field(default=100, ge=1, description="number of the last round; applied and skipped ones both count")
    fraction: float = Field(
        default=0.05, gt=0, allow_inf_nan=False, description="K/d, share of the coordinates that is sent per round"
    )
    alpha: float = Field(default=0.5, ge=0, le=1, description="share of random coordinates in each proposal")
    buffer_size: int = Field(default=2, ge=1, description="s, silos per buffer")
    reshuffle_every: int = Field(
        default=10, ge=1, description="rounds of an epoch, in which buffers stay the same; 1 as in the paper, and leaks more"
    )
    byzantine_count: int = Field(default=0, ge=0, description="f, silos that may send anything")
    colluders: int | None = Field(default=None, ge=0, description="c, silos that may help a curious server")
    min_survivors: int | None = Field(default=None, ge=1, description="survivors a buffer needs to be opened")
    quorum: int | None = Field(default=None, ge=1, description="silos that a round needs")
    ring_bits: int = Field(default=16, description="B: 8, 16 or 32")
    downlink_bits: int = Field(default=16, description="8, 16 or 32")
    initial_range: float = Field(default=0.1, gt=0, description="R of the first round")
    smallest_range: float = Field(default=1e-6, gt=0)
    largest_range: float = Field(default=1e3, gt=0)
    drills: bool = Field(default=False, description="whether silos may run attack drills")
    record_epsilon_at_most: float | None = Field(
        default=None,
        gt=0,
        description="most epsilon for one training record that every silo must promise; absent: none is asked for",
    )
    delta_at_most: float | None = Field(default=None, gt=0, lt=1, description="largest delta of that promise")
    evaluation_interval: int = Field(default=1, ge=1)
    keep_models: int | None = Field(
        default=None, ge=1, description="latest model versions kept, besides the best; absent: as many as the server keeps"
    )
    best: str = Field(
        default="",
        description="the evaluator's figure that decides which model is the best, such as auroc, or -loss where less is better; "
        "absent: accuracy",
    )
    aggregator: AggregatorConfig = AggregatorConfig()
    deadlines: DeadlineConfig = DeadlineConfig()
    stop: StopConfig = StopConfig()

    def manifest(self, parameters: int, layout_hash: bytes, model_hash: bytes) -> RunManifest:
        """Defaults filled in; whether it can work is the preflight's business."""
        if len(self.silos) < self.buffer_size:
            raise SettingsError(f"{len(self.silos)} silos do not fill one buffer of {self.buffer_size}; name more silos")
        m, s, f = len(self.silos), self.buffer_size, self.byzantine_count
        quorum = self.quorum if self.quorum is not None else default_quorum(m, s, f)
        colluders = self.colluders if self.colluders is not None else default_colluders(s)
        least = self.min_survivors if self.min_survivors is not None else default_min_survivors(s, colluders)
        limits = self.deadlines
        return RunManifest(
            name=self.name,
            silos=tuple(SiloName(name) for name in self.silos),
            parameters=parameters,
            layout_hash=layout_hash,
            model_hash=model_hash,
            coordinates=round(self.fraction * parameters),
            alpha=self.alpha,
            buffer_size=s,
            reshuffle_every=self.reshuffle_every,
            ring_bits=self.ring_bits,
            value_bits=max(value_bits(self.ring_bits, sizes(m, s)[0]), 0),
            downlink_bits=self.downlink_bits,
            initial_range=self.initial_range,
            smallest_range=self.smallest_range,
            largest_range=self.largest_range,
            quorum=quorum,
            min_survivors=least,
            colluders=colluders,
            byzantine=f,
            aggregator=self.aggregator.name,
            aggregator_settings=self._aggregator_settings(),
            rounds=self.rounds,
            deadlines=Deadlines(limits.propose, limits.submit, limits.confirm, limits.reveal),
            drills=self.drills,
            buffer_seed=secrets.token_bytes(SEED_BYTES),
            record_epsilon_at_most=self.record_epsilon_at_most,
            delta_at_most=self.delta_at_most,
        )

    @classmethod
    def of_run(cls, run: RunManifest, options: observer_pb2.RunOptions) -> RunConfig:
        """The settings of a run that exists, for another one like it. What follows from the others is left open again."""
        m, s, f = len(run.silos), run.buffer_size, run.byzantine
        settings = json.loads(run.aggregator_settings) if run.aggregator_settings else {}
        pre = settings.pop("pre", [])
        limits = run.deadlines
        return cls(
            name=run.name,
            silos=tuple(run.silos),
            rounds=run.rounds,
            fraction=run.coordinates / run.parameters,
            alpha=run.alpha,
            buffer_size=s,
            reshuffle_every=run.reshuffle_every,
            byzantine_count=f,
            colluders=None if run.colluders == default_colluders(s) else run.colluders,
            min_survivors=None if run.min_survivors == default_min_survivors(s, run.colluders) else run.min_survivors,
            quorum=None if run.quorum == default_quorum(m, s, f) else run.quorum,
            ring_bits=run.ring_bits,
            downlink_bits=run.downlink_bits,
            initial_range=run.initial_range,
            smallest_range=run.smallest_range,
            largest_range=run.largest_range,
            drills=run.drills,
            record_epsilon_at_most=run.record_epsilon_at_most,
            delta_at_most=run.delta_at_most,
            evaluation_interval=options.evaluation_interval or 1,
            keep_models=options.keep_models or None,
            best=options.best,
            aggregator=AggregatorConfig(name=run.aggregator, settings=settings, pre=pre),
            deadlines=DeadlineConfig(propose=limits.propose, submit=limits.submit, confirm=limits.confirm, reveal=limits.reveal),
            stop=StopConfig(target_accuracy=options.target_accuracy, epsilon_budget=options.epsilon_budget),
        )

    def _aggregator_settings(self) -> str:
        settings = dict(self.aggregator.settings)
        if self.aggregator.pre:
            settings["pre"] = self.aggregator.pre
        return json.dumps(settings, sort_keys=True)

    def options(self, layout: str) -> observer_pb2.RunOptions:
        return observer_pb2.RunOptions(
            evaluation_interval=self.evaluation_interval,
            target_accuracy=self.stop.target_accuracy,
            epsilon_budget=self.stop.epsilon_budget,
            keep_models=self.keep_models or 0,
            layout=layout,
            best=self.best,
        )


def sign_run(manifest: RunManifest, admin: str, certificate: bytes, key: SigningKey) -> SignedRunManifest:
    return SignedRunManifest(manifest, admin, certificate, key.sign(run_manifest_message(manifest)))
