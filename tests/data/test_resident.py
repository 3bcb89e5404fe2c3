"""What only the resident feed does: copy in pieces, keep in half precision, make batches without a loop."""

import numpy as np
import pytest
import torch
from feeding import WIDTH, Store, arrays, assert_all_same, feature_readers, feature_split, items, plans, texts

from maxmatch.data.dataset import Split
from maxmatch.data.feed import ResidentFeed


def test_features_are_copied_in_pieces_and_progress_is_reported(monkeypatch):
    monkeypatch.setattr("maxmatch.data.feed._CHUNK_BYTES", 3 * 7 * WIDTH * 4)
    split, told = feature_split("store"), []
    pieces = ResidentFeed(split, feature_readers(), "cpu", advance=told.append)
    assert split["image"].values.asked == [3, 3, 3, 3]
    assert told == [3, 3, 3, 3]
    whole = ResidentFeed(feature_split("store"), feature_readers(), "cpu", drop={})
    assert_all_same(pieces.batches(plans(split)), whole.batches(plans(split)))


def test_an_unreadable_longest_item_leaves_the_others_in_place(monkeypatch):
    monkeypatch.setattr("maxmatch.data.feed._CHUNK_BYTES", 3 * 9 * WIDTH * 4)
    features = arrays(12)
    features[4] = np.full((9, WIDTH), np.nan, np.float32)
    for kind in (list, Store):
        split = Split({"image": items(kind(features), range(12), "image"), "text": texts()})
        feed = ResidentFeed(split, feature_readers(), "cpu", report=lambda item: None)
        for batch in feed.batches(plans(split)):
            values, mask = batch.inputs["image"]
            for row, group in enumerate(batch.groups["image"].tolist()):
                assert np.array_equal(values[row][mask[row]].numpy(), features[group])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_features_kept_in_half_precision_are_rounded_once(dtype):
    split, readers = feature_split(), feature_readers()
    exact = ResidentFeed(split, readers, "cpu").batches(plans(split))
    for batch, other in zip(ResidentFeed(split, readers, "cpu", dtype=dtype).batches(plans(split)), exact, strict=True):
        assert torch.equal(batch.inputs["image"].values, other.inputs["image"].values.to(dtype).float())


def test_features_too_large_for_half_precision_are_refused():
    features = arrays(12)
    features[2][0, 0], features[5][0, 0] = 1e6, np.nan
    for kind in (list, Store):
        split = Split({"image": items(kind(features), range(12), "image"), "text": texts()})
        options = {"report": lambda item: None}
        with pytest.raises(ValueError, match=r"image2 are too large for torch\.float16\. Take torch\.bfloat16"):
            ResidentFeed(split, feature_readers(), "cpu", dtype=torch.float16, **options)
        ResidentFeed(split, feature_readers(), "cpu", dtype=torch.bfloat16, **options)


def test_features_take_no_more_memory_than_they_have():
    split = feature_split("store")
    feed = ResidentFeed(split, feature_readers(), "cpu", dtype=torch.float16)
    rows = feed._loaders["image"].rows
    assert rows.shape == (sum(map(len, split["image"].values)), WIDTH)
    assert rows.dtype == torch.float16


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
        feed = ResidentFeed(split, feature_readers(), "cpu", captions=2, drop={"image": 0.2, "text": 0.2})
        (plan,) = plans(split, batch_size=groups)
        with Counter() as counter:
            list(feed.batches([plan]))
        calls.append(counter.calls)
    assert calls[0] == calls[1] < 80
