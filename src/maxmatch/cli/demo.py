"""`maxmatch demo`: the method on generated scenes, in a few minutes on a laptop's CPU."""

import json
from pathlib import Path
from typing import Annotated

import typer

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
    names = ("i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1", "t2i_r5", "t2i_r10", "rsum")
    first = next(iter(results.values()))
    rows = {"chance": {name: first[f"chance_{name}"] for name in names}, **results}
    lines = [
        "               image to text         text to image                log circular variance   slots   pairing",
        "              R@1   R@5  R@10      R@1   R@5  R@10     RSUM          image    text      used    stable",
    ]
    for method, found in rows.items():
        line = f"{method:<10}" + "".join(
            f"{found[name]:{'9.1f' if name in ('rsum', 't2i_r1') else '6.1f'}}" for name in names
        ).replace("", "", 1)
        if "image_log_variance" in found:
            line += f"{found['image_log_variance']:>15.2f}{found['text_log_variance']:>8.2f}"
            line += f"{found['slots_used']:>10.0%}{found['pairing_stability']:>10.0%}"
        lines.append(line)
    return "\n".join(lines)
