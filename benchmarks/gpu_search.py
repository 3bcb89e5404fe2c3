"""Search on a GPU where all sets lie in its memory: `python -m benchmarks.matching gpu_search gpu_ways gpu_index`.

gpu_search: `top_hits` and int8 beside reading the gallery once and the bare product, after equality with all scores.
gpu_search_large: the same for bfloat16, for vectors of 1,024 and for ten million sets, which take 21 GB.
gpu_ways: every way to scan, so that the fastest becomes the default of `maxmatch.matching.triton_scan`.
gpu_index: `SetIndex` on the device: one query, and queries per second.
"""

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from benchmarks.reference import assert_equal, random_sets, scipy_scores
from benchmarks.timing import Row, Work, print_kernels, print_rows, recorded, time_each
from maxmatch import score_matrix, top_hits
from maxmatch.matching import similarity_named
from maxmatch.matching.stored_sets import StoredSets

SIZE, BLOCK = 4, 100_000
_MATCHED = similarity_named("maxmatch")


def _filled(items: int, width: int, dtype: str) -> StoredSets:
    stored = StoredSets(items, SIZE, width, dtype, "cuda")
    for start in range(0, items, BLOCK):
        stored.put(slice(start, start + BLOCK), random_sets(BLOCK, SIZE, width, start + 1, "cuda"))
    return stored


def _best_scores(query: Tensor, stored: StoredSets, k: int = 10) -> Tensor:
    """The k best by all scores, in float32 where items are integers."""
    parts = []
    for start in range(0, len(stored), BLOCK):
        part = slice(start, start + BLOCK)
        sets = stored.values[part] if stored.scales is None else stored.at(part)
        parts.append(score_matrix(query, sets).topk(k).values)
    return torch.cat(parts, 1).topk(k).values


def _as_integers(query: Tensor) -> Tensor:
    """Queries as the kernel has them."""
    stored = StoredSets(len(query), SIZE, query.shape[2], "int8", "cuda")
    stored.put(slice(None), query)
    return stored.at(slice(None))


def _product(query: Tensor, values: Tensor, out: Tensor) -> None:
    """Slice by slice where all products would not fit."""
    few = query.flatten(0, 1)
    step = out.shape[1] // SIZE
    for start in range(0, len(values), step):
        torch.mm(few, values[start : start + step].flatten(0, 1).T, out=out)


def search() -> None:
    """1, 16, 100 and 1,000 queries against a million sets in float16 and int8."""
    products: dict[tuple[int, int], float] = {}
    for dtype in ("float16", "int8"):
        stored = _filled(1_000_000, 256, dtype)
        for queries in (1, 16, 100, 1000):
            _one_row(stored, queries, products)
        _recall(stored)
        _deep(stored)
        if dtype == "float16":
            _filtered(stored)
            query = random_sets(100, SIZE, 256, 4, "cuda").half()
            print_kernels("100 × 1,000,000 sets, float16", partial(top_hits, query, stored.values, 10))
        del stored
        torch.cuda.empty_cache()


def search_large() -> None:
    """What takes longer: bfloat16, wide vectors, and ten million sets."""
    products: dict[tuple[int, int], float] = {}
    for items, width, dtypes, counts in (
        (1_000_000, 256, ("float16", "bfloat16"), (1, 16, 100, 1000)),  # float16: its products are compared with below
        (1_000_000, 1024, ("float16", "int8"), (1, 16, 100)),
        (1_000_000, 1024, ("bfloat16",), (100,)),
        (10_000_000, 256, ("float16", "int8"), (1, 100, 1000)),
    ):
        for dtype in dtypes:
            stored = _filled(items, width, dtype)
            for queries in counts:
                _one_row(stored, queries, products)
            del stored
            torch.cuda.empty_cache()


