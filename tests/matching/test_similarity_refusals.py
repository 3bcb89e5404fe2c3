"""What the similarities refuse, and what they do not warn about."""

import math
from typing import Any

import pytest
import torch
from jaxtyping import TypeCheckError
from matching_cases import every_similarity
from reference import random_mask, random_sets

from maxmatch import score_matrix, top_hits
from maxmatch.core.checks import NotFiniteError, NotUnitLength
from maxmatch.matching import SIMILARITIES, similarity

SETS, SEVENTEEN = random_sets(47, 5, 4, 8), random_sets(49, 2, 17, 8)
REAL = torch.ones(5, 4, dtype=torch.bool)
EMPTY_ITEM = REAL.clone()
EMPTY_ITEM[3] = False
NO_SETS = r"expected sets of shape \(items, vectors, width\), got "


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"a": SETS[0]}, f"a: {NO_SETS}4×8.*For one set use a"),
        ({"b": SETS[None]}, f"b: {NO_SETS}1×5×4×8"),
        ({"a": torch.tensor(1.0)}, f"a: {NO_SETS}a scalar"),
        ({"b": random_sets(48, 5, 4, 7)}, "a has vectors of width 8 and b of width 7.*Encode both with the same"),
        ({"b": torch.zeros(5, 4, 8, dtype=torch.long)}, r"b: expected floating-point vectors, got torch\.int64"),
        ({"a": SETS[:, :0]}, "a: sets of 0 vectors of width 8 are empty"),
        ({"a": SETS[..., :0], "b": SETS[..., :0]}, "a: sets of 4 vectors of width 0 are empty"),
        ({"a": [[[1.0, 0.0], [0.0]]]}, "a: .*different lengths"),
        ({"b": [["one", "two"]]}, "b: expected .*numbers"),
        ({"a": None}, "a: expected .*got None"),
        ({"b_mask": [[True], [True, False]]}, "b_mask: .*different lengths"),
        ({"b": SETS.to("meta")}, r"a is on cpu and b on meta: move one with \.to\(\)"),
        ({"a_mask": REAL[:, :3]}, r"a_mask: .*boolean mask of shape \(5, 4\).*got torch\.bool 5×3"),
        ({"b_mask": REAL.long()}, r"b_mask: .*boolean mask of shape \(5, 4\).*got torch\.int64 5×4"),
        ({"b_mask": EMPTY_ITEM}, r"b_mask: item \[3\] has no vector left.*Leave such items out"),
    ],
    ids=lambda value: None if isinstance(value, str) else ",".join(value),
)
def test_wrong_input_is_refused_by_every_similarity(wrong: dict[str, Any], message: str) -> None:
    for compare in SIMILARITIES.values():
        with pytest.raises(ValueError, match=message):
            compare(**{"a": SETS, "b": SETS, **wrong})


@pytest.mark.parametrize("masked", [False, True])
def test_more_vectors_than_can_be_matched_are_refused_by_name(masked: bool) -> None:
    masks = {"a_mask": torch.ones(2, 17, dtype=torch.bool)} if masked else {}
    with pytest.raises(ValueError, match=r"a: sets of 17 vectors.*at most 16"):
        similarity.maxmatch(SEVENTEEN, SETS, **masks)
    with pytest.raises(ValueError, match=r"b: sets of 17 vectors.*at most 16"):
        similarity.maxmatch(SETS, SEVENTEEN)


@every_similarity
@pytest.mark.parametrize(("value", "masked"), [(torch.nan, False), (-torch.inf, False), (torch.inf, True)])
@pytest.mark.filterwarnings("ignore::maxmatch.core.checks.NotUnitLength")  # infinite vectors are not of unit length
def test_an_item_that_is_not_finite_is_refused_and_named(name: str, value: float, masked: bool) -> None:
    bad, masks = SETS.clone(), {}
    bad[3, 2, 1] = value
    if masked:
        bad[1, 0] = torch.nan  # hidden, so it is not what is complained about
        mask = REAL.clone()
        mask[1, 0] = False
        masks = {"a_mask": mask, "b_mask": mask}
    message = r": item 3 holds NaN or infinite values.*leave such items out"
    for side, a, b in (("a", bad, SETS), ("b", SETS, bad), ("a", bad.clone().requires_grad_(), SETS)):
        with pytest.raises(NotFiniteError, match=f"^{side}{message}"):
            SIMILARITIES[name](a, b, **masks)


@every_similarity
def test_long_vectors_cause_a_warning_and_overflow_is_refused(name: str) -> None:
    for side, a, b in (("a", SETS * 3, SETS), ("b", SETS, SETS * 3)):
        with pytest.warns(NotUnitLength, match=rf"^{side}: .*torch\.nn\.functional\.normalize"):
            SIMILARITIES[name](a, b)
    sets = random_sets(55, 200, 4, 8)
    sets[1] = 1e30 * sets[1].sign()  # not in the sample that is looked at for unit length
    with pytest.raises(NotFiniteError):
        SIMILARITIES[name](sets, sets)


def test_neither_rounding_to_half_precision_nor_padding_is_a_reason_to_warn() -> None:
    sets = random_sets(50, 64, 4, 1024)
    for dtype in (torch.float16, torch.bfloat16):
        similarity.mil(sets.to(dtype), sets.to(dtype))
    mask = random_mask(52, 5, 4)
    padded = SETS.masked_fill(~mask[..., None], 0.0)
    similarity.mil(padded, padded, mask, mask)


def test_shapes_are_checked_at_run_time_in_the_tests() -> None:
    with pytest.raises(TypeCheckError):
        similarity.mil(random_sets(56, 5, 4, 8), random_sets(57, 5, 4, 7))


@pytest.mark.parametrize(
    ("name", "option"),
    [("top_k", {"k": 0}), ("top_k", {"k": -1})]
    + [("smooth_chamfer", {"alpha": value}) for value in (0.0, -16.0, math.nan)]
    + [("sinkhorn", {"epsilon": value}) for value in (0.0, -0.05, 1e-9, math.nan)]
    + [("sinkhorn", {"iterations": value}) for value in (0, -1)],
)
def test_an_option_out_of_range_is_refused(name: str, option: dict[str, float]) -> None:
    ((key, value),) = option.items()
    with pytest.raises(ValueError, match=f"{key}: expected .*, got {value}"):
        SIMILARITIES[name](SETS, SETS, **option)


@pytest.mark.usefixtures("without_shape_checks")
def test_half_an_iteration_is_refused_and_a_whole_number_of_any_type_is_taken() -> None:
    with pytest.raises(ValueError, match=r"iterations: expected a whole number .*, got 2\.5"):
        similarity.sinkhorn(SETS, SETS, iterations=2.5)
    assert torch.equal(similarity.sinkhorn(SETS, SETS, iterations=3.0), similarity.sinkhorn(SETS, SETS, iterations=3))


@pytest.mark.usefixtures("without_shape_checks")
def test_paired_refuses_sets_of_two_sizes() -> None:
    for compare in (
        similarity.paired,
        lambda a, b: score_matrix(a, b, "paired"),
        lambda a, b: top_hits(a, b, 1, "paired"),
    ):
        with pytest.raises(ValueError, match=r"paired: sets of 4 and of 3 vectors.*maxmatch"):
            compare(SETS, SETS[:, :3])
