"""Captions cut to phrases: what is left of them, and which images they match."""

from collections import Counter

import pytest
import torch
from small_runs import recipe_for
from tokenizers import Tokenizer, models, pre_tokenizers

from maxmatch.core.types import Batch, Inputs
from maxmatch.data.augment import Phrases, SizeAugmentation
from maxmatch.data.dataset import IMAGE, TEXT
from maxmatch.data.sampler import GroupSampler
from maxmatch.model.inputs import TextReader
from maxmatch.model.text import train_wordpiece_tokenizer, word_tokenizer
from maxmatch.training.distributed import Processes
from maxmatch.training.prepare import prepare
from maxmatch.training.step import criterion_for, gradients

CPU = torch.device("cpu")
CAPTIONS = [  # two of each of four images
    "a red car in the snow", "a car is parked on a street",
    "a dog runs in the snow", "a brown dog plays",
    "a man on a street with a dog", "the man walks a brown dog",
    "a red house", "a house with a red door and a dog in it",
]  # fmt: skip
GROUPS = [7, 7, 3, 3, 5, 5, 1, 1]


def readers(kind):
    made = word_tokenizer(CAPTIONS, 1) if kind == "words" else train_wordpiece_tokenizer(CAPTIONS, 60, 32)
    return {TEXT: TextReader(made)}


def batch_of(reader):
    inputs = {TEXT: reader.collate([reader.read(text) for text in CAPTIONS]), IMAGE: Inputs(torch.zeros(4, 1), None)}
    groups = {TEXT: torch.tensor(GROUPS), IMAGE: torch.tensor([3, 5, 7, 1])}
    places = {TEXT: torch.arange(8), IMAGE: torch.arange(4)}
    return Batch(inputs, groups, places)


def words(reader, inputs):
    """What each caption says, as text."""
    return [reader.tokenizer.decode(ids[mask].tolist()) for ids, mask in zip(*inputs, strict=True)]


@pytest.mark.parametrize("kind", ["words", "pieces"])
def test_a_phrase_is_up_to_three_words_of_its_caption_in_their_order(kind):
    by_name = readers(kind)
    batch = batch_of(by_name[TEXT])
    whole = words(by_name[TEXT], batch.inputs[TEXT])
    lengths = Counter()
    for seed in range(40):
        cut = Phrases(0.5, by_name, CPU)(batch, seed)
        for place, (text, before) in enumerate(zip(words(by_name[TEXT], cut.inputs[TEXT]), whole, strict=True)):
            if cut.places[TEXT][place] >= 0:
                assert text == before
            else:
                assert f" {text} " in f" {before} "
                lengths[len(text.split())] += 1
    assert set(lengths) == {1, 2, 3}
    assert 100 < sum(lengths.values()) < 220  # half of 320


def test_a_phrase_matches_the_images_whose_captions_say_all_its_words():
    by_name = readers("words")
    batch = batch_of(by_name[TEXT])
    said = {group: set() for group in GROUPS}
    for group, text in zip(GROUPS, CAPTIONS, strict=True):
        said[group] |= set(text.split())
    matched = 0
    for seed in range(40):
        cut = Phrases(0.5, by_name, CPU)(batch, seed)
        for column, text in enumerate(words(by_name[TEXT], cut.inputs[TEXT])):
            for row, group in enumerate(batch.groups[IMAGE].tolist()):
                expected = len(text.split()) <= 3 and set(text.split()) <= said[group]
                assert bool(cut.also[IMAGE, TEXT][row, column]) == bool(expected), text
                matched += bool(expected) and group != GROUPS[column]
    assert matched > 20


def test_a_phrase_ends_in_a_word_that_not_every_image_has_and_more_often_in_a_rare_one():
    by_name = readers("words")
    batch = batch_of(by_name[TEXT])
    last = Counter()
    for seed in range(300):
        cut = Phrases(0.99, by_name, CPU)(batch, seed)
        last.update(text.split()[-1] for text in words(by_name[TEXT], cut.inputs[TEXT]))
    assert last["a"] == 0  # said of all four images
    assert last["plays"] > last["dog"] > 0  # in one caption, of one image; in four captions, of three


