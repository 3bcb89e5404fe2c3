"""A run's folder, and its end, where slots are aligned and checkpoints with model cards written.

recipe.yaml     the recipe as it was resolved
metrics.jsonl   losses, validation, collapse
tracker-id.txt  the id of the run in wandb or trackio, if the recipe uses one
states/         what is needed to resume
best/, last/    checkpoints that `SetEncoder.from_pretrained` reads
done.json       the results, once the run is finished
"""

import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch

from maxmatch.core.files import read_metrics, write_whole
from maxmatch.data.dataset import Split
from maxmatch.data.feed import Feed
from maxmatch.evaluation.encoding import EncodedSplit, encode_split
from maxmatch.evaluation.metrics import EvaluatedModel, Pairing, slot_pairing
from maxmatch.evaluation.significance import Interval, measure
from maxmatch.matching import SIMILARITIES
from maxmatch.matching.similarity import with_options
from maxmatch.model.encoder import SetEncoder
from maxmatch.recipe.schema import Recipe
from maxmatch.recipe.yaml_files import RecipeError, dump, load_recipe
from maxmatch.training.diagnostics import measures
from maxmatch.training.optim import with_average
from maxmatch.training.prepare import TrainingParts, give_sets
from maxmatch.training.state import BEST, TrainingState

RECIPE, DONE, LAST = "recipe.yaml", "done.json", "last"


def begun(run: Path) -> bool:
    """Whether a folder holds anything of a run that could be resumed or used: more than the state before its first
    step.
    """
    states = [path for path in run.glob("states/state-*") if not path.stem.endswith("-00000000")]
    return bool(states or read_metrics(run)) or any((run / name).exists() for name in (DONE, BEST, LAST))


def check_folder(run: Path, recipe: Recipe, resume: bool) -> None:
    """Refuse a folder that already holds a run; with `resume`, one of another recipe."""
    if not begun(run):
        return
    known = run / RECIPE
    if not known.exists():
        raise FileExistsError(f"{run}: holds files of a run, but no {RECIPE}. Choose another folder.")
    if not resume:
        raise FileExistsError(
            f"{run}: already holds a run. Continue it with --resume, or choose another folder with --out."
        )
    differing = [
        (key, there, here)
        for key, there, here in _changes(load_recipe(known).model_dump(mode="json"), recipe.model_dump(mode="json"))
        if key != "train.picture_cache" and not (key == "data.set_aside" and _same_text(there, here))
    ]
    if differing:
        keys = ", ".join(f"{key} ({_short(there)} there, {_short(here)} here)" for key, there, here in differing)
        raise ValueError(
            f"{known}: this run was started with another recipe, which differs in {keys}. Resume it with its own "
            f"(maxmatch train {known} --resume --out {run}), or choose another folder."
        )


def _same_text(there: str | None, here: str | None) -> bool:
    """Whether two files hold the same."""
    try:
        first, second = (Path(one or "").expanduser().read_bytes() for one in (there, here))
    except OSError:
        return False
    return first == second


def result_of(run: Path) -> dict[str, float]:
    """The measures of the best epoch of a run that is finished."""
    return dict(json.loads((run / DONE).read_text(encoding="utf-8")))


def align_slots(model: SetEncoder, encoded: EncodedSplit, pair: tuple[str, str], kept: bool = False) -> Pairing:
    """Measure which slots meet in true pairs, put those of the second modality in that order, and record both.

    kept: the second modality's tower stays as it is; then nothing is moved.

    Slot i of one modality then meets slot i of the other, so that a flattened set is one vector whose inner product
    with another is the sum of the matched cosines: what a search engine can index.

    encoded: the training set as encoded by this very model. Sets of the first modality that are larger than those of
    the second cannot all meet one; then nothing is moved either.
    """
    rows, columns = (encoded.sets[name] for name in pair)
    if SIMILARITIES[model.similarity_name].set_size is not None:  # each slot has a meaning, by which they meet
        size = rows.shape[1]
        return Pairing(list(range(size)), 1.0, 1.0, len(columns) * torch.eye(size, dtype=torch.long))
    found = slot_pairing(rows, columns, encoded.partners(pair), model.similarity_name)
    order = found.partner
    if -1 not in order and not kept:
        rest = [slot for slot in range(columns.shape[1]) if slot not in order]
        model.tower(pair[1]).head.reorder([*order, *rest])
        order = list(range(rows.shape[1]))
    if list(model.towers)[:2] == list(pair):  # the pair that a checkpoint has room for
        model.record_pairing(order, found.stability)
    return found._replace(partner=order)


