"""`maxmatch reproduce`: the paper's tables and figures, made again."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from maxmatch.evaluation.result_tables import Style
    from maxmatch.reproduce.jobs import Job, Options, TablePlan
    from maxmatch.reproduce.sweep import Outcome
    from maxmatch.reproduce.targets import Target


def reproduce(
    said: Annotated[
        list[str] | None,
        typer.Argument(
            help="Tables and figures: ablation, coco, tsne …, or the paper's labels; see --list. With a '=', a change "
            "to all recipes: train.epochs=5 …",
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
    seeds: Annotated[int, typer.Option(min=1, help="Models a row: mean ± deviation over so many seeds.")] = 1,
    quick: Annotated[bool, typer.Option("--quick", help="A small version: shows that all works, in minutes.")] = False,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Models at the same time. Default: one for each core; on a GPU 1.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 … Default: a GPU where there is one.")] = None,
    split: Annotated[str | None, typer.Option(help="To measure on. Default: the recipe's (test), else val.")] = None,
    list_them: Annotated[bool, typer.Option("--list", help="List what can be reproduced.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print all figures as JSON; of several, by target.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print tables as Markdown.")] = False,
    latex: Annotated[bool, typer.Option("--latex", help="Print tables as LaTeX.")] = False,
) -> None:
    """Make tables and figures of the paper again, ours beside them.

    Train what they need, measure, and print the paper's figures with ours beside them.

    On the paper's data by the recipes that ship; on other data the same rows are made from one recipe of MaxMatch
    (--base) by changing similarity, losses, head and set size. What was interrupted goes on when the same command runs
    again. Several targets are one sweep; a model that two need is trained once. Tables are also written to OUT, as
    Markdown and JSON, with a picture of the models' validation by epoch.

    Examples:

      maxmatch reproduce --list

      maxmatch reproduce ablation --data scenes --quick

      maxmatch reproduce ablation --data coco_precomp --seeds 3

      maxmatch reproduce flickr30k --data region=f30k_precomp --data resnet=dataset_flickr30k.json --seeds 2

      maxmatch reproduce elements --data dataset_flickr8k.json --base flickr8k_maxmatch

      maxmatch reproduce ablation pvse sizes --data dataset_flickr8k.json --base flickr8k_maxmatch --seeds 3
    """
    from maxmatch.reproduce.targets import target_called, targets

    names = [one for one in said or () if "=" not in one]
    if list_them or not names:
        for known in targets().values():
            print(f"{known.name:<18} {known.label:<16} {known.about}")
        if list_them:
            return
        raise typer.BadParameter("name one of these: maxmatch reproduce ablation --data scenes --quick")
    if as_json + markdown + latex > 1:
        raise typer.BadParameter("--json, --markdown and --latex: choose one of them.")
    try:
        wanted = {target.name: target for target in map(target_called, names)}
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if not data:
        raise typer.BadParameter("say where the data is: --data PATH, or --data scenes to generate it.")
    from maxmatch.cli.common import cores, say
    from maxmatch.core.devices import chosen_device
    from maxmatch.reproduce.jobs import Options

    changes = [one for one in said or () if "=" in one]
    plans = _planned(list(wanted.values()), Options(data, out, base, seeds, quick, split, changes))
    place = str(chosen_device(device))
    outcomes = _swept(plans, jobs or (1 if place.startswith("cuda") else cores()), place)
    style: Style = "json" if as_json else "markdown" if markdown else "latex" if latex else "text"
    _show(plans, outcomes, place, style)
    failed = sum(outcome.result is None for outcome in outcomes.values())
    if failed:
        say(f"{failed} of {len(outcomes)} models failed; the same command tries them again")
        raise typer.Exit(1)


def _planned(wanted: "Sequence[Target]", options: "Options") -> "list[TablePlan]":
    """A plan for each target, in the order they were asked for. What is wrong is said before anything is trained."""
    from maxmatch.evaluation.report.make_report import check_plots
    from maxmatch.reproduce.jobs import plan

    if any(target.kind == "figure" for target in wanted):
        check_plots()
    plans = [plan(target, options) for target in wanted]
    for planned in plans:
        if not planned.jobs:
            reasons = "; ".join(dict.fromkeys(line.why_none for line in planned.lines if line.why_none))
            raise typer.BadParameter(f"{planned.target.name}: nothing to train: {reasons}.")
    return plans


def _show(plans: "Sequence[TablePlan]", outcomes: "dict[Path, Outcome]", device: str, style: "Style") -> None:
    """Write every table and draw every figure; print them, or where they are."""
    from maxmatch.cli.common import say
    from maxmatch.evaluation.result_tables import render
    from maxmatch.reproduce.compare import write

    whole = {}
    for place, planned in enumerate(plans):
        target = planned.target
        if style != "json" and place:
            print()
        if target.kind == "figure":
            from maxmatch.reproduce.paper_figures import draw

            files = [str(path) for path in draw(planned, outcomes, device)]
            whole[target.name] = {"target": target.name, "label": target.label, "files": files}
            if style != "json":
                print(*files, sep="\n")
        else:
            written = write(planned, outcomes)
            whole[target.name] = written.whole
            if style != "json":
                print(render(written.table, style))
            say(f"written to {', '.join(map(str, written.files))}")
    if style == "json":
        print(json.dumps(whole if len(plans) > 1 else whole[plans[0].target.name], indent=2))


def _swept(plans: "Sequence[TablePlan]", at_once: int, device: str) -> "dict[Path, Outcome]":
    from maxmatch.cli.common import say
    from maxmatch.core.progress import bar
    from maxmatch.reproduce.compare import make_data, one_line
    from maxmatch.reproduce.jobs import jobs_of
    from maxmatch.reproduce.sweep import sweep

    jobs = jobs_of(plans)
    make_data(jobs, say)
    with bar("models", len(jobs)) as advance:

        def report(job: "Job", outcome: "Outcome") -> None:
            say(one_line(job, outcome))
            advance(1)

        try:
            return sweep(jobs, at_once, device, report)
        except KeyboardInterrupt:
            say(f"{plans[0].options.out}: interrupted; all models at work are saved. Go on with the same command.")
            raise
