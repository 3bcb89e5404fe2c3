"""From a request to results: encode the query, search, group near-duplicates, cut out the page. Requests that arrive
together are answered together: one forward pass and one search for all that wait.
"""

import asyncio
import json
import logging
import threading
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from pydantic import JsonValue
from torch import Tensor

from maxmatch.core.devices import batches_at_once, use_threads
from maxmatch.core.machine import return_memory
from maxmatch.matching import SetSimilarity
from maxmatch.model.encoder import SetEncoder
from maxmatch.model.traced_text import text_encoder
from maxmatch.search.engine import Hit, Match, metadata_of
from maxmatch.search.filters import Condition
from maxmatch.search.folding import NEAR_DUPLICATE, Grouping
from maxmatch.search.photos.file_names import named_first
from maxmatch.search.plausible import CutOff, Verdict, calibrated, is_much, verdict
from maxmatch.search.query import rank_parts, search_parts
from maxmatch.search.rerank import Best, matches_of
from maxmatch.server.api_schema import ItemFacts, Paging, Refusal, not_found
from maxmatch.server.gallery import Gallery, item_of
from maxmatch.server.security import Metrics

Ask = TypeVar("Ask")
Answer = TypeVar("Answer")
_log = logging.getLogger("maxmatch")
_SORTED = 500  # of the most relevant, when sorted by date
_MARGIN = 8  # more than is shown, for near-duplicates
_LONG = 150  # results; for pages further down all items are scored once, and their order is kept
_LONG_LISTS = 8
_FEW_NAMES = 20_000
_WORKERS = 2  # batches that are answered at the same time
_MOMENT = 0.001  # seconds, in which the next of many requests arrives
_CACHED_TEXTS = 512  # their sets: paging, or typing the same again, waits for no model


