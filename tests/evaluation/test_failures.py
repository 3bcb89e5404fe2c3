import pytest
import torch
from constructed_models import PAIR, collapsed, encoded, random_split
from reference import random_sets

from maxmatch.evaluation.analysis import worst_queries
from maxmatch.evaluation.encoding import paired


def _slow(scores, asking, asked, worst, answers):
    """(query, rank, right, wrong answers above) of the worst, by sorting a list for every query."""
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
def test_the_worst_agree_with_a_list_sorted_for_every_query(values, worst):
    data = paired(random_split(1), PAIR)
    scores = torch.randint(values, (9, 21), generator=torch.Generator().manual_seed(values)) / values
    forth, back = worst_queries(scores, data, worst, answers=3)
    image_groups, text_groups = (groups.tolist() for groups in data.groups)
    for ours, table, asking, asked in (
        (forth, scores, image_groups, text_groups),
        (back, scores.T, text_groups, image_groups),
    ):
        expected, failed = _slow(table, asking, asked, worst, 3)
        assert ours.failed == failed
        found = [(f.item, f.rank, f.right.item, [answer.item for answer in f.wrong]) for f in ours.worst]
        assert found == expected
        for failure in ours.worst:
            assert failure.right.true
            assert not any(answer.true for answer in failure.wrong)
            assert failure.right.score == pytest.approx(float(table[failure.item, failure.right.item]))
            assert failure.wrong[0].score == pytest.approx(float(table[failure.item, failure.wrong[0].item]))
            assert failure.margin == pytest.approx(failure.wrong[0].score - failure.right.score)
            assert failure.margin >= 0
    assert (forth.query, forth.gallery, back.query) == ("image", "text", "text")
    assert forth.worst[0].id == f"i{forth.worst[0].item}"
    assert back.worst[0].right.id == f"i{back.worst[0].right.item}"


def test_where_all_is_found_nothing_failed():
    forth, back = worst_queries(torch.eye(27), paired(collapsed(), PAIR))
    assert forth.worst == back.worst == []
    assert forth.failed == back.failed == 0


def test_one_caption_only_cannot_fail():
    split = encoded(random_sets(0, 1, 2, 4), random_sets(1, 1, 2, 4))
    assert worst_queries(torch.tensor([[0.5]]), paired(split, PAIR))[0].failed == 0
