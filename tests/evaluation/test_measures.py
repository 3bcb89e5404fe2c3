"""Measures beyond RSUM against sorted lists in plain Python; ties, extremes, folds, unequal numbers of captions."""

import itertools
import math
import statistics

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_splits import PAIR, collapsed, diverse, encoded, galleries, one_slot, split_of, unit
from torch.nn.functional import normalize

from maxmatch.evaluation.measures import (
    beyond_rsum,
    content_log_variance,
    mean_measures,
    query_values,
    set_measures,
    slot_shares,
)
from maxmatch.evaluation.metrics import EvaluatedModel, Scores, evaluate, log_circular_variance, search
from maxmatch.evaluation.significance import intervals, measure, paired_test, paired_test_of_seeds

LEVELS, DEPTHS = (1, 5, 10), (5, 10, 20)
ANSWERS = (
    *("map_at_r", "r_precision", *(f"coverage_{n}" for n in DEPTHS)),
    *("map", "precision_5", "precision_10", "mrr", "ndcg_5", "ndcg_10"),
)
ALWAYS = ANSWERS[5:]  # of text to image, too, where every caption has one image


def ranked(scores, image_groups, text_groups, protocol="plain", height=None, **more):
    """The searches of a protocol among these scores, with the ranks of all true pairs."""
    blocks = Scores(lambda part: scores[part], tuple(scores.shape), height or len(scores))
    return search(blocks, image_groups, text_groups, protocol, pairs=True, **more)


def true_or_not(row, group, groups):
    """The answers to a query, best first: whether each is true; at one score the wrong ones stand first."""
    return [true for _, true in sorted((-score, other == group) for score, other in zip(row, groups, strict=True))]


def slow_answers(scores, groups, others):
    """What the sorted answers of each row say."""
    found = {name: [] for name in ANSWERS}
    for row, group in zip(scores.tolist(), groups.tolist(), strict=True):
        listed = true_or_not(row, group, others.tolist())
        true = sum(listed)
        precision = [sum(listed[:place]) / place for place in range(1, true + 1)]
        found["map_at_r"].append(sum(p for p, hit in zip(precision, listed, strict=False) if hit) / true)
        found["r_precision"].append(sum(listed[:true]) / true)
        for depth in DEPTHS:
            found[f"coverage_{depth}"].append(sum(listed[:depth]) / true)
        places = [place for place, hit in enumerate(listed, start=1) if hit]
        found["mrr"].append(1 / places[0])
        found["map"].append(statistics.mean(sum(listed[:place]) / place for place in places))
        for depth in (5, 10):
            found[f"precision_{depth}"].append(sum(listed[:depth]) / depth)
            gained = sum(1 / math.log2(1 + place) for place in places if place <= depth)
            best = sum(1 / math.log2(1 + place) for place in range(1, min(true, depth) + 1))
            found[f"ndcg_{depth}"].append(gained / best)
    return found


def slow_hardest(scores, image_groups, text_groups):
    """Of each image the rank of its last caption among those of others, and the latest that one of them finds it."""
    forth, back = [], []
    for row, group in zip(scores.tolist(), image_groups.tolist(), strict=True):
        listed = true_or_not(row, group, text_groups.tolist())
        last = max(place for place, true in enumerate(listed) if true)
        forth.append(1 + sum(not true for true in listed[:last]))
        columns = [place for place, other in enumerate(text_groups.tolist()) if other == group]
        back.append(
            max(1 + true_or_not(scores[:, c].tolist(), group, image_groups.tolist()).index(True) for c in columns)
        )
    return {"i2t": forth, "t2i": back}


