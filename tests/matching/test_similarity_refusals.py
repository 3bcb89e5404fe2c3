"""What the similarities refuse, and what they do not warn of."""

import math

import pytest
import torch
from jaxtyping import TypeCheckError
from reference import random_mask, random_sets
from similarity_cases import every_similarity

from maxmatch.core.checks import NotFiniteError, NotUnitLength
from maxmatch.matching import SIMILARITIES, similarity


@every_similarity
@pytest.mark.usefixtures("without_shape_checks")
class TestBadInput:
    sets = random_sets(47, 5, 4, 8)

    def test_what_is_no_batch_of_sets_is_refused(self, name: str) -> None:
        for wrong, shape in ((self.sets[0], "4×8"), (self.sets[None], "1×5×4×8"), (torch.tensor(1.0), "a scalar")):
            message = rf"expected sets of shape \(items, vectors, width\), got {shape}.*For one set use [ab]\[None\]"
            with pytest.raises(ValueError, match="a: " + message):
                SIMILARITIES[name](wrong, self.sets)
            with pytest.raises(ValueError, match="b: " + message):
                SIMILARITIES[name](self.sets, wrong)

    def test_vectors_of_another_width_are_refused(self, name: str) -> None:
        with pytest.raises(ValueError, match=r"a has vectors of width 8 and b of width 7.*Encode both with the same"):
            SIMILARITIES[name](self.sets, random_sets(48, 5, 4, 7))

    def test_integers_are_refused(self, name: str) -> None:
        with pytest.raises(ValueError, match=r"b: expected floating-point vectors, got torch\.int64.*\.float\(\)"):
            SIMILARITIES[name](self.sets, torch.zeros(5, 4, 8, dtype=torch.long))

    def test_sets_without_vectors_are_refused(self, name: str) -> None:
        with pytest.raises(ValueError, match=r"a: sets of 0 vectors of width 8 are empty; give at least one"):
            SIMILARITIES[name](self.sets[:, :0], self.sets)
        with pytest.raises(ValueError, match=r"a: sets of 4 vectors of width 0 are empty; give at least one"):
            SIMILARITIES[name](self.sets[..., :0], self.sets[..., :0])

    def test_sets_of_seventeen_vectors_are_refused(self, name: str) -> None:
        seventeen = random_sets(49, 2, 17, 8)
        with pytest.raises(ValueError, match=r"a: sets of 17 vectors.*at most 16.*Use fewer"):
            SIMILARITIES[name](seventeen, self.sets)
        with pytest.raises(ValueError, match=r"b: sets of 17 vectors.*at most 16.*Use fewer"):
            SIMILARITIES[name](self.sets, seventeen)

    def test_sets_on_two_devices_are_refused(self, name: str) -> None:
        with pytest.raises(ValueError, match=r"a is on cpu and b on meta: move one with \.to\(\)"):
            SIMILARITIES[name](self.sets, self.sets.to("meta"))

    def test_masks_of_another_shape_or_type_are_refused(self, name: str) -> None:
        with pytest.raises(ValueError, match=r"a_mask: .*boolean mask of shape \(5, 4\).*got torch\.bool 5×3"):
            SIMILARITIES[name](self.sets, self.sets, torch.ones(5, 3, dtype=torch.bool))
        with pytest.raises(ValueError, match=r"b_mask: .*boolean mask of shape \(5, 4\).*got torch\.int64 5×4"):
            SIMILARITIES[name](self.sets, self.sets, b_mask=torch.ones(5, 4, dtype=torch.long))

    def test_an_item_without_real_vectors_is_refused_and_named(self, name: str) -> None:
        mask = torch.ones(5, 4, dtype=torch.bool)
        mask[3] = False
        with pytest.raises(ValueError, match=r"b_mask: item \[3\] has no vector left.*Leave such items out"):
            SIMILARITIES[name](self.sets, self.sets, b_mask=mask)

    @pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
    @pytest.mark.parametrize("masked", [False, True])
    @pytest.mark.filterwarnings("ignore::maxmatch.core.checks.NotUnitLength")  # infinite vectors are not of unit length
    def test_what_is_not_finite_is_refused_and_its_item_named(self, name: str, value: float, masked: bool) -> None:
        bad = self.sets.clone()
        bad[3, 2, 1] = value
        masks = {}
        if masked:
            bad[1, 0] = torch.nan  # hidden, so it is not what is complained of
            mask = torch.ones(5, 4, dtype=torch.bool)
            mask[1, 0] = False
            masks = {"a_mask": mask, "b_mask": mask}
        message = r": item 3 holds NaN or infinite values.*leave such items out"
        with pytest.raises(NotFiniteError, match="^a" + message):
            SIMILARITIES[name](bad, self.sets, **masks)
        with pytest.raises(NotFiniteError, match="^b" + message):
            SIMILARITIES[name](self.sets, bad, **masks)
        with pytest.raises(NotFiniteError, match="^a" + message):
            SIMILARITIES[name](bad.clone().requires_grad_(), self.sets, **masks)

    def test_vectors_not_of_unit_length_are_warned_of(self, name: str) -> None:
        message = r": .*torch\.nn\.functional\.normalize"
        with pytest.warns(NotUnitLength, match="^a" + message):
            SIMILARITIES[name](self.sets * 3, self.sets)
        with pytest.warns(NotUnitLength, match="^b" + message):
            SIMILARITIES[name](self.sets, self.sets * 3)


@every_similarity
def test_cosines_that_overflow_are_refused_though_the_vectors_are_finite(name: str) -> None:
    sets = random_sets(55, 200, 4, 8)
    sets[1] = 1e30 * sets[1].sign()  # not in the sample that is looked at for unit length
    with pytest.raises(NotFiniteError):
        SIMILARITIES[name](sets, sets)


def test_shapes_are_checked_at_run_time_in_the_tests() -> None:
    with pytest.raises(TypeCheckError):
        similarity.mil(random_sets(56, 5, 4, 8), random_sets(57, 5, 4, 7))


def test_half_precision_rounding_is_no_reason_to_warn() -> None:
    sets = random_sets(50, 64, 4, 1024)
    for dtype in (torch.float16, torch.bfloat16):
        similarity.mil(sets.to(dtype), sets.to(dtype))


def test_padding_of_another_length_is_no_reason_to_warn() -> None:
    sets = random_sets(51, 5, 4, 8)
    mask = random_mask(52, 5, 4)
    padded = sets.masked_fill(~mask[..., None], 0.0)
    similarity.mil(padded, padded, mask, mask)


@pytest.mark.parametrize("k", [0, -1])
def test_top_k_of_fewer_than_one_is_refused(k: int) -> None:
    sets = random_sets(53, 2, 3, 8)
    with pytest.raises(ValueError, match=f"k: expected at least 1, got {k}"):
        similarity.top_k(sets, sets, k=k)


@pytest.mark.parametrize("alpha", [0.0, -16.0, math.nan])
def test_smooth_chamfer_of_an_alpha_that_is_not_positive_is_refused(alpha: float) -> None:
    sets = random_sets(54, 2, 3, 8)
    with pytest.raises(ValueError, match=f"alpha: expected a positive number, got {alpha}"):
        similarity.smooth_chamfer(sets, sets, alpha=alpha)
