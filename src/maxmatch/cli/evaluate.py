"""`maxmatch evaluate`: how well models retrieve."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from maxmatch.cli.sources import Source
    from maxmatch.data.items import Split
    from maxmatch.evaluation.encoding import EncodedSplit
    from maxmatch.evaluation.scores import Member
    from maxmatch.evaluation.summary import Line


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
    """Measure how well models retrieve: R@1, R@5, R@10 both ways and RSUM, ranks and ties, collapse of the sets.

    Ties count against the model. Intervals are by bootstrap over the images; every line is compared with the first one
    by a paired test. On COCO's test split, read from Karpathy's JSON, CxC and ECCV Caption are measured too.

    Examples:

      maxmatch evaluate runs/first

      maxmatch evaluate runs/first/best flickr8k --similarity maxmatch --similarity max

      maxmatch evaluate runs/a runs/b f30k_precomp --ensemble --latex

      maxmatch evaluate runs/a coco --save-sets a.safetensors

      maxmatch evaluate a.safetensors b.safetensors --ensemble --json
    """
    if sum((as_json, markdown, latex)) > 1:
        raise typer.BadParameter("choose one of --json, --markdown and --latex.")
    from maxmatch.cli.progress import say
    from maxmatch.cli.sources import choose_split, data_of, divide
    from maxmatch.evaluation.encoding import load_encoded, save_encoded
    from maxmatch.evaluation.summary import as_data, extended_table, rank_table, recall_table
    from maxmatch.evaluation.tables import render

    names = _similarities(similarity or [])
    sources, path = divide(paths, say)
    if save_sets is not None and len(sources) > 1:
        raise typer.BadParameter("--save-sets keeps one model; call it for each.")
    if save_sets is not None and save_sets.suffix != ".safetensors":
        raise typer.BadParameter(f"--save-sets: expected a name that ends in .safetensors, got {save_sets.name}.")
    encoded: dict[str, EncodedSplit] = {
        source.path: load_encoded(Path(source.path)) for source in sources if source.kind == "sets"
    }
    about: dict[str, object] = {}
    if any(source.kind == "checkpoint" for source in sources):
        from maxmatch.data.loading import load_data

        said = {
            "features": None if features is None else str(features),
            "format": format,
            "images": None if images is None else str(images),
            "captions_per_image": captions_per_image,
        }
        data = data_of(sources, path)
        data = data.model_copy(update={key: value for key, value in said.items() if value is not None})
        dataset = load_data(data, say)
        recipes = [source.recipe for source in sources if source.recipe is not None]
        usual = recipes[0].evaluate.split if path is None and recipes else "test"
        chosen = choose_split(dataset, split, usual, say)
        about = {"data": str(dataset.path), "split": chosen}
        for source in sources:
            if source.kind == "checkpoint":
                encoded[source.path] = _encoded(
                    source, dataset.split(chosen), f"{dataset.path} ({chosen})", about, device, batch_size, workers
                )
    if save_sets is not None:
        save_encoded(encoded[sources[0].path], save_sets)
        say(f"{save_sets}: the sets are kept there")
    lines, notes = _measured(sources, encoded, names, ensemble, protocol, bootstrap)
    first = encoded[sources[0].path]
    pair = _pair(first)
    about |= {"images": len(first.groups[pair[0]]), "captions": len(first.groups[pair[1]]), "notes": notes}
    theirs = _paper(paper, sources, about, say)
    if as_json:
        print(json.dumps(as_data(lines, theirs, **about), indent=2, ensure_ascii=False))
        return
    where = f"{about['data']}, {about['split']}: " if "data" in about else ""
    notes = [f"{where}{about['images']:,} images, {about['captions']:,} captions", *notes]
    style: Literal["markdown", "latex", "text"] = "markdown" if markdown else "latex" if latex else "text"
    shown = [recall_table(lines, theirs), rank_table(lines), extended_table(lines)]
    tables = [table for table in shown if table is not None]
    tables[-1] = replace(tables[-1], notes=notes)
    print("\n\n".join(render(table, style) for table in tables))


def _similarities(asked: list[str]) -> list[str]:
    """The names, each once; all for "all"."""
    from maxmatch.matching.similarity import SIMILARITIES

    names = []
    for name in asked:
        name = {"max": "mil"}.get(name, name)
        if name != "all" and name not in SIMILARITIES:
            known = ", ".join([*SIMILARITIES, "max", "all"])
            raise typer.BadParameter(f"--similarity: expected one of {known}, got {name!r}.")
        names += list(SIMILARITIES) if name == "all" else [name]
    return list(dict.fromkeys(names))


def _encoded(
    source: "Source",
    split: "Split",
    where: str,
    about: dict[str, object],
    device: str | None,
    batch_size: int,
    workers: int | None,
) -> "EncodedSplit":
    """What a model makes of a split. What cannot be read is said and left out."""
    import torch

    from maxmatch.cli.progress import bar, say
    from maxmatch.evaluation.encoding import encode_items
    from maxmatch.model import SetEncoder

    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    model = SetEncoder.from_pretrained(source.path, place)
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
                batch_size=batch_size,
                workers=workers,
                report=lambda item: say(f"{item.modality} {item.id}: {item.reason} Left out, with what belongs to it."),
                progress=progress,
            )
    except ValueError as error:
        raise ValueError(f"{source.name} cannot encode {where}: {error}") from error
    if not all(len(sets) for sets in found.sets.values()):
        raise ValueError(f"{where}: not one image could be read. Check it with `maxmatch data check`.")
    similarity = {"similarity": model.similarity_name, "similarity_options": model.similarity_options}
    return replace(found, notes={**about, "model": source.name, **similarity})


def _pair(encoded: "EncodedSplit") -> tuple[str, str]:
    first, second, *_ = encoded.sets
    return first, second


def _measured(
    sources: "list[Source]",
    encoded: "dict[str, EncodedSplit]",
    names: list[str],
    ensemble: bool,
    protocol: Literal["auto", "plain", "coco"],
    draws: int,
) -> "tuple[list[Line], list[str]]":
    """A line for each model and similarity, one for each ensemble; and what is to be said of them."""
    from maxmatch.evaluation.measuring import measure
    from maxmatch.evaluation.scores import Member
    from maxmatch.matching.similarity import with_options

    def member(source: "Source", name: str | None) -> "Member":
        sets = encoded[source.path]
        trained = sets.notes.get("similarity", "maxmatch")
        options = sets.notes.get("similarity_options", {}) if name in (None, trained) else {}
        return Member(source.name, sets, with_options(name or trained, options))

    teams = [[member(source, name)] for name in names or [None] for source in sources]
    if ensemble:
        if len(sources) < 2:
            raise typer.BadParameter("--ensemble takes two models or more.")
        teams += [[member(source, name) for source in sources] for name in names or [None]]
    return measure(teams, _pair(encoded[sources[0].path]), protocol, draws)
