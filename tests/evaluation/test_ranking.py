"""Ranks are those of a full sort in which a wrong answer of equal score stands before the true one."""

import importlib
import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from cost import Cost
from hypothesis import given, settings
from hypothesis import strategies as st
from made_splits import galleries
from reference_ranking import sorted_ranks

from maxmatch.evaluation import evaluate_scores, ranking
from maxmatch.evaluation.ranking import Fold, ranks_both_ways, ranks_of_parts


def assert_agrees(scores, row_groups, column_groups, found=None):
    """Rows and columns, ranks and ties."""
    rows, columns = found[:2] if found else ranks_both_ways(scores, row_groups, column_groups)
    assert (rows.ranks.tolist(), rows.ties.tolist()) == sorted_ranks(scores, row_groups, column_groups)
    assert (columns.ranks.tolist(), columns.ties.tolist()) == sorted_ranks(scores.T, column_groups, row_groups)


def assert_pairs_agree(scores, row_groups, column_groups, found):
    """The ranks of all true pairs, in both directions, each by a list of its own."""
    expected = {
        (row, column): tuple(
            1 + sum(1 for score, other in answers if other != group and score >= scores[row, column])
            for answers in (
                zip(scores[row].tolist(), column_groups.tolist(), strict=True),
                zip(scores[:, column].tolist(), row_groups.tolist(), strict=True),
            )
        )
        for row, group in enumerate(row_groups.tolist())
        for column, other in enumerate(column_groups.tolist())
        if group == other
    }
    row, column, *ranks = (part.tolist() for part in found)
    assert row == sorted(row)
    assert dict(zip(zip(row, column, strict=True), zip(*ranks, strict=True), strict=True)) == expected


@settings(max_examples=60, deadline=None, derandomize=True)
@given(galleries())
def test_ranks_and_ties_are_those_of_a_sort(gallery):
    assert_agrees(*gallery)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(galleries(), st.integers(1, 24))
def test_all_true_pairs_rank_among_the_wrong_answers_in_blocks_of_any_height(gallery, height):
    scores, rows, columns = gallery
    whole = Fold(slice(0, len(rows)), slice(0, len(columns)))
    (found,) = ranks_of_parts(lambda part: scores[part], height, rows, columns, [whole], pairs=True)
    assert_pairs_agree(*gallery, found.pairs)
    assert_agrees(*gallery, found)
    for best, query, ranks in ((found.rows, 0, 2), (found.columns, 1, 3)):
        of_query = [[] for _ in best.ranks]
        for place, rank in zip(found.pairs[query].tolist(), found.pairs[ranks].tolist(), strict=True):
            of_query[place].append(rank)
        assert list(map(min, of_query)) == best.ranks.tolist()


@pytest.mark.parametrize("height", [7, 20])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_large_groups_are_counted_by_sorting_with_their_ties(dtype, height):
    scores = torch.randint(0, 9, (20, 300), generator=torch.Generator().manual_seed(0)).to(dtype)
    scores[:2, ::3] = -math.inf
    groups = torch.arange(20) % 2, torch.arange(300) % 2
    assert len(groups[1]) / 2 > ranking._FEW
    (found,) = ranks_of_parts(lambda part: scores[part], height, *groups, [Fold(slice(0, 20), slice(0, 300))], True)
    assert_pairs_agree(scores, *groups, found.pairs)