class Batcher(Generic[Ask, Answer]):
    """Answers up to `most` requests at once, in `workers` threads of its own.

    A worker that has nothing to do takes its share of all requests that wait or are being answered; while it answers
    them, the next batch collects. Clients that were just answered often ask again: a worker waits for as many requests
    as it has just answered, as long as one comes every millisecond. Small batches would cost more per request. The
    first of a batch waits `window` seconds for others. If a batch fails, each of its requests is tried alone, so that
    one bad request does not fail the others. At most `waiting` requests wait. observe: called with the size of each
    batch. prepare: called by each thread, before its first batch.
    """

    def __init__(
        self,
        answer: Callable[[Sequence[Ask]], Sequence[Answer]],
        most: int = 32,
        window: float = 0.0,
        waiting: int = 512,
        observe: Callable[[int], object] = lambda size: None,
        workers: int = 1,
        prepare: Callable[[], object] = lambda: None,
    ) -> None:
        self._answer = answer
        self._most = most
        self._window = window
        self._waiting = waiting
        self._observe = observe
        self._queue: deque[tuple[Ask, asyncio.Future[Answer]]] = deque()
        self._workers = workers
        self._under_way = 0  # requests
        self._prepare = prepare
        self._arrived: asyncio.Event | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._threads: ThreadPoolExecutor | None = None

    async def __aenter__(self) -> "Batcher[Ask, Answer]":
        self._arrived = asyncio.Event()
        self._threads = ThreadPoolExecutor(self._workers, "batch", self._prepare)
        self._tasks = [asyncio.create_task(self._work()) for _ in range(self._workers)]
        return self

    async def __aexit__(self, *problem: object) -> None:
        assert self._threads is not None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._threads.shutdown(wait=True)
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
        answered = 0
        while True:
            await self._arrived.wait()
            if self._window and len(self._queue) < self._most:
                await asyncio.sleep(self._window)
            await self._gathered(min(answered, self._most))
            share = -(-(len(self._queue) + self._under_way) // self._workers)
            batch = [self._queue.popleft() for _ in range(min(self._most, share, len(self._queue)))]
            if not self._queue:
                self._arrived.clear()
            batch = [(ask, future) for ask, future in batch if not future.done()]  # clients that left are not answered
            answered = len(batch)
            if batch:
                self._observe(answered)
                self._under_way += answered
                try:
                    await self._answer_batch(batch)
                finally:
                    self._under_way -= answered

    async def _gathered(self, expected: int) -> None:
        """Wait for so many requests, as long as more arrive."""
        before = 0
        while before < len(self._queue) < expected:
            before = len(self._queue)
            await asyncio.sleep(_MOMENT)

    async def _answer_batch(self, batch: list[tuple[Ask, asyncio.Future[Answer]]]) -> None:
        loop = asyncio.get_running_loop()
        try:
            answers = await loop.run_in_executor(self._threads, self._answer, [ask for ask, _ in batch])
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
    named: bool = False
    """Whether its name has all words of the query."""


class Page(NamedTuple):
    """Some of the results, best first."""

    results: list[SearchResult]
    more: bool
    verdict: Verdict = Verdict()
    ended: bool = False
    """Whether results were left out that do not seem to fit."""


class Search(NamedTuple):
    """What a search needs: its parts (each a text to encode, or vectors (L, D)) and their weights. names: the ids that
    come first, whatever their scores. whole: all items are wanted, not the k best.
    """

    parts: tuple[QueryTerm | Tensor, ...]
    weights: tuple[float, ...]
    k: int
    where: Condition | None
    names: tuple[str, ...] = ()
    whole: bool = False


class Hits:
    """Results, best first. What was matched, and metadata, is looked up for those that are shown: many more are found.

    ids, scores: of all of them. matches, metadata: of the one at a place.
    """

    def __init__(
        self,
        ids: Sequence[str],
        scores: Sequence[float] | np.ndarray,
        matches: Callable[[int], list[Match]],
        metadata: Callable[[int], Mapping[str, JsonValue]],
    ) -> None:
        self.ids = ids
        self.scores = scores
        self.matches = matches
        self.metadata = metadata

    def __len__(self) -> int:
        return len(self.ids)

    def at(self, places: Sequence[int]) -> "Hits":
        """Those at some places."""
        return Hits(
            [self.ids[place] for place in places],
            [float(self.scores[place]) for place in places],
            lambda place: self.matches(places[place]),
            lambda place: self.metadata(places[place]),
        )

    def first(self, count: int) -> "Hits":
        """The best of them."""
        return self if len(self) <= count else self.at(range(count))


def _listed(hits: Sequence[Hit]) -> Hits:
    ids, scores = [hit.id for hit in hits], [hit.score for hit in hits]
    return Hits(ids, scores, lambda place: hits[place].matches, lambda place: hits[place].metadata)


def _found(best: Best, texts: Mapping[str, str]) -> Hits:
    """What a search found. texts: metadata of some that came without."""

    def metadata(place: int) -> Mapping[str, JsonValue]:
        text = texts.get(best.ids[place]) if best.metadata is None else best.metadata[place]
        found: dict[str, JsonValue] = {} if text is None else json.loads(text)
        return found

    partners, cosines = best.partners.tolist(), best.cosines.tolist()
    scores = best.scores.astype(np.float32).tolist()
    return Hits(best.ids, scores, lambda place: matches_of(partners[place], cosines[place]), metadata)


def _long_list(best: Best, order: np.ndarray, known: Mapping[str, ItemFacts]) -> Hits:
    """All items in the order of a query, in little memory."""
    scores, cosines = (values[order].astype(np.float32) for values in (best.scores, best.cosines))
    partners = best.partners[order].astype(np.int8)
    ids = [known[best.ids[place]].id for place in order.tolist()]  # the same texts, not their equals
    return Hits(ids, scores, lambda place: matches_of(partners[place].tolist(), cosines[place].tolist()), lambda _: {})


class Ranking(NamedTuple):
    """Results of a query, best first, and near-duplicates among them."""

    hits: Hits
    grouping: Grouping
    best: float | None


class Answered(NamedTuple):
    """What a search found. best: the best score of all items, whichever of them come first."""

    hits: Hits
    best: float | None


class Searcher:
    """Answers queries, many at once: `answering` is entered while the server runs.

    A batch is encoded and searched in one thread, with its share of the processor: threads that share the work of a
    batch wait for each other after every small operation, and nobody computes while its answers are written. uploaded:
    the vectors of an uploaded picture, by its key. cut: whether results that do not seem to fit are left out.
    """

    def __init__(
        self,
        gallery: Gallery,
        model: SetEncoder,
        uploaded: Callable[[str], Tensor],
        metrics: Metrics,
        most: int = 32,
        window: float = 0.0,
        near_duplicate: float = NEAR_DUPLICATE,
        cut: bool = True,
    ) -> None:
        self._gallery = gallery
        self._cut = cut
        self._cut_off: CutOff | None = None
        self._measured = 0  # items, when the cut-off was last measured
        self._model = model
        self._encode = text_encoder(model)
        self._uploaded = uploaded
        self._near_duplicate = near_duplicate
        self._texts: OrderedDict[str, Tensor] = OrderedDict()
        self._texts_lock = threading.Lock()
        self._long: OrderedDict[Hashable, Ranking] = OrderedDict()
        self._encoded = metrics.batches.labels("encode").observe
        observe = metrics.batches.labels("search").observe
        workers, threads = min(_WORKERS, batches_at_once(model.device)), torch.get_num_threads()
        prepare = partial(use_threads, max(1, threads // workers), threads)
        self.answering = Batcher[Search, Answered](self._answer, most, window, 512, observe, workers, prepare)

    def calibrate(self) -> None:
        """Measure what scores mean in this index, unless that is known and the index is much the same."""
        items = len(self._gallery.state.items) if self._cut else 0
        if items and is_much(abs(items - self._measured), items):
            self._cut_off, self._measured = calibrated(self._gallery.index, self._model), items

    async def page(
        self, parts: Sequence[QueryTerm], paging: Paging, where: Condition | None, words: Sequence[str] = ()
    ) -> Page:
        """The results of a query; without parts, everything, newest first. words: items that have all of them in their
        name come first, and are never left out, but for a least score.
        """
        end = paging.offset + paging.k
        if not parts:
            return await asyncio.to_thread(self._browse, paging, where)
        prepared = tuple([await self._prepare(part) for part in parts])
        weights = tuple(part.weight for part in parts)
        named = await self._named(words, where) if paging.min_score is None else ()
        names = frozenset(named)
        by_date = paging.sort == "date"
        wanted = _SORTED if by_date else end + 1 + _MARGIN * paging.fold
        while True:
            if wanted > _LONG and not by_date:
                search = Search(prepared, weights, _LONG, where, named, whole=True)
                ranking = await self._ranking(search, tuple(parts), paging.fold)
                hits, judged = ranking.hits, self._judged(parts, paging, ranking.best)
                groups, ended = await asyncio.to_thread(_shown_groups, ranking, end + 1, judged, names)
                break
            found = await self.answering(Search(prepared, weights, wanted, where, named))
            judged = self._judged(parts, paging, found.best)
            hits = _shown(found.hits, judged, names)
            ended = len(hits) < len(found.hits)
            if by_date:  # before near-duplicates are joined, so that the newest stands for them
                dates = [self._date(name) for name in hits.ids]
                hits = hits.at(sorted(range(len(hits)), key=dates.__getitem__, reverse=True))
            groups = self._grouping(hits.ids, paging.fold).first(len(hits))
            if by_date or len(groups) > end or len(hits) < wanted:
                break
            wanted = 2 * wanted
        shown = groups if by_date else groups[paging.offset : end]
        items = self._gallery.state.by_id
        made = (_result(hits, group, items, names) for group in shown)
        results = [result for result in made if result is not None]
        if by_date:
            results = results[paging.offset : end]
        return Page(results, len(groups) > end, judged, ended)

    async def _named(self, words: Sequence[str], where: Condition | None) -> tuple[str, ...]:
        """The ids that come first. Many names are looked through in a thread: few take less time than that."""
        state = self._gallery.state
        if len(state.items) > _FEW_NAMES and state.names.may_have(words):
            return await asyncio.to_thread(self._gallery.named, words, where)
        return self._gallery.named(words, where)

    def _date(self, name: str) -> str:
        known = self._gallery.state.by_id.get(name)
        return (known.date if known else None) or ""

    def _browse(self, paging: Paging, where: Condition | None) -> Page:
        end = paging.offset + paging.k
        items, grouping = self._gallery.grouping(where, self._near_duplicate)
        alone = [[place] for place in range(min(end + 1, len(items)))]
        groups = grouping.first(end + 1) if paging.fold else alone
        results = [
            SearchResult(items[group[0]], None, [], [items[place] for place in group[1:]])
            for group in groups[paging.offset : end]
        ]
        return Page(results, len(groups) > end)

    def _grouping(self, ids: Sequence[str], fold: bool) -> Grouping:
        return Grouping(ids, self._gallery.state.sketches if fold else {}, self._near_duplicate)

    async def _ranking(self, search: Search, parts: tuple[QueryTerm, ...], fold: bool) -> Ranking:
        """A long list, kept for the pages to come."""
        key = (parts, search.where, search.names, fold, self._gallery.state.version)
        known = self._long.get(key)
        if known is None:
            hits, best = await self.answering(search)
            known = self._long[key] = Ranking(hits, self._grouping(hits.ids, fold), best)
            while len(self._long) > _LONG_LISTS:
                self._long.popitem(last=False)
        return known

    def _judged(self, parts: Sequence[QueryTerm], paging: Paging, best: float | None) -> Verdict:
        """Where a list ends, by its best score. Scores of pictures, and sums of several parts, mean something else than
        those of one text.
        """
        if paging.min_score is not None:
            return Verdict(None, paging.min_score)
        one = len(parts) == 1 and parts[0].kind == "text" and parts[0].weight == 1 and parts[0].slot is None
        if paging.everything or not one:
            return Verdict()
        hits = [] if best is None else [Hit("", best)]
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

    def _answer(self, asked: Sequence[Search]) -> list[Answered]:
        """Queries with one filter and one number of vectors in one search; queries of several parts one by one."""
        vectors = iter(self._vectors([part for search in asked for part in search.parts]))
        together: dict[tuple[int, Condition | None], list[tuple[int, Tensor]]] = defaultdict(list)
        answers = [Answered(_listed([]), None) for _ in asked]
        for place, search in enumerate(asked):
            sets = [next(vectors) for _ in search.parts]
            if len(sets) > 1 or search.whole or search.names:
                answers[place] = self._alone(search, sets)
            else:
                together[len(sets[0]), search.where].append((place, sets[0]))
        for (_, where), queries in together.items():
            most = max(asked[place].k for place, _ in queries)
            found = self._gallery.index.best(torch.stack([query for _, query in queries]), k=most, where=where)
            for (place, _), hits in zip(queries, self._hits(found), strict=True):
                answers[place] = Answered(hits.first(asked[place].k), hits.scores[0] if len(hits) else None)
            if most > _LONG:
                return_memory()  # what reading many vectors took
        return answers

    def _hits(self, found: Sequence[Best]) -> list[Hits]:
        """What a search found; of items that the gallery does not know yet, their metadata is fetched."""
        known = self._gallery.state.by_id
        new = {name for best in found if best.metadata is None for name in best.ids if name not in known}
        texts = metadata_of(self._gallery.index.engine, sorted(new)) if new else {}
        return [_found(best, texts) for best in found]

    def _alone(self, search: Search, sets: list[Tensor]) -> Answered:
        """What a query finds that is searched by itself."""
        index, known = self._gallery.index, self._gallery.state.by_id
        if len(sets) > 1:
            hits = search_parts(index, sets, search.weights, search.k, search.where)
        else:
            hits = index.search(sets[0][None], search.k, search.where)[0]
        best_score = hits[0].score if hits else None
        if not search.whole:
            named = named_first(index, hits, search.names, sets, search.weights, search.k)
            return Answered(_listed(named), best_score)
        # The order of short lists first, which may be by candidates, so that a long list continues them.
        best = rank_parts(index, sets, search.weights, search.where)
        place_of = {name: place for place, name in enumerate(best.ids)}
        order = dict.fromkeys(sorted(place_of[name] for name in search.names if name in place_of))
        order |= dict.fromkeys(place_of[hit.id] for hit in hits if hit.id in place_of)
        order |= dict.fromkeys(range(len(best.ids)))
        shown = [place for place in order if best.ids[place] in known]  # what is new is shown when the gallery knows it
        made = _long_list(best, np.array(shown, np.int64), known)
        del best, order, place_of
        return_memory()  # what reading all vectors took
        return Answered(made, best_score)

    def _vectors(self, parts: Sequence[QueryTerm | Tensor]) -> list[Tensor]:
        """The vectors (L, D) of each part; texts that are not cached are encoded together."""
        texts = dict.fromkeys(part.value for part in parts if isinstance(part, QueryTerm))
        with self._texts_lock:
            known = {text: self._texts[text] for text in texts if text in self._texts}
        new = [text for text in texts if text not in known]
        if new:
            self._encoded(len(new))
            made = dict(zip(new, self._encode(new), strict=True))
            known |= made
            with self._texts_lock:
                self._texts |= made
                while len(self._texts) > _CACHED_TEXTS:
                    self._texts.popitem(last=False)
        return [part if isinstance(part, Tensor) else known[part.value][_slots(part)] for part in parts]


def _shown_groups(ranking: Ranking, count: int, judged: Verdict, names: frozenset[str]) -> tuple[list[list[int]], bool]:
    """The first groups of a long list, and whether some were left out that do not seem to fit."""
    groups = ranking.grouping.first(count)
    hits = ranking.hits
    kept = [group for group in groups if _is_shown(hits.ids[group[0]], float(hits.scores[group[0]]), judged, names)]
    return kept, len(kept) < len(groups)


def _shown(hits: Hits, judged: Verdict, names: frozenset[str]) -> Hits:
    """Those of a list that seem to fit."""
    if judged.fits is not False and judged.ends is None:
        return hits
    rows = enumerate(zip(hits.ids, hits.scores, strict=True))
    return hits.at([place for place, (name, score) in rows if _is_shown(name, score, judged, names)])


def _is_shown(name: str, score: float, judged: Verdict, names: frozenset[str]) -> bool:
    """Whether an item seems to fit, as `maxmatch.search.plausible.plausible` has it, or has the query in its name."""
    return name in names or (judged.fits is not False and (judged.ends is None or score >= judged.ends))


def _slots(part: QueryTerm) -> slice:
    return slice(None) if part.slot is None else slice(part.slot, part.slot + 1)


def _result(
    hits: Hits, group: Sequence[int], items: Mapping[str, ItemFacts], named: frozenset[str]
) -> SearchResult | None:
    """The result of a group of near-duplicates, best first; None where they were removed meanwhile."""
    ids = hits.ids
    found = [(place, item) for place in group if (item := items.get(ids[place]) or _new_item(hits, place)) is not None]
    if not found:
        return None
    best, first = found[0]
    others = [item for _, item in found[1:]]
    return SearchResult(first, float(hits.scores[best]), hits.matches(best), others, hits.ids[best] in named)


def _new_item(hits: Hits, place: int) -> ItemFacts | None:
    """An item that the gallery does not know yet, as its metadata tells."""
    metadata = hits.metadata(place)
    return item_of(hits.ids[place], metadata) if metadata else None


def check_slot(slot: int, count: int, similarity: SetSimilarity) -> None:
    """Refuse a slot that a query does not have, and any where one slot cannot be compared with whole sets."""
    if similarity.in_order or similarity.set_size is not None:
        raise Refusal(422, "invalid", f"slot: {similarity.name} compares whole sets. Search with the whole query.")
    if slot >= count:
        raise Refusal(404, "not_found", f"slot: this query has slots 0 to {count - 1}, got {slot}.")
