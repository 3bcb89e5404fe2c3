"""Intervals and tests against loops over drawings, whether they keep what they promise; captions with some words."""

import itertools
import statistics

import numpy as np
import pytest
from made_splits import gallery_of, split_of
from scipy.special import stdtr

from maxmatch.evaluation.measures import RECALLS
from maxmatch.evaluation.metrics import EvaluatedModel, Result
from maxmatch.evaluation.result_tables import render, words_table
from maxmatch.evaluation.significance import (
    ResultLine,
    by_words,
    cohens_d,
    holm,
    intervals,
    measure,
    paired_test,
    paired_test_of_seeds,
    seeds_test,
)


def made_gallery(seed, images=30, easy=0.5):
    """Ranks drawn at random: 1 with the probability `easy`, else up to 20; one to four captions per image."""
    generator = np.random.default_rng(seed)
    text_groups = np.repeat(np.arange(images), 1 + np.arange(images) % 4)

    def ranks(count):
        return np.where(generator.random(count) < easy, 1, generator.integers(1, 21, count)).tolist()

    return gallery_of(ranks(images), ranks(len(text_groups)), list(range(images)), text_groups.tolist())


def slow_recalls(gallery, drawn):
    """The recalls of a list of images, each as often as it was drawn, with its captions."""
    found = []
    for ranks, groups in ((gallery.i2t, gallery.image_groups), (gallery.t2i, gallery.text_groups)):
        queries = [r for g in drawn for r, of in zip(ranks.ranks.tolist(), groups.tolist(), strict=True) if of == g]
        found += [100 * sum(r <= level for r in queries) / len(queries) for level in (1, 5, 10)]
    return found


def slow_drawings(galleries, draws, generator):
    """What `intervals` draws, one by one and in its order: for each gallery all drawings."""
    parts = []
    for gallery in galleries:
        numbers = sorted(set(gallery.image_groups.tolist()))
        lines = generator.integers(0, len(numbers), (draws, len(numbers))).tolist()
        parts.append([slow_recalls(gallery, [numbers[place] for place in line]) for line in lines])
    return [[statistics.mean(part[d][c] for part in parts) for c in range(6)] for d in range(draws)]


@pytest.mark.parametrize("folds", [1, 3])
def test_intervals_are_those_of_recalls_counted_in_a_loop(folds):
    galleries = [made_gallery(seed, images=12 + seed) for seed in range(folds)]
    ours = intervals(galleries, 50, np.random.default_rng(3))
    drawn = slow_drawings(galleries, 50, np.random.default_rng(3))
    for place, name in enumerate(RECALLS):
        values = [line[place] for line in drawn]
        assert ours[name] == pytest.approx(tuple(np.quantile(values, [0.025, 0.975])))
    assert ours["rsum"] == pytest.approx(tuple(np.quantile([sum(line) for line in drawn], [0.025, 0.975])))


def test_an_image_is_drawn_with_its_captions_also_where_images_were_left_out():
    """Groups 3 and 7: each either found by all or by none, so that a drawing gives 0, 50 or 100 both ways."""
    gallery = gallery_of([1, 30], [1, 1, 30, 30], [3, 7], [3, 3, 7, 7])
    ours = intervals([gallery], 2000, np.random.default_rng(0))
    assert ours["i2t_r1"] == ours["t2i_r10"] == (0, 100)
    assert ours["rsum"] == (0, 600)


def test_an_interval_holds_the_truth_about_as_often_as_it_says():
    """Images drawn from a world where R@1 is known; of 150 intervals of 90 % between 84 and 96 % hold it."""
    generator = np.random.default_rng(0)
    held = 0
    for _ in range(150):
        luck = generator.random(80)  # captions of an image share its luck, which is what the images are drawn for
        i2t = np.where(generator.random(80) < luck, 1, 99)
        t2i = np.where(generator.random((80, 3)) < luck[:, None], 1, 99).ravel()
        groups = np.arange(80)
        gallery = gallery_of(i2t.tolist(), t2i.tolist(), groups.tolist(), np.repeat(groups, 3).tolist())
        low, high = intervals([gallery], 300, generator, level=0.9)["t2i_r1"]
        held += low <= 50 <= high
    assert 0.84 <= held / 150 <= 0.96


