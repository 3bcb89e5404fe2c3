"""`maxmatch reproduce`: the paper's tables and figures, made again."""

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
            help="Tables and figures: ablation, coco, tsne …, or the paper's labels; see --list. Or a study: referee, "
            "hypotheses, or a .yaml file. With a '=', a change to all recipes: train.epochs=5 …",
            metavar="TARGET|KEY=VALUE",
        ),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="The data, or 'scenes' to generate it. Several: region=PATH, by a word of the recipes' names."
        ),
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(help="Make the rows from this recipe of MaxMatch, for data that is not the paper's."),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Where models and tables go; what is finished there is not done again.")
    ] = Path("runs/reproduce"),
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1, help="Models per row: mean ± deviation over this many seeds. Default: 1; of a study, its own."
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A small version: shows that everything works.")] = False,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Models trained at the same time. Default: one per core; on a GPU 1. 0: none, show what is done.",
        ),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 … Default: a GPU if there is one.")] = None,
    split: Annotated[str | None, typer.Option(help="To measure on. Default: the recipe's (test), else val.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Of a study: only count its models, epochs and images.")
    ] = False,
    list_them: Annotated[bool, typer.Option("--list", help="List what can be reproduced.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print all figures as JSON; of several, by target.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print tables as Markdown.")] = False,
    latex: Annotated[bool, typer.Option("--latex", help="Print tables as LaTeX.")] = False,
) -> None:
    """Reproduce tables and figures of the paper.

    Train what they need, measure it, and print the paper's figures with ours.

    On the paper's data by the recipes that ship; on other data the same rows are made from one recipe of MaxMatch
    (--base) by changing similarity, losses, head and set size. An interrupted command resumes when it is run again.
    Several targets are one sweep; a model that two need is trained once. Tables are also written to OUT, as Markdown
    and JSON, with a picture of the models' validation by epoch.

    A study (referee, hypotheses, or a .yaml file of your own) compares methods fairly: each is tuned with the same
    number of trials on training images that are set aside, then trained by several seeds and measured once.

    Examples:

      maxmatch reproduce --list

      maxmatch reproduce ablation --data scenes --quick

      maxmatch reproduce ablation --data coco_precomp --seeds 3

      maxmatch reproduce flickr30k --data region=f30k --data resnet=f30k.json

      maxmatch reproduce elements --data f8k.json --base flickr8k_maxmatch

      maxmatch reproduce ablation pvse --data f8k.json --base flickr8k_maxmatch

      maxmatch reproduce referee --data coco.json --dry-run
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
                target_called(name)
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
        say(f"{failed} of {models} models failed; the same command tries them again")
        raise typer.Exit(1)
