"""CON sets each true pair against all negatives of its anchor, and against no other positive."""

import math

import pytest
import reference_losses as reference
import torch
from reference_losses import CAPTION_COUNTS, LONE_IMAGE, batch, cost_of, gradients_are_finite, truth, units
from torch import Tensor

from maxmatch.losses import caption_matching, contrastive, phrase_contrastive


@pytest.mark.parametrize("counts", CAPTION_COUNTS, ids=str)
@pytest.mark.parametrize("temperature", [0.01, 0.05, 1.0])
def test_agrees_with_loop(counts: tuple[int, ...], temperature: float) -> None:
    for seed in range(3):
        scores, positive = batch(counts, seed)
        expected = reference.contrastive(scores, positive, temperature)
        assert contrastive(scores, positive, temperature).item() == pytest.approx(expected, rel=1e-10)


def test_agrees_with_loop_where_the_loss_is_tiny() -> None:
    scores, positive = batch((3, 1, 2))
    scores = torch.where(positive, scores + 2, scores)
    expected = reference.contrastive(scores, positive, 0.05)
    assert 0 < expected < 1e-8
    assert contrastive(scores, positive, 0.05).item() == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("counts", CAPTION_COUNTS, ids=str)
@pytest.mark.parametrize("temperature", [0.05, 1.0])
def test_single_precision_is_enough(counts: tuple[int, ...], temperature: float) -> None:
    scores, positive = batch(counts, seed=1)
    scores = scores.float().double()  # so that both see the same scores, which are divided by a small temperature
    single = contrastive(scores.float(), positive, temperature)
    assert single.dtype == torch.float32
    assert single.item() == pytest.approx(contrastive(scores, positive, temperature).item(), abs=1e-5)


@pytest.mark.parametrize("temperature", [0.05, 1.0])
def test_gradient_is_right(temperature: float) -> None:
    scores, positive = batch((3, 1, 2), seed=5)
    assert torch.autograd.gradcheck(lambda s: contrastive(s, positive, temperature), scores.requires_grad_())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_widest_scores_there_are_do_not_overflow(dtype: torch.dtype) -> None:
    """Scores reach from exp(−1) − 1 to e − 1; at τ = 0.01 that is a quotient of e^235."""
    _, positive = batch((3, 1, 2))
    worst = torch.where(positive, math.exp(-1) - 1, math.e - 1).to(dtype)
    spread = (math.e - math.exp(-1)) / 0.01
    for scores in (worst, -worst):
        assert gradients_are_finite(lambda s: contrastive(s, positive), scores)
    assert contrastive(worst, positive).item() == pytest.approx(2 * spread, rel=0.01)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("counts", LONE_IMAGE, ids=str)
def test_lone_image_has_no_negatives_and_no_loss(counts: tuple[int, ...], dtype: torch.dtype) -> None:
    scores, positive = batch(counts)
    scores = scores.to(dtype).requires_grad_()
    loss = contrastive(scores, positive)
    assert loss.item() == 0
    assert torch.autograd.grad(loss, scores)[0].tolist() == torch.zeros_like(scores).tolist()


def test_anchor_without_negatives_does_not_spoil_the_others() -> None:
    scores, positive = batch((2, 3, 1))
    positive[0] = True  # image 0 owns every caption
    assert contrastive(scores, positive, 0.1).item() == pytest.approx(
        reference.contrastive(scores, positive, 0.1), rel=1e-10
    )
    assert gradients_are_finite(lambda s: contrastive(s, positive), scores)


@pytest.mark.parametrize("rows", [[0], [0, 1, 2]])
def test_anchor_without_positives_gives_no_nan(rows: list[int]) -> None:
    scores, positive = batch((2, 3, 1))
    positive[rows] = False
    assert gradients_are_finite(lambda s: contrastive(s, positive), scores)


def test_equal_scores_leave_the_choice_among_itself_and_the_negatives() -> None:
    _, positive = batch((3, 1, 2))
    expected = (math.log(1 + 3) + math.log(1 + 5) + math.log(1 + 4)) / 3 + math.log(1 + 2)
    assert contrastive(torch.full(positive.shape, 0.4).double(), positive).item() == pytest.approx(expected)


@pytest.mark.parametrize("temperature", [0.0, -0.01, math.nan])
def test_temperature_must_be_positive(temperature: float) -> None:
    scores, positive = batch((2, 1))
    with pytest.raises(ValueError, match="temperature"):
        contrastive(scores, positive, temperature)


def test_no_loop_over_items_and_nothing_larger_than_the_scores() -> None:
    costs = []
    for images in (4, 24):
        scores, positive = batch([3] * images)
        cost = cost_of(contrastive, scores, positive)
        assert cost.largest <= scores.numel()
        costs.append(cost.operations)
    assert costs[0] == costs[1]


