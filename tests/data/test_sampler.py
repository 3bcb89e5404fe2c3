from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxmatch.data.feed import places_of
from maxmatch.data.sampler import GroupSampler

sizes, batch_sizes, seeds = st.integers(2, 120), st.integers(2, 40), st.integers(0, 2**70)


def batches(sampler, epoch=0, start=0):
    return [plan.groups.tolist() for plan in sampler.plans(epoch, start)]


def joined(lists):
    return list(chain.from_iterable(lists))


def identical(plans, others):
    pairs = list(zip(plans, others, strict=True))
    return all(a.seed == b.seed and a.groups.tolist() == b.groups.tolist() for a, b in pairs)


@given(sizes, batch_sizes, seeds, st.integers(0, 5))
def test_an_epoch_has_every_group_once(size, batch_size, seed, epoch):
    sampler = GroupSampler(size, batch_size, seed)
    got = batches(sampler, epoch)
    assert len(got) == len(sampler)
    assert all(len(batch) == batch_size for batch in got[:-1])
    left_out = size % batch_size if size % batch_size == 1 else 0  # a batch of one has no negatives
    seen = joined(got)
    assert len(set(seen)) == len(seen) == size - left_out
    assert set(seen) <= set(range(size))


@given(st.integers(5, 120), st.integers(5, 40), seeds, st.integers(2, 5))
def test_ranks_share_the_batches_that_one_rank_sees(size, batch_size, seed, world):
    alone = batches(GroupSampler(size, batch_size, seed))
    ranks = [batches(GroupSampler(size, batch_size, seed, rank=rank, world=world)) for rank in range(world)]
    lengths = {len(of_rank) for of_rank in ranks}
    assert lengths == {len([batch for batch in alone if len(batch) >= world])}
    for whole, *slices in zip(alone, *ranks, strict=False):
        assert joined(slices) == whole
        assert min(map(len, slices)) >= max(1, max(map(len, slices)) - 1)
    seeds = [plan.seed for rank in range(2) for plan in GroupSampler(40, 8, 0, rank=rank, world=2).plans(0)]
    assert len(set(seeds)) == 10  # ranks do not share their random numbers


def test_order_changes_with_epoch_and_seed_and_with_nothing_else():
    sampler = GroupSampler(100, 10, seed=3)
    first = joined(batches(sampler, 0))
    assert first == joined(batches(GroupSampler(100, 10, seed=3), 0))
    others = [joined(batches(sampler, 1)), joined(batches(GroupSampler(100, 10, seed=4), 0))]
    assert all(np.mean(np.array(first) == other) < 0.2 for other in others)
    assert first != sorted(first)
    assert len({plan.seed for epoch in range(3) for plan in sampler.plans(epoch)}) == 30


def test_a_seed_means_the_same_batches_in_every_version():
    plan = next(GroupSampler(10, 5, seed=1).plans(2))
    assert plan.groups.tolist() == [5, 6, 9, 3, 2]
    assert plan.seed == 4135899693913103841


@given(sizes, batch_sizes, st.integers(0, 1000), st.data())
def test_plans_from_a_start_are_exactly_the_remaining_batches(size, batch_size, seed, data):
    sampler = GroupSampler(size, batch_size, seed)
    start = data.draw(st.integers(0, len(sampler)))
    assert identical(GroupSampler(size, batch_size, seed).plans(1, start), list(sampler.plans(1))[start:])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 1}, "size: 1 groups do not make one batch"),
        ({"batch_size": 1}, "batch_size: expected at least 2"),
        ({"batch_size": 3, "world": 4}, "batch_size: expected at least 4"),
        ({"size": 3, "world": 4}, "size: 3 groups"),
        ({"rank": 2, "world": 2}, "rank: expected 0 to 1"),
        ({"seed": -1}, "seed: expected 0 or more"),
    ],
)
def test_what_makes_no_batch_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        GroupSampler(**{"size": 10, "batch_size": 4, "seed": 0, **options})


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
    starts, groups, times = np.array([0, 5, 8]), np.array([1, 0]), 1_000
    chosen = np.concatenate([places_of(starts, groups, 2, seed) for seed in range(times)])
    counts = np.bincount(chosen, minlength=8)
    expected = times * 2 / np.array([5, 5, 5, 5, 5, 3, 3, 3])
    deviation = np.sqrt(expected * (1 - expected / times))
    assert (np.abs(counts - expected) < 4 * deviation).all()


@given(st.lists(st.sampled_from([0.25, 0.5, 1.0, 2.5]), min_size=8, max_size=60), seeds, st.integers(2, 9))
def test_a_group_comes_as_often_as_its_weight_says(weights, seed, batch_size):
    """Rounded down or up in each epoch, and the total the same in all."""
    sampler = GroupSampler(len(weights), batch_size, seed, weights=np.array(weights))
    total = int(sum(weights) + 0.5)
    for epoch in range(3):
        seen = joined(batches(sampler, epoch))
        assert total - len(seen) == (1 if total % batch_size == 1 else 0)
        counts = np.bincount(seen, minlength=len(weights))
        slack = 1 if total % batch_size == 1 else 0
        assert all(np.floor(w) - slack <= count <= np.ceil(w) for w, count in zip(weights, counts, strict=True))


def test_a_half_comes_every_other_time_on_average():
    sampler = GroupSampler(40, 10, 0, weights=np.full(40, 0.5))
    counts = sum(np.bincount(joined(batches(sampler, epoch)), minlength=40) for epoch in range(200))
    assert counts.sum() == 200 * 20
    assert counts.min() > 60
    assert counts.max() < 140


@given(seeds)
def test_weights_of_one_change_no_group(seed):
    plain, weighted = GroupSampler(30, 7, seed), GroupSampler(30, 7, seed, weights=np.ones(30))
    assert len(plain) == len(weighted)
    assert sorted(joined(batches(weighted))) == sorted(joined(batches(plain)))


def test_weights_too_small_for_a_batch_are_refused():
    with pytest.raises(ValueError, match="weights"):
        GroupSampler(10, 4, 0, weights=np.full(10, 0.1))


@given(st.lists(st.integers(0, 2), min_size=8, max_size=90), st.integers(0, 99), st.integers(2, 9))
def test_with_sources_batches_are_of_one_data_set_but_for_one_at_each_border(sources, seed, batch_size):
    sampler = GroupSampler(len(sources), batch_size, seed, sources=np.array(sources))
    plain = GroupSampler(len(sources), batch_size, seed)
    batches = [plan.groups for plan in sampler.plans(3)]
    assert len(sampler) == len(plain) == len(batches)
    assert [len(groups) for groups in batches] == [len(plan.groups) for plan in plain.plans(3)]
    seen = np.concatenate(batches)
    assert len(set(seen)) == len(seen)
    mixed = sum(len({sources[group] for group in groups}) > 1 for groups in batches)
    assert mixed <= len(set(sources)) - 1


def test_with_sources_the_data_sets_take_turns_at_random():
    sampler = GroupSampler(400, 10, 0, sources=np.repeat([0, 1], 200))
    turns = [int(plan.groups[0] >= 200) for plan in sampler.plans(0)]
    assert turns != sorted(turns)
    assert turns != [int(plan.groups[0] >= 200) for plan in sampler.plans(1)]
    assert [plan.groups.tolist() for plan in sampler.plans(0, start=7)] == [
        plan.groups.tolist() for plan in sampler.plans(0)
    ][7:]