def slow_measures(scores, image_groups, text_groups):
    found = {f"i2t_{name}": values for name, values in slow_answers(scores, image_groups, text_groups).items()}
    several = len(set(image_groups.tolist())) < len(image_groups)
    for name, values in slow_answers(scores.T, text_groups, image_groups).items():
        found |= {f"t2i_{name}": values} if several or name in ALWAYS else {}
    found = {name: 100 * statistics.mean(values) for name, values in found.items()}
    for way, ranks in slow_hardest(scores, image_groups, text_groups).items():
        found |= {f"{way}_hardest_r{n}": 100 * sum(rank <= n for rank in ranks) / len(ranks) for n in LEVELS}
        found[f"{way}_hardest_median_rank"] = statistics.median(ranks)
    return found


@settings(max_examples=80, deadline=None, derandomize=True)
@given(galleries(), st.integers(1, 24))
def test_all_measures_are_those_of_sorted_lists(gallery, height):
    (found,) = ranked(*gallery, height=height).values()
    assert beyond_rsum(found) == pytest.approx(slow_measures(*gallery))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(galleries())
def test_measures_keep_their_order(gallery):
    """mAP@R ≤ R-precision; coverage grows; no caption is harder than the hardest; at most what R allows."""
    (found,) = ranked(*gallery).values()
    values = {name: np.asarray(one.values, float) for name, one in query_values(found[0]).items()}
    assert (values["i2t_map_at_r"] <= values["i2t_r_precision"] + 1e-12).all()
    assert (values["i2t_coverage_5"] <= values["i2t_coverage_10"]).all()
    assert (values["i2t_coverage_10"] <= values["i2t_coverage_20"]).all()
    for level in LEVELS:
        assert (values[f"i2t_hardest_r{level}"] <= values[f"i2t_r{level}"]).all()
    assert ((values["i2t_hardest_r1"] == 1) == (values["i2t_map_at_r"] > 1 - 1e-12)).all()
    assert all(0 <= value <= 1 for some in values.values() for value in some.tolist())


@pytest.mark.parametrize("captions", [[5] * 20, [1 + n * n % 7 for n in range(20)]], ids=["five", "any"])
@pytest.mark.parametrize("values", [None, 3])
def test_folds_are_searches_of_their_own_and_averaged(captions, values):
    images = torch.arange(20)
    texts = images.repeat_interleave(torch.tensor(captions))
    generator = torch.Generator().manual_seed(0)
    shape = 20, len(texts)
    scores = (
        torch.randn(shape, generator=generator)
        if values is None
        else torch.randint(values, shape, generator=generator).float()
    )
    found = ranked(scores, images, texts, "coco", height=7, fold_size=4)
    assert beyond_rsum(found["coco_5k_"]) == pytest.approx(slow_measures(scores, images, texts))
    folds = []
    for first in range(0, 20, 4):
        mine = (texts >= first) & (texts < first + 4)
        folds.append(slow_measures(scores[first : first + 4][:, mine], images[first : first + 4], texts[mine]))
    expected = {name: statistics.mean(fold[name] for fold in folds) for name in folds[0]}
    assert beyond_rsum(found["coco_1k_"]) == pytest.approx(expected)


def made(scores, captions):
    """The measures of images with so many captions each."""
    groups = torch.arange(len(captions)).repeat_interleave(torch.tensor(captions))
    (found,) = ranked(scores, torch.arange(len(captions)), groups).values()
    return beyond_rsum(found)


def test_a_perfect_model_has_all_of_it_as_far_as_the_first_texts_reach():
    captions = [1, 2, 5, 10]
    groups = torch.arange(4).repeat_interleave(torch.tensor(captions))
    found = made((torch.arange(4)[:, None] == groups).float(), captions)
    for name in ("i2t_map_at_r", "i2t_r_precision", "i2t_coverage_10", "i2t_coverage_20"):
        assert found[name] == 100
    assert found["i2t_coverage_5"] == pytest.approx(100 * (1 + 1 + 1 + 5 / 10) / 4)
    assert all(found[f"{way}_hardest_r1"] == 100 for way in ("i2t", "t2i"))
    assert all(found[f"{way}_hardest_median_rank"] == 1 for way in ("i2t", "t2i"))