_PATHS = ("path", "set_aside", "images", "features", "word_vectors", "tokenizer")
_MODELS = (("objective", "teachers"), ("model", "start"))
_LIMITS = """## Limits

It knows what its training photos and captions showed, in their language, and repeats their biases. A score ranks
items; it does not tell whether any of them fits. Faces, places and writing were not taught."""


def training_notes(recipe: Recipe, train: Split, epochs: int) -> str:
    """How a model was trained, and how to train it again, in Markdown. epochs: how many it was trained for."""
    data = recipe.data
    named = f" ({recipe.description})" if recipe.description else ""
    paths = [f"`{_last(part.path)}`" for part in data.sources() if isinstance(part.path, str)]
    source = "generated scenes" if data.scenes is not None else " and ".join(paths)
    counts = ", ".join(f"{len(items):,} {name}s" for name, items in train.items.items())
    lines = [
        f"Recipe `{recipe.name}`{named}, seed {recipe.seed}, on the split `{data.train_split}` of {source}: {counts}.",
        f"These are the weights after epoch {epochs} of {recipe.train.epochs}.",
    ]
    if recipe.objective.teachers:
        names = " and ".join(f"`{_last(name)}`" for name in recipe.objective.teachers)
        lines.append(f"Beside the captions it learned from the scores of {names}.")
    if data.hold_out_words:
        lines.append(f"Captions with any of these words were left out: {', '.join(data.hold_out_words)}.")
    if data.set_aside is not None:
        lines.append(f"The images of `{_last(data.set_aside)}` were set aside: the model has not seen them.")
    licence = data.licence or "That of the training data, which the author has to name."
    parts = ["## Training", "\n".join(lines), "To train it again:", f"```\n{command(recipe)}\n```"]
    return "\n\n".join([*parts, "## Licence", licence, _LIMITS])


def figure_notes(
    encoded: EncodedSplit, pair: tuple[str, str], similarity: str, options: Mapping[str, float], split: str,
    others: Mapping[str, float],
) -> str:  # fmt: skip
    """How well the model retrieves on a split, with intervals by bootstrap over the images, in Markdown. split: its
    name, as it is printed. others: RSUM by further similarities.
    """
    member = EvaluatedModel("model", encoded, with_options(similarity, dict(options)))
    (line,), _ = measure([[member]], pair, "plain")
    figures, sure = line.result.figures, line.intervals[""]
    counts = " and ".join(f"{len(encoded.groups[name]):,} {name}s" for name in pair)
    rows = [
        f"| {one} to {other} | " + " | ".join(_figure(figures, sure, f"{way}_r{n}") for n in (1, 5, 10)) + " |"
        for way, one, other in (("i2t", *pair), ("t2i", *pair[::-1]))
    ]
    further = [f"`{name}` {rsum:.1f}" for name, rsum in others.items()]
    head = "| per cent (95 % interval) | R@1 | R@5 | R@10 |\n|---|---|---|---|\n"
    return "\n\n".join(
        [
            "## How well it retrieves",
            f"On the split {split}: {counts}, one model, compared by `{similarity}`.",
            head + "\n".join(rows),
            f"RSUM {', by '.join([_figure(figures, sure, 'rsum'), *further])}.",
        ]
    )


def command(recipe: Recipe) -> str:
    """The command that trains a recipe: a shipped one with overrides, or the run's own file. Paths are reduced to
    their last part.
    """
    name = recipe.name
    try:
        shipped = load_recipe(name).model_dump(mode="json")
        changes = [(key, value) for key, value, _ in _changes(recipe.model_dump(mode="json"), shipped)]
        same = load_recipe(name, [f"{key}={_inline(value)}" for key, value in changes]) == recipe
    except RecipeError:  # no recipe of this name, or overrides do not lead to it
        same = False
    if same:
        overrides = [f"{key}={_inline(_without_folder(key, value))}" for key, value in changes]
        return " ".join(["maxmatch train", name, *map(shlex.quote, overrides)])
    return "maxmatch train recipe.yaml  # of the run's folder"


