"""Three constructed models, a collapsed one, one that uses a single slot and a diverse one, are told apart."""

import json
import math

import pytest
import torch
from constructed_models import COUNT, PAIR, collapsed, diverse, one_slot

from maxmatch.evaluation.analysis import analyse

CONSTRUCTED = {"collapsed": collapsed, "one slot": one_slot, "diverse": diverse}


@pytest.fixture(scope="module", params=["maxmatch", "mil", "smooth_chamfer", "top_k"])
def analyses(request):
    return {name: analyse(make(), PAIR, request.param, seed=3) for name, make in CONSTRUCTED.items()}


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
    assert analyses["diverse"].between.usage[0] == pytest.approx([1 / 3] * 3)


def test_one_slot_kept_is_worth_all_nothing_or_a_part(analyses):
    for modality in PAIR:
        assert analyses["collapsed"].elements.rsum(modality) == [600, 600, 600]
        # A slot that is the same for all ties with all of them.
        assert analyses["one slot"].elements.rsum(modality) == [0, 600, 0]
        # Nine items share a digit: rank 9, which is R@10 only.
        assert analyses["diverse"].elements.rsum(modality) == [200, 200, 200]
    assert analyses["diverse"].elements.whole["rsum"] == analyses["diverse"].retrieval["rsum"]
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