def test_a_constant_model_finds_nothing_since_ties_count_against_it():
    found = made(torch.zeros(30, 150), [5] * 30)
    medians = {name: found.pop(f"{name}_hardest_median_rank") for name in ("i2t", "t2i")}
    assert medians == {"i2t": 146, "t2i": 30}
    assert found.pop("i2t_mrr") == pytest.approx(100 / 146)  # it stands last, which is not nowhere
    assert found.pop("t2i_mrr") == pytest.approx(100 / 30)
    assert found.pop("t2i_map") == pytest.approx(100 / 30)
    assert found.pop("i2t_map") == pytest.approx(100 * statistics.mean(n / (145 + n) for n in range(1, 6)))
    assert set(found.values()) == {0}


def test_measures_of_a_list_by_hand():
    """True, wrong, true (tied with a wrong one, which stands before it): places 1 and 4 of four."""
    scores = torch.tensor([[0.9, 0.5, 0.7, 0.5], [0.0, 0.0, 0.8, 0.9]])
    found = made(scores, [2, 2])
    assert found["i2t_map_at_r"] == pytest.approx(100 * (1 / 2 + 1) / 2)
    assert found["i2t_r_precision"] == pytest.approx(100 * (1 / 2 + 1) / 2)
    assert found["i2t_hardest_r1"] == 50
    assert found["i2t_hardest_median_rank"] == 2  # of 3 and 1
    assert found["t2i_hardest_r1"] == 100


def test_with_one_caption_per_image_the_measures_are_recalls():
    scores = torch.randn(40, 40, generator=torch.Generator().manual_seed(0))
    (found,) = ranked(scores, torch.arange(40), torch.arange(40)).values()
    ours, recalls = beyond_rsum(found), query_values(found[0])
    for name, recall in (
        ("i2t_map_at_r", "i2t_r1"), ("i2t_r_precision", "i2t_r1"), ("i2t_coverage_5", "i2t_r5"),
        ("i2t_hardest_r10", "i2t_r10"), ("t2i_hardest_r5", "t2i_r5"),
    ):  # fmt: skip
        assert ours[name] == pytest.approx(100 * recalls[recall].values.mean())


def test_text_to_image_is_listed_only_where_a_caption_has_several_images():
    scores = torch.randn(6, 9, generator=torch.Generator().manual_seed(0))
    for groups, listed in ((6, False), (3, True)):
        (found,) = ranked(scores, torch.arange(6) % groups, torch.arange(9) % groups).values()
        assert ("t2i_map_at_r" in mean_measures(found)) == listed
        assert ("t2i_map_at_r" in beyond_rsum(found)) == listed


# Intervals and tests of any of them.


def searches(seed, images=14):
    """Images with one to four captions, true scores somewhat higher than wrong ones."""
    generator = torch.Generator().manual_seed(seed)
    groups = torch.arange(images).repeat_interleave(1 + torch.arange(images) % 4)
    true = torch.arange(images)[:, None] == groups
    scores = torch.randn(true.shape, generator=generator) + 1.5 * true
    (found,) = ranked(scores, torch.arange(images), groups).values()
    return found


def slow_mean(gallery, name, drawn):
    """A measure of images, each as often as it was drawn, with its captions."""
    values, groups = (part.tolist() for part in query_values(gallery)[name])
    mine = [value for number in drawn for value, group in zip(values, groups, strict=True) if group == number]
    return 100 * sum(mine) / len(mine)


NAMES = ("i2t_map_at_r", "i2t_coverage_10", "i2t_hardest_r5", "t2i_hardest_r1", "t2i_r1")


def test_intervals_are_those_of_measures_of_drawn_images():
    (gallery,) = searches(0)
    ours = intervals([gallery], 60, np.random.default_rng(3))
    assert list(ours) == [*mean_measures([gallery]), "rsum"]
    drawn = np.random.default_rng(3).integers(0, 14, (60, 14)).tolist()
    for name in NAMES:
        slow = [slow_mean(gallery, name, images) for images in drawn]
        assert ours[name] == pytest.approx(tuple(np.quantile(slow, [0.025, 0.975])))