def test_large_groups_take_a_sort_of_each_query_and_no_pass_for_each_pair(monkeypatch):
    passes, count = [], np.count_nonzero
    monkeypatch.setattr(np, "count_nonzero", lambda *given, **more: passes.append(1) or count(*given, **more))
    evaluate_scores(np.random.default_rng(0).normal(size=(200, 200)), np.arange(200) % 2, np.arange(200) % 2)
    assert len(passes) < 200  # of 20,000 true pairs


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_pairs_rank_in_every_precision_and_minus_infinity_is_a_score(dtype):
    scores = torch.randn(12, 36, generator=torch.Generator().manual_seed(0)).to(dtype)
    scores[:4, ::2] = -math.inf
    groups = torch.arange(12) // 2, torch.arange(36) % 6
    (found,) = ranks_of_parts(lambda part: scores[part], 5, *groups, [Fold(slice(0, 12), slice(0, 36))], pairs=True)
    assert_pairs_agree(scores, *groups, found.pairs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_ranks_are_those_of_a_sort_in_every_precision(dtype):
    scores = torch.randn(12, 36, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert_agrees(scores, torch.arange(12), torch.arange(12).repeat(3))


def test_ranks_of_a_matrix_by_hand():
    scores = torch.tensor([[0.9, 0.5, 0.9, 0.1], [0.3, 0.8, 0.9, 0.2]])
    rows, columns = ranks_both_ways(scores, torch.tensor([7, 3]), torch.tensor([7, 7, 3, 3]))
    assert (rows.ranks.tolist(), rows.ties.tolist()) == ([2, 1], [1, 0])
    assert (columns.ranks.tolist(), columns.ties.tolist()) == ([1, 2, 2, 1], [0, 0, 1, 0])


def test_collapsed_scores_rank_last_and_tie_with_every_wrong_answer():
    groups = torch.arange(6).repeat_interleave(5)
    rows, columns = ranks_both_ways(torch.full((6, 30), 0.3), torch.arange(6), groups)
    assert (set(rows.ranks.tolist()), set(rows.ties.tolist())) == ({26}, {25})
    assert (set(columns.ranks.tolist()), set(columns.ties.tolist())) == ({6}, {5})


@pytest.mark.parametrize(("rows", "columns"), [(700, 700), (700, 3)])
def test_more_wrong_answers_than_a_byte_holds_are_all_counted(rows, columns):
    groups = torch.arange(rows) % columns
    there, back = ranks_both_ways(torch.zeros(rows, columns), groups, torch.arange(columns))
    assert set(there.ranks.tolist()) == {columns}
    assert back.ties.tolist() == (rows - torch.bincount(groups)).tolist()


@pytest.mark.usefixtures("without_shape_checks")
def test_scores_and_groups_may_be_arrays_or_lists():
    scores = torch.tensor([[0.9, 0.5, 0.9, 0.1], [0.3, 0.8, 0.9, 0.2]])
    groups = torch.tensor([7, 3]), torch.tensor([7, 7, 3, 3])
    expected = str(ranks_both_ways(scores, *groups))
    assert str(ranks_both_ways(scores.numpy(), *(one.numpy() for one in groups))) == expected
    assert str(ranks_both_ways(scores.tolist(), *(one.tolist() for one in groups))) == expected


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("scores", "groups", "message"),
    [
        (torch.zeros(3), [0, 1, 2], "scores: expected .*got torch.float32 of shape 3"),
        (torch.zeros(3, 3, dtype=torch.long), [0, 1, 2], "scores: expected .*int64"),
        (torch.zeros(3, 3), ["a", "b", "c"], "row_groups: expected .*numbers"),
        (torch.zeros(3, 3), np.array(["a", "b", "c"]), "row_groups: expected .*numbers"),
        (torch.zeros(3, 3), [[0, 1, 2]], "row_groups: expected .*3.*got .*1×3"),
        (torch.zeros(3, 3), [0, 1], "row_groups: expected .*3.*got .*2"),
        (torch.zeros(3, 3), [0.0, 1.0, 2.0], "row_groups: expected .*integer.*float64"),
    ],
)
def test_what_is_no_matrix_of_scores_or_no_group_for_each_is_refused(scores, groups, message):
    with pytest.raises(ValueError, match=message):
        ranks_both_ways(scores, groups, torch.arange(3))


def test_minus_infinity_is_a_score_like_any_other():
    assert_agrees(torch.tensor([[-math.inf, 0.0], [-math.inf, -math.inf]]), torch.arange(2), torch.arange(2))


def test_groups_that_are_a_strided_view_raise_no_warning():
    """The image ids of the usual layout are every fifth of the captions'."""
    groups = torch.arange(6, dtype=torch.int32).repeat_interleave(5)
    scores = torch.randn(6, 30, generator=torch.Generator().manual_seed(0))
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # torch warns of some things once per process only; pytest makes them errors
    try:
        assert_agrees(scores, groups[::5], groups)
    finally:
        torch.set_warn_always(before)


@pytest.mark.parametrize(("rows", "columns"), [([0, 1, 2], [0, 1, 1]), ([0, 1, 1], [0, 1, 2]), ([3, 4, 5], [0, 1, 2])])
def test_a_group_on_one_side_only_is_refused(rows, columns):
    with pytest.raises(ValueError, match="one side only"):
        ranks_both_ways(torch.randn(3, 3), torch.tensor(rows), torch.tensor(columns))


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(("rows", "columns"), [(3, 8), (4, 9)])
def test_groups_that_do_not_fit_the_scores_are_refused(rows, columns):
    with pytest.raises(ValueError, match="group"):
        ranks_both_ways(torch.randn(4, 8), torch.arange(rows) % 3, torch.arange(columns) % 3)


@pytest.mark.parametrize("where", [(slice(None), slice(None)), (0, 0), (0, 1)], ids=["all", "true", "wrong"])
@pytest.mark.parametrize("height", [4, 3])
def test_scores_that_are_nan_never_rank_well(where, height):
    """A model that has diverged must not come out as a perfect one, in whatever block it shows."""
    scores, groups = torch.eye(4).flip(0), torch.arange(4).flip(0)
    scores[where] = math.nan
    with pytest.raises(ValueError, match="NaN"):
        ranks_of_parts(lambda rows: scores[rows], height, groups, torch.arange(4), [Fold(slice(0, 4), slice(0, 4))])


@pytest.mark.parametrize(("rows", "pairs"), [(7, 35), (7, 3), (1, 9), (40, 60), (5, 0)])
def test_pairs_are_counted_on_a_gpu_as_on_the_cpu_in_any_order(rows, pairs):
    generator = torch.Generator().manual_seed(0)
    scores = torch.randint(0, 9, (rows, 50), generator=generator).float()
    row = torch.randint(0, rows, (pairs,), generator=generator)
    level = scores[row, torch.randint(0, 50, (pairs,), generator=generator)]
    slow = [int((scores[one] >= least).sum()) for one, least in zip(row.tolist(), level, strict=True)]
    assert ranking._as_high_on_device(scores, row, level).tolist() == slow
    assert ranking._as_high(scores, row, level).tolist() == slow


def test_the_kernel_counts_the_pairs_of_a_row_in_one_pass(kernel_calls):
    generator = torch.Generator().manual_seed(0)
    scores = torch.randint(0, 9, (70, 300), generator=generator).float()
    scores[3, 5:9] = -math.inf
    row = torch.arange(70).repeat(3)
    level = scores[row, torch.randint(0, 300, (210,), generator=generator)]
    for matrix, least in ((scores, level), (scores.half(), level.half()), (scores[:, 20:290], level)):
        slow = [int((matrix[one] >= lowest).sum()) for one, lowest in zip(row.tolist(), least, strict=True)]
        assert ranking._as_high_on_device(matrix, row, least).tolist() == slow
    assert len(kernel_calls) == 3


def test_no_loop_over_queries_and_nothing_larger_than_the_scores():
    costs = []
    for images in (8, 64):
        scores = torch.randn(images, 5 * images)
        with Cost() as cost:
            ranks_both_ways(scores, torch.arange(images), torch.arange(images).repeat_interleave(5))
        assert cost.largest <= scores.numel()
        costs.append(cost.operations)
    assert costs[0] == costs[1]


PARTS = [Fold(slice(0, 12), slice(0, 36)), Fold(slice(0, 5), slice(0, 15)), Fold(slice(3, 12), slice(9, 36))]


def assert_parts_agree(height):
    generator = torch.Generator().manual_seed(height)
    row_groups, column_groups = torch.arange(12), torch.arange(12).repeat_interleave(3)
    scores = torch.randint(4, (12, 36), generator=generator).float()
    found = ranks_of_parts(lambda rows: scores[rows], height, row_groups, column_groups, PARTS, pairs=True)
    for part, sides in zip(PARTS, found, strict=True):
        alone = scores[part.rows, part.columns], row_groups[part.rows], column_groups[part.columns]
        assert_agrees(*alone, sides)
        assert_pairs_agree(*alone, sides.pairs)


@pytest.mark.parametrize("height", [1, 5, 100])
def test_parts_rank_as_if_they_were_alone_in_blocks_of_any_height(height):
    assert_parts_agree(height)


@pytest.mark.parametrize(("height", "asked"), [(10, [0]), (4, [0, 4, 8, 0, 4, 8])])
def test_blocks_are_asked_for_twice_and_a_single_one_once(height, asked):
    scores, groups, starts = torch.randn(10, 10), torch.arange(10), []

    def block(rows):
        starts.append(rows.start)
        return scores[rows]

    ranks_of_parts(block, height, groups, groups, [Fold(slice(0, 10), slice(0, 10))], pairs=True)
    assert starts == asked


@pytest.fixture
def kernel_calls(monkeypatch):
    """Makes the ranking use the GPU's kernel, interpreted on the CPU; the shapes it was called with."""
    if sys.platform != "linux":
        pytest.skip("Triton is made for Linux only")
    kernels = importlib.import_module("maxmatch.matching.triton_backend")
    calls = []

    def count_levels(scores, *levels):
        calls.append(tuple(scores.shape))
        return kernels.count_levels(scores, *levels)

    def count_reaching(scores, levels):
        calls.append(tuple(scores.shape))
        return kernels.count_reaching(scores, levels)

    def count_wrong(scores, *groups):
        calls.append(tuple(scores.shape))
        return kernels.count_wrong(scores, *groups)

    interpreted = SimpleNamespace(count_levels=count_levels, count_reaching=count_reaching, count_wrong=count_wrong)
    monkeypatch.setattr("maxmatch.evaluation.ranking.kernels_for", lambda scores: interpreted)
    return calls


@pytest.mark.parametrize(("images", "values"), [(1, 2), (40, 1000), (65, 2)])
def test_the_kernel_agrees_with_a_sort(images, values, kernel_calls):
    generator = torch.Generator().manual_seed(images)
    scores = torch.randint(-values, values, (images, 3 * images), generator=generator).float()
    assert_agrees(scores, torch.arange(images), torch.arange(images).repeat(3))
    assert kernel_calls == [(images, 3 * images)]


def test_the_kernel_agrees_with_a_sort_for_views_half_precision_and_infinity(kernel_calls):
    wide = torch.randint(4, (20, 100), generator=torch.Generator().manual_seed(0)).float()
    wide[3, 9:14] = -math.inf  # a score like any other, and nothing that lies beyond the edge
    for scores in (wide[::2, 7:37], wide.half()[:10, :30], wide.T[:10].repeat(1, 2)[:, :30]):
        assert_agrees(scores, torch.arange(10), torch.arange(10).repeat(3))
    assert kernel_calls == [(10, 30)] * 3
    assert_agrees(wide.T[:10], torch.arange(10), torch.arange(10).repeat(2))


def test_the_kernel_ranks_parts_in_blocks(kernel_calls):
    assert_parts_agree(5)
    assert kernel_calls[:4] == [(5, 36), (5, 15), (2, 27), (5, 36)]


def test_the_kernel_refuses_nan_and_groups_on_one_side(kernel_calls):
    scores = torch.zeros(3, 4)
    with pytest.raises(ValueError, match="on one side only"):
        ranks_both_ways(scores, torch.arange(3), torch.tensor([0, 1, 2, 3]))
    with pytest.raises(ValueError, match="on one side only"):
        ranks_both_ways(scores, torch.tensor([0, 1, 4]), torch.tensor([0, 1, 1, 1]))
    scores[1, 2] = math.nan
    with pytest.raises(ranking.NotFiniteError, match="NaN"):
        ranks_both_ways(scores, torch.arange(3), torch.tensor([0, 1, 2, 2]))
    assert kernel_calls == [(3, 4)] * 3
