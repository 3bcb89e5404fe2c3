"""What scoring refuses."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from matching_cases import A_MASK, B_MASK, FEW, MANY, TINY, A, B, every_function
from reference import random_sets

from maxmatch import score_matrix, top_hits, top_hits_both
from maxmatch.core.checks import NotFiniteError, NotUnitLength

NAN_IN_A, NAN_IN_B = A.clone(), B.clone()
NAN_IN_A[10, 2, 5] = NAN_IN_B[11, 0, 0] = torch.nan
EMPTY_ITEM = B_MASK.clone()
EMPTY_ITEM[12] = False


@every_function
@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"a": A[0]}, r"a: expected sets of shape .*got 4×16.*For one set use a\[None\]"),
        ({"b": B[:, 0].numpy()}, r"^b: .*13×16.*b\[:, None\]"),
        ({"b": B[..., :15]}, "a has vectors of width 16 and b of width 15"),
        ({"a": np.ones((3, 4, 16), dtype=np.int64)}, "a: expected floating-point vectors, got int64"),
        ({"b": torch.ones(3, 4, 16, dtype=torch.uint8)}, r"b: expected floating-point vectors, got torch\.uint8"),
        ({"b": B[:, :0]}, "b: sets of 0 vectors of width 16 are empty"),
        ({"b": random_sets(23, 2, 17, 16)}, "b: sets of 17 vectors.*at most 16"),
        ({"a": [[[1.0, 0.0], [0.0]]]}, "a: .*different lengths"),
        ({"b": "sets.npy"}, "b: expected .*numbers"),
        ({"device": "gpu"}, "device: expected cpu, cuda.*got 'gpu'"),
        ({"similarity": "cosine"}, "similarity: expected one of maxmatch, top_k, .*got 'cosine'"),
        ({"a_mask": B_MASK}, r"a_mask: .*boolean mask of shape \(11, 4\).*got torch\.bool 13×4"),
        ({"b_mask": B_MASK.float()}, r"b_mask: .*boolean mask of shape \(13, 4\).*got torch\.float32 13×4"),
        ({"b_mask": EMPTY_ITEM}, r"b_mask: item \[12\] has no vector left"),
        ({"a": NAN_IN_A, "similarity": lambda a, b: a.mean(1) @ b.mean(1).T}, "^a: item 10 "),
    ],
    ids=lambda value: None if isinstance(value, str) else ",".join(value),
)
def test_wrong_input_is_refused_and_named(function: Callable[..., object], wrong: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        function(**{"a": A, "b": B, "max_memory": TINY, **wrong})


@every_function
@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("normalise", [False, True])
def test_an_item_that_is_not_finite_is_named_by_its_place_in_the_whole(
    function: Callable[..., object], normalise: bool
) -> None:
    message = " holds NaN or infinite values"
    few = MANY.clone()
    few[37, 2, 5] = torch.inf
    options = {"max_memory": TINY, "normalise": normalise}
    for a, b, name, named in (
        (NAN_IN_A, B, "maxmatch", "^a: item 10"),
        (NAN_IN_A.numpy(), B, "maxmatch", "^a: item 10"),
        (A, NAN_IN_B, "maxmatch", "^b: item 11"),
        (A, NAN_IN_B, "smooth_chamfer", "^b: item 11"),
        (FEW, few, "maxmatch", "^b: item 37"),
    ):
        with pytest.raises(NotFiniteError, match=named + message):
            function(a=a, b=b, similarity=name, **options)


@every_function
def test_a_hidden_nan_is_not_blamed_for_another(function: Callable[..., object]) -> None:
    a, mask = A.clone(), torch.ones_like(A_MASK)
    a[3, 1] = torch.nan
    mask[3, 1] = False
    function(a=a, b=B, a_mask=mask, max_memory=TINY)
    a[10, 2, 5] = torch.nan
    with pytest.raises(NotFiniteError, match=r"^a: item 10 "):
        function(a=a, b=B, a_mask=mask, max_memory=TINY)


@every_function
@pytest.mark.usefixtures("path")
def test_cosines_that_overflow_are_refused_though_the_vectors_are_finite(function: Callable[..., object]) -> None:
    sets = random_sets(24, 130, 4, 8)
    sets[1] = 1e30 * sets[1].sign()  # not in the sample that is looked at for unit length
    with pytest.raises(NotFiniteError):
        function(a=sets, b=sets, max_memory=2**24)


@every_function
@pytest.mark.usefixtures("path")
def test_vectors_not_of_unit_length_cause_one_warning_with_the_cure(function: Callable[..., object]) -> None:
    for a, b in ((A.numpy() * 3, B.numpy()), (A * 3, B)):
        with pytest.warns(NotUnitLength, match="^a: .*normalise=True") as warned:
            function(a=a, b=b, max_memory=TINY)
        assert len(warned) == 1
        with pytest.warns(NotUnitLength, match="^b: .*normalise=True"):
            function(a=b, b=a, max_memory=TINY, similarity="mil")
        function(a=a, b=b, max_memory=TINY, normalise=True)


@every_function
def test_a_gpu_that_is_not_there_is_refused(function: Callable[..., object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="device cuda: torch sees no GPU"):
        function(a=A, b=B, device="cuda")


@pytest.mark.parametrize("function", [top_hits, top_hits_both])
def test_fewer_than_one_hit_is_refused(function: Callable[..., object]) -> None:
    for a, k in ((A, 0), (A, -3), (A[:0], 0)):
        with pytest.raises(ValueError, match=f"k: expected at least 1, got {k}"):
            function(a, B, k)


@pytest.mark.parametrize("function", [top_hits, top_hits_both])
def test_hits_are_counted_in_whole_numbers(function: Callable[..., object], without_shape_checks: None) -> None:
    for k in (2.0, 2.5, True, "2"):
        with pytest.raises(ValueError, match=f"k: expected a whole number, got {k!r}"):
            function(A, B, k)


def test_a_nan_among_thousands_is_named() -> None:
    sets = random_sets(25, 5000, 1, 2)
    sets[4500] = torch.nan
    with pytest.raises(NotFiniteError, match=r"^b: item 4500 "):
        score_matrix(sets[:2], sets, "mil")
