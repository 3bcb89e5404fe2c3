"""All figures of a trained model that the paper's tables speak of, from one encoding of the split."""

from pathlib import Path
from typing import Any, NamedTuple

from maxmatch.data.items import Dataset, Split
from maxmatch.data.loading import load_data
from maxmatch.devices import chosen_device
from maxmatch.evaluation.elements import element_analysis
from maxmatch.evaluation.encoding import encode_items
from maxmatch.evaluation.protocol import Gallery, evaluate
from maxmatch.evaluation.retrieval import chance
from maxmatch.evaluation.scores import Member
from maxmatch.model import SetEncoder
from maxmatch.recipe import Recipe
from maxmatch.reproduce.jobs import Job
from maxmatch.training.run_folder import RunFolder

_WHOLE_COCO = "testall"  # of precomp folders, where "test" is a fifth of it


class Measured(NamedTuple):
    """What came out: the result, for JSON, and the search among the whole split that its RSUM is of."""

    found: dict[str, Any]
    search: Gallery


def measure(job: Job, device: str | None = None) -> Measured:
    """The figures of a job whose models are trained, the split they were measured on and how many images it has.

    Beside those of retrieval: `image_slot_1_rsum` … with one slot kept (tab:5), and RSUM by further similarities of the
    recipe, `top_k_rsum`. Of an ensemble only those of retrieval.
    """
    recipe = job.recipes[0]
    pair = recipe.objective.pairs[0]
    dataset = load_data(recipe.data, print, recipe.model.resolved().towers)
    name = split_for(dataset, recipe, job.split)
    split = dataset.split(name)
    members = [_member(*one, split, device) for one in zip(job.recipes, job.members, strict=True)]
    result = evaluate(members, pair=pair, protocol=job.protocol)
    found = dict(result.figures)
    first = members[0].encoded
    found |= {"chance_rsum": chance(*(first.groups[side].cpu() for side in pair))["rsum"]}
    if len(members) == 1:
        kept = element_analysis(first, pair, members[0].similarity, found).kept
        found |= {
            f"{side}_slot_{slot}_rsum": figures["rsum"]
            for side in pair
            for slot, figures in enumerate(kept[side], start=1)
        }
        for similarity in recipe.similarities[1:]:
            other = evaluate([Member(similarity, first, similarity)], pair=pair, protocol="plain")
            found[f"{similarity}_rsum"] = other.figures["rsum"]
    (search,) = result.galleries["coco_5k_" if "coco_5k_" in result.galleries else ""]
    return Measured({"split": name, "images": len(first.groups[pair[0]]), "figures": found}, search)


def split_for(dataset: Dataset, recipe: Recipe, asked: str | None = None) -> str:
    """The split to measure on: the one that was asked for, the recipe's where the data has it, or the validation's."""
    if asked is not None:
        dataset.split(asked)
        return asked
    wanted = (_WHOLE_COCO, recipe.evaluate.split, recipe.data.val_split)
    return next((name for name in wanted if name in dataset.splits), recipe.data.val_split)


def _member(recipe: Recipe, folder: Path, split: Split, device: str | None) -> Member:
    model = SetEncoder.from_pretrained(RunFolder(folder).best, chosen_device(device))
    encoded = encode_items(model, split, batch_size=recipe.train.batch_size, workers=recipe.train.workers)
    return Member(folder.name, encoded, model.similarity_like(recipe.similarities[0]))
