import json

import pytest
import torch
from constructed_models import PAIR, encoded, facet_split, random_split
from reference import random_sets

from maxmatch.evaluation.analysis import analyse
from maxmatch.evaluation.metrics import log_circular_variance, retrieval, slot_pairing
from maxmatch.matching.similarity import with_options


@pytest.mark.parametrize("similarity", ["maxmatch", "mil"])
def test_an_analysis_says_what_evaluation_says(similarity):
    split = random_split()
    ours = analyse(split, PAIR, similarity)
    images, texts = split.sets["image"], split.sets["text"]
    assert ours.retrieval == retrieval(images, texts, split.groups["image"], split.groups["text"], similarity)
    assert ours.elements.whole == ours.retrieval
    assert ours.log_variance == {name: log_circular_variance(split.sets[name]) for name in PAIR}
    assert ours.pairing.stability == slot_pairing(images, texts, split.partners(PAIR), similarity).stability
    assert ours.set_sizes == {"image": 3, "text": 2}
    assert ours.items == {"image": 9, "text": 21}
    assert ours.width == 6
    assert ours.facets is None
    assert 0 < ours.chance["t2i_r1"] == pytest.approx(100 / 9)
    assert [way.query for way in ours.by_slot] == [way.query for way in ours.failures] == ["image", "text"]


def test_the_options_of_a_similarity_are_those_of_the_scores():
    split = random_split()
    soft = with_options("smooth_chamfer", {"alpha": 0.5})
    groups = (split.groups["image"], split.groups["text"])
    expected = retrieval(split.sets["image"], split.sets["text"], *groups, soft)
    assert analyse(split, PAIR, "smooth_chamfer").retrieval != expected
    assert analyse(split, PAIR, "smooth_chamfer", options={"alpha": 0.5}).retrieval == expected


def test_groups_may_have_any_numbers():
    split = random_split()
    far = type(split)(split.sets, {name: groups * 10**12 - 5 for name, groups in split.groups.items()}, split.ids)
    assert analyse(far, PAIR, "maxmatch").to_json() == analyse(split, PAIR, "maxmatch").to_json()


@pytest.mark.parametrize("slots", [(1, 1), (1, 4), (4, 2)])
def test_sets_of_any_size_are_analysed(slots):
    ours = analyse(random_split(slots=slots), PAIR, "maxmatch", facets=["a", "b", "c"] * 7)
    plain = json.loads(json.dumps(ours.to_json(), allow_nan=False))
    assert [len(plain["elements"]["kept"][name]) for name in PAIR] == list(slots)
    assert [len(way["recalls"]) for way in plain["by_slot"]] == list(slots)
    assert (len(plain["between"]["true"]), len(plain["between"]["true"][0])) == slots


def test_one_caption_only_is_analysed():
    split = encoded(random_sets(0, 1, 3, 4), random_sets(1, 1, 3, 4))
    ours = analyse(split, PAIR, "maxmatch", facets=["object"])
    assert ours.retrieval["rsum"] == ours.chance["rsum"] == 600
    assert ours.between.wrong is None
    assert ours.failures[0].worst == []
    json.dumps(ours.to_json(), allow_nan=False)


def test_the_seed_chooses_the_examples_and_nothing_else_changes():
    split, facets = facet_split(count=30)
    one, same, other = (analyse(split, PAIR, "maxmatch", facets=facets, examples=3, seed=s) for s in (0, 0, 1))
    assert one.to_json() == same.to_json()
    chosen = [[example.item for example in ours.by_slot[0].examples] for ours in (one, other)]
    assert chosen[0] != chosen[1]
    assert one.retrieval == other.retrieval
    assert one.facets[0].modality == "image"


def test_an_analysis_leaves_the_sets_as_they_were():
    split = random_split()
    before = {name: sets.clone() for name, sets in split.sets.items()}
    analyse(split, PAIR, "maxmatch")
    assert all(torch.equal(before[name], split.sets[name]) for name in PAIR)
