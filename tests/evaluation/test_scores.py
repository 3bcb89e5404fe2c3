"""Scores of models and ensembles: held or in blocks, and what cannot be averaged."""

from dataclasses import replace

import pytest
import torch
from made_splits import encoded, split_of, unit

from maxmatch.core.checks import NotFiniteError
from maxmatch.evaluation.encoding import EncodedSplit
from maxmatch.evaluation.metrics import EvaluatedModel, evaluate, scores_of
from maxmatch.matching import similarity


def all_of(scores):
    return torch.cat([scores.rows(block) for block in scores.blocks()])


def test_scores_of_an_ensemble_are_the_mean_whatever_k_and_d_the_members_have():
    members = [
        EvaluatedModel("a", split_of(size=4, width=6)),
        EvaluatedModel("b", split_of(size=2, width=9, seed=5), "mil"),
        EvaluatedModel("c", split_of(size=3, width=4, seed=7), "chamfer"),
    ]
    single = [
        getattr(similarity, one.similarity)(*(one.encoded.sets[name] for name in ("image", "text"))) for one in members
    ]
    for member, expected in zip(members, single, strict=True):
        torch.testing.assert_close(all_of(scores_of([member])), expected)
    torch.testing.assert_close(all_of(scores_of(members)), sum(single) / 3)
    result = evaluate(members)
    assert (result.kind, result.members, result.similarity) == ("ensemble of 3", 3, "maxmatch + mil + chamfer")
    assert "image_log_variance" not in result.figures


@pytest.mark.parametrize("max_memory", [2**20, 900])
def test_an_ensemble_leaves_given_scores_as_they_are(max_memory):
    split = split_of()
    kept = torch.randn(20, 60, generator=torch.Generator().manual_seed(0))
    given, other = kept.clone(), EvaluatedModel("b", split)
    scores = scores_of([EvaluatedModel("a", split, given=lambda rows: kept[rows]), other], max_memory=max_memory)
    expected = (given + all_of(scores_of([other]))) / 2
    for _ in range(2):  # blocks are asked for twice
        torch.testing.assert_close(all_of(scores), expected)
    assert torch.equal(kept, given)


@pytest.mark.parametrize("name", ["mil", "mean", "maxsim", "maxmatch", "cosine", "dot"])
def test_sets_of_one_vector_are_scored_as_by_their_similarity(name):
    split = split_of(size=1, width=7)
    images, texts = (split.sets[side] for side in ("image", "text"))
    cosines = images[:, 0] @ texts[:, 0].T
    expected = cosines if name in ("cosine", "dot") else getattr(similarity, name)(images, texts)
    torch.testing.assert_close(all_of(scores_of([EvaluatedModel("a", split, name)], max_memory=900)), expected)
    split.sets["text"][4] = torch.nan
    with pytest.raises(NotFiniteError, match="text 4"):
        scores_of([EvaluatedModel("a", split, name)])


@pytest.mark.parametrize(("count", "captions"), [(1, 3), (2, 1)])
def test_blocks_have_the_figures_of_the_whole_matrix_and_do_not_change(count, captions):
    members = [EvaluatedModel("a", split_of(25, captions, noise=2.5, seed=n)) for n in range(count)]
    whole = evaluate(members)
    row = 25 * captions * 4
    for rows, heights in ((6, [6, 6, 6, 6, 1]), (24, [24, 1])):
        scores = scores_of(members, max_memory=rows * row * count)
        assert [len(scores.rows(block)) for block in scores.blocks()] == heights
        for block in scores.blocks():
            assert torch.equal(scores.rows(block), scores.rows(block))
        assert evaluate(members, scores=scores).figures == pytest.approx(whole.figures)
    assert 0 < whole.figures["rsum"] < 600
    assert scores_of(members, max_memory=1).height == 1


def renamed(split, places):
    ids = [split.ids["text"][place] for place in places]
    return replace(split, ids={**split.ids, "text": ids})


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (
            renamed(split_of(), [0, 1, 2, 3, 5, 4, *range(6, 60)]),
            "text 4 is 'text-4' in a and 'text-5' in b: .*compared",
        ),
        (split_of(19), "image 19 is 'image-19' in a and missing in b"),
        (replace(split_of(19), ids={}), "a has 20 images and b 19"),
        (
            replace(split_of(), groups={**split_of().groups, "text": split_of().groups["text"].flip(0)}),
            "text 0 belongs to group 0 in a and to 19 in b",
        ),
        (replace(split_of(), notes={"split": "test"}), "a is of the split 'val' and b of 'test'"),
    ],
)
def test_members_of_other_items_are_refused_and_the_first_difference_named(other, named):
    first = replace(split_of(), notes={"split": "val"})
    with pytest.raises(ValueError, match=named):
        scores_of([EvaluatedModel("a", first), EvaluatedModel("b", other)])


@pytest.mark.parametrize("name", ["maxmatch", "chamfer"])
@pytest.mark.parametrize("memory", [2**30, 4 * 60 * 3])
def test_vectors_that_are_nan_are_named_with_model_and_item(name, memory):
    split = split_of()
    for modality, place in (("image", 13), ("text", 2)):
        sets = {**split.sets, modality: split.sets[modality].clone()}
        sets[modality][place, 1, 3] = torch.nan
        members = [EvaluatedModel("a", split, name), EvaluatedModel("run-b", replace(split, sets=sets), name)]
        with pytest.raises(NotFiniteError, match=rf"run-b: the vectors of {modality} {place} \({modality}-{place}\)"):
            evaluate(members, max_memory=memory)


def test_splits_without_items_or_without_texts_are_refused():
    with pytest.raises(ValueError, match="a: the split is empty"):
        evaluate([EvaluatedModel("a", encoded(unit(1, 4, 6)[:0], unit(1, 4, 6)[:0]))])
    with pytest.raises(ValueError, match="a: has image, but no text"):
        evaluate([EvaluatedModel("a", EncodedSplit({"image": unit(2, 4, 6)}, {"image": torch.arange(2)}))])
