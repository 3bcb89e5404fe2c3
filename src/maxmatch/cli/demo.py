"""`maxmatch demo`: the method on generated scenes, in a few minutes on a laptop's CPU."""

import json
from pathlib import Path
from typing import Annotated

import typer

_COLUMNS = (  # figure, heading, width, format
    ("i2t_r1", "R@1", 7, ".2f"),
    ("i2t_r5", "R@5", 7, ".1f"),
    ("i2t_r10", "R@10", 7, ".1f"),
    ("t2i_r1", "R@1", 10, ".2f"),
    ("t2i_r5", "R@5", 7, ".1f"),
    ("t2i_r10", "R@10", 7, ".1f"),
    ("rsum", "RSUM", 9, ".1f"),
    ("image_log_variance", "image", 8, ".2f"),
    ("text_log_variance", "text", 7, ".2f"),
    ("slots_used", "used", 9, ".0%"),
    ("pairing_stability", "stable", 9, ".0%"),
)
_METHODS = {"MaxMatch": "scenes", "SetDiv": "scenes_setdiv", "MIL": "scenes_mil"}


def demo(
    out: Annotated[
        Path, typer.Option(help="Where scenes and runs go; what is finished there is not done again.")
    ] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(min=0, help="Of weights and batches.")] = 0,
    changes: Annotated[
        list[str] | None, typer.Argument(help="Changes to all three recipes: train.epochs=5 …", metavar="[KEY=VALUE]…")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Generate pictures of shapes with captions, train three small models, and compare them.

    MaxMatch against the same model trained as SetDiv (smooth-Chamfer similarity) and as MIL (one best pair): how well
    captions find pictures and pictures captions, and whether the vectors of a set stay apart.
    """
    from maxmatch.recipe_files import load_recipe
    from maxmatch.training.loop import train

    results = {}
    for method, name in _METHODS.items():
        said = [f"seed={seed}", f"data.path={json.dumps(str(out / 'scenes'))}", *(changes or [])]
        typer.echo(f"{method}: maxmatch train {name} {' '.join(said)}", err=True)
        results[method] = train(load_recipe(name, said), out / f"{name}-{seed}", resume=True, show_progress=True)
    print(json.dumps(results, indent=2) if as_json else table(results))


def table(results: dict[str, dict[str, float]]) -> str:
    """The methods side by side, against chance."""
    first = next(iter(results.values()))
    chance = {name.removeprefix("chance_"): value for name, value in first.items() if name.startswith("chance_")}
    lines = [
        " " * 10 + f"{'image to text':^21}{'text to image':^24}{'':8}{'log circular':>16}{'slots':>9}{'pairing':>9}",
        f"{'':10}" + "".join(f"{label:>{width}}" for _, label, width, _ in _COLUMNS),
    ]
    for method, found in {"chance": chance, **results}.items():
        cells = (f"{found[name]:>{width}{form}}" if name in found else "" for name, _, width, form in _COLUMNS)
        lines.append(f"{method:<10}" + "".join(cells))
    for method, found in results.items():
        times = [found[name] / chance[name] for name in ("i2t_r1", "t2i_r1")]
        lines.append(
            f"{method}: R@1 is {times[0]:.0f} × chance from image to text, {times[1]:.0f} × from text to image"
        )
    return "\n".join(lines)
