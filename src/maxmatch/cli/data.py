"""`maxmatch data`: make, look at and convert data sets."""

import os
from pathlib import Path
from typing import Annotated

import typer

from maxmatch.cli.data_check import check
from maxmatch.cli.data_convert import convert
from maxmatch.cli.data_features import features

_HELP = """Make, look at and convert data sets.

Known are Karpathy's JSON, precomp folders, BUTD files, tables (CSV, TSV,
JSON lines, Parquet), image folders, webdataset tars, Hugging Face data sets,
plain folders of pictures, and stores of features.

Look before training: what is there, what is missing, what to do about it.

  maxmatch data check f30k/dataset_flickr30k.json --images f30k/images

Change the format. What was interrupted goes on when the same command runs again.

  maxmatch data convert flickr8k f8k_shards --to webdataset

Run a frozen backbone once, and train on what it made.

  maxmatch data features flickr8k f8k_grid --model efficientnet_lite0_bigru

  maxmatch train flickr8k_maxmatch data.path=flickr8k data.features=f8k_grid

Data to try things on.

  maxmatch data scenes scenes --images 2000
"""

app = typer.Typer(help=_HELP, short_help="Make, look at and convert data sets.", no_args_is_help=True)


app.command()(check)
app.command()(convert)
app.command()(features)


@app.command()
def scenes(
    folder: Annotated[Path, typer.Argument(help="Where to write; a run that was interrupted is taken up.")],
    images: Annotated[int, typer.Option(min=1, help="How many pictures.")] = 2_000,
    seed: Annotated[int, typer.Option(min=0, help="Another seed gives other scenes.")] = 0,
    size: Annotated[int, typer.Option(min=32, max=1024, help="Pixels on a side.")] = 96,
) -> None:
    """Generate pictures with five captions each, and what each means.

    Shapes in colours, sizes and textures, beside, above and inside one another: data to try everything on, the same for
    the same seed.

    Examples:

      maxmatch data scenes scenes

      maxmatch data scenes scenes --images 6000 --size 128 --seed 1
    """
    from maxmatch.cli.progress import bar
    from maxmatch.data.scenes import generate, split_sizes

    with bar("scenes", images) as advance:
        generate(folder, images, seed, size, workers=_processes(images), advance=advance)
    sizes = ", ".join(f"{name} {count:,}" for name, count in split_sizes(images).items())
    print(f"{folder}: {images:,} pictures with five captions each ({sizes})")


def _processes(images: int) -> int | None:
    """One for each core up to eight, where there is enough to do that starting them pays."""
    return min(os.cpu_count() or 1, 8) if images >= 500 else None
