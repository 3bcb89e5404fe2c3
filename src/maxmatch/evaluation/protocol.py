"""From the sets of a split to results: the plain protocol, and COCO's of 1K and 5K; of one model or an ensemble."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Int
from torch import Tensor

from maxmatch.evaluation.collapse import log_circular_variance, slot_pairing
from maxmatch.evaluation.ranking import Part, ranks_of_parts
from maxmatch.evaluation.retrieval import figures
from maxmatch.evaluation.scores import IMAGE_TEXT, MAX_MEMORY, Member, Pair, Scores, scores_of
from maxmatch.types import Ranks

Protocol = Literal["auto", "plain", "coco"]
FOLDS, FOLD_SIZE = 5, 1000


@dataclass(frozen=True)
class Gallery:
    """One search: the ranks of all queries both ways, and the group that each query belongs to."""

    i2t: Ranks
    t2i: Ranks
    image_groups: Int[Tensor, " B"]
    text_groups: Int[Tensor, " C"]


@dataclass(frozen=True)
class Result:
    """What was measured. galleries: the searches that the figures of each prefix were taken from."""

    name: str
    similarity: str
    members: int
    figures: Mapping[str, float]
    galleries: Mapping[str, Sequence[Gallery]]

    @property
    def kind(self) -> str:
        """Whether it is the result of one model or of several."""
        return kind_of(self.members)


def kind_of(members: int) -> str:
    """ "single" or "ensemble of n"."""
    return "single" if members == 1 else f"ensemble of {members}"


def evaluate(
    members: Sequence[Member],
    *,
    name: str | None = None,
    pair: Pair = IMAGE_TEXT,
    protocol: Protocol = "auto",
    max_memory: int = MAX_MEMORY,
    scores: Scores | None = None,
    fold_size: int = FOLD_SIZE,
) -> Result:
    """The figures of one model, or of an ensemble of several.

    scores: those of the members, where they are there already (`scores_of`).
    """
    scores = scores_of(members, pair, max_memory) if scores is None else scores
    first = members[0].encoded
    images, texts = (first.groups[name].to(first.sets[name].device) for name in pair)  # where the scores are
    galleries = search(scores, images, texts, protocol, fold_size, first.notes.get("groups"))
    found = {f"{prefix}{key}": value for prefix, some in galleries.items() for key, value in averaged(some).items()}
    if len(members) == 1:
        found |= collapse(members[0], pair)
    similarity = " + ".join(dict.fromkeys(similarity_name(member) for member in members))
    return Result(name or " + ".join(member.name for member in members), similarity, len(members), found, galleries)


def similarity_name(member: Member) -> str:
    """The name of a member's similarity, with its options."""
    if isinstance(member.similarity, str):
        return member.similarity
    function = getattr(member.similarity, "func", member.similarity)
    options = getattr(member.similarity, "keywords", {})
    said = ", ".join(f"{option}={value:g}" for option, value in options.items())
    return getattr(function, "__name__", "own") + (f"({said})" if said else "")


def search(
    scores: Scores,
    image_groups: Int[Tensor, " B"],
    text_groups: Int[Tensor, " C"],
    protocol: Protocol = "auto",
    fold_size: int = FOLD_SIZE,
    size: int | None = None,
) -> dict[str, list[Gallery]]:
    """The ranks that a protocol asks for, by the prefix of its figures: "", or "coco_1k_" and "coco_5k_".

    size: how many groups the split has, where some may have been left out.

    COCO 1K: five folds of `fold_size` groups, as they follow each other; each fold is a search of its own.
    """
    whole = Part(slice(0, len(image_groups)), slice(0, len(text_groups)))
    if chosen(protocol, image_groups, fold_size, size) == "plain":
        named = {"": [whole]}
    else:
        named = {"coco_1k_": _folds(image_groups, text_groups, fold_size), "coco_5k_": [whole]}
    parts = [part for some in named.values() for part in some]
    ranks = iter(ranks_of_parts(scores.rows, scores.height, image_groups, text_groups, parts))
    return {
        prefix: [Gallery(*next(ranks), image_groups[part.rows], text_groups[part.columns]) for part in some]
        for prefix, some in named.items()
    }


def chosen(
    protocol: Protocol, image_groups: Int[Tensor, " B"], fold_size: int = FOLD_SIZE, size: int | None = None
) -> str:
    """The protocol that "auto" stands for: COCO's for its 5,000 images (some may have been left out), else plain."""
    size = int(image_groups.max()) + 1 if size is None else size
    if protocol == "coco" and size != FOLDS * fold_size:
        raise ValueError(
            f"--protocol coco: takes {FOLDS} folds of {fold_size:,} images, but this split has {size:,}. "
            "Take --protocol plain."
        )
    return protocol if protocol != "auto" else "coco" if size == FOLDS * fold_size else "plain"


def _folds(image_groups: Tensor, text_groups: Tensor, fold_size: int) -> list[Part]:
    ends = torch.arange(FOLDS + 1, device=image_groups.device) * fold_size
    bounds = []
    for name, groups in (("images", image_groups), ("captions", text_groups)):
        if bool((groups.diff() < 0).any()):
            raise ValueError(
                f"--protocol coco: the {name} are not in the order of their groups, so folds mean nothing."
            )
        bounds.append(torch.searchsorted(groups.contiguous(), ends).tolist())
    rows, columns = bounds
    for fold in range(FOLDS):
        if rows[fold] == rows[fold + 1]:
            raise ValueError(f"--protocol coco: all images of fold {fold + 1} were left out. Mend the data.")
    return [Part(slice(*rows[fold : fold + 2]), slice(*columns[fold : fold + 2])) for fold in range(FOLDS)]


def averaged(galleries: Sequence[Gallery]) -> dict[str, float]:
    """The mean of the galleries' figures, RSUM among them; ties are added up."""
    found = [figures(gallery.i2t, gallery.t2i) for gallery in galleries]
    return {key: sum(each[key] for each in found) / (1 if key.endswith("_ties") else len(found)) for key in found[0]}


def collapse(member: Member, pair: Pair = IMAGE_TEXT) -> dict[str, float]:
    """Whether the sets of a model collapse: log circular variance of both sides, slots used, pairing stability."""
    images, texts = (member.encoded.sets[name] for name in pair)
    name = similarity_name(member).split("(")[0]
    options = getattr(member.similarity, "keywords", {})
    pairing = slot_pairing(images, texts, member.encoded.partners(pair), name, options.get("k"))
    return {
        f"{pair[0]}_log_variance": log_circular_variance(images),
        f"{pair[1]}_log_variance": log_circular_variance(texts),
        "slots_used": pairing.used,
        "pairing_stability": pairing.stability,
    }