def exact_p(first, second):
    """All ways of swapping two models' answers, image by image."""
    numbers = first.image_groups.tolist()
    observed = sum(slow_recalls(second, numbers)) - sum(slow_recalls(first, numbers))

    def added(number):
        total = 0.0
        for ours, theirs, groups in (
            (first.i2t, second.i2t, first.image_groups),
            (first.t2i, second.t2i, first.text_groups),
        ):
            for level in (1, 5, 10):
                for a, b, of in zip(ours.ranks.tolist(), theirs.ranks.tolist(), groups.tolist(), strict=True):
                    if of == number:
                        total += 100 * ((b <= level) - (a <= level)) / len(groups)
        return total

    parts = [added(number) for number in numbers]
    assert sum(parts) == pytest.approx(observed)
    swapped = [
        abs(sum(s * part for s, part in zip(signs, parts, strict=True)))
        for signs in itertools.product((1, -1), repeat=len(parts))
    ]
    return observed, sum(value >= abs(observed) - 1e-9 for value in swapped) / len(swapped)


def test_the_p_of_a_difference_is_that_of_all_ways_of_swapping_answers():
    for seed in range(2):
        first, second = made_gallery(seed, images=10), made_gallery(seed + 50, images=10, easy=0.8)
        observed, p = exact_p(first, second)
        ours = paired_test([first], [second], 20_000, np.random.default_rng(seed))
        assert ours.value == pytest.approx(observed)
        assert ours.p == pytest.approx(p, abs=0.015)
        assert ours.low < ours.value < ours.high


def test_a_model_against_itself_does_not_differ():
    gallery = made_gallery(0)
    assert paired_test([gallery], [gallery], 100, np.random.default_rng(0)) == (0, 0, 0, 1)


def test_two_models_of_equal_worth_are_seldom_told_apart_and_unequal_ones_always():
    tests = [
        paired_test([made_gallery(seed)], [made_gallery(seed + 1000)], 200, np.random.default_rng(seed)).p < 0.1
        for seed in range(100)
    ]
    assert 0.02 <= np.mean(tests) <= 0.2
    clear = paired_test(
        [made_gallery(0, 200, easy=0.2)], [made_gallery(1, 200, easy=0.7)], 999, np.random.default_rng()
    )
    assert clear.p == 0.001
    assert clear.low > 0


def test_drawings_in_several_chunks_are_all_made(monkeypatch):
    monkeypatch.setattr("maxmatch.evaluation.significance._BLOCK", 100)
    gallery = [made_gallery(0)]
    low, high = intervals(gallery, 400, np.random.default_rng(1))["rsum"]
    assert low < sum(slow_recalls(gallery[0], range(30))) < high


def test_other_queries_and_no_drawings_are_refused():
    one, other = [made_gallery(0, 12)], [made_gallery(0, 13)]
    with pytest.raises(ValueError, match="different queries"):
        paired_test(one, other, 10, np.random.default_rng(0))
    with pytest.raises(ValueError, match="different queries"):
        paired_test_of_seeds([one, other], [one], 10, np.random.default_rng(0))
    with pytest.raises(ValueError, match="draws: expected at least 1, got 0"):
        intervals(one, 0, np.random.default_rng(0))


def test_what_seeds_find_is_averaged_before_images_are_drawn():
    first, second = [made_gallery(1, easy=0.4), made_gallery(2, easy=0.4)], [made_gallery(3, easy=0.6)]
    found = paired_test_of_seeds([[one] for one in first], [[one] for one in second], 50, np.random.default_rng(3))

    def difference(images):
        means = [statistics.mean(sum(slow_recalls(one, images)) for one in side) for side in (first, second)]
        return means[1] - means[0]

    assert found.value == pytest.approx(difference(range(30)))
    drawn = [difference(images) for images in np.random.default_rng(3).integers(0, 30, (50, 30)).tolist()]
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])))


