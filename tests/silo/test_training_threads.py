"""Trainings run in threads of the silo's own, which are used again, and do not stay after a crowd."""

from __future__ import annotations

import asyncio
import threading
import weakref
from functools import partial
from typing import Any

import numpy as np
import pytest

from fedrep_silo import training
from fedrep_silo.training import in_thread


@pytest.fixture(autouse=True)
def nobody_rests_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "_resting", [])


def test_the_next_training_goes_to_the_thread_of_the_last() -> None:
    async def two_in_a_row() -> tuple[threading.Thread, threading.Thread]:
        first = await in_thread(threading.current_thread)
        while not training._resting:
            await asyncio.sleep(0.001)
        return first, await in_thread(threading.current_thread)

    first, second = asyncio.run(two_in_a_row())
    assert first is second


def test_a_thread_at_rest_holds_no_result_of_its_last_training() -> None:
    """It is as large as the model, and a silo has none to spare for it between two trainings."""

    async def one() -> weakref.ref[np.ndarray[Any, Any]]:
        result = await in_thread(lambda: np.zeros(3))
        while not training._resting:
            await asyncio.sleep(0.001)
        return weakref.ref(result)

    assert asyncio.run(one())() is None


def test_threads_that_a_crowd_needed_leave_when_they_have_rested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "REST_SECONDS", 0.01)
    all_there = threading.Barrier(8)

    def meet() -> threading.Thread:
        all_there.wait()
        return threading.current_thread()

    async def crowd() -> list[threading.Thread]:
        return await asyncio.gather(*(in_thread(meet) for _ in range(8)))

    threads = asyncio.run(crowd())
    assert len(set(threads)) == 8
    for thread in threads:
        thread.join()
    assert training._resting == []
    assert asyncio.run(crowd()), "and whoever comes later gets a new one"


def test_work_that_comes_as_a_thread_leaves_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks for itself among the resting ones before it leaves: whoever took it from there has work for it."""
    monkeypatch.setattr(training, "REST_SECONDS", 0.0)

    async def many() -> list[int]:
        return [await in_thread(partial(int, number)) for number in range(300)]

    assert asyncio.run(many()) == list(range(300))
