"""From a request to results: encode the query, search, group near-duplicates, cut out the page. Requests that arrive
together are answered together: one forward pass and one search for all that wait.
"""

import asyncio
import logging
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from maxmatch.matching import SetSimilarity
from maxmatch.model.encoder import SetEncoder
from maxmatch.search.engine import Hit, Match
from maxmatch.search.filters import Condition
from maxmatch.search.folding import NEAR_DUPLICATE, group_near_duplicates
from maxmatch.search.plausible import CutOff, Verdict, calibrated, is_much, plausible, verdict
from maxmatch.search.query import search_parts
from maxmatch.server.api_schema import DEEPEST, ItemFacts, Paging, Refusal, not_found
from maxmatch.server.gallery import Gallery, item_of
from maxmatch.server.security import Metrics

Ask = TypeVar("Ask")
Answer = TypeVar("Answer")
_log = logging.getLogger("maxmatch")
_SORTED = 500  # of the most relevant, when sorted by date
_MARGIN = 8  # more than is shown, for near-duplicates
_CACHED_TEXTS = 512  # their sets: paging, or typing the same again, waits for no model


class Batcher(Generic[Ask, Answer]):
    """Answers up to `most` requests at once, in one thread of its own.

    The first of a batch waits `window` seconds for others; while a batch is being answered, the next one collects. If a
    batch fails, each of its requests is tried alone, so that one bad request does not fail the others. At most
    `waiting` requests wait. observe: called with the size of each batch.
    """

    def __init__(
        self,
        answer: Callable[[Sequence[Ask]], Sequence[Answer]],
        most: int = 32,
        window: float = 0.002,
        waiting: int = 512,
        observe: Callable[[int], object] = lambda size: None,
    ) -> None:
        self._answer = answer
        self._most = most
        self._window = window
        self._waiting = waiting
        self._observe = observe
        self._queue: deque[tuple[Ask, asyncio.Future[Answer]]] = deque()
        self._arrived: asyncio.Event | None = None
        self._task: asyncio.Task[None] | None = None
        self._thread: ThreadPoolExecutor | None = None

    async def __aenter__(self) -> "Batcher[Ask, Answer]":
        self._arrived = asyncio.Event()
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
        """The answer; refused if too many requests wait already."""
        assert self._arrived is not None, "enter the batcher (`async with`) first"
        if len(self._queue) >= self._waiting:
            raise Refusal(503, "busy", "Too many requests are waiting. Try again in a moment.")
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._queue.append((ask, future))
        self._arrived.set()
        return await future

    async def _work(self) -> None:
        assert self._arrived is not None
        while True:
            await self._arrived.wait()
            if self._window and len(self._queue) < self._most:
                await asyncio.sleep(self._window)
            batch = [self._queue.popleft() for _ in range(min(self._most, len(self._queue)))]
            if not self._queue:
                self._arrived.clear()
            batch = [(ask, future) for ask, future in batch if not future.done()]  # clients that left are not answered
            if batch:
                self._observe(len(batch))
                await self._answer_batch(batch)

    async def _answer_batch(self, batch: list[tuple[Ask, asyncio.Future[Answer]]]) -> None:
        loop = asyncio.get_running_loop()
        try:
            answers = await loop.run_in_executor(self._thread, self._answer, [ask for ask, _ in batch])
        except Exception as error:
            if len(batch) == 1:
                if not batch[0][1].done():
                    batch[0][1].set_exception(error)
                return
            _log.warning("a batch of %d failed (%s): trying each request alone", len(batch), error)
            for request in batch:
                await self._answer_batch([request])
            return
        for (_, future), answer in zip(batch, answers, strict=True):
            if not future.done():
                future.set_result(answer)


class QueryTerm(NamedTuple):
    """One part of a query."""

    kind: str
    """"text", "item" (by id) or "upload" (by key)"""
    value: str
    weight: float = 1.0
    slot: int | None = None


class SearchResult(NamedTuple):
    """An item that was found, with its near-duplicates."""

    item: ItemFacts
    score: float | None
    matches: list[Match]
    duplicates: list[ItemFacts]


class Page(NamedTuple):
    """Some of the results, best first."""

    results: list[SearchResult]
    more: bool
    verdict: Verdict = Verdict()
    ended: bool = False
    """Whether results were left out that do not seem to fit."""


class Search(NamedTuple):
    """What a search needs: its parts (each a text to encode, or vectors (L, D)) and their weights."""

    parts: tuple[QueryTerm | Tensor, ...]
    weights: tuple[float, ...]
    k: int
    where: Condition | None


