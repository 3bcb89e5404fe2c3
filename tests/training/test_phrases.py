"""Phrases beside the captions: which words they have, which images they fit, and their loss."""

from collections import Counter

import pytest
import torch
from small_runs import recipe_for
from tokenizers import Tokenizer, models, pre_tokenizers

from maxmatch.core.types import Batch, Inputs
from maxmatch.data.augment import PhraseMaker, SizeAugmentation
from maxmatch.data.dataset import IMAGE, TEXT
from maxmatch.data.sampler import GroupSampler
from maxmatch.losses import phrase_contrastive
from maxmatch.losses.objective import TERMS
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


def made(by_name, batch, seed, share=0.5):
    """The phrases of a batch, as texts, and which of its images they fit (images, phrases)."""
    phrases = PhraseMaker(share, by_name, CPU)(batch, seed).phrases[TEXT]
    return words(by_name[TEXT], phrases.inputs), phrases.fits[IMAGE]


@pytest.mark.parametrize("kind", ["words", "pieces"])
def test_a_phrase_is_up_to_three_words_of_a_caption_in_their_order_and_captions_stay(kind):
    by_name = readers(kind)
    batch = batch_of(by_name[TEXT])
    lengths = Counter()
    for seed in range(40):
        more = PhraseMaker(0.5, by_name, CPU)(batch, seed)
        assert more.inputs is batch.inputs
        texts = words(by_name[TEXT], more.phrases[TEXT].inputs)
        assert len(texts) == 4  # half of eight captions
        for text in texts:
            assert any(f" {text} " in f" {caption} " for caption in CAPTIONS)
            lengths[len(text.split())] += 1
    assert set(lengths) == {1, 2, 3}


def test_a_phrase_fits_the_images_whose_captions_say_all_its_words():
    by_name = readers("words")
    batch = batch_of(by_name[TEXT])
    said = {group: set() for group in GROUPS}
    for group, text in zip(GROUPS, CAPTIONS, strict=True):
        said[group] |= set(text.split())
    several = 0
    for seed in range(40):
        texts, fits = made(by_name, batch, seed)
        for column, text in enumerate(texts):
            expected = [set(text.split()) <= said[group] for group in batch.groups[IMAGE].tolist()]
            assert fits[:, column].tolist() == expected, text
            several += sum(expected) > 1
    assert several > 20


def test_a_phrase_ends_in_a_word_that_not_every_image_has_and_more_often_in_a_rare_one():
    by_name = readers("words")
    batch = batch_of(by_name[TEXT])
    last = Counter()
    for seed in range(300):
        last.update(text.split()[-1] for text in made(by_name, batch, seed, 0.99)[0])
    assert last["a"] == 0  # said of all four images
    assert last["plays"] > last["dog"] > 0  # in one caption, of one image; in four captions, of three


def test_without_a_seed_there_are_no_phrases_and_leaving_out_words_leaves_them_alone():
    by_name = readers("words")
    batch = batch_of(by_name[TEXT])
    phrases, drop = PhraseMaker(0.99, by_name, CPU), SizeAugmentation({TEXT: 0.9}, by_name, CPU)
    assert phrases(batch, None) is batch
    more = phrases(batch, 3)
    assert drop(more, 3).phrases is more.phrases


def phrase_recipe(data, **options):
    return recipe_for(data, objective={"phrase_weight": 0.7}, phrases=0.6, workers=0, **options)


@pytest.mark.parametrize("feed", ["resident", "mapped"])
def test_the_loss_of_the_phrases_is_added_and_is_the_same_in_chunks(data, feed):
    recipe = phrase_recipe(data, feed=feed)
    parts = prepare(recipe, Processes(0, 1, CPU), print)
    plan = next(GroupSampler(parts.train.size, 16, 0).plans(0))
    (batch,) = parts.feed.batches([plan])
    model, criterion, found = parts.model.eval(), criterion_for(recipe, 9), []
    for chunks in (1, 3):
        model.zero_grad(set_to_none=True)
        terms = gradients(model, batch, criterion, seed=0, chunks=chunks)
        found.append((terms, [p.grad.clone() for p in model.parameters() if p.grad is not None]))
    (whole, steps), (parted, other_steps) = found
    assert whole.total.item() == pytest.approx(parted.total.item(), rel=1e-4)
    for one, other in zip(steps, other_steps, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
    images, phrases = model("image", *batch.inputs[IMAGE]), batch.phrases[TEXT]
    scores = criterion.similarity(images.vectors, model("text", *phrases.inputs).vectors)
    expected = phrase_contrastive(scores, phrases.fits[IMAGE], recipe.objective.temperature)
    assert whole.phrases.item() == pytest.approx(expected.item(), rel=1e-4)
    weights = {name: getattr(recipe.objective, term.weight) for name, term in TERMS.items()}
    parts_of = {name: value.item() for name, value in whole.computed().items() if name != "total"}
    assert whole.total.item() == pytest.approx(sum(weights[name] * value for name, value in parts_of.items()), rel=1e-5)


def test_one_without_the_other_is_refused(data):
    with pytest.raises(ValueError, match=r"train\.phrases"):
        recipe_for(data, phrases=0.2)
    with pytest.raises(ValueError, match=r"objective\.phrase_weight"):
        recipe_for(data, objective={"phrase_weight": 0.2})


def test_several_processes_are_refused(data):
    with pytest.raises(ValueError, match="phrases"):
        prepare(phrase_recipe(data), Processes(0, 2, CPU), print)


def test_signs_and_unknown_words_make_no_phrase_and_match_nothing():
    tokenizer = word_tokenizer(["a dog , a cat .", "a dog ! a cat"], 1)
    reader = TextReader(tokenizer)
    captions = ["a zebra .", "a toaster , !", ". , !", "a dog , a cat .", "a dog"]
    inputs = {TEXT: reader.collate([reader.read(text) for text in captions]), IMAGE: Inputs(torch.zeros(5, 1), None)}
    numbers = {TEXT: torch.arange(5), IMAGE: torch.arange(5)}
    mine = [set(caption.split()) & {"a", "dog", "cat"} for caption in captions]
    for seed in range(20):
        texts, fits = made({TEXT: reader}, Batch(inputs, numbers, dict(numbers)), seed, 0.99)
        for column, text in enumerate(texts):
            assert not set(text) & set(",.!")
            said = set(text.split()) & {"a", "dog", "cat"}
            assert fits[:, column].tolist() == [bool(said) and said <= one for one in mine], text


def test_phrases_need_no_mask_token_but_leaving_out_words_does():
    tokenizer = Tokenizer(models.WordLevel({"<pad>": 0, "a": 1, "dog": 2, "cat": 3, "<unk>": 4}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.enable_padding(pad_id=0, pad_token="<pad>")
    reader = {TEXT: TextReader(tokenizer)}
    PhraseMaker(0.5, reader, CPU)
    with pytest.raises(ValueError, match="mask token"):
        SizeAugmentation({TEXT: 0.5}, reader, CPU)
