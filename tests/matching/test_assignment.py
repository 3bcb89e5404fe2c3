import itertools
import math

import numpy as np
import pytest
import reference
import torch
from torch import Tensor

from maxmatch.matching import assignment
from maxmatch.matching.assignment import maximal_assignment

SOLVERS = {"table": (16, 16), "subsets": (0, 16), "hungarian": (0, 0)}
UP_TO_FIVE = list(itertools.product(range(1, 6), range(1, 6)))


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


def assert_best(blocks: Tensor, chosen: Tensor, row_mask: Tensor, col_mask: Tensor) -> None:
    """Every block's choice is a matching and has the largest total, by SciPy on the real rows and columns."""
    everything = zip(blocks.double().numpy(), chosen.tolist(), row_mask.numpy(), col_mask.numpy(), strict=True)
    for block, columns, rows_real, cols_real in everything:
        assert reference.is_matching(columns, rows_real, cols_real), (block, columns)
        total = sum(block[i, j] for i, j in enumerate(columns) if j != -1)
        assert abs(total - reference.best_total(block[rows_real][:, cols_real])) < 1e-5, (block, columns)


@pytest.mark.parametrize("rows", range(1, 17))
def test_assignment_agrees_with_scipy(rows: int) -> None:
    for columns in range(1, 17):
        blocks = random_blocks(100 * rows + columns, 80, rows, columns)  # 16 · 16 · 80 = 20,480 blocks in all
        everything = torch.ones(80, rows, dtype=torch.bool), torch.ones(80, columns, dtype=torch.bool)
        assert_best(blocks, maximal_assignment(blocks), *everything)


@pytest.mark.parametrize("rows", range(1, 17))
def test_masked_assignment_agrees_with_scipy_on_what_is_real(rows: int) -> None:
    for columns in range(1, 17):
        seed = 100 * rows + columns
        blocks = random_blocks(seed, 20, rows, columns)
        row_mask, col_mask = reference.random_mask(seed, 20, rows), reference.random_mask(seed + 1, 20, columns)
        assert_best(blocks, maximal_assignment(blocks, row_mask, col_mask), row_mask, col_mask)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("size", [2, 4, 6, 10])
def test_totals_are_compared_in_at_least_single_precision(size: int, dtype: torch.dtype) -> None:
    blocks = (torch.rand(300, size, size, generator=torch.Generator().manual_seed(size)) * 2 - 1).to(dtype)
    everything = torch.ones(300, size, dtype=torch.bool)
    assert_best(blocks, maximal_assignment(blocks), everything, everything)


@pytest.mark.usefixtures("solver")
@pytest.mark.parametrize(("rows", "columns"), UP_TO_FIVE)
def test_among_equal_totals_the_lexicographically_first_is_given(rows: int, columns: int) -> None:
    blocks = tied_blocks(10 * rows + columns, 60, rows, columns)
    expected = [reference.first_best_matching(block) for block in blocks.numpy()]
    assert maximal_assignment(blocks).tolist() == expected


@pytest.mark.usefixtures("solver")
@pytest.mark.parametrize(("rows", "columns"), UP_TO_FIVE)
def test_among_equal_totals_of_masked_blocks_the_lexicographically_first_is_given(rows: int, columns: int) -> None:
    seed = 10 * rows + columns
    blocks = tied_blocks(seed, 60, rows, columns)
    row_mask, col_mask = reference.random_mask(seed, 60, rows), reference.random_mask(seed + 1, 60, columns)
    expected = torch.full((60, rows), -1)
    for block, row_real, col_real, row in zip(blocks, row_mask, col_mask, expected, strict=True):
        places = col_real.nonzero()[:, 0].tolist()
        best = reference.first_best_matching(block[row_real][:, col_real].numpy())
        row[row_real] = torch.tensor([-1 if column == -1 else places[column] for column in best])
    assert maximal_assignment(blocks, row_mask, col_mask).tolist() == expected.tolist()


@pytest.mark.parametrize("size", [6, 7, 8, 9, 12, 16])
def test_equal_cosines_are_matched_in_order(size: int) -> None:
    chosen = maximal_assignment(torch.full((3, size, size), 0.3))
    assert chosen.tolist() == [list(range(size))] * 3


