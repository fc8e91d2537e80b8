"""`fedrep.simulate`: a whole federation from a notebook, and what the command of the same name does with its files."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import structlog

from fedrep.errors import FedrepError, SettingsError
from fedrep_runtime.files import lock_folder
from fedrep_runtime.run_config import RunConfig
from fedrep_runtime.settings import checked_settings
from fedrep_runtime.trackers import Trackers, check_trackers
from fedrep_simulator.code_mark import code_mark, user_build
from fedrep_simulator.engines import Build, Engine, LocalEngine, names_of
from fedrep_simulator.folder import CODE, MEAN_FOLDER, Row, SimulationFolder, told, write_history
from fedrep_simulator.models import kept_central
from fedrep_simulator.results import SimulationResult
from fedrep_simulator.server import Written
from fedrep_simulator.simulation import OnRound, Outputs, Simulation
from fedrep_simulator.summary import compared, figures, own_result
from fedrep_simulator.terms import Terms, Wishes, fingerprint
from fedrep_trainers.settings import TrainerSettings
from fedrep_trainers.trainer import Trainer

EngineName = Literal["local", "ray"]
OVER = "this simulation was over already; --again plays it anew"


def _silent(*_: object) -> None:
    return


@dataclass(frozen=True)
class Listeners:
    """`on_step` hears what begins, `on_run` which run is played, `on_round` of every round, `on_central` how many rounds of the
    central model are done, of how many."""

    on_step: Callable[[str], None] = _silent
    on_round: OnRound = _silent
    on_central: Callable[[int, int], None] = _silent
    written: Callable[[Simulation], Written] | None = None
    on_run: Callable[[Terms], None] = _silent


def simulate(
    build: Callable[[TrainerSettings], Trainer] | str,
    *,
    silos: int | None = None,
    byzantine: int = 0,
    attack: str = "",
    attack_options: Mapping[str, Any] | None = None,
    rounds: int | None = None,
    aggregator: str | None = None,
    alpha: float | None = None,
    fraction: float | None = None,
    buffer_size: int | None = None,
    settings: TrainerSettings | Mapping[str, Any] | None = None,
    run: RunConfig | Mapping[str, Any] | None = None,
    seed: int = 0,
    fast: bool = False,
    private: bool = False,
    compare: bool = False,
    central: bool = True,
    engine: EngineName = "local",
    gpus_per_silo: float = 0.0,
    out: str | Path | None = None,
    again: bool = False,
    on_round: OnRound = _silent,
) -> SimulationResult:
    """Play a federation of `silos` in this process and return what came of it.

    `build` makes a silo's trainer from its settings, of which `shard_index` and `shard_count` differ from silo to silo; it is the
    function that `user_code` names in a silo's TOML, or that name itself. `settings` are the `[trainer]` table and `run` the
    run's terms (run.toml), each with the service's defaults; a run without a name or silos has those of a simulation. The last
    `byzantine` silos attack. `fast` leaves the cryptography out, and changes no bit of the model; `private` trains with a record
    budget of epsilon 8 at delta 1e-5. With `out` the simulation is kept there: after an interruption the same call goes on, and
    `again` begins anew.
    """
    trainer = settings if isinstance(settings, TrainerSettings) else checked_settings(TrainerSettings, settings or {})
    if isinstance(build, str):
        trainer = trainer.model_copy(update={"user_code": build, "user_code_dir": trainer.user_code_dir or Path.cwd()})
    wishes = Wishes(
        silos=silos,
        rounds=rounds,
        aggregator=aggregator,
        byzantine=byzantine,
        attack=attack,
        attack_options=attack_options or {},
        alpha=alpha,
        fraction=fraction,
        buffer_size=buffer_size,
        seed=seed,
        fast=fast,
        private=private,
    )
    made = build_trainer_of(trainer) if isinstance(build, str) else build
    terms = wishes.terms(run if isinstance(run, RunConfig) else wishes.run_config(run or {}), trainer)
    place = Path(out) if out is not None else None
    return run_simulation(
        terms,
        made,
        engine=engine,
        gpus_per_silo=gpus_per_silo,
        compare=compare,
        central=central,
        out=place,
        again=again,
        listeners=Listeners(on_round=lambda row, rounds: on_round(told([row])[0], rounds)),
    )


def build_trainer_of(settings: TrainerSettings) -> Build:
    """The trainer that a silo's settings name: its own code, or what is built in."""
    if settings.user_code is not None:
        return user_build(settings.user_code)
    from fedrep_trainers.build import build_trainer

    return build_trainer


