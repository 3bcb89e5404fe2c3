import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from maxmatch.data.sampler import places_of


@given(st.lists(st.integers(1, 7), min_size=1, max_size=30), st.integers(1, 8) | st.none(), st.data())
def test_of_each_group_all_items_or_as_many_as_asked_for(counts, most, data):
    starts = np.concatenate([[0], np.cumsum(counts)])
    groups = np.array(data.draw(st.permutations(range(len(counts)))))[: data.draw(st.integers(1, len(counts)))]
    places = places_of(starts, groups, most, seed=5).tolist()
    for group in groups:
        own = list(range(starts[group], starts[group + 1]))
        mine, places = places[: min(len(own), most or 7)], places[min(len(own), most or 7) :]
        assert set(mine) <= set(own)
        assert mine == sorted(set(mine))
    assert not places


def test_every_item_is_chosen_equally_often():
    starts, groups, times = np.array([0, 5, 8]), np.array([1, 0]), 4_000
    chosen = np.concatenate([places_of(starts, groups, 2, seed) for seed in range(times)])
    counts = np.bincount(chosen, minlength=8)
    expected = times * 2 / np.array([5, 5, 5, 5, 5, 3, 3, 3])
    deviation = np.sqrt(expected * (1 - expected / times))
    assert (np.abs(counts - expected) < 4 * deviation).all()


def test_the_choice_depends_on_the_seed_alone():
    starts, groups = np.arange(0, 101, 5), np.arange(20)
    first = places_of(starts, groups, 2, seed=1)
    assert np.array_equal(first, places_of(starts, groups, 2, seed=1))
    assert not np.array_equal(first, places_of(starts, groups, 2, seed=2))
