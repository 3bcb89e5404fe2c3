"""From a recipe to what the loop works with: data, tokenizer, model, feeds."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from maxmatch.build import build_model
from maxmatch.data.feed import Feed, choose_feed
from maxmatch.data.held_out import hold_out
from maxmatch.data.items import Split
from maxmatch.data.loading import Say, load_data
from maxmatch.data.transforms import Augmentation, RandomCrop, RandomMirror
from maxmatch.encoders.backbone import weights_place
from maxmatch.encoders.glove import PACKAGED, read_glove, read_words
from maxmatch.evaluation.encoding import readers_for
from maxmatch.model import SetEncoder
from maxmatch.readers import FeatureReader, PixelReader
from maxmatch.recipe import Data, Recipe
from maxmatch.recipe_train import Train
from maxmatch.text import (
    frequent_words,
    load_tokenizer,
    train_wordpiece_tokenizer,
    vocabulary_tokenizer,
    word_tokenizer,
)
from maxmatch.training.distributed import Processes, first_alone


@dataclass(frozen=True)
class Prepared:
    """All that training needs beside the recipe."""

    model: SetEncoder
    train: Split
    val: Split | None
    feed: Feed
    val_feed: Feed | None
    runs_backbones: bool
    """Whether a step goes through a backbone of which is not known that its steps can be recorded."""


def prepare(recipe: Recipe, processes: Processes, say: Say) -> Prepared:
    """Read the data, build the model on the device, and choose how it is fed."""
    with first_alone(processes):
        dataset = load_data(recipe.data, say, recipe.model.resolved().towers)
    train = dataset.split(recipe.data.train_split)
    if recipe.data.hold_out_words:
        train = hold_out(train, recipe.data.hold_out_words, say)
    val = dataset.splits.get(recipe.data.val_split)
    if val is None:
        say(f"no split {recipe.data.val_split!r} in {dataset.path}: training goes on without validation")
    model = new_model(recipe, train, say).to(processes.device)
    readers = readers_for(model, train)
    options = recipe.train
    crops = {
        name: augmented
        for name, reader in readers.items()
        if isinstance(reader, PixelReader) and (augmented := _augmentation(options, reader)) is not None
    }
    share = options.size_augmentation
    drop = {name: share for name, reader in readers.items() if share and not isinstance(reader, PixelReader)}
    feed = choose_feed(
        train, readers, processes.device, feed=options.feed, workers=options.workers, captions=options.batch_captions,
        drop=drop, crops=crops, say=say,
    )  # fmt: skip
    val_feed = None
    if val is not None and processes.first:
        val_feed = choose_feed(
            val, readers, processes.device, feed=options.feed, workers=options.workers, say=lambda _: None
        )
    backbones = any(
        not isinstance(reader, FeatureReader) and _may_look(getattr(model.tower(name).encoder, "backbone", None))
        for name, reader in readers.items()
    )
    return Prepared(model, train, val, feed, val_feed, backbones)


def _augmentation(options: Train, reader: PixelReader) -> Augmentation | None:
    """What training does to a picture, as the recipe says."""
    picture, flip = reader.transform, 0.5 if options.flip else 0.0
    if options.crop_scale is not None:
        return RandomCrop(picture.size, scale=options.crop_scale, flip=flip, mean=picture.mean, std=picture.std)
    return RandomMirror(picture, flip) if flip else None


def _may_look(backbone: Any) -> bool:
    """Whether a backbone might look at values while it works, so that its steps cannot be recorded. BERT does not."""
    kind = getattr(getattr(backbone, "config", None), "model_type", None)
    return backbone is not None and kind != "bert"


def new_model(recipe: Recipe, train: Split, say: Say) -> SetEncoder:
    """The model of a recipe with its first weights; the words are those of the training captions."""
    config = recipe.model.resolved()
    tokenizers, vectors = {}, {}
    for name, tower in config.towers.items():
        if tower.encoder.name in ("gru", "transformer"):
            tokenizers[name] = tokenizer_for(recipe.data, tower.encoder, train[name].values)
            if recipe.data.word_vectors is not None and tower.encoder.name == "gru":
                vectors[name] = _word_vectors(recipe.data.word_vectors, tokenizers[name], recipe.seed, say)
    return build_model(config, tokenizers, word_vectors=vectors, seed=recipe.seed)


def tokenizer_for(data: Data, encoder: Any, captions: Any) -> Tokenizer:
    """The tokenizer that a recipe asks for."""
    if data.tokenizer == "words":
        return word_tokenizer(captions, data.min_count, data.max_length)
    if data.tokenizer == "vectors":
        if data.word_vectors is None:
            raise ValueError("data.tokenizer: 'vectors' takes its words from data.word_vectors, which is not given.")
        known = read_words(_expanded(data.word_vectors), data.vocabulary_size)
        words = dict.fromkeys([*frequent_words(captions, data.min_count), *known])
        return vocabulary_tokenizer(list(words)[: data.vocabulary_size], data.max_length)
    if data.tokenizer == "wordpiece":
        return train_wordpiece_tokenizer(captions, data.vocabulary_size, data.max_length)
    if data.tokenizer == "pretrained":
        return load_tokenizer(_fetched_tokenizer(encoder.backbone.pretrained), data.max_length)
    return load_tokenizer(data.tokenizer, data.max_length)


def _word_vectors(path: str, tokenizer: Tokenizer, seed: int, say: Say) -> Tensor:
    vocabulary = tokenizer.get_vocab()
    words = sorted(vocabulary, key=lambda word: vocabulary[word])
    table, missing = read_glove(_expanded(path), words, torch.Generator().manual_seed(seed))
    say(f"word vectors: {len(words) - len(missing)} of {len(words)} words found in {path}, the others start at random")
    return table


def _expanded(path: str) -> str | Path:
    return path if path == PACKAGED else Path(path).expanduser()


def _fetched_tokenizer(name: str | None) -> Path:
    """The tokenizer.json of a backbone: in its folder, or on the hub."""
    if name is None:
        raise ValueError(
            "data.tokenizer: 'pretrained' is the backbone's own, but the model names no pretrained backbone. "
            "Take 'wordpiece', or give the path of a tokenizer.json."
        )
    place = weights_place(name)
    if Path(place).is_dir():
        return Path(place) / "tokenizer.json"
    from huggingface_hub import hf_hub_download

    return Path(hf_hub_download(place, "tokenizer.json"))
