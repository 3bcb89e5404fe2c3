"""Captions are true, plain English, each about another facet, and telling enough to find their picture."""

import re
from collections import Counter
from itertools import pairwise

import pytest
from scene_reader import is_true, read

from maxmatch.data.scenes import Facet, Scene, caption_is_true, make_scene
from maxmatch.data.scenes.scene_folder import describe
from maxmatch.data.scenes.world import (
    BACKGROUNDS,
    COLOURS,
    COMPARISONS,
    DIRECTIONS,
    KINDS,
    SHAPES,
    SIZES,
    TEXTURES,
    Description,
    Thing,
)

SEED = 11


@pytest.fixture(scope="module")
def rows():
    return [describe(make_scene(SEED, i), SEED, i) for i in range(300)]


@pytest.fixture(scope="module")
def captions(rows):
    return [
        (text, facet, row["scene"]) for row in rows for text, facet in zip(row["captions"], row["facets"], strict=True)
    ]


def test_what_every_caption_says_in_words_is_true_of_its_picture(captions):
    """The reader also refuses words it does not know, what is said twice, and a noun in the wrong number."""
    for text, _, scene in captions:
        assert is_true(read(text), scene), (text, scene)


def test_words_and_record_agree_on_every_picture(captions, rows):
    """The reader judges by the text, `caption_is_true` by the record: on other pictures, too, they agree."""
    verdicts = Counter()
    for number, (text, facet, _) in enumerate(captions[::5]):
        claims, facet = read(text), Facet.from_record(facet)
        for row in [rows[(number + step) % len(rows)] for step in (3, 58, 111)] + _like(facet, rows):
            verdict = is_true(claims, row["scene"])
            assert caption_is_true(facet, Scene.from_record(row["scene"])) == verdict, (text, row["scene"])
            verdicts[verdict] += 1
    assert verdicts[True] > 30
    assert verdicts[False] > 300


def _like(facet, rows):
    """Some pictures in which the first thing that the caption is about is there, too."""
    said = facet.about[0].record() if facet.about else {}
    said.pop("place", None)
    found = (row for row in rows if any(said.items() <= thing.items() for thing in row["scene"]["things"]))
    return [row for row, _ in zip(found, range(4), strict=False)]


def test_things_fit_their_descriptions(captions):
    for text, facet, scene in captions:
        meant = [scene["things"][number] for number in facet["objects"]]
        assert len(set(facet["objects"])) == len(meant) >= len(facet["about"]), text
        for said, thing in zip(facet["about"], meant, strict=False):
            assert said.items() <= thing.items(), text


def test_the_captions_of_a_picture_are_about_five_different_facets(rows):
    for row in rows:
        assert len({facet["kind"] for facet in row["facets"]}) == len(set(row["captions"])) == 5


def test_every_word_of_the_world_occurs(captions):
    kinds, relations, backgrounds, counts = (
        Counter(facet[name] for _, facet, _ in captions) for name in ("kind", "relation", "background", "count")
    )
    assert set(kinds) == set(KINDS)
    assert min(kinds.values()) > 0.1 * len(captions) / 2
    assert set(relations) == {None, *DIRECTIONS, "inside", "around", "next to", *COMPARISONS}
    assert set(backgrounds) == {None, *BACKGROUNDS}
    assert set(counts) == {None, 2, 3, 4, 5, 6}
    said = {(name, value) for _, facet, _ in captions for about in facet["about"] for name, value in about.items()}
    for name, values in {"shape": SHAPES, "colour": COLOURS, "size": SIZES, "texture": TEXTURES}.items():
        assert {value for this, value in said if this == name} == set(values)


def test_articles_and_spaces_are_right_and_no_word_comes_twice_running(captions):
    for text, _, _ in captions:
        assert re.fullmatch(r"[A-Z][a-z,: -]*[a-z]\.", text), text
        assert "  " not in text
        assert not re.search(r"\ba [aeiou]|\ban [^aeiou]|\b(a|an|the|another) one\b|\bone one\b", text, re.I), text
        words = re.findall(r"[a-z-]+", text.lower())
        assert not any(a == b for a, b in pairwise(words)), text


def test_vocabulary_is_of_a_few_hundred_words_each_met_often(captions):
    words = Counter(word for text, _, _ in captions for word in re.findall(r"[a-z-]+", text.lower()))
    assert 250 <= len(words) <= 400
    assert sum(count >= 4 for count in words.values()) >= 0.9 * len(words)
    lengths = [len(text.split()) for text, _, _ in captions]
    assert 9 < sum(lengths) / len(lengths) < 14
    assert max(lengths) <= 30


def test_who_knows_the_truth_finds_the_picture_among_hundreds():
    """The ceiling of caption -> picture R@1, guessing among the pictures that a caption is true of."""
    scenes = [make_scene(SEED, i) for i in range(500)]
    found, few = [], []
    for index in range(0, 500, 20):
        for facet in describe(scenes[index], SEED, index)["facets"]:
            true = sum(caption_is_true(Facet.from_record(facet), scene) for scene in scenes)
            found.append(1 / true)
            few.append(true - 1 <= 10)
    assert sum(found) / len(found) > 0.65
    assert sum(few) / len(few) > 0.95


def thing(**changes):
    looks = {"shape": "star", "colour": "red", "size": "small", "texture": "plain", "x": 0.5, "y": 0.5, "radius": 0.1}
    return Thing(**{**looks, "turn": 0.0, **changes})


def true(scene, **facet):
    return caption_is_true(Facet("object", (), **facet), scene)


def test_descriptions_need_different_things():
    red = Description(colour="red")
    assert true(Scene("sky", (thing(), thing(x=0.9))), about=(red, Description(shape="star")))
    assert not true(Scene("sky", (thing(),)), about=(red, Description(shape="star")))
    assert not true(Scene("sky", (thing(), thing(colour="blue", shape="ring"))), about=(red, red))


def test_a_relation_must_hold_between_the_things_described():
    scene = Scene("sky", (thing(x=0.2), thing(x=0.8, colour="blue"), thing(x=0.9, y=0.9, colour="green")))
    red, blue = Description(colour="red"), Description(colour="blue")
    assert true(scene, about=(red, blue), relation="left of")
    assert not true(scene, about=(blue, red), relation="left of")
    assert not true(scene, about=(red, blue), relation="right of")


def test_a_count_is_exact_and_a_background_must_be_the_same():
    scene = Scene("sky", (thing(), thing(x=0.2), thing(x=0.8, shape="ring")))
    stars = Description(shape="star")
    assert [true(scene, counted=stars, count=count) for count in (1, 2, 3)] == [False, True, False]
    assert true(scene, counted=Description(), count=3)
    assert true(scene, background="sky")
    assert not true(scene, background="night")


def test_records_bring_back_what_they_were_made_of(rows):
    for index, row in enumerate(rows[:40]):
        assert Scene.from_record(row["scene"]) == make_scene(SEED, index)
        assert [Facet.from_record(facet).record() for facet in row["facets"]] == row["facets"]
