"""kill -9 of real processes: the silo starts again, and its error memory is exactly one of the three the protocol allows.

Every row of the table is a run of its own on one server: three silos in this process, the fourth in a process that kills
itself in its second round and is then started again. All silos write down each state they saved, so that afterwards the whole
model can be added up from what was sent: a contribution that was lost or counted twice would show there.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from fedrep.wire.v1 import federation_pb2
from fedrep.wire.v1 import observer_pb2 as pb
from fedrep_runtime.run_config import DeadlineConfig
from fedrep_silo.state import StateFolder
from fedrep_silo.training import in_thread
from tests.harness.federation import PARAMETERS, Federation, StubTrainer
from tests.harness.processes import run_scenario
from tests.silo.dying_silo import recording_daemon, start_dying_silo

VICTIM = 3
KILLED_IN = 2
AT_ONCE = 6
TRIES = 4

# The step, and whether anything of round 2 can have left the silo by then. Every moment between two effects is killed in
# tests/protocol/test_kill_anywhere.py; these few show that the daemon carries effects out as the machine hands them out.
STEPS = {
    "before:save_journal:4": False,  # the round's number and the epsilon charge
    "after:ProposeCoordinates:2": False,
    "after:save_memory:3": False,  # u and pending
    "after:SubmitMaskedShare:2": True,
    "after:ConfirmSurvivors:2": True,
    "after:save_journal:5": True,  # "revealed"
    "after:RevealShares:2": True,
    "after:save_model:3": True,  # the model after it
}

Vector = NDArray[np.float32]


@dataclass(frozen=True)
class Story:
    """What is left of one row's run."""

    exit_code: int
    server_model: Vector
    server_version: int
    rounds: list[pb.Round]
    states: dict[str, list[dict[str, Vector]]]
    victim_folder: Path
    ledger_rounds: int
    last_state: str


@pytest.fixture(scope="module")
def stories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Story]:
    folder = tmp_path_factory.mktemp("kills")
    federation = Federation.create(folder, silos=4)
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(step: str) -> Story:
        async with turns:
            return await _story(federation, step)

    async def all_of_them() -> dict[str, Story]:
        async with federation.serving():
            return dict(zip(STEPS, await asyncio.gather(*map(one, STEPS)), strict=True))

    return run_scenario(all_of_them(), 240)


def _as_planned(step: str, folder: Path) -> bool:
    """Steps are counted, and a silo that the others outran in round 1 writes less there: then the count meant another moment."""
    order = list(STEPS)
    journal = StateFolder(folder).journal()
    entered = KILLED_IN - 1 if step == order[0] else KILLED_IN
    revealed = order.index(step) >= order.index("after:save_journal:5")
    return journal.last_round == entered and journal.revealed == (1, 2)[: 2 if revealed else 1]


async def _story(federation: Federation, step: str) -> Story:
    """Played again, as another run, until the process died at the moment the step names."""
    for attempt in range(TRIES):
        story = await _attempt(federation, step, f"{step.replace(':', '-')}-{attempt}")
        if story is not None:
            return story
    raise AssertionError(f"{step}: the silo never died at that moment in {TRIES} runs")


async def _attempt(federation: Federation, step: str, run: str) -> Story | None:
    deadlines = DeadlineConfig(propose=5, submit=5, confirm=4, reveal=4)
    await federation.create_run(run, rounds=4, quorum=3, deadlines=deadlines)
    records = federation.folder / "records" / run
    config = federation.write_client_toml(VICTIM, run)
    process = start_dying_silo(config, records / federation.names[VICTIM], step)
    assert federation.running is not None
    driver = federation.running.coordinator.run_named(run)
    while federation.names[VICTIM] not in driver.attendance.standings:
        assert process.exitcode is None, config.with_suffix(".log").read_text()
        await asyncio.sleep(0.05)

    def daemon(number: int) -> asyncio.Task[None]:
        settings = federation.settings(number, run)
        return asyncio.create_task(recording_daemon(settings, records / federation.names[number], "never", number).run())

    others = [daemon(number) for number in range(VICTIM)]
    await in_thread(process.join)
    if not _as_planned(step, federation.settings(VICTIM, run).state):
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        return None
    victim = daemon(VICTIM)
    await asyncio.gather(victim, *others)
    model = driver.model.state
    folder = federation.settings(VICTIM, run).state
    return Story(
        process.exitcode or 0,
        model.vector,
        model.version,
        await federation.rounds(run),
        {name: _states(records / name) for name in federation.names},
        folder,
        StateFolder(folder).journal().ledger.rounds,
        (await federation.summary(run)).state,
    )


