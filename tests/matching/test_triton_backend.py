"""The kernels, interpreted on the CPU: one call takes a quarter of a second, so that sizes are small."""

import math
import sys
from types import SimpleNamespace

import pytest
import reference
import torch
from reference import random_sets
from torch import Tensor
from torch.testing import assert_close

if sys.platform != "linux":
    pytest.skip("Triton is made for Linux only", allow_module_level=True)

from maxmatch import score_matrix, top_hits
from maxmatch.core.checks import NotFiniteError
from maxmatch.matching import scoring, similarity, triton_backend, triton_fused


def random_planes(seed: int, size: int, rows: int, columns: int) -> Tensor:
    """Cosines (K, K, B, C) in the layout of a product of slot-major vectors."""
    product = torch.rand(size, rows, size, columns, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    return product.transpose(1, 2)


def tied_planes(seed: int, size: int, rows: int, columns: int) -> Tensor:
    """Cosines in quarters: many matchings have the same total."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randint(-2, 3, (size, rows, size, columns), generator=generator) / 4).transpose(1, 2)


def best_scores(planes: Tensor) -> Tensor:
    """The scores of planes in general position, block by block."""
    blocks = planes.permute(2, 3, 0, 1).double().numpy()
    return torch.tensor([[reference.maxmatch_of(block) for block in row] for row in blocks], dtype=torch.float64)


# --- planes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", range(1, 9))
def test_scores_of_planes_are_those_of_the_best_matching(size: int) -> None:
    rows, columns = (1, 300) if size in (3, 6) else (2, 31)  # 300: more than a program takes
    planes = random_planes(size, size, rows, columns)
    matrix = torch.full((rows + 2, columns + 10), torch.nan)
    triton_backend.plane_scores(planes, matrix[1:-1, 5:-5])
    assert_close(matrix[1:-1, 5:-5].double(), best_scores(planes), atol=2e-6, rtol=1e-6)
    assert int(matrix.isnan().sum()) == matrix.numel() - rows * columns  # nothing else was written to


@pytest.mark.parametrize("size", range(1, 9))
def test_the_assignment_of_planes_is_one_to_one_and_best(size: int) -> None:
    planes = torch.cat([random_planes(10 + size, size, 1, 25), tied_planes(20 + size, size, 1, 60)], 3)
    chosen = triton_backend.plane_assignment(planes)
    assert chosen.shape == (size, 1, 85)
    for block, columns in zip(planes[:, :, 0].permute(2, 0, 1).numpy(), chosen[:, 0].T.tolist(), strict=True):
        if size <= 4:  # then of equal totals the lexicographically first is chosen
            assert columns == reference.first_best_matching(block)
        assert sorted(columns) == list(range(size))
        total = sum(block[row, column] for row, column in enumerate(columns))
        assert total == pytest.approx(reference.best_total(block), abs=1e-5)


def test_more_columns_than_an_axis_of_the_grid_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_backend, "_MOST_PROGRAMS", 2)
    planes = random_planes(27, 4, 1, 2 * 256 + 2)  # a third program
    scores, chosen = torch.empty(1, 514), triton_backend.plane_assignment(planes)
    triton_backend.plane_scores(planes, scores)
    assert_close(scores[:, 500:].double(), best_scores(planes[..., 500:]), atol=2e-6, rtol=1e-6)
    assert_close(planes.gather(1, chosen[:, None])[:, 0].exp().mean(0) - 1, scores)
    above, _, odd = triton_backend.count_wrong(scores, torch.tensor([-1]), torch.arange(514))  # no pair is true
    assert above.tolist() == [514] + [1] * 514
    assert odd.tolist() == [0, 515]


# --- blocks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (2, 30), (1, 130)])
@pytest.mark.parametrize("tied", [False, True])
def test_scores_and_gradient_are_those_of_the_first_best_matching(rows: int, columns: int, tied: bool) -> None:
    planes = (tied_planes if tied else random_planes)(30, 4, rows, columns)
    cosines, scores = planes.permute(2, 0, 3, 1).reshape(4 * rows, 4 * columns).clone(), torch.empty(rows, columns)
    triton_backend.block_scores(cosines, scores)
    slopes, totals = torch.zeros(rows, columns, 4, 4), torch.empty(rows, columns)
    for i in range(rows):
        for j in range(columns):
            block = planes[:, :, i, j]
            for row, column in enumerate(reference.first_best_matching(block.numpy())):
                slopes[i, j, row, column] = block[row, column].exp() / 4
            totals[i, j] = slopes[i, j].sum() - 1
    assert_close(scores, totals)
    weights = torch.linspace(-1, 2, rows * columns).view(rows, columns)
    for grad in (weights, weights.T.contiguous().T, weights[:1, :1].expand(rows, columns)):
        found = cosines.clone()
        triton_backend.block_gradient(found, grad)
        assert_close(found.view(rows, 4, columns, 4).transpose(1, 2), slopes * grad[:, :, None, None])


# --- counting -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 130), (129, 2)])
def test_scores_that_reach_a_level_are_counted_by_row_and_by_column(rows: int, columns: int) -> None:
    # In quarters, and levels among them: many scores equal their level.
    matrix = torch.randint(-2, 3, (rows + 1, columns + 3), generator=torch.Generator().manual_seed(50)) / 4
    level = torch.randint(-2, 3, (rows + columns,), generator=torch.Generator().manual_seed(51)) / 4
    scores = matrix[1:, 2:-1]
    above, equal, no_numbers = triton_backend.count_levels(scores, level)
    lines = [*scores.tolist(), *scores.T.tolist()]
    assert above.tolist() == [
        sum(value > limit for value in line) for line, limit in zip(lines, level.tolist(), strict=True)
    ]
    assert equal.tolist() == [line.count(limit) for line, limit in zip(lines, level.tolist(), strict=True)]
    assert int(no_numbers) == 0


def test_infinite_levels_count_only_the_matrix_and_nan_is_counted_apart() -> None:
    scores = torch.tensor([[-torch.inf, 0.0, torch.nan], [torch.inf, -torch.inf, torch.nan]])
    level = torch.tensor([-torch.inf, torch.inf, -torch.inf, torch.inf, -torch.inf])
    above, equal, no_numbers = triton_backend.count_levels(scores, level)
    assert above.tolist() == [1, 0, 1, 0, 0]
    assert equal.tolist() == [1, 1, 1, 0, 0]
    assert int(no_numbers) == 2


@pytest.mark.parametrize(
    ("rows", "columns", "tile"),
    [(1, 1, (64, 128, 4)), (3, 130, (64, 128, 4)), (70, 9, (32, 32, 4)), (5, 132, (64, 128, 4))],
)
def test_wrong_answers_that_reach_the_best_true_one_are_counted(
    rows: int, columns: int, tile: tuple[int, int, int]
) -> None:
    generator = torch.Generator().manual_seed(52)
    scores = torch.randint(-2, 3, (rows + 1, columns + 8), generator=generator)[1:, 4:-4] / 4
    groups = torch.randint(-1, 2, (rows,), generator=generator), torch.randint(-1, 2, (columns,), generator=generator)
    above, ties, odd = triton_backend.count_wrong(scores, *groups, tile=tile)
    lines = [*zip(scores.tolist(), groups[0].tolist(), [groups[1].tolist()] * rows, strict=True)]
    lines += [*zip(scores.T.tolist(), groups[1].tolist(), [groups[0].tolist()] * columns, strict=True)]
    lonely = 0
    for line, (values, group, others) in enumerate(lines):
        best = max((v for v, other in zip(values, others, strict=True) if other == group), default=-math.inf)
        wrong = [v for v, other in zip(values, others, strict=True) if other != group]
        assert int(above[line]) == sum(v >= best for v in wrong)
        assert int(ties[line]) == wrong.count(best)
        lonely += best == -math.inf
    assert odd.tolist() == [0, lonely]


# --- scoring through the kernels ------------------------------------------------------------------------------------


@pytest.fixture(params=["fused", "in place", "planes"])
def on_kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Scoring takes the way it takes on a GPU: from Hopper on, before, or in full float32."""
    chip = (8, 0) if request.param == "in place" else (9, 0)
    monkeypatch.setattr(triton_fused, "_device", lambda _: (chip, 3))
    module = SimpleNamespace(
        can_fuse=lambda sets: request.param != "planes" and sets.shape[1] == 4,
        pack_rows=triton_backend.pack_rows,
        pack_columns=triton_backend.pack_columns,
        fused_scores=triton_backend.fused_scores,
        plane_scores=triton_backend.plane_scores,
        MAX_PLANES=triton_backend.MAX_PLANES,
    )
    monkeypatch.setattr(scoring, "kernels_for", lambda _: module)
    return request.param


@pytest.mark.usefixtures("on_kernels")
def test_scoring_through_the_kernels_changes_no_score() -> None:
    a, b = random_sets(8, 10, 4, 16), random_sets(9, 12, 4, 16)
    expected = similarity.maxmatch(a, b)
    assert_close(score_matrix(a * 3, b.numpy() * 3, normalise=True), expected, atol=1e-5, rtol=1e-5)
    hits = top_hits(a, b, 3, max_memory=20_000)
    assert_close(hits.scores, expected.topk(3).values, atol=1e-5, rtol=1e-5)
    a_mask = reference.random_mask(10, 10, 4)
    assert_close(score_matrix(a, b, a_mask=a_mask), similarity.maxmatch(a, b, a_mask))


@pytest.mark.usefixtures("on_kernels")
def test_scoring_through_the_kernels_names_an_item_that_is_not_finite() -> None:
    good, bad = random_sets(11, 10, 4, 16), random_sets(12, 12, 4, 16)
    bad[9, 2, 5] = torch.nan
    with pytest.raises(NotFiniteError, match=r"^a: item 9 holds NaN or infinite values"):
        score_matrix(bad, good)
    with pytest.raises(NotFiniteError, match=r"^b: item 9 holds NaN or infinite values"):
        score_matrix(good, bad)


@pytest.mark.parametrize("size", [3, 8])
def test_few_rows_go_through_the_kernel_for_planes_unpacked(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, columns = random_sets(3, 2, size, 64), random_sets(4, 50, size, 64)
    monkeypatch.setattr(triton_fused, "_packed", None)
    monkeypatch.setattr(scoring, "kernels_for", lambda _: triton_backend)
    expected = reference.scores("maxmatch", rows, columns)
    assert_close(score_matrix(rows, columns).double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("size", [3, 6])
def test_maxmatch_through_the_kernels_has_the_same_score_and_gradient(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = random_sets(13, 3, size, 8).requires_grad_(), random_sets(14, 5, size, 8).requires_grad_()
    expected = similarity.maxmatch(a, b)
    monkeypatch.setattr(similarity, "kernels_for", lambda _: triton_backend)
    scores = similarity.maxmatch(a, b)
    assert_close(scores, expected)
    assert_close(torch.autograd.grad(scores.sum(), (a, b)), torch.autograd.grad(expected.sum(), (a, b)))


@pytest.mark.parametrize(("rows", "columns", "used"), [(3, 3, 1), (8, 8, 1), (2, 3, 0), (9, 9, 0)])
def test_maxmatch_goes_through_the_kernels_for_sets_of_equal_size_up_to_eight(
    rows: int, columns: int, used: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def counted(planes: Tensor) -> Tensor:
        calls.append(planes.shape)
        return triton_backend.plane_assignment(planes)

    module = SimpleNamespace(plane_assignment=counted, MAX_PLANES=triton_backend.MAX_PLANES)
    monkeypatch.setattr(similarity, "kernels_for", lambda _: module)
    similarity.maxmatch(random_sets(15, 3, rows, 6), random_sets(16, 3, columns, 6))
    assert len(calls) == used
