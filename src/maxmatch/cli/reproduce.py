"""`maxmatch reproduce`: the paper's tables and figures, made again."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from maxmatch.evaluation.tables import Style
    from maxmatch.reproduce.jobs import Job
    from maxmatch.reproduce.planning import Plan
    from maxmatch.reproduce.sweep import Outcome


def reproduce(
    target: Annotated[
        str | None, typer.Argument(help="A table or figure: ablation, coco, tsne …, or the paper's label. See --list.")
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Argument(help="Changes to all recipes: train.epochs=5 …", metavar="[KEY=VALUE]…")
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
    seeds: Annotated[int, typer.Option(min=1, help="Models a row: mean ± deviation over so many seeds.")] = 1,
    quick: Annotated[bool, typer.Option("--quick", help="A small version: shows that all works, in minutes.")] = False,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Models at the same time. Default: one for each core; on a GPU 1.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 … Default: a GPU where there is one.")] = None,
    split: Annotated[str | None, typer.Option(help="To measure on. Default: the recipe's (test), else val.")] = None,
    list_them: Annotated[bool, typer.Option("--list", help="List what can be reproduced.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print all figures as JSON.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown.")] = False,
    latex: Annotated[bool, typer.Option("--latex", help="Print the table as LaTeX.")] = False,
) -> None:
    """Make a table or figure of the paper again, ours beside it.

    Train what it needs, measure, and print the paper's figures with ours beside them.

    On the paper's data by the recipes that ship; on other data the same rows are made from one recipe of MaxMatch
    (--base) by changing similarity, losses, head and set size. What was interrupted goes on when the same command runs
    again. A model that two tables need is trained once. The table is also written to OUT, as Markdown and JSON.

    Examples:

      maxmatch reproduce --list

      maxmatch reproduce ablation --data scenes --quick

      maxmatch reproduce ablation --data coco_precomp --seeds 3

      maxmatch reproduce flickr30k --data region=f30k_precomp --data resnet=dataset_flickr30k.json --seeds 2

      maxmatch reproduce elements --data dataset_flickr8k.json --base flickr8k_maxmatch
    """
    from maxmatch.reproduce.targets import target_called, targets

    if list_them or target is None:
        for known in targets().values():
            print(f"{known.name:<18} {known.label:<16} {known.about}")
        raise typer.Exit(0 if list_them else 2)
    try:
        wanted = target_called(target)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if not data:
        raise typer.BadParameter("say where the data is: --data PATH, or --data scenes to generate it.")
    if as_json + markdown + latex > 1:
        raise typer.BadParameter("--json, --markdown and --latex: choose one of them.")
    from maxmatch.cli.progress import cores, say
    from maxmatch.devices import chosen_device
    from maxmatch.reproduce.planning import Options, plan
    from maxmatch.reproduce.results import write

    planned = plan(wanted, Options(data, out, base, seeds, quick, split, changes or ()))
    if not planned.jobs:
        reasons = "; ".join(dict.fromkeys(line.why_none for line in planned.lines if line.why_none))
        raise typer.BadParameter(f"nothing to train: {reasons}.")
    place = str(chosen_device(device))
    outcomes = _swept(planned, jobs or (1 if place.startswith("cuda") else cores()), place)
    if wanted.kind == "figure":
        from maxmatch.reproduce.figures import draw

        for path in draw(planned, outcomes, place):
            print(path)
    else:
        style: Style = "json" if as_json else "markdown" if markdown else "latex" if latex else "text"
        print(write(planned, outcomes, style))
        say(f"written to {out / wanted.name}.md and .json")
    failed = sum(outcome.result is None for outcome in outcomes.values())
    if failed:
        say(f"{failed} of {len(outcomes)} models failed; the same command tries them again")
        raise typer.Exit(1)


def _swept(planned: "Plan", at_once: int, device: str) -> "dict[Path, Outcome]":
    from maxmatch.cli.progress import bar, say
    from maxmatch.reproduce.compare import one_line
    from maxmatch.reproduce.results import make_data
    from maxmatch.reproduce.sweep import sweep

    jobs = planned.jobs
    make_data(jobs, say)
    with bar("models", len(jobs)) as advance:

        def report(job: "Job", outcome: "Outcome") -> None:
            say(one_line(job, outcome))
            advance(1)

        try:
            return sweep(jobs, at_once, device, report)
        except KeyboardInterrupt:
            say(f"{planned.options.out}: interrupted; all models at work are saved. Go on with the same command.")
            raise
