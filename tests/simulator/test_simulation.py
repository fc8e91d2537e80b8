"""A simulated federation: what it plays, that it is the service's to the bit, and that an interruption changes nothing."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrep.attacks import alie_z
from fedrep.errors import FedrepError, SettingsError
from fedrep.protocol.collusion import Attack, Numbers
from fedrep.protocol.manifests import SiloName
from fedrep.protocol.model_state import model_hash
from fedrep.record_privacy import Stated, TrainingPrivacy
from fedrep_runtime.model_files import read_model
from fedrep_runtime.observer_client import ObserverClient
from fedrep_runtime.run_config import RunConfig, StopConfig, sign_run
from fedrep_runtime.trackers import TrackingSettings
from fedrep_silo.config import DrillSettings, PolicySettings
from fedrep_simulator import SimulationResult, simulate
from fedrep_simulator.api import Listeners, run_simulation
from fedrep_simulator.attackers import Coalition
from fedrep_simulator.folder import Row, write_result
from fedrep_simulator.seeds import SiloDice, seed_bytes
from fedrep_simulator.simulation import COLUMNS
from fedrep_simulator.terms import Wishes
from fedrep_trainers.build import build_trainer
from fedrep_trainers.layout import Vector
from fedrep_trainers.settings import PrivacySettings, TrainerSettings
from fedrep_trainers.trainer import Allowance, Evaluation
from tests.harness.federation import Federation, StubTrainer
from tests.harness.processes import run_scenario
from tests.simulator.problem import RUN, build

ROUNDS = 6


class StatingTrainer(StubTrainer):
    def privacy(self, allowance: Allowance | None) -> TrainingPrivacy | None:  # noqa: ARG002 - the protocol's
        return Stated(0.1)


def stating(settings: TrainerSettings) -> StatingTrainer:
    return StatingTrainer(settings.shard_index)


def played(**options: Any) -> SimulationResult:
    return simulate(build, **{"run": RUN, "rounds": ROUNDS, "central": False, **options})


def without_time(rows: list[Row]) -> list[Row]:
    """Rows but for what a clock or the length of signatures decides."""
    return [{name: value for name, value in row.items() if name not in ("seconds", "bytes_up", "bytes_down")} for row in rows]


def same_bits(one: SimulationResult, other: SimulationResult) -> bool:
    return all(np.array_equal(one.model[name], other.model[name]) for name in one.model) and len(one.model) == len(other.model)


def test_a_simulation_without_cryptography_ends_with_the_same_bits() -> None:
    secure = played(byzantine=1, attack="foe")
    fast = played(byzantine=1, attack="foe", fast=True)
    assert same_bits(secure, fast)
    assert without_time(secure.history) == without_time(fast.history)
    assert (secure.summary["cryptography"], fast.summary["cryptography"]) == (True, False)
    assert not same_bits(secure, played(byzantine=1, attack="foe", fast=True, seed=1))


@pytest.mark.parametrize("fast", [False, True])
def test_a_simulation_that_was_interrupted_goes_on_to_the_same_bits(tmp_path: Path, fast: bool) -> None:
    """After round three, before anything was saved by the clock: what is over is kept, and not played again."""
    straight = played(byzantine=1, attack="foe", fast=fast)

    def stop_after_three(row: Row, _rounds: int) -> None:
        if row["round"] == 3:
            raise KeyboardInterrupt

    options = {"byzantine": 1, "attack": "foe", "fast": fast, "out": tmp_path / "out"}
    with pytest.raises(KeyboardInterrupt):
        played(**options, on_round=stop_after_three)
    heard: list[int] = []
    resumed = played(**options, on_round=lambda row, _: heard.append(row["round"]))
    assert heard == [4, 5, 6]
    assert same_bits(straight, resumed)
    assert without_time(straight.history) == without_time(resumed.history)
    assert played(**options, on_round=lambda row, _: heard.append(row["round"])).history == resumed.history
    assert heard == [4, 5, 6]


def test_a_folder_of_another_simulation_is_refused(tmp_path: Path) -> None:
    played(out=tmp_path, fast=True)
    with pytest.raises(SettingsError, match="rounds was 6, now it is 7"):
        played(out=tmp_path, fast=True, rounds=7)


def test_what_is_refused_leaves_the_folder_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked_for = Wishes(rounds=2, fast=True).terms(RunConfig(**RUN), TrainerSettings())
    impossible = Wishes(rounds=2, fast=True).terms(RunConfig(**RUN, ring_bits=7), TrainerSettings())
    monkeypatch.setitem(sys.modules, "wandb", None)
    untracked = replace(asked_for, tracking=TrackingSettings(wandb="offline"))
    run_simulation(asked_for, build, out=tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for refused in (impossible, untracked):
        for compare in (False, True):
            with pytest.raises(SettingsError):
                run_simulation(refused, build, out=tmp_path, again=True, compare=compare)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_folder_without_a_round_is_nobodys(tmp_path: Path) -> None:
    def broken(settings: TrainerSettings) -> StubTrainer:
        def fail(_number: int) -> None:
            raise ValueError("no data today")

        return StubTrainer(settings.shard_index, before_training=fail)

    with pytest.raises(FedrepError, match="no data today"):
        simulate(broken, run=RUN, rounds=3, fast=True, central=False, out=tmp_path)
    assert len(played(out=tmp_path, fast=True).history) == ROUNDS


@pytest.mark.parametrize("left", [0, 0.5])
@pytest.mark.parametrize(
    "file", ["simulation.json", "central.json", "current", "round-000006-end/rounds.json", "round-000006-end/server.safetensors"]
)
def test_a_damaged_folder_is_one_sentence_and_again_begins_anew(tmp_path: Path, file: str, left: float) -> None:
    terms = Wishes(rounds=ROUNDS, fast=True).terms(RunConfig(**RUN), TrainerSettings())
    first = run_simulation(terms, build, out=tmp_path)
    whole = (tmp_path / file).read_bytes()
    (tmp_path / file).write_bytes(whole[: int(len(whole) * left)])
    with pytest.raises(SettingsError, match=r"cannot be read \(.+\): --again begins anew"):
        run_simulation(terms, build, out=tmp_path)
    assert same_bits(first, run_simulation(terms, build, out=tmp_path, again=True))


def test_what_begins_anew_keeps_nothing_of_the_old_simulation(tmp_path: Path) -> None:
    played(out=tmp_path, fast=True, central=True, compare=True)
    old = {path.name for path in tmp_path.iterdir()}

    def stop_at_once(_row: Row, _rounds: int) -> None:
        raise KeyboardInterrupt

    terms = Wishes(rounds=3, fast=True).terms(RunConfig(**RUN), TrainerSettings())
    with pytest.raises(KeyboardInterrupt):
        run_simulation(terms, build, out=tmp_path, again=True, listeners=Listeners(on_round=stop_at_once))
    left = {path.name for path in tmp_path.iterdir()}
    assert {"central.json", "result.json", "model.safetensors", "plain-mean"} <= old - left
    assert len(json.loads((tmp_path / "history.json").read_text())) == 1


@pytest.mark.slow
def test_simulation_and_service_end_with_the_same_bits(tmp_path: Path) -> None:
    """Real daemons over gRPC, one of them with a drill; their obfuscation and rounding drawn as the simulation draws them."""
    names = tuple(f"silo-{n}" for n in range(8))
    simulated = played(byzantine=1, attack="foe", attack_options={"epsilon": 10.0}, seed=3)
    federation = Federation.create(tmp_path, silos=8)
    found: list[Vector] = []

    async def scenario() -> None:
        async with federation.serving() as server:
            await create_like_simulation(federation)
            daemons = []
            for number, name in enumerate(names):
                attacks: dict[str, Any] = {"drill": DrillSettings(attack="foe", options={"epsilon": 10.0})} if number == 7 else {}
                daemon = federation.daemon(number, policy=PolicySettings(allow_drills=True), **attacks)
                machine = daemon.machine
                dice = SiloDice(3, name, lambda machine=machine: machine.part.manifest.round)  # type: ignore[misc]
                machine._own = replace(machine._own, randomness=dice.randomness())
                daemons.append(daemon)
            await federation.run_silos(daemons)
            found.append(server.coordinator.run_named("run").model.state.vector)
        await asyncio.sleep(0)

    run_scenario(scenario())
    assert np.array_equal(found[0], simulated.model["weight"])
    assert found[0].any()


async def create_like_simulation(federation: Federation) -> None:
    config = RunConfig(**RUN, rounds=ROUNDS, byzantine_count=1, drills=True)
    trainer = StubTrainer()
    vector = trainer.initial()
    manifest = config.manifest(vector.size, bytes.fromhex(trainer.layout.digest), model_hash(vector))
    manifest = replace(manifest, buffer_seed=seed_bytes(3, "buffers"))
    admin = federation.credentials("admin")
    signed = sign_run(manifest, "admin", admin.chain, admin.signing_key)

    def create(client: ObserverClient) -> None:
        assert not client.create_run(signed, config.options(""), vector).problems

    await federation._observe(create)


def test_attackers_spoil_the_plain_mean_and_not_the_robust_rule() -> None:
    result = played(byzantine=1, attack="foe", attack_options={"epsilon": 100.0}, rounds=30, compare=True, fast=True)
    honest = played(rounds=30, fast=True)
    assert result.comparison is not None
    robust, mean, alone = result.accuracy, result.comparison.accuracy, honest.accuracy
    assert robust is not None
    assert mean is not None
    assert alone is not None
    assert robust > 0.5 * alone
    assert mean < 0.1 * robust


def test_the_attackers_know_each_others_updates_and_no_others() -> None:
    """ALIE of two: the mean of their own updates, moved by z of their own standard deviations."""
    run = RunConfig(**RUN).manifest(8, bytes(32), bytes(32))
    attack = Attack("alie").checked(Numbers(7, 2, 2))
    coalition = Coalition(attack, (SiloName("a"), SiloName("b")), run, 0)
    rows = np.random.default_rng(1).normal(size=(3, 8)).astype(np.float32)
    for name, row in zip("abc", rows, strict=True):
        coalition.share(SiloName(name), 1, row)
    expected = rows[:2].mean(axis=0) - alie_z(7, 2) * rows[:2].std(axis=0)
    for name in "ab":
        np.testing.assert_allclose(coalition.drill(SiloName(name)).of_update(run, 1, rows[0]), expected, rtol=1e-5)
    assert np.array_equal(coalition.drill(SiloName("c")).of_update(run, 1, rows[2]), rows[2])


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({"byzantine": 1, "attack": "alie"}, "take more attackers"),
        ({"byzantine": 1, "attack": "nonfinite"}, "kind = 'huge'"),
        ({"byzantine": 1, "attack": "allie"}, "there is no attack 'allie'"),
        ({"byzantine": 1}, "no attack: add --attack"),
        ({"attack": "foe"}, "--attack needs --byzantine"),
        ({"attack_options": {"x": 3}}, "--attack needs --byzantine"),
        ({"byzantine": 1, "attack": "foe", "attack_options": {"z": 1}}, "no option 'z'; it has epsilon"),
        ({"byzantine": 8, "attack": "foe"}, "leave nobody honest"),
        ({"byzantine": 5, "attack": "alie"}, "honest majority"),
        ({"byzantine": 2, "attack": "foe"}, "the run cannot work: .* take silos = 10, or take byzantine = 1"),
        ({"byzantine": 1, "attack": "foe", "run": RUN | {"byzantine_count": 2}}, "take silos = 10, or set byzantine_count = 1"),
    ],
)
def test_what_cannot_be_played_is_refused_before_the_run(wish: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        played(**wish)


@pytest.mark.parametrize("fast", [False, True])
def test_a_silo_whose_training_fails_abstains_and_if_all_fail_the_simulation_says_why(fast: bool) -> None:
    def failing(*rounds: int, silos: int) -> Any:
        def fail(number: int) -> None:
            if number in rounds:
                raise ValueError("no data today")

        def made(settings: TrainerSettings) -> StubTrainer:
            ill = settings.shard_count > 1 and settings.shard_index < silos
            return StubTrainer(settings.shard_index, before_training=fail if ill else None)

        return made

    some = simulate(failing(2, silos=2), run=RUN, rounds=3, fast=fast, central=False)
    survived = [row["survivors"] for row in some.history]
    assert (survived[0], survived[2]) == (8, 8)
    assert survived[1] in (4, 6)  # a mate of one that abstains has nobody to share a sum with
    with pytest.raises(FedrepError, match=r"no silo could train in round 2; silo-0: .*no data today"):
        simulate(failing(2, silos=8), run=RUN, rounds=3, fast=fast, central=False)


def evaluating(*given: Any, metrics: dict[str, Any] | None = None) -> Any:
    """Trainers whose evaluations have these accuracies, one after the other, and metrics of their own."""
    accuracies = iter(given)

    class Evaluating(StubTrainer):
        def evaluate(self, model: Vector) -> Evaluation:
            return replace(super().evaluate(model), accuracy=next(accuracies), metrics=metrics or {})

    return lambda settings: Evaluating(settings.shard_index)


def test_figures_that_are_no_plain_numbers_are_kept_as_numbers_or_as_none(tmp_path: Path) -> None:
    odd = evaluating(float("nan"), np.float32(0.5), np.float64("inf"), 1, metrics={"auroc": np.float32(0.25), "f1": float("nan")})
    result = simulate(odd, run=RUN, rounds=3, fast=True, out=tmp_path)
    assert [row["accuracy"] for row in result.history] == [None, 0.5, None]
    assert {(row["auroc"], row["f1"]) for row in result.history} == {(0.25, None)}
    assert result.summary["central_accuracy"] == 1.0

    def refused(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    for path in tmp_path.rglob("*.json"):
        json.loads(path.read_text(), parse_constant=refused)


def test_what_others_read_holds_no_nan_and_a_trainers_options_may(tmp_path: Path) -> None:
    settings = {"options": {"missing": float("nan")}}
    assert simulate(build, settings=settings, run=RUN, rounds=1, fast=True, central=False, out=tmp_path).accuracy is not None
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_result(tmp_path, {"accuracy": float("nan")})


def test_metrics_named_like_our_columns_stand_beside_them() -> None:
    plain = simulate(evaluating(0.5, 0.5), run=RUN, rounds=2, fast=True, central=False).history
    named = dict.fromkeys(plain[0], 7.0)
    both = simulate(evaluating(0.5, 0.5, metrics=named), run=RUN, rounds=2, fast=True, central=False).history
    assert set(plain[0]) <= set(COLUMNS)
    assert without_time([{name: row[name] for name in plain[0]} for row in both]) == without_time(plain)
    assert all(row[f"metric_{name}"] == 7.0 for row in both for name in named)


def test_an_evaluation_that_cannot_be_read_is_told_and_loses_no_round_before_it(tmp_path: Path) -> None:
    with pytest.raises(FedrepError, match=r"evaluate\(\) of the trainer failed: TypeError: .*str"):
        simulate(evaluating(0.5, 0.5, "high"), run=RUN, rounds=3, fast=True, central=False, out=tmp_path)
    assert [row["round"] for row in json.loads((tmp_path / "history.json").read_text())] == [1, 2]


@pytest.mark.parametrize("fast", [False, True])
def test_the_silos_policy_counts_in_a_simulation_and_the_rounds_until_then_are_kept(fast: bool, tmp_path: Path) -> None:
    terms = Wishes(rounds=5, fast=fast).terms(RunConfig(**RUN), TrainerSettings(), PolicySettings(epsilon_budget=12.0))
    with pytest.raises(FedrepError, match=r"0 silos are left, and a round needs \d+\. silo-0: .*budget"):
        run_simulation(terms, build, central=False)
    with pytest.raises(FedrepError, match=rf"budget.*\. What was played until then is in {tmp_path}$"):
        run_simulation(terms, build, out=tmp_path)
    rows, result = (json.loads((tmp_path / name).read_text()) for name in ("history.json", "result.json"))
    applied = [row for row in rows if row["outcome"] == "applied"]
    assert len(applied) == result["rounds_applied"] == 2
    assert "0 silos are left" in result["ended"]
    _, model = read_model(tmp_path / "model.safetensors")
    assert applied[-1]["loss"] == StubTrainer(1000).evaluate(model).loss


def test_a_central_model_that_cannot_be_trained_is_a_note(tmp_path: Path) -> None:
    def central_fails(settings: TrainerSettings) -> StubTrainer:
        def fail(_number: int) -> None:
            raise MemoryError("all data in one place")

        return StubTrainer(settings.shard_index, before_training=fail if settings.shard_count == 1 else None)

    result = simulate(central_fails, run=RUN, rounds=2, fast=True, out=tmp_path, compare=True)
    assert result.summary["central_accuracy"] is None
    (note,) = result.summary["notes"]
    assert "there is no central model to compare with: MemoryError: all data in one place" in note
    assert result.accuracy is not None
    assert result.comparison is not None
    assert json.loads((tmp_path / "result.json").read_text())["notes"] == [note]


def test_the_results_are_there_before_anything_is_compared_with_them(tmp_path: Path) -> None:
    def interrupt(_done: int, _rounds: int) -> None:
        raise KeyboardInterrupt

    terms = Wishes(rounds=2, fast=True).terms(RunConfig(**RUN), TrainerSettings())
    with pytest.raises(KeyboardInterrupt):
        run_simulation(terms, build, out=tmp_path, listeners=Listeners(on_central=interrupt))
    assert json.loads((tmp_path / "result.json").read_text())["rounds_applied"] == 2
    assert (tmp_path / "model.safetensors").exists()


@pytest.mark.parametrize("fast", [False, True])
def test_a_run_that_stops_early_is_measured_at_its_end_and_compared_with_as_many_rounds(fast: bool) -> None:
    run = RunConfig(**RUN, evaluation_interval=10, stop=StopConfig(epsilon_budget=8.0))
    heard: list[tuple[int, int]] = []
    listeners = Listeners(on_central=lambda done, rounds: heard.append((done, rounds)))
    result = run_simulation(Wishes(rounds=30, fast=fast).terms(run, TrainerSettings()), build, listeners=listeners)
    assert [row["loss"] is None for row in result.history] == [True, False]
    assert result.history[-1]["loss"] == StubTrainer(1000).evaluate(result.model["weight"]).loss
    assert result.summary["ended"] == "the epsilon budget of 8 is used up after round 2"
    assert heard == [(1, 2), (2, 2)]


@pytest.mark.parametrize("fast", [False, True])
def test_a_run_that_asks_for_a_promise_is_played_by_silos_with_a_budget_and_by_no_others(fast: bool) -> None:
    run = RunConfig(**RUN, record_epsilon_at_most=8.0, delta_at_most=1e-5)
    terms = Wishes(rounds=2, fast=fast).terms(run, TrainerSettings())
    with pytest.raises(FedrepError, match="this silo has no budget for records"):
        run_simulation(terms, build, central=False)
    promising = replace(terms, trainer=TrainerSettings(privacy=PrivacySettings(epsilon=8.0, delta=1e-5)))
    result = run_simulation(promising, stating, central=False)
    assert [row["outcome"] for row in result.history] == ["applied"] * 2


@pytest.mark.skipif(find_spec("tensorboard") is None, reason="the extra tensorboard is not installed")
def test_a_simulation_writes_its_rounds_to_the_trackers_that_the_settings_name(tmp_path: Path) -> None:
    terms = Wishes(rounds=2, fast=True).terms(RunConfig(**RUN), TrainerSettings())
    run_simulation(replace(terms, tracking=TrackingSettings(tensorboard=tmp_path)), build, central=False)
    from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer

    read = EventMultiplexer().AddRunsFromDirectory(str(tmp_path))
    read.Reload()
    assert [event.step for event in read.Scalars(RUN["name"], "loss")] == [1, 2]


def test_public_coordinates_end_with_the_same_bits_with_and_without_cryptography() -> None:
    budget = TrainerSettings(privacy=PrivacySettings(epsilon=8.0, delta=1e-5))
    of = {fast: Wishes(rounds=3, fast=fast).terms(RunConfig(**RUN), budget) for fast in (False, True)}
    secure, fast = (run_simulation(of[fast], stating, central=False) for fast in (False, True))
    assert same_bits(secure, fast)
    assert secure.summary["epsilon_total"] == 0.0, "proposals that anybody can work out cost nothing"
    top = replace(of[True], trainer=TrainerSettings(privacy=PrivacySettings(epsilon=8.0, delta=1e-5, coordinates="top")))
    assert not same_bits(fast, run_simulation(top, stating, central=False))


@pytest.mark.parametrize("fast", [False, True])
def test_attackers_on_public_coordinates_know_what_they_would_send_and_no_more(
    fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared: list[int] = []

    def noted(_: Coalition, _silo: SiloName, _round: int, g: Vector) -> None:
        shared.append(int(np.count_nonzero(g)))

    monkeypatch.setattr(Coalition, "share", noted)
    monkeypatch.setattr(Coalition, "crafted", lambda _self, _silo, g: -g)
    budget = TrainerSettings(privacy=PrivacySettings(epsilon=8.0, delta=1e-5))
    terms = Wishes(rounds=3, fast=fast, byzantine=1, attack="foe").terms(RunConfig(**RUN), budget)
    run_simulation(terms, stating, central=False)
    assert min(shared) > 0
    assert max(shared) <= 40  # K, of two hundred parameters


@pytest.mark.slow
def test_silos_that_train_privately_say_what_their_records_cost_and_the_books_survive_an_interruption(tmp_path: Path) -> None:
    def stop_after_two(row: Row, _rounds: int) -> None:
        if row["round"] == 2:
            raise KeyboardInterrupt

    settings = {"batch_size": 32, "model_options": {"hidden": [4]}, "threads": 1}
    options: dict[str, Any] = {"settings": settings, "silos": 4, "rounds": 3, "private": True, "fast": True, "central": False}
    with pytest.raises(KeyboardInterrupt):
        simulate(build_trainer, **options, out=tmp_path, on_round=stop_after_two)
    result = simulate(build_trainer, **options, out=tmp_path, compare=True)
    spent = [row["record_epsilon"] for row in result.history]
    assert 0 < spent[0] < spent[1] < spent[2] <= 8.0
    assert result.summary["record_epsilon"] == spent[2]
    assert result.comparison is not None
    assert [row["outcome"] for row in result.comparison.history] == ["applied"] * 3  # with books of its own
    assert "[privacy]\nepsilon = 8.0\ndelta = 1e-05\n" in (tmp_path / "client.toml").read_text()
