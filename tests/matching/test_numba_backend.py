import math
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import reference
import torch
from reference import random_sets
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.testing import assert_close

from maxmatch.core import machine
from maxmatch.matching import numba_backend, products

close = partial(assert_close, atol=1e-6, rtol=1e-6)

SIZES = range(1, numba_backend.MAX_PLANES + 1)


def threads(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: count)


def scored(blocks: Tensor) -> Tensor:
    """The scores (B, C) of the blocks (B, C, K, K), written into a part of a matrix that is otherwise left alone."""
    rows, columns = blocks.shape[:2]
    whole = torch.full((rows + 3, columns + 9), 7.0)
    out = whole[2 : rows + 2, 5 : columns + 5]
    with ThreadPoolExecutor(2) as pool:
        total = numba_backend.plane_scores(blocks.permute(2, 0, 3, 1).contiguous(), out, pool)
    assert total == pytest.approx(float(out.double().sum()), rel=1e-4, abs=1e-3)
    assert whole.sum() - out.sum() == pytest.approx(7 * (whole.numel() - out.numel()))
    return out


def expected(blocks: Tensor) -> Tensor:
    """From the cosines that the lexicographically first of the best matchings picks."""
    columns = [[reference.first_best_matching(block) for block in row] for row in blocks.numpy()]
    return blocks.double().gather(3, torch.tensor(columns)[..., None])[..., 0].expm1().mean(2)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("rows", "columns", "count"), [(1, 1, 1), (5, 3, 7), (2, 11, 3)])
def test_scores_are_those_of_the_lexicographically_first_of_the_best_matchings(
    size: int, rows: int, columns: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads(monkeypatch, count)
    if size > 6:  # the reference tries all permutations
        rows, columns = 1, min(columns, 2)
    generator = torch.Generator().manual_seed(rows)
    blocks = torch.rand(rows, columns, size, size, generator=generator) * 2 - 1
    # Equal totals of unequal cosines have unequal scores: it matters which of them is taken.
    tied = torch.randint(-2, 3, blocks.shape, generator=generator) / 4
    for some in (blocks, -blocks.abs(), tied):
        close(scored(some).double(), expected(some))


@pytest.mark.parametrize("size", [3, 4])
def test_more_pairs_than_are_worked_on_at_once_are_scored(size: int) -> None:
    blocks = torch.rand(2, 300, size, size, generator=torch.Generator().manual_seed(1)) * 2 - 1
    close(scored(blocks).double(), expected(blocks))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("few", "many", "width"), [(1, 1, 1), (1, 300, 7), (3, 37, 20), (6, 130, 33)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_few_sets_are_scored_with_many_in_one_pass(
    size: int, few: int, many: int, width: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads(monkeypatch, 3)
    monkeypatch.setattr(numba_backend, "_BLOCK", 1000)
    a, b = random_sets(1, few, size, width), random_sets(2, many, size, width).to(dtype)
    out = torch.full((few, many), torch.nan)
    with ThreadPoolExecutor(2) as pool:
        total = numba_backend.few_scores(a.transpose(0, 1).reshape(-1, width), b, out, pool)
    assert math.isfinite(total)
    cosines = torch.einsum("bkd,cld->bckl", a.double(), b.double())
    close(out.double(), torch.from_numpy(np.vectorize(slow_score, signature="(k,k)->()")(cosines.numpy())))


def slow_score(cosines: np.ndarray) -> float:
    return float(np.expm1(cosines[linear_sum_assignment(cosines, maximize=True)]).mean())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("size", [3, 4])
def test_the_sum_shows_a_value_that_is_not_finite(dtype: torch.dtype, value: float, size: int) -> None:
    a, b = random_sets(3, 5, size, 16), random_sets(4, 50, size, 16).to(dtype)
    for place in (0, 31, 49):
        bad = b.clone()
        bad[place, size - 1, 7] = value
        with ThreadPoolExecutor(2) as pool:
            total = numba_backend.few_scores(a.transpose(0, 1).reshape(-1, 16), bad, torch.empty(5, 50), pool)
        assert not math.isfinite(total)


def test_every_float16_is_read_as_what_it_is() -> None:
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.float16)
    every = every[every.isfinite() & (every.abs() < 20)]  # subnormal numbers, too
    many, out = every[:, None, None], torch.empty(1, len(every))
    with ThreadPoolExecutor(1) as pool:
        numba_backend.few_scores(torch.ones(1, 1), many.contiguous(), out, pool)
    assert_close(out[0].double(), every.double().exp() - 1, atol=1e-6, rtol=1e-6)


def test_a_cosine_too_large_for_its_exponential_gives_infinity_and_a_very_small_one_nothing() -> None:
    cosines = torch.tensor([[-1e30, -200.0, -50.0, 0.0, 50.0, 88.0, 89.0, 1e30]])
    out = torch.empty(1, 8)
    with ThreadPoolExecutor(1) as pool:
        assert numba_backend.plane_scores(cosines[None, :, None], out, pool) == torch.inf
    assert_close(out.double(), (cosines.double().exp() - 1).float().double(), rtol=1e-6, atol=1e-6)


def test_where_nothing_can_be_cached_plain_torch_does_it_and_the_cure_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise RuntimeError("cannot cache function '_four_rows': no locator available")

    monkeypatch.setattr(machine, "import_module", refuse)
    with pytest.warns(RuntimeWarning, match=r"no locator available\. Set NUMBA_CACHE_DIR"):
        assert machine.optional_module.__wrapped__("maxmatch.matching.numba_backend") is None


def test_large_jobs_of_single_precision_on_the_cpu_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "optional_module", lambda name: name)
    single = torch.zeros(1)
    assert products.compiled_for(single, pairs=99_999) is None
    assert products.compiled_for(single, pairs=100_000) == "maxmatch.matching.numba_backend"
    assert products.compiled_for(single.half(), pairs=100_000) == "maxmatch.matching.numba_backend"
    assert products.compiled_for(single.double(), pairs=100_000) is None
    assert products.compiled_for(single.to("meta"), pairs=100_000) is None
    assert products.kernels_for(single) is None
