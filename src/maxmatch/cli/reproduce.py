"""`maxmatch reproduce`: reproduce the paper's tables and figures."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from maxmatch.cli.common import say, usage_errors

if TYPE_CHECKING:
    from maxmatch.evaluation.result_tables import Style


def reproduce(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            help="Tables and figures: ablation, coco, tsne …, or the paper's labels (see --list). Or studies: referee, "
            "hypotheses, or a .yaml file. KEY=VALUE changes all recipes: train.epochs=5 …",
            metavar="TARGET|KEY=VALUE",
        ),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="Path of the data, or 'scenes' to generate it. region=PATH: for recipes with 'region' in their name. "
            "Repeatable."
        ),
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(help="For other data than the paper's: make the rows from this MaxMatch recipe."),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Folder for models and tables. Models that are finished there are not trained again.")
    ] = Path("runs/reproduce"),
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="Seeds per row; prints mean ± standard deviation. Default: 1, or as the study says."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A small version, to see that everything works.")] = False,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Models trained at the same time. Default: one per core, or 1 on a GPU. 0: only show finished models.",
        ),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 … Default: a GPU if there is one.")] = None,
    split: Annotated[
        str | None,
        typer.Option(help="The split to measure on. Default: the recipe's (test), else val; or as the study says."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="METHOD",
            help="For a study: tune and train this method alone; the tables show the others as they were left. "
            "Repeatable.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="For a study: only count its models, epochs and images.")
    ] = False,
    list_them: Annotated[bool, typer.Option("--list", help="List what can be reproduced.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print all numbers as JSON; several targets: one object by target.")
    ] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print tables as Markdown.")] = False,
    latex: Annotated[bool, typer.Option("--latex", help="Print tables as LaTeX.")] = False,
) -> None:
    """Reproduce tables and figures of the paper.

    Trains the models that are needed, measures them, and prints the paper's numbers next to ours.

    On the paper's data, it uses the recipes that ship. On other data, the same rows are made from one MaxMatch recipe
    (--base) by changing similarity, losses, head and set size. If it is interrupted, run the same command again to
    resume. A model that two targets need is trained once. Tables are also written to OUT as Markdown and JSON, with a
    plot of validation by epoch.

    A study (referee, hypotheses, or your own .yaml file) compares methods fairly. Each method gets the same number of
    tuning trials, and the best is chosen on training images that are set aside. It is then trained with several seeds
    and measured once. Several studies are trained side by side, and a model that two of them need is trained once.

    Examples:

      maxmatch reproduce --list

      maxmatch reproduce ablation --data scenes --quick

      maxmatch reproduce ablation --data coco_precomp --seeds 3

      maxmatch reproduce flickr30k --data region=f30k --data resnet=f30k.json

      maxmatch reproduce elements --data f8k.json --base flickr8k_maxmatch

      maxmatch reproduce ablation pvse --data f8k.json --base flickr8k_maxmatch

      maxmatch reproduce referee --data coco.json --dry-run

      maxmatch reproduce one_vector --data coco.json --only MIL

      maxmatch reproduce finalists dose one_vector --data coco.json --jobs 8
    """
    from maxmatch.reproduce import targets as known
    from maxmatch.reproduce.study import is_study, studies
    from maxmatch.reproduce.targets import target_called

    names = [one for one in targets or () if "=" not in one]
    if list_them or not names:
        for target in known.targets().values():
            print(f"{target.name:<18} {target.label:<16} {target.about}")
        for name, about in studies().items():
            print(f"{name:<18} {'study':<16} {about}")
        if list_them:
            return
        raise typer.BadParameter("name one of these: maxmatch reproduce ablation --data scenes --quick")
    if as_json + markdown + latex > 1:
        raise typer.BadParameter("--json, --markdown and --latex: choose one of them.")
    with usage_errors():
        for name in names:
            if not is_study(name):
                target_called(name, studies())
    if not data:
        raise typer.BadParameter("where is the data? --data PATH, or --data scenes to generate it.")
    from maxmatch import reproduce as reproducing
    from maxmatch.core.progress import bar
    from maxmatch.evaluation.result_tables import render

    with usage_errors():
        made, models, failed = reproducing.reproduce(
            names,
            data,
            base=base,
            out=out,
            seeds=seeds,
            quick=quick,
            split=split,
            changes=[one for one in targets or () if "=" in one],
            only=only or (),
            jobs=jobs,
            device=device,
            dry_run=dry_run,
            say=say,
            bar=bar,
        )
    if as_json:
        whole = {one.name: one.data for one in made}
        print(json.dumps(whole if len(made) > 1 else made[0].data, indent=2))
    else:
        style: Style = "markdown" if markdown else "latex" if latex else "text"
        shown = []
        for one in made:
            tables = [render(table, style) for table in (one.table, *one.further) if table is not None]
            shown += tables or ["\n".join(map(str, one.files))]
        print("\n\n".join(shown))
    for one in made:
        if one.table is not None and one.files:
            say(f"written to {', '.join(map(str, one.files))}")
    if jobs == 0:
        say(f"{failed} of {models} models are not trained yet")
    elif failed:
        say(f"{failed} of {models} models failed; the same command tries those again that it still needs")
        raise typer.Exit(1)
