"""A silo that goes from run to run: no edit of its settings, no restart, a folder for each."""

from __future__ import annotations

import asyncio
import threading
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

from fedrep.errors import SettingsError
from fedrep_identity.certificates import Credentials
from fedrep_silo.config import SiloSettings
from fedrep_silo.connection import OfferedRun
from fedrep_silo.daemon import SiloDaemon
from fedrep_silo.following import Follower
from fedrep_silo.run_folders import run_of_now, settings_for
from fedrep_silo.state import StateFolder
from fedrep_silo.training import at_rest, in_thread, is_under_way
from fedrep_trainers.layout import ModelLayout
from tests.harness.federation import Federation, StubTrainer
from tests.harness.scenarios import serve


@pytest.fixture(autouse=True)
def silos_look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new run is found by asking again: what happens then is tested, and not how long a silo in production pauses."""
    monkeypatch.setattr("fedrep_silo.following.LOOK_SECONDS", 0.1)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    return Federation.create(tmp_path_factory.mktemp("following"), silos=4)


def following(federation: Federation, silo: int, folder: str, **options: Any) -> SiloSettings:
    return SiloSettings.model_validate(federation.settings(silo, folder).model_dump() | options)


def follower(federation: Federation, silo: int, folder: str, **options: Any) -> Follower:
    settings = following(federation, silo, folder, **options)
    credentials = Credentials.load(settings.credentials)
    trust = credentials.trust_store()
    return Follower(settings, lambda: StubTrainer(silo), lambda one, trainer: SiloDaemon(one, credentials, trust, trainer))


def test_a_silo_that_waits_for_a_run_lets_its_trainer_go_and_builds_another_for_the_next(federation: Federation) -> None:
    built: list[weakref.ref[StubTrainer]] = []

    def build() -> StubTrainer:
        trainer = StubTrainer()
        built.append(weakref.ref(trainer))
        return trainer

    async def let_go(number: int) -> None:
        while len(built) < number or built[number - 1]() is not None:
            await asyncio.sleep(0.01)

    async def scenario(federation: Federation, name: str) -> None:
        settings = following(federation, 0, name, run="*")
        credentials = Credentials.load(settings.credentials)
        trust = credentials.trust_store()
        watched = Follower(settings, build, lambda one, trainer: SiloDaemon(one, credentials, trust, trainer))
        followers = [watched, *(follower(federation, n, name, run="*") for n in range(1, 4))]
        work = [asyncio.ensure_future(one.run()) for one in followers]
        await let_go(1)
        await federation.create_run(f"{name}-1")
        await federation.until(lambda status: status.summary.state == "finished", f"{name}-1")
        await let_go(2)
        for one in followers:
            one.stop()
        await asyncio.gather(*work)

    serve(federation, scenario, "idle")


def test_silos_take_the_next_run_that_fits_each_in_a_folder_of_its_own(federation: Federation) -> None:
    async def scenario(federation: Federation, name: str) -> None:
        followers = [follower(federation, n, name, run="*") for n in range(4)]
        work = [asyncio.ensure_future(one.run()) for one in followers]
        other = StubTrainer()
        other.layout = ModelLayout.of([("unknown", (other.layout.size,))])
        await federation.create_run(f"{name}-other", other)
        for number in (1, 2):
            await federation.create_run(f"{name}-{number}")
            await federation.until(lambda status: status.summary.state == "finished", f"{name}-{number}")
        assert (await federation.summary(f"{name}-other")).silos_present == 0
        for one in followers:
            one.stop()
        await asyncio.gather(*work)
        base = following(federation, 0, name, run="*")
        assert run_of_now(base).run == f"{name}-2"
        for number in (1, 2):
            model = StateFolder(settings_for(base, f"{name}-{number}").state).model()
            assert model is not None
            assert model.version == 3

    serve(federation, scenario, "star")


def test_a_list_is_followed_to_its_end_and_a_run_that_policy_forbids_is_left(federation: Federation) -> None:
    async def scenario(federation: Federation, name: str) -> None:
        names = [f"{name}-small", f"{name}-good"]
        await federation.create_run(names[0], fraction=0.5)
        await federation.create_run(names[1])
        policy = {"largest_fraction": 0.3}
        followers = [follower(federation, n, name, run=names, policy=policy) for n in range(4)]
        first = asyncio.gather(*(one.run() for one in followers))
        await first
        states = [(await federation.summary(run)).state for run in names]
        assert states == ["waiting", "finished"]
        assert f"{names[0]}: " in str(followers[0].status["problem"])

    serve(federation, scenario, "list")


def test_a_silo_hears_only_of_runs_that_list_it(federation: Federation) -> None:
    async def scenario(federation: Federation, name: str) -> None:
        await federation.create_run(name, silos=federation.names[:3])
        insider, outsider = (federation.daemon(n, name).connection for n in (0, 3))
        assert name in [run.name for run in await insider.find_runs()]
        assert name not in [run.name for run in await outsider.find_runs()]
        assert await outsider.find_runs(name) == []
        await insider.close()
        await outsider.close()

    serve(federation, scenario, "three")


def test_a_list_may_stand_in_run_and_folders_of_strange_names_stay_inside() -> None:
    settings = SiloSettings(run=["a", "b"])  # type: ignore[arg-type]  # as TOML gives it
    assert (settings.run, settings.runs, settings.follows) == ("", ("a", "b"), True)
    assert not SiloSettings(run="a").follows
    inside = settings_for(settings, "../../x").state
    assert inside.parent == settings.state / "runs"


def test_before_the_first_run_there_is_none_to_ask_about(federation: Federation) -> None:
    with pytest.raises(SettingsError, match="has been in no run yet"):
        run_of_now(following(federation, 0, "nowhere", run="*"))


class LeftBehind:
    """A daemon whose run ends while its training goes on."""

    def __init__(self, trainer: StubTrainer, may_end: threading.Event) -> None:
        self.connection: Any = SimpleNamespace(close=lambda: asyncio.sleep(0))
        self._trainer = trainer
        self._may_end = may_end

    def stop(self) -> None: ...

    async def run(self) -> None:
        begun = asyncio.Event()
        loop = asyncio.get_running_loop()

        def train() -> None:
            loop.call_soon_threadsafe(begun.set)
            self._may_end.wait()

        training = asyncio.create_task(in_thread(train, self._trainer))
        await begun.wait()
        training.cancel()


class Next(LeftBehind):
    async def run(self) -> None:
        found.append(is_under_way(self._trainer))
        raise SettingsError("seen enough")


found: list[bool] = []


@pytest.mark.parametrize("stops", [False, True])
def test_the_next_run_waits_for_a_training_that_the_last_one_left_behind(
    stops: bool, federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two trainings with one trainer share its buffers: one may take a step between the other's gradient and its noise."""
    found.clear()
    waited: list[Any] = []
    may_end = threading.Event()

    def make(settings: SiloSettings, trainer: Any) -> Any:
        return (LeftBehind if settings.run == "first" else Next)(trainer, may_end)

    async def play() -> None:
        silo = Follower(following(federation, 0, f"left-{stops}", run=["first", "second"]), StubTrainer, make)
        layout = bytes.fromhex(StubTrainer().layout.digest)
        runs = [OfferedRun(name, name.encode(), "running", layout, 1, 0.0) for name in ("first", "second")]

        async def noticed(trainer: Any) -> None:
            if is_under_way(trainer):
                waited.append(trainer)
                silo.stop() if stops else may_end.set()
            await at_rest(trainer)

        async def find() -> list[OfferedRun]:
            return runs

        monkeypatch.setattr("fedrep_silo.following.at_rest", noticed)
        monkeypatch.setattr(silo, "_finder", SimpleNamespace(find_runs=find, close=lambda: asyncio.sleep(0)))
        await silo.run()

    try:
        asyncio.run(play())
    finally:
        may_end.set()
    assert len(waited) == 1
    assert found == ([] if stops else [False])
