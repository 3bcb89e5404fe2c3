"""The sets that models make of a split: read from files, or encoded from the data with a bar."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from maxmatch.cli.progress import bar, say
from maxmatch.cli.sources import Source, choose_split, data_of

if TYPE_CHECKING:
    from maxmatch.data.items import Split
    from maxmatch.evaluation.encoding import EncodedSplit


@dataclass(frozen=True)
class Wanted:
    """What is to be encoded, and how. data: where it is (None: a run knows); said: what else was said about it, by the
    keys of a recipe's `data`.
    """

    data: str | None = None
    said: dict[str, Any] | None = None
    split: str | None = None
    device: str | None = None
    batch_size: int = 64
    workers: int | None = None


def encode_sources(sources: Sequence[Source], wanted: Wanted) -> "tuple[list[EncodedSplit], dict[str, Any]]":
    """What each model made of the split, each item encoded once; and which data and split it is, where known."""
    from maxmatch.evaluation.encoding import load_encoded

    found = {source.path: load_encoded(Path(source.path)) for source in sources if source.kind == "sets"}
    about: dict[str, Any] = {}
    for sets in list(found.values())[:1]:
        about = {key: sets.notes[key] for key in ("data", "split") if key in sets.notes}
    if all(source.kind == "sets" for source in sources):
        if wanted.split not in (None, about.get("split", wanted.split)):
            raise ValueError(f"--split {wanted.split}: these sets are of {about['split']!r}. Encode that split first.")
        if wanted.said:
            raise ValueError(
                f"--{next(iter(wanted.said)).replace('_', '-')}: changes how data is read, and files of sets are "
                "encoded already. Leave it out, or give the model and the data."
            )
        if wanted.data is not None:
            say(f"{wanted.data}: not read; files of sets need no data")
        return [found[source.path] for source in sources], about
    from maxmatch.data.loading import load_data

    data = data_of(sources, wanted.data)
    recipes = [source.recipe for source in sources if source.recipe is not None]
    towers = {name for recipe in recipes for name in recipe.model.resolved().towers}
    dataset = load_data(data.model_copy(update=wanted.said or {}), say, towers)
    usual = recipes[0].evaluate.split if wanted.data is None else "test"
    about = {"data": str(dataset.path), "split": choose_split(dataset, wanted.split, usual, say)}
    for source in sources:
        if source.path not in found:
            found[source.path] = _encode(source, dataset.split(about["split"]), about, wanted)
    return [found[source.path] for source in sources], about


def _encode(source: Source, split: "Split", about: dict[str, Any], wanted: Wanted) -> "EncodedSplit":
    """What a model makes of a split. What cannot be read is said and left out."""
    from maxmatch.devices import chosen_device
    from maxmatch.evaluation.encoding import encode_items
    from maxmatch.model import SetEncoder

    model = SetEncoder.from_pretrained(source.path, chosen_device(wanted.device))
    if len(model.towers) < 2:
        raise ValueError(f"{source.name}: has the tower {', '.join(model.towers)} alone; retrieval is between two.")
    try:
        with bar(f"{source.name}: images", split.size) as advance:
            before = 0

            def progress(done: int, total: int) -> None:
                nonlocal before
                advance(done - before)
                before = done

            found = encode_items(
                model,
                split,
                batch_size=wanted.batch_size,
                workers=wanted.workers,
                report=lambda item: say(f"{item.modality} {item.id}: {item.reason} Left out, with what belongs to it."),
                progress=progress,
            )
    except ValueError as error:
        raise ValueError(f"{source.name} cannot encode {about['data']} ({about['split']}): {error}") from error
    similarity = {"similarity": model.similarity_name, "similarity_options": model.similarity_options}
    return replace(found, notes={**found.notes, **about, "model": source.name, **similarity})
