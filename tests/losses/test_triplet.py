"""The triplet loss is the hinge of eqn:triplet-loss: mean per direction, own captions never negatives."""

import pytest
import reference_losses as reference
import torch
from reference_losses import CAPTION_COUNTS, LONE_IMAGE, batch, cost_of, gradients_are_finite, truth
from torch import Tensor

from maxmatch.losses import triplet

MODES = ["hardest", "mean", "semi_hard"]


def gradient(scores: Tensor, positive: Tensor, margin: float, negatives: str) -> Tensor:
    leaf = scores.clone().requires_grad_()
    return torch.autograd.grad(triplet(leaf, positive, margin, negatives), leaf)[0]


@pytest.mark.parametrize("negatives", MODES)
@pytest.mark.parametrize("counts", CAPTION_COUNTS, ids=str)
@pytest.mark.parametrize("margin", [0.05, 0.2, 1.0])
def test_agrees_with_loop(counts: tuple[int, ...], margin: float, negatives: str) -> None:
    for seed in range(3):
        scores, positive = batch(counts, seed)
        expected = reference.triplet(scores, positive, margin, negatives)
        assert triplet(scores, positive, margin, negatives).item() == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("negatives", MODES)
def test_agrees_with_loop_where_images_share_a_caption(negatives: str) -> None:
    scores, positive = batch((2, 3, 1, 2), seed=3)
    positive = positive | batch((2, 3, 1, 2), seed=4)[1]
    expected = reference.triplet(scores, positive, 0.2, negatives)
    assert triplet(scores, positive, 0.2, negatives).item() == pytest.approx(expected, rel=1e-10)


def test_value_by_hand() -> None:
    scores = torch.tensor([[0.9, 0.5, 0.8], [0.3, 0.4, 0.7]], dtype=torch.float64)
    positive = torch.tensor([[True, True, False], [False, False, True]])
    # images to captions: .2+.8−.9, .2+.8−.5, [.2+.4−.7]₊;  captions to images: [.2+.3−.9]₊, .2+.4−.5, .2+.8−.7
    assert triplet(scores, positive, 0.2).item() == pytest.approx((0.1 + 0.5 + 0) / 3 + (0 + 0.1 + 0.3) / 3)


def test_the_sum_of_vsepp_and_the_mean_of_pvse_by_hand() -> None:
    """With all negatives PVSE has half of our mean, 0.0125: it counts the true pairs as zeros (docs/paper-map.md)."""
    scores = torch.tensor([[0.5, 0.45], [0.3, 0.6]], dtype=torch.float64)
    # images to captions: .2+.45−.5, [.2+.3−.6]₊;  captions to images: [.2+.3−.5]₊, .2+.45−.6
    assert triplet(scores, None, 0.2, "hardest", "sum").item() == pytest.approx(0.15 + 0.05)
    assert triplet(scores, None, 0.1, "hardest").item() == pytest.approx(0.025)
    assert triplet(scores, None, 0.1, "mean").item() == pytest.approx(0.025)


@pytest.mark.parametrize("negatives", ["hardest", "mean"])
@pytest.mark.parametrize("size", [2, 5, 16])
def test_the_sum_over_a_square_batch_agrees_with_vsepps_loops(size: int, negatives: str) -> None:
    scores = torch.rand(size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(size))
    expected = 0.0
    for i in range(size):
        others = [j for j in range(size) if j != i]
        caption = [max(0.0, 0.2 + scores[i, j].item() - scores[i, i].item()) for j in others]
        image = [max(0.0, 0.2 + scores[j, i].item() - scores[i, i].item()) for j in others]
        expected += max(caption) + max(image) if negatives == "hardest" else sum(caption) + sum(image)
    assert triplet(scores, None, 0.2, negatives, "sum").item() == pytest.approx(expected, rel=1e-10)
    times = size if negatives == "hardest" else size * (size - 1)
    assert times * triplet(scores, None, 0.2, negatives).item() == pytest.approx(expected, rel=1e-10)


@pytest.mark.usefixtures("without_shape_checks")
def test_an_unknown_reduction_is_refused() -> None:
    with pytest.raises(ValueError, match=r"reduction: .*'median'"):
        triplet(torch.eye(2), None, reduction="median")  # type: ignore[arg-type]


