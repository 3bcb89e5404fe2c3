"""`evaluate_scores` and `evaluate_embeddings` against plain loops, scikit-learn and the command; bad input."""

import json
import math
import re
import statistics
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_splits import galleries, split_of, unit
from reference_ranking import slow_figures, sorted_ranks
from sklearn.metrics import average_precision_score, ndcg_score

from maxmatch import evaluation, score_matrix
from maxmatch.core.array_checks import NotFiniteError
from maxmatch.core.checks import NotUnitLength
from maxmatch.evaluation import RetrievalResult, evaluate_embeddings, evaluate_runs, evaluate_scores, metrics
from maxmatch.evaluation.encoding import save_encoded
from maxmatch.matching import SIMILARITIES

WAYS = ("i2t", "t2i")


def both_ways(scores, relevance):
    return zip(WAYS, (scores, scores.T), (relevance, relevance.T), strict=True)


def slow_graded(scores, relevance, depths):
    """By a sorted list for each query: at one score the less relevant answers stand first."""
    found = {}
    for way, rows, grades in both_ways(np.asarray(scores, float), np.asarray(relevance, float)):
        per_query = []
        for row, gains in zip(rows.tolist(), grades.tolist(), strict=True):
            listed = [gain for _, gain in sorted((-score, gain) for score, gain in zip(row, gains, strict=True))]
            hits = [place for place, gain in enumerate(listed, start=1) if gain > 0]
            one = {"mrr": 1 / hits[0], "map": statistics.mean(n / place for n, place in enumerate(hits, start=1))}
            for depth in depths:
                first = sum(gain > 0 for gain in listed[:depth])
                one |= {f"r{depth}": first > 0, f"precision_{depth}": first / depth}
                one[f"coverage_{depth}"] = first / len(hits)
                dcg, best = (
                    sum(gain / math.log2(1 + place) for place, gain in enumerate(gains[:depth], start=1))
                    for gains in (listed, sorted(gains, reverse=True))
                )
                one[f"ndcg_{depth}"] = dcg / best
            per_query.append(one)
        found |= {f"{way}_{name}": 100 * statistics.mean(one[name] for one in per_query) for name in per_query[0]}
    return found


def subset(figures, names):
    return {name: figures[name] for name in names}


@settings(max_examples=40)
@given(galleries(), st.sampled_from([1, 300, 2**20]))
def test_figures_are_those_of_sorted_lists_however_much_is_read_at_once(gallery, max_memory):
    scores, images, texts = gallery
    found = evaluate_scores(*gallery, max_memory=max_memory)
    slow = slow_figures(*gallery)
    assert subset(found.figures, slow) == pytest.approx(slow)
    slow = slow_graded(scores, images[:, None] == texts, (5, 10))
    slow = {name: value for name, value in slow.items() if "coverage" not in name}
    assert subset(found.figures, slow) == pytest.approx(slow)
    assert found.ranks["i2t"].tolist() == sorted_ranks(scores, images, texts)[0]
    assert found.ranks["t2i"].tolist() == sorted_ranks(scores.T, texts, images)[0]


@settings(max_examples=30)
@given(galleries(), st.integers(1, 30))
def test_any_depth_is_that_of_sorted_lists(gallery, depth):
    scores, images, texts = gallery
    slow = slow_graded(scores, images[:, None] == texts, [depth])
    found = evaluate_scores(*gallery).at(depth)
    assert found == pytest.approx({name: value for name, value in slow.items() if name.endswith(str(depth))})


@st.composite
def graded(draw):
    """Scores of few values or of many, and a relevance from 0 to 3; every row and every column has an answer."""
    rows, columns = draw(st.integers(1, 7)), draw(st.integers(1, 7))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    relevance = rng.integers(0, 4, (rows, columns)) * rng.integers(0, 2, (rows, columns))
    relevance[np.arange(rows), rng.integers(0, columns, rows)] = 1
    relevance[rng.integers(0, rows, columns), np.arange(columns)] = 2
    scores = draw(st.sampled_from([rng.normal(size=relevance.shape), rng.integers(0, 3, relevance.shape)]))
    return scores, relevance


