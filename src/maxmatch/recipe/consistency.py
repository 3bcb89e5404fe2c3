"""What one section of a recipe asks of another: refused before anything is read or trained."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from maxmatch.model.config import Gaussian, Residual, TowerConfig, refusal

if TYPE_CHECKING:
    from maxmatch.recipe.schema import Recipe

GROUPS = ("backbone", "set_module", "encoder")


def check_parts(recipe: "Recipe") -> None:
    """Refuse a recipe whose sections do not fit each other."""
    towers = recipe.model.resolved().towers
    for pair in recipe.objective.pairs:
        if pair[0] == pair[1] or not set(pair) <= set(towers):
            raise refusal(f"expected two of the towers {', '.join(towers)}, got {list(pair)}", "objective", "pairs")
    for option, groups in (("lr_factors", recipe.train.lr_factors), ("freeze", recipe.train.freeze)):
        for key in groups:
            misfit = _misfit(key, towers)
            if misfit:
                raise refusal(misfit, "train", option, key)
    if bool(recipe.train.phrases) != bool(recipe.objective.phrase_weight):
        given = ("train", "phrases") if recipe.train.phrases else ("objective", "phrase_weight")
        raise refusal("of no use unless both train.phrases and objective.phrase_weight are above 0", *given)
    _check_grown(recipe, towers)
    _check_gaussians(recipe, any(isinstance(tower.head, Gaussian) for tower in towers.values()))
    kept = list(filter(recipe.train.keeps, towers))
    if len(kept) == len(towers):
        raise refusal("all towers are frozen: there is nothing to train", "train", "freeze")
    if kept and recipe.model.start is None:
        text = "a whole tower is only kept where training starts from a model (model.start)"
        raise refusal(text, "train", "freeze", kept[0])
    texts = {name for name, tower in towers.items() if tower.reads == "text"}
    searched = [
        pair for pair in recipe.objective.pairs if len(texts & set(pair)) == 1 and not texts & set(pair) <= set(kept)
    ]
    if recipe.train.phrases and not searched:
        text = "no pair has a text tower that learns, and one of something else to be found by phrases"
        raise refusal(text, "train", "phrases")
    if recipe.model.start is not None:
        return  # it brings its own words
    transformer = any(tower.encoder.name == "transformer" for tower in towers.values())
    if transformer and recipe.data.tokenizer == "words":
        text = "a transformer does not read whole words: use 'pretrained', its own, or 'wordpiece'"
        raise refusal(text, "data", "tokenizer")
    if recipe.data.tokenizer == "pretrained" and not transformer:
        raise refusal("'pretrained' is a transformer's; use 'words' for a Bi-GRU", "data", "tokenizer")


def _check_grown(recipe: "Recipe", towers: Mapping[str, TowerConfig]) -> None:
    """Refuse what would train more, or less, of a model to start from than the recipe says."""
    grown = [name for name, tower in towers.items() if tower.grown]
    if any(isinstance(tower.head, Residual) for tower in towers.values()) and recipe.model.start is None:
        raise refusal("the head 'residual' takes a model to start from (model.start)", "model", "config")
    for name in recipe.train.unfreeze:
        if name not in grown:
            text = "is trained whole: see train.freeze" if name in towers else f"is none of {', '.join(towers)}"
            raise refusal(f"the tower {name!r} {text}", "train", "unfreeze", name)
    lora = recipe.train.lora
    for name in () if lora is None else lora.towers or towers:
        if name not in grown:
            text = f"adapters belong to a model that training starts from, but the tower {name!r} is trained whole"
            raise refusal(text if name in towers else f"no tower {name!r}", "train", "lora", "towers")
        if name in recipe.train.unfreeze:
            raise refusal("a tower takes adapters (train.lora) or learns itself, not both", "train", "unfreeze", name)
    for key in recipe.train.freeze:
        tower, _, group = key.rpartition(".")
        if group == "backbone" and (tower in grown or (not tower and grown)):
            raise refusal("stays frozen in any case, but for what train.unfreeze names", "train", "freeze", key)
    if recipe.data.features is not None and "image" in grown and recipe.train.opens("image"):
        text = "stored features are those of the model before training, but train.unfreeze or train.lora changes it"
        raise refusal(text, "data", "features")
    learns = [
        name
        for name, tower in towers.items()
        if not recipe.train.keeps(name)
        and (name not in grown or isinstance(tower.head, Residual) or recipe.train.opens(name))
    ]
    if grown and not learns:
        text = "nothing learns: add sets (model.head=residual), or say what learns (train.unfreeze, train.lora)"
        raise refusal(text, "model", "head")


def _check_gaussians(recipe: "Recipe", gaussians: bool) -> None:
    """Refuse a loss or a similarity for sets that a model with Gaussian heads does not make, or the reverse."""
    of_slots = ("gd_weight", "isd_weight", "mmd_weight", "div_weight", "caption_matching_weight")
    weights = of_slots if gaussians else ("bce_weight", "kl_weight")
    for key in weights:
        if getattr(recipe.objective, key):
            what = "a Gaussian has no slots to keep apart: set it to 0" if gaussians else "takes Gaussian heads"
            raise refusal(what, "objective", key)
    if recipe.objective.plain_bce_epochs and not recipe.objective.bce_weight:
        raise refusal("of no use without objective.bce_weight", "objective", "plain_bce_epochs")
    if recipe.objective.kl_weight and any(map(recipe.train.keeps, recipe.model.resolved().towers)):
        raise refusal(
            "a frozen tower is encoded once, to sets without variances: set it to 0", "objective", "kl_weight"
        )
    for name in recipe.similarities:
        if (name == "csd") != gaussians:
            text = f"{name} does not compare what the model makes; it was given {recipe.model.similarity}"
            raise refusal(text, "evaluate", "similarities")


def _misfit(key: str, towers: Mapping[str, TowerConfig]) -> str | None:
    """Why a group of parameters (`backbone`, `image.backbone`, …) is none of the model's."""
    if key == "match":
        gaussians = any(isinstance(part.head, Gaussian) for part in towers.values())
        return None if gaussians else "the model learns no scale and shift: only Gaussians (model.options.head) do"
    tower, _, group = key.rpartition(".") if "." in key or key in GROUPS else (key, ".", "")
    if tower and tower not in towers:
        return f"the model has the towers {', '.join(towers)}, not {tower!r}"
    meant = [towers[tower]] if tower else list(towers.values())
    if group == "backbone" and not any(part.grown or hasattr(part.encoder, "backbone") for part in meant):
        return f"{f'the tower {tower!r}' if tower else 'the model'} has no backbone"
    if group == "encoder" and not any(part.reads == "text" for part in meant):
        return f"{f'the tower {tower!r}' if tower else 'the model'} reads no text; its projection is in set_module"
    return None