def test_the_test_over_seeds_is_welchs():
    first, second = [300.0, 303.0, 301.0], [305.0, 309.0, 304.0, 306.5]
    parts = [np.var(side, ddof=1) / len(side) for side in (first, second)]
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / 2 + parts[1] ** 2 / 3)  # by Welch and Satterthwaite
    statistic = (np.mean(second) - np.mean(first)) / sum(parts) ** 0.5
    assert seeds_test(first, second) == pytest.approx(2 * stdtr(freedom, -statistic))
    assert seeds_test(second, first) == pytest.approx(seeds_test(first, second))
    assert seeds_test([1.0], second) is None
    assert seeds_test([2.0, 2.0], [3.0, 3.0]) is None
    statistic = (np.mean(second) - 2.0) / parts[1] ** 0.5  # one side does not vary, which is nothing to warn of
    assert seeds_test([2.0, 2.0], second) == pytest.approx(2 * stdtr(3, -abs(statistic)))


def test_holm_is_as_computed_by_hand():
    # 4 · 0.005 = 0.02, 3 · 0.01 = 0.03, 2 · 0.03 = 0.06, and 1 · 0.04, which may not be less than what came before
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.5]) == [1.0, 1.0]
    assert holm([0.02]) == [0.02]
    assert holm([]) == []


def test_holm_does_not_count_tests_that_were_not_made():
    assert holm([None, 0.02, None, 0.04]) == [None, 0.04, None, 0.04]
    assert holm([None]) == [None]


def test_the_effect_size_is_the_difference_in_pooled_deviations():
    # means 2 and 6, variances 1 and 8 with 2 and 1 degrees of freedom
    assert cohens_d([1.0, 2.0, 3.0], [4.0, 8.0]) == pytest.approx(4 / ((2 * 1 + 1 * 8) / 3) ** 0.5)
    assert cohens_d([4.0, 8.0], [1.0, 2.0, 3.0]) == pytest.approx(-4 / (10 / 3) ** 0.5)
    assert cohens_d([1.0], [2.0, 3.0]) is None
    assert cohens_d([1.0, 1.0], [2.0, 2.0]) is None


# Captions with certain words, and those without, against loops over captions.


def ranked(seed, images=20, folds=1):
    """Galleries of three captions per image, ranks drawn at random."""
    random = np.random.default_rng(seed)
    galleries = []
    for fold in range(folds):
        groups = (fold * images + np.arange(images)).tolist()
        ranks = [random.integers(1, 16, count).tolist() for count in (images, 3 * images)]
        galleries.append(gallery_of(*ranks, groups, np.repeat(groups, 3).tolist()))
    return galleries


def line_of(name, galleries, similarity="maxmatch"):
    return ResultLine(Result(name, similarity, 1, {}, {"": galleries}))


def queries(galleries, met):
    """Group, rank and whether it is wanted, one caption after the other."""
    ranks = [rank for gallery in galleries for rank in gallery.t2i.ranks.tolist()]
    groups = [group for gallery in galleries for group in gallery.text_groups.tolist()]
    return list(zip(groups, ranks, met.tolist(), strict=True))


def recall(found, level):
    return 100 * sum(rank <= level for _, rank, _ in found) / len(found)


def drawings(found, draws):
    """The captions of images drawn with repetition, as the module draws them: among images that have such captions."""
    numbers = sorted({group for group, _, _ in found})
    for line in np.random.default_rng(0).integers(0, len(numbers), (draws, len(numbers))).tolist():
        yield [one for place in line for one in found if one[0] == numbers[place]]


