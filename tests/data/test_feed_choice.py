"""Which feed is taken: what fits stays on the device, the rest is read from disk."""

from pathlib import Path

import numpy as np
import pytest
import torch
from feeding import (
    CPU,
    PLAIN,
    WIDTH,
    feature_readers,
    feature_split,
    items,
    mapped,
    resident,
    texts,
)

from maxmatch.data import feed as feed_module
from maxmatch.data.augment import RandomCrop
from maxmatch.data.dataset import Split
from maxmatch.data.feed import MappedFeed, ResidentFeed, choose_feed, free_memory
from maxmatch.model.images import ImageTransform
from maxmatch.model.inputs import PixelReader


def pictures(split):
    readers = {**feature_readers(), "image": PixelReader(ImageTransform(8, "crop", *PLAIN))}
    images = items([np.zeros((9, 9, 3), np.uint8)] * split.size, range(split.size), "image")
    return Split({"image": images, "text": split["text"]}), readers


def test_features_that_fit_stay_on_the_device_and_the_reason_is_printed(monkeypatch):
    monkeypatch.setattr(feed_module, "free_memory", lambda device: 2**40)
    said = []
    assert isinstance(choose_feed(feature_split(), feature_readers(), CPU, say=said.append), ResidentFeed)
    assert said == ["feed: 0.0 GiB fit into 1024.0 GiB of free memory: kept on the device"]


def test_features_that_do_not_fit_are_read_from_disk(monkeypatch):
    values = np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (2_000, 10_000, WIDTH), (0, 0, 0))
    split = Split({"image": items(values, range(2_000), "image"), "text": texts(2_000)})
    size = values.size * 4 + len(split["text"]) * 512
    said = []
    monkeypatch.setattr(feed_module, "free_memory", lambda device: 2 * size - 4)
    assert isinstance(choose_feed(split, feature_readers(), CPU, workers=0, say=said.append), MappedFeed)
    assert said == ["feed: 0.5 GiB do not fit into 50% of 0.9 GiB of free memory: read from disk by this process"]
    monkeypatch.setattr(feed_module, "ResidentFeed", lambda *args, **options: resident(feature_split(), args[1]))
    for options in ({"fraction": 0.51}, {"dtype": torch.float16}):
        assert isinstance(choose_feed(split, feature_readers(), CPU, **options), ResidentFeed)


def test_pictures_are_decoded_by_workers():
    said = []
    split, readers = pictures(feature_split())
    crops = {"image": RandomCrop(8, *PLAIN)}
    assert isinstance(choose_feed(split, readers, CPU, crops=crops, workers=1, say=said.append), MappedFeed)
    assert said == ["feed: pixels are decoded by 1 worker"]


def test_pictures_for_a_model_that_reads_features_are_refused_with_what_it_reads():
    split = feature_split()
    files = items([Path("a.png")] * split.size, range(split.size), "image")
    split = Split({"image": files, "text": split["text"]})
    with pytest.raises(ValueError, match=r"a.png: .* reads features .* reads pixels"):
        choose_feed(split, feature_readers(), CPU)


def test_pictures_stay_on_the_device_where_that_is_asked_for():
    said = []
    assert isinstance(choose_feed(*pictures(feature_split()), CPU, feed="resident", say=said.append), ResidentFeed)
    assert said == ["feed: kept on the device, as asked for"]


def test_only_pictures_are_cropped():
    with pytest.raises(ValueError, match="only pictures can be cropped, but 'image' is read by a FeatureReader"):
        mapped(feature_split(), feature_readers(), crops={"image": RandomCrop(8, *PLAIN)})


def test_the_choice_can_be_forced(monkeypatch):
    monkeypatch.setattr(feed_module, "free_memory", lambda device: 1)
    said = []
    options = {"say": said.append, "workers": 0}
    assert isinstance(choose_feed(feature_split(), feature_readers(), CPU, feed="resident", **options), ResidentFeed)
    monkeypatch.setattr(feed_module, "free_memory", lambda device: 2**40)
    assert isinstance(choose_feed(feature_split(), feature_readers(), CPU, feed="mapped", **options), MappedFeed)
    assert said == ["feed: kept on the device, as asked for", "feed: read from disk by this process, as asked for"]


@pytest.mark.usefixtures("without_shape_checks")
def test_an_unknown_feed_is_refused():
    with pytest.raises(ValueError, match="feed: expected 'auto', 'resident' or 'mapped', got 'gpu'"):
        choose_feed(feature_split(), feature_readers(), CPU, feed="gpu")


def test_where_free_memory_is_not_known_nothing_is_kept_there(monkeypatch):
    monkeypatch.setattr(feed_module, "free_memory", lambda device: None)
    said = []
    feed = choose_feed(feature_split(), feature_readers(), CPU, workers=2, say=said.append)
    assert isinstance(feed, MappedFeed)
    assert said == ["feed: how much memory is free on cpu is not known: read from disk by 2 workers"]


def test_some_memory_is_free():
    free = free_memory(CPU)
    assert free is None or 2**20 < free < 2**50
    assert free_memory(torch.device("meta")) is None
