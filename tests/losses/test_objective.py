"""The training loss is the weighted sum of its named terms (eqn:combined-loss)."""

import inspect
import math

import pytest
import reference_losses as reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_losses import CAPTION_COUNTS, batch, cost_of, normal, units
from torch import Tensor

from maxmatch import losses
from maxmatch.core.types import Sets
from maxmatch.losses import objective
from maxmatch.losses.objective import TERMS as TABLE
from maxmatch.losses.objective import LossTerms

quick = settings(max_examples=20, deadline=None, derandomize=True)
TERMS = {
    "triplet": "triplet_weight",
    "global_discriminative": "gd_weight",
    "intra_set_divergence": "isd_weight",
    "mmd": "mmd_weight",
    "diversity": "div_weight",
    "contrastive": "con_weight",
}
# All but distillation, which takes teachers: see test_distillation.
ALL_ON = dict(zip(TERMS.values(), (1.0, 0.1, 0.2, 0.3, 0.4, 0.5), strict=True))


def some_sets(items: int, size: int, width: int, seed: int) -> Sets:
    return Sets(
        vectors=units(items, size, width, seed=seed),
        residual=5 * normal(items, size, width, seed=seed + 1),
        pooled=5 * normal(items, width, seed=seed + 2),
    )


def some_batch(
    counts: tuple[int, ...] = (3, 1, 2), image_size: int = 4, text_size: int = 3, width: int = 5
) -> tuple[Tensor, Tensor, Sets, Sets]:
    scores, positive = batch(counts)
    images = some_sets(scores.shape[0], image_size, width, seed=10)
    texts = some_sets(scores.shape[1], text_size, width, seed=20)
    return scores, positive, images, texts


def as_dict(terms: LossTerms) -> dict[str, Tensor | None]:
    return {name: getattr(terms, name) for name in TERMS}


@quick
@given(st.fixed_dictionaries({weight: st.sampled_from([0.0, 0.01, 0.1, 1.0, 3.0]) for weight in TERMS.values()}))
def test_total_is_the_weighted_sum_of_the_terms_and_a_term_of_weight_zero_is_none(weights: dict[str, float]) -> None:
    terms = objective(*some_batch(), **weights)
    expected = 0.0
    for name, value in as_dict(terms).items():
        weight = weights[TERMS[name]]
        assert (value is None) == (weight == 0)
        if value is not None:
            assert value.shape == ()
            expected += weight * value.item()
    assert terms.total.shape == ()
    assert terms.total.item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("counts", "diversity"), [(CAPTION_COUNTS[0], "pvse"), *((counts, "uniformity") for counts in CAPTION_COUNTS[2:])]
)
def test_every_term_agrees_with_its_loop(counts: tuple[int, ...], diversity: str) -> None:
    """GD is the average of the two modalities; ISD and Div are their sums."""
    scores, positive, images, texts = some_batch(counts)
    terms = objective(
        scores,
        positive,
        images,
        texts,
        **ALL_ON,
        margin=0.3,
        negatives="mean",
        gd_margin=0.7,
        isd_margin=0.4,
        scale=0.9,
        temperature=0.05,
        diversity=diversity,
    )
    apart = {"uniformity": reference.uniformity, "pvse": reference.pvse_diversity}[diversity]
    expected = {
        "triplet": reference.triplet(scores, positive, 0.3, "mean"),
        "global_discriminative": (
            reference.global_discriminative(images.vectors, images.pooled, 0.7, 0.9)
            + reference.global_discriminative(texts.vectors, texts.pooled, 0.7, 0.9)
        )
        / 2,
        "intra_set_divergence": reference.intra_set_divergence(images.vectors, 0.4, 0.9)
        + reference.intra_set_divergence(texts.vectors, 0.4, 0.9),
        "mmd": reference.mmd(images.vectors, texts.vectors),
        "diversity": apart(images.residual) + apart(texts.residual),
        "contrastive": reference.contrastive(scores, positive, 0.05),
    }
    for name, value in as_dict(terms).items():
        assert value is not None
        assert value.item() == pytest.approx(expected[name], rel=1e-10), name
    total = sum(ALL_ON[TERMS[name]] * value for name, value in expected.items())
    assert terms.total.item() == pytest.approx(total, rel=1e-10)


