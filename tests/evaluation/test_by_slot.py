import pytest
from constructed_models import PAIR, encoded, random_split
from reference import random_sets

from maxmatch.evaluation.slots import by_slot


def _nearest(split, pair):
    """For every query and slot all items of the gallery, (−cosine, place) sorted: a loop over everything."""
    queries, gallery = (split.sets[name].double() for name in pair)
    return [
        [
            sorted((-max(float(vector @ other) for other in item), place) for place, item in enumerate(gallery))
            for vector in query
        ]
        for query in queries
    ]


@pytest.mark.parametrize("pair", [PAIR, PAIR[::-1]])
def test_each_slot_agrees_with_a_loop_over_everything(pair):
    split = random_split(3)
    slow = _nearest(split, pair)
    asking, asked = (split.groups[name].tolist() for name in pair)
    ours = by_slot(split, pair, queries=[4, 0], answers=3)
    assert (ours.query, ours.gallery) == pair
    ranks = [
        [1 + next(i for i, (_, place) in enumerate(order) if asked[place] == asking[query]) for order in orders]
        for query, orders in enumerate(slow)
    ]
    # The wrong answers above the first true one: captions of the same image among them do not count.
    ranks = [
        [
            1 + sum(asked[place] != asking[query] for _, place in order[: rank - 1])
            for order, rank in zip(orders, row, strict=True)
        ]
        for query, (orders, row) in enumerate(zip(slow, ranks, strict=True))
    ]
    for level in (1, 5, 10):
        for slot, recalls in enumerate(ours.recalls):
            assert recalls[f"r{level}"] == pytest.approx(100 * sum(r[slot] <= level for r in ranks) / len(ranks))
        best = sum(min(row) <= level for row in ranks)
        assert ours.any_slot[f"r{level}"] == pytest.approx(100 * best / len(ranks))
    firsts = [[order[0][1] for order in orders] for orders in slow]
    assert ours.distinct == pytest.approx(sum(len(set(row)) for row in firsts) / len(firsts))
    groups = [{asked[place] for place in row} for row in firsts]
    assert ours.distinct_groups == pytest.approx(sum(map(len, groups)) / len(groups))
    assert [example.item for example in ours.examples] == [4, 0]
    for example in ours.examples:
        assert example.id == split.ids[pair[0]][example.item]
        for answers, order in zip(example.answers, slow[example.item], strict=True):
            assert [answer.item for answer in answers] == [place for _, place in order[:3]]
            assert [answer.score for answer in answers] == pytest.approx([-score for score, _ in order[:3]], abs=1e-6)
            assert [answer.true for answer in answers] == [
                asked[place] == asking[example.item] for _, place in order[:3]
            ]
            assert answers[0].id == split.ids[pair[1]][answers[0].item]


def test_equal_slots_find_one_thing_and_ties_count_against_them():
    same = random_sets(0, 1, 1, 4).expand(12, 3, -1)
    ours = by_slot(encoded(same, same), PAIR, queries=[5])
    assert ours.distinct == 1
    assert [slot["r10"] for slot in ours.recalls] == [0, 0, 0]
    assert [answer.item for answer in ours.examples[0].answers[2]] == [0, 1, 2, 3, 4]


def test_one_caption_is_the_answer_to_all():
    ours = by_slot(encoded(random_sets(0, 1, 2, 4), random_sets(1, 1, 3, 4)), PAIR, queries=[0], answers=5)
    assert ours.recalls == [{"r1": 100, "r5": 100, "r10": 100}] * 2
    assert [len(answers) for answers in ours.examples[0].answers] == [1, 1]


def test_a_split_without_names_has_answers_without_names():
    split = random_split()
    bare = type(split)(split.sets, split.groups)
    example = by_slot(bare, PAIR, queries=[1]).examples[0]
    assert example.id is example.answers[0][0].id is None


def test_a_query_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="there are 9 items of 'image', got number 9"):
        by_slot(random_split(), PAIR, queries=[0, 9])
    with pytest.raises(ValueError, match="answers: expected at least 1, got 0"):
        by_slot(random_split(), PAIR, answers=0)
