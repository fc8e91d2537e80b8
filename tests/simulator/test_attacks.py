"""Every attack of the table, played by the demo's two attackers on digits: the plain mean moves, and robust rules hold."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedrep.aggregators.rules import KRUM
from fedrep.attacks import ATTACKS
from fedrep.protocol.manifests import RunManifest, SiloName
from fedrep.protocol.messages import Survivor, SurvivorSet
from fedrep.protocol.opening import combine_buffers
from fedrep.protocol.seats import seats
from fedrep_cli.demo_settings import ATTACK_OPTIONS, ATTACKERS, DemoSettings
from fedrep_silo.drill import Drill
from fedrep_simulator import SimulationResult, simulate
from fedrep_trainers.build import build_trainer
from fedrep_trainers.settings import TrainerSettings

DEMO = DemoSettings(rounds=12, byzantine=ATTACKERS)
RULES = ("geometric_median", "median", "trimmed_mean", "centered_clipping", "meamed", "filter_l2", "dnc")
FOR_KRUM = 14  # silos, since seven buffers are the least it may have against two attackers
# Those that ruin the mean's model within a few rounds; the others are made to hide, or are clipped, and move it slowly.
LOUD = ("foe", "opt_foe")
Vectors = NDArray[np.float32]


@cache
def updates(silos: int) -> Vectors:
    """What the demo's silos would send in the fourth round: by then they no longer agree on everything."""
    settings = replace(DEMO, silos=silos)
    trainers = [build_trainer(TrainerSettings(**settings.trainer(index))) for index in range(silos)]
    model = trainers[0].initial()
    for number in (1, 2, 3):
        model = np.mean([trainer.train(model, number).model for trainer in trainers], axis=0)
    return np.stack([model - trainer.train(model, 4).model for trainer in trainers]).astype(np.float32)


def manifest(settings: DemoSettings) -> RunManifest:
    """Buffers, and what attackers draw, follow from it: always the same ones here."""
    return replace(settings.manifest(settings.aggregator, updates(settings.silos).shape[1]), buffer_seed=bytes(32))


def received(settings: DemoSettings, channel: Path) -> Vectors:
    """What the server would see without masks: the attackers' drills play as they do in the demo, and the ring clips."""
    honest = updates(settings.silos)
    run = manifest(settings)
    attackers = [Drill.of(settings.drill(channel), name) for name in run.silos[:ATTACKERS]]
    for drill, g in zip(attackers, honest, strict=False):
        drill.check(run)
        drill.share(run, 4, g)
    sent = [drill.of_update(run, 4, g) for drill, g in zip(attackers, honest, strict=False)]
    largest = float(np.abs(honest).max())
    clipped: Vectors = np.clip(np.concatenate([np.stack(sent), honest[ATTACKERS:]]), -largest, largest)
    return clipped


def length(vector: NDArray[Any]) -> float:
    return float(np.linalg.norm(vector))


@pytest.mark.parametrize(("silos", "rules"), [(DEMO.silos, RULES), (FOR_KRUM, KRUM)], ids=["rules", "krum"])
@pytest.mark.parametrize("attack", ATTACKS)
def test_every_attack_moves_the_plain_mean_and_leaves_the_robust_rules_their_direction(
    attack: str, silos: int, rules: tuple[str, ...], tmp_path: Path
) -> None:
    settings = DemoSettings(byzantine=ATTACKERS, attack=attack, silos=silos, aggregator=rules[0])
    honest, sent, run = updates(silos), received(settings, tmp_path), manifest(settings)
    mean = honest.mean(axis=0)
    assert length(sent.mean(axis=0) - mean) > 0.25 * ATTACKERS / silos * length(mean)
    survivors = SurvivorSet(tuple((Survivor(SiloName(str(number)), b""),) for number in range(silos // 2)))
    places = {name: place for place, name in enumerate(run.silos)}
    for number in (1, 2, 3):  # who shares a buffer with whom decides how much is lost
        groups = [[places[name] for name in group] for group in seats(run, number)]
        rows = {number: sent[group].mean(axis=0) for number, group in enumerate(groups)}
        for rule in rules:
            pre = json.dumps({"pre": ["nnm"]})
            found = combine_buffers(rows, survivors, rule, pre, ATTACKERS, np.random.default_rng(0)).vector
            cosine = float(found @ mean) / length(found) / length(mean)
            assert cosine > 0.85, rule
            assert length(found - mean) < 0.55 * length(mean), rule


def played(attack: str, aggregator: str, rounds: int) -> SimulationResult:
    own = ("shard_index", "shard_count")
    settings = {name: value for name, value in DEMO.trainer(0).items() if name not in own}
    run = DEMO.run_config("demo", aggregator).model_dump(exclude={"drills"})
    options = dict(ATTACK_OPTIONS.get(attack, {}))
    attackers = ATTACKERS if attack else 0
    return simulate(
        build_trainer,
        settings=settings,
        run=run,
        rounds=rounds,
        byzantine=attackers,
        attack=attack,
        attack_options=options,
        fast=True,
        central=False,
    )


@cache
def unattacked(aggregator: str, rounds: int) -> SimulationResult:
    return played("", aggregator, rounds)


def parameters(result: SimulationResult) -> NDArray[Any]:
    return np.concatenate([np.asarray(tensor).ravel() for tensor in result.model.values()])


@pytest.mark.parametrize("attack", ATTACKS)
def test_the_first_model_of_the_plain_mean_is_another_under_every_attack(attack: str) -> None:
    """Nothing else differs: the same data, coordinates and rounding."""
    start = build_trainer(TrainerSettings(**DEMO.trainer(0))).initial()
    honest, attacked = parameters(unattacked("mean", 1)), parameters(played(attack, "mean", 1))
    assert length(attacked - honest) > 0.015 * length(honest - start)


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS)
def test_the_demos_rule_learns_under_every_attack_as_if_there_were_none(attack: str) -> None:
    alone, robust = unattacked(DEMO.aggregator, DEMO.rounds).accuracy, played(attack, DEMO.aggregator, DEMO.rounds).accuracy
    assert alone is not None
    assert robust is not None
    assert robust > alone - 0.05
    if attack in LOUD:
        mean = played(attack, "mean", DEMO.rounds).accuracy
        assert mean is not None
        assert mean < robust - 0.05
