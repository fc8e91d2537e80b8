"""Whose turn it is: one at a time, in the order of asking, and a caller that goes away holds up nobody."""

from __future__ import annotations

import asyncio

from fedrep_server.rounds.waiting import Turn

SECONDS = 60.0


async def _run_until_idle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_turns_are_taken_in_the_order_of_asking_and_never_free_while_somebody_waits() -> None:
    async def scenario() -> list[int]:
        turn, had = Turn(), []

        async def ask(number: int) -> None:
            async with turn:
                had.append(number)
                assert not turn.is_free
                await asyncio.sleep(0)

        turn.take()
        asking = [asyncio.create_task(ask(number)) for number in range(3)]
        await _run_until_idle()
        assert had == []
        turn.give()
        assert not turn.is_free, "it is the first one's now"
        async with asyncio.timeout(SECONDS):
            await asyncio.gather(*asking)
        assert turn.is_free
        return had

    assert asyncio.run(scenario()) == [0, 1, 2]


def test_who_goes_away_while_it_waits_or_just_as_it_is_called_passes_the_turn_on() -> None:
    async def scenario() -> None:
        turn = Turn()

        async def ask() -> None:
            async with turn:
                pass

        turn.take()
        gone, called, last = (asyncio.create_task(ask()) for _ in range(3))
        await _run_until_idle()
        gone.cancel()
        await _run_until_idle()
        turn.give()  # to `called`, which has not run yet
        called.cancel()
        async with asyncio.timeout(SECONDS):
            await last
        assert turn.is_free
        assert gone.cancelled()
        assert called.cancelled()

    asyncio.run(scenario())


def test_who_goes_away_while_it_waits_leaves_nothing_behind() -> None:
    async def scenario() -> None:
        turn = Turn()
        turn.take()
        for _ in range(3):
            gone = asyncio.create_task(turn.come())
            await _run_until_idle()
            gone.cancel()
            await _run_until_idle()
        assert not turn._waiters
        turn.give()
        assert turn.is_free

    asyncio.run(scenario())