def _changes(mine: Mapping[str, Any], theirs: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The keys in which two recipes differ, dotted, with the values of both."""
    for key in [*mine, *(key for key in theirs if key not in mine)]:
        one, other, path = mine.get(key), theirs.get(key), f"{prefix}{key}"
        if isinstance(one, dict) and isinstance(other, dict) and path not in ("train.schedule", "model.config"):
            yield from _changes(one, other, f"{path}.")
        elif one != other:
            yield path, one, other


def _inline(value: Any) -> str:
    """A value in YAML on one line."""
    return dump({"value": value}, one_line=True).removeprefix("{value: ").rstrip().removesuffix("}")


def _short(value: Any) -> str:
    text = _inline(value)
    return text if len(text) <= 80 else f"{text[:80]}…"


def _without_folder(key: str, value: Any) -> Any:
    section, _, name = key.partition(".")
    if (section, name) not in _MODELS and (section != "data" or name not in _PATHS):
        return value
    return _last(value) if isinstance(value, str) else [_last(one) for one in value] if value else value


def _last(path: str) -> str:
    return PurePath(path).name or path


def _figure(figures: Mapping[str, float], sure: Mapping[str, Interval], name: str) -> str:
    low, high = sure[name]
    return f"{figures[name]:.1f} ({low:.1f} to {high:.1f})"


_PAIRING_GROUPS = 10_000  # of the training set, on which the pairing of the slots is measured


def finish(
    run: Path, recipe: Recipe, parts: TrainingParts, state: TrainingState, precision: torch.dtype | None
) -> dict[str, float]:
    """Align the slots, write both checkpoints and done.json; returns the measures of the best one.

    Doing it again, after an interruption, has the same effect.
    """
    pair, similarity, progress = recipe.objective.pairs[0], recipe.similarities[0], state.progress
    options = recipe.similarity_options(similarity)

    def encoded(model: SetEncoder, feed: Feed, size: int) -> EncodedSplit:
        return encode_split(model, feed, size, recipe.train.batch_size, precision)

    def align(model: SetEncoder) -> float:
        known = encoded(model, parts.feed, min(parts.train.size, _PAIRING_GROUPS))
        return align_slots(model, known, pair, recipe.train.keeps(pair[1])).stability

    with with_average(state.average, state.model):
        align(state.model)
        state.model.notes = training_notes(recipe, parts.train, progress.epoch)
        state.model.save_pretrained(run / LAST)
    model = SetEncoder.from_pretrained(run / BEST, next(state.model.parameters()).device)
    give_sets(model, filter(recipe.train.keeps, model.towers))
    found = {"best_epoch": float(progress.best_epoch), "seconds": progress.seconds, "stability": align(model)}
    model.notes = training_notes(recipe, parts.train, progress.best_epoch + 1)
    if parts.val is not None and parts.val_feed is not None:
        val = encoded(model, parts.val_feed, parts.val.size)
        found |= measures(val, pair, similarity, options, parts.val.sources)
        others: dict[str, dict[str, float]] = {}
        for other in recipe.similarities[1:]:
            by_other = measures(val, pair, other, recipe.similarity_options(other), parts.val.sources)
            others[other] = by_other
            found |= {f"{other}_{name}": value for name, value in by_other.items() if f"chance_{name}" in by_other}
        sources = [None] if parts.val.sources is None else list(dict.fromkeys(parts.val.sources))
        for source in reversed(sources):
            mine = val if source is None else val.only(np.flatnonzero(parts.val.sources == source))
            key, title = ("rsum", "") if source is None else (f"{source}/rsum", f" of {source}")
            rsums = {other: figures[key] for other, figures in others.items()}
            notes = figure_notes(mine, pair, similarity, options, f"`{recipe.data.val_split}`{title}", rsums)
            model.notes = f"{notes}\n\n{model.notes}"
    model.save_pretrained(run / BEST)
    write_whole(run / DONE, json.dumps(found, indent=2) + "\n")
    return found
