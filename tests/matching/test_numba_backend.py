from concurrent.futures import ThreadPoolExecutor

import pytest
import reference
import torch
from torch import Tensor
from torch.testing import assert_close

from maxmatch.matching import similarity
from maxmatch.matching.numba_backend import matched_cosines


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


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 40), (40, 1), (3, 17), (20, 33)])
def test_matched_cosines_are_those_of_the_best_matching(rows: int, columns: int) -> None:
    blocks = torch.rand(rows, columns, 4, 4, generator=torch.Generator().manual_seed(rows)) * 2 - 1
    assert torch.equal(matched(blocks), expected(blocks))


def test_all_negative_cosines_are_matched() -> None:
    blocks = -torch.rand(10, 30, 4, 4, generator=torch.Generator().manual_seed(1))
    assert torch.equal(matched(blocks), expected(blocks))


def test_of_equal_totals_the_lexicographically_first_is_taken() -> None:
    blocks = torch.randint(-2, 3, (40, 50, 4, 4), generator=torch.Generator().manual_seed(2)) / 4
    assert torch.equal(matched(blocks), expected(blocks))


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_result_does_not_depend_on_the_number_of_threads(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = torch.rand(5, 20, 4, 4, generator=torch.Generator().manual_seed(3)) * 2 - 1
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert torch.equal(matched(blocks), expected(blocks))


def test_matched_total_is_symmetric() -> None:
    blocks = torch.rand(10, 20, 4, 4, generator=torch.Generator().manual_seed(4)) * 2 - 1
    assert_close(matched(blocks).sum(-1), matched(blocks.transpose(2, 3).contiguous()).sum(-1))


def test_where_nothing_can_be_cached_plain_torch_does_it_and_the_cure_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise RuntimeError("cannot cache function '_match_rows': no locator available")

    monkeypatch.setattr(similarity, "import_module", refuse)
    with pytest.warns(RuntimeWarning, match=r"no locator available\. Set NUMBA_CACHE_DIR"):
        assert similarity._module.__wrapped__("maxmatch.matching.numba_backend") is None


def test_large_jobs_of_single_precision_on_the_cpu_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(similarity, "_module", lambda name: name)
    single = torch.zeros(1)
    assert similarity.compiled_for(single, pairs=99_999) is None
    assert similarity.compiled_for(single, pairs=100_000) == "maxmatch.matching.numba_backend"
    assert similarity.compiled_for(single.half(), pairs=100_000) == "maxmatch.matching.numba_backend"
    assert similarity.compiled_for(single.double(), pairs=100_000) is None
    assert similarity.compiled_for(single.to("meta"), pairs=100_000) is None
    assert similarity.kernels_for(single) is None