def test_defaults_are_those_of_the_recipes() -> None:
    """λ: TRI 1, GD and ISD 0.1, MMD and Div 0.01, CON 0; δ₁ 0.2, δ₂ and δ₃ 0.6, s 0.5, τ 0.01, uniformity."""
    weights = dict(zip(TERMS.values(), (1.0, 0.1, 0.1, 0.01, 0.01, 0.0), strict=True))
    others = {"margin": 0.2, "gd_margin": 0.6, "isd_margin": 0.6, "scale": 0.5, "temperature": 0.01}
    choices = {"negatives": "hardest", "triplet_reduction": "mean", "diversity": "uniformity", "gd_on": "sets"}
    choices |= {"gd_isd_centred": False}
    taught = {"distill_weight": 0.0, "distill_temperature": 0.05, "teachers": None}
    taught |= {"phrase_weight": 0.0, "phrases": None}
    pcmepp = {"bce_weight": 0.0, "pseudo_positives": 0.1, "label_smoothing": 1e-4, "match": None, "kl_weight": 0.0}
    matched = {"caption_matching_weight": 0.0, "captions": None}
    assert {name: term.weight for name, term in TABLE.items()} == {
        **TERMS, "distillation": "distill_weight", "phrases": "phrase_weight", "pair_bce": "bce_weight",
        "gaussian_kl": "kl_weight", "caption_matching": "caption_matching_weight",
    }  # fmt: skip
    parameters = inspect.signature(objective).parameters.values()
    assert weights | others | choices | taught | pcmepp | matched == {
        one.name: one.default for one in parameters if one.kind is one.KEYWORD_ONLY
    }


@pytest.mark.parametrize(
    ("loss", "names"),
    [
        (losses.triplet, {"margin": "margin", "negatives": "negatives", "reduction": "triplet_reduction"}),
        (losses.contrastive, {"temperature": "temperature"}),
        (losses.caption_matching, {"temperature": "temperature"}),
        (losses.global_discriminative, {"margin": "gd_margin", "scale": "scale"}),
        (losses.intra_set_divergence, {"margin": "isd_margin", "scale": "scale"}),
    ],
)
def test_each_loss_has_the_defaults_of_the_objective(loss, names: dict[str, str]) -> None:
    own, whole = inspect.signature(loss).parameters, inspect.signature(objective).parameters
    assert {name: own[name].default for name in names} == {name: whole[key].default for name, key in names.items()}


def test_gd_keeps_the_residual_from_the_global_feature_where_that_is_asked() -> None:
    scores, positive, images, texts = some_batch()
    terms = objective(scores, positive, images, texts, gd_on="residual", gd_margin=0.7, scale=0.9)
    expected = [reference.global_discriminative(side.residual, side.pooled, 0.7, 0.9) for side in (images, texts)]
    assert terms.global_discriminative is not None
    assert terms.global_discriminative.item() == pytest.approx(sum(expected) / 2, rel=1e-10)
    assert terms.intra_set_divergence == objective(scores, positive, images, texts, scale=0.9).intra_set_divergence


@pytest.mark.parametrize("on", ["sets", "residual"])
def test_gd_and_isd_see_slots_without_their_mean_over_the_batch_where_that_is_asked(on: str) -> None:
    scores, positive, images, texts = some_batch()
    terms = objective(scores, positive, images, texts, gd_on=on, gd_isd_centred=True, gd_margin=0.7, scale=0.9)
    gd, isd = 0.0, 0.0
    for side in (images, texts):
        slots = reference.centred(side.vectors if on == "sets" else side.residual)
        phi = reference.centred(side.pooled[:, None])[:, 0]
        gd += reference.global_discriminative(slots, phi, 0.7, 0.9) / 2
        isd += reference.intra_set_divergence(reference.centred(side.vectors), 0.6, 0.9)
    assert terms.global_discriminative is not None
    assert terms.intra_set_divergence is not None
    assert terms.global_discriminative.item() == pytest.approx(gd, rel=1e-10)
    assert terms.intra_set_divergence.item() == pytest.approx(isd, rel=1e-10)
    assert terms.diversity == objective(scores, positive, images, texts).diversity


def test_a_term_of_weight_zero_is_not_computed() -> None:
    """What only that term reads may be anything."""
    scores, positive, images, texts = some_batch()
    without_residual = [side._replace(residual=side.residual * math.nan) for side in (images, texts)]
    assert objective(scores, positive, *without_residual, div_weight=0.0).total.isfinite()
    without_pooled = [side._replace(pooled=side.pooled * math.nan) for side in (images, texts)]
    assert objective(scores, positive, *without_pooled, gd_weight=0.0).total.isfinite()
    assert objective(scores * math.nan, positive, images, texts, triplet_weight=0.0).total.isfinite()


@pytest.mark.parametrize("diversity", ["uniformity", "pvse"])
def test_gradient_of_the_total_is_right(diversity: str) -> None:
    scores, positive, images, texts = some_batch((2, 1), image_size=2, text_size=2, width=3)

    def total(*inputs: Tensor) -> Tensor:
        scores, *rest = inputs
        sides = Sets(*rest[:3]), Sets(*rest[3:])
        return objective(scores, positive, *sides, **ALL_ON, temperature=0.1, diversity=diversity).total

    inputs = [scores, images.vectors, images.residual, images.pooled, texts.vectors, texts.residual, texts.pooled]
    # Every loss has its own full check; here it is enough to try one direction.
    assert torch.autograd.gradcheck(total, tuple(x.requires_grad_() for x in inputs), fast_mode=True)


def in_single_precision(side: Sets) -> Sets:
    return Sets(vectors=side.vectors.float(), residual=side.residual.float(), pooled=side.pooled.float())


