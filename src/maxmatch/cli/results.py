"""`maxmatch results`: show the results of many evaluations as tables."""

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from maxmatch.cli.common import say, usage_errors


def results(
    file: Annotated[Path, typer.Argument(help="A file written by `maxmatch evaluate --results FILE`.")] = Path(
        "results.jsonl"
    ),
    compare: Annotated[
        list[int] | None,
        typer.Option(help="Compare rows by their numbers in the table: --compare 1 --compare 3."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all results as JSON.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the tables as Markdown.")] = False,
    latex: Annotated[bool, typer.Option("--latex", help="Print the tables as LaTeX (booktabs).")] = False,
) -> None:
    """Show the results of earlier evaluations. One table per data set and protocol, best first.

    Results measured on different items are never in the same table, and --compare refuses them.

    Examples:

      maxmatch evaluate runs/a flickr8k --results results.jsonl

      maxmatch results

      maxmatch results results.jsonl --compare 1 --compare 2
    """
    if sum((as_json, markdown, latex)) > 1:
        raise typer.BadParameter("choose one of --json, --markdown and --latex.")
    from maxmatch.evaluation.leaderboard import compare_records, read_records, render_results
    from maxmatch.evaluation.result_tables import render

    style: Literal["text", "markdown", "latex"] = "markdown" if markdown else "latex" if latex else "text"
    records = read_records(file, say)
    with usage_errors():
        table = compare_records(records, compare) if compare else None
    if as_json:
        print(json.dumps([vars(one) for one in records], indent=2, ensure_ascii=False))
    elif table is not None:
        print(render(table, style))
    else:
        print(render_results(records, style))
