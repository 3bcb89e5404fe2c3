"""Ranks are those of a full sort in which a wrong answer of equal score stands before the true one."""

import math
from typing import Any

import pytest
import torch
from cost import Cost
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_ranking import assert_agrees
from torch import Tensor

from maxmatch.evaluation.ranking import Fold, ranks_both_ways, ranks_of_parts

quick = settings(max_examples=40, deadline=None, derandomize=True)


@st.composite
def galleries(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor]:
    """Groups of any size on either side, in any order, with any ids; scores of few values or of many."""
    ids = draw(st.lists(st.integers(-(10**12), 10**12), min_size=1, max_size=6, unique=True))
    rows, columns = (
        draw(st.permutations([group for group in ids for _ in range(draw(st.integers(1, 4)))])) for _ in range(2)
    )
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    shape = len(rows), len(columns)
    values = draw(st.sampled_from([1, 2, 3, 10, None]))
    if values is None:
        scores = torch.randn(shape, generator=generator)
    else:
        scores = torch.randint(values, shape, generator=generator).float()
    return scores, torch.tensor(rows), torch.tensor(columns)


# --- agreement with the sort -----------------------------------------------------------------------------------------


@quick
@given(galleries())
def test_agrees_with_sort(gallery: tuple[Tensor, Tensor, Tensor]) -> None:
    assert_agrees(*gallery)


@pytest.mark.parametrize("captions", [1, 2, 5])
@pytest.mark.parametrize("values", [2, 5, 1000])
def test_agrees_with_sort_for_the_usual_layout(captions: int, values: int) -> None:
    generator = torch.Generator().manual_seed(captions)
    groups = torch.arange(40).repeat_interleave(captions)
    scores = torch.randint(values, (40, 40 * captions), generator=generator).double() / values
    assert_agrees(scores, torch.arange(40), groups)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_agrees_with_sort_in_every_precision(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(12, 36, generator=generator).to(dtype)
    assert_agrees(scores, torch.arange(12), torch.arange(12).repeat(3))


def test_value_by_hand() -> None:
    scores = torch.tensor([[0.9, 0.5, 0.9, 0.1], [0.3, 0.8, 0.9, 0.2]])
    rows, columns = ranks_both_ways(scores, torch.tensor([7, 3]), torch.tensor([7, 7, 3, 3]))
    assert (rows.ranks.tolist(), rows.ties.tolist()) == ([2, 1], [1, 0])
    assert (columns.ranks.tolist(), columns.ties.tolist()) == ([1, 2, 2, 1], [0, 0, 1, 0])


# --- properties ------------------------------------------------------------------------------------------------------


@quick
@given(galleries())
def test_columns_rank_as_rows_of_the_transpose(gallery: tuple[Tensor, Tensor, Tensor]) -> None:
    scores, row_groups, column_groups = gallery
    rows, columns = ranks_both_ways(scores, row_groups, column_groups)
    back_rows, back_columns = ranks_both_ways(scores.T, column_groups, row_groups)
    for there, back in ((rows, back_columns), (columns, back_rows)):
        assert there.ranks.tolist() == back.ranks.tolist()
        assert there.ties.tolist() == back.ties.tolist()


@quick
@given(galleries(), st.integers(0, 2**16))
def test_order_of_queries_and_answers_is_irrelevant(gallery: tuple[Tensor, Tensor, Tensor], seed: int) -> None:
    """Ties too: no answer gains by standing first or last."""
    scores, row_groups, column_groups = gallery
    generator = torch.Generator().manual_seed(seed)
    order, other = (torch.randperm(n, generator=generator) for n in scores.shape)
    rows, columns = ranks_both_ways(scores, row_groups, column_groups)
    new_rows, new_columns = ranks_both_ways(scores[order][:, other], row_groups[order], column_groups[other])
    assert new_rows.ranks.tolist() == rows.ranks[order].tolist()
    assert new_rows.ties.tolist() == rows.ties[order].tolist()
    assert new_columns.ranks.tolist() == columns.ranks[other].tolist()
    assert new_columns.ties.tolist() == columns.ties[other].tolist()


@quick
@given(galleries())
def test_rank_without_its_ties_is_the_rank_of_an_optimist(gallery: tuple[Tensor, Tensor, Tensor]) -> None:
    """The pessimist's rank lowered by the ties is 1 + the number of answers strictly above, all of them wrong."""
    scores, row_groups, column_groups = gallery
    rows, _ = ranks_both_ways(scores, row_groups, column_groups)
    true = row_groups[:, None] == column_groups
    best = scores.masked_fill(~true, -math.inf).amax(1, keepdim=True)
    assert (rows.ranks - rows.ties).tolist() == (1 + (scores > best).sum(1)).tolist()


def test_collapsed_scores_rank_last_and_tie_with_every_wrong_answer() -> None:
    groups = torch.arange(6).repeat_interleave(5)
    rows, columns = ranks_both_ways(torch.full((6, 30), 0.3), torch.arange(6), groups)
    assert rows.ranks.tolist() == [26] * 6
    assert rows.ties.tolist() == [25] * 6
    assert columns.ranks.tolist() == [6] * 30
    assert columns.ties.tolist() == [5] * 30


def test_more_wrong_answers_than_a_byte_counts_are_all_counted() -> None:
    for rows, columns in ((700, 700), (700, 3)):
        groups = torch.arange(rows) % columns
        there, back = ranks_both_ways(torch.zeros(rows, columns), groups, torch.arange(columns))
        assert set(there.ranks.tolist()) == {columns}
        wrong = rows - torch.bincount(groups)
        assert back.ranks.tolist() == (wrong + 1).tolist()
        assert back.ties.tolist() == wrong.tolist()


def test_perfect_scores_rank_first_without_ties() -> None:
    groups = torch.tensor([4, 4, 9, 1, 9, 4])
    images = torch.tensor([9, 1, 4])
    for side in ranks_both_ways((images[:, None] == groups).float(), images, groups):
        assert set(side.ranks.tolist()) == {1}
        assert set(side.ties.tolist()) == {0}


def test_all_in_one_group_has_no_wrong_answer() -> None:
    for side in ranks_both_ways(torch.randn(3, 5), torch.zeros(3).long(), torch.zeros(5).long()):
        assert set(side.ranks.tolist()) == {1}
        assert set(side.ties.tolist()) == {0}


def test_one_pair_ranks_first() -> None:
    for side in ranks_both_ways(torch.zeros(1, 1), torch.tensor([5]), torch.tensor([5])):
        assert (side.ranks.tolist(), side.ties.tolist()) == ([1], [0])


def test_minus_infinity_is_a_score_like_any_other() -> None:
    scores = torch.tensor([[-math.inf, 0.0], [-math.inf, -math.inf]])
    assert_agrees(scores, torch.arange(2), torch.arange(2))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_groups_taken_from_every_fifth_caption_raise_no_warning(dtype: torch.dtype) -> None:
    """The image ids of the usual layout are a strided view of the captions'."""
    groups = torch.arange(6, dtype=dtype).repeat_interleave(5)
    scores = torch.randn(6, 30, generator=torch.Generator().manual_seed(0))
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # torch says some things once a process only; pytest makes them errors
    try:
        assert_agrees(scores, groups[::5], groups)
    finally:
        torch.set_warn_always(before)


# --- wrong use -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row_groups", "column_groups"),
    [([0, 1, 2], [0, 1, 1]), ([0, 1, 1], [0, 1, 2]), ([0, 1, 9], [0, 1, 2]), ([3, 4, 5], [0, 1, 2])],
)
def test_group_on_one_side_only_is_refused(row_groups: list[int], column_groups: list[int]) -> None:
    with pytest.raises(ValueError, match="one side only"):
        ranks_both_ways(torch.randn(3, 3), torch.tensor(row_groups), torch.tensor(column_groups))


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(("rows", "columns"), [(3, 8), (5, 8), (4, 7), (4, 9)])
def test_groups_that_do_not_go_with_the_scores_are_refused(rows: int, columns: int) -> None:
    """Scores of 4 × 8; every group is on both sides."""
    with pytest.raises(ValueError, match="group"):
        ranks_both_ways(torch.randn(4, 8), torch.arange(rows) % 3, torch.arange(columns) % 3)


