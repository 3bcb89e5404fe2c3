"""What a recipe would do: who learns how fast and when, without data and without weights."""

import torch

from maxmatch.build import build_model
from maxmatch.data.scenes import split_sizes
from maxmatch.recipe import Recipe
from maxmatch.text import train_wordpiece_tokenizer, word_tokenizer
from maxmatch.training.optim import Group, course, parameter_groups

# Training images of the data sets we know, by how recipes for them are called.
_SIZES = {"coco": 113_287, "ablation/": 113_287, "f30k": 29_000, "flickr8k": 6_000}


def describe(recipe: Recipe, steps_per_epoch: int | None = None) -> str:
    """A table of parameter groups, and of their learning rates over the epochs."""
    steps = steps_per_epoch or _steps(recipe)
    groups = groups_of(recipe)
    towers = recipe.model.resolved().towers
    backbones = [name for name, tower in towers.items() if hasattr(tower.encoder, "backbone")]
    lines = [
        f"{recipe.name}: {recipe.description}",
        f"{recipe.train.epochs} epochs of {steps:,} steps, batches of {recipe.train.batch_size} images",
        f"similarity {recipe.model.similarity}; " + _objective(recipe),
        "",
        f"{'group':<20}{'parameters':>14}{'factor':>8}{'learning rate':>15}{'weight decay':>14}",
    ]
    for group in groups:
        count = sum(parameter.numel() for parameter in group.parameters.values())
        rate = recipe.train.lr * group.factor
        lines.append(f"{group.name:<20}{count:>14,}{group.factor:>8g}{rate:>15g}{recipe.train.weight_decay:>14g}")
    if any(tower.encoder.name == "gru" for tower in towers.values()):
        lines.append("The words of a Bi-GRU come with the data and are not counted.")
    lines += ["", f"{'epoch':<8}{'learning rate':>15}  of factor 1, at its first step"]
    for epoch in _telling(recipe):
        rate = recipe.train.lr * course(recipe.train, epoch * steps, steps)
        notes = [f"{name} frozen" for name in backbones if recipe.train.frozen(name, epoch)]
        if recipe.objective.keywords(epoch)["negatives"] != recipe.objective.negatives:
            notes.append("mean negatives")
        lines.append(f"{epoch + 1:<8}{rate:>15.3g}  {', '.join(notes)}".rstrip())
    return "\n".join(lines)


def groups_of(recipe: Recipe) -> list[Group]:
    """The parameter groups, with nothing in memory and nothing fetched."""
    config = recipe.model.resolved()
    tokenizers = {}
    for name, tower in config.towers.items():
        if tower.encoder.name == "gru":
            tokenizers[name] = word_tokenizer(["a"], 1)
        elif tower.encoder.name == "transformer":
            tokenizers[name] = train_wordpiece_tokenizer(["a"], 30, 64)
    with torch.device("meta"):
        model = build_model(config, tokenizers, pretrained=False)
    return parameter_groups(model, recipe.train)


def _steps(recipe: Recipe) -> int:
    """Steps in an epoch, by the size of a data set that is known by its name; else as on Flickr30k."""
    size = next((size for name, size in _SIZES.items() if recipe.name.startswith(name)), _SIZES["f30k"])
    if recipe.data.scenes is not None:
        size = split_sizes(recipe.data.scenes.images)[recipe.data.train_split]
    return -(-size // recipe.train.batch_size)


def _objective(recipe: Recipe) -> str:
    goal = recipe.objective
    weights = {
        "triplet": goal.triplet_weight,
        "GD": goal.gd_weight,
        "ISD": goal.isd_weight,
        "MMD": goal.mmd_weight,
        "Div": goal.div_weight,
        "CON": goal.con_weight,
    }
    said = " + ".join(f"{weight:g}·{name}" for name, weight in weights.items() if weight)
    return f"loss {said}; margins {goal.margin:g}, {goal.gd_margin:g}, {goal.isd_margin:g}"


def _telling(recipe: Recipe) -> list[int]:
    """The epochs at which something changes, and some between."""
    train = recipe.train
    marks = {0, 1, train.epochs // 4, train.epochs // 2, 3 * train.epochs // 4, train.epochs - 1}
    marks |= {until for until in train.freeze.values() if isinstance(until, int)}
    marks |= {recipe.objective.mean_negatives_epochs}
    if train.schedule.name == "step":
        marks |= set(range(0, train.epochs, train.schedule.every))
    return sorted(epoch for epoch in marks if 0 <= epoch < train.epochs)
