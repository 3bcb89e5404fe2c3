import math

import numpy as np
import pytest
import reference
import torch
from torch import Tensor

from maxmatch.matching import assignment, similarity
from maxmatch.matching.assignment import maximal_assignment
from maxmatch.matching.similarity import match_own

SOLVERS = {"table": (16, 16), "subsets": (0, 16), "hungarian": (0, 0)}


@pytest.fixture(params=SOLVERS)
def solver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each of the three algorithms in turn, whatever the size of the blocks."""
    table, subsets = SOLVERS[request.param]
    monkeypatch.setattr(assignment, "_TABLE_UP_TO", table)
    monkeypatch.setattr(assignment, "_SUBSETS_UP_TO", subsets)
    return request.param


def random_blocks(seed: int, count: int, rows: int, columns: int) -> Tensor:
    """Cosines of all kinds: of either sign, all negative, with ties."""
    generator = torch.Generator().manual_seed(seed)
    blocks = torch.rand(count, rows, columns, generator=generator) * 2 - 1
    blocks[count // 2 :] = -blocks[count // 2 :].abs()
    ties = slice(0, count, 12)
    blocks[ties] = (blocks[ties] * 4).round() / 4
    return blocks


def tied_blocks(seed: int, count: int, rows: int, columns: int) -> Tensor:
    """Small integers / 4: many matchings have the same total, and every total is exact."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-2, 3, (count, rows, columns), generator=generator) / 4


def masks_for(seed: int, blocks: Tensor) -> tuple[Tensor, Tensor]:
    count, rows, columns = blocks.shape
    return reference.random_mask(seed, count, rows), reference.random_mask(seed + 1, count, columns)


def assert_best(blocks: Tensor, *masks: Tensor) -> None:
    """Every block's choice is a matching and has the largest total, by SciPy on the real rows and columns."""
    chosen = maximal_assignment(blocks, *masks)
    row_mask, col_mask = masks or (torch.ones(blocks.shape[:2]).bool(), torch.ones(len(blocks), blocks.shape[2]).bool())
    everything = zip(blocks.double().numpy(), chosen.tolist(), row_mask.numpy(), col_mask.numpy(), strict=True)
    for block, columns, rows_real, cols_real in everything:
        assert reference.is_matching(columns, rows_real, cols_real), (block, columns)
        total = sum(block[i, j] for i, j in enumerate(columns) if j != -1)
        assert abs(total - reference.best_total(block[rows_real][:, cols_real])) < 1e-5, (block, columns)


