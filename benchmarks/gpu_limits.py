"""How near matching on the GPU comes to a bare product: `python -m benchmarks.matching gpu_limits`, under a minute.

Every kernel and its variants, first compared with SciPy and with torch's operations one by one.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial
from unittest.mock import patch

import torch
from torch import Tensor

from benchmarks.reference import assert_equal, random_sets, scipy_scores
from benchmarks.timing import Row, Work, print_kernels, print_rows, recorded, time_each
from maxmatch import score_matrix, similarity
from maxmatch.evaluation.ranking import ranks_both_ways
from maxmatch.matching import triton_backend
from maxmatch.matching.products import cosine_planes
from maxmatch.matching.triton_fused import CUTS, Cut, fused_scores, pack_columns, pack_rows, unpacked

_VARIANTS = {
    4: {"256 × 128, 8 warps": CUTS[4]},
    8: {
        "two of 128 × 128, the second later": CUTS[8],
        "two of 128 × 128": CUTS[8]._replace(delay=0),
        "a program for each tile of 128 × 128": CUTS[8]._replace(programs=0, delay=0),
        "256 × 128, 8 warps": Cut(256, 8, 3, 1),
    },
}
_WIDTH = 1024
_IN_A_ROW = 20


def gpu_limits() -> None:
    """All of it."""
    torch.set_float32_matmul_precision("highest")
    _equality()
    _host()
    for size, goal in ((4, 1.3), (8, 1.6)):
        _pairs(size, goal)
    _training()


def _equality() -> None:
    for size in (4, 8):
        rows, columns = 67, 131  # as wide as what is timed, for another width would have to be compiled
        a, b = (random_sets(n, size, _WIDTH, n, "cuda").bfloat16() for n in (rows, columns))
        expected = scipy_scores(a, b)
        assert_equal(score_matrix(a, b), expected, 2e-6, f"K={size}")
        for what, cut in _VARIANTS[size].items():
            scores = torch.full((rows, columns), torch.nan, device="cuda")
            fused_scores(pack_rows(a, cut), pack_columns(b), scores, cut)
            assert_equal(scores, expected, 2e-6, f"K={size}, {what}")
        scores = torch.full((rows, columns), torch.nan, device="cuda")
        fused_scores(unpacked(a), unpacked(b), scores)
        assert_equal(scores, expected, 2e-6, f"K={size}, where they lie")
    generator = torch.Generator().manual_seed(1)
    for rows, columns, groups in ((130, 651, 130), (333, 1000, 20)):
        scores = torch.randint(-20, 20, (rows, columns), generator=generator).float()  # with ties
        sides = torch.arange(rows) % groups, torch.randperm(columns, generator=generator) % groups
        slow = ranks_both_ways(scores, *sides)
        fast = ranks_both_ways(scores.cuda(), *(side.cuda() for side in sides))
        for mine, theirs in zip(fast, slow, strict=True):
            assert torch.equal(mine.ranks.cpu(), theirs.ranks), "ranks"
            assert torch.equal(mine.ties.cpu(), theirs.ties), "ties"
    print("GPU: every variant's scores equal SciPy's, ranks and ties equal the CPU's")


def _host() -> None:
    """What the host takes for a launch, which the GPU waits for where there is little to do."""
    a, b = (random_sets(n, 4, _WIDTH, n, "cuda").bfloat16() for n in (67, 131))
    scores, packed = torch.empty(67, 131, device="cuda"), (pack_rows(a), pack_columns(b))
    cosines, few = torch.zeros(16, 32, device="cuda"), torch.empty(4, 8, device="cuda")
    works: dict[str, Work] = {
        "a launch by torch": scores.zero_,
        "a launch of ours by its handle": partial(triton_backend.block_scores, cosines, few),
        "a launch of ours, packing": partial(pack_rows, a),
        "a launch of ours, fused": partial(fused_scores, *packed, scores),
        "how much memory is free": torch.cuda.mem_get_info,
        "score_matrix of a few sets, in all": partial(score_matrix, a, b),
    }
    print("\nHost")
    for what, work in works.items():
        work()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(50):
            work()
        print(f"  {what:<58}{(time.perf_counter() - begin) / 50 * 1e6:12.1f} µs", flush=True)
    torch.cuda.synchronize()


def _pairs(size: int, goal: float) -> None:
    """COCO 5K in bfloat16: the whole, and its kernels one by one."""
    images, captions, width = 5000, 25_000, _WIDTH
    groups = torch.arange(images, device="cuda"), torch.arange(captions, device="cuda") // 5
    a = random_sets(images, size, width, 1, "cuda").bfloat16()
    b = random_sets(captions, size, width, 2, "cuda").bfloat16()
    scores = score_matrix(a, b)
    assert_equal(scores[:20, :100], scipy_scores(a[:20], b[:100]), 2e-6, "score_matrix")
    assert_equal(scores[-20:, -100:], scipy_scores(a[-20:], b[-100:]), 2e-6, "score_matrix")
    out = torch.empty(images * size, captions * size, dtype=a.dtype, device="cuda")
    works: dict[str, tuple[Work, float | None]] = {
        "bare product": (lambda: torch.mm(a.flatten(0, 1), b.flatten(0, 1).T, out=out), None),
        "all scores": (partial(score_matrix, a, b), None),
        "all scores and both directions' ranks": (lambda: ranks_both_ways(score_matrix(a, b), *groups), goal),
        "  packing": (lambda: (pack_rows(a), pack_columns(b)), None),
    }
    columns = pack_columns(b)
    for what, cut in _VARIANTS[size].items():
        works[f"  kernel, {what}"] = (partial(fused_scores, pack_rows(a, cut), columns, scores, cut), None)
    works["  kernel, where they lie (before Hopper)"] = (partial(fused_scores, unpacked(a), unpacked(b), scores), None)
    works["  ranks alone"] = (partial(ranks_both_ways, scores, *groups), None)
    _print_all(f"GPU, {images:,} × {captions:,} sets, K={size}, D={width}, bfloat16", works, 12 if size == 4 else 7)
    print_kernels(f"all scores and both ranks, K = {size}", lambda: ranks_both_ways(score_matrix(a, b), *groups))


def _print_all(heading: str, works: dict[str, tuple[Work, float | None]], repeats: int) -> None:
    times = time_each([work for work, _ in works.values()], repeats)
    least, middle = min(times[0]), statistics.median(times[0])
    rows = []
    for (what, (_, goal)), found in zip(works.items(), times, strict=True):
        note = f"medians {statistics.median(found) / middle:.2f}×"
        rows.append(Row(what, min(found), min(found) / least, goal, note))
    print_rows(heading, rows)


def _training() -> None:
    """Forward and backward of `maxmatch` in a training step, with its memory."""
    images, captions, size, width = 200, 1000, 4, 1024
    a = random_sets(images, size, width, 1, "cuda").requires_grad_()
    b = random_sets(captions, size, width, 2, "cuda").requires_grad_()
    weights = torch.randn(images, captions, device="cuda")

    def step(function: Callable[[Tensor, Tensor], Tensor]) -> None:
        a.grad = b.grad = None
        (function(a, b) * weights).sum().backward()  # type: ignore[no-untyped-call]

    def one_by_one(a: Tensor, b: Tensor) -> Tensor:
        cosines = cosine_planes(a, b)
        return cosines.gather(1, triton_backend.plane_assignment(cosines.detach())[:, None])[:, 0].exp().mean(0) - 1

    def in_this_thread() -> None:
        with torch.autograd.set_multithreading_enabled(False):
            ours()

    def in_a_row() -> None:
        for _ in range(_IN_A_ROW):
            ours()

    ours: Work = partial(step, similarity.maxmatch)
    found = []
    for function in (similarity.maxmatch, one_by_one):
        step(function)
        found.append((function(a, b).detach(), a.grad, b.grad))
    for first, other in zip(*found, strict=True):
        assert first is not None
        assert other is not None
        # Of two matchings that tie to the last bit each way may take another: a pair's, so four of 4,800 vectors.
        beyond = float(((first - other).abs() > 1e-5 * max(1.0, float(first.abs().max()))).float().mean())
        assert beyond < 0.02, f"{beyond:.2%} of the scores or gradients differ"
    x, y = a.detach().flatten(0, 1), b.detach().flatten(0, 1)
    cosines, scores = x @ y.T, torch.empty(images, captions, device="cuda")
    copy = cosines.clone()
    works: dict[str, Work] = {
        "forward + backward": ours,
        "  the gradient in the calling thread": in_this_thread,
        f"  {_IN_A_ROW} steps in a row, each": in_a_row,
        "  as a CUDA graph": recorded(ours),
        "  forward alone": lambda: similarity.maxmatch(a, b),
        "operations one by one, forward + backward": partial(step, one_by_one),
        "three products, as a CUDA graph: the floor": recorded(lambda: (x @ y.T, cosines @ y, cosines.T @ x)),
        "  cosines": recorded(lambda: x @ y.T),
        "  gradient of the images": recorded(lambda: cosines @ y),
        "  gradient of the captions": recorded(lambda: cosines.T @ x),
        "  kernel: matching": recorded(lambda: triton_backend.block_scores(cosines, scores)),
        "  kernel: gradient by the cosines": recorded(lambda: triton_backend.block_gradient(copy, weights)),
    }
    rows = []
    for what, times in zip(works, time_each(list(works.values()), 40), strict=True):
        of = _IN_A_ROW if "in a row" in what else 1
        note = f"median {statistics.median(times) / of:.3f} ms"
        if what == "forward + backward":
            note += f", {_extra_memory(ours, a, b):.2f} cosine tensors (goals: 0.6 ms, 1.2)"
        rows.append(Row(what, min(times) / of, note=note))
    print_rows(f"GPU, training: {images} × {captions} sets, K={size}, D={width}, float32", rows)
    _host_of_a_step(a, b, weights)
    print_kernels("maxmatch, forward + backward", ours)


def _host_of_a_step(a: Tensor, b: Tensor, weights: Tensor) -> None:
    """When the host has launched what, microseconds after the begin of a step."""
    marks: list[tuple[str, float]] = []

    def mark(what: str) -> None:
        marks.append((what, time.perf_counter()))

    def marked(kernel: Callable[..., None], before: str, after: str) -> Callable[..., None]:
        def run(*given: Tensor) -> None:
            mark(before)
            kernel(*given)
            mark(after)

        return run

    scored = marked(triton_backend.block_scores, "product of the cosines launched", "matching launched")
    back = marked(triton_backend.block_gradient, "backward has come to us", "gradient by the cosines launched")
    runs = []
    with patch.object(triton_backend, "block_scores", scored), patch.object(triton_backend, "block_gradient", back):
        for _ in range(40):
            a.grad = b.grad = None
            marks.clear()
            torch.cuda.synchronize()
            mark("begin")
            scores = similarity.maxmatch(a, b)
            mark("maxmatch has returned")
            total = (scores * weights).sum()
            mark("weights and sum launched")
            total.backward()  # type: ignore[no-untyped-call]
            mark("backward has returned: two products launched")
            runs.append([(what, (at - marks[0][1]) * 1e6) for what, at in marks[1:]])
    print("\nHost, a step: microseconds since its begin")
    for row in zip(*runs, strict=True):
        print(f"  {row[0][0]:<58}{statistics.median(at for _, at in row):12.1f} µs", flush=True)


def _extra_memory(work: Work, a: Tensor, b: Tensor) -> float:
    """Beside the gradients, in tensors of all cosines."""
    a.grad = b.grad = None
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    work()
    extra = torch.cuda.max_memory_allocated() - before - a.nbytes - b.nbytes
    return extra / (len(a) * a.shape[1] * len(b) * b.shape[1] * 4)
