"""Sets of unequal size: every score is that of the two sets alone, however they are given and whatever the tiles."""

from functools import cache, partial

import numpy as np
import pytest
import reference
import torch
from matching_cases import TINY, every_function, every_similarity
from reference import random_sets
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.testing import assert_close

from maxmatch import score_matrix, top_hits, top_hits_both
from maxmatch.core.array_checks import NotFiniteError
from maxmatch.core.checks import NotUnitLength
from maxmatch.core.ragged_array import RaggedArray
from maxmatch.matching import SIMILARITIES

close = partial(assert_close, atol=1e-6, rtol=1e-6)


def ragged(seed: int, sizes: list[int], width: int = 8) -> list[Tensor]:
    """Sets of these sizes."""
    return [random_sets(seed + place, size, width) for place, size in enumerate(sizes)]


A, B = ragged(1, [3, 1, 7, 2, 4, 3]), ragged(50, [5, 2, 2, 9, 1, 3, 6, 4])
LONG = ragged(90, [40, 1, 25, 3, 70, 17])


@cache
def of_a_and_b(name: str) -> Tensor:
    """Of A and B."""
    return one_by_one(name, A, B)


def one_by_one(name: str, a: list[Tensor], b: list[Tensor]) -> Tensor:
    """The definition of each pair, in plain loops; of slots in their order those that both have count."""

    def score(x: Tensor, y: Tensor) -> float:
        both = min(len(x), len(y)) if name == "paired" else None
        return float(reference.scores(name, x[None, :both], y[None, :both]))

    return torch.tensor([[score(x, y) for y in b] for x in a], dtype=torch.float64)