@pytest.mark.parametrize("temperature", [0.05, 1.0])
def test_each_image_that_a_phrase_fits_stands_against_those_that_it_does_not(temperature: float) -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(6, 9, generator=generator).double()
    fits = torch.rand(6, 9, generator=generator) < 0.4
    fits[:, 3] = False  # a phrase that fits no image is left out
    fits[:, 4] = True  # one that fits all has nothing to tell apart
    costs = []
    for phrase in (0, 1, 2, 4, 5, 6, 7, 8):
        own = [scores[image, phrase].item() / temperature for image in range(6) if fits[image, phrase]]
        others = [scores[image, phrase].item() / temperature for image in range(6) if not fits[image, phrase]]
        costs.append(sum(math.log(sum(math.exp(s - one) for s in (one, *others))) for one in own) / len(own))
    expected = sum(costs) / len(costs)
    assert phrase_contrastive(scores, fits, temperature).item() == pytest.approx(expected, rel=1e-9)
    with pytest.raises(ValueError, match="temperature"):
        phrase_contrastive(scores, fits, 0.0)


def pooled(texts: Tensor) -> Tensor:
    return torch.nn.functional.normalize(texts.mean(1), dim=-1)


def partners_of(sets: Tensor, texts: Tensor, positive: Tensor) -> Tensor:
    """The caption of each slot, by the loops."""
    found = torch.full(sets.shape[:2], -1)
    for i, mine in enumerate(positive.tolist()):
        own = [j for j, true in enumerate(mine) if true]
        for k, j in reference.slot_captions(sets[i].tolist(), pooled(texts).tolist(), own).items():
            found[i, k] = j
    return found


@pytest.mark.parametrize("counts", [(5, 5, 5), (1, 1, 1), (3, 1, 2, 5), (0, 2, 4), (6, 1)], ids=str)
@pytest.mark.parametrize(("size", "temperature"), [(4, 0.05), (4, 1.0), (2, 0.1), (1, 0.1)])
def test_caption_matching_agrees_with_loop(counts: tuple[int, ...], size: int, temperature: float) -> None:
    positive = truth(counts, seed=1)
    sets, texts = units(len(counts), size, 6, seed=2), units(sum(counts), 3, 6, seed=3)
    found = caption_matching(sets @ pooled(texts).T, positive, partners_of(sets, texts, positive), temperature)
    expected = reference.caption_matching(sets, texts, positive, temperature)
    assert found.item() == pytest.approx(expected, rel=1e-10)


def test_the_gradient_of_caption_matching_is_right_and_only_reaches_slots_with_a_caption() -> None:
    positive = truth((2, 1, 3), seed=1)
    sets, texts = units(3, 3, 4, seed=2), units(6, 2, 4, seed=3)
    cosines, partners = (sets @ pooled(texts).T).requires_grad_(), partners_of(sets, texts, positive)
    assert torch.autograd.gradcheck(lambda c: caption_matching(c, positive, partners, 0.5), cosines)
    (gradient,) = torch.autograd.grad(caption_matching(cosines, positive, partners, 0.5), cosines)
    assert (gradient.abs().sum(2) > 0).tolist() == (partners >= 0).tolist()
    others = positive[:, None] & (torch.arange(6) != partners[..., None])
    assert not gradient[others].any()  # an image's other captions neither attract nor repel


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_caption_matching_without_negatives_or_captions_has_no_loss_and_a_finite_gradient(dtype: torch.dtype) -> None:
    cosines = torch.rand(1, 2, 3, dtype=dtype, generator=torch.Generator().manual_seed(0))
    for own, partners in ((True, [[0, 2]]), (False, [[-1, -1]])):
        leaf = cosines.clone().requires_grad_()
        loss = caption_matching(leaf, torch.full((1, 3), own), torch.tensor(partners))
        assert loss.item() == 0
        assert not torch.autograd.grad(loss, leaf)[0].any()


@pytest.mark.usefixtures("without_shape_checks")
def test_caption_matching_refuses_what_does_not_go_together() -> None:
    cosines, own, partners = torch.rand(2, 3, 4), torch.rand(2, 4) > 0.5, torch.zeros(2, 3, dtype=torch.long)
    for given, named in (
        ((cosines[0], own, partners), "cosines"),
        ((cosines, own.T, partners), "positive"),
        ((cosines, own, partners.T), "partners"),
        ((cosines, own, partners.float()), "partners"),
        ((cosines, own, partners, 0.0), "temperature"),
    ):
        with pytest.raises(ValueError, match=named):
            caption_matching(*given)


def test_caption_matching_has_no_loop_over_items() -> None:
    costs = []
    for images in (4, 24):
        positive = truth([3] * images)
        partners = torch.arange(3 * images).view(images, 3)
        cost = cost_of(caption_matching, units(images, 3, 6) @ units(3 * images, 6).T, positive, partners)
        assert cost.largest <= images * 3 * 3 * images
        costs.append(cost.operations)
    assert costs[0] == costs[1]
