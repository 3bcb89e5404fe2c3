"""Protocols against a list sorted for every query, on scores of many values and of few."""

import math
import statistics
from dataclasses import replace

import numpy as np
import pytest
import torch
from made_splits import encoded, split_of, unit
from reference import random_sets
from reference_ranking import slow_figures

from maxmatch.evaluation.metrics import (
    EvaluatedModel,
    Scores,
    averaged,
    chance,
    evaluate,
    figures,
    retrieval,
    search,
    similarity_name,
)
from maxmatch.evaluation.ranking import ranks_both_ways
from maxmatch.matching.similarity import with_options


def made_scores(rows, columns, values=None, height=None):
    """Scores that are there already, in blocks of some rows; of few values or of many."""
    generator = torch.Generator().manual_seed(0)
    if values is None:
        scores = torch.randn(rows, columns, generator=generator)
    else:
        scores = torch.randint(values, (rows, columns), generator=generator).float()
    return scores, Scores(lambda part: scores[part], (rows, columns), height or rows)


@pytest.mark.parametrize("captions", [[5] * 20, [1 + n * n % 7 for n in range(20)]], ids=["five", "any"])
@pytest.mark.parametrize("values", [None, 3])
@pytest.mark.parametrize("height", [20, 7])
def test_coco_is_five_folds_in_order_and_all_of_it_ranked_by_sorted_lists(captions, values, height):
    image_groups = torch.arange(20)
    text_groups = image_groups.repeat_interleave(torch.tensor(captions))
    scores, blocks = made_scores(20, len(text_groups), values, height)
    found = search(blocks, image_groups, text_groups, "coco", fold_size=4)
    assert list(found) == ["coco_1k_", "coco_5k_"]
    assert averaged(found["coco_5k_"]) == pytest.approx(slow_figures(scores, image_groups, text_groups))
    folds = []
    for first in range(0, 20, 4):
        texts = [place for place, group in enumerate(text_groups.tolist()) if first <= group < first + 4]
        part = scores[first : first + 4][:, texts]
        folds.append(slow_figures(part, image_groups[first : first + 4], text_groups[texts]))
    for key, value in averaged(found["coco_1k_"]).items():
        over_folds = sum(fold[key] for fold in folds)
        assert value == pytest.approx(over_folds if "ties" in key else over_folds / 5), key
    assert averaged(found["coco_1k_"])["rsum"] == pytest.approx(statistics.mean(fold["rsum"] for fold in folds))
    (plain,) = search(blocks, image_groups, text_groups).values()
    assert averaged(plain) == averaged(found["coco_5k_"])


def test_folds_are_contiguous_even_if_images_were_left_out():
    image_groups = torch.tensor([0, 1, 3, 4, 5, 6, 7, 8, 9])
    _, scores = made_scores(9, 18)
    found = search(scores, image_groups, image_groups.repeat_interleave(2), "coco", fold_size=2)["coco_1k_"]
    assert [gallery.image_groups.tolist() for gallery in found] == [[0, 1], [3], [4, 5], [6, 7], [8, 9]]
    assert found[1].text_groups.tolist() == [3, 3]


def test_coco_is_recognised_by_its_number_of_images():
    groups, (_, scores) = torch.arange(10), made_scores(10, 10)
    assert list(search(scores, groups, groups, "auto", fold_size=2)) == ["coco_1k_", "coco_5k_"]
    assert list(search(scores, groups, groups, "plain", fold_size=2)) == [""]
    split = encoded(unit(9, 2, 8), unit(9, 2, 8))
    for notes, expected in (({"groups": 10}, ["coco_1k_", "coco_5k_"]), ({}, [""])):  # one image was left out
        kept = EvaluatedModel("m", replace(split, notes=notes))
        assert list(evaluate([kept], fold_size=2).galleries) == expected


