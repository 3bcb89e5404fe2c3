"""From a recipe to data, tokenizer, model and feeds; and what a recipe would do, for --dry-run."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from maxmatch.data.augment import Augmentation, RandomCrop, RandomMirror
from maxmatch.data.dataset import TEXT, Dataset, Split
from maxmatch.data.extraction import check_features, with_token_states
from maxmatch.data.feed import Feed, choose_feed
from maxmatch.data.load import Say, hold_out, load_data, random_part, source_names
from maxmatch.data.sampler import GroupSampler
from maxmatch.data.scenes import split_sizes
from maxmatch.evaluation.encoding import in_order, readers_for
from maxmatch.evaluation.paper import departures
from maxmatch.losses.objective import TERMS
from maxmatch.model.adaptation import add_lora, checkpoint_gradients, freeze_but, grow_sets
from maxmatch.model.build import build_model, tokenizer_file
from maxmatch.model.encoder import SetEncoder
from maxmatch.model.encoders.cnn import EfficientNetLite, ResNeXt
from maxmatch.model.encoders.language import PACKAGED, read_glove, read_words
from maxmatch.model.hub.preprocessing import PatchTransform
from maxmatch.model.hub.two_towers import HubHalf
from maxmatch.model.inputs import FeatureReader, PixelReader
from maxmatch.model.names import cached_model, local_model
from maxmatch.model.text import (
    frequent_words,
    load_tokenizer,
    train_wordpiece_tokenizer,
    vocabulary_tokenizer,
    word_tokenizer,
)
from maxmatch.recipe.model_section import SET_SIZE
from maxmatch.recipe.schema import Data, Recipe, Train
from maxmatch.recipe.yaml_files import list_recipes
from maxmatch.training.distributed import Processes, first_alone
from maxmatch.training.optim import Group, parameter_groups, schedule_factor
from maxmatch.training.teachers import Teacher, load_teachers


@dataclass(frozen=True)
class TrainingParts:
    """The model, the data and how they are fed to it."""

    model: SetEncoder
    train: Split
    val: Split | None
    feed: Feed
    val_feed: Feed | None
    teachers: Sequence[Teacher]
    runs_backbones: bool
    """Whether a step runs a backbone whose steps may not be recordable."""


def prepare(recipe: Recipe, processes: Processes, say: Say) -> TrainingParts:
    """Read the data, build the model on the device, and choose how it is fed."""
    for line in departures(recipe):
        say(f"! {line}")
    with first_alone(processes):
        dataset = load_data(recipe.data, say, recipe.model.resolved().towers)
    train = training_split(recipe.data, dataset, say)
    val = dataset.splits.get(recipe.data.val_split)
    if val is None:
        say(f"no split {recipe.data.val_split!r} in {dataset.path}: training without validation")
    model, options = new_model(recipe, train, say).to(processes.device), recipe.train
    check_features(model, recipe.data, dataset)
    if options.gradient_checkpointing:
        checkpoint_gradients(model)
    cache = None if options.picture_cache is None else Path(options.picture_cache).expanduser()
    teachers = load_teachers(
        recipe.objective.teachers, train, processes.device, workers=options.workers, feed=options.feed,
        picture_cache=cache, precision=torch.bfloat16 if processes.device.type == "cuda" else None, say=say,
    )  # fmt: skip
    kept = [name for name in model.towers if options.keeps(name)]
    train = _with_sets(model, kept, train, options, cache, say)
    val = None if val is None else _with_sets(model, kept, val, options, cache, say)
    if not options.phrases and TEXT not in kept:
        stored = with_token_states(model, recipe.data, [train] if val is None else [train, val], say)
        train, val = stored[0], None if val is None else stored[1]
    readers = readers_for(model, train) | {name: FeatureReader(model.dim) for name in kept}
    give_sets(model, kept)
    crops = {
        name: augmented
        for name, reader in readers.items()
        if isinstance(reader, PixelReader) and (augmented := _augmentation(options, reader)) is not None
    }
    if options.phrases and processes.world > 1:
        raise ValueError(
            "train.phrases: phrases are compared within a batch of one process. Train with one, or without."
        )
    share = options.size_augmentation
    drop = {
        name: share
        for name, reader in readers.items()
        if share
        and name not in kept
        and not isinstance(reader, PixelReader)
        # What is stored of a two-tower model begins with its vector, which must not be left out.
        and not (isinstance(reader, FeatureReader) and isinstance(model.tower(name).encoder, HubHalf))
    }
    feed = choose_feed(
        train, readers, processes.device, feed=options.feed, workers=options.workers, captions=options.batch_captions,
        drop=drop, phrases=options.phrases, crops=crops, picture_cache=cache, say=say,
    )  # fmt: skip
    val_feed = None
    if val is not None and processes.first:
        val_feed = choose_feed(
            val, readers, processes.device, feed=options.feed, workers=options.workers, picture_cache=cache,
            say=lambda _: None,
        )  # fmt: skip
    backbones = any(
        not isinstance(reader, FeatureReader) and reads_values(getattr(model.tower(name).encoder, "backbone", None))
        for name, reader in readers.items()
    )
    return TrainingParts(model, train, val, feed, val_feed, teachers, backbones or _has_own(model))


def _with_sets(
    model: SetEncoder, names: Sequence[str], split: Split, options: Train, cache: Path | None, say: Say
) -> Split:
    """The split with what the model makes of some modalities in the place of their items. What cannot be read becomes
    NaN, which is reported and left out as anything else that cannot be read.
    """
    for name in names:
        items = split[name]
        feed = choose_feed(
            split, {name: model.tower(name).reader}, model.device, feed=options.feed, workers=options.workers,
            picture_cache=cache, say=lambda _: None,
        )  # fmt: skip
        say(f"{name}s are encoded once: {len(items):,}")
        sets = np.full((len(items), model.set_sizes[name], model.dim), np.nan, np.float32)
        with model.evaluating():
            for batch in feed.batches(in_order(split.size, _AT_ONCE)):
                sets[batch.places[name].cpu().numpy()] = model.sets_of(name, batch.inputs[name]).cpu().numpy()
        values: Any = sets
        split = replace(split, items={**split.items, name: replace(items, values=values)})
    return split


def give_sets(model: SetEncoder, names: Iterable[str]) -> None:
    """Let some towers take the sets that they made before."""
    for name in names:
        model.tower(name).given_sets = True


def training_split(data: Data, dataset: Dataset, say: Say) -> Split:
    """What a recipe trains on: without held-out captions, and a part of it where the recipe says so."""
    train = dataset.split(data.train_split)
    if data.hold_out_words:
        train = hold_out(train, data.hold_out_words, say)
    return train if data.max_images is None else random_part(train, data.max_images, say)


def group_weights(data: Data, train: Split) -> np.ndarray | None:
    """How often an epoch takes each training group, by the weight of its data set; None: once."""
    if data.weights is None or train.sources is None:
        return None
    by_name = dict(zip(source_names(data.sources()), data.weights, strict=True))
    return np.array([by_name[source] for source in train.sources])


def group_sources(data: Data, train: Split) -> np.ndarray | None:
    """The data set of each training group, where batches are of one data set; None: they are mixed."""
    if data.batches == "mixed" or train.sources is None:
        return None
    numbers: np.ndarray = np.unique(np.asarray(train.sources), return_inverse=True)[1]
    return numbers


def _augmentation(options: Train, reader: PixelReader) -> Augmentation | None:
    """What the recipe does to a training picture."""
    picture, flip = reader.transform, 0.5 if options.flip else 0.0
    if isinstance(picture, PatchTransform) and (options.crop_scale is not None or flip):
        raise ValueError(
            "train.crop_scale: this model sees pictures as patches in their own proportions, which are not cropped or "
            "mirrored. Set train.crop_scale=null train.flip=false."
        )
    if options.crop_scale is not None:
        size = options.crop_size or picture.size
        return RandomCrop(
            size, picture.mean, picture.std, scale=options.crop_scale, ratio=options.crop_ratio, flip=flip
        )
    return RandomMirror(picture, flip) if flip else None


def reads_values(backbone: Any) -> bool:
    """Whether the host may read values while a backbone runs, so that steps cannot be recorded. BERT's does not, and
    neither do our own.
    """
    kind = getattr(getattr(backbone, "config", None), "model_type", None)
    return backbone is not None and kind != "bert" and not isinstance(backbone, EfficientNetLite | ResNeXt)


def _has_own(model: SetEncoder) -> bool:
    """Whether a part of the model is not of this package: it may do what cannot be recorded."""
    towers = {} if model.config is None else model.config.towers
    return any("own" in (tower.encoder.name, tower.head.name) for tower in towers.values())


def new_model(recipe: Recipe, train: Split, say: Say) -> SetEncoder:
    """The model of a recipe with its first weights; the words are those of the training captions, or of the model that
    it starts from.
    """
    if recipe.model.start is not None:
        return started_model(recipe)
    config = recipe.model.resolved()
    tokenizers, vectors = {}, {}
    for name, tower in config.towers.items():
        if tower.reads == "text":
            tokenizers[name] = tokenizer_for(recipe.data, tower.encoder, train[name].values)
            if recipe.data.word_vectors is not None and tower.encoder.name == "gru":
                vectors[name] = _word_vectors(recipe.data.word_vectors, tokenizers[name], recipe.seed, say)
    return build_model(config, tokenizers, word_vectors=vectors, seed=recipe.seed)


def started_model(recipe: Recipe) -> SetEncoder:
    """The model that a recipe starts from, with sets where it asks for them. Of one that stays frozen, only what the
    recipe names learns.
    """
    section, train = recipe.model, recipe.train
    assert section.start is not None
    model = SetEncoder.from_pretrained(section.start)
    if section.head is not None:
        model = grow_sets(model, section.head, section.set_size or SET_SIZE, recipe.seed)
    assert model.config is not None
    options: dict[str, Any] = {"similarity": section.similarity, "similarity_options": dict(section.similarity_options)}
    if section.similarity != model.similarity_name:  # a logit scale belongs to the scores that it was learned with
        options |= {"logit_scale": None, "logit_bias": None}
    model.config, model.notes = model.config.model_copy(update=options), ""
    model.similarity_name, model.similarity_options = section.similarity, dict(section.similarity_options)
    for place, (name, tower) in enumerate(model.config.towers.items()):
        if not tower.grown:
            continue
        lora = train.lora
        if lora is not None and name in (lora.towers or (name,)):
            add_lora(model.tower(name), lora.rank, lora.alpha, lora.dropout, lora.targets, recipe.seed + place)
        freeze_but(model.tower(name), train.unfreeze.get(name, ()))
    return model.train()


def tokenizer_for(data: Data, encoder: Any, captions: Any) -> Tokenizer:
    """The tokenizer of a recipe."""
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
        if encoder.name == "own" or encoder.backbone.pretrained is None:
            raise ValueError(
                "data.tokenizer: 'pretrained' is the backbone's own, but the model names no pretrained backbone. "
                "Take 'wordpiece', or give the path of a tokenizer.json."
            )
        return load_tokenizer(tokenizer_file(encoder.backbone.pretrained), data.max_length)
    return load_tokenizer(data.tokenizer, data.max_length)


def _word_vectors(path: str, tokenizer: Tokenizer, seed: int, say: Say) -> Tensor:
    vocabulary = tokenizer.get_vocab()
    words = sorted(vocabulary, key=lambda word: vocabulary[word])
    table, missing = read_glove(_expanded(path), words, torch.Generator().manual_seed(seed))
    say(f"word vectors: {len(words) - len(missing)} of {len(words)} words found in {path}, the others are random")
    return table


def _expanded(path: str) -> str | Path:
    return path if path == PACKAGED else Path(path).expanduser()


_AT_ONCE = 64  # items of a tower that is kept

# Training images of the data sets that recipes which ship are made for, by how their names begin.
_SIZES = {"coco": 113_287, "ablation/": 113_287, "f30k": 29_000, "flickr8k": 6_000}
_ANY_STEPS = 1000  # in an epoch, where they are not known: after a warm-up, rates by epoch do not depend on them


def describe(recipe: Recipe, steps_per_epoch: int | None = None, say: Say = lambda line: None) -> str:
    """A table of parameter groups, and of their learning rates over the epochs. The data is read, if it is there, for
    the number of steps.
    """
    known, how = (steps_per_epoch, "") if steps_per_epoch else _steps(recipe, say)
    steps, train = known or _ANY_STEPS, recipe.train
    if known is None and train.warmup(steps):
        how += ". The warm-up is left out below"
        train = train.model_copy(update={"warmup_steps": 0, "warmup_epochs": 0})
    towers = recipe.model.resolved().towers
    backbones = [name for name, tower in towers.items() if hasattr(tower.encoder, "backbone")]
    lines = [
        f"{recipe.name}: {recipe.description}",
        f"{train.epochs} epochs{_of_steps(known)}, batches of {train.batch_size} images{how}",
        f"similarity {recipe.model.similarity}; " + _objective(recipe),
        *(f"! {line}" for line in departures(recipe)),
        "",
        f"{'group':<20}{'parameters':>14}{'factor':>8}{'learning rate':>15}{'weight decay':>14}",
    ]
    start = recipe.model.start
    here = start is None or (local_model(start) or cached_model(start)) is not None
    if not here:
        lines.append(f"{start} is not on this machine; training fetches it, and what learns is known then.")
    for group in _parameter_groups(recipe) if here else ():
        count = sum(parameter.numel() for parameter in group.parameters.values())
        rate, decay = recipe.train.lr * group.factor, recipe.train.weight_decay if group.decays else 0.0
        lines.append(f"{group.name:<20}{count:>14,}{group.factor:>8g}{rate:>15g}{decay:>14g}")
    if any(tower.encoder.name == "gru" for tower in towers.values()):
        lines.append("The words of a Bi-GRU come with the data and are not counted.")
    lines += ["", f"{'epoch':<8}{'learning rate':>15}  of factor 1, at its first step"]
    for epoch in _milestones(recipe):
        rate = train.lr * schedule_factor(train, epoch * steps, steps)
        notes = [f"{name} frozen" for name in backbones if recipe.train.frozen(name, epoch)]
        if recipe.objective.keywords(epoch)["negatives"] != recipe.objective.negatives:
            notes.append("mean negatives")
        if recipe.objective.bce_weight and epoch < recipe.objective.plain_bce_epochs:
            notes.append("no pseudo-positives")
        lines.append(f"{epoch + 1:<8}{rate:>15.3g}  {', '.join(notes)}".rstrip())
    return "\n".join(lines)


def _of_steps(count: int | None) -> str:
    return f" of {count:,} step{'' if count == 1 else 's'}" if count else ""


def _parameter_groups(recipe: Recipe) -> list[Group]:
    """The parameter groups, without allocating or fetching weights, but for those of a model that is here."""
    if recipe.model.start is not None:
        return parameter_groups(started_model(recipe), recipe.train)
    config = recipe.model.resolved()
    tokenizers = {}
    for name, tower in config.towers.items():
        if tower.encoder.name == "gru" or (tower.encoder.name == "own" and tower.reads == "text"):
            tokenizers[name] = word_tokenizer(["a"], 1)
        elif tower.encoder.name == "transformer":
            tokenizers[name] = train_wordpiece_tokenizer(["a"], 30, 64)
    with torch.device("meta"):
        model = build_model(config, tokenizers, pretrained=False)
    return parameter_groups(model, recipe.train)


def _steps(recipe: Recipe, say: Say) -> tuple[int | None, str]:
    """Steps in an epoch and how they are known: by the data, by the scenes that would be generated, or by the data set
    that a recipe which ships is made for. None where nothing tells.
    """
    data, how = recipe.data, ""
    paths = [Path(str(one.path), "metadata.jsonl" if data.scenes else "") for one in data.sources() if one.path]
    absent = next((path for path in paths if not path.expanduser().exists()), None)
    weights = None
    if paths and absent is None:
        train = training_split(data, load_data(data, say, recipe.model.resolved().towers), say)
        size, weights = train.size, group_weights(data, train)
    elif data.scenes is not None:
        size = split_sizes(data.scenes.images)[data.train_split]
        size = min(size, data.max_images or size)
    elif data.path is not None:
        return None, f"; the number of steps is not known: {absent}: no such file or folder"
    else:
        shipped = recipe.name in dict(list_recipes())
        size = next((size for name, size in _SIZES.items() if shipped and recipe.name.startswith(name)), 0)
        if not size:
            return None, "; the number of steps is not known without data.path=FOLDER"
        how = f", if the data has {size:,} training images (no data.path is given)"
    return len(GroupSampler(size, recipe.train.batch_size, recipe.seed, weights=weights)), how


def _objective(recipe: Recipe) -> str:
    goal = recipe.objective
    weights = {term.symbol: getattr(goal, term.weight) for term in TERMS.values()}
    if goal.triplet_reduction == "sum":
        weights = {f"{symbol} (sum)" if symbol == "triplet" else symbol: value for symbol, value in weights.items()}
    terms = " + ".join(f"{weight:g}·{symbol}" for symbol, weight in weights.items() if weight)
    return f"loss {terms}; margins {goal.margin:g}, {goal.gd_margin:g}, {goal.isd_margin:g}"


def _milestones(recipe: Recipe) -> list[int]:
    """The epochs at which something changes, and some in between."""
    train = recipe.train
    marks = {0, 1, train.epochs // 4, train.epochs // 2, 3 * train.epochs // 4, train.epochs - 1}
    marks |= {until for until in train.freeze.values() if isinstance(until, int)}
    marks |= {recipe.objective.mean_negatives_epochs, recipe.objective.plain_bce_epochs}
    if train.schedule.name == "step":
        times = train.epochs if train.schedule.times is None else train.schedule.times
        marks |= set(range(0, train.epochs, train.schedule.every)[: times + 1])
    return sorted(epoch for epoch in marks if 0 <= epoch < train.epochs)
