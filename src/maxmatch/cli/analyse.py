"""`maxmatch analyse`: show what the slots of a model have learned, as numbers, figures and an HTML report."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from maxmatch.evaluation.analysis import Analysis


def analyse(
    model: Annotated[str, typer.Argument(help="The folder of a checkpoint or of a run (its best epoch is used).")],
    data: Annotated[str | None, typer.Argument(help="A data set in any format. Default: the data of the run.")] = None,
    split: Annotated[str | None, typer.Option(help="The split to use. Default: test, or the recipe's choice.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="A folder for the report. Default: analysis/ in the run, or ./analysis-NAME.")
    ] = None,
    examples: Annotated[
        int, typer.Option(min=1, max=50, help="Queries and failures to show per direction, with images.")
    ] = 5,
    umap: Annotated[bool, typer.Option("--umap", help="Deprecated: plot the vectors with UMAP.")] = False,
    similarity: Annotated[
        str | None,
        typer.Option(help="maxmatch, smooth_chamfer, mil, sinkhorn … Default: the one used in training."),
    ] = None,
    format: Annotated[str | None, typer.Option(help="The format of the data, if not detected correctly.")] = None,
    images: Annotated[str | None, typer.Option(help="The image folder, if the data does not name it.")] = None,
    features: Annotated[str | None, typer.Option(help="Features written by `maxmatch data features`.")] = None,
    trust_features: Annotated[
        bool, typer.Option("--trust-features", help="Use the store even if another backbone made it.")
    ] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Images per batch, with their captions.")] = 64,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 … Default: a GPU if there is one.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed for the choice of examples and for t-SNE.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print all numbers as JSON.")] = False,
) -> None:
    """Show what each vector of a model's sets has learned.

    Do the vectors of a set differ? Which slots are matched? What does each slot find, and where does it look?

    Writes report.html (a single file for any browser), the figures as PDF and PNG, and analysis.json with all numbers.
    An earlier report is replaced.

    Examples:

      maxmatch analyse runs/demo/scenes-0

      maxmatch analyse runs/f30k/best f30k_precomp --split test --out report

      maxmatch analyse runs/demo/scenes-0 --split val --examples 10
    """
    from maxmatch.cli.common import say
    from maxmatch.core.progress import bar
    from maxmatch.evaluation.runs import analyse_run

    options = {"format": format, "images": images, "features": features, "trust_features": trust_features or None}
    found, page = analyse_run(
        model,
        data,
        out,
        split=split,
        similarity=similarity,
        examples=examples,
        projection="umap" if umap else "tsne",
        seed=seed,
        options={name: value for name, value in options.items() if value is not None},
        device=device,
        batch_size=batch_size,
        say=say,
        bar=bar,
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
                "one vector per set" if means[name] is None else f"mean cosine within a set {means[name]:.2f}",
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