@pytest.mark.parametrize("name", NAMES)
def test_the_p_of_any_measure_is_that_of_all_ways_of_swapping_answers(name):
    (first,), (second,) = searches(1, images=9), searches(2, images=9)
    ours = paired_test([first], [second], 20_000, np.random.default_rng(0), measure=name)
    sides = [query_values(side)[name] for side in (first, second)]
    parts = np.bincount(sides[0].groups, sides[1].values.astype(float) - sides[0].values) / len(sides[0].groups)
    assert ours.value == pytest.approx(100 * parts.sum())
    swapped = [abs(np.dot(signs, parts)) for signs in itertools.product((1, -1), repeat=9)]
    assert ours.p == pytest.approx(np.mean([one >= abs(parts.sum()) - 1e-11 for one in swapped]), abs=0.015)


def test_what_seeds_find_is_averaged_for_any_measure():
    first, second = [searches(1), searches(2)], [searches(3)]
    found = paired_test_of_seeds(first, second, 50, np.random.default_rng(3), measure="i2t_map_at_r")

    def difference(images):
        means = [statistics.mean(slow_mean(one, "i2t_map_at_r", images) for (one,) in side) for side in (first, second)]
        return means[1] - means[0]

    assert found.value == pytest.approx(difference(range(14)))
    drawn = [difference(images) for images in np.random.default_rng(3).integers(0, 14, (50, 14)).tolist()]
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])))


def test_a_test_does_not_depend_on_what_is_tested_beside_it_and_unknown_measures_are_named():
    splits = {name: split_of(captions=[1, 2, 3, 4] * 5, noise=noise) for name, noise in (("a", 1.5), ("b", 3.0))}
    models = [[EvaluatedModel(name, split)] for name, split in splits.items()]
    lines, _ = measure(models, draws=100, measures="all")
    galleries = [line.result.galleries[""] for line in lines]
    for name in ("rsum", "i2t_map_at_r", "t2i_hardest_r10"):
        alone = paired_test(*galleries, 100, np.random.default_rng(0), measure=name)
        assert lines[1].against_first[""][name] == alone
        assert alone.value == pytest.approx(lines[1].result.figures[name] - lines[0].result.figures[name])
    with pytest.raises(ValueError, match=r"measure: expected one of rsum, .*i2t_map_at_r.*, got 'median'"):
        paired_test(*galleries, 10, np.random.default_rng(0), measure="median")
    plain = [line.result.galleries[""] for line in measure(models, draws=0)[0]]
    with pytest.raises(ValueError, match="i2t_map_at_r"):
        paired_test(*plain, 10, np.random.default_rng(0), measure="i2t_map_at_r")


def test_without_the_ranks_of_pairs_nothing_more_is_measured():
    model = EvaluatedModel("a", split_of())
    (plain,), _ = measure([[model]], draws=20)
    (every,), _ = measure([[model]], draws=20, measures="all")
    assert plain.result.figures == evaluate([model]).figures
    assert plain.result.figures.items() <= every.result.figures.items()
    assert plain.intervals[""].items() <= every.intervals[""].items()
    ensemble = measure([[model, model]], draws=0, measures="all")[0][0].result.figures
    assert ensemble["i2t_map_at_r"] == every.result.figures["i2t_map_at_r"]
    assert not any("bytes" in name or "slot" in name or "content" in name for name in ensemble)


# Of the sets.