def padded(sets: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The same with padding that is NaN, and a mask."""
    real = torch.arange(max(map(len, sets))) < torch.tensor([[len(one)] for one in sets])
    return pad_sequence(sets, batch_first=True, padding_value=torch.nan), real


@every_similarity
@pytest.mark.parametrize("max_memory", [1, TINY, 2**30])
def test_every_score_is_that_of_the_two_sets_alone(name: str, max_memory: int) -> None:
    expected = of_a_and_b(name)
    close(score_matrix(A, B, name, max_memory), expected.float())
    double = score_matrix([one.double() for one in A], [one.double() for one in B], name, max_memory)
    assert_close(double, expected, atol=1e-6, rtol=0)  # the sets were rounded to float32


@every_similarity
def test_padded_sets_with_masks_are_the_same_sets(name: str) -> None:
    (a, a_mask), (b, b_mask) = padded(A), padded(B)
    if name == "paired":  # both padded to one size
        a, a_mask = padded([*A, B[3]])
    scores = score_matrix(a, b, name, TINY, a_mask=a_mask, b_mask=b_mask)
    close(scores[: len(A)], of_a_and_b(name).float())


@every_similarity
def test_sets_of_one_size_may_meet_sets_of_many(name: str) -> None:
    same = random_sets(7, 4, 3, 8)
    close(score_matrix(same, B, name, TINY), one_by_one(name, list(same), B).float())
    close(score_matrix(B, same, name, TINY), one_by_one(name, B, list(same)).float())


@pytest.mark.parametrize("name", ["maxsim", "chamfer", "mil", "mean", "top_k", "smooth_chamfer"])
@pytest.mark.parametrize("max_memory", [TINY, 2**30])
def test_without_matching_sets_may_have_any_number_of_vectors(name: str, max_memory: int) -> None:
    close(score_matrix(A, LONG, name, max_memory), one_by_one(name, A, LONG).float())


@pytest.mark.parametrize("name", ["maxsim", "maxmatch"])
@pytest.mark.parametrize("k", [1, 3, 100])
def test_hits_are_the_sorted_scores(name: str, k: int) -> None:
    matrix = of_a_and_b(name)
    for memory in (1, TINY, 2**30):
        hits = top_hits(A, B, k, name, memory)
        order = matrix.argsort(dim=1, descending=True, stable=True)[:, :k]
        assert hits.indices.tolist() == order.tolist()
        close(hits.scores, matrix.gather(1, order).float())
        forth, back = top_hits_both(A, B, k, name, memory)
        assert forth.indices.tolist() == order.tolist()
        assert back.indices.tolist() == matrix.T.argsort(dim=1, descending=True, stable=True)[:, :k].tolist()


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("name", ["maxsim", "chamfer"])
def test_arrays_lists_half_precision_and_one_array_of_all_vectors_are_the_same_sets(name: str) -> None:
    expected = score_matrix(A, B, name)
    arrays = [one.numpy() for one in B]
    for form in (arrays, tuple(arrays), [one.tolist() for one in B], RaggedArray.of(arrays), [A[0].numpy(), *B][1:]):
        close(score_matrix(A, form, name), expected, check_dtype=False)
    half = score_matrix([one.half() for one in A], RaggedArray.of([one.astype(np.float16) for one in arrays]), name)
    assert_close(half, expected, atol=5e-3, rtol=0)
    longer = [3 * one for one in B]
    close(score_matrix(A, longer, name, normalise=True), expected)
    with pytest.warns(NotUnitLength, match="b: vectors should have unit length"):
        score_matrix(A, longer, name)


def test_padding_is_left_out_of_a_maximum_over_many_vectors() -> None:
    b, b_mask = padded(LONG)
    expected = one_by_one("maxsim", A, LONG).float()
    a, a_mask = padded(A)
    for memory in (1, TINY, 2**30):
        close(score_matrix(a, b, "maxsim", memory, a_mask=a_mask, b_mask=b_mask), expected)
    a, b = random_sets(4, 3, 40, 8), random_sets(3, 5, 70, 8)  # no mask, many vectors
    close(score_matrix(a, b, "maxsim", TINY), SIMILARITIES["maxsim"](a, b))


def test_a_function_of_ones_own_gets_padded_sets_with_masks() -> None:
    def largest(a: Tensor, b: Tensor, a_mask: Tensor | None = None, b_mask: Tensor | None = None) -> Tensor:
        return SIMILARITIES["mil"](a, b, a_mask, b_mask)

    close(score_matrix(A, B, largest, TINY), one_by_one("mil", A, B).float())


@every_function
@pytest.mark.usefixtures("without_shape_checks")
def test_what_cannot_be_compared_is_refused_by_its_place(function) -> None:
    for bad, message in (
        ([*B, torch.ones(0, 8)], r"b\[8\]: has no vectors"),
        ([*B, torch.ones(2, 9)], r"b\[8\]: vectors of width 9"),
        ([*B, torch.ones(2)], r"b\[8\]: expected the vectors"),
        ([*B, torch.ones(2, 8, dtype=torch.long)], r"b\[8\]: expected the vectors .*int64"),
        (ragged(1, [2, 3], 9), "width 8 .*width 9"),
    ):
        with pytest.raises(ValueError, match=message):
            function(A, bad)
    with pytest.raises(ValueError, match="a_mask: sets of unequal size have no padding"):
        function(A, B, a_mask=torch.ones(6, 7, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"at most 16.*maxsim"):
        function(A, LONG)
    for name in ("maxsim", "chamfer"):
        for value in (torch.nan, torch.inf, -torch.inf):
            broken = [one.clone() for one in B]
            broken[3][2, 1] = value
            with pytest.raises(NotFiniteError, match="b: item 3 holds NaN or infinite"):
                function(A, broken, similarity=name)


def test_a_ragged_array_is_a_list_of_its_rows() -> None:
    rows = [one.numpy() for one in B]
    array = RaggedArray.of(rows)
    assert array.sizes.tolist() == [5, 2, 2, 9, 1, 3, 6, 4]
    for part in (slice(2, 5), slice(None), slice(6, 100), slice(3, 3), slice(0, 8, 3), slice(None, None, -1)):
        assert [one.tolist() for one in array[part]] == [one.tolist() for one in rows[part]]
        assert array[part].flat().tolist() == [vector for one in rows[part] for vector in one.tolist()]
    assert array[-1].tolist() == rows[-1].tolist()
    assert [one.tolist() for one in array.at([4, 0, 4])] == [rows[place].tolist() for place in (4, 0, 4)]
    assert len(RaggedArray.of([])) == len(array.at([])) == 0
    with pytest.raises(IndexError):
        array[8]


@pytest.mark.parametrize("name", ["maxsim", "chamfer"])
def test_what_is_allocated_stays_within_max_memory(name: str, allocation_meter: type) -> None:
    sets = ragged(3, [12] * 8 + [5] * 12, 16)
    with allocation_meter(*sets) as meter:
        scores = score_matrix(sets, sets, name, 2**16)
    assert meter.peak_bytes - scores.nbytes <= 2**16 < 156 * 156 * 4
