"""Specialisation is 0 where there is none, whatever else slots and facets do, and 1 where each facet has its slot."""

import math

import numpy as np
import pytest
from made_splits import encoded, facet_split, one_pair, pairs_of, random_split
from reference import random_sets

from maxmatch.data.dataset import Items, Split, first_of_each
from maxmatch.data.load import read_dataset
from maxmatch.data.scenes import generate
from maxmatch.evaluation.analysis import caption_facets, specialisation, standard_scores
from maxmatch.evaluation.encoding import EncodedSplit


def test_a_slot_for_each_facet_is_full_specialisation_of_the_images():
    split, facets = facet_split(slot_of=[2, 0, 1])
    images, texts = specialisation(pairs_of(split), facets, orders=99)
    assert images.facets == ["f0", "f1", "f2"]
    assert images.best == [2, 0, 1]
    assert images.specialisation == pytest.approx(1, abs=0.1)
    assert images.interval[0] > 0
    assert images.shares[[0, 1, 2], [2, 0, 1]].min() > 0.95
    assert images.information == pytest.approx(math.log2(3), abs=0.15)
    assert images.p_value == 0.01
    # All slots of a caption say the same here.
    assert texts.specialisation == pytest.approx(0, abs=0.05)


def test_captions_whose_own_slot_tells_is_full_specialisation_of_the_texts():
    split, facets = facet_split(slot_of=[0, 1, 2], noise=0)
    told = [1, 2, 0]
    texts = random_sets(9, *split.sets["text"].shape)
    for place, facet in enumerate(facets):
        slot = told[int(facet[1])]
        texts[place, slot] = split.sets["text"][place, slot]
    images, texts = specialisation(pairs_of(encoded(split.sets["image"], texts, None, split.groups["text"])), facets)
    assert texts.best == told
    assert texts.specialisation > 0.8
    assert images.specialisation > 0.8


def test_two_slots_for_three_facets_are_as_specialised_as_two_slots_can_be():
    split, facets = facet_split(slot_of=[0, 1, 1], noise=0.1)
    sets = {**split.sets, "image": split.sets["image"][:, :2]}
    images, _ = specialisation(pairs_of(EncodedSplit(sets, split.groups)), facets, orders=9)
    # own = z; one = 2/3 z, by the slot of two facets; 1/3 · 2/(2 − 1)
    assert images.specialisation == pytest.approx(2 / 3, abs=0.1)


@pytest.mark.parametrize("seed", [0, 1])
def test_slots_that_all_tell_everything_do_not_specialise(seed):
    split, facets = facet_split(seed=seed)
    for side in specialisation(pairs_of(split), facets, seed=seed, orders=99):
        assert side.specialisation == pytest.approx(0, abs=0.05)
        assert side.interval[0] < 0.01
        assert side.p_value > 0.03


def test_collapsed_sets_do_not_specialise():
    split, facets = facet_split()
    sets = {name: one[:, :1].expand(-1, 4, -1).contiguous() for name, one in split.sets.items()}
    for side in specialisation(pairs_of(EncodedSplit(sets, split.groups)), facets, orders=9):
        assert side.specialisation == 0
        assert side.interval == (0, 0)
        assert side.best == [0, 0, 0]
        assert side.information == 0
        assert side.p_value == 1


def test_one_slot_that_tells_some_facets_better_than_others_is_no_specialisation():
    split, facets = facet_split(slot_of=[1, 1, 1], ease=[1.0, 0.4, 0.1], noise=1.0, count=300)
    images, _ = specialisation(pairs_of(split), facets, orders=9)
    assert images.best == [1, 1, 1]
    assert images.scores[0, 1] > 3 * images.scores[2, 1]
    assert images.specialisation == 0


def test_the_interval_covers_nothing_about_as_often_as_it_says():
    beyond = 0
    for seed in range(30):
        split, facets = facet_split(count=40, seed=seed, noise=3.0)
        for side in specialisation(pairs_of(split), facets, seed=seed, orders=1):
            beyond += side.interval[0] > 0
    assert beyond <= 5  # 1.5 of 60 expected


def test_standard_scores_agree_with_loops():
    split = random_split()
    data = pairs_of(split)
    partner = data.partners()
    images, texts = (sets.double() for sets in data.sets)
    by_image, by_text = standard_scores(data)
    for c, text in enumerate(texts):
        for k in range(3):
            near = [max(float(image[k] @ vector) for vector in text) for image in images]
            expected = (near[partner[c]] - np.mean(near)) / np.std(near)
            assert by_image[c, k] == pytest.approx(expected, abs=1e-5)
        for l in range(2):  # noqa: E741
            near = [max(float(vector @ text[l]) for vector in image) for image in images]
            assert by_text[c, l] == pytest.approx((near[partner[c]] - np.mean(near)) / np.std(near), abs=1e-5)


