"""Feeding with worker processes, and pictures that cannot be read."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from feeding import assert_all_same, feature_readers, feature_split, items, plans, texts
from PIL import Image

from maxmatch.data.augment import RandomCrop
from maxmatch.data.dataset import Split
from maxmatch.data.feed import MappedFeed
from maxmatch.model.images import ImageTransform
from maxmatch.model.inputs import PixelReader

# Newer Pythons warn of every fork beside threads. The workers use none of the threads' locks.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork:DeprecationWarning")
PLAIN = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
CROPS = {"image": RandomCrop(8, *PLAIN)}


class Broken:
    """A source with a fault of its own."""

    def __init__(self, good):
        self.good = good

    def __len__(self):
        return self.good

    def __getitem__(self, place):
        if place == 5:
            raise KeyError("no such shard")
        return np.zeros((9, 9, 3), np.uint8)


@pytest.fixture
def photos(tmp_path):
    """Twelve files with captions."""
    random = np.random.default_rng(0)
    paths = [tmp_path / f"{number}.png" for number in range(12)]
    for path in paths:
        Image.fromarray(random.integers(0, 256, (20, 30, 3), dtype=np.uint8)).save(path)
    return Split({"image": items(paths, range(12), "photo"), "text": texts()})


@pytest.fixture
def readers():
    return {**feature_readers(), "image": PixelReader(ImageTransform(8, "crop", *PLAIN))}


def batches(split, readers, epoch=0, **options):
    return list(MappedFeed(split, readers, "cpu", **options).batches(plans(split, epoch=epoch)))


def test_the_number_of_workers_changes_nothing(photos, readers):
    options = {"crops": CROPS, "captions": 2, "drop": {"text": 0.3}}
    assert_all_same(batches(photos, readers, workers=0, **options), batches(photos, readers, workers=2, **options))
    features = {"captions": 2, "drop": {"image": 0.3, "text": 0.3}}
    split, of_features = feature_split("store"), feature_readers()
    assert_all_same(
        batches(split, of_features, workers=0, **features), batches(split, of_features, workers=2, **features)
    )


def test_without_a_crop_pictures_are_read_as_for_evaluation(photos, readers):
    for batch in batches(photos, readers, workers=0):
        for pixels, group in zip(batch.inputs["image"].values, batch.groups["image"].tolist(), strict=True):
            assert torch.equal(pixels, readers["image"].transform(photos["image"].values[group]))


def test_crops_differ_from_epoch_to_epoch_and_from_picture_to_picture(readers):
    same = [np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)] * 12
    split = Split({"image": items(same, range(12), "photo"), "text": texts()})
    first, later = (batches(split, readers, epoch, workers=0, crops=CROPS) for epoch in range(2))
    seen = {tuple(pixels.flatten().tolist()) for batch in first + later for pixels in batch.inputs["image"].values}
    assert len(seen) == 24


def test_workers_stay_for_the_next_epoch_even_after_one_was_broken_off(photos, readers):
    feed = MappedFeed(photos, readers, "cpu", workers=2, crops=CROPS)
    next(iter(feed.batches(plans(photos))))
    processes = [worker.pid for worker in feed._loader._iterator._workers]
    for epoch in range(2):
        assert_all_same(
            feed.batches(plans(photos, epoch=epoch)), batches(photos, readers, epoch, workers=0, crops=CROPS)
        )
    assert [worker.pid for worker in feed._loader._iterator._workers] == processes


@pytest.mark.parametrize("workers", [0, 2])
def test_an_unreadable_picture_leaves_its_group_out_and_is_reported_once(photos, readers, workers):
    whole = batches(photos, readers, workers=0)
    photos["image"].values[3].write_bytes(b"no picture")
    photos["image"].values[8].unlink()
    said = []
    feed = MappedFeed(photos, readers, "cpu", workers=workers, report=said.append)
    for _ in range(2):
        for batch, before in zip(feed.batches(plans(photos)), whole, strict=True):
            for name, (values, _) in batch.inputs.items():
                good = (before.groups[name] != 3) & (before.groups[name] != 8)
                assert torch.equal(batch.groups[name], before.groups[name][good])
                assert torch.equal(values, before.inputs[name].values[good][:, : values.shape[1]])
            assert batch.inputs["text"].mask.any(0).all()  # no wider than its longest text
    assert sorted(item.id for item in said) == ["image photo3", "image photo8"]
    assert any("3.png: not a readable picture" in str(item) for item in said)
    assert any("8.png: no such file" in str(item) for item in said)
    assert set(feed.skipped) == {"image photo3", "image photo8"}


def test_what_cannot_be_read_is_logged(photos, readers, caplog):
    photos["image"].values[3].write_bytes(b"no picture")
    batches(photos, readers, workers=0)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "image photo3" in record.getMessage()


def test_where_nothing_can_be_read_the_first_reason_is_given(photos, readers):
    for path in photos["image"].values:
        path.unlink()
    with pytest.raises(ValueError, match=r"no group of a batch could be read. The first reason: image photo\d"):
        batches(photos, readers, workers=0, report=lambda item: None)


@pytest.mark.parametrize("workers", [0, 1])
def test_any_other_error_names_the_item(photos, readers, workers):
    split = Split({"image": items(Broken(12), range(12), "photo"), "text": photos["text"]})
    with pytest.raises(RuntimeError, match=r"(?s)a batch could not be made.*no such shard.*while reading photo5"):
        batches(split, readers, workers=workers)


def test_workers_leave_the_global_generator_alone(photos, readers):
    torch.manual_seed(0)
    before = torch.get_rng_state()
    batches(photos, readers, workers=1, crops=CROPS)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says how much memory a process took, in /proc")
def test_an_array_of_the_size_of_coco_is_fed_in_little_memory(tmp_path):
    """31 GiB, all of it holes. What Python and torch take by themselves is not counted."""
    shape = (113_287, 36, 2048)
    with open(tmp_path / "train_ims.npy", "wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
        file.truncate(file.tell() + 4 * int(np.prod(shape)))
    program = f"""
import numpy as np
from maxmatch.data.dataset import Items, Split
from maxmatch.data.feed import MappedFeed
from maxmatch.data.sampler import GroupSampler
from maxmatch.model.inputs import FeatureReader

def peak():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) / 1024

before = peak()
array = np.load({str(tmp_path / "train_ims.npy")!r}, mmap_mode="r")
split = Split({{"image": Items(array, np.arange(len(array)), range(len(array)))}})
feed = MappedFeed(split, {{"image": FeatureReader(2048)}}, "cpu", workers=0)
for _ in zip(range(3), feed.batches(GroupSampler(len(array), 128, seed=0).plans(0))):
    pass
print(peak() - before)
"""
    grown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert float(grown) < 500