@settings(max_examples=40)
@given(galleries())
def test_an_increasing_function_of_the_scores_changes_no_figure(gallery):
    scores, image_groups, text_groups = gallery
    values = torch.unique(scores)  # sorted
    places = torch.searchsorted(values, scores)
    found = [evaluate_scores(one, image_groups, text_groups).figures for one in (scores, -1.0 / (1 + places.double()))]
    assert found[0] == found[1]


@given(graded(), st.sampled_from([1, 2**20]))
def test_graded_relevance_is_that_of_sorted_lists(given, max_memory):
    scores, relevance = given
    found = evaluate_scores(scores, relevance=relevance, max_memory=max_memory)
    slow = slow_graded(scores, relevance, (5, 10))
    names = [name for name in slow if "coverage" not in name]
    assert subset(found.figures, names) == pytest.approx(subset(slow, names))
    slow = slow_graded(scores, relevance, [3])
    assert found.at(3) == pytest.approx({name: value for name, value in slow.items() if "3" in name})


@settings(max_examples=20)
@given(graded())
def test_without_ties_map_and_ndcg_are_those_of_scikit_learn(given):
    shape = given[1].shape
    scores = np.random.default_rng(shape[0]).permutation(given[1].size).reshape(shape).astype(float)
    found = evaluate_scores(scores, relevance=given[1]).figures
    for way, rows, grades in both_ways(scores, given[1]):
        if rows.shape[1] > 1:  # scikit-learn refuses a list of one
            assert found[f"{way}_ndcg_5"] == pytest.approx(100 * ndcg_score(grades, rows, k=5))
        each = [average_precision_score(true > 0, row) for true, row in zip(grades, rows, strict=True)]
        assert found[f"{way}_map"] == pytest.approx(100 * statistics.mean(each))


def test_groups_are_the_relevance_of_ones_and_zeros():
    scores = np.random.default_rng(0).normal(size=(5, 9))
    images, texts = np.array([4, 4, 7, 9, 9]), np.array([4, 7, 7, 7, 9, 4, 9, 4, 4])
    grouped, true = evaluate_scores(scores, images, texts), images[:, None] == texts
    graded = evaluate_scores(scores, relevance=true)
    for same in (true.astype(int).tolist(), torch.from_numpy(true).bfloat16()):
        assert evaluate_scores(scores, relevance=same).figures == graded.figures
    assert grouped.figures == pytest.approx(graded.figures)
    for name, one in grouped.intervals(100).items():  # what is connected is what was a group
        assert one == pytest.approx(graded.intervals(100)[name])


def test_the_names_of_the_package_are_there_when_asked_for():
    assert all(getattr(evaluation, name).__name__ == name for name in evaluation.__all__)
    assert not hasattr(evaluation, "evaluate_everything")


# What may be given.


def test_arrays_tensors_lists_and_memory_maps_give_the_same(tmp_path):
    scores = np.random.default_rng(0).integers(0, 9, (6, 12))
    groups = np.arange(6), np.arange(6).repeat(2)
    expected = evaluate_scores(scores, *groups).figures
    mapped = np.memmap(tmp_path / "scores", np.float32, "w+", shape=scores.shape)
    mapped[:] = scores
    mapped.flush()
    read = np.memmap(tmp_path / "scores", np.float32, "r", shape=scores.shape)
    tensor = torch.from_numpy(scores)
    given = (
        scores.tolist(), scores.astype(np.float16), scores.astype(">f8"), np.asfortranarray(scores), tensor, read,
        tensor.double().requires_grad_(), tensor.bfloat16(),
    )  # fmt: skip
    for one in given:
        assert evaluate_scores(one, *groups, max_memory=200).figures == expected
    for some in (
        [part.tolist() for part in groups],
        [torch.from_numpy(part) for part in groups],
        [[f"{number}.jpg" for number in part] for part in groups],
        [part.astype(np.uint8) + 100 for part in groups],
    ):
        assert evaluate_scores(scores, *some).figures == expected


