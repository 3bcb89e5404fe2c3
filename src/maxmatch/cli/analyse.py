"""`maxmatch analyse`: what the slots of a model have learned, as numbers, figures and a page."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from maxmatch.cli.models_and_data import ModelSource
    from maxmatch.evaluation.analysis import Analysis


def analyse(
    model: Annotated[str, typer.Argument(help="A checkpoint's folder, or a run's: then its best one.")],
    data: Annotated[
        str | None, typer.Argument(help="A data set, in any format. Default: what the run was trained on.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="Which split. Default: test, or the recipe's choice.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="A folder for the report. Default: analysis/ in the run, or analysis-NAME here.")
    ] = None,
    examples: Annotated[
        int, typer.Option(min=1, max=50, help="How many queries and failures are shown each way, with pictures.")
    ] = 5,
    umap: Annotated[bool, typer.Option("--umap", help="Draw the vectors by UMAP rather than t-SNE.")] = False,
    similarity: Annotated[
        str | None, typer.Option(help="maxmatch, smooth_chamfer, mil … Default: what the model was trained with.")
    ] = None,
    format: Annotated[str | None, typer.Option(help="The data's format, if not the one recognised.")] = None,
    images: Annotated[str | None, typer.Option(help="The folder of the pictures, where the data do not say.")] = None,
    features: Annotated[str | None, typer.Option(help="Features that `maxmatch data features` made before.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Images, with their captions, encoded at once.")] = 64,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 … Default: a GPU where there is one.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the examples that are drawn, and of t-SNE.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print all numbers as JSON.")] = False,
) -> None:
    """Look into a model: what the vectors of its sets have learned.

    Do the vectors of a set differ, which slots meet, what does each of them find and look at?

    The folder gets report.html, which opens in any browser and needs nothing else, the figures as PDF and PNG, and
    analysis.json with all numbers. A report that is there already is replaced.

    Examples:

      maxmatch analyse runs/demo/scenes-0

      maxmatch analyse runs/f30k/best f30k_precomp --split test --out f30k-analysis

      maxmatch analyse runs/demo/scenes-0 --split val --examples 10 --umap
    """
    from maxmatch.cli.common import say
    from maxmatch.cli.models_and_data import choose_split, data_of, divide
    from maxmatch.core.devices import chosen_device
    from maxmatch.core.progress import bar
    from maxmatch.data.load import load_data
    from maxmatch.evaluation.report.make_report import ReportOptions, check_installed, make_report, refuse_foreign
    from maxmatch.matching import SIMILARITIES
    from maxmatch.model.encoder import SetEncoder

    projection = "umap" if umap else "tsne"
    place = chosen_device(device)
    check_installed(projection)
    similarity = {"max": "mil"}.get(similarity or "", similarity)
    if similarity is not None and similarity not in SIMILARITIES:
        raise ValueError(f"--similarity: expected one of {', '.join(SIMILARITIES)}, got {similarity!r}.")
    sources, path = divide([model] if data is None else [model, data], say)
    source = sources[0]
    if len(sources) > 1 or source.kind != "checkpoint":
        raise ValueError("MODEL: expected one checkpoint or run, then DATA: a report is about one model and its data.")
    folder = (out or _folder(source)).expanduser()
    refuse_foreign(folder)
    said = data_of(sources, path)
    given = {"format": format, "images": images, "features": features}
    said = said.model_copy(update={name: value for name, value in given.items() if value is not None})
    towers = () if source.recipe is None else source.recipe.model.resolved().towers
    dataset = load_data(said, say, towers)
    usual = "test" if source.recipe is None else source.recipe.evaluate.split
    name = choose_split(dataset, split, usual, say)
    # What a backbone made of pictures before cannot be looked at: the pictures themselves can.
    bare = said.model_copy(update={"features": None})
    visible = dataset if said.features is None else load_data(bare, lambda line: None)
    part = dataset.split(name)
    say(f"{source.path} on {part.size:,} images of {dataset.path}, split {name!r}")
    with bar("encoding", part.size) as advance:
        found, page = make_report(
            SetEncoder.from_pretrained(source.path, place),
            part,
            visible.split(name),
            folder,
            ReportOptions(similarity, examples, projection, seed, batch_size),
            title=source.name,
            facts={"model": source.path, "data": str(dataset.path), "split": name},
            run=Path(source.path).parent,
            say=say,
            advance=advance,
        )
    print(json.dumps({**found.to_json(), "report": str(page)}) if as_json else f"{summary(found)}\n\nopen {page}")


def summary(found: "Analysis") -> str:
    """The most important numbers, for a terminal."""
    first, second = found.pair
    means = {name: found.within[name].mean for name in found.pair}
    lines = [
        ("RSUM", f"{found.retrieval['rsum']:.1f}", f"chance {found.chance['rsum']:.1f}"),
        (f"R@1 {first} to {second}", f"{found.retrieval['i2t_r1']:.2f}", f"chance {found.chance['i2t_r1']:.2f}"),
        (f"R@1 {second} to {first}", f"{found.retrieval['t2i_r1']:.2f}", f"chance {found.chance['t2i_r1']:.2f}"),
        *(
            (
                f"log circular variance, {name}s",
                f"{found.log_variance[name]:.2f}",
                "one vector a set" if means[name] is None else f"mean cosine within a set {means[name]:.2f}",
            )
            for name in found.pair
        ),
        *(
            (
                f"RSUM of the best {name} slot alone",
                f"{max(found.elements.rsum(name)):.1f}",
                f"of the worst {min(found.elements.rsum(name)):.1f}",
            )
            for name in found.pair
        ),
        ("pairing stability", f"{found.pairing.stability:.1%}", f"slots used {found.pairing.used:.0%}"),
        *(
            (
                f"specialisation of {one.modality} slots",
                f"{one.specialisation:.3f}",
                f"beyond chance: {'yes' if one.interval[0] > 0 else 'no'}",
            )
            for one in found.facets or ()
        ),
    ]
    return "\n".join(f"{name:<36}{value:>9}   {note}" for name, value, note in lines)


def _folder(source: "ModelSource") -> Path:
    """Where a report goes that was given no place: into the run, or here."""
    if source.recipe is not None:
        return Path(source.path).parent / "analysis"
    return Path(f"analysis-{Path(source.path).resolve().name}")
