"""An analysis as a whole: three constructed models are told apart; the worst queries; what is refused."""

import json
import math
from dataclasses import replace

import pytest
import torch
from made_splits import (
    COUNT,
    PAIR,
    collapsed,
    diverse,
    encoded,
    facet_split,
    one_pair,
    one_slot,
    pairs_of,
    random_split,
)
from reference import random_sets

from maxmatch.evaluation.analysis import analyse, worst_queries
from maxmatch.evaluation.metrics import log_circular_variance, retrieval, slot_pairing
from maxmatch.evaluation.ranking import ranks_both_ways
from maxmatch.matching.similarity import with_options


def test_an_analysis_has_the_figures_of_an_evaluation():
    split = random_split()
    ours = analyse(split, PAIR, "mil")
    sides = (split.sets["image"], split.sets["text"])
    groups = (split.groups["image"], split.groups["text"])
    assert ours.retrieval == ours.elements.whole == retrieval(*sides, *groups, "mil")
    assert ours.log_variance == {name: log_circular_variance(split.sets[name]) for name in PAIR}
    assert ours.pairing.stability == slot_pairing(*sides, split.partners(PAIR), "mil").stability
    assert (ours.set_sizes, ours.items, ours.width) == ({"image": 3, "text": 2}, {"image": 9, "text": 21}, 6)
    assert ours.facets is None
    assert ours.chance["t2i_r1"] == pytest.approx(100 / 9)
    assert [way.query for way in ours.by_slot] == [way.query for way in ours.failures] == ["image", "text"]
    soft = analyse(split, PAIR, "smooth_chamfer", options={"alpha": 0.5}).retrieval
    assert soft == retrieval(*sides, *groups, with_options("smooth_chamfer", {"alpha": 0.5}))
    assert soft != analyse(split, PAIR, "smooth_chamfer").retrieval


def test_the_slots_used_by_top_k_are_those_of_its_option_k():
    for k, used in ((1, 2 / 5), (6, 1), (100, 1)):  # of two image slots and three text slots
        assert analyse(one_pair(), PAIR, "top_k", options={"k": k}).pairing.used == pytest.approx(used)


def test_groups_may_have_any_numbers_and_items_no_names():
    split = random_split()
    far = replace(split, groups={name: groups * 10**12 - 5 for name, groups in split.groups.items()})
    whole = analyse(split, PAIR, "maxmatch")
    assert analyse(far, PAIR, "maxmatch").to_json() == whole.to_json()
    nameless = analyse(replace(split, ids={}), PAIR, "maxmatch").by_slot[0].examples[0]
    assert nameless.id is nameless.answers[0][0].id is None


@pytest.mark.parametrize("slots", [(1, 4), (4, 2)])
def test_sets_of_any_size_are_analysed(slots):
    ours = analyse(random_split(slots=slots), PAIR, "maxmatch", facets=["a", "b", "c"] * 7)
    plain = json.loads(json.dumps(ours.to_json(), allow_nan=False))
    assert [len(plain["elements"]["kept"][name]) for name in PAIR] == list(slots)
    assert [len(way["recalls"]) for way in plain["by_slot"]] == list(slots)
    assert (len(plain["between"]["true"]), len(plain["between"]["true"][0])) == slots


def test_one_image_with_one_caption_is_analysed():
    ours = analyse(one_pair(), PAIR, "maxmatch", facets=["object"])
    assert ours.retrieval["rsum"] == ours.chance["rsum"] == 600
    assert ours.between.wrong is None
    assert (ours.failures[0].worst, ours.failures[0].failed) == ([], 0)
    json.dumps(ours.to_json(), allow_nan=False)


def test_the_seed_chooses_the_examples_and_the_sets_stay_as_they_were():
    split, facets = facet_split(count=15)
    before = {name: sets.clone() for name, sets in split.sets.items()}
    one, same, other = (analyse(split, PAIR, "maxmatch", facets=facets, examples=3, seed=s) for s in (0, 0, 1))
    assert one.to_json() == same.to_json()
    chosen = [[example.item for example in ours.by_slot[0].examples] for ours in (one, other)]
    assert chosen[0] != chosen[1]
    assert one.retrieval == other.retrieval
    assert [side.modality for side in one.facets] == ["image", "text"]
    assert all(torch.equal(before[name], split.sets[name]) for name in PAIR)


# A collapsed model, one that uses a single slot and a diverse one.


@pytest.fixture(scope="module", params=["maxmatch", "mil"])
def analyses(request):
    made = {"collapsed": collapsed, "one slot": one_slot, "diverse": diverse}
    return {name: analyse(make(), PAIR, request.param, seed=3) for name, make in made.items()}


def test_variance_is_lost_in_the_collapsed_one_only(analyses):
    assert analyses["collapsed"].log_variance["image"] < -14
    for name in ("one slot", "diverse"):  # three vectors at right angles: 1 − 3/9
        for modality in PAIR:
            assert analyses[name].log_variance[modality] == pytest.approx(math.log(2 / 3))


def test_cosines_within_sets_are_all_one_or_all_zero(analyses):
    for name, edge in (("collapsed", 0.96), ("one slot", 0.0), ("diverse", 0.0)):
        within = analyses[name].within["text"]
        full = [place for place, count in enumerate(within.counts) if count]
        assert [within.edges[place] for place in full] == pytest.approx([edge])
        assert sum(within.counts) == 3 * COUNT
        assert within.mean == pytest.approx(1.0 if name == "collapsed" else 0.0)


