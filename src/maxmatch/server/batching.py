"""Requests that come together are answered together: one forward, one scan, for as many as wait."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

Ask = TypeVar("Ask")
Answer = TypeVar("Answer")
_log = logging.getLogger("maxmatch")


class Busy(RuntimeError):
    """More requests wait than can be answered in a reasonable time."""


class Batcher(Generic[Ask, Answer]):
    """Collects what is asked and answers up to `most` at once, in one thread of its own.

    The first of a batch waits `window` seconds for others; while a batch is being answered the next one gathers. Where
    a batch fails, each of its requests is tried alone, so that one bad request does not spoil the others. seen: is told
    the size of each batch.
    """

    def __init__(
        self,
        answer: Callable[[Sequence[Ask]], Sequence[Answer]],
        most: int = 32,
        window: float = 0.002,
        waiting: int = 512,
        seen: Callable[[int], object] = lambda size: None,
    ) -> None:
        self._answer = answer
        self._most = most
        self._window = window
        self._waiting = waiting
        self._seen = seen
        self._queue: deque[tuple[Ask, asyncio.Future[Answer]]] = deque()
        self._came: asyncio.Event | None = None
        self._task: asyncio.Task[None] | None = None
        self._thread: ThreadPoolExecutor | None = None

    async def __aenter__(self) -> "Batcher[Ask, Answer]":
        self._came = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="batch")
        self._task = asyncio.create_task(self._work())
        return self

    async def __aexit__(self, *problem: object) -> None:
        assert self._task is not None
        assert self._thread is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._thread.shutdown(wait=True)
        for _, future in self._queue:
            future.cancel()
        self._queue.clear()

    async def __call__(self, ask: Ask) -> Answer:
        """The answer, when its turn has come."""
        assert self._came is not None, "a batcher is entered (`async with`) before it is asked"
        if len(self._queue) >= self._waiting:
            raise Busy("Too many requests are waiting. Try again in a moment.")
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._queue.append((ask, future))
        self._came.set()
        return await future

    async def _work(self) -> None:
        assert self._came is not None
        while True:
            await self._came.wait()
            if self._window and len(self._queue) < self._most:
                await asyncio.sleep(self._window)
            batch = [self._queue.popleft() for _ in range(min(self._most, len(self._queue)))]
            if not self._queue:
                self._came.clear()
            batch = [(ask, future) for ask, future in batch if not future.done()]  # who has gone away is not answered
            if batch:
                self._seen(len(batch))
                await self._serve(batch)

    async def _serve(self, batch: list[tuple[Ask, asyncio.Future[Answer]]]) -> None:
        loop = asyncio.get_running_loop()
        try:
            answers = await loop.run_in_executor(self._thread, self._answer, [ask for ask, _ in batch])
        except Exception as error:
            if len(batch) == 1:
                if not batch[0][1].done():
                    batch[0][1].set_exception(error)
                return
            _log.warning("a batch of %d failed (%s): each is tried alone", len(batch), error)
            for one in batch:
                await self._serve([one])
            return
        for (_, future), answer in zip(batch, answers, strict=True):
            if not future.done():
                future.set_result(answer)
