"""Batches are read, and encoded, in order: by threads ahead of the model, together, or each thread its own."""

import threading

import pytest
import torch

from maxmatch.core.types import Inputs
from maxmatch.model.inputs import encode_ahead, read_ahead

BATCHES = [[3, 0], [5, 1, 4], [2]]


class Reader:
    """Gives items back; a negative one cannot be read."""

    reads = "image"

    def length(self, item):
        return 1

    def read(self, item):
        if item < 0:
            raise ValueError(f"{item} is negative")
        return item

    def collate(self, items):
        return Inputs(list(items), None)


@pytest.mark.parametrize("ahead", [True, False])
def test_batches_come_in_order_with_what_could_be_read(ahead):
    items = [10, 11, -12, -13, 14, 15]
    found = list(read_ahead(Reader(), items, BATCHES, skip=True, workers=3, ahead=ahead))
    assert [batch.places for batch in found] == [[0], [5, 1, 4], []]
    assert [batch.inputs and batch.inputs.values for batch in found] == [[10], [15, 11, 14], None]
    assert [[item.index for item in batch.skipped] for batch in found] == [[3], [], [2]]


@pytest.mark.parametrize("ahead", [True, False])
def test_an_item_that_cannot_be_read_is_named_and_no_thread_stays(ahead):
    before = threading.active_count()
    found = read_ahead(Reader(), [0, 1, 2, 3, -4, 5], BATCHES, skip=False, workers=3, ahead=ahead)
    assert next(found).places == [3, 0]
    with pytest.raises(ValueError, match="item 4: -4 is negative"):
        next(found)
    half = read_ahead(Reader(), list(range(6)), BATCHES, skip=False, workers=3, ahead=ahead)
    next(half)
    half.close()
    assert threading.active_count() == before


def test_ahead_of_the_model_the_items_of_one_batch_are_read_at_the_same_time():
    together = threading.Barrier(3, timeout=20)

    class Meeting(Reader):
        def read(self, item):
            together.wait()
            return item

    found = list(read_ahead(Meeting(), list(range(6)), [[0, 1, 2], [3, 4, 5]], skip=False, workers=3, ahead=True))
    assert [batch.places for batch in found] == [[0, 1, 2], [3, 4, 5]]


def doubled(inputs):
    return [2 * value for value in inputs.values]


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_batches_are_encoded_in_order_with_what_could_be_read(threads):
    items = [10, 11, -12, -13, 14, 15]
    found = list(encode_ahead(Reader(), items, BATCHES, True, doubled, threads=threads))
    assert [(batch.places, made) for batch, made in found] == [([0], [20]), ([5, 1, 4], [30, 22, 28]), ([], None)]
    assert [[item.index for item in batch.skipped] for batch, _ in found] == [[3], [], [2]]


@pytest.mark.parametrize("threads", [1, 3])
def test_while_encoding_too_a_bad_item_is_named_and_no_thread_or_setting_stays(threads):
    before, torchs = threading.active_count(), torch.get_num_threads()
    found = encode_ahead(Reader(), [0, 1, 2, 3, -4, 5], BATCHES, False, doubled, threads=threads)
    assert next(found)[1] == [6, 0]
    with pytest.raises(ValueError, match="item 4: -4 is negative"):
        next(found)
    half = encode_ahead(Reader(), list(range(6)), BATCHES, False, doubled, threads=threads)
    next(half)
    half.close()
    assert threading.active_count() == before
    assert torch.get_num_threads() == torchs