@pytest.mark.parametrize("negatives", MODES)
@pytest.mark.parametrize("counts", CAPTION_COUNTS, ids=str)
def test_single_precision_is_enough(counts: tuple[int, ...], negatives: str) -> None:
    scores, positive = batch(counts, seed=1)
    exact = triplet(scores, positive, 0.2, negatives).item()
    single = triplet(scores.float(), positive, 0.2, negatives)
    assert single.dtype == torch.float32
    assert single.item() == pytest.approx(exact, abs=1e-5)


@pytest.mark.parametrize("negatives", MODES)
def test_gradient_is_right(negatives: str) -> None:
    scores, positive = batch((3, 1, 2), seed=5)
    assert torch.autograd.gradcheck(lambda s: triplet(s, positive, 0.2, negatives), scores.requires_grad_())


@pytest.mark.parametrize("negatives", MODES)
@pytest.mark.parametrize("counts", LONE_IMAGE, ids=str)
def test_lone_image_has_no_negatives_and_no_loss(counts: tuple[int, ...], negatives: str) -> None:
    scores, positive = batch(counts)
    assert triplet(scores, positive, 0.2, negatives).item() == 0
    assert gradient(scores, positive, 0.2, negatives).tolist() == torch.zeros_like(scores).tolist()


@pytest.mark.parametrize("negatives", MODES)
def test_anchor_without_negatives_does_not_spoil_the_others(negatives: str) -> None:
    scores, positive = batch((2, 3, 1))
    positive[0] = True  # image 0 owns every caption
    expected = reference.triplet(scores, positive, 0.2, negatives)
    assert triplet(scores, positive, 0.2, negatives).item() == pytest.approx(expected, rel=1e-10)
    assert gradients_are_finite(lambda s: triplet(s, positive, 0.2, negatives), scores)


@pytest.mark.parametrize("negatives", MODES)
@pytest.mark.parametrize("score", [0.0, -0.6, 1.7])
def test_the_loss_is_twice_the_margin_where_all_scores_are_equal(score: float, negatives: str) -> None:
    positive = truth((3, 1, 2))
    level = torch.full(positive.shape, score, dtype=torch.float64)
    assert triplet(level, positive, 0.3, negatives).item() == pytest.approx(0.6, abs=1e-12)


def test_semi_hard_takes_its_gradient_from_negatives_within_the_margin_only() -> None:
    scores = torch.tensor([[0.5, 0.6, 0.4, 0.1]], dtype=torch.float64)
    scores = torch.cat([scores, torch.tensor([[-9.0, 9.0, 9.0, 9.0]], dtype=torch.float64)])
    positive = torch.tensor([[True, False, False, False], [False, True, True, True]])
    slope = gradient(scores, positive, 0.2, "semi_hard")
    # Image 0: caption 1 is above the positive (cut, but counted), caption 2 within the margin, caption 3 below it.
    assert slope[0].tolist() == pytest.approx([-0.5, 0.0, 0.5, 0.0])
    assert not slope[1].any()


def test_semi_hard_has_no_gradient_at_all_where_every_negative_is_above() -> None:
    positive = truth((2, 1, 3))
    scores = torch.where(positive, 0.0, 1.0).double()
    assert triplet(scores, positive, 0.2, "semi_hard").item() == pytest.approx(0.4)
    assert not gradient(scores, positive, 0.2, "semi_hard").any()


@pytest.mark.usefixtures("without_shape_checks")
def test_unknown_negatives_are_refused_with_the_choices() -> None:
    scores, positive = batch((2, 1))
    with pytest.raises(ValueError, match=r"hardest.*mean.*semi_hard.*'easy'"):
        triplet(scores, positive, 0.2, "easy")


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("spoil", [lambda p: p[:, :-1], lambda p: p.T, lambda p: p.long(), lambda p: p.double()])
def test_positive_that_does_not_go_with_the_scores_is_refused(spoil) -> None:
    scores, positive = batch((2, 1))
    with pytest.raises(ValueError, match=r"positive"):
        triplet(scores, spoil(positive))


@pytest.mark.parametrize("negatives", MODES)
def test_no_loop_over_items_and_no_more_than_pairs_times_negatives(negatives: str) -> None:
    costs = []
    for images in (4, 24):
        scores, positive = batch([3] * images)
        cost = cost_of(lambda s, p: triplet(s, p, 0.2, negatives), scores, positive)
        entries = scores.numel() if negatives == "hardest" else scores.shape[1] ** 2
        assert cost.largest <= entries
        costs.append(cost.operations)
    assert costs[0] == costs[1]
