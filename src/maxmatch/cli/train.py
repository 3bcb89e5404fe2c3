"""`maxmatch train`: train a model from a recipe."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer


def train(
    recipe: Annotated[str | None, typer.Argument(help="The name of a recipe that ships, or a YAML file.")] = None,
    changes: Annotated[
        list[str] | None,
        typer.Argument(help="Changes to the recipe: train.lr=2e-4 data.path=FOLDER …", metavar="KEY=VALUE"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder. Default: runs/<name of the recipe>.")] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Resume the run exactly where it stopped; starts a new run if there is none."),
    ] = False,
    auto_recover: Annotated[
        bool,
        typer.Option(
            "--auto-recover", help="If training is stuck, NaN or collapsed, apply the suggested fix and continue."
        ),
    ] = False,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 … Default: a GPU if there is one.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be trained, with learning rates, and exit.")
    ] = False,
    list_them: Annotated[bool, typer.Option("--list", help="List the recipes that ship.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Train a model from a recipe.

    Writes the resolved recipe, metrics.jsonl and the checkpoints best/ and last/ to the run's folder. --resume
    continues an interrupted run exactly where it stopped. On several GPUs: torchrun --nproc-per-node 4 -m maxmatch
    train …

    Examples:

      maxmatch train --list

      maxmatch train scenes data.path=scenes

      maxmatch train f30k_region_bert data.path=f30k_precomp --out runs/first
    """
    from maxmatch.recipe.yaml_files import list_recipes, load_recipe

    if list_them or recipe is None:
        for name, description in list_recipes():
            print(f"{name:<34} {description}")
        if list_them:
            return
        raise typer.BadParameter("name one of these recipes, or a YAML file: maxmatch train scenes data.path=scenes")
    resolved = load_recipe(recipe, changes or [])
    if dry_run:
        from maxmatch.cli.common import say
        from maxmatch.training.prepare import describe

        print(describe(resolved, say=say))
        return
    from maxmatch.training.loop import train as run

    folder = out if out is not None else Path("runs") / resolved.name
    result = run(resolved, folder, resume=resume, auto_recover=auto_recover, device=device)
    if not result:  # a process that is not the first one
        return
    if as_json:
        print(json.dumps(result))
        return
    print(f"{folder / 'best'}: epoch {result['best_epoch'] + 1:.0f}", end="")
    if "rsum" in result:
        others = "".join(
            f" {name} RSUM {result[f'{name}_rsum']:.1f},"
            for name in resolved.similarities[1:]
            if f"{name}_rsum" in result  # a run that finished before all of them were reported has the first only
        )
        print(
            f", RSUM {result['rsum']:.1f}"
            f" (image to text R@1 {result['i2t_r1']:.1f}, text to image R@1 {result['t2i_r1']:.1f}),{others}"
            f" pairing stable in {result['stability']:.1%} of true pairs",
            end="",
        )
    print()
    sys.stdout.flush()
