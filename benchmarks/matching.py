"""Compare set similarities with a bare matrix product: `make bench`, or name parts.

Parts: cpu (search is part of it), equality, gpu (with gpu_search and gpu_index), gpu_search_large, gpu_ways,
gpu_limits, growth.
"""

import resource
import statistics
import sys
import time
from functools import partial

import torch
from torch import Tensor

from benchmarks import gpu_search
from benchmarks.reference import assert_equal, paper_listing, random_sets, scipy_scores
from benchmarks.timing import Row, Work, describe_machine, print_rows, rows_against, time_each
from maxmatch import score_matrix, similarity, top_hits
from maxmatch.evaluation.ranking import ranks_both_ways

_RANKS_GOAL = {4: 1.3, 8: 1.6}  # of all scores with both directions' ranks, × the bare product; by K


def _product(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    return torch.mm(a.view(-1, a.shape[2]), b.view(-1, b.shape[2]).T, out=out)


def cpu() -> None:
    """Two cores: all pairs, and a few queries."""
    images, captions, size, width = 2000, 10_000, 4, 1024
    a, b = random_sets(images, size, width, 1), random_sets(captions, size, width, 2)
    begin = time.perf_counter()
    scores = score_matrix(a, b)
    first = (time.perf_counter() - begin) * 1e3
    reference = scipy_scores(a[:20], b[:100])
    assert_equal(scores[:20, :100], reference, 1e-6, "score_matrix")
    assert_equal(paper_listing(a[:20], b[:100]), reference, 1e-6, "the paper's listing")
    out = torch.empty(images * size, captions * size)
    ours = {"score_matrix (maxmatch)": (lambda: score_matrix(a, b), 1.10)}
    rows = rows_against(lambda: _product(a, b, out), ours, "bare product", 5)
    rows.append(Row("score_matrix, first call in this process", first, note=f"+{(first - rows[1].ms) / 1e3:.2f} s"))
    per_pair = rows[0].ms / (images * captions)
    rows += _slow_ways(a, b, per_pair)
    print_rows(f"CPU, {images:,} × {captions:,} sets, K={size}, D={width}, float32", rows)

    a, b = a[:1000], b[:5000]
    out = torch.empty(len(a) * size, len(b) * size)
    rows = rows_against(lambda: _product(a, b, out), ours, "bare product", 9)
    print_rows(f"CPU, {len(a):,} × {len(b):,} sets, K={size}, D={width}, float32", rows)
    search()


def search() -> None:
    """A few queries against many sets, beside reading these once."""
    for size, width, items, queries in (
        *((4, 256, 100_000, queries) for queries in (1, 4, 16)),
        (2, 256, 200_000, 1),
        (8, 256, 50_000, 2),
    ):
        gallery, query = random_sets(items, size, width, 3), random_sets(queries, size, width, 4)
        for dtype in (torch.float32, torch.float16):
            stored = gallery.to(dtype)
            hits = top_hits(query, stored, 10)
            best = similarity.maxmatch(query, stored.float()).topk(10)
            assert_equal(hits.scores, best.values, 2e-6, "top_hits")
            found = stored[hits.indices[0]]
            assert_equal(hits.scores[:1], scipy_scores(query[:1], found), 2e-6, "top_hits and SciPy")
            words, few = stored.view(torch.float32), query.view(-1, width)
            out = torch.empty(items * size, len(few))
            goal = 1.5 if queries == 1 and dtype == torch.float32 else None  # otherwise the product takes longer
            named: dict[str, tuple[Work, float | None]] = {"top_hits(10)": (partial(top_hits, query, stored, 10), goal)}
            if dtype == torch.float32:
                named["bare product"] = (partial(_product, stored, few[None], out), None)
            heading = f"CPU, {queries} × {items:,} sets, K={size}, D={width}, {dtype}".replace("torch.", "")
            print_rows(heading, rows_against(words.sum, named, "reading the gallery once (sum)", 25, pause=0.02))


def _slow_ways(a: Tensor, b: Tensor, product_ms_per_pair: float) -> list[Row]:
    """Alternatives, on fewer pairs: the paper's listing, and SciPy pair by pair."""
    rows = []
    for what, work, rows_, columns in (
        ("the paper's listing", paper_listing, 100, 500),
        ("SciPy, pair by pair", scipy_scores, 20, 100),
    ):
        x, y = a[:rows_], b[:columns]
        (times,) = time_each([lambda work=work, x=x, y=y: work(x, y)], 3)  # type: ignore[misc]
        ms = statistics.median(times)
        ratio = ms / (rows_ * columns) / product_ms_per_pair
        rows.append(Row(what, ms, ratio, note=f"on {rows_} × {columns}, ratio per pair"))
    return rows


def gpu() -> None:
    """COCO 5K in every precision, and a training step."""
    images, captions, width, device = 5000, 25_000, 1024, "cuda"
    groups = torch.arange(images, device=device), torch.arange(captions, device=device) // 5
    for size, dtype, precision in (
        (4, torch.bfloat16, "highest"),
        (4, torch.float32, "high"),
        (4, torch.float32, "highest"),
        (8, torch.bfloat16, "highest"),
    ):
        torch.set_float32_matmul_precision(precision)
        a = random_sets(images, size, width, 1, device).to(dtype)
        b = random_sets(captions, size, width, 2, device).to(dtype)
        tolerance = 1e-3 if precision == "high" else 2e-6
        scores = score_matrix(a, b)
        assert_equal(scores[:20, :100], scipy_scores(a[:20], b[:100]), tolerance, "score_matrix")
        assert_equal(scores[-20:, -100:], scipy_scores(a[-20:], b[-100:]), tolerance, "score_matrix")
        del scores
        out = torch.empty(images * size, captions * size, dtype=dtype, device=device)
        rows = rows_against(
            lambda a=a, b=b, out=out: _product(a, b, out),  # type: ignore[misc]
            {
                "all scores": (lambda a=a, b=b: score_matrix(a, b), None),  # type: ignore[misc]
                "all scores and both directions' ranks": (
                    lambda a=a, b=b: ranks_both_ways(score_matrix(a, b), *groups),  # type: ignore[misc]
                    _RANKS_GOAL[size],
                ),
            },
            "bare product",
            15,
        )
        del out
        if size == 4:
            (times,) = time_each([lambda a=a, b=b: paper_listing(a[:500], b[:2500])], 3)  # type: ignore[misc]
            ratio = statistics.median(times) * (images * captions / (500 * 2500)) / rows[0].ms
            rows.append(
                Row("the paper's listing", statistics.median(times), ratio, note="on 500 × 2,500, ratio per pair")
            )
        name = {"high": "tf32", "highest": "float32"}[precision] if dtype == torch.float32 else "bfloat16"
        print_rows(f"GPU, {images:,} × {captions:,} sets, K={size}, D={width}, {name}", rows)
    torch.set_float32_matmul_precision("highest")
    _training_step()
    gpu_search.search()
    gpu_search.index()


def gpu_limits() -> None:
    """How near the kernels come to a bare product."""
    from benchmarks import gpu_limits  # it needs Triton

    gpu_limits.gpu_limits()


def equality() -> None:
    """Compare odd sizes and every precision on the GPU with SciPy; tests can do this only in the interpreter."""
    for size in (1, 2, 3, 4, 8):
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            for images, captions, width in ((1, 1, 64), (67, 131, 72), (130, 33, 1000)):
                a = random_sets(images, size, width, 5, "cuda").to(dtype)
                b = random_sets(captions, size, width, 6, "cuda").to(dtype)
                expected = scipy_scores(a, b)
                what = f"K={size} {dtype} {images}×{captions}×{width}"
                assert_equal(score_matrix(a, b), expected, 2e-6, what)
                assert_equal(score_matrix(a, b, max_memory=2**20), expected, 2e-6, what + " in tiles")
                assert_equal(similarity.maxmatch(a, b), expected, 2e-6, what + " similarity")
                hits = top_hits(a, b, 5)
                assert_equal(hits.scores, expected.topk(min(5, captions)).values, 2e-6, what + " top_hits")
                rows, columns = torch.arange(images) % 20, torch.arange(captions) % min(20, images)
                if captions >= 20:
                    scores = score_matrix(a, b)
                    for mine, slow in zip(
                        ranks_both_ways(scores, (rows % min(20, images)).cuda(), columns.cuda()),
                        ranks_both_ways(scores.cpu(), rows % min(20, images), columns),
                        strict=True,
                    ):
                        assert torch.equal(mine.ranks.cpu(), slow.ranks), what
    print("GPU: scores, hits and ranks equal the reference for K = 1 … 8 in bfloat16, float16 and float32")


def _training_step() -> None:
    images, captions, size, width = 200, 1000, 4, 1024
    a = random_sets(images, size, width, 1, "cuda").requires_grad_()
    b = random_sets(captions, size, width, 2, "cuda").requires_grad_()
    weights = torch.randn(images, captions, device="cuda")

    def step(function: object = similarity.maxmatch) -> None:
        a.grad = b.grad = None
        (function(a, b) * weights).sum().backward()  # type: ignore[operator]

    step()
    got = [a.grad, b.grad]
    step(paper_listing)
    for mine, theirs in zip(got, (a.grad, b.grad), strict=True):
        assert mine is not None
        assert theirs is not None
        assert_equal(mine, theirs, 1e-3 * float(theirs.abs().max()), "gradient")
    rows = []
    for what, function in (
        ("maxmatch, forward + backward", similarity.maxmatch),
        ("the paper's listing", paper_listing),
    ):
        (times,) = time_each([lambda function=function: step(function)], 30)  # type: ignore[misc]
        torch.cuda.synchronize()
        a.grad = b.grad = None
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step(function)
        extra = (torch.cuda.max_memory_allocated() - before - sum(x.nbytes for x in (a, b))) / 2**20
        cosine_tensor = images * size * captions * size * 4 / 2**20
        note = f"{extra:.0f} MiB besides the gradients, {extra / cosine_tensor:.1f} cosine tensors (goals: 0.6 ms, 1.2)"
        rows.append(Row(what, min(times), note=note))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    (times,) = time_each([graph.replay], 30)
    rows.append(Row("maxmatch, the same as a CUDA graph", min(times), note="without launches by the host"))
    print_rows(f"GPU, training: {images} × {captions} sets, K={size}, D={width}, float32", rows)


def growth() -> None:
    """How time and memory grow with K and with the number of pairs."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    images, captions, width = (1000, 5000, 1024) if device == "cuda" else (100, 500, 256)
    rows = []
    for size in (*range(1, 9), 12, 16):
        small = 1 if size <= 8 else 10
        a, b = (
            random_sets(images // small, size, width, 1, device),
            random_sets(captions // small, size, width, 2, device),
        )
        assert_equal(score_matrix(a[:5], b[:20]), scipy_scores(a[:5], b[:20]), 2e-6, f"K={size}")
        out = torch.empty(len(a) * size, len(b) * size, device=device)
        base, ours = time_each([lambda a=a, b=b, out=out: _product(a, b, out), lambda a=a, b=b: score_matrix(a, b)], 5)  # type: ignore[misc]
        pairs = len(a) * len(b)
        each = statistics.median(ours) / pairs * 1e6
        note = f"{each:10.2f} ns per pair, product {statistics.median(base) / pairs * 1e6:9.2f}"
        rows.append(
            Row(f"K = {size}", statistics.median(ours), statistics.median(ours) / statistics.median(base), note=note)
        )
    print_rows(
        f"{device.upper()}, growth with K: {images} × {captions} sets (a hundredth of it above 8), D={width}", rows
    )
    rows = []
    for factor in (1, 2, 4, 8) if device == "cpu" else (1, 4, 16, 64):
        a, b = random_sets(images, 4, width, 1, device), random_sets(captions * factor, 4, width, 2, device)
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        (times,) = time_each([lambda a=a, b=b: top_hits(a, b, 10)], 5)  # type: ignore[misc]
        peak = (
            f"{(torch.cuda.max_memory_allocated() - before) / 2**20:.0f} MiB besides the inputs"
            if device == "cuda"
            else f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10:.0f} MiB peak of the process so far"
        )
        pairs = len(a) * len(b)
        ms = statistics.median(times)
        rows.append(Row(f"top_hits, {pairs:,} pairs, K = 4", ms, note=f"{ms / pairs * 1e6:6.2f} ns per pair, {peak}"))
    print_rows(f"{device.upper()}, growth with the number of pairs, D={width}", rows)


if __name__ == "__main__":
    parts = {
        "cpu": cpu, "search": search, "equality": equality, "gpu": gpu, "gpu_search": gpu_search.search,
        "gpu_search_large": gpu_search.search_large, "gpu_index": gpu_search.index, "gpu_ways": gpu_search.ways,
        "gpu_limits": gpu_limits, "growth": growth,
    }  # fmt: skip
    on_gpu = ("equality", "gpu", "gpu_search", "gpu_search_large", "gpu_index", "gpu_ways", "gpu_limits")
    within = ("search", *on_gpu[2:])  # parts of cpu and gpu, or asked for
    usual = [name for name in parts if name not in on_gpu or torch.cuda.is_available()]
    chosen = sys.argv[1:] or [name for name in usual if name not in within]
    print(describe_machine())
    for name in chosen:
        parts[name]()
