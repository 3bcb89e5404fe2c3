"""`maxmatch evaluate`: how well models retrieve."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from maxmatch.cli.common import say
from maxmatch.cli.models_and_data import ModelSource, choose_split, data_of
from maxmatch.core.progress import bar

if TYPE_CHECKING:
    import numpy as np

    from maxmatch.data.dataset import Split
    from maxmatch.evaluation.encoding import EncodedSplit
    from maxmatch.evaluation.metrics import EvaluatedModel
    from maxmatch.evaluation.result_tables import Style
    from maxmatch.evaluation.runs import PaperRow, ResultLine


# The sets that models make of a split: read from files, or encoded from the data with a bar.


@dataclass(frozen=True)
class EncodeOptions:
    """What is to be encoded, and how. data: where it is (None: a run knows); said: what else was said about it, by the
    keys of a recipe's `data`.
    """

    data: str | None = None
    said: dict[str, Any] | None = None
    split: str | None = None
    device: str | None = None
    batch_size: int = 64
    workers: int | None = None


def encode_sources(
    sources: Sequence[ModelSource], wanted: EncodeOptions
) -> "tuple[list[EncodedSplit], dict[str, Any]]":
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
    from maxmatch.data.load import load_data

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


def _encode(source: ModelSource, split: "Split", about: dict[str, Any], wanted: EncodeOptions) -> "EncodedSplit":
    """What a model makes of a split. What cannot be read is said and left out."""
    from maxmatch.core.devices import chosen_device
    from maxmatch.evaluation.encoding import encode_items
    from maxmatch.model.encoder import SetEncoder

    model = SetEncoder.from_pretrained(source.path, chosen_device(wanted.device))
    if len(model.towers) < 2:
        raise ValueError(f"{source.name}: has the tower {', '.join(model.towers)} alone; retrieval is between two.")
    try:
        with bar(f"{source.name}: images", split.size) as advance:
            found = encode_items(
                model,
                split,
                batch_size=wanted.batch_size,
                workers=wanted.workers,
                report=lambda item: say(f"{item} Left out, with what belongs to it."),
                advance=advance,
            )
    except ValueError as error:
        raise ValueError(f"{source.name} cannot encode {about['data']} ({about['split']}): {error}") from error
    similarity = {"similarity": model.similarity_name, "similarity_options": model.similarity_options}
    return replace(found, notes={**found.notes, **about, "model": source.name, **similarity})


# The words of `maxmatch evaluate --words`, and which captions of what was measured have any of them.


def asked_words(words: str | None, source: str | None) -> frozenset[str]:
    """The words that were given, or those that a recipe holds out of training; none where neither was given."""
    if words is not None and source is not None:
        raise typer.BadParameter("choose one of --words and --words-from.")
    if source is None and words is None:
        return frozenset()
    from maxmatch.data.load import checked_words

    if source is None:
        assert words is not None
        named = [word for part in words.split(",") if (word := part.strip())]
        option = "--words"
    else:
        from maxmatch.recipe.yaml_files import load_recipe

        named, option = list(load_recipe(source).data.hold_out_words), "--words-from"
    if not named:
        raise typer.BadParameter(f"{option}: no words. Expected some, as in --words snow,beach, or a recipe with them.")
    return checked_words(named, option)


def captions_with(
    words: frozenset[str],
    sources: Sequence[ModelSource],
    data: str | None,
    said: dict[str, Any],
    encoded: "EncodedSplit",
) -> "np.ndarray":
    """Which captions of the encoded split have any of the words, in its order."""
    import numpy as np

    from maxmatch.data.dataset import TEXT
    from maxmatch.data.load import load_data, words_met

    if all(source.kind == "sets" for source in sources):
        raise typer.BadParameter(
            "--words looks at captions, which files of sets do not hold. Give a model and the data."
        )
    if TEXT not in encoded.ids:
        raise typer.BadParameter(f"--words looks at captions, but the models have {', '.join(encoded.ids)}.")
    known = data_of(sources, data).model_copy(update=said)
    texts = load_data(known, lambda line: None).split(encoded.notes["split"])[TEXT]
    places = {str(name): place for place, name in enumerate(texts.ids)}
    captions = [texts.values[places[name]] for name in encoded.ids[TEXT]]
    return np.array([len(own) > 0 for own in words_met(captions, words)], np.bool_)


def evaluate(
    paths: Annotated[
        list[str],
        typer.Argument(
            help="Checkpoints, runs (their best epoch is taken) or files of --save-sets; then the data, in any format. "
            "A run knows its own data.",
            metavar="MODEL… [DATA]",
        ),
    ],
    split: Annotated[str | None, typer.Option(help="Default: test, or val where there is none.")] = None,
    similarity: Annotated[
        list[str] | None,
        typer.Option(help="maxmatch, top_k, max, … or all; may be given again. Default: the one of training."),
    ] = None,
    ensemble: Annotated[bool, typer.Option("--ensemble", help="Also all models together: their mean score.")] = False,
    protocol: Annotated[
        Literal["auto", "plain", "coco"],
        typer.Option(help="coco: 1K (five folds) and 5K; auto: that, where there are 5,000 images."),
    ] = "auto",
    bootstrap: Annotated[
        int, typer.Option(min=0, help="Drawings of images for intervals and tests; 0 for none.")
    ] = 1000,
    paper: Annotated[
        str | None, typer.Option(help="A table of the paper to print beside: table:mscoco, tab:PVSE, …; or none.")
    ] = None,
    features: Annotated[Path | None, typer.Option(help="A store of features to use in place of pictures.")] = None,
    format: Annotated[str | None, typer.Option(help="The data's format, if not the one recognised.")] = None,
    images: Annotated[Path | None, typer.Option(help="The folder of the pictures, where the data do not say.")] = None,
    captions_per_image: Annotated[int | None, typer.Option(min=1, help="Only the first so many.")] = None,
    words: Annotated[
        str | None, typer.Option(help="Also measure captions with any of these words apart: snow,beach,…")
    ] = None,
    words_from: Annotated[
        str | None, typer.Option(help="The same with the words that a recipe holds out of training.", metavar="RECIPE")
    ] = None,
    save_sets: Annotated[
        Path | None, typer.Option(help="Keep what the model made of the split: a .safetensors file.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 … Default: a GPU where there is one.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Images at once.")] = 64,
    workers: Annotated[int | None, typer.Option(min=0, help="Processes that read pictures.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all figures as JSON, unrounded.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the tables as Markdown.")] = False,
    latex: Annotated[bool, typer.Option("--latex", help="Print the tables as LaTeX (booktabs).")] = False,
) -> None:
    """Measure how well models retrieve. R@1, R@5, R@10 both ways and RSUM, ranks and ties, collapse of the sets.

    Ties count against the model. Intervals are by bootstrap over the images; every line is compared with the first one
    by a paired test. On COCO's test split, read from Karpathy's JSON, CxC and ECCV Caption are measured too.

    Examples:

      maxmatch evaluate runs/first

      maxmatch evaluate runs/first/best flickr8k --similarity maxmatch --similarity max

      maxmatch evaluate runs/a runs/b f30k_precomp --ensemble --latex

      maxmatch evaluate runs/a coco --save-sets a.safetensors

      maxmatch evaluate a.safetensors b.safetensors --ensemble --json

      maxmatch evaluate runs/held_out runs/small --words-from flickr8k_held_out
    """
    if sum((as_json, markdown, latex)) > 1:
        raise typer.BadParameter("choose one of --json, --markdown and --latex.")
    if save_sets is not None and save_sets.suffix != ".safetensors":
        raise typer.BadParameter(f"--save-sets: expected a name that ends in .safetensors, got {save_sets.name}.")
    names = _similarities(similarity or [])
    _check_label(paper)

    wanted_words = asked_words(words, words_from)
    from maxmatch.cli.common import say
    from maxmatch.cli.models_and_data import divide
    from maxmatch.evaluation.encoding import save_encoded

    sources, data = divide(paths, say)
    if save_sets is not None and len(sources) > 1:
        raise typer.BadParameter("--save-sets keeps the sets of one model: call it for each.")
    if ensemble and len(sources) < 2:
        raise typer.BadParameter("--ensemble takes two models or more.")
    options = {"features": features, "format": format, "images": images, "captions_per_image": captions_per_image}
    said = {
        key: str(value) if isinstance(value, Path) else value for key, value in options.items() if value is not None
    }
    encoded, about = encode_sources(sources, EncodeOptions(data, said, split, device, batch_size, workers))
    if save_sets is not None:
        save_encoded(encoded[0], save_sets.expanduser())
        say(f"{save_sets}: the sets are kept there")
    lines, notes = _measured(sources, encoded, names, ensemble, protocol, bootstrap)
    rows, columns = _pair(encoded[0])
    about |= {"images": len(encoded[0].groups[rows]), "captions": len(encoded[0].groups[columns])}
    theirs, note = _paper(paper, sources, about, lines)
    notes += note
    by_word = None
    if wanted_words:
        from maxmatch.evaluation.runs import by_words, words_data

        by_word = by_words(lines, captions_with(wanted_words, sources, data, said, encoded[0]), bootstrap)
    if as_json:
        from maxmatch.evaluation.runs import as_data

        if by_word is not None:
            about["by_words"] = words_data(by_word, sorted(wanted_words))
        print(json.dumps(as_data(lines, theirs, **about, notes=notes), indent=2, ensure_ascii=False))
        return
    where = f"{about['data']}, {about['split']}: " if "data" in about else ""
    notes = [f"{where}{about['images']:,} images, {about['captions']:,} captions", *notes]
    style: Style = "markdown" if markdown else "latex" if latex else "text"
    print(_shown(lines, theirs, notes, style))
    if by_word is not None:
        from maxmatch.evaluation.result_tables import render
        from maxmatch.evaluation.runs import words_table

        print(f"\n{render(words_table(by_word), style)}")


def _check_label(label: str | None) -> None:
    from maxmatch.evaluation.paper import tables

    if label not in (None, "none", *tables()):
        raise typer.BadParameter(f"--paper: expected one of {', '.join(tables())}, or none; got {label!r}.")


def _similarities(asked: list[str]) -> list[str]:
    """The names, each once; all for "all"."""
    from maxmatch.matching import SIMILARITIES

    names = []
    for name in asked:
        name = {"max": "mil"}.get(name, name)
        if name != "all" and name not in SIMILARITIES:
            known = ", ".join([*SIMILARITIES, "max", "all"])
            raise typer.BadParameter(f"--similarity: expected one of {known}, got {name!r}.")
        names += list(SIMILARITIES) if name == "all" else [name]
    return list(dict.fromkeys(names))


def _pair(encoded: "EncodedSplit") -> tuple[str, str]:
    """The modalities that retrieval is between: images and texts, or else the first two."""
    from maxmatch.evaluation.metrics import IMAGE_TEXT

    first, second, *_ = IMAGE_TEXT if set(IMAGE_TEXT) <= encoded.sets.keys() else encoded.sets
    return first, second


def _measured(
    sources: "Sequence[ModelSource]",
    encoded: "Sequence[EncodedSplit]",
    names: list[str],
    ensemble: bool,
    protocol: Literal["auto", "plain", "coco"],
    draws: int,
) -> "tuple[list[ResultLine], list[str]]":
    """A line for each model and similarity, one for each ensemble; and what is to be said of them."""
    from maxmatch.evaluation.metrics import EvaluatedModel
    from maxmatch.evaluation.runs import measure
    from maxmatch.matching.similarity import with_options

    def members(name: str | None) -> "list[EvaluatedModel]":
        found = []
        for source, sets in zip(sources, encoded, strict=True):
            trained = sets.notes.get("similarity", "maxmatch")
            options = sets.notes.get("similarity_options", {}) if name in (None, trained) else {}
            found.append(EvaluatedModel(source.name, sets, with_options(name or trained, options)))
        return found

    asked: list[str | None] = [*names] or [None]
    teams = [members(name) for name in asked]
    singles = [[member] for team in teams for member in team]
    return measure([*singles, *(teams if ensemble else [])], _pair(encoded[0]), protocol, draws)


def _paper(
    label: str | None, sources: "Sequence[ModelSource]", about: "dict[str, Any]", lines: "Sequence[ResultLine]"
) -> "tuple[list[PaperRow], list[str]]":
    """The paper's rows beside ours, and what is to be said of them."""
    from maxmatch.evaluation.runs import PaperRow, paper_rows

    recipes = [source.recipe.name for source in sources if source.recipe is not None]
    split = about.get("split")
    found = paper_rows(label, [*recipes, str(about.get("data", ""))], about["images"], split)
    if found is None:
        return [], []
    named, rows = found
    measured = [f"{prefix}rsum" for prefix in lines[0].result.galleries]
    shown = [row for row in rows if any(name in row.figures for name in measured)]
    if not shown:
        return [], [f"paper: {named} has no figures of this protocol"]
    theirs = [PaperRow(row.method, row.group, row.ensemble, row.figures) for row in shown]
    elsewhere = "" if split is None or split.startswith("test") else f"; on the test split, ours on {split}"
    return theirs, [f"paper: {named}, its RSUM the sum of its cells{elsewhere}"]


def _shown(lines: "Sequence[ResultLine]", theirs: "Sequence[PaperRow]", notes: list[str], style: "Style") -> str:
    """The tables, notes below the last."""
    from maxmatch.evaluation.result_tables import render
    from maxmatch.evaluation.runs import extended_table, rank_table, recall_table

    tables = [recall_table(lines, theirs), rank_table(lines), extended_table(lines)]
    kept = [table for table in tables if table is not None]
    return "\n\n".join(render(table, style) for table in [*kept[:-1], replace(kept[-1], notes=notes)])
