"""The models of one evaluation on one split: found by name, encoded once, each with its similarity."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from maxmatch.core.array_checks import UsageError
from maxmatch.core.progress import Bar
from maxmatch.data.dataset import TEXT
from maxmatch.evaluation.encoding import (
    EncodedSplit,
    LoadedData,
    ModelSource,
    Say,
    encode_model,
    find_models,
    joined_files,
    load_encoded,
)
from maxmatch.evaluation.metrics import EvaluatedModel
from maxmatch.evaluation.other_models import (
    ItemList,
    encode_sentence_model,
    items_of,
    read_groups,
    scores_member,
    similarity_of,
    vectors_of,
    without_unread,
)
from maxmatch.matching import SIMILARITIES
from maxmatch.matching.similarity import with_options
from maxmatch.recipe.schema import Data

ModelName = str | Path | tuple[str | Path, str | Path]
"""A model by its name or path; a pair of .npy files is one of vectors: images, texts."""


def sources_of(models: str | Path | Sequence[ModelName], say: Say) -> list[ModelSource]:
    """Models by their names; a pair of files is one of vectors."""
    given = [models] if isinstance(models, str | Path) else models
    named = iter(find_models([one for one in given if not isinstance(one, tuple)], say))
    return [_vector_files(*one) if isinstance(one, tuple) else next(named) for one in given]


def _vector_files(images: str | Path, texts: str | Path) -> ModelSource:
    files = [Path(one).expanduser() for one in (images, texts)]
    return ModelSource(" + ".join(file.stem for file in files), joined_files(*files), "vectors")


@dataclass(frozen=True)
class Candidate:
    """A model on a split: what it made of it, or its scores."""

    source: ModelSource
    encoded: EncodedSplit
    scores: EvaluatedModel | None = None


def candidates_of(
    sources: Sequence[ModelSource],
    loaded: LoadedData | None,
    groups: str | Path | None,
    *,
    device: str | None,
    batch_size: int,
    workers: int | None,
    identify: bool,
    say: Say,
    bar: Bar,
) -> list[Candidate]:
    """Each model on the split, encoded once. Of vectors and scores, items that a model could not read are left out."""
    items = None

    def given_items() -> ItemList:
        nonlocal items
        if items is None:
            items = items_of(loaded) if loaded is not None else read_groups(str(groups))
        return items

    made: dict[str, Candidate] = {}
    for source in sources:
        if source.path in made:
            continue
        if source.kind in ("vectors", "scores"):
            scores = scores_member(source, given_items()) if source.kind == "scores" else None
            encoded = vectors_of(source, given_items()) if scores is None else scores.encoded
            made[source.path] = Candidate(source, encoded, scores)
            continue
        if loaded is None:
            raise UsageError(f"groups: {source.name} encodes items, which a groups file does not have. Give the data.")
        if source.kind == "sentence-transformers":
            encoded = encode_sentence_model(
                source, loaded, device=device, batch_size=batch_size, identify=identify, say=say, bar=bar
            )
        else:
            encoded = encode_model(
                source, loaded, device=device, batch_size=batch_size, workers=workers, identify=identify, say=say,
                bar=bar,
            )  # fmt: skip
        made[source.path] = Candidate(source, encoded)
    ours = [one.encoded for one in made.values() if one.source.kind not in ("vectors", "scores")]
    if ours and items is not None and len(ours[0].groups[TEXT]) < len(items.groups[TEXT]):
        made = {path: _readable(one, ours[0]) for path, one in made.items()}
    return [replace(made[source.path], source=source) for source in sources]


def _readable(one: Candidate, other: EncodedSplit) -> Candidate:
    """Without the items that another model could not read."""
    if one.source.kind not in ("vectors", "scores"):
        return one
    whole = one.scores or EvaluatedModel(one.source.name, one.encoded)
    part = without_unread(whole, other.groups[TEXT])
    return replace(one, encoded=part.encoded, scores=None if one.scores is None else part)


_CURES = {
    "cosine": " Single vectors are compared by it if you leave this out.",
    "dot": " Vectors of files are scaled to unit length. For inner products give the scores: --scores FILE.",
}


def similarity_names(asked: Sequence[str]) -> list[str]:
    """The names of similarities, each once; "max" is "mil", and "all" all of them that compare sets of any size."""
    names = []
    for name in asked:
        name = {"max": "mil"}.get(name, name)
        if name != "all" and name not in SIMILARITIES:
            known = ", ".join([*SIMILARITIES, "max", "all"])
            raise UsageError(f"similarity: expected one of {known}, got {name!r}.{_CURES.get(name, '')}")
        names += [one for one, entry in SIMILARITIES.items() if entry.set_size is None] if name == "all" else [name]
    return list(dict.fromkeys(names))


def members(candidates: Sequence[Candidate], similarity: str | None = None) -> list[EvaluatedModel]:
    """Models with their sets and a similarity, each by default with its own and that one's options."""
    found = []
    for source, sets, scores in ((one.source, one.encoded, one.scores) for one in candidates):
        if scores is not None:
            found.append(replace(scores, name=source.name))
            continue
        trained = sets.notes.get("similarity", "maxmatch")
        if trained not in SIMILARITIES or source.kind in ("vectors", "sentence-transformers"):
            found.append(EvaluatedModel(source.name, sets, similarity_of(sets, similarity)))
            continue
        options = sets.notes.get("similarity_options", {}) if similarity in (None, trained) else {}
        if similarity not in (None, trained) and SIMILARITIES[trained].set_size is not None:
            raise UsageError(f"similarity: {source.name} makes sets that {trained} alone compares, got {similarity!r}.")
        found.append(EvaluatedModel(source.name, sets, with_options(similarity or trained, options)))
    return found


def further(candidates: Sequence[Candidate]) -> list[list[EvaluatedModel]]:
    """Each model with the similarities that its recipe lists beside the one of its training."""
    return [
        members([one], name)
        for one in candidates
        for name in one.encoded.notes.get("similarities", ())
        if name != one.encoded.notes["similarity"]
    ]


def stored_candidates(
    sources: Sequence[ModelSource],
    data: str | Path | Data | None,
    split: str | None,
    options: Mapping[str, Any],
    captions: Collection[str],
    say: Say,
) -> list[Candidate]:
    """The sets of files alone: nothing can be asked for that takes the data."""
    candidates = [Candidate(source, load_encoded(Path(source.path))) for source in sources]
    known = candidates[0].encoded.notes.get("split", split)
    if split not in (None, known):
        raise ValueError(f"split {split}: these sets are of {known!r}. Encode that split first.")
    if options:
        raise ValueError(
            f"{next(iter(options))}: changes how data is read, but files of sets are encoded already. Leave it out, "
            "or give the model and the data."
        )
    if captions:
        raise UsageError("words: need captions, which files of sets do not hold. Give a model and the data.")
    if data is not None:
        say(f"{data}: not read; files of sets need no data")
    return candidates