@pytest.mark.parametrize("rows", range(1, 17))
def test_assignment_agrees_with_scipy(rows: int) -> None:
    for columns in range(1, 17):
        seed = 100 * rows + columns
        blocks = random_blocks(seed, 80, rows, columns)  # 16 · 16 · 80 = 20,480 blocks in all
        assert_best(blocks)
        assert_best(blocks[::8], *masks_for(seed, blocks[::8]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("size", [2, 4, 6, 10])
def test_totals_are_compared_in_at_least_single_precision(size: int, dtype: torch.dtype) -> None:
    assert_best((torch.rand(100, size, size, generator=torch.Generator().manual_seed(size)) * 2 - 1).to(dtype))


@pytest.mark.usefixtures("solver")
@pytest.mark.parametrize("rows", range(1, 6))
def test_among_equal_totals_the_lexicographically_first_is_given(rows: int) -> None:
    for columns in range(1, 6):
        blocks = tied_blocks(10 * rows + columns, 40, rows, columns)
        expected = [reference.first_best_matching(block) for block in blocks.numpy()]
        assert maximal_assignment(blocks).tolist() == expected
        row_mask, col_mask = masks_for(10 * rows + columns, blocks)
        masked = torch.full((40, rows), -1)
        for block, row_real, col_real, row in zip(blocks, row_mask, col_mask, masked, strict=True):
            places = col_real.nonzero()[:, 0].tolist()
            best = reference.first_best_matching(block[row_real][:, col_real].numpy())
            row[row_real] = torch.tensor([-1 if column == -1 else places[column] for column in best])
        assert maximal_assignment(blocks, row_mask, col_mask).tolist() == masked.tolist()


@pytest.mark.parametrize("size", [6, 7, 8, 9, 12, 16])
def test_equal_cosines_are_matched_in_order(size: int) -> None:
    chosen = maximal_assignment(torch.full((3, size, size), 0.3))
    assert chosen.tolist() == [list(range(size))] * 3


@pytest.mark.parametrize(("rows", "columns"), [(6, 6), (8, 5), (5, 7), (7, 7)])
def test_the_three_algorithms_agree_beyond_what_brute_force_can_try(
    rows: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = tied_blocks(1, 40, rows, columns)
    masks = masks_for(2, blocks)
    by_subsets = maximal_assignment(blocks), maximal_assignment(blocks, *masks)
    monkeypatch.setattr(assignment, "_SUBSETS_UP_TO", 0)
    assert torch.equal(maximal_assignment(blocks), by_subsets[0])
    assert torch.equal(maximal_assignment(blocks, *masks), by_subsets[1])


@pytest.mark.usefixtures("solver")
def test_a_mask_that_is_left_out_is_all_true() -> None:
    blocks = tied_blocks(4, 100, 4, 3)
    row_mask, col_mask = masks_for(5, blocks)
    rows, columns = torch.ones_like(row_mask), torch.ones_like(col_mask)
    assert torch.equal(maximal_assignment(blocks), maximal_assignment(blocks, rows, columns))
    assert torch.equal(maximal_assignment(blocks, row_mask), maximal_assignment(blocks, row_mask, columns))
    assert torch.equal(maximal_assignment(blocks, col_mask=col_mask), maximal_assignment(blocks, rows, col_mask))


@pytest.mark.usefixtures("solver")
def test_result_does_not_depend_on_how_blocks_are_cut_into_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = tied_blocks(7, 50, 4, 4)
    whole = maximal_assignment(blocks)
    monkeypatch.setattr(assignment, "_CHUNK_BYTES", 2**13)
    assert torch.equal(maximal_assignment(blocks), whole)


@pytest.mark.parametrize("batch", [(), (2, 3), (2, 1, 3, 2), (0,), (2, 0)])
@pytest.mark.parametrize(("rows", "columns"), [(4, 2), (6, 7), (9, 10)])
def test_any_number_of_leading_dimensions(batch: tuple[int, ...], rows: int, columns: int) -> None:
    blocks = random_blocks(8, math.prod(batch), rows, columns)
    for masks in ((), masks_for(9, blocks)):
        chosen = maximal_assignment(*(part.view(*batch, *part.shape[1:]) for part in (blocks, *masks)))
        assert chosen.shape == (*batch, rows)
        assert torch.equal(chosen.view(len(blocks), rows), maximal_assignment(blocks, *masks))


def test_arrays_are_taken_as_tensors_in_any_layout() -> None:
    blocks = random_blocks(17, 20, 4, 3)
    row_mask, _ = masks_for(18, blocks)
    expected = maximal_assignment(blocks)
    planes = blocks.permute(1, 2, 0).contiguous()
    for same in (blocks.numpy(), blocks.double().numpy(), planes.permute(2, 0, 1)):
        assert torch.equal(maximal_assignment(same), expected)
    assert torch.equal(maximal_assignment(blocks[0].expand(5, 4, 3)), expected[:1].expand(5, 4))
    assert torch.equal(maximal_assignment(blocks.numpy(), row_mask.numpy()), maximal_assignment(blocks, row_mask))


@pytest.mark.usefixtures("without_shape_checks")
def test_lists_are_taken_as_arrays() -> None:
    blocks = random_blocks(19, 5, 4, 3)
    masks = masks_for(20, blocks)
    expected = maximal_assignment(blocks, *masks)
    assert torch.equal(maximal_assignment(blocks.tolist(), *(mask.tolist() for mask in masks)), expected)
    assert torch.equal(maximal_assignment(list(blocks), *map(list, masks)), expected)
    assert maximal_assignment([[0.9, 0.8], [0.8, 0.1]]).tolist() == [1, 0]


@pytest.mark.usefixtures("solver")
def test_the_choice_has_no_gradient_and_leaves_its_input_alone() -> None:
    blocks = random_blocks(12, 20, 4, 3).requires_grad_()
    before = blocks.detach().clone()
    chosen = maximal_assignment(blocks)
    assert chosen.dtype == torch.long
    assert not chosen.requires_grad
    assert torch.equal(blocks.detach(), before)


@pytest.mark.parametrize("size", [6, 7, 8, 10])
def test_permutations_are_never_tabulated_beyond_five(size: int, allocation_meter: type) -> None:
    blocks = random_blocks(13, 500, size, size)
    with allocation_meter(blocks) as meter:
        chosen = maximal_assignment(blocks)
    assert meter.largest_tensor < math.factorial(size) // 2 * len(blocks)
    total = blocks.gather(2, chosen[:, :, None]).sum()
    assert total.item() == pytest.approx(sum(reference.best_total(block) for block in blocks.numpy()), rel=1e-5)


@pytest.mark.usefixtures("solver")
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, 1e30])
def test_what_stands_in_masked_places_takes_no_part(value: float) -> None:
    blocks = tied_blocks(14, 100, 4, 4)
    row_mask, col_mask = masks_for(15, blocks)
    padded = blocks.masked_fill(~(row_mask[:, :, None] & col_mask[:, None, :]), value)
    assert torch.equal(maximal_assignment(padded, row_mask, col_mask), maximal_assignment(blocks, row_mask, col_mask))


# --- bad input ------------------------------------------------------------------------------------------------------


def not_finite_at(value: float) -> Tensor:
    cosines = torch.zeros(5, 3, 3)
    cosines[3, 1, 2] = value
    return cosines


EMPTY_ROW = torch.ones(2, 5, 3, dtype=torch.bool)
EMPTY_ROW[1, 4] = False


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([torch.zeros(3)], r"cosines: expected floating-point matrices \(\.\.\., K, L\).*float32 of shape 3"),
        ([torch.tensor(1.0)], "cosines: expected .*a scalar"),
        ([torch.zeros(2, 3, 3, dtype=torch.long)], "cosines: expected .*int64 of shape 2×3×3"),
        ([torch.zeros(0, 3)], "0×3 matrix has nothing to match"),
        ([torch.zeros(5, 3, 0)], "3×0 matrix has nothing to match"),
        ([[[0.9, 0.8], [0.8]]], "cosines: .*different lengths"),
        ([[["a", "b"]]], "cosines: expected .*numbers"),
        ([torch.zeros(2, 17, 3)], "sets of 17 vectors.*at most 16"),
        ([torch.zeros(3, 17)], "sets of 17 vectors.*at most 16"),
        *(([not_finite_at(value)], r"not finite at \[3, 1, 2\]") for value in (torch.nan, torch.inf, -torch.inf)),
        ([torch.zeros(5, 3, 4), torch.ones(5, 4).bool()], r"row_mask: .*of shape \(5, 3\).*True = real.*bool 5×4"),
        ([torch.zeros(5, 3, 4), None, torch.ones(5, 4)], r"col_mask: .*of shape \(5, 4\).*float32 5×4"),
        ([torch.zeros(2, 5, 3, 4), EMPTY_ROW], r"row_mask: item \[1, 4\] has no vector left"),
    ],
)
def test_wrong_input_is_refused(given: list[Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        maximal_assignment(*given)


def test_the_reference_tries_every_matching() -> None:
    assert len(reference.matchings(5, 5)) == 120
    assert len(reference.matchings(3, 5)) == len(reference.matchings(5, 3)) == 60
    block = np.array([[0.0, 0.25], [0.25, 0.5], [0.5, 0.5]])
    assert reference.first_best_matching(block) == [-1, 1, 0]


@pytest.mark.parametrize("size", [1, 3, 4, 10])
@pytest.mark.parametrize("counts", [(5, 5, 5), (1, 1, 1), (3, 0, 2, 8), (2,)], ids=str)
def test_the_vectors_of_an_item_are_matched_with_its_own_columns_alone(size: int, counts: tuple[int, ...]) -> None:
    owner = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    owner = owner[torch.randperm(len(owner), generator=torch.Generator().manual_seed(1))]
    own = torch.arange(len(counts))[:, None] == owner
    cosines = random_blocks(2, len(counts), size, len(owner))
    chosen = match_own(cosines, own)
    for block, mine, columns in zip(cosines, own, chosen.tolist(), strict=True):
        assert reference.is_matching(columns, np.ones(size, bool), mine.numpy())
        total = sum(float(block[row, column]) for row, column in enumerate(columns) if column >= 0)
        if mine.any():
            assert total == pytest.approx(reference.best_total(block[:, mine].double().numpy()), abs=1e-6)


def test_of_more_than_eight_columns_of_its_own_an_items_first_eight_count() -> None:
    cosines = torch.arange(10.0).expand(1, 2, 10) / 10  # the last are best
    assert match_own(cosines, torch.ones(1, 10, dtype=torch.bool)).sort().values.tolist() == [[6, 7]]


def test_own_columns_are_matched_on_a_gpu_by_its_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = pytest.importorskip("maxmatch.matching.triton_backend")
    own = torch.arange(3)[:, None] == torch.tensor([0, 1, 1, 2, 2, 2, 2, 2, 0, 0])
    for size in (2, 4, 6):
        cosines = torch.rand(3, size, 10, generator=torch.Generator().manual_seed(size))
        expected = match_own(cosines, own)
        with monkeypatch.context() as patch:
            patch.setattr(similarity, "kernels_for", lambda cosines: kernels)
            patch.setattr(similarity, "assign_planes", None)  # would fail if it were called
            assert torch.equal(match_own(cosines, own), expected)
