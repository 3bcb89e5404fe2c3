"""How near matching on the GPU comes to a bare product: `python -m benchmarks.matching gpu_limits`, under a minute.

Every kernel and its variants, first compared with SciPy and with torch's operations one by one.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from benchmarks.reference import assert_equal, random_sets, scipy_scores
from benchmarks.timing import Row, Work, print_rows, time_each
from maxmatch import score_matrix, similarity
from maxmatch.evaluation.ranking import ranks_both_ways
from maxmatch.matching import triton_backend
from maxmatch.matching.products import cosine_planes
from maxmatch.matching.triton_fused import CUTS, Cut, fused_scores, pack_columns, pack_rows, unpacked

_VARIANTS = {
    4: {
        "256 × 128, 8 warps": CUTS[4],
        "256 × 128, 8 warps, 4 stages": CUTS[4]._replace(stages=4),
        "two of 128 × 128": Cut(128, 4, 3, 2),
        "two of 128 × 128, the second later": Cut(128, 4, 3, 2, 1000),
    },
    8: {
        "two of 128 × 128, the second later": CUTS[8],
        "two of 128 × 128": CUTS[8]._replace(delay=0),
        "a program for each tile of 128 × 128": CUTS[8]._replace(programs=0, delay=0),
        "256 × 128, 8 warps": Cut(256, 8, 3, 1),
    },
}
_WIDTH = 1024
_TILES = ((64, 128, 8), (32, 128, 4), (128, 128, 8), (32, 256, 8))


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
    works: dict[str, Work] = {
        "a launch by torch": scores.zero_,
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
    works["  kernel, where they lie"] = (partial(fused_scores, unpacked(a), unpacked(b), scores), None)
    works["  ranks alone"] = (partial(ranks_both_ways, scores, *groups), None)
    for tile in _TILES if size == 4 else _TILES[:1]:
        works[f"  its kernels, tiles {tile}"] = (partial(triton_backend.count_wrong, scores, *groups, tile), None)
    mixed = groups[0][torch.randperm(images, device="cuda")], groups[1][torch.randperm(captions, device="cuda")]
    works["  its kernels, groups in no order"] = (partial(triton_backend.count_wrong, scores, *mixed), None)
    _print_all(f"GPU, {images:,} × {captions:,} sets, K={size}, D={width}, bfloat16", works, 12 if size == 4 else 7)
    if size == 4:
        _kernels_of("all scores and both ranks, K = 4", lambda: ranks_both_ways(score_matrix(a, b), *groups))


def _print_all(heading: str, works: dict[str, tuple[Work, float | None]], repeats: int) -> None:
    times = time_each([work for work, _ in works.values()], repeats)
    least, middle = min(times[0]), statistics.median(times[0])
    rows = []
    for (what, (_, goal)), found in zip(works.items(), times, strict=True):
        note = f"medians {statistics.median(found) / middle:.2f}×"
        rows.append(Row(what, min(found), min(found) / least, goal, note))
    print_rows(heading, rows)


def _kernels_of(what: str, work: Work) -> None:
    """What the GPU was busy with, by the profiler."""
    work()
    try:
        with profile(activities=[ProfilerActivity.CUDA]) as found:
            work()
            torch.cuda.synchronize()
        kernels = sorted(found.key_averages(), key=lambda event: -event.self_device_time_total)
    except (RuntimeError, AssertionError) as error:  # where the machine cannot
        print(f"no profile: {error}")
        return
    total, count = sum(k.self_device_time_total for k in kernels) / 1e3, sum(k.count for k in kernels)
    print(f"\n{what}: {count} launches and copies, {total:.3f} ms on the GPU")
    for kernel in kernels[:8]:
        print(f"  {kernel.self_device_time_total / 1e3:8.3f} ms  {kernel.count:3d} ×  {kernel.key[:90]}", flush=True)


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

    ways: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "maxmatch": similarity.maxmatch,
        "one by one": one_by_one,
    }
    found = []
    for function in ways.values():
        step(function)
        found.append((function(a, b).detach(), a.grad, b.grad))
    for values in zip(*found, strict=True):
        first, *others = (value for value in values if value is not None)
        for other in others:
            # Of two matchings that tie to the last bit each way may take another: a pair's, so four of 4,800 vectors.
            beyond = float(((first - other).abs() > 1e-5 * max(1.0, float(first.abs().max()))).float().mean())
            assert beyond < 0.02, f"{beyond:.2%} of the scores or gradients differ"
    works: dict[str, Work] = {f"{what}, forward + backward": partial(step, way) for what, way in ways.items()}
    works["  forward alone"] = lambda: similarity.maxmatch(a, b)
    for what, way in ways.items():
        works[f"{what}, as a CUDA graph"] = _recorded(partial(step, way))
    x, y = a.detach().flatten(0, 1), b.detach().flatten(0, 1)
    slopes = x @ y.T
    products: dict[str, Work] = {
        "cosines": lambda: x @ y.T,
        "cosines, transposed": lambda: y @ x.T,
        "gradient of the images": lambda: slopes @ y,
        "gradient of the images, transposed": lambda: (y.T @ slopes.T).T,
        "gradient of the captions": lambda: slopes.T @ x,
        "gradient of the captions, transposed": lambda: (x.T @ slopes).T,
    }
    for what, product in products.items():
        works[f"  product: {what}"] = _recorded(product)
    scores, copy = torch.empty(images, captions, device="cuda"), slopes.clone()
    works["  kernel: matching and slopes"] = _recorded(lambda: triton_backend.block_slopes(copy, scores))
    works["  slopes × gradient"] = _recorded(
        lambda: copy.view(images, size, captions, size).mul_(weights[:, None, :, None])
    )
    rows = []
    for what, times in zip(works, time_each(list(works.values()), 40), strict=True):
        note = f"median {statistics.median(times):.3f} ms"
        if what.endswith("forward + backward"):
            note += f", {_extra_memory(works[what], a, b):.2f} cosine tensors (goals: 0.6 ms, 1.2)"
        rows.append(Row(what, min(times), note=note))
    print_rows(f"GPU, training: {images} × {captions} sets, K={size}, D={width}, float32", rows)
    _kernels_of("maxmatch, forward + backward", partial(step, similarity.maxmatch))


def _extra_memory(work: Work, a: Tensor, b: Tensor) -> float:
    """Beside the gradients, in tensors of all cosines."""
    a.grad = b.grad = None
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    work()
    extra = torch.cuda.max_memory_allocated() - before - a.nbytes - b.nbytes
    return extra / (len(a) * a.shape[1] * len(b) * b.shape[1] * 4)


def _recorded(work: Work) -> Work:
    work()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay
