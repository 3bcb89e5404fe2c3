"""Both feeds: the same batches, those put together by hand."""

import warnings

import numpy as np
import pytest
import torch
from feeding import (
    FEEDS,
    WAYS,
    WIDTH,
    arrays,
    assert_all_same,
    by_hand,
    feature_readers,
    feature_split,
    items,
    kept,
    mapped,
    plans,
    resident,
    texts,
)
from tiny_models import tiny_model

from maxmatch.data.dataset import Split
from maxmatch.data.sampler import BatchPlan
from maxmatch.losses import triplet
from maxmatch.matching.similarity import maxmatch
from maxmatch.model.inputs import FeatureReader
from maxmatch.model.text import TextTruncated


@FEEDS
@pytest.mark.parametrize("way", WAYS)
def test_batches_are_those_put_together_by_hand(make, way):
    split, readers = feature_split(way), feature_readers()
    wanted = plans(split)
    expected = [by_hand(split, readers, plan.groups) for plan in wanted]
    assert_all_same(make(split, readers).batches(wanted), expected)


@pytest.mark.parametrize("captions", [None, 1, 2, 5])
@pytest.mark.parametrize("drop", [{}, {"image": 0.4, "text": 0.4}])
def test_both_feeds_give_the_same_batches(captions, drop):
    split, readers = feature_split("store"), feature_readers()
    options = {"captions": captions, "drop": drop}
    for epoch in range(2):
        wanted = plans(split, epoch=epoch)
        first = mapped(split, readers, **options).batches(wanted)
        assert_all_same(first, resident(split, readers, **options).batches(wanted))


@FEEDS
def test_some_captions_are_as_many_as_asked_for_and_others_the_next_time(make):
    split, readers = feature_split(), feature_readers()
    feed = make(split, readers, captions=2)
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
def test_a_modality_may_have_several_items_a_group_and_there_may_be_three(make):
    readers = {**feature_readers(), "audio": FeatureReader(WIDTH)}
    images = items(kept("store", arrays(10)), [0, 0, 1, 2, 3, 4, 4, 4, 5, 6], "image")
    split = Split({"audio": items(arrays(7, seed=1), range(7), "audio"), "image": images, "text": texts(7)})
    wanted = plans(split, 3)
    got = list(make(split, readers).batches(wanted))
    assert_all_same(got, [by_hand(split, readers, plan.groups) for plan in wanted])
    assert torch.isin(got[0].groups["image"], got[0].groups["audio"]).all()


@FEEDS
def test_a_batch_is_what_the_model_takes(make):
    model = tiny_model("region_bigru", feature_width=WIDTH)
    readers = {name: model.tower(name).reader for name in ("image", "text")}
    split = feature_split("store")
    for batch in make(split, readers, captions=3, drop={"image": 0.2, "text": 0.2}).batches(plans(split)):
        images, captions = (model(name, *batch.inputs[name]).vectors for name in ("image", "text"))
        loss = triplet(maxmatch(images, captions), batch.groups["image"][:, None] == batch.groups["text"])
        assert torch.isfinite(loss)


@FEEDS
@pytest.mark.parametrize("way", ["array", "store"])
def test_features_in_half_precision_come_in_single(make, way):
    split, readers = feature_split(way, dtype=np.float16), feature_readers()
    wanted = plans(split)
    expected = [by_hand(split, readers, plan.groups) for plan in wanted]
    assert_all_same(make(split, readers).batches(wanted), expected)


@FEEDS
@pytest.mark.parametrize("dtype", [">f4", "f8", "i2"])
def test_features_of_other_types_and_byte_orders_are_read(make, dtype):
    split, readers = feature_split("array", dtype=np.dtype(dtype)), feature_readers()
    wanted = plans(split)
    expected = [by_hand(split, readers, plan.groups) for plan in wanted]
    assert_all_same(make(split, readers).batches(wanted), expected)


@FEEDS
@pytest.mark.parametrize("way", WAYS)
def test_a_group_with_a_bad_feature_is_left_out_and_reported_once(make, way):
    whole, readers = feature_split(way), feature_readers()
    features = [np.array(features) for features in whole["image"].values]
    features[4][0, 2], features[7][-1, 0] = np.nan, np.inf
    split = Split({"image": items(kept(way, features), range(12), "image"), "text": whole["text"]})
    said = []
    feed = make(split, readers, report=said.append)
    for epoch in range(2):
        wanted = plans(split, epoch=epoch)
        good = [[group for group in plan.groups if group not in (4, 7)] for plan in wanted]
        assert_all_same(feed.batches(wanted), [by_hand(split, readers, groups) for groups in good])
    assert sorted(item.id for item in said) == ["image image4", "image image7"]
    assert "NaN or infinite" in str(said[0])
    assert len(feed.skipped) == 2


