"""From a request to results: encode the query, search, fold near-duplicates, cut out the page."""

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from maxmatch.model.encoder import SetEncoder
from maxmatch.search.engine import Hit, Match
from maxmatch.search.filters import Condition
from maxmatch.search.query import search_parts
from maxmatch.server.api_schema import DEEPEST, Paging, Refusal, not_found
from maxmatch.server.batching import Batcher
from maxmatch.server.gallery import THRESHOLD, Gallery, Item, fold, item_of
from maxmatch.server.pictures import Uploads
from maxmatch.server.security import Metrics

_ARRANGED = 500  # of the most relevant, when sorted by date
_MARGIN = 8  # more than is shown, for near-duplicates that are folded
_REMEMBERED = 512  # sets of texts: whoever pages on, or types the same again, waits for no model


class QueryTerm(NamedTuple):
    """One part of a query."""

    kind: str
    """"text", "item" (by id) or "upload" (by key)"""
    value: str
    weight: float = 1.0
    slot: int | None = None


class SearchResult(NamedTuple):
    """An item that was found, with those that are near-duplicates of it."""

    item: Item
    score: float | None
    matches: list[Match]
    duplicates: list[Item]


class Page(NamedTuple):
    """Some of the results, best first."""

    results: list[SearchResult]
    more: bool


class Search(NamedTuple):
    """What a search needs: its parts, a text to be encoded or vectors (L, D) each, and their weights."""

    parts: tuple[QueryTerm | Tensor, ...]
    weights: tuple[float, ...]
    k: int
    where: Condition | None


class Searcher:
    """Answers queries, many at once. Entered (`async with`) for as long as the server runs.

    A batch is encoded and searched in one go: with a thread for each of the two, a request would wait for others in two
    queues, and both threads for the same cores.
    """

    def __init__(
        self,
        gallery: Gallery,
        model: SetEncoder,
        uploads: Uploads,
        metrics: Metrics,
        most: int = 32,
        window: float = 0.002,
        threshold: float = THRESHOLD,
    ) -> None:
        self.gallery = gallery
        self.model = model
        self.uploads = uploads
        self.threshold = threshold
        self._known: OrderedDict[str, Tensor] = OrderedDict()
        self._encoded = metrics.batches.labels("encode").observe
        searched = metrics.batches.labels("search").observe
        self._answering = Batcher[Search, list[Hit]](self._answer, most, window, seen=searched)

    async def __aenter__(self) -> "Searcher":
        await self._answering.__aenter__()
        return self

    async def __aexit__(self, *problem: object) -> None:
        await self._answering.__aexit__(*problem)

    async def page(self, parts: Sequence[QueryTerm], paging: Paging, where: Condition | None) -> Page:
        """The results of a query; of a query without parts everything there is, the latest first."""
        end = min(paging.offset + paging.k, DEEPEST)
        given = tuple([await self._given(part) for part in parts])
        weights = tuple(part.weight for part in parts)
        arranged = bool(parts) and paging.sort == "date"
        wanted = _ARRANGED if arranged else min(end + 1 + _MARGIN * paging.fold, 2 * DEEPEST)
        while True:
            found: Sequence[Hit | Item]
            if parts:
                found = await self._answering(Search(given, weights, wanted, where))
            else:
                found = self.gallery.passing(where)[:wanted]
            groups = [[place] for place in range(len(found))]
            if paging.fold:
                groups = fold([one.id for one in found], self.gallery.state.sketches, self.threshold)
            if arranged or len(groups) > end or len(found) < wanted or wanted >= 2 * DEEPEST:
                break
            wanted = min(2 * wanted, 2 * DEEPEST)
        shown = groups if arranged else groups[paging.offset : end]
        results = [_result([found[place] for place in group]) for group in shown]
        if arranged:
            results.sort(key=lambda result: result.item.taken or "", reverse=True)
            results = results[paging.offset : end]
        return Page(results, len(groups) > end and end < DEEPEST)

    async def _given(self, part: QueryTerm) -> QueryTerm | Tensor:
        """A part as a search takes it: a text as it is, of an item or a picture its vectors."""
        if part.kind == "text":
            if part.slot is not None:
                check_slot(part.slot, self.model.set_sizes["text"])
            return part
        if part.kind == "item":
            stored = await asyncio.to_thread(self.gallery.index.fetch, [part.value])
            if part.value not in stored:
                raise not_found("This picture is no longer in the index.")
            found = stored[part.value]
        else:
            found = self.uploads.get(part.value).vectors
        if part.slot is not None:
            check_slot(part.slot, len(found))
        return found[_slots(part)]

    def _answer(self, asked: Sequence[Search]) -> list[list[Hit]]:
        """Those of one filter and one number of vectors in one search; those of several parts one after the other."""
        vectors = iter(self._vectors([part for search in asked for part in search.parts]))
        together: dict[tuple[int, Condition | None], list[tuple[int, Tensor]]] = defaultdict(list)
        answers: list[list[Hit]] = [[] for _ in asked]
        for place, search in enumerate(asked):
            sets = [next(vectors) for _ in search.parts]
            if len(sets) > 1:
                answers[place] = search_parts(self.gallery.index, sets, search.weights, search.k, search.where)
            else:
                together[len(sets[0]), search.where].append((place, sets[0]))
        for (_, where), queries in together.items():
            most = max(asked[place].k for place, _ in queries)
            found = self.gallery.index.search(torch.stack([query for _, query in queries]), k=most, where=where)
            for (place, _), hits in zip(queries, found, strict=True):
                answers[place] = hits[: asked[place].k]
        return answers

    def _vectors(self, parts: Sequence[QueryTerm | Tensor]) -> list[Tensor]:
        """The vectors (L, D) of each part; texts that are not remembered are encoded together."""
        texts = dict.fromkeys(part.value for part in parts if isinstance(part, QueryTerm))
        new = [text for text in texts if text not in self._known]
        if new:
            self._encoded(len(new))
            self._known.update(zip(new, self.model.encode_texts(new, show_progress=False), strict=True))
        vectors = [part if isinstance(part, Tensor) else self._known[part.value][_slots(part)] for part in parts]
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return vectors


def _slots(part: QueryTerm) -> slice:
    return slice(None) if part.slot is None else slice(part.slot, part.slot + 1)


def _result(group: Sequence[Hit | Item]) -> SearchResult:
    """A result of what was found and its near-duplicates."""
    first, *others = (item_of(one.id, one.metadata) if isinstance(one, Hit) else one for one in group)
    best = group[0]
    return (
        SearchResult(first, best.score, best.matches, others)
        if isinstance(best, Hit)
        else SearchResult(first, None, [], others)
    )


def check_slot(slot: int, count: int) -> None:
    """Refuse a slot that a query does not have."""
    if slot >= count:
        raise Refusal(422, "invalid", f"slot: this query has slots 0 to {count - 1}, got {slot}.")