def test_words_of_a_phrase_are_not_dropped_and_without_a_seed_nothing_is_cut():
    by_name = readers("words")
    batch = batch_of(by_name[TEXT])
    phrases, drop = Phrases(0.99, by_name, CPU), SizeAugmentation({TEXT: 0.9}, by_name, CPU)
    cut = phrases(batch, 3)
    again = drop(cut, 3)
    phrase = cut.places[TEXT] < 0
    assert phrase.sum() >= 6
    assert torch.equal(again.inputs[TEXT].values[phrase], cut.inputs[TEXT].values[phrase])
    assert phrases(batch, None) is batch


@pytest.mark.parametrize("feed", ["resident", "mapped"])
def test_in_training_the_loss_is_the_same_in_chunks_and_phrases_match_more(data, feed):
    recipe = recipe_for(data, phrases=0.6, feed=feed, workers=0)
    parts = prepare(recipe, Processes(0, 1, CPU), print)
    plan = next(GroupSampler(parts.train.size, 16, 0).plans(0))
    (batch,) = parts.feed.batches([plan])
    assert batch.also[IMAGE, TEXT].sum() > (batch.places[TEXT] < 0).sum() > 0
    model, criterion, found = parts.model.eval(), criterion_for(recipe, 9), []
    for chunks in (1, 3):
        model.zero_grad(set_to_none=True)
        found.append(gradients(model, batch, criterion, seed=0, chunks=chunks).total.item())
    assert found[0] == pytest.approx(found[1], rel=1e-4)
    batch.also.clear()
    assert gradients(model, batch, criterion, seed=0).total.item() > found[0] + 1e-3


def test_several_processes_are_refused(data):
    with pytest.raises(ValueError, match="phrases"):
        prepare(recipe_for(data, phrases=0.2), Processes(0, 2, CPU), print)


def test_signs_and_unknown_words_make_no_phrase_and_match_nothing():
    tokenizer = word_tokenizer(["a dog , a cat .", "a dog ! a cat"], 1)
    reader = TextReader(tokenizer)
    captions = ["a zebra .", "a toaster , !", ". , !", "a dog , a cat .", "a dog"]
    inputs = {TEXT: reader.collate([reader.read(text) for text in captions]), IMAGE: Inputs(torch.zeros(5, 1), None)}
    numbers = {TEXT: torch.arange(5), IMAGE: torch.arange(5)}
    for seed in range(20):
        cut = Phrases(0.99, {TEXT: reader}, CPU)(Batch(inputs, numbers, dict(numbers)), seed)
        texts = words(reader, cut.inputs[TEXT])
        assert cut.places[TEXT][3] == 3 or not set(texts[3]) & set(",.!")
        assert cut.places[TEXT][2] == 2  # has no word, and stays
        also = cut.also[IMAGE, TEXT]
        assert not also[:, 2].any()
        for column, text in enumerate(texts):
            said = set(text.split()) & {"a", "dog", "cat"}
            mine = [set(caption.split()) for caption in captions]
            short = 0 < sum(word in said for word in text.split()) <= 3
            assert also[:, column].tolist() == [short and said <= one for one in mine], text


def test_phrases_need_no_mask_token_but_leaving_out_words_does():
    tokenizer = Tokenizer(models.WordLevel({"<pad>": 0, "a": 1, "dog": 2, "cat": 3, "<unk>": 4}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.enable_padding(pad_id=0, pad_token="<pad>")
    reader = {TEXT: TextReader(tokenizer)}
    Phrases(0.5, reader, CPU)
    with pytest.raises(ValueError, match="mask token"):
        SizeAugmentation({TEXT: 0.5}, reader, CPU)
