"""Small splits to feed from, features kept in every way there is, and batches put together by hand."""

import numpy as np
import pytest
import torch
from PIL import Image

from maxmatch.core.types import Batch
from maxmatch.data.dataset import Items, Split
from maxmatch.data.feed import MappedFeed, ResidentFeed
from maxmatch.data.sampler import GroupSampler
from maxmatch.model.images import ImageTransform
from maxmatch.model.inputs import FeatureReader, PixelReader, TextReader
from maxmatch.model.text import word_tokenizer

WIDTH = 6
WORDS = ["a", "dog", "runs", "on", "the", "beach", "two", "people", "ride", "red", "bus", "cat", "isn't", "it", "bird"]
CPU = torch.device("cpu")
COLOURS = ((0.4, 0.5, 0.6), (0.2, 0.3, 0.25))
WAYS = ["list", "array", "rows", "store"]


class Rows:
    """Features of equal counts, in bulk."""

    def __init__(self, arrays):
        self.array = np.stack(arrays)

    def __len__(self):
        return len(self.array)

    def __getitem__(self, place):
        return self.array[place]

    def take(self, places):
        return self.array[places]


class Store:
    """Features of any counts, in bulk, with a mask that is wider than it must be."""

    def __init__(self, arrays):
        self.arrays = arrays
        self.asked = []

    def __len__(self):
        return len(self.arrays)

    def __getitem__(self, place):
        return self.arrays[place]

    def take(self, places):
        self.asked.append(len(places))
        values = np.zeros((len(places), 9, WIDTH), self.arrays[0].dtype)
        mask = np.zeros((len(places), 9), bool)
        for row, place in enumerate(places):
            values[row, : len(self.arrays[place])] = self.arrays[place]
            mask[row, : len(self.arrays[place])] = True
        return values, mask


def arrays(count, ragged=True, dtype=np.float32, seed=0):
    random = np.random.default_rng(seed)
    counts = random.integers(1, 8, count) if ragged else [7] * count
    return [random.normal(size=(n, WIDTH)).astype(dtype) for n in counts]


def kept(way, arrays):
    """Features kept in one of the ways. Arrays and rows hold equal counts only."""
    return {"list": list, "array": np.stack, "rows": Rows, "store": Store}[way](arrays)


def items(values, groups, name):
    return Items(values, np.asarray(groups), [f"{name}{place}" for place in range(len(values))])


def texts(groups=12, seed=0):
    """One to seven captions a group."""
    random = np.random.default_rng(seed)
    of = np.repeat(np.arange(groups), random.integers(1, 8, groups))
    return items([" ".join(random.choice(WORDS, n)) for n in random.integers(1, 12, len(of))], of, "text")


def with_captions(values):
    return Split({"image": items(values, range(len(values)), "image"), "text": texts(len(values))})


def feature_split(way="list", groups=12, **options):
    return with_captions(kept(way, arrays(groups, ragged=way not in ("array", "rows"), **options)))


def feature_readers(max_length=32):
    tokenizer = word_tokenizer([" ".join(WORDS)] * 4, max_length=max_length)
    return {"image": FeatureReader(WIDTH), "text": TextReader(tokenizer)}


def photo_split(folder):
    """Twelve files with captions, wide and tall."""
    random = np.random.default_rng(0)
    paths = [folder / f"{number}.png" for number in range(12)]
    for number, path in enumerate(paths):
        shape = (20, 31, 3) if number % 2 else (27, 22, 3)
        Image.fromarray(random.integers(0, 256, shape, dtype=np.uint8)).save(path)
    return with_captions(paths)


def photo_readers(size=14):
    return {**feature_readers(), "image": PixelReader(ImageTransform(size, "crop", *COLOURS))}


def plans(split, batch_size=5, epoch=0):
    return list(GroupSampler(split.size, batch_size, seed=1).plans(epoch))


def by_hand(split, readers, groups):
    """All items of some groups through the readers, one at a time."""
    inputs, of = {}, {}
    for name, reader in readers.items():
        own = split[name]
        places = [place for group in groups for place in range(len(own)) if own.groups[place] == group]
        inputs[name] = reader.collate([reader.read(own.values[place]) for place in places])
        of[name] = torch.from_numpy(own.groups[places])
    return Batch(inputs, of)


def assert_by_hand(feed, split, readers, wanted=None, left_out=()):
    """The feed's batches are those put together by hand, without some groups."""
    wanted = plans(split) if wanted is None else wanted
    good = [[group for group in plan.groups if group not in left_out] for plan in wanted]
    assert_all_same(feed.batches(wanted), [by_hand(split, readers, groups) for groups in good])


def assert_same(batch, other):
    assert batch.inputs.keys() == other.inputs.keys()
    for name in batch.inputs:
        assert torch.equal(batch.groups[name], other.groups[name])
        for mine, theirs in zip(batch.inputs[name], other.inputs[name], strict=True):
            if theirs is None:
                assert mine is None
            else:
                assert mine.dtype == theirs.dtype
                assert torch.equal(mine, theirs)


def assert_all_same(batches, others):
    pairs = list(zip(batches, others, strict=True))
    assert pairs
    for batch, other in pairs:
        assert_same(batch, other)


def mapped(split, readers, **options):
    return MappedFeed(split, readers, CPU, **{"workers": 0, **options})


def resident(split, readers, **options):
    return ResidentFeed(split, readers, CPU, **options)


FEEDS = pytest.mark.parametrize("make", [mapped, resident])
