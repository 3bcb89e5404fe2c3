"""`maxmatch data`: make, look at and convert data sets."""

import os
from pathlib import Path
from typing import Annotated

import typer

from maxmatch.cli.data_check import check
from maxmatch.cli.data_convert import convert

app = typer.Typer(help="Make, look at and convert data sets.", no_args_is_help=True)


app.command()(check)
app.command()(convert)


@app.command()
def scenes(
    folder: Annotated[Path, typer.Argument(help="Where to write; a run that was interrupted is taken up.")],
    images: Annotated[int, typer.Option(min=1, help="How many pictures.")] = 2_000,
    seed: Annotated[int, typer.Option(min=0, help="Another seed gives other scenes.")] = 0,
    size: Annotated[int, typer.Option(min=32, max=1024, help="Pixels on a side.")] = 96,
) -> None:
    """Generate pictures with five captions each, and what every caption means."""
    from tqdm import tqdm

    from maxmatch.data.scenes import generate, split_sizes

    with tqdm(total=images, desc="scenes", unit="picture") as bar:
        generate(folder, images, seed, size, workers=_processes(images), advance=bar.update)
    sizes = ", ".join(f"{name} {count:,}" for name, count in split_sizes(images).items())
    print(f"{folder}: {images:,} pictures with five captions each ({sizes})")


def _processes(images: int) -> int | None:
    """One for each core, where there is enough to do that starting them pays."""
    return os.cpu_count() if images >= 500 else None