def test_single_precision_is_enough() -> None:
    scores, positive, images, texts = some_batch((5, 5, 1, 5, 3), width=64)
    exact = objective(scores, positive, images, texts, **ALL_ON, temperature=0.1)
    single = objective(scores.float(), positive, *map(in_single_precision, (images, texts)), **ALL_ON, temperature=0.1)
    assert single.total.dtype == torch.float32
    assert single.total.item() == pytest.approx(exact.total.item(), abs=1e-5)
    for name, value in as_dict(single).items():
        other = getattr(exact, name)
        assert value is not None
        assert value.item() == pytest.approx(other.item(), abs=1e-5), name


@pytest.mark.parametrize("counts", [(1,), (5,)], ids=str)
@pytest.mark.parametrize(("size", "diversity"), [(1, "uniformity"), (1, "pvse"), (4, "pvse")])
def test_lone_image_gives_finite_terms_and_gradients(counts: tuple[int, ...], size: int, diversity: str) -> None:
    scores, positive, images, texts = some_batch(counts, image_size=size, text_size=size)
    leaves = [scores, images.vectors, texts.vectors, images.residual, texts.residual, images.pooled, texts.pooled]
    for leaf in leaves:
        leaf.requires_grad_()
    terms = objective(scores, positive, images, texts, **ALL_ON, diversity=diversity)
    terms.total.backward()
    assert terms.total.isfinite()
    assert all(leaf.grad is not None and leaf.grad.isfinite().all() for leaf in leaves)
    assert terms.triplet is not None
    assert terms.contrastive is not None
    assert terms.triplet.item() == terms.contrastive.item() == 0
    if size == 1:
        assert terms.intra_set_divergence is not None
        assert terms.diversity is not None
        assert terms.intra_set_divergence.item() == terms.diversity.item() == 0


def test_caption_matching_takes_its_cosines_and_pairs_with_the_batch_and_the_temperature_of_the_contrastive_loss() -> (
    None
):
    scores, positive, images, texts = some_batch()
    cosines = images.vectors @ normal(5, positive.shape[1], seed=3)
    partners = torch.arange(4).expand(3, 4)
    options = {"caption_matching_weight": 2.0, "temperature": 0.3, "triplet_weight": 0.0}
    terms = objective(scores, positive, images, texts, **options, captions=(cosines, partners))
    alone = losses.caption_matching(cosines, positive, partners, 0.3)
    assert terms.caption_matching == alone
    without = objective(scores, positive, images, texts, temperature=0.3, triplet_weight=0.0)
    assert terms.total.item() == pytest.approx(without.total.item() + 2 * alone.item(), rel=1e-12)
    with pytest.raises(ValueError, match="captions"):
        objective(scores, positive, images, texts, **options)


@pytest.mark.usefixtures("without_shape_checks")
def test_unknown_diversity_is_refused_with_the_choices() -> None:
    with pytest.raises(ValueError, match=r"uniformity.*pvse.*'entropy'"):
        objective(*some_batch(), diversity="entropy")


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("name", ["scores", "images", "texts"])
def test_what_is_no_tensor_or_no_sets_is_refused_by_name(name: str) -> None:
    given = dict(zip(("scores", "positive", "images", "texts"), some_batch(), strict=True))
    wrong = [given[name].numpy(), given[name].tolist()] if isinstance(given[name], Tensor) else [given[name].vectors]
    for one in [*wrong, None]:
        with pytest.raises(ValueError, match=f"{name}: expected .*got .*{type(one).__name__}"):
            objective(**{**given, name: one})


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("spoil", [lambda p: p[:, :-1], lambda p: p.T, lambda p: p.long(), lambda p: p.double()])
@pytest.mark.parametrize("weights", [{}, {"triplet_weight": 0.0, "con_weight": 0.001}])
def test_positive_that_does_not_go_with_the_scores_is_refused(spoil, weights: dict[str, float]) -> None:
    scores, positive, images, texts = some_batch()
    with pytest.raises(ValueError, match="positive"):
        objective(scores, spoil(positive), images, texts, **weights)


def test_no_loop_over_items_and_no_tensor_of_differences() -> None:
    costs = []
    for counts in ((3, 1, 2, 2), (5,) * 12):
        _, positive, images, texts = some_batch(counts, image_size=4, text_size=4, width=64)
        scores, captions = batch(counts)[0], positive.shape[1]

        def total(scores: Tensor, *rest: Tensor, positive: Tensor = positive) -> Tensor:
            return objective(scores, positive, Sets(*rest[:3]), Sets(*rest[3:]), **ALL_ON).total

        sides = [getattr(side, name) for side in (images, texts) for name in ("vectors", "residual", "pooled")]
        cost = cost_of(total, scores, *sides)
        assert cost.largest <= max((captions * 4) ** 2, captions * 4 * 64)
        costs.append(cost.operations)
    assert costs[0] == costs[1]
