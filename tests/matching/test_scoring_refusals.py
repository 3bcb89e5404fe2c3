"""What scoring refuses."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from reference import random_sets
from scoring_cases import A_MASK, B_MASK, TINY, A, B, every_function

from maxmatch import score_matrix, top_hits, top_hits_both
from maxmatch.core.checks import NotFiniteError, NotUnitLength


@every_function
@pytest.mark.usefixtures("without_shape_checks", "path")
class TestBadInput:
    def test_what_is_no_batch_of_sets_is_refused(self, function: Callable[..., object]) -> None:
        with pytest.raises(ValueError, match=r"a: expected sets of shape .*got 4×16.*For one set use a\[None\]"):
            function(a=A[0], b=B)
        with pytest.raises(ValueError, match=r"^b: .*13×16.*b\[:, None\]"):
            function(a=A, b=B[:, 0].numpy())

    def test_vectors_of_another_width_are_refused(self, function: Callable[..., object]) -> None:
        with pytest.raises(ValueError, match=r"a has vectors of width 16 and b of width 15.*same model"):
            function(a=A, b=B[..., :15])

    def test_integers_are_refused(self, function: Callable[..., object]) -> None:
        with pytest.raises(ValueError, match=r"a: expected floating-point vectors, got int64.*Convert"):
            function(a=np.ones((3, 4, 16), dtype=np.int64), b=B)
        with pytest.raises(ValueError, match=r"b: expected floating-point vectors, got torch\.uint8.*Convert"):
            function(a=A, b=torch.ones(3, 4, 16, dtype=torch.uint8))

    def test_sets_of_no_or_too_many_vectors_are_refused(self, function: Callable[..., object]) -> None:
        with pytest.raises(ValueError, match=r"b: sets of 0 vectors of width 16 are empty; give at least one"):
            function(a=A, b=B[:, :0])
        with pytest.raises(ValueError, match=r"b: sets of 17 vectors.*at most 16.*Use fewer"):
            function(a=A, b=random_sets(23, 2, 17, 16))

    def test_an_unknown_similarity_is_refused(self, function: Callable[..., object]) -> None:
        with pytest.raises(ValueError, match=r"similarity: expected one of maxmatch, top_k, .*got 'cosine'"):
            function(a=A, b=B, similarity="cosine")

    def test_masks_that_do_not_fit_are_refused(self, function: Callable[..., object]) -> None:
        with pytest.raises(ValueError, match=r"a_mask: .*boolean mask of shape \(11, 4\).*got torch\.bool 13×4"):
            function(a=A, b=B, a_mask=B_MASK)
        with pytest.raises(ValueError, match=r"b_mask: .*boolean mask of shape \(13, 4\).*got torch\.float32 13×4"):
            function(a=A, b=B, b_mask=B_MASK.float())

    def test_an_item_without_real_vectors_is_refused_and_named(self, function: Callable[..., object]) -> None:
        mask = B_MASK.clone()
        mask[12] = False
        with pytest.raises(ValueError, match=r"b_mask: item \[12\] has no vector left.*Leave such items out"):
            function(a=A, b=B, b_mask=mask, max_memory=TINY)

    @pytest.mark.parametrize("value", [np.nan, np.inf])
    @pytest.mark.parametrize("normalise", [False, True])
    @pytest.mark.filterwarnings("ignore::maxmatch.core.checks.NotUnitLength")  # infinite vectors are not of unit length
    def test_what_is_not_finite_is_refused_and_named_by_its_place_in_the_whole(
        self, function: Callable[..., object], value: float, normalise: bool
    ) -> None:
        bad_a, bad_b = A.clone(), B.clone()
        bad_a[10, 2, 5] = bad_b[11, 0, 0] = value
        message = r" holds NaN or infinite values.*leave such items out"
        for a in (bad_a, bad_a.numpy()):
            with pytest.raises(NotFiniteError, match="^a: item 10" + message):
                function(a=a, b=B, max_memory=TINY, normalise=normalise)
        with pytest.raises(NotFiniteError, match="^b: item 11" + message):
            function(a=A, b=bad_b, max_memory=TINY, normalise=normalise)
        with pytest.raises(NotFiniteError, match="^b: item 11" + message):
            function(a=A, b=bad_b, similarity="smooth_chamfer", max_memory=TINY, normalise=normalise)

    def test_a_hidden_nan_is_not_blamed_for_another(self, function: Callable[..., object]) -> None:
        a, mask = A.clone(), torch.ones_like(A_MASK)
        a[3, 1] = torch.nan
        mask[3, 1] = False
        function(a=a, b=B, a_mask=mask, max_memory=TINY)
        a[10, 2, 5] = torch.nan
        with pytest.raises(NotFiniteError, match=r"^a: item 10 "):
            function(a=a, b=B, a_mask=mask, max_memory=TINY)

    def test_a_nan_does_not_pass_through_a_function(self, function: Callable[..., object]) -> None:
        a = A.clone()
        a[10, 2, 5] = torch.nan
        with pytest.raises(NotFiniteError, match=r"^a: item 10 "):
            function(a=a, b=B, similarity=lambda a, b: a.mean(1) @ b.mean(1).T, max_memory=TINY)

    def test_cosines_that_overflow_are_refused_though_the_vectors_are_finite(
        self, function: Callable[..., object]
    ) -> None:
        sets = random_sets(24, 130, 4, 8)
        sets[1] = 1e30 * sets[1].sign()  # not in the sample that is looked at for unit length
        with pytest.raises(NotFiniteError):
            function(a=sets, b=sets, max_memory=2**20)

    @pytest.mark.parametrize("as_array", [False, True])
    def test_vectors_not_of_unit_length_are_warned_of_with_the_cure(
        self, function: Callable[..., object], as_array: bool
    ) -> None:
        a, b = (A.numpy() * 3, B.numpy()) if as_array else (A * 3, B)
        message = ": .*normalise=True"
        with pytest.warns(NotUnitLength, match="^a" + message) as said:
            function(a=a, b=b, max_memory=TINY)
        assert len(said) == 1
        with pytest.warns(NotUnitLength, match="^b" + message):
            function(a=b, b=a, max_memory=TINY, similarity="mil")
        function(a=a, b=b, max_memory=TINY, normalise=True)


@pytest.mark.parametrize("k", [0, -3])
@pytest.mark.parametrize("function", [top_hits, top_hits_both])
def test_fewer_than_one_hit_is_refused(function: Callable[..., object], k: int) -> None:
    with pytest.raises(ValueError, match=f"k: expected at least 1, got {k}"):
        function(A, B, k)
    with pytest.raises(ValueError, match=f"k: expected at least 1, got {k}"):
        function(A[:0], B, k)


def test_a_nan_among_thousands_is_named() -> None:
    sets = random_sets(25, 5000, 1, 2)
    sets[4500] = torch.nan
    with pytest.raises(NotFiniteError, match=r"^b: item 4500 "):
        score_matrix(sets[:2], sets, "mil")