def test_heatmaps_are_full_a_single_cell_and_a_diagonal(analyses):
    single = torch.zeros(3, 3).double()
    single[1, 1] = 1
    for name, expected in (("collapsed", torch.ones(3, 3)), ("one slot", single), ("diverse", torch.eye(3))):
        torch.testing.assert_close(analyses[name].between.true, expected.double())
    # A wrong pair of the diverse one shares a digit with 8 of the 26 others.
    torch.testing.assert_close(analyses["diverse"].between.wrong, torch.eye(3).double() * 8 / 26)
    torch.testing.assert_close(analyses["collapsed"].between.wrong, torch.zeros(3, 3).double())
    torch.testing.assert_close(analyses["one slot"].between.best, single)
    torch.testing.assert_close(analyses["collapsed"].between.best, torch.full((3, 3), 1 / 9).double())
    assert analyses["diverse"].between.usage["image"] == pytest.approx([1 / 3] * 3)


def test_one_slot_kept_is_worth_all_nothing_or_a_part(analyses):
    for modality in PAIR:
        assert analyses["collapsed"].elements.rsum(modality) == [600, 600, 600]
        # A slot that is the same for all ties with all of them.
        assert analyses["one slot"].elements.rsum(modality) == [0, 600, 0]
        # Nine items share a digit: rank 9, which is R@10 only.
        assert analyses["diverse"].elements.rsum(modality) == [200, 200, 200]
    if analyses["diverse"].similarity != "mil":  # it needs one digit in common, no more
        assert all(analysis.retrieval["rsum"] == 600 for analysis in analyses.values())


def test_slots_find_the_same_one_right_and_one_wrong_or_different_things(analyses):
    for way in (0, 1):
        assert analyses["collapsed"].by_slot[way].distinct == 1
        # Slots 0 and 2 find the first item of all, slot 1 the right one, which is the first only once.
        assert analyses["one slot"].by_slot[way].distinct == pytest.approx((26 * 2 + 1) / 27)
        # Slot k finds the first item with its digit d, number d·3^k: the non-zero digits and one for all zeros.
        assert analyses["diverse"].by_slot[way].distinct == pytest.approx(2 + 19 / 27)
        assert [slot["r1"] for slot in analyses["one slot"].by_slot[way].recalls] == [0, 100, 0]
        assert [slot["r10"] for slot in analyses["diverse"].by_slot[way].recalls] == [100, 100, 100]


def test_all_of_it_is_json_without_nan(analyses):
    for analysis in analyses.values():
        plain = analysis.to_json()
        assert json.loads(json.dumps(plain, allow_nan=False)) == plain
        assert plain["between"]["usage"].keys() == {"image", "text"}
        assert len(plain["within"]["image"]["edges"]) == len(plain["within"]["image"]["counts"]) + 1
        assert len(plain["by_slot"][0]["examples"]) == 8
        assert plain["by_slot"][0]["examples"][0]["answers"][0][0].keys() == {"item", "id", "score", "true"}


# The worst queries.


def slow_worst(scores, asking, asked, worst, answers):
    """(query, rank, right, wrong answers above) of the worst, by sorting a list for every query; how many failed."""
    found = []
    for query, row in enumerate(scores.tolist()):
        true = [(-score, place) for place, score in enumerate(row) if asked[place] == asking[query]]
        score, right = min(true)
        above = sorted((-s, place) for place, s in enumerate(row) if asked[place] != asking[query] and s >= -score)
        if above:
            margin = -above[0][0] + score
            found.append((-(len(above) + 1), -margin, query, right, [place for _, place in above[:answers]]))
    found.sort()
    return [(query, -rank, right, wrong) for rank, _, query, right, wrong in found[:worst]], len(found)


@pytest.mark.parametrize("values", [3, 1000])
@pytest.mark.parametrize("worst", [4, 100])
@pytest.mark.parametrize("turned", [False, True])
def test_the_worst_agree_with_a_list_sorted_for_every_query(values, worst, turned):
    data = pairs_of(random_split(1))
    scores = torch.randint(values, (9, 21), generator=torch.Generator().manual_seed(values)) / values
    data, scores = (data.turned(), scores.T) if turned else (data, scores)
    ours = worst_queries(scores, data, ranks_both_ways(scores, *data.groups)[0].ranks, worst, answers=3)
    expected, failed = slow_worst(scores, *(groups.tolist() for groups in data.groups), worst, 3)
    assert (ours.query, ours.gallery, ours.failed) == (*data.names, failed)
    assert [(f.item, f.rank, f.right.item, [answer.item for answer in f.wrong]) for f in ours.worst] == expected
    for failure in ours.worst:
        assert failure.right.true
        assert not any(answer.true for answer in failure.wrong)
        for answer in (failure.right, failure.wrong[0]):
            assert answer.score == pytest.approx(float(scores[failure.item, answer.item]))
            assert answer.id == f"{data.names[1]}-{answer.item}"


# What every analysis refuses.


def test_splits_that_cannot_be_analysed_are_refused_by_name():
    with_nan = random_split()
    with_nan.sets["text"][7, 1, 2] = torch.nan
    sets = random_sets(0, 3, 2, 4)
    refused = [
        (with_nan, PAIR, "text: item 7 holds NaN"),
        (encoded(sets[:0], sets[:0]), PAIR, "image: the split has no items of it"),
        (random_split(), ("image", "audio"), "pair: the split has image, text, got 'audio'"),
        (encoded(sets, sets, [0, 1, 2], [0, 1, 1]), PAIR, "some image has no true text, or some text no true image"),
        (encoded(sets, sets, [0, 1, 1], [0, 1, 2]), PAIR, "some image has no true text, or some text no true image"),
        (encoded(sets, random_sets(0, 3, 2, 5)), PAIR, "width 4 and b of width 5"),
    ]
    for split, pair, named in refused:
        with pytest.raises(ValueError, match=named):
            analyse(split, pair, "maxmatch")
