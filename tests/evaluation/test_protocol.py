"""Protocols against a list sorted for every query, on scores of many values and of few."""

import math
import statistics

import numpy as np
import pytest
import torch
from made_splits import split_of, unit

from maxmatch.evaluation.encoding import EncodedSplit
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


def fixed(scores, height=None):
    """Scores that are there already, in blocks of some rows."""
    return Scores(lambda rows: scores[rows], tuple(scores.shape), height or len(scores))


def made_scores(rows, columns, values, seed=0):
    generator = torch.Generator().manual_seed(seed)
    if values is None:
        return torch.randn(rows, columns, generator=generator)
    return torch.randint(values, (rows, columns), generator=generator).float()


def sorted_ranks(scores, row_groups, column_groups):
    """For each row a sorted list, at one score the wrong answers first; the place of the first true one; its ties."""
    found = []
    for row, group in zip(scores.tolist(), row_groups, strict=True):
        answers = sorted((-score, other == group) for score, other in zip(row, column_groups, strict=True))
        place = next(place for place, (_, true) in enumerate(answers) if true)
        found.append((place + 1, sum(1 for score, true in answers if score == answers[place][0] and not true)))
    return found


def naive_figures(scores, image_groups, text_groups):
    images, texts = image_groups.tolist(), text_groups.tolist()
    sides = {"i2t": sorted_ranks(scores, images, texts), "t2i": sorted_ranks(scores.T, texts, images)}
    found = {}
    for way, side in sides.items():
        ranks = [rank for rank, _ in side]
        for level in (1, 5, 10):
            found[f"{way}_r{level}"] = 100 * sum(rank <= level for rank in ranks) / len(ranks)
        found[f"{way}_median_rank"] = statistics.median(ranks)
        found[f"{way}_mean_rank"] = sum(ranks) / len(ranks)
        found[f"{way}_ties"] = sum(ties > 0 for _, ties in side)
    found["rsum"] = sum(found[f"{way}_r{level}"] for way in sides for level in (1, 5, 10))
    return found


CAPTIONS = {"one": [1] * 20, "five": [5] * 20, "any": [1 + n * n % 7 for n in range(20)]}


@pytest.mark.parametrize("captions", CAPTIONS.values(), ids=CAPTIONS)
@pytest.mark.parametrize("values", [None, 40, 3, 1])
@pytest.mark.parametrize("height", [20, 7, 1])
def test_the_plain_protocol_agrees_with_sorted_lists(captions, values, height):
    image_groups = torch.arange(20)
    text_groups = image_groups.repeat_interleave(torch.tensor(captions))
    scores = made_scores(20, len(text_groups), values)
    (found,) = search(fixed(scores, height), image_groups, text_groups).values()
    assert averaged(found) == pytest.approx(naive_figures(scores, image_groups, text_groups))


@pytest.mark.parametrize("captions", CAPTIONS.values(), ids=CAPTIONS)
@pytest.mark.parametrize("values", [None, 40, 3, 1])
@pytest.mark.parametrize("height", [20, 7, 1])
def test_the_protocol_of_coco_agrees_with_sorted_lists_of_five_contiguous_folds(captions, values, height):
    image_groups = torch.arange(20)
    text_groups = image_groups.repeat_interleave(torch.tensor(captions))
    scores = made_scores(20, len(text_groups), values)
    found = search(fixed(scores, height), image_groups, text_groups, "coco", fold_size=4)
    assert list(found) == ["coco_1k_", "coco_5k_"]
    assert averaged(found["coco_5k_"]) == pytest.approx(naive_figures(scores, image_groups, text_groups))
    folds = []
    for first in range(0, 20, 4):
        texts = [place for place, group in enumerate(text_groups.tolist()) if first <= group < first + 4]
        part = scores[first : first + 4][:, texts]
        folds.append(naive_figures(part, image_groups[first : first + 4], text_groups[texts]))
    for key, value in averaged(found["coco_1k_"]).items():
        over_folds = sum(fold[key] for fold in folds)
        assert value == pytest.approx(over_folds if "ties" in key else over_folds / 5), key
    assert averaged(found["coco_1k_"])["rsum"] == pytest.approx(statistics.mean(fold["rsum"] for fold in folds))


def test_folds_are_contiguous_also_where_images_were_left_out():
    image_groups = torch.tensor([0, 1, 3, 4, 5, 6, 7, 8, 9])
    text_groups = image_groups.repeat_interleave(2)
    found = search(fixed(made_scores(9, 18, None)), image_groups, text_groups, "coco", fold_size=2)
    folds = [gallery.image_groups.tolist() for gallery in found["coco_1k_"]]
    assert folds == [[0, 1], [3], [4, 5], [6, 7], [8, 9]]
    assert [gallery.text_groups.tolist() for gallery in found["coco_1k_"]][1] == [3, 3]


