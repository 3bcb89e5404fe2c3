"""Pictures that stay on the device: what evaluation sees to the bit, and random parts cut out there."""

import numpy as np
import pytest
import torch
from feeding import feature_readers, items, plans, texts
from PIL import Image

from maxmatch.data.augment import RandomCrop, RandomMirror
from maxmatch.data.dataset import Split
from maxmatch.data.feed import MappedFeed, ResidentFeed, cut_out
from maxmatch.data.sampler import BatchPlan
from maxmatch.model.images import ImageTransform
from maxmatch.model.inputs import PixelReader

COLOURS = ((0.4, 0.5, 0.6), (0.2, 0.3, 0.25))
EVERYTHING = [BatchPlan(np.arange(12), None)]


@pytest.fixture
def photos(tmp_path):
    """Twelve files with captions, wide and tall."""
    random = np.random.default_rng(0)
    paths = [tmp_path / f"{number}.png" for number in range(12)]
    for number, path in enumerate(paths):
        shape = (20, 31, 3) if number % 2 else (27, 22, 3)
        Image.fromarray(random.integers(0, 256, shape, dtype=np.uint8)).save(path)
    return Split({"image": items(paths, range(12), "photo"), "text": texts()})


@pytest.fixture
def readers():
    return {**feature_readers(), "image": PixelReader(ImageTransform(14, "crop", *COLOURS))}


def pixels(feed, all_plans):
    return [batch.inputs["image"].values for batch in feed.batches(all_plans)]


@pytest.mark.parametrize("crops", [{}, {"image": RandomMirror(ImageTransform(14, "crop", *COLOURS))}])
def test_evaluation_sees_the_same_pixels_as_from_the_disk(photos, readers, crops):
    kept = pixels(ResidentFeed(photos, readers, "cpu", crops=crops), EVERYTHING)
    read = pixels(MappedFeed(photos, readers, "cpu", workers=0), EVERYTHING)
    torch.testing.assert_close(kept, read, rtol=0, atol=1e-6)


def test_mirrored_pictures_are_those_from_the_disk_under_the_same_seed(photos, readers):
    crops = {"image": RandomMirror(readers["image"].transform)}
    kept = pixels(ResidentFeed(photos, readers, "cpu", crops=crops), plans(photos))
    read = pixels(MappedFeed(photos, readers, "cpu", workers=0, crops=crops), plans(photos))
    torch.testing.assert_close(kept, read, rtol=0, atol=1e-5)


def test_a_random_part_depends_on_the_seed_and_on_nothing_else(photos, readers):
    crops = {"image": RandomCrop(14, *COLOURS, scale=(0.3, 0.9))}
    feed = ResidentFeed(photos, readers, "cpu", crops=crops, threads=3)
    once, again, other = (pixels(feed, plans(photos, epoch=epoch)) for epoch in (0, 0, 1))
    assert all(map(torch.equal, once, again))
    assert not any(map(torch.equal, once, other))


def test_a_part_of_whole_pixels_is_a_slice_of_the_picture():
    pictures = torch.rand(2, 3, 16, 16)
    boxes = np.array([[3, 5, 11, 13], [0, 8, 8, 16]], float)
    parts = cut_out(pictures, boxes, np.array([False, True]), 8)
    torch.testing.assert_close(parts[0], pictures[0, :, 5:13, 3:11], rtol=0, atol=1e-5)
    torch.testing.assert_close(parts[1], pictures[1, :, 8:16, 0:8].flip(-1), rtol=0, atol=1e-5)


def test_a_part_is_made_larger_as_pillow_does_it():
    square = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    theirs = Image.fromarray(square).resize((24, 24), Image.Resampling.BILINEAR, box=(2, 4, 14, 16))
    ours = cut_out(
        torch.from_numpy(square).movedim(2, 0)[None].float(), np.array([[2, 4, 14, 16.0]]), np.array([False]), 24
    )
    inside = (slice(2, -2), slice(2, -2))  # at the border of its box Pillow sees no neighbours
    difference = ours[0].movedim(0, 2).numpy()[inside] - np.asarray(theirs, np.float32)[inside]
    assert np.abs(difference).max() <= 1.0


def test_a_picture_that_cannot_be_read_is_named_and_its_group_left_out(photos, readers):
    photos["image"].values[4].write_bytes(b"no picture")
    told = []
    feed = ResidentFeed(photos, readers, "cpu", report=told.append)
    assert [item.id for item in told] == ["image photo4"]
    assert "not a readable picture" in told[0].reason
    (batch,) = feed.batches(EVERYTHING)
    assert 4 not in batch.groups["image"].tolist() + batch.groups["text"].tolist()
