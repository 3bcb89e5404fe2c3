"""The same ranks from the GPU's kernel, interpreted on the CPU."""

import importlib
import math
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from reference_ranking import assert_agrees, sorted_ranks
from torch import Tensor

from maxmatch.evaluation.ranking import Fold, ranks_of_parts


@pytest.fixture
def kernel_calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Makes the ranking use the kernel here too; the shapes it was called with."""
    if sys.platform != "linux":
        pytest.skip("Triton is made for Linux only")
    kernels = importlib.import_module("maxmatch.matching.triton_backend")
    calls: list[tuple[int, ...]] = []

    def count_levels(scores: Tensor, *levels: Tensor) -> Any:
        calls.append(tuple(scores.shape))
        return kernels.count_levels(scores, *levels)

    seen = SimpleNamespace(count_levels=count_levels)
    monkeypatch.setattr("maxmatch.evaluation.ranking.kernels_for", lambda scores: seen)
    return calls


@pytest.mark.parametrize("images", [1, 3, 40, 64, 65])
@pytest.mark.parametrize("values", [2, 1000])
def test_kernel_agrees_with_sort(images: int, values: int, kernel_calls: list[tuple[int, ...]]) -> None:
    generator = torch.Generator().manual_seed(images)
    scores = torch.randint(-values, values, (images, 3 * images), generator=generator).float()
    assert_agrees(scores, torch.arange(images), torch.arange(images).repeat(3))
    assert kernel_calls == [(images, 3 * images)]


def test_kernel_agrees_with_sort_for_views_and_half_precision(kernel_calls: list[tuple[int, ...]]) -> None:
    wide = torch.randint(4, (20, 100), generator=torch.Generator().manual_seed(0))
    for scores in (wide.float()[::2, 7:37], wide.half()[:10, :30], wide.T.float()[:10].repeat(1, 2)[:, :30]):
        assert_agrees(scores, torch.arange(10), torch.arange(10).repeat(3))
    assert kernel_calls == [(10, 30)] * 3
    assert_agrees(wide.float().T[:10], torch.arange(10), torch.arange(10).repeat(2))


def test_kernel_takes_minus_infinity_for_a_score_like_any_other(kernel_calls: list[tuple[int, ...]]) -> None:
    """And for nothing that lies beyond the edge of the matrix."""
    scores = torch.tensor([[-math.inf, 0.0], [-math.inf, -math.inf]])
    assert_agrees(scores, torch.arange(2), torch.arange(2))
    assert kernel_calls == [(2, 2)]


def test_kernel_ranks_parts_in_blocks(kernel_calls: list[tuple[int, ...]]) -> None:
    scores = torch.randint(4, (12, 36), generator=torch.Generator().manual_seed(0)).float()
    groups = torch.arange(12), torch.arange(12).repeat_interleave(3)
    parts = [Fold(slice(0, 12), slice(0, 36)), Fold(slice(3, 12), slice(9, 36))]
    found = ranks_of_parts(lambda rows: scores[rows], 5, *groups, parts)
    assert kernel_calls == [(5, 36), (2, 27), (5, 36), (5, 27), (2, 36), (2, 27)]
    for part, sides in zip(parts, found, strict=True):
        alone = scores[part.rows, part.columns], groups[0][part.rows], groups[1][part.columns]
        assert sides[0].ranks.tolist() == sorted_ranks(*alone)[0]
        assert sides[1].ties.tolist() == sorted_ranks(alone[0].T, alone[2], alone[1])[1]