@pytest.mark.parametrize("where", [(slice(None), slice(None)), (0, 0), (0, 1)], ids=["all", "true", "wrong"])
def test_scores_that_are_no_numbers_never_rank_well(where: tuple[Any, Any]) -> None:
    """A model that has diverged must not come out as a perfect one."""
    scores = torch.eye(4)
    scores[where] = math.nan
    with pytest.raises(ValueError, match=r"(?i)nan|finite"):
        ranks_both_ways(scores, torch.arange(4), torch.arange(4))


# --- cost ------------------------------------------------------------------------------------------------------------


def test_no_loop_over_queries_and_nothing_larger_than_the_scores() -> None:
    costs = []
    for images in (8, 64):
        groups = torch.arange(images).repeat_interleave(5)
        scores = torch.randn(images, 5 * images)
        with Cost() as cost:
            ranks_both_ways(scores, torch.arange(images), groups)
        assert cost.largest <= scores.numel()
        costs.append(cost.operations)
    assert costs[0] == costs[1]


# --- in parts and in blocks ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("height", [1, 5, 12, 100])
@pytest.mark.parametrize("values", [2, 1000])
def test_parts_rank_as_if_they_were_alone_in_blocks_of_any_height(height: int, values: int) -> None:
    generator = torch.Generator().manual_seed(height)
    row_groups, column_groups = torch.arange(12), torch.arange(12).repeat_interleave(3)
    scores = torch.randint(values, (12, 36), generator=generator).float()
    parts = [Fold(slice(0, 12), slice(0, 36)), Fold(slice(0, 5), slice(0, 15)), Fold(slice(3, 12), slice(9, 36))]
    found = ranks_of_parts(lambda rows: scores[rows], height, row_groups, column_groups, parts)
    for part, sides in zip(parts, found, strict=True):
        alone = scores[part.rows, part.columns], row_groups[part.rows], column_groups[part.columns]
        for ours, theirs in zip(sides, ranks_both_ways(*alone), strict=True):
            assert (ours.ranks.tolist(), ours.ties.tolist()) == (theirs.ranks.tolist(), theirs.ties.tolist())
        assert_agrees(*alone)


def test_blocks_are_asked_for_twice_and_a_single_one_once() -> None:
    scores, groups = torch.randn(10, 10), torch.arange(10)
    for height, asked in ((10, [0]), (4, [0, 4, 8, 0, 4, 8])):
        starts: list[int] = []

        def block(rows: slice, starts: list[int] = starts) -> Tensor:
            starts.append(rows.start)
            return scores[rows]

        ranks_of_parts(block, height, groups, groups, [Fold(slice(0, 10), slice(0, 10))])
        assert starts == asked


def test_scores_that_are_no_numbers_in_any_block_are_refused() -> None:
    scores, groups = torch.randn(10, 10), torch.arange(10)
    scores[7, 2] = math.nan
    with pytest.raises(ValueError, match="NaN"):
        ranks_of_parts(lambda rows: scores[rows], 3, groups, groups, [Fold(slice(0, 10), slice(0, 10))])