@pytest.mark.parametrize(
    ("images", "texts", "fold_size", "named"),
    [
        (range(10), range(10), 1000, r"5 folds of 1,000 images, but this split has 10\. Choose 'plain'"),
        (range(10), range(9, -1, -1), 2, "the captions are not in the order of their groups"),
        ([0, 1, 4, 5, 6, 7, 8, 9], [0, 1, 4, 5, 6, 7, 8, 9], 2, "all images of fold 2 were left out"),
    ],
)
def test_splits_that_have_no_such_folds_are_refused(images, texts, fold_size, named):
    _, scores = made_scores(len(images), len(texts))
    with pytest.raises(ValueError, match=named):
        search(scores, torch.tensor(images), torch.tensor(texts), "coco", fold_size)


@pytest.mark.parametrize("similarity", ["maxmatch", "mil"])
def test_a_result_has_its_figures_its_kind_and_whether_the_sets_collapse(similarity):
    result = evaluate([EvaluatedModel("mine", split_of(images=30, captions=2), similarity)])
    assert (result.name, result.kind, result.similarity) == ("mine", "single", similarity)
    assert result.figures["rsum"] > 300
    assert {"text_log_variance", "slots_used", "pairing_stability"} <= result.figures.keys()
    assert result.figures["image_log_variance"] > -1


def test_one_caption_only_is_found():
    figures = evaluate([EvaluatedModel("one", split_of(images=1, captions=1))]).figures
    assert figures["rsum"] == 600
    assert figures["i2t_mean_rank"] == figures["t2i_median_rank"] == 1


def test_collapsed_sets_find_nothing_and_every_query_ties():
    same = unit(1, 1, 8).expand(40, 4, 8)
    figures = evaluate([EvaluatedModel("same", encoded(same, same))]).figures
    assert figures["rsum"] == 0
    assert figures["i2t_ties"] == figures["t2i_ties"] == 40
    assert figures["text_log_variance"] < -15


def test_the_name_of_a_similarity_tells_its_options():
    for name, options, shown in (("smooth_chamfer", {"alpha": 8}, "smooth_chamfer(alpha=8)"), ("mil", {}, "mil")):
        assert similarity_name(EvaluatedModel("", split_of(2), with_options(name, options))) == shown


@pytest.mark.usefixtures("without_shape_checks")
def test_retrieval_takes_arrays_and_lists():
    images, texts = random_sets(5, 3, 4, 8), random_sets(6, 6, 4, 8)
    groups = torch.arange(3), torch.arange(6) // 2
    expected = retrieval(images, texts, *groups)
    assert retrieval(images.numpy(), texts.numpy(), *(one.numpy() for one in groups)) == expected
    assert retrieval(images.tolist(), texts.tolist(), *(one.tolist() for one in groups)) == expected


def test_retrieval_of_single_vectors_is_that_of_their_cosines():
    images, texts = unit(20, 1, 6), unit(57, 1, 6, seed=1)
    image_groups = torch.arange(20)
    text_groups = torch.cat([torch.arange(20), torch.randint(0, 20, (37,), generator=torch.Generator().manual_seed(2))])
    cosines = images[:, 0].double() @ texts[:, 0].double().T
    expected = slow_figures(cosines, image_groups, text_groups)
    assert retrieval(images, texts, image_groups, text_groups) == pytest.approx(expected)


def test_chance_is_what_random_scores_give_on_average():
    image_groups, text_groups = torch.arange(12), torch.arange(12).repeat_interleave(3)
    generator = torch.Generator().manual_seed(0)
    drawn = [
        figures(*ranks_both_ways(torch.rand(12, 36, generator=generator), image_groups, text_groups))
        for _ in range(100)
    ]
    for name, value in chance(image_groups, text_groups).items():
        values = [one[name] for one in drawn]
        assert abs(np.mean(values) - value) < 4 * np.std(values) / math.sqrt(len(values))


def test_chance_is_that_of_the_formula():
    expected = chance(torch.arange(7), torch.arange(7).repeat_interleave(3))
    assert expected["i2t_r1"] == pytest.approx(100 * 3 / 21, rel=1e-14)
    assert expected["t2i_r5"] == pytest.approx(100 * 5 / 7, rel=1e-14)
    assert expected["i2t_r5"] == pytest.approx(100 * (1 - math.comb(18, 5) / math.comb(21, 5)), rel=1e-14)