@FEEDS
def test_both_feeds_leave_out_the_same_captions_with_a_bad_feature(make):
    features = arrays(12)
    features[4][0, 2] = np.nan
    split = Split({"image": items(kept("store", features), range(12), "image"), "text": texts()})
    options = {"captions": 2, "drop": {"image": 0.3, "text": 0.3}, "report": lambda item: None}
    wanted = plans(split)
    first = mapped(split, feature_readers(), **options).batches(wanted)
    assert_all_same(first, make(split, feature_readers(), **options).batches(wanted))


@FEEDS
def test_an_item_without_features_is_left_out(make):
    features = arrays(12)
    features[3] = features[3][:0]
    for way in ("store", "list"):
        split = Split({"image": items(kept(way, features), range(12), "image"), "text": texts()})
        said = []
        batches = list(make(split, feature_readers(), report=said.append).batches(plans(split)))
        assert all(3 not in batch.groups["text"] for batch in batches)
        assert [item.id for item in said] == ["image image3"]


@FEEDS
def test_a_batch_of_which_nothing_can_be_read_is_refused(make):
    split = Split({"image": items(np.full((4, 7, WIDTH), np.nan), range(4), "image"), "text": texts(4)})
    feed = make(split, feature_readers(), report=lambda item: None)
    with pytest.raises(ValueError, match=r"no group of a batch could be read\. The first reason: image image\d: NaN"):
        list(feed.batches(plans(split)))


@FEEDS
@pytest.mark.parametrize("way", ["array", "list"])
def test_features_of_another_width_are_refused_at_once(make, way):
    readers = {**feature_readers(), "image": FeatureReader(WIDTH + 1)}
    with pytest.raises(ValueError, match=f"image0: expected features of width {WIDTH + 1}, got {WIDTH}"):
        make(feature_split(way), readers)


@FEEDS
def test_texts_beyond_the_limit_are_cut_with_a_warning(make):
    split, readers = feature_split(), feature_readers(max_length=5)
    with pytest.warns(TextTruncated, match="more than 5 tokens"):
        feed = make(split, readers)
    wanted = plans(split)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = [by_hand(split, readers, plan.groups) for plan in wanted]
    assert_all_same(feed.batches(wanted), expected)
    assert max(batch.inputs["text"].values.shape[1] for batch in expected) == 5


@FEEDS
def test_many_texts_are_tokenised_in_pieces(make, monkeypatch):
    monkeypatch.setattr("maxmatch.data.modality._TEXTS_AT_ONCE", 3)
    split, readers = feature_split(), feature_readers()
    wanted = plans(split)
    assert_all_same(make(split, readers).batches(wanted), [by_hand(split, readers, plan.groups) for plan in wanted])


@FEEDS
@pytest.mark.parametrize(
    ("options", "message"),
    [({"captions": 0}, "captions: expected at least 1"), ({"drop": {"image": 2.0}}, "drop: expected a share")],
)
def test_wrong_options_are_refused(make, options, message):
    with pytest.raises(ValueError, match=message):
        make(feature_split(), feature_readers(), **options)


@FEEDS
def test_a_reader_without_data_is_refused(make):
    with pytest.raises(ValueError, match="this data has image, text, not audio"):
        make(feature_split(), {**feature_readers(), "audio": FeatureReader(3)})


@FEEDS
def test_global_random_numbers_are_left_alone(make):
    split = feature_split()
    torch.manual_seed(0)
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    feed = make(split, feature_readers(), captions=2, drop={"image": 0.2, "text": 0.2})
    list(feed.batches(plans(split)))
    assert torch.equal(before, torch.get_rng_state())
    assert np.array_equal(numpy_before, np.random.get_state()[1])  # noqa: NPY002


@FEEDS
def test_a_plan_without_a_seed_has_all_captions_and_leaves_nothing_out(make):
    split, readers = feature_split("store"), feature_readers()
    wanted = [BatchPlan(plan.groups, None) for plan in plans(split)]
    feed = make(split, readers, captions=1, drop={"image": 0.5, "text": 0.5})
    assert_all_same(feed.batches(wanted), [by_hand(split, readers, plan.groups) for plan in wanted])
