"""Both feeds give the batches put together by hand; which of them is chosen; what each does on its own."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from feeding import (
    COLOURS,
    CPU,
    FEEDS,
    WAYS,
    WIDTH,
    Store,
    arrays,
    assert_all_same,
    assert_by_hand,
    feature_readers,
    feature_split,
    items,
    kept,
    mapped,
    photo_readers,
    photo_split,
    plans,
    resident,
    texts,
    with_captions,
)

from maxmatch.data import feed as feed_module
from maxmatch.data import loaders
from maxmatch.data.augment import RandomCrop
from maxmatch.data.dataset import Split
from maxmatch.data.feed import MappedFeed, ResidentFeed, choose_feed, free_memory
from maxmatch.data.sampler import BatchPlan
from maxmatch.model.inputs import FeatureReader
from maxmatch.model.text import TextTruncated

# Newer Pythons warn of every fork beside threads. The workers use none of the threads' locks.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork:DeprecationWarning")
DROP = {"image": 0.4, "text": 0.4}
CROPS = {"image": RandomCrop(14, *COLOURS)}


@pytest.fixture
def photos(tmp_path):
    return photo_split(tmp_path)


@FEEDS
@pytest.mark.parametrize("way", WAYS)
def test_batches_are_those_put_together_by_hand(make, way):
    split, readers = feature_split(way), feature_readers()
    assert_by_hand(make(split, readers), split, readers)


@FEEDS
@pytest.mark.parametrize("dtype", ["f2", ">f4", "f8", "i2"])
def test_features_of_any_type_and_byte_order_come_in_single_precision(make, dtype):
    split, readers = feature_split("array", dtype=np.dtype(dtype)), feature_readers()
    assert_by_hand(make(split, readers), split, readers)


@FEEDS
def test_a_modality_may_have_several_items_per_group_and_there_may_be_three(make):
    readers = {**feature_readers(), "audio": FeatureReader(WIDTH)}
    images = items(kept("store", arrays(10)), [0, 0, 1, 2, 3, 4, 4, 4, 5, 6], "image")
    split = Split({"audio": items(arrays(7, seed=1), range(7), "audio"), "image": images, "text": texts(7)})
    assert_by_hand(make(split, readers), split, readers)


@FEEDS
def test_a_plan_without_a_seed_has_all_captions_and_leaves_nothing_out(make):
    split, readers = feature_split("store"), feature_readers()
    wanted = [BatchPlan(plan.groups, None) for plan in plans(split)]
    assert_by_hand(make(split, readers, captions=1, drop=DROP), split, readers, wanted)


@FEEDS
def test_texts_in_the_order_of_their_length_are_the_same_texts_and_the_short_ones_are_named(make):
    features = arrays(12)
    features[4][0, 2] = np.nan
    split, readers = with_captions(Store(features)), feature_readers()
    options = {"drop": DROP, "report": lambda item: None}
    usual, ordered = (make(split, readers, by_length=by, **options) for by in (False, True))
    undropped = make(split, readers, by_length=True, report=lambda item: None)
    batches = zip(*(feed.batches(plans(split)) for feed in (usual, ordered, undropped)), strict=True)
    for one, other, whole in batches:
        assert not one.short
        assert sorted(one.places["text"].tolist()) == sorted(other.places["text"].tolist())
        assert np.array_equal(split["text"].groups[other.places["text"].numpy()], other.groups["text"].numpy())
        lengths = whole.inputs["text"].mask.sum(1)
        assert torch.equal(lengths, lengths.sort().values)
        count, longest = other.short["text"]
        assert count == int(len(lengths) * 7 / 8)
        assert longest == int(lengths[count - 1])
        assert int(other.inputs["text"].mask[:count].sum(1).max()) <= longest


def test_both_feeds_give_the_same_batches_also_where_an_item_is_bad():
    features = arrays(12)
    features[4][0, 2] = np.nan
    split, readers = with_captions(Store(features)), feature_readers()
    options = {"captions": 2, "drop": DROP, "report": lambda item: None}
    feeds = [make(split, readers, **options) for make in (mapped, resident)]
    for epoch in range(2):
        assert_all_same(*(feed.batches(plans(split, epoch=epoch)) for feed in feeds))


def test_some_captions_are_as_many_as_asked_for_and_others_the_next_time():
    split = feature_split()
    feed = mapped(split, feature_readers(), captions=2)
    first, again, later = (list(feed.batches(plans(split, epoch=epoch))) for epoch in (0, 0, 1))
    counts = np.bincount(split["text"].groups)
    for batch in first:
        for group in batch.groups["image"].tolist():
            assert int((batch.groups["text"] == group).sum()) == min(int(counts[group]), 2)
    assert_all_same(first, again)

    def chosen(batches):
        return {tuple(ids.tolist()) for batch in batches for ids in batch.inputs["text"].values.unbind()}

    assert chosen(first) != chosen(later)


@FEEDS
@pytest.mark.parametrize("way", WAYS)
def test_a_group_with_a_bad_feature_is_left_out_and_reported_once(make, way):
    features = [np.array(features) for features in feature_split(way)["image"].values]
    features[4][0, 2], features[7][-1, 0] = np.nan, np.inf
    split, readers, said = with_captions(kept(way, features)), feature_readers(), []
    feed = make(split, readers, report=said.append)
    for epoch in range(2):
        assert_by_hand(feed, split, readers, plans(split, epoch=epoch), left_out=(4, 7))
    assert sorted(item.id for item in said) == sorted(feed.skipped) == ["image image4", "image image7"]
    assert "NaN or infinite" in str(said[0])


@FEEDS
@pytest.mark.parametrize("way", ["store", "list"])
def test_an_item_without_features_is_left_out(make, way):
    features = arrays(12)
    features[3] = features[3][:0]
    split, readers, said = with_captions(kept(way, features)), feature_readers(), []
    assert_by_hand(make(split, readers, report=said.append), split, readers, left_out=[3])
    assert [item.id for item in said] == ["image image3"]


@FEEDS
def test_a_batch_of_which_nothing_can_be_read_is_refused(make):
    split = with_captions(np.full((4, 7, WIDTH), np.nan))
    feed = make(split, feature_readers(), report=lambda item: None)
    with pytest.raises(ValueError, match=r"no group of a batch .* image image\d: NaN"):
        list(feed.batches(plans(split)))


@FEEDS
def test_texts_are_tokenised_in_pieces_and_cut_at_the_limit_with_a_warning(make, monkeypatch):
    monkeypatch.setattr(loaders, "_TEXTS_AT_ONCE", 3)
    split, readers = feature_split(), feature_readers(max_length=5)
    with pytest.warns(TextTruncated, match="more than 5 tokens"):
        feed = make(split, readers)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert_by_hand(feed, split, readers)


@pytest.mark.parametrize(
    ("readers", "options", "message"),
    [
        ({}, {"captions": 0}, "captions: expected at least 1"),
        ({}, {"drop": {"image": 2.0}}, "drop: expected a share"),
        ({}, {"crops": CROPS}, "only pictures can be cropped, but 'image'"),
        ({"audio": FeatureReader(3)}, {}, "this data has image, text, not audio"),
        ({"image": FeatureReader(WIDTH + 1)}, {}, f"image0: expected features of width {WIDTH + 1}, got {WIDTH}"),
    ],
)
@FEEDS
def test_wrong_options_and_readers_are_refused(make, readers, options, message):
    with pytest.raises(ValueError, match=message):
        make(feature_split(), {**feature_readers(), **readers}, **options)


@pytest.mark.parametrize(("make", "options"), [(mapped, {}), (mapped, {"workers": 1}), (resident, {})])
def test_global_random_numbers_are_left_alone(make, options):
    split = feature_split()
    torch.manual_seed(0)
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    list(make(split, feature_readers(), captions=2, drop=DROP, **options).batches(plans(split)))
    assert torch.equal(before, torch.get_rng_state())
    assert np.array_equal(numpy_before, np.random.get_state()[1])  # noqa: NPY002


# Which feed is chosen.


@pytest.mark.parametrize(
    ("free", "options", "kind", "reason"),
    [
        (2**40, {}, ResidentFeed, "fit into 1024.0 GiB of free memory: kept on the device"),
        (10_000, {}, MappedFeed, "do not fit into 50% of 0.0 GiB of free memory: read from disk by this process"),
        (None, {}, MappedFeed, "is free on cpu is not known: read from disk by this process"),
        (1, {"feed": "resident"}, ResidentFeed, "kept on the device, as asked for"),
        (2**40, {"feed": "mapped"}, MappedFeed, "read from disk by this process, as asked for"),
    ],
)
def test_features_stay_on_the_device_where_they_fit_and_the_reason_is_given(monkeypatch, free, options, kind, reason):
    monkeypatch.setattr(feed_module, "free_memory", lambda device: free)
    said = []
    assert isinstance(choose_feed(feature_split(), feature_readers(), CPU, workers=0, say=said.append, **options), kind)
    assert reason in said[0]


def test_pictures_are_decoded_by_workers_unless_the_other_feed_is_asked_for(photos):
    said = []
    assert isinstance(choose_feed(photos, photo_readers(), CPU, workers=1, say=said.append), MappedFeed)
    assert said == ["feed: pixels are decoded by 1 worker"]
    assert isinstance(choose_feed(photos, photo_readers(), CPU, feed="resident"), ResidentFeed)


@pytest.mark.usefixtures("without_shape_checks")
def test_an_unknown_feed_and_pictures_for_a_model_that_reads_features_are_refused():
    with pytest.raises(ValueError, match="feed: expected 'auto', 'resident' or 'mapped', got 'gpu'"):
        choose_feed(feature_split(), feature_readers(), CPU, feed="gpu")
    with pytest.raises(ValueError, match=r"a.png: .* reads features .* reads pixels"):
        choose_feed(with_captions([Path("a.png")] * 12), feature_readers(), CPU)


def test_some_memory_is_free():
    free = free_memory(CPU)
    assert free is None or 2**20 < free < 2**50
    assert free_memory(torch.device("meta")) is None


# What only one of the feeds does.


def batches(split, readers, epoch=0, **options):
    return list(mapped(split, readers, **options).batches(plans(split, epoch=epoch)))


def test_the_number_of_workers_changes_nothing(photos):
    options = {"crops": CROPS, "captions": 2, "drop": {"text": 0.3}}
    straight = batches(photos, photo_readers(), **options)
    assert_all_same(straight, batches(photos, photo_readers(), workers=2, **options))


def test_crops_differ_from_epoch_to_epoch_and_from_picture_to_picture():
    same = [np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)] * 12
    first, later = (batches(with_captions(same), photo_readers(), epoch, crops=CROPS) for epoch in range(2))
    seen = {tuple(pixels.flatten().tolist()) for batch in first + later for pixels in batch.inputs["image"].values}
    assert len(seen) == 24


def test_workers_stay_for_the_next_epoch_even_after_one_was_broken_off(photos):
    feed = mapped(photos, photo_readers(), workers=2, crops=CROPS)
    next(iter(feed.batches(plans(photos))))
    processes = [worker.pid for worker in feed._loader._iterator._workers]
    expected = batches(photos, photo_readers(), 1, crops=CROPS)
    assert_all_same(feed.batches(plans(photos, epoch=1)), expected)
    assert [worker.pid for worker in feed._loader._iterator._workers] == processes


@pytest.mark.parametrize("workers", [0, 2])
def test_an_unreadable_picture_leaves_its_group_out_and_is_reported_once(photos, workers):
    readers, said = photo_readers(), []
    photos["image"].values[3].write_bytes(b"no picture")
    photos["image"].values[8].unlink()
    feed = mapped(photos, readers, workers=workers, report=said.append)
    for _ in range(2):
        assert_by_hand(feed, photos, readers, left_out=(3, 8))
    assert sorted(item.id for item in said) == sorted(feed.skipped) == ["image image3", "image image8"]
    reasons = " ".join(sorted(map(str, said)))
    assert "3.png: not a readable picture" in reasons
    assert "8.png: no such file" in reasons


def test_what_cannot_be_read_is_logged(photos, caplog):
    photos["image"].values[3].write_bytes(b"no picture")
    batches(photos, photo_readers())
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "image image3" in record.getMessage()


class Broken:
    """A source with a fault of its own."""

    def __len__(self):
        return 12

    def __getitem__(self, place):
        if place == 5:
            raise KeyError("no such shard")
        return np.zeros((9, 9, 3), np.uint8)


@pytest.mark.parametrize("workers", [0, 1])
def test_any_other_error_names_the_item(workers):
    with pytest.raises(RuntimeError, match=r"(?s)a batch could not be made.*no such shard.*while reading image5"):
        batches(with_captions(Broken()), photo_readers(), workers=workers)


def test_features_are_copied_in_pieces_and_take_no_more_memory_than_they_have(monkeypatch):
    monkeypatch.setattr(loaders, "_CHUNK_BYTES", 3 * 7 * WIDTH * 4)
    split, readers = feature_split("store"), feature_readers()
    feed = resident(split, readers)
    assert split["image"].values.asked == [3, 3, 3, 3]
    assert feed._maker.loaders["image"].rows.shape == (1 + sum(map(len, split["image"].values)), WIDTH)
    assert_by_hand(feed, split, readers)


@pytest.mark.parametrize("kind", [list, Store])
def test_an_unreadable_longest_item_leaves_the_others_in_place(monkeypatch, kind):
    monkeypatch.setattr(loaders, "_CHUNK_BYTES", 3 * 9 * WIDTH * 4)
    features = arrays(12)
    features[4] = np.full((9, WIDTH), np.nan, np.float32)
    split, readers = with_captions(kind(features)), feature_readers()
    assert_by_hand(resident(split, readers, report=lambda item: None), split, readers, left_out=[4])


def test_a_batch_costs_as_many_operations_whatever_its_size():
    """No loop over items: what is counted is calls into torch."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counter(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.calls += 1
            return func(*args, **(kwargs or {}))

    calls = []
    for groups in (20, 200):
        split = feature_split("store", groups=groups)
        feed = resident(split, feature_readers(), captions=2, drop=DROP)
        (plan,) = plans(split, batch_size=groups)
        with Counter() as counter:
            list(feed.batches([plan]))
        calls.append(counter.calls)
    assert calls[0] == calls[1] < 80
