"""Requests that arrive together are answered together, and none suffers from another."""

import asyncio
import threading

import pytest

from maxmatch.server.api_schema import Refusal
from maxmatch.server.searcher import Batcher


def answered(batcher, asks):
    async def run():
        async with batcher:
            return await asyncio.gather(*(batcher(ask) for ask in asks), return_exceptions=True)

    return asyncio.run(run())


def test_requests_that_arrive_together_are_answered_together():
    sizes = []
    batcher = Batcher(lambda asks: [ask * 10 for ask in asks], most=8, window=0.05, observe=sizes.append)
    assert answered(batcher, range(20)) == [ask * 10 for ask in range(20)]
    assert sizes == [8, 8, 4]


def test_while_one_batch_is_answered_the_next_collects():
    held, sizes = threading.Event(), []

    def answer(asks):
        held.wait(5)
        return asks

    async def run():
        async with Batcher(answer, window=0.0, observe=sizes.append) as batcher:
            first = asyncio.create_task(batcher(0))
            await asyncio.sleep(0.05)
            others = [asyncio.create_task(batcher(ask)) for ask in range(1, 6)]
            await asyncio.sleep(0.01)
            held.set()
            return await asyncio.gather(first, *others)

    assert asyncio.run(run()) == list(range(6))
    assert sizes == [1, 5]


def test_one_bad_request_does_not_fail_the_others(caplog):
    def answer(asks):
        if 3 in asks:
            raise ValueError("three")
        return asks

    given = answered(Batcher(answer, window=0.02), range(6))
    assert [one for one in given if not isinstance(one, Exception)] == [0, 1, 2, 4, 5]
    assert str(given[3]) == "three"
    assert "a batch of 6 failed" in caplog.text


def test_clients_that_left_are_not_answered():
    seen = []

    async def run():
        async with Batcher(lambda asks: seen.extend(asks) or asks, window=0.05) as batcher:
            gone = asyncio.create_task(batcher("gone"))
            there = asyncio.create_task(batcher("there"))
            await asyncio.sleep(0.01)
            gone.cancel()
            return await there

    assert asyncio.run(run()) == "there"
    assert seen == ["there"]


def test_requests_beyond_the_queue_are_refused():
    given = answered(Batcher(lambda asks: asks, window=0.05, waiting=4), range(6))
    assert given[:4] == [0, 1, 2, 3]
    assert all(isinstance(one, Refusal) for one in given[4:])


def test_waiting_requests_are_cancelled_at_the_end():
    async def run():
        batcher = Batcher(lambda asks: asks, window=60.0)
        async with batcher:
            waiting = asyncio.create_task(batcher(1))
            await asyncio.sleep(0.01)
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(run())


def test_workers_that_have_nothing_to_do_share_what_waits_and_answer_at_the_same_time():
    both, sizes, prepared = threading.Barrier(2, timeout=10), [], []

    def answer(asks):
        both.wait()  # breaks unless two batches are answered at the same time
        return [ask * 10 for ask in asks]

    batcher = Batcher(
        answer, observe=sizes.append, workers=2, prepare=lambda: prepared.append(threading.current_thread())
    )
    assert answered(batcher, range(10)) == [ask * 10 for ask in range(10)]
    assert sizes == [5, 5]
    assert len(set(prepared)) == 2


def test_nobody_waits_for_others_that_may_come():
    async def run():
        async with Batcher(lambda asks: asks) as batcher:
            return await asyncio.wait_for(batcher(1), 10)

    assert asyncio.run(run()) == 1


def test_a_worker_waits_for_as_many_as_it_has_just_answered_while_they_arrive():
    sizes = []

    async def run():
        async with Batcher(lambda asks: asks, observe=sizes.append) as batcher:
            await asyncio.gather(*(batcher(ask) for ask in range(6)))
            again = []
            for ask in range(6):  # one after the other, as clients read their answers
                again.append(asyncio.create_task(batcher(ask)))
                await asyncio.sleep(0)
            await asyncio.gather(*again)
            return await asyncio.wait_for(batcher(7), 10)  # no others come: it is not kept waiting for them

    assert asyncio.run(run()) == 7
    assert sizes == [6, 6, 1]


def test_a_worker_takes_its_share_of_all_that_wait_or_are_being_answered():
    first, sizes = threading.Event(), []

    def answer(asks):
        if len(asks) == 8:
            first.wait(10)
        return asks

    async def run():
        async with Batcher(answer, observe=sizes.append, workers=2) as batcher:
            asked = [asyncio.create_task(batcher(ask)) for ask in range(16)]
            await asyncio.sleep(0.05)
            asked += [asyncio.create_task(batcher(ask)) for ask in range(16, 20)]
            await asyncio.sleep(0.05)
            first.set()
            return await asyncio.gather(*asked)

    assert asyncio.run(run()) == list(range(20))
    assert sizes[:2] == [8, 8]
    assert sum(sizes) == 20