def test_content_variance_is_that_of_the_formula_and_part_of_the_circular_one():
    sets = normalize(unit(1, 4, 6, seed=1) + 0.5 * unit(600, 4, 6), dim=-1).double()
    sets = normalize(sets, dim=-1)
    offsets = sets.mean(0)
    slow = []
    for one in sets - offsets:
        middle = sum(vector / 4 for vector in one)
        slow.append(sum(float(vector @ vector) / 4 for vector in one) - float(middle @ middle))
    content = statistics.mean(slow)
    assert content_log_variance(sets) == pytest.approx(math.log(content))
    of_offsets = sum(float(offset @ offset) / 4 for offset in offsets) - float(offsets.mean(0) @ offsets.mean(0))
    assert math.exp(log_circular_variance(sets)) == pytest.approx(content + of_offsets)


def test_constant_offsets_spread_a_set_but_have_no_content():
    offsets = unit(1, 4, 64)
    assert log_circular_variance(offsets.expand(50, -1, -1)) > -1
    assert content_log_variance(offsets.expand(50, -1, -1)) == pytest.approx(-27.6, abs=0.1)
    assert content_log_variance(unit(50, 4, 64)[:1]) == pytest.approx(-27.6, abs=0.1)  # one item is its own mean
    same = unit(50, 1, 64).expand(-1, 4, -1)
    assert content_log_variance(same) == pytest.approx(-27.6, abs=0.1)
    free = unit(5000, 4, 64)
    assert content_log_variance(free) == pytest.approx(log_circular_variance(free), abs=1e-3)


def slow_shares(split, similarity):
    """By loops over true pairs: shares of image slots and text slots, and the deciding slots of each image."""
    shares, deciding = ([], []), {}
    for i, image in enumerate(split.sets["image"].double()):
        for c, text in enumerate(split.sets["text"].double()):
            if split.groups["image"][i] != split.groups["text"][c]:
                continue
            cosines = (image @ text.T).tolist()
            cells = list(itertools.product(range(len(image)), range(len(text))))
            if similarity in ("maxmatch", "sinkhorn"):
                best = max(itertools.permutations(range(3)), key=lambda p: sum(cosines[k][p[k]] for k in range(3)))
                terms = {(k, best[k]): math.exp(cosines[k][best[k]]) - 1 for k in range(3)}
            elif similarity == "mil":
                best = max(cells, key=lambda cell: cosines[cell[0]][cell[1]])
                terms = {best: cosines[best[0]][best[1]]}
            elif similarity == "top_k":
                best = sorted(cells, key=lambda cell: -cosines[cell[0]][cell[1]])[:3]
                terms = {cell: math.exp(cosines[cell[0]][cell[1]]) - 1 for cell in best}
            elif similarity == "paired":
                terms = {(k, k): math.exp(cosines[k][k]) - 1 for k in range(3)}
            elif similarity == "maxsim":
                terms = {(k, row.index(max(row))): max(row) for k, row in enumerate(cosines)}
            else:
                terms = {cell: cosines[cell[0]][cell[1]] for cell in cells}
            added = [
                [sum(max(term, 0) for cell, term in terms.items() if cell[side] == k) for k in range(3)]
                for side in (0, 1)
            ]
            for side in (0, 1):
                shares[side].append([one / sum(added[side]) for one in added[side]])
            deciding.setdefault(i, []).append(added[0].index(max(added[0])))
    return [np.mean(side, 0) for side in shares], deciding


@pytest.mark.parametrize("similarity", ["maxmatch", "sinkhorn", "top_k", "paired", "mil", "maxsim", "mean"])
def test_shares_and_variation_are_those_of_loops_over_true_pairs(similarity):
    split = split_of(images=12, captions=[1, 2, 3, 4] * 3, size=3, noise=1.0)
    found = slot_shares(EvaluatedModel("a", split, similarity), PAIR)
    shares, deciding = slow_shares(split, similarity)
    for side, expected in zip(PAIR, shares, strict=True):
        ours = [found[f"{side}_slot_{slot}_share"] for slot in (1, 2, 3)]
        assert ours == pytest.approx(expected.tolist(), abs=1e-5)
        assert sum(ours) == pytest.approx(1)
    several = [slots for slots in deciding.values() if len(slots) > 1]
    differ = [statistics.mean(a != b for a, b in itertools.combinations(slots, 2)) for slots in several]
    assert found["slot_variation"] == pytest.approx(statistics.mean(differ))
    dealt = [slot for slots in several for slot in slots]
    assert found["slot_variation_chance"] == pytest.approx(
        statistics.mean(a != b for a, b in itertools.combinations(dealt, 2))
    )


