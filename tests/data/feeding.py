"""Small splits to feed from, features kept in every way there is, and batches put together by hand."""

import numpy as np
import pytest
import torch

from maxmatch.core.types import Batch
from maxmatch.data.dataset import Items, Split
from maxmatch.data.feed import MappedFeed, ResidentFeed
from maxmatch.data.sampler import GroupSampler
from maxmatch.model.inputs import FeatureReader, TextReader
from maxmatch.model.text import word_tokenizer

WIDTH = 6
WORDS = ["a", "dog", "runs", "on", "the", "beach", "two", "people", "ride", "red", "bus", "cat", "isn't", "it", "bird"]
CPU = torch.device("cpu")
PLAIN = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
WAYS = ["list", "array", "rows", "store", "one by one"]


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


class OneByOne:
    """Nothing but indexing."""

    def __init__(self, arrays):
        self.arrays = arrays

    def __len__(self):
        return len(self.arrays)

    def __getitem__(self, place):
        return self.arrays[place]


def arrays(count, ragged=True, dtype=np.float32, seed=0):
    random = np.random.default_rng(seed)
    counts = random.integers(1, 8, count) if ragged else [7] * count
    return [random.normal(size=(n, WIDTH)).astype(dtype) for n in counts]


def kept(way, arrays):
    """Features kept in one of the ways. Arrays and rows hold equal counts only."""
    return {"list": list, "array": np.stack, "rows": Rows, "store": Store, "one by one": OneByOne}[way](arrays)


def items(values, groups, name):
    return Items(values, np.asarray(groups), [f"{name}{place}" for place in range(len(values))])


def texts(groups=12, seed=0):
    """One to seven captions a group."""
    random = np.random.default_rng(seed)
    of = np.repeat(np.arange(groups), random.integers(1, 8, groups))
    return items([" ".join(random.choice(WORDS, n)) for n in random.integers(1, 12, len(of))], of, "text")


def feature_split(way="list", groups=12, **options):
    values = kept(way, arrays(groups, ragged=way not in ("array", "rows"), **options))
    return Split({"image": items(values, range(groups), "image"), "text": texts(groups)})


def feature_readers(max_length=32):
    tokenizer = word_tokenizer([" ".join(WORDS)] * 4, max_length=max_length)
    return {"image": FeatureReader(WIDTH), "text": TextReader(tokenizer)}


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
    return MappedFeed(split, readers, CPU, workers=0, **options)


def resident(split, readers, **options):
    return ResidentFeed(split, readers, CPU, **options)


FEEDS = pytest.mark.parametrize("make", [mapped, resident])