@pytest.mark.parametrize("folds", [1, 3])
def test_recalls_and_intervals_are_those_of_captions_counted_one_by_one(folds):
    galleries = ranked(1, folds=folds)
    met = np.random.default_rng(5).random(60 * folds) < 0.2
    (ours,) = by_words([line_of("a", galleries)], met, draws=40)
    for side, wanted in (("with", True), ("without", False)):
        found = [one for one in queries(galleries, met) if one[2] == wanted]
        assert ours[side]["captions"] == len(found)
        for level in (1, 5, 10):
            name = f"t2i_r{level}"
            assert ours[side][name] == pytest.approx(recall(found, level))
            drawn = [recall(some, level) for some in drawings(found, 40)]
            assert ours[side]["intervals"][name] == pytest.approx(np.quantile(drawn, [0.025, 0.975]).tolist())
    assert "first_to_this_r10" not in ours


def test_the_ratio_is_of_the_same_captions_under_the_first_and_the_other_model():
    first, second = ranked(1), ranked(2)
    met = np.random.default_rng(5).random(60) < 0.3
    _, ours = by_words([line_of("unseen", first), line_of("seen", second)], met, draws=40)
    wanted = [[one for one in queries(galleries, met) if one[2]] for galleries in (first, second)]
    value, low, high = ours["first_to_this_r10"].values()
    assert value == pytest.approx(recall(wanted[0], 10) / recall(wanted[1], 10))
    drawn = [recall(one, 10) / recall(other, 10) for one, other in zip(*(drawings(w, 40) for w in wanted), strict=True)]
    assert [low, high] == pytest.approx(np.quantile(drawn, [0.025, 0.975]).tolist())
    table = words_table(by_words([line_of("unseen", first), line_of("seen", second)], met, draws=0))
    assert len(table.notes) == 1
    assert f"unseen has {value:.0%} of that of seen" in render(table)


def test_the_ratio_is_of_lines_with_the_same_similarity_which_is_named_if_there_are_several():
    met = np.random.default_rng(5).random(60) < 0.3
    models = [("unseen", "maxmatch", 1), ("seen", "maxmatch", 2), ("unseen", "top_k", 3), ("seen", "top_k", 4)]
    lines = [line_of(name, ranked(seed), similarity) for name, similarity, seed in [*models, ("other", "mil", 5)]]
    found = by_words(lines, met, draws=0)
    assert ["first_to_this_r10" in one for one in found] == [False, True, False, True, False]
    for place in (1, 3):
        share = found[place - 1]["with"]["t2i_r10"] / found[place]["with"]["t2i_r10"]
        assert found[place]["first_to_this_r10"]["value"] == pytest.approx(share)
    first, second = words_table(found).notes
    assert first.endswith(f"unseen has {found[1]['first_to_this_r10']['value']:.0%} of that of seen, maxmatch")
    assert second.endswith(f"unseen has {found[3]['first_to_this_r10']['value']:.0%} of that of seen, top_k")


def test_a_model_that_finds_nothing_has_no_ratio_and_one_side_alone_is_refused():
    far = [gallery_of([1, 1], [11, 12], [0, 1], [0, 1])]
    near = [gallery_of([1, 1], [1, 12], [0, 1], [0, 1])]
    lines = [line_of("near", near), line_of("far", far)]
    assert not any("first_to_this_r10" in one for one in by_words(lines, np.array([True, False])))
    with pytest.raises(ValueError, match="no caption of the split has any of the words"):
        by_words(lines, np.array([False, False]))
    with pytest.raises(ValueError, match="no caption of the split has none of the words"):
        by_words(lines, np.array([True, True]))


def test_all_captions_together_have_the_recalls_of_the_whole_split():
    lines, _ = measure([[EvaluatedModel("a", split_of(captions=[1, 2, 3, 4] * 5, noise=1.5))]], draws=0)
    met = np.arange(50) % 3 == 0
    (ours,) = by_words(lines, met, draws=0)
    for name in ("t2i_r1", "t2i_r5", "t2i_r10"):
        together = sum(ours[side][name] * ours[side]["captions"] for side in ("with", "without")) / 50
        assert together == pytest.approx(lines[0].result.figures[name])
