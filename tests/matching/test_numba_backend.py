from concurrent.futures import ThreadPoolExecutor

import pytest
import reference
import torch
from torch import Tensor

from maxmatch.core import machine
from maxmatch.matching import products
from maxmatch.matching.numba_backend import matched_cosines, mean_scores


def matched(blocks: Tensor) -> Tensor:
    """The matched cosines (B, C, 4) of the blocks (B, C, 4, 4)."""
    product = blocks.permute(2, 0, 3, 1).contiguous()
    result = torch.full((4, *blocks.shape[:2]), torch.nan)
    with ThreadPoolExecutor(2) as pool:
        matched_cosines(product, result, pool)
    return result.permute(1, 2, 0)


def expected(blocks: Tensor) -> Tensor:
    """The cosines that the lexicographically first of the best matchings picks."""
    columns = [[reference.first_best_matching(block) for block in row] for row in blocks.numpy()]
    return blocks.gather(3, torch.tensor(columns)[..., None])[..., 0]


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 40), (40, 1), (20, 33)])
@pytest.mark.parametrize("threads", [1, 3, 7])
def test_matched_cosines_are_those_of_the_best_matching(
    rows: int, columns: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    generator = torch.Generator().manual_seed(rows)
    shape = (rows, columns, 4, 4)
    blocks = torch.rand(shape, generator=generator) * 2 - 1
    tied = torch.randint(-2, 3, shape, generator=generator) / 4  # of equal totals the lexicographically first is taken
    for some in (blocks, -blocks.abs(), tied):
        assert torch.equal(matched(some), expected(some))


@pytest.mark.parametrize("threads", [1, 3, 7])
def test_scores_are_the_mean_of_four_exponentials_less_1_in_a_part_of_a_matrix(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    exponentials = torch.rand(4, 20, 33, generator=torch.Generator().manual_seed(0)).exp()
    whole = torch.full((24, 50), 7.0)
    out = whole[2:22, 5:38]
    with ThreadPoolExecutor(2) as pool:
        total = mean_scores(exponentials, out, pool)
        torch.testing.assert_close(out, exponentials.mean(0) - 1, rtol=0, atol=1e-6)
        assert total == pytest.approx(float(out.double().sum()))
        assert bool((whole[:2] == 7).all() and (whole[:, :5] == 7).all() and (whole[:, 38:] == 7).all())
        exponentials[2, 19, 3] = torch.inf
        assert mean_scores(exponentials, out, pool) == torch.inf


def test_where_nothing_can_be_cached_plain_torch_does_it_and_the_cure_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise RuntimeError("cannot cache function '_match_rows': no locator available")

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