def test_coco_is_recognised_by_its_number_of_images_and_refused_for_another():
    groups = torch.arange(10)
    scores = fixed(made_scores(10, 10, None))
    assert list(search(scores, groups, groups, "auto", fold_size=2)) == ["coco_1k_", "coco_5k_"]
    assert list(search(scores, groups, groups, "plain", fold_size=2)) == [""]
    assert list(search(scores, groups, groups)) == [""]
    with pytest.raises(ValueError, match=r"5 folds of 1,000 images, but this split has 10\. Take --protocol plain"):
        search(scores, groups, groups, "coco")


def test_folds_of_items_in_no_order_are_refused():
    groups = torch.arange(10)
    with pytest.raises(ValueError, match="the captions are not in the order of their groups"):
        search(fixed(made_scores(10, 10, None)), groups, groups.flip(0), "coco", fold_size=2)


def test_a_fold_that_lost_all_its_images_is_refused():
    groups = torch.tensor([0, 1, 4, 5, 6, 7, 8, 9])
    with pytest.raises(ValueError, match="all images of fold 2 were left out"):
        search(fixed(made_scores(8, 8, None)), groups, groups, "coco", fold_size=2)


@pytest.mark.parametrize("similarity", ["maxmatch", "mil"])
def test_a_result_has_its_figures_its_kind_and_whether_the_sets_collapse(similarity):
    split = split_of(images=30, captions=2)
    result = evaluate([EvaluatedModel("mine", split, similarity)])
    assert (result.name, result.kind, result.similarity) == ("mine", "single", similarity)
    assert list(result.galleries) == [""]
    assert result.figures["rsum"] > 300
    assert {"image_log_variance", "text_log_variance", "slots_used", "pairing_stability"} <= result.figures.keys()
    assert result.figures["image_log_variance"] > -1


def test_one_caption_only_is_found():
    figures = evaluate([EvaluatedModel("one", split_of(images=1, captions=1))]).figures
    assert figures["rsum"] == 600
    assert figures["i2t_mean_rank"] == figures["t2i_median_rank"] == 1


def test_collapsed_sets_find_nothing_and_every_query_ties():
    same = unit(1, 1, 8).expand(40, 4, 8)
    groups = torch.arange(40)
    figures = evaluate(
        [EvaluatedModel("same", EncodedSplit({"image": same, "text": same}, dict.fromkeys(("image", "text"), groups)))]
    ).figures
    assert figures["rsum"] == 0
    assert figures["i2t_ties"] == figures["t2i_ties"] == 40
    assert figures["text_log_variance"] < -15


def test_the_name_of_a_similarity_tells_its_options():
    split = split_of(images=2)
    assert (
        similarity_name(EvaluatedModel("", split, with_options("smooth_chamfer", {"alpha": 8})))
        == "smooth_chamfer(alpha=8)"
    )
    assert similarity_name(EvaluatedModel("", split, with_options("mil", {}))) == "mil"


def test_an_image_that_was_left_out_at_the_end_changes_no_protocol():
    sets, groups = unit(10, 2, 8), torch.arange(10)
    kept = EncodedSplit(
        dict.fromkeys(("image", "text"), sets[:9]), dict.fromkeys(("image", "text"), groups[:9]), notes={"groups": 10}
    )
    assert set(evaluate([EvaluatedModel("m", kept, "maxmatch")], fold_size=2).galleries) == {"coco_1k_", "coco_5k_"}
    unknown = EncodedSplit(kept.sets, kept.groups)
    assert set(evaluate([EvaluatedModel("m", unknown, "maxmatch")], fold_size=2).galleries) == {""}


def test_retrieval_of_single_vectors_is_that_of_their_cosines():
    images, texts = unit(20, 1, 6), unit(57, 1, 6, seed=1)
    image_groups = torch.arange(20)
    text_groups = torch.cat([torch.arange(20), torch.randint(0, 20, (37,), generator=torch.Generator().manual_seed(2))])
    cosines = images[:, 0].double() @ texts[:, 0].double().T
    expected = naive_figures(cosines, image_groups, text_groups)
    assert retrieval(images, texts, image_groups, text_groups) == pytest.approx(expected)


def test_chance_is_what_random_scores_give_on_average():
    image_groups, text_groups = torch.arange(12), torch.arange(12).repeat_interleave(3)
    generator = torch.Generator().manual_seed(0)
    runs = [
        figures(*ranks_both_ways(torch.rand(12, 36, generator=generator), image_groups, text_groups))
        for _ in range(400)
    ]
    for name, value in chance(image_groups, text_groups).items():
        drawn = [run[name] for run in runs]
        assert abs(np.mean(drawn) - value) < 4 * np.std(drawn) / math.sqrt(400)


def test_chance_is_exact_in_double_precision():
    expected = chance(torch.arange(7), torch.arange(7).repeat_interleave(3))
    assert expected["i2t_r1"] == pytest.approx(100 * 3 / 21, rel=1e-14)
    assert expected["t2i_r5"] == pytest.approx(100 * 5 / 7, rel=1e-14)
    assert expected["i2t_r5"] == pytest.approx(100 * (1 - math.comb(18, 5) / math.comb(21, 5)), rel=1e-14)