@pytest.mark.parametrize(("rows", "columns"), [(6, 6), (8, 5), (5, 7), (7, 7)])
def test_the_three_algorithms_agree_beyond_what_brute_force_can_try(
    rows: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = tied_blocks(1, 40, rows, columns)
    row_mask, col_mask = reference.random_mask(2, 40, rows), reference.random_mask(3, 40, columns)
    by_subsets = maximal_assignment(blocks), maximal_assignment(blocks, row_mask, col_mask)
    monkeypatch.setattr(assignment, "_SUBSETS_UP_TO", 0)
    assert torch.equal(maximal_assignment(blocks), by_subsets[0])
    assert torch.equal(maximal_assignment(blocks, row_mask, col_mask), by_subsets[1])


@pytest.mark.usefixtures("solver")
def test_all_true_masks_change_nothing() -> None:
    blocks = tied_blocks(3, 200, 4, 5)
    masks = torch.ones(200, 4, dtype=torch.bool), torch.ones(200, 5, dtype=torch.bool)
    assert torch.equal(maximal_assignment(blocks), maximal_assignment(blocks, *masks))


@pytest.mark.usefixtures("solver")
def test_one_mask_may_be_left_out() -> None:
    blocks = tied_blocks(4, 100, 4, 3)
    row_mask, col_mask = reference.random_mask(5, 100, 4), reference.random_mask(6, 100, 3)
    rows, columns = torch.ones_like(row_mask), torch.ones_like(col_mask)
    assert torch.equal(maximal_assignment(blocks, row_mask), maximal_assignment(blocks, row_mask, columns))
    assert torch.equal(maximal_assignment(blocks, col_mask=col_mask), maximal_assignment(blocks, rows, col_mask))


@pytest.mark.usefixtures("solver")
def test_result_does_not_depend_on_how_blocks_are_cut_into_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = tied_blocks(7, 50, 4, 4)
    whole = maximal_assignment(blocks)
    monkeypatch.setattr(assignment, "_CHUNK_BYTES", 2**13)
    assert torch.equal(maximal_assignment(blocks), whole)


@pytest.mark.parametrize("batch", [(), (7,), (2, 3), (2, 1, 3, 2), (0,), (2, 0)])
@pytest.mark.parametrize(("rows", "columns"), [(3, 3), (4, 2), (6, 7), (9, 10)])
def test_any_number_of_leading_dimensions(batch: tuple[int, ...], rows: int, columns: int) -> None:
    count = math.prod(batch)
    blocks = random_blocks(8, count, rows, columns)
    row_mask, col_mask = reference.random_mask(9, count, rows), reference.random_mask(10, count, columns)
    chosen = maximal_assignment(blocks.view(*batch, rows, columns))
    assert chosen.shape == (*batch, rows)
    assert torch.equal(chosen.view(count, rows), maximal_assignment(blocks))
    masked = maximal_assignment(
        blocks.view(*batch, rows, columns), row_mask.view(*batch, rows), col_mask.view(*batch, columns)
    )
    assert torch.equal(masked.view(count, rows), maximal_assignment(blocks, row_mask, col_mask))


def test_numpy_arrays_are_taken_as_tensors() -> None:
    blocks, row_mask = random_blocks(17, 20, 4, 3), reference.random_mask(18, 20, 4)
    assert torch.equal(maximal_assignment(blocks.numpy()), maximal_assignment(blocks))
    assert torch.equal(maximal_assignment(blocks.numpy(), row_mask.numpy()), maximal_assignment(blocks, row_mask))
    assert maximal_assignment(blocks.double().numpy()[0]).tolist() == maximal_assignment(blocks[0]).tolist()


def test_memory_layout_does_not_matter() -> None:
    blocks = random_blocks(11, 60, 4, 4)
    planes = blocks.permute(1, 2, 0).contiguous()
    assert torch.equal(maximal_assignment(planes.permute(2, 0, 1)), maximal_assignment(blocks))
    assert torch.equal(maximal_assignment(blocks[0].expand(5, 4, 4)), maximal_assignment(blocks[:1]).expand(5, 4))


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
    blocks = random_blocks(13, 2000, size, size)
    with allocation_meter(blocks) as meter:
        chosen = maximal_assignment(blocks)
    assert meter.largest_tensor < math.factorial(size) // 2 * len(blocks)
    total = blocks.gather(2, chosen[:, :, None]).sum()
    assert total.item() == pytest.approx(sum(reference.best_total(block) for block in blocks.numpy()), rel=1e-5)


@pytest.mark.usefixtures("solver")
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, 1e30])
def test_what_stands_in_masked_places_takes_no_part(value: float) -> None:
    blocks = tied_blocks(14, 100, 4, 4)
    row_mask, col_mask = reference.random_mask(15, 100, 4), reference.random_mask(16, 100, 4)
    padded = blocks.masked_fill(~(row_mask[:, :, None] & col_mask[:, None, :]), value)
    assert torch.equal(maximal_assignment(padded, row_mask, col_mask), maximal_assignment(blocks, row_mask, col_mask))


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("without_shape_checks")
class TestBadInput:
    @pytest.mark.parametrize(
        ("cosines", "came"),
        [
            (torch.zeros(3), "float32 of shape 3"),
            (torch.tensor(1.0), "a scalar"),
            (torch.zeros(2, 3, 3, dtype=torch.long), "int64 of shape 2×3×3"),
        ],
    )
    def test_what_is_no_matrix_of_cosines_is_refused(self, cosines: Tensor, came: str) -> None:
        with pytest.raises(ValueError, match=rf"cosines: expected floating-point matrices \(\.\.\., K, L\).*{came}"):
            maximal_assignment(cosines)

    @pytest.mark.parametrize("shape", [(0, 3), (5, 3, 0)])
    def test_an_empty_matrix_is_refused(self, shape: tuple[int, ...]) -> None:
        with pytest.raises(ValueError, match=f"{shape[-2]}×{shape[-1]} matrix has nothing to match"):
            maximal_assignment(torch.zeros(shape))

    @pytest.mark.parametrize("shape", [(17, 17), (2, 17, 3), (3, 17)])
    def test_more_than_sixteen_vectors_are_refused(self, shape: tuple[int, ...]) -> None:
        with pytest.raises(ValueError, match=r"sets of 17 vectors.*at most 16.*Use fewer"):
            maximal_assignment(torch.zeros(shape))

    @pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
    def test_what_is_not_finite_is_refused_and_located(self, value: float) -> None:
        cosines = torch.zeros(5, 3, 3)
        cosines[3, 1, 2] = value
        with pytest.raises(ValueError, match=r"not finite at \[3, 1, 2\].*row_mask and col_mask"):
            maximal_assignment(cosines)

    def test_masks_of_another_shape_or_type_are_refused(self) -> None:
        cosines = torch.zeros(5, 3, 4)
        with pytest.raises(
            ValueError, match=r"row_mask: .*boolean mask of shape \(5, 3\).*True = real.*got .*bool 5×4"
        ):
            maximal_assignment(cosines, torch.ones(5, 4, dtype=torch.bool))
        with pytest.raises(ValueError, match=r"col_mask: .*boolean mask of shape \(5, 4\).*got .*float32 5×4"):
            maximal_assignment(cosines, col_mask=torch.ones(5, 4))

    def test_a_mask_that_leaves_nothing_to_match_is_refused_and_located(self) -> None:
        mask = torch.ones(2, 5, 3, dtype=torch.bool)
        mask[1, 4] = False
        with pytest.raises(ValueError, match=r"row_mask: item \[1, 4\] has no vector left.*Leave such items out"):
            maximal_assignment(torch.zeros(2, 5, 3, 4), mask)


def test_the_reference_tries_every_matching() -> None:
    assert len(reference.matchings(5, 5)) == 120
    assert len(reference.matchings(3, 5)) == len(reference.matchings(5, 3)) == 60
    block = np.array([[0.0, 0.25], [0.25, 0.5], [0.5, 0.5]])
    assert reference.first_best_matching(block) == [-1, 1, 0]