class Searcher:
    """Answers queries, many at once: `answering` is entered while the server runs.

    A batch is encoded and searched in one thread: with two, a request would wait in two queues, and both threads for
    the same cores. uploaded: the vectors of an uploaded picture, by its key. cut: whether results that do not seem to
    fit are left out.
    """

    def __init__(
        self,
        gallery: Gallery,
        model: SetEncoder,
        uploaded: Callable[[str], Tensor],
        metrics: Metrics,
        most: int = 32,
        window: float = 0.002,
        near_duplicate: float = NEAR_DUPLICATE,
        cut: bool = True,
    ) -> None:
        self._gallery = gallery
        self._cut = cut
        self._cut_off: CutOff | None = None
        self._model = model
        self._uploaded = uploaded
        self._near_duplicate = near_duplicate
        self._texts: OrderedDict[str, Tensor] = OrderedDict()
        self._encoded = metrics.batches.labels("encode").observe
        observe = metrics.batches.labels("search").observe
        self.answering = Batcher[Search, list[Hit]](self._answer, most, window, observe=observe)

    def calibrate(self) -> None:
        """Measure what scores mean in this index, unless that is known and the index is much the same."""
        items = len(self._gallery.index) if self._cut else 0
        if items and (self._cut_off is None or is_much(abs(items - self._cut_off.items), items)):
            self._cut_off = calibrated(self._gallery.index, self._model)

    async def page(self, parts: Sequence[QueryTerm], paging: Paging, where: Condition | None) -> Page:
        """The results of a query; without parts, everything, newest first."""
        end = min(paging.offset + paging.k, DEEPEST)
        prepared = tuple([await self._prepare(part) for part in parts])
        weights = tuple(part.weight for part in parts)
        by_date = bool(parts) and paging.sort == "date"
        wanted = _SORTED if by_date else min(end + 1 + _MARGIN * paging.fold, 2 * DEEPEST)
        judged, ended = Verdict(), False
        while True:
            found: Sequence[Hit | ItemFacts]
            if parts:
                hits = await self.answering(Search(prepared, weights, wanted, where))
                if paging.min_score is not None:
                    judged = Verdict(None, paging.min_score)
                elif not paging.everything:
                    judged = self._judged(parts, hits)
                found = plausible(hits, judged)
                ended = len(found) < len(hits)
            else:
                found = self._gallery.passing(where)[:wanted]
            groups = [[place] for place in range(len(found))]
            if paging.fold:
                groups = group_near_duplicates(
                    [one.id for one in found], self._gallery.state.sketches, self._near_duplicate
                )
            if by_date or len(groups) > end or len(found) < wanted or wanted >= 2 * DEEPEST:
                break
            wanted = min(2 * wanted, 2 * DEEPEST)
        shown = groups if by_date else groups[paging.offset : end]
        results = [_result([found[place] for place in group]) for group in shown]
        if by_date:
            results.sort(key=lambda result: result.item.date or "", reverse=True)
            results = results[paging.offset : end]
        return Page(results, len(groups) > end and end < DEEPEST, judged, ended)

    def _judged(self, parts: Sequence[QueryTerm], hits: Sequence[Hit]) -> Verdict:
        """What to think of the hits of one text. Scores of pictures, and sums of several parts, mean something else."""
        if len(parts) > 1 or parts[0].kind != "text" or parts[0].weight != 1 or parts[0].slot is not None:
            return Verdict()
        return verdict(self._cut_off, self._model.known_words(parts[0].value), hits)

    async def _prepare(self, part: QueryTerm) -> QueryTerm | Tensor:
        """A text as it is; of an item or an uploaded picture, its vectors."""
        if part.kind == "text":
            if part.slot is not None:
                check_slot(part.slot, self._model.set_sizes["text"], self._gallery.index.manifest.scoring)
            return part
        if part.kind == "item":
            stored = await asyncio.to_thread(self._gallery.index.fetch, [part.value])
            if part.value not in stored:
                raise not_found("This picture is no longer in the index.")
            found = stored[part.value]
        else:
            found = self._uploaded(part.value)
        if part.slot is not None:
            check_slot(part.slot, len(found), self._gallery.index.manifest.scoring)
        return found[_slots(part)]

    def _answer(self, asked: Sequence[Search]) -> list[list[Hit]]:
        """Queries with one filter and one number of vectors in one search; queries of several parts one by one."""
        vectors = iter(self._vectors([part for search in asked for part in search.parts]))
        together: dict[tuple[int, Condition | None], list[tuple[int, Tensor]]] = defaultdict(list)
        answers: list[list[Hit]] = [[] for _ in asked]
        for place, search in enumerate(asked):
            sets = [next(vectors) for _ in search.parts]
            if len(sets) > 1:
                answers[place] = search_parts(self._gallery.index, sets, search.weights, search.k, search.where)
            else:
                together[len(sets[0]), search.where].append((place, sets[0]))
        for (_, where), queries in together.items():
            most = max(asked[place].k for place, _ in queries)
            found = self._gallery.index.search(torch.stack([query for _, query in queries]), k=most, where=where)
            for (place, _), hits in zip(queries, found, strict=True):
                answers[place] = hits[: asked[place].k]
        return answers

    def _vectors(self, parts: Sequence[QueryTerm | Tensor]) -> list[Tensor]:
        """The vectors (L, D) of each part; texts that are not cached are encoded together."""
        texts = dict.fromkeys(part.value for part in parts if isinstance(part, QueryTerm))
        new = [text for text in texts if text not in self._texts]
        if new:
            self._encoded(len(new))
            self._texts.update(zip(new, self._model.encode_texts(new, show_progress=False), strict=True))
        vectors = [part if isinstance(part, Tensor) else self._texts[part.value][_slots(part)] for part in parts]
        while len(self._texts) > _CACHED_TEXTS:
            self._texts.popitem(last=False)
        return vectors


def _slots(part: QueryTerm) -> slice:
    return slice(None) if part.slot is None else slice(part.slot, part.slot + 1)


def _result(group: Sequence[Hit | ItemFacts]) -> SearchResult:
    """The result of a group of near-duplicates, best first."""
    first, *others = (item_of(one.id, one.metadata) if isinstance(one, Hit) else one for one in group)
    best = group[0]
    score, matches = (best.score, best.matches) if isinstance(best, Hit) else (None, [])
    return SearchResult(first, score, matches, others)


def check_slot(slot: int, count: int, similarity: SetSimilarity) -> None:
    """Refuse a slot that a query does not have, and any where one slot cannot be compared with whole sets."""
    if similarity.in_order or similarity.set_size is not None:
        raise Refusal(422, "invalid", f"slot: {similarity.name} compares whole sets. Search with the whole query.")
    if slot >= count:
        raise Refusal(404, "not_found", f"slot: this query has slots 0 to {count - 1}, got {slot}.")