def test_means_shares_and_choices_agree_with_loops():
    split, facets = facet_split(count=30, noise=2.0, slot_of=[0, 1, 1])
    data = pairs_of(split)
    partner = data.partners()
    scores = standard_scores(data)[0]
    ours, _ = specialisation(pairs_of(split), facets, seed=4, orders=9)
    first = [int(np.random.default_rng(4).permutation(30)[picture]) % 2 == 0 for picture in partner]
    own, one = [], []
    for c, facet in enumerate(facets):
        if first[c]:
            continue
        others = [d for d in range(len(facets)) if first[d]]
        alike = [d for d in others if facets[d] == facet]
        one.append(scores[c, int(np.argmax([np.mean([scores[d, k] for d in others]) for k in range(3)]))])
        own.append(scores[c, int(np.argmax([np.mean([scores[d, k] for d in alike]) for k in range(3)]))])
    assert ours.own == pytest.approx(np.mean(own))
    assert ours.one == pytest.approx(np.mean(one))
    assert sum(ours.interval) / 2 == pytest.approx(np.mean(own) - np.mean(one))
    assert ours.specialisation == pytest.approx((ours.own - ours.one) / ours.own * 3 / 2)
    for number, name in enumerate(ours.facets):
        these = [c for c, facet in enumerate(facets) if facet == name]
        assert ours.counts[number] == len(these)
        for k in range(3):
            assert ours.scores[number, k] == pytest.approx(np.mean([scores[c, k] for c in these]))
            assert ours.shares[number, k] == pytest.approx(np.mean([int(scores[c].argmax()) == k for c in these]))
    joint = np.array(ours.shares) * np.array(ours.counts)[:, None] / len(facets)
    outer = joint.sum(1, keepdims=True) * joint.sum(0, keepdims=True)
    information = sum(p * math.log2(p / q) for p, q in zip(joint.ravel(), outer.ravel(), strict=True) if p > 0)
    assert ours.information == pytest.approx(information)


def test_one_caption_one_vector_or_one_facet_say_nothing():
    single, facets = facet_split(slot_of=[0, 0, 0])
    sets = {name: one[:, :1] for name, one in single.sets.items()}
    cases = ((one_pair(), ["a"]), (EncodedSplit(sets, single.groups), facets), (single, ["a"] * len(facets)))
    for split, labels in cases:
        for side in specialisation(pairs_of(split), labels, orders=9):
            assert side.specialisation == 0
            assert all(map(math.isfinite, (side.own, side.one, *side.interval, side.information, side.chance)))


def test_one_caption_an_image_is_dealt_among_all_images():
    split, facets = facet_split(per_image=1, slot_of=[0, 1, 2])
    images, _ = specialisation(pairs_of(split), facets, orders=99)
    assert images.p_value == 0.01
    assert images.chance < 0.2


def test_facets_of_another_number_are_refused():
    with pytest.raises(ValueError, match="one for each of 21 items of 'text', got 2"):
        specialisation(pairs_of(random_split()), ["a", "b"])


# What each caption is about, from the metadata of generated scenes.


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scenes")
    generate(folder, images=12, size=32)
    return read_dataset(folder)


def facets_of(split, without=()):
    """The facets of the captions of a split of which some groups could not be read."""
    ids = [name for name, group in zip(split["text"].ids, split["text"].groups, strict=True) if group not in without]
    return caption_facets(split, EncodedSplit({}, {}, {"text": ids}))


def test_every_caption_of_generated_scenes_has_its_facet(scenes):
    split = scenes.split("train")
    found = facets_of(split)
    assert found == [facet["kind"] for known in split["image"].metadata for facet in known["facets"]]
    assert len(set(found)) > 4
    assert facets_of(split, without={1}) == found[:5] + found[10:]
    fewer = facets_of(first_of_each(scenes, "text", 2).split("train"))
    assert fewer == [kind for place, kind in enumerate(found) if place % 5 < 2]


def split_with(metadata):
    texts = Items(["a", "b", "c"], np.array([0, 0, 1]), ["t0", "t1", "t2"])
    return Split({"image": Items([b"", b""], np.arange(2), ["i0", "i1"], metadata), "text": texts})


def test_facets_may_be_plain_names_or_missing_altogether():
    assert facets_of(split_with([{"facets": ["object", "place"]}, {"facets": ["count"]}])) == [
        "object",
        "place",
        "count",
    ]
    assert facets_of(split_with(None)) is facets_of(split_with([{}, {"licence": 3}])) is None


@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        (
            [{"facets": ["object", "place"]}, {}],
            "image i1: expected `facets`, one for each of its 1 .*, got none",
        ),
        ([{"facets": ["object"]}, {}], "image i0: expected `facets`, one for each of its 2 .*, got 1"),
    ],
)
def test_facets_of_some_captions_only_are_refused_by_name(metadata, named):
    with pytest.raises(ValueError, match=named):
        facets_of(split_with(metadata))