def run_simulation(
    terms: Terms,
    build: Build,
    *,
    engine: EngineName = "local",
    gpus_per_silo: float = 0.0,
    compare: bool = False,
    central: bool = True,
    out: Path | None = None,
    again: bool = False,
    listeners: Listeners = Listeners(),  # noqa: B008 - frozen
) -> SimulationResult:
    """The run, then the plain mean and the central model if they are wanted; all of it resumes in `out`."""
    _check_engine(engine, gpus_per_silo)
    listeners.on_step(f"building {len(terms.run.silos)} trainers")
    mean = terms.with_plain_mean().checked() if compare else None
    check_trackers(terms.tracking)
    with _owned(out), _quiet_log(), _engine(engine, build, terms, gpus_per_silo) as made:
        for asked_for in (terms, mean):  # whatever is refused is so before the folder is touched
            if asked_for is not None:
                asked_for.scene(made.layout, made.initial())
        code = code_mark(build, terms.trainer)
        main = _played(terms, made, code, out, listeners, again=again)
        if main.was_over:
            listeners.on_step(OVER)
        if main.problem is not None and not main.rows:
            raise main.problem
        result = own_result(engine, made, main, [OVER] if main.was_over else [], out)
        if main.problem is not None:
            raise _told(main.problem, out)
        row, note = kept_central(out, made, len(main.rows), listeners) if central else (None, "")
        other = None
        if mean is not None:
            listeners.on_step("the same silos and attackers against the plain mean")
            other = _comparison(mean, made, code, out, listeners, again=again)
        return compared(result, row, note, other)


def _told(problem: FedrepError, out: Path | None) -> FedrepError:
    if out is None:
        return problem
    return FedrepError(f"{str(problem).rstrip('.')}. What was played until then is in {out}", reason=problem.reason)


@contextmanager
def _quiet_log() -> Iterator[None]:
    """What the service logs about a training that failed is raised here; a log that somebody has set up is left alone."""
    if structlog.is_configured():
        yield
        return
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL), cache_logger_on_first_use=False)
    try:
        yield
    finally:
        structlog.reset_defaults()


@contextmanager
def _owned(out: Path | None) -> Iterator[None]:
    if out is None:
        yield
        return
    with lock_folder(out):
        yield


def _check_engine(name: str, gpus_per_silo: float) -> None:
    if name not in get_args(EngineName):
        raise SettingsError(f"there is no engine {name!r}; choose {' or '.join(get_args(EngineName))}")
    if gpus_per_silo and name == "local":
        raise SettingsError("shares of a GPU are Ray's to give out: add --engine ray, or leave --gpus-per-silo out")


@contextmanager
def _engine(name: EngineName, build: Build, terms: Terms, gpus_per_silo: float) -> Iterator[Engine]:
    silos = names_of(terms.run.silos)
    made: Engine
    if name == "ray":
        from fedrep_simulator.ray_engine import RayEngine

        made = RayEngine(build, terms.trainer, silos, gpus_per_silo)
    else:
        made = LocalEngine(build, terms.trainer, silos)
    try:
        yield made
    finally:
        made.close()


def _played(terms: Terms, engine: Engine, code: str, out: Path | None, listeners: Listeners, *, again: bool) -> Simulation:
    folder = SimulationFolder(out) if out is not None else None
    if folder is not None:
        described = terms.described() | {CODE: code}
        folder.claim(described, fingerprint(described, engine.layout, engine.initial()), again=again)
    trackers = Trackers(terms.tracking, terms.run.name, {"silos": len(terms.run.silos), "byzantine": terms.byzantine})

    def on_round(row: Row, rounds: int) -> None:
        trackers.log({name: value for name, value in row.items() if _is_figure(name, value)}, row["round"])
        listeners.on_round(row, rounds)

    simulation = Simulation(terms, engine, Outputs(folder, on_round))
    if listeners.written is not None:
        simulation.listen(listeners.written(simulation))
    listeners.on_run(terms)
    try:
        simulation.play()
    finally:
        trackers.close()
        if out is not None and simulation.rows:
            write_history(out, simulation.rows)
    return simulation


def _is_figure(name: str, value: object) -> bool:
    return name != "round" and isinstance(value, int | float)


def _comparison(
    terms: Terms, engine: Engine, code: str, out: Path | None, listeners: Listeners, *, again: bool
) -> SimulationResult:
    """A model that attackers have ruined cannot be trained any more: that is the result."""
    place = out / MEAN_FOLDER if out is not None else None
    simulation = _played(terms, engine, code, place, listeners, again=again)
    rows = told(simulation.rows)
    problem = str(simulation.problem) if simulation.problem is not None else ""
    return SimulationResult(rows, {}, figures(terms, rows) | {"problem": problem}, folder=place)
