"""From what is asked to results: encode the query, search, fold near-duplicates, cut the page out."""

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import NamedTuple

import torch
from torch import Tensor

from maxmatch.model import SetEncoder
from maxmatch.search.hit import Hit, Match
from maxmatch.search.parts import search_parts
from maxmatch.search.where import Condition
from maxmatch.server.batching import Batcher
from maxmatch.server.errors import Refusal, not_found
from maxmatch.server.folding import THRESHOLD, fold
from maxmatch.server.gallery import Gallery, Item, item_of
from maxmatch.server.metrics import Metrics
from maxmatch.server.schema import DEEPEST, Paging
from maxmatch.server.uploads import Uploads

_ARRANGED = 500  # of the most relevant, when sorted by date
_MARGIN = 8  # more than is shown, for near-duplicates that are folded
_REMEMBERED = 512  # sets of texts: whoever pages on, or types the same again, waits for no model


class Part(NamedTuple):
    """One part of a query."""

    kind: str
    """"text", "item" (by id) or "upload" (by key)"""
    value: str
    weight: float = 1.0
    slot: int | None = None


class Result(NamedTuple):
    """An item that was found, with those that are near-duplicates of it."""

    item: Item
    score: float | None
    matches: list[Match]
    duplicates: list[Item]


class Page(NamedTuple):
    """Some of the results, best first."""

    results: list[Result]
    more: bool


class Search(NamedTuple):
    """What a search needs: the sets of its parts (L, D), and their weights."""

    sets: tuple[Tensor, ...]
    weights: tuple[float, ...]
    k: int
    where: Condition | None


class Searcher:
    """Answers queries, many at once. Entered (`async with`) for as long as the server runs."""

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
        self._encoding = Batcher[str, Tensor](self._encode, most, window, seen=metrics.batches.labels("encode").observe)
        # Those that were encoded together come together: no need to wait for more.
        self._searching = Batcher[Search, list[Hit]](
            self._search, most, 0.0, seen=metrics.batches.labels("search").observe
        )
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> "Searcher":
        await self._stack.enter_async_context(self._encoding)
        await self._stack.enter_async_context(self._searching)
        return self

    async def __aexit__(self, *problem: object) -> None:
        await self._stack.aclose()

    async def page(self, parts: Sequence[Part], paging: Paging, where: Condition | None) -> Page:
        """The results of a query; of a query without parts everything there is, the latest first."""
        end = min(paging.offset + paging.k, DEEPEST)
        sets = [await self.vectors(part) for part in parts]
        weights = tuple(part.weight for part in parts)
        arranged = bool(parts) and paging.sort == "date"
        wanted = _ARRANGED if arranged else min(end + 1 + _MARGIN * paging.fold, 2 * DEEPEST)
        while True:
            if parts:
                hits = await self._searching(Search(tuple(sets), weights, wanted, where))
                results = [Result(item_of(hit.id, hit.metadata), hit.score, hit.matches, []) for hit in hits]
            else:
                results = [Result(item, None, [], []) for item in self.gallery.passing(where)[:wanted]]
            count = len(results)
            if paging.fold:
                results = self._folded(results)
            if arranged or len(results) > end or count < wanted or wanted >= 2 * DEEPEST:
                break
            wanted = min(2 * wanted, 2 * DEEPEST)
        if arranged:
            results.sort(key=lambda result: result.item.taken or "", reverse=True)
        return Page(results[paging.offset : end], len(results) > end and end < DEEPEST)

    async def vectors(self, part: Part) -> Tensor:
        """The set of one part, or the one of its vectors that is asked for: (L, D)."""
        if part.kind == "text":
            found = self._known.get(part.value)
            if found is None:
                found = await self._encoding(part.value)
                self._known[part.value] = found
                if len(self._known) > _REMEMBERED:
                    self._known.popitem(last=False)
        elif part.kind == "item":
            stored = await asyncio.to_thread(self.gallery.index.fetch, [part.value])
            if part.value not in stored:
                raise not_found("This picture is no longer in the index.")
            found = stored[part.value]
        else:
            found = self.uploads.get(part.value).vectors
        if part.slot is None:
            return found
        check_slot(part.slot, len(found))
        return found[part.slot : part.slot + 1]

    def _encode(self, texts: Sequence[str]) -> list[Tensor]:
        return list(self.model.encode_texts(texts, show_progress=False))

    def _search(self, asked: Sequence[Search]) -> list[list[Hit]]:
        """Those of one filter and one number of vectors in one search; those of several parts one after the other."""
        together: dict[tuple[int, Condition | None], list[int]] = defaultdict(list)
        answers: list[list[Hit]] = [[] for _ in asked]
        for place, search in enumerate(asked):
            if len(search.sets) > 1:
                answers[place] = search_parts(self.gallery.index, search.sets, search.weights, search.k, search.where)
            else:
                together[len(search.sets[0]), search.where].append(place)
        for (_, where), places in together.items():
            queries = torch.stack([asked[place].sets[0] for place in places])
            most = max(asked[place].k for place in places)
            found = self.gallery.index.search(queries, k=most, where=where)
            for place, hits in zip(places, found, strict=True):
                answers[place] = hits[: asked[place].k]
        return answers

    def _folded(self, results: list[Result]) -> list[Result]:
        groups = fold([result.item.id for result in results], self.gallery.state.sketches, self.threshold)
        return [
            results[first]._replace(duplicates=[results[place].item for place in others]) for first, *others in groups
        ]


def check_slot(slot: int, count: int) -> None:
    """Refuse a slot that a query does not have."""
    if slot >= count:
        raise Refusal(422, "invalid", f"slot: this query has slots 0 to {count - 1}, got {slot}.")