def _states(records: Path) -> list[dict[str, Vector]]:
    states = []
    for path in sorted(records.glob("*.npz")):
        with np.load(path) as file:
            states.append({name: file[name] for name in file.files})
    return states


def _pending(state: dict[str, Vector]) -> dict[int, Vector]:
    return {int(name.removeprefix("pending_")): value for name, value in state.items() if name.startswith("pending_")}


def _counted(rounds: list[pb.Round], silo: str) -> dict[int, int]:
    """Rounds whose sum holds this silo's values, with the number of silos in all opened buffers."""
    counted = {}
    for row in rounds:
        opened = [buffer for buffer in row.buffers if buffer.opened]
        on_time = any(entry.silo == silo and entry.status == "on_time" for entry in row.silos)
        if row.outcome == federation_pb2.OUTCOME_APPLIED and on_time and any(silo in buffer.members for buffer in opened):
            counted[row.round] = sum(buffer.survivors for buffer in opened)
    return counted


@pytest.mark.parametrize("step", STEPS)
def test_a_silo_killed_at_this_step_goes_on_and_holds_the_servers_model(stories: dict[str, Story], step: str) -> None:
    story = stories[step]
    assert story.exit_code == -9
    assert story.last_state == "finished"
    model = StateFolder(story.victim_folder).model()
    assert model is not None
    assert model.version == story.server_version
    assert np.array_equal(model.vector, story.server_model)


@pytest.mark.parametrize("step", STEPS)
def test_its_residual_is_one_of_the_three_that_the_protocol_allows(stories: dict[str, Story], step: str) -> None:
    story = stories[step]
    name = f"silo-{VICTIM}"
    counted = _counted(story.rounds, name)
    states = story.states[name]
    submitted: list[int] = list(_pending(states[0]))
    for before, after in pairwise(states):
        gone, come = _pending(before).keys() - _pending(after).keys(), _pending(after).keys() - _pending(before).keys()
        submitted += come
        for number in gone - come:
            sent = _pending(before)[number]
            allowed = {
                "opened": np.where(before["on_i"], before["g"] - sent, before["g"]),
                "closed": before["before"],
                "given up": before["residual"],
            }
            fates = [fate for fate, residual in allowed.items() if np.allclose(after["residual"], residual, atol=1e-6)]
            assert fates, f"round {number} left a memory that no fate explains"
            assert number not in counted or fates != ["closed"], "values that were counted are not taken back"
    assert len(submitted) == len(set(submitted)), "a round's values were submitted twice"
    assert set(counted) <= set(submitted)
    if not STEPS[step]:
        assert KILLED_IN not in counted


@pytest.mark.parametrize("step", STEPS)
def test_the_model_is_exactly_the_sum_of_what_was_sent(stories: dict[str, Story], step: str) -> None:
    """w_T = w_0 - sum over rounds of the mean of the opened values; the 16-bit downlink leaves at most its last rounding."""
    story = stories[step]
    total = np.zeros(PARAMETERS)
    for silo, states in story.states.items():
        sent = {number: values for state in states for number, values in _pending(state).items()}
        for number, silos in _counted(story.rounds, silo).items():
            total += sent[number] / silos
    assert np.abs(total).max() > 0.1
    assert np.allclose(StubTrainer().initial() - story.server_model, total, atol=1e-3 * np.abs(total).max())


@pytest.mark.parametrize("step", STEPS)
def test_no_proposal_is_charged_twice(stories: dict[str, Story], step: str) -> None:
    """One charge for each model version the silo proposed from, at most; the versions are 0 to the last but one."""
    assert 1 <= stories[step].ledger_rounds <= stories[step].server_version