def _deep(stored: StoredSets) -> None:
    """More hits than ten. An index asks for twice as many as it gives, to score them again: 40 for 20, 200 for 100."""
    rows, dtype = [], stored.values.dtype
    for queries in (1, 100):
        query = random_sets(queries, SIZE, stored.values.shape[2], 4, "cuda")
        asked = query.to(dtype) if stored.scales is None else _as_integers(query)
        works: list[Work] = [partial(stored.best, query, k, _MATCHED) for k in (10, 20, 40, 100, 200)]
        for k, work in ((20, works[1]), (200, works[4])):
            hits: Any = work()
            assert_equal(hits.scores, _best_scores(asked, stored, k), 2e-6, f"{queries} queries, k={k}, {dtype}")
        least, *others = map(min, time_each(works, 15))
        rows.append(Row(f"{queries} queries, k = 10", least, 1.0))
        rows += [
            Row(f"{queries} queries, k = {k}", ms, ms / least) for k, ms in zip((20, 40, 100, 200), others, strict=True)
        ]
    print_rows(f"GPU, the k best of {len(stored):,} sets, {dtype}: × k = 10".replace("torch.", ""), rows)


def _one_row(stored: StoredSets, queries: int, products: dict[tuple[int, int], float]) -> None:
    from maxmatch.matching.triton_scan import best_hits

    items, width, dtype = len(stored), stored.values.shape[2], stored.values.dtype
    query = random_sets(queries, SIZE, width, 4, "cuda")
    half = query if stored.scales is not None else query.to(dtype)
    find: Work = partial(stored.best, query, 10, _MATCHED)
    if stored.scales is None:
        find = partial(top_hits, half, stored.values, 10)
    hits: Any = find()
    if queries <= 100:
        expected = _best_scores(half if stored.scales is None else _as_integers(query), stored)
        assert_equal(hits.scores, expected, 2e-6, f"{queries} queries, {dtype}")
        if stored.scales is None:
            found = stored.values[hits.indices[0]]
            assert_equal(hits.scores[:1], scipy_scores(half[:1], found), 2e-6, "top_hits and SciPy")
    words = stored.values.view(torch.int64)
    repeats = 25 if queries < 1000 and items <= 1_000_000 else 7
    bare: Work = partial(best_hits, half, stored.values, 10, item_scales=stored.scales)
    works: list[Work] = [words.sum, find, recorded(bare)]
    measured = stored.scales is None
    if measured:
        rows = min(items, 3_200_000_000 // (queries * SIZE * SIZE * 2))
        out = torch.empty(queries * SIZE, rows * SIZE, dtype=dtype, device="cuda")
        works.append(partial(_product, half, stored.values[: items // rows * rows], out))
    times = time_each(works, repeats)
    read, found_in = min(times[0]), min(times[1])
    if dtype == torch.float16:
        products[width, queries] = min(times[3])
    product = min(times[3]) if measured else products[width, queries] / 2
    floor, one = max(read, product), queries == 1
    name = "bare product" if measured else "half of float16's product"
    note = f"p50 {median(times[1]):.3f} ms, {queries / found_in * 1e3:,.0f} queries/s"
    print_rows(
        f"GPU, {queries} × {items:,} sets, K={SIZE}, D={width}, {dtype}".replace("torch.", ""),
        [
            Row("reading the gallery once (sum)", read),
            Row(name, product),
            Row("the ten best, against reading", found_in, found_in / read, 1.3 if one else None, note),
            Row("the ten best, against the larger", found_in, found_in / floor, None if one else 1.5),
            Row("  as a CUDA graph, and nothing looked at", min(times[2]), min(times[2]) / floor),
        ],
    )


def _filtered(stored: StoredSets) -> None:
    """A filter that half of the items pass, and one that one in a thousand passes."""
    rows = []
    for queries in (1, 100):
        query = random_sets(queries, SIZE, stored.values.shape[2], 4, "cuda")
        for share in (0.5, 0.001):
            keep = torch.rand(len(stored), device="cuda") < share
            hits = stored.best(query, 10, _MATCHED, keep)
            assert bool(keep[hits.indices].all()), "a filter"
            if share < 0.1:
                asked = query.to(stored.values.dtype) if stored.scales is None else _as_integers(query)
                expected = score_matrix(asked.float(), stored.at(keep.nonzero()[:, 0])).topk(10).values
                assert_equal(hits.scores, expected, 2e-6, "filtered")
            (times,) = time_each([partial(stored.best, query, 10, _MATCHED, keep)], 9)
            rows.append(Row(f"{queries} queries, {share:.1%} of the items pass", min(times)))
    print_rows(f"GPU, filters, {len(stored):,} sets, {stored.values.dtype}".replace("torch.", ""), rows)


def _recall(stored: StoredSets) -> None:
    """Of the ten best by float32, how many are found: by the kernel alone, and by its 26 best, scored again with
    queries in full precision, as `SetIndex` does.
    """
    width, query = stored.values.shape[2], random_sets(100, SIZE, stored.values.shape[2], 4, "cuda")
    values, places = [], []
    for start in range(0, len(stored), BLOCK):
        best = score_matrix(query, random_sets(BLOCK, SIZE, width, start + 1, "cuda")).topk(10)
        values.append(best.values)
        places.append(best.indices + start)
    truth = torch.cat(places, 1).gather(1, torch.cat(values, 1).topk(10).indices)
    candidates = stored.best(query, 26, _MATCHED).indices
    again = torch.stack([score_matrix(query[i : i + 1], stored.at(candidates[i]))[0] for i in range(len(query))])
    rescored = candidates.gather(1, again.topk(10).indices)
    alone, both = (
        float((found[:, :, None] == truth[:, None]).any(2).float().mean()) for found in (candidates[:, :10], rescored)
    )
    print(f"  recall@10 against float32, {stored.values.dtype}, D={width}: {alone:.4f} alone, {both:.4f} scored again")


# --- every way to scan ------------------------------------------------------------------------------------------------


def ways() -> None:
    """The scan alone, without the choice of the best: which way is the fastest for which width and precision."""
    from maxmatch.matching.triton_scan import FEW, MANY, Cut
    from maxmatch.matching.triton_tiles import Tiles

    held = [Tiles(8, 16, 3, True), Tiles(4, 16, 3, True), Tiles(4, 32, 2, True)]
    streamed = [Tiles(8, 32, 3, False), Tiles(8, 32, 4, False), Tiles(4, 32, 3, False, 2)]
    held_int8 = [Tiles(8, 32, 3, True), Tiles(8, 16, 3, True, 2), Tiles(4, 32, 2, True, 2), Tiles(4, 16, 3, True, 2)]
    few = [FEW, Cut(16, 32, 4, 3), Cut(16, 32, 4, 4)]
    for width, dtype, queries, tried in (
        (256, "float16", 100, [MANY, *held, *streamed, Tiles(8, 16, 4, False)]),
        (256, "float16", 16, [*few, *held[1:2]]),
        (256, "bfloat16", 100, [held[0], streamed[0]]),
        (256, "int8", 100, [MANY, *held_int8, streamed[0]]),
        (256, "int8", 16, [*few, Cut(16, 128, 8, 3), held_int8[3]]),
        (1024, "float16", 100, [MANY, *streamed, Tiles(8, 16, 4, False)]),
        (1024, "int8", 100, streamed),
        (1024, "int8", 16, few),
    ):
        _try_ways(width, dtype, queries, tried)
        torch.cuda.empty_cache()


def _try_ways(width: int, dtype: str, queries: int, tried: list[Any]) -> None:
    from maxmatch.matching.triton_scan import best_keys, quantise

    stored = _filled(1_000_000, width, dtype)
    query, scales, same = random_sets(queries, SIZE, width, 4, "cuda"), None, 20_011
    asked = query.to(stored.values.dtype) if stored.scales is None else _as_integers(query)
    whole = score_matrix(asked.float(), stored.at(slice(0, same)))
    few: Any = None
    if stored.scales is not None:
        asked, own = quantise(query)
        scales, few = (own, stored.scales), (own, stored.scales[:same])
    works: list[Work] = [stored.values.view(torch.int64).sum]
    worked = []
    for way in tried:
        try:
            keys = best_keys(asked, stored.values[:same], None, way, few)
            torch.cuda.synchronize()
        except Exception as error:  # one that does not fit this GPU leaves the others
            print(f"  {way}: {type(error).__name__}: {str(error)[:200]}", flush=True)
            continue
        expected = torch.stack([part.amax(1) for part in torch.split(whole, way.items, 1)], 1)
        ordered = (keys >> 32).int()
        scores = torch.where(ordered < 0, ordered ^ 0x7FFFFFFF, ordered).view(torch.float32)
        assert_equal(scores, expected, 2e-6, str(way))
        works.append(partial(best_keys, asked, stored.values, None, way, scales))
        worked.append(way)
    read, *times = map(min, time_each(works, 11))
    rows = [Row("reading the gallery once (sum)", read)]
    best = min(times)
    for way, ms in zip(worked, times, strict=True):
        rows.append(Row(str(way).replace("Tiles", ""), ms, ms / read, note="fastest" if ms == best else ""))
    print_rows(f"GPU, scan alone, {queries} × 1,000,000 sets, D={width}, {dtype}: × reading", rows)


# --- an index ---------------------------------------------------------------------------------------------------------


class _Generated:
    """An engine of random items, so that what is measured is the search and not a disk."""

    in_memory = False

    def __init__(self, items: int, width: int) -> None:
        self.items, self.width = items, width
        self.texts = [f'{{"year": {1990 + n % 30}, "path": "photos/{n}.jpg"}}' for n in range(items)]

    def scan(self, block: int, where: Any = None, vectors: bool = True, metadata: bool = False) -> Iterator[Any]:
        from maxmatch.search.engine import Found

        torch.manual_seed(0)
        for start in range(0, self.items, block):
            places = range(start, min(start + block, self.items))
            sets = np.empty((len(places), 0), np.float16)
            if vectors:
                made = normalize(torch.randn(len(places), SIZE, self.width, device="cuda"), dim=-1)
                sets = made.half().flatten(1).cpu().numpy()
            texts = self.texts[start : start + block] if metadata else None
            yield Found([f"photos/{n}.jpg" for n in places], np.arange(start, start + len(places)), sets, texts)

    def count(self, where: Any = None) -> int:
        return self.items

    def version(self) -> int:
        return 0

    def close(self) -> None:
        pass


def index() -> None:
    """`SetIndex.search` on the device: ids, scores, matches and metadata of the ten best of a million."""
    from maxmatch.search.index_folder import Manifest, write_manifest
    from maxmatch.search.set_index import SetIndex

    items, width = 1_000_000, 256
    engine: Any = _Generated(items, width)
    asked = normalize(torch.randn(4000, SIZE, width, generator=torch.Generator().manual_seed(1)), dim=-1)
    for dtype in ("float16", "int8"):
        with TemporaryDirectory() as folder:
            manifest = Manifest(set_size=SIZE, dim=width, dtype="float16", engine="lance")
            write_manifest(Path(folder), manifest)
            begin = time.perf_counter()
            with SetIndex(Path(folder), manifest, engine, "cuda", dtype) as opened:
                ready = time.perf_counter() - begin
                held: Any = opened._on_device
                hits = opened.search(asked[:5])
                exact = score_matrix(asked[:5].to("cuda"), held._items.sets.at(slice(None))).topk(10).values.cpu()
                assert_equal(torch.tensor([[hit.score for hit in row] for row in hits]), exact, 1e-5, "SetIndex")
                rows = [Row(f"{items:,} items read to the device", ready * 1e3)]
                for count, repeats in ((1, 200), (16, 50), (1000, 6), (4000, 3)):
                    times = []
                    for number in range(repeats):
                        part = asked[number % (len(asked) // count) * count :][:count]
                        begin = time.perf_counter()
                        opened.search(part)
                        times.append((time.perf_counter() - begin) * 1e3)
                    ms = median(times)
                    note = f"p50; best {min(times):.3f}; {count / ms * 1e3:,.0f} queries/s"
                    rows.append(Row(f"search of {count}", ms, note=note))
                found = []
                for _ in range(5):
                    begin = time.perf_counter()
                    held.best(asked[:1000].numpy(), 10, None)
                    found.append((time.perf_counter() - begin) * 1e3)
                note = f"{1e6 / min(found):,.0f} queries/s"
                rows.append(Row("the same 1,000 without making hits of them", min(found), note=note))
                print_rows(f"GPU, SetIndex on the device, D={width}, {dtype}", rows)