def test_chance_is_the_mean_over_random_dealings():
    """Deciding slots of captions dealt anew to the same images."""
    split = split_of(images=12, captions=[2, 3, 4] * 4, size=3, noise=1.0)
    found = slot_shares(EvaluatedModel("a", split, "mil"))
    dealt = [slot for slots in slow_shares(split, "mil")[1].values() for slot in slots]
    generator, means = np.random.default_rng(0), []
    for _ in range(2000):
        order = iter(generator.permutation(dealt).tolist())
        parts = [[next(order) for _ in range(count)] for count in [2, 3, 4] * 4]
        means.append(
            statistics.mean(statistics.mean(a != b for a, b in itertools.combinations(part, 2)) for part in parts)
        )
    assert found["slot_variation_chance"] == pytest.approx(statistics.mean(means), abs=0.01)


def test_captions_about_different_slots_vary_more_than_by_chance_and_one_deciding_slot_not_at_all():
    images = torch.eye(120).view(40, 3, 120)  # caption k of an image is about its slot k
    texts = normalize(images.flatten(0, 1)[:, None] + 0.1 * unit(120, 3, 120), dim=-1)
    split = encoded(images, texts, None, torch.arange(40).repeat_interleave(3))
    found = slot_shares(EvaluatedModel("a", split, "mil"))
    assert found["slot_variation"] == 1
    assert found["slot_variation_chance"] == pytest.approx(1 - 40 * 39 * 3 / (120 * 119))
    same = encoded(images, images[:, 1:2].repeat_interleave(3, 0).expand(-1, 3, -1), None, split.groups["text"])
    found = slot_shares(EvaluatedModel("a", same, "mil"))
    assert (found["slot_variation"], found["slot_variation_chance"], found["image_slot_2_share"]) == (0, 0, 1)


def test_equal_slots_decide_by_the_first_and_one_caption_per_image_tells_nothing():
    found = slot_shares(EvaluatedModel("a", collapsed()))
    assert [found[f"image_slot_{slot}_share"] for slot in (1, 2, 3)] == pytest.approx([1 / 3] * 3)
    assert "slot_variation" not in found
    sets = collapsed().sets
    twice = encoded(sets["image"], sets["text"].repeat(2, 1, 1), None, torch.arange(27).repeat(2))
    found = slot_shares(EvaluatedModel("a", twice))
    assert (found["slot_variation"], found["slot_variation_chance"]) == (0, 0)
    apart = encoded(torch.eye(2)[:1, None], torch.eye(2)[1:, None])  # a true pair that scores 0
    assert slot_shares(EvaluatedModel("a", apart)) == {"image_slot_1_share": 1, "text_slot_1_share": 1}


def test_only_the_slot_that_tells_items_apart_has_content():
    whole, one = (set_measures(EvaluatedModel("a", split)) for split in (diverse(), one_slot()))
    assert one["image_slot_2_share"] == one["text_slot_2_share"] == 1
    assert one["image_content_log_variance"] == pytest.approx(math.log((1 - 1 / 27) * (1 / 3 - 1 / 9)))
    assert whole["image_content_log_variance"] == pytest.approx(math.log((1 - 1 / 3) * (1 - 1 / 3)))


def test_bytes_are_those_of_the_arrays():
    split = encoded(unit(5, 4, 32), unit(5, 2, 32))
    found = set_measures(EvaluatedModel("a", split))
    for side, sets in split.sets.items():
        assert found[f"{side}_bytes_float32"] == sets[0].numpy().nbytes
        assert found[f"{side}_bytes_float16"] == sets[0].half().numpy().nbytes