def test_embeddings_are_measured_as_their_scores():
    images, texts, groups = unit(8, 3, 6).numpy(), unit(20, 2, 6, seed=1), torch.arange(20) % 8
    for name in ("maxmatch", "chamfer", "maxsim"):
        found = evaluate_embeddings(images, texts, range(8), groups, name)
        assert found.similarity == name
        expected = evaluate_scores(score_matrix(images, texts, name), range(8), groups)
        assert found.figures == expected.figures
        blocked = evaluate_embeddings(images, texts, range(8), groups, name, max_memory=500)
        assert blocked.figures == pytest.approx(expected.figures)


def test_all_scores_are_never_held_at_once(allocation_meter):
    images, texts = unit(300, 2, 4), unit(600, 2, 4, seed=1)
    with allocation_meter(images, texts) as meter:
        evaluate_embeddings(images, texts, range(300), torch.arange(600) // 2, "mean", max_memory=600 * 8 * 10)
    assert meter.largest_tensor < 300 * 600 / 4


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("columns", [5, 8192])
def test_single_vectors_are_compared_by_cosine_or_inner_product(similarity, columns, monkeypatch):
    monkeypatch.setattr(metrics, "_COLUMNS", columns)
    rng = np.random.default_rng(0)
    images, texts = rng.normal(size=(9, 5)), rng.normal(size=(18, 5))
    scores = images @ texts.T
    if similarity == "cosine":
        scores /= np.linalg.norm(images, axis=1)[:, None] * np.linalg.norm(texts, axis=1)
    groups = range(9), np.arange(18) // 2
    expected = evaluate_scores(scores, *groups).figures
    assert evaluate_embeddings(images, texts, *groups, similarity).figures == expected
    assert evaluate_embeddings(images, texts, *groups, similarity, max_memory=1).figures == expected
    mixed = evaluate_embeddings(torch.from_numpy(images), texts.astype(np.float32), *groups, similarity)
    assert mixed.figures == pytest.approx(expected)


def test_a_similarity_may_be_a_function():
    def nearness(a, b):
        return -(a - b[:, 0]).square().sum(-1)

    images, texts, groups = unit(9, 5), unit(18, 5, seed=1), (range(9), np.arange(18) // 2)
    found = evaluate_embeddings(images, texts, *groups, nearness)
    assert found.similarity == "nearness"
    assert found.figures == pytest.approx(evaluate_scores(-torch.cdist(images, texts), *groups).figures)


def test_sets_of_different_sizes_are_padded(without_shape_checks):
    sizes = [1, 3, 2, 4]
    images = [unit(size, 6, seed=size).numpy() for size in sizes]
    texts, groups = unit(8, 2, 6), torch.arange(8) // 2
    scores = torch.cat([score_matrix(one[None], texts.numpy()) for one in images])
    expected = evaluate_scores(scores, range(4), groups)
    assert evaluate_embeddings(images, texts, range(4), groups).figures == pytest.approx(expected.figures)
    lists = [one.tolist() for one in images]
    assert evaluate_embeddings(lists, texts, range(4), groups).figures == pytest.approx(expected.figures)
    padded, mask = np.full((4, 4, 6), np.nan, np.float32), np.zeros((4, 4), bool)
    for place, one in enumerate(images):
        padded[place, : len(one)], mask[place, : len(one)] = one, True
    found = evaluate_embeddings(padded, texts, range(4), groups, image_mask=mask)
    assert found.figures == pytest.approx(expected.figures)
    with pytest.raises(ValueError, match="paired: sets of 4 and of 2"):
        evaluate_embeddings(images, texts, range(4), groups, "paired")


def test_figures_intervals_and_tests_are_those_of_the_command(tmp_path):
    """Every figure, every interval and every test of the same sets, to the bit."""
    splits = [split_of(30, [1, 2, 3] * 10, noise=noise, seed=4) for noise in (2.0, 3.0)]
    files = [tmp_path / f"{number}.safetensors" for number in range(2)]
    for split, file in zip(splits, files, strict=True):
        save_encoded(split, file)
    theirs = evaluate_runs(files, similarity="maxmatch", draws=50).lines
    ours = [
        evaluate_embeddings(
            split.sets["image"], split.sets["text"], split.groups["image"], split.groups["text"], "maxmatch"
        )
        for split in splits
    ]
    for line, one in zip(theirs, ours, strict=True):
        assert len(one.figures) > 30
        assert subset(line.result.figures, one.figures) == one.figures
        assert one.intervals(50) == line.intervals[""]
    assert ours[1].compare(ours[0], 50) == theirs[1].against_first[""]


def test_coco_is_folds_and_all_of_it():
    scores = torch.randn(5000, 5000, generator=torch.Generator().manual_seed(0))
    scores.diagonal().add_(3)
    found = evaluate_scores(scores, range(5000), range(5000), protocol="coco")
    assert found.figures["coco_1k_rsum"] > found.figures["coco_5k_rsum"]
    assert len(found.ranks["i2t"]) == 5000
    assert "coco_1k_i2t_r20" in found.at(20)
    assert "coco_5k_text to image" in repr(found)
    names = [f"{number}.jpg" for number in np.random.default_rng(0).permutation(5000)]  # folds are as the images come
    assert evaluate_scores(scores, names, names, protocol="coco").figures == found.figures
    with pytest.raises(ValueError, match="captions are not in the order of their groups"):
        evaluate_scores(scores, names, names[::-1], protocol="coco")


# The result.


@pytest.fixture(scope="module")
def two() -> list[RetrievalResult]:
    """A good model and a worse one on the same data."""
    images, groups = unit(40, 8), torch.arange(80) // 2
    texts = [images[groups] + noise * unit(80, 8, seed=1) for noise in (0.3, 1.5)]
    names = ("good", "worse")
    return [
        evaluate_embeddings(images, vectors, range(40), groups, "cosine", name=name)
        for name, vectors in zip(names, texts, strict=True)
    ]


def test_the_better_model_has_the_positive_difference(two):
    good, worse = two
    forth, back = good.compare(worse, 200), worse.compare(good, 200)
    for name, found in forth.items():
        assert found.value == pytest.approx(good.figures[name] - worse.figures[name])
        assert found.value == pytest.approx(-back[name].value)
    assert forth["rsum"].low > 0
    assert forth["rsum"].p < 0.01
    assert good.compare(good, 50)["rsum"] == (0, 0, 0, 1)


def test_only_results_of_the_same_data_are_compared(two):
    scores = np.random.default_rng(0).normal(size=(40, 80))
    for count in (60, 80):
        groups = np.arange(count) % 40
        other = evaluate_scores(scores[:, :count], range(40), groups, name="other")
        for compare in (two[0].compare, two[0].to_latex):
            with pytest.raises(ValueError, match=r"texts of good and other differ.*80"):
                compare(other)


def test_a_result_is_json_latex_and_a_frame(two):
    good, worse = two
    data = json.loads(json.dumps(good.to_json(100)))
    assert subset(data, good.figures) == good.figures
    assert data["intervals"]["rsum"] == list(good.intervals(100)["rsum"])
    assert (data["model"], data["images"], data["texts"]) == ("good", 40, 80)
    assert "intervals" not in good.to_json(draws=0)
    table = good.to_latex(worse, draws=50)
    assert table.startswith(r"\begin{tabular}")
    assert [line.split(" & ")[0] for line in table.splitlines() if line.startswith(("good", "worse"))] == [
        "good",
        "worse",
    ]
    frame = good.to_frame(50)
    assert frame["value"].to_dict() == good.figures
    assert frame.loc["rsum", "low"] == good.intervals(50)["rsum"].low
    assert math.isnan(frame.loc["i2t_median_rank", "low"])
    assert frame.shape == good.to_frame(0).shape


def test_without_pandas_a_frame_is_refused_with_the_cure(two, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        two[0].to_frame()


def test_a_result_shows_what_it_found(two):
    shown = repr(two[0])
    assert shown.startswith("RetrievalResult of good by cosine: 40 images, 80 texts")
    assert f"RSUM {two[0].figures['rsum']:.1f}" in shown
    row = next(line for line in shown.splitlines() if line.startswith("text to image"))
    assert f"{two[0].figures['t2i_mrr']:.1f}" in re.split(r"\s{2,}", row)


def test_ties_count_against_the_model():
    found = evaluate_scores(np.ones((4, 4)), range(4), range(4))
    assert found.figures["i2t_r1"] == found.figures["t2i_r1"] == 0
    assert set(found.ranks["i2t"].tolist()) == {4}
    assert found.figures["i2t_mrr"] == 25
    assert found.figures["i2t_ties"] == 4


# What is refused: what was expected, what was found, what to do.

SQUARE = np.eye(3)
NAN = np.where(np.eye(3) > 0, np.nan, 0.5)[[1, 0, 2]]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((SQUARE[0], [0], [0]), r"matrix: expected scores \(images, texts\), got shape 3"),
        ((SQUARE[:0], [], range(3)), "images: there are none"),
        ((SQUARE[:, :0], range(3), []), "texts: there are none"),
        ((SQUARE, range(4), range(3)), "image_groups: expected one group for each of the 3 images, got 4"),
        ((SQUARE, range(3), [[0, 1, 2]]), "text_groups: expected one group for each of the 3 texts, got shape 1×3"),
        ((SQUARE, [0.0, 1.0, 2.0], range(3)), "image_groups: expected whole numbers or strings, got float64"),
        ((SQUARE, [0, 1, 1], [0, 1, 9]), r"text_groups: text 2 has group 9, which no image has \(1 such"),
        ((SQUARE, [0, 8, 9], [0, 0, 0]), r"image_groups: image 1 has group 8, which no text has \(2 such"),
        ((SQUARE, ["0", "1", "2"], range(3)), "image_groups are strings and text_groups numbers"),
        ((SQUARE[:2], range(3), range(2)), "3 and 2, but there are 2 images and 3 texts: one is the other way round"),
        ((SQUARE,), "image_groups, text_groups: both are needed"),
        ((NAN, range(3), range(3)), "matrix: NaN at image 0, text 1"),
        (("scores", range(3), range(3)), "matrix: expected a tensor, an array or a list of numbers"),
    ],
)
def test_bad_scores_and_groups_are_refused(arguments, told, without_shape_checks):
    with pytest.raises(ValueError, match=told):
        evaluate_scores(*arguments)


@pytest.mark.parametrize(
    ("relevance", "told"),
    [
        (SQUARE[:2], "relevance: expected a number for each image and text, 3×3, got shape 2×3"),
        (SQUARE - 0.5, "relevance: expected finite numbers"),
        (NAN, "relevance: expected finite numbers"),
        (np.diag([1, 1, 0]), "relevance: image 2 has no relevant text"),
        (np.ones((3, 3)) * [1, 0, 1], "relevance: text 1 has no relevant image"),
    ],
)
def test_a_bad_relevance_is_refused(relevance, told):
    with pytest.raises(ValueError, match=told):
        evaluate_scores(SQUARE, relevance=relevance)
    with pytest.raises(ValueError, match="in place of groups"):
        evaluate_scores(SQUARE, range(3), range(3), relevance=SQUARE)
    with pytest.raises(ValueError, match="Give groups"):
        evaluate_scores(SQUARE, relevance=SQUARE, protocol="coco")


@pytest.mark.parametrize(
    ("images", "texts", "more", "told"),
    [
        (SQUARE[0], SQUARE, {}, r"images: expected vectors \(items, width\) or sets"),
        (SQUARE, SQUARE[:, :2], {}, "images have vectors of width 3 and texts of 2"),
        (SQUARE[:0], SQUARE, {}, "images: there are none"),
        (SQUARE, [], {}, "texts"),
        (SQUARE, SQUARE.astype(int), {}, "texts: expected floating-point vectors, got int64"),
        (SQUARE, NAN, {}, "texts: item 0 holds NaN"),
        (SQUARE, SQUARE[None], {"similarity": "cosine"}, "'cosine' compares single vectors, but texts are sets of 3"),
        (SQUARE, SQUARE, {"similarity": "cosin"}, "similarity: expected a function or one of cosine, dot, maxmatch"),
        ([SQUARE, SQUARE[:2], SQUARE[0]], SQUARE, {}, r"images\[2\]: expected a set \(vectors, width\), got shape 3"),
        ([SQUARE, SQUARE[:2, :2], SQUARE], SQUARE, {}, "images: vectors of width 2 and 3"),
        (SQUARE, SQUARE, {"image_mask": np.ones((2, 1), bool)}, "mask of images: expected True or False for each"),
        (SQUARE, SQUARE, {"text_mask": np.zeros((3, 1), bool)}, "mask of texts: item 0 has no vector left"),
        (SQUARE, SQUARE, {"image_groups": [0]}, "image_groups: expected one group for each of the 3 images"),
    ],
)
def test_bad_embeddings_are_refused(images, texts, more, told, without_shape_checks):
    groups = {"image_groups": range(3), "text_groups": range(3)}
    with pytest.raises(ValueError, match=told):
        evaluate_embeddings(images, texts, **{**groups, **more})


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("side", ["images", "texts"])
@pytest.mark.parametrize("similarity", ["cosine", "dot", *SIMILARITIES, lambda a, b: a.mean(1) @ b.mean(1).T])
def test_a_vector_that_is_not_finite_is_named_whatever_compares_it(similarity, side, value):
    size = 1 if similarity in ("cosine", "dot") else 2 if similarity == "csd" else 4
    sides = {name: unit(6, size, 6, seed=seed) for seed, name in enumerate(("images", "texts"))}
    sides[side][4, -1, 3] = value
    with pytest.raises(NotFiniteError, match=rf"{side}: item 4"):
        evaluate_embeddings(*sides.values(), range(6), range(6), similarity)


def test_nan_is_a_kind_of_its_own_and_depths_start_at_one(two, without_shape_checks):
    with pytest.raises(NotFiniteError):
        evaluate_scores(NAN, range(3), range(3))
    for depth in (0, 2.5):
        with pytest.raises(ValueError, match=f"depth: expected a whole number of at least 1, got {depth}"):
            two[0].at(depth)


def test_beyond_all_answers_a_depth_changes_nothing_but_precision(two):
    deep, deeper = two[0].at(10**3), two[0].at(10**12)
    for way in WAYS:
        for name in ("r", "coverage_", "ndcg_"):
            assert deep[f"{way}_{name}1000"] == deeper[f"{way}_{name}1000000000000"]


def test_a_level_a_result_and_a_protocol_that_are_none_are_refused(two, without_shape_checks):
    with pytest.raises(ValueError, match=r"level: expected a share between 0 and 1, such as 0\.95, got 95"):
        two[0].intervals(draws=2, level=95)
    with pytest.raises(ValueError, match="compare: expected the result of another model, got dict"):
        two[0].compare(two[1].figures)
    with pytest.raises(ValueError, match="protocol: expected one of auto, plain, coco, got 'folds'"):
        evaluate_scores(SQUARE, range(3), range(3), protocol="folds")


@pytest.mark.parametrize("made", [lambda a, b: b.sum((1, 2)), lambda a, b: a.sum((1, 2))[:, None]])
def test_a_function_that_does_not_compare_all_pairs_is_refused(made, without_shape_checks):
    with pytest.raises(ValueError, match="similarity: expected the function to make scores 3×6 of 3 and 6 sets, got"):
        evaluate_embeddings(unit(3, 4), unit(6, 4), range(3), [0, 0, 1, 1, 2, 2], made)
    with pytest.raises(NotFiniteError, match="divides by 0"):
        evaluate_embeddings(unit(3, 4), unit(3, 4), range(3), range(3), lambda a, b: (a[:, 0] @ b[:, 0].T) * math.nan)


def test_vectors_that_are_not_of_unit_length_are_reported_once(without_shape_checks):
    with pytest.warns(NotUnitLength, match=r"images: .*normalise=True") as told:
        evaluate_embeddings(2 * np.eye(3), np.eye(3), range(3), range(3), max_memory=1)
    assert len(told) == 1
