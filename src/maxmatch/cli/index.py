"""`maxmatch index`: make, fill, check and mend an index."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from maxmatch.cli.index_fill import add, build

if TYPE_CHECKING:
    from maxmatch.search.verify import Verification

_HELP = """Make, fill, check and mend an index of sets.

From sets that were encoded before, or from a folder at once.

  maxmatch encode runs/coco/best ~/Pictures --out sets

  maxmatch index build photos --from sets

  maxmatch index add photos --source ~/Downloads

From another program's arrays.

  maxmatch index build mine --sets sets.npy --ids ids.txt --metadata meta.parquet

Then look, measure, and search.

  maxmatch index info photos

  maxmatch index verify photos --queries captions.txt

  maxmatch search "a dog on a beach" photos
"""

app = typer.Typer(help=_HELP, short_help="Make, fill, check and mend an index of sets.", no_args_is_help=True)
app.command()(build)
app.command()(add)

_Folder = Annotated[Path, typer.Argument(help="The index's folder.")]
_Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@app.command()
def remove(
    index: _Folder,
    items: Annotated[list[str] | None, typer.Argument(metavar="[ID…]", help="Items to remove.")] = None,
    ids: Annotated[list[str] | None, typer.Option(help="The same as an option; may be given again.")] = None,
    ids_file: Annotated[Path | None, typer.Option(help="A text file with an id a line.")] = None,
    missing: Annotated[
        Literal["refuse", "ignore"], typer.Option(help="What to do where an id is not in the index.")
    ] = "refuse",
    as_json: _Json = False,
) -> None:
    """Remove items: all that are named, or none.

    Examples:

      maxmatch index remove photos 2019/dog.jpg 2019/cat.jpg

      maxmatch index remove photos --ids-file gone.txt --missing ignore
    """
    from maxmatch.search.index import SetIndex
    from maxmatch.search.parcels import read_ids

    given = [*(items or []), *(ids or []), *(read_ids(ids_file) if ids_file is not None else [])]
    names = list(dict.fromkeys(given))
    if not names:
        raise typer.BadParameter("name the items, with --ids-file where they are many")
    with SetIndex.open(index) as opened:
        if missing == "ignore":
            present = opened.engine.present(names)
            names = [name for name in names if name in present]
        opened.remove(names)
        left = len(opened)
    facts = {"path": str(index), "removed": len(names), "items": left}
    _print(as_json, facts, f"{index}: {len(names):,} removed, {left:,} left")


@app.command()
def verify(
    index: _Folder,
    k: Annotated[int, typer.Option("-k", min=1, help="How many best items a search is to find.")] = 10,
    sample: Annotated[int, typer.Option(min=1, help="How many searches to measure with.")] = 200,
    target: Annotated[float, typer.Option(min=0, max=1, help="The recall to reach.")] = 0.99,
    queries: Annotated[
        Path | None, typer.Option(help="Queries such as will come: a text file with one a line. Default: items.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="What encodes them. Default: the index's model.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda … Default: a GPU where there is one.")] = None,
    as_json: _Json = False,
) -> None:
    """Measure how many of the best items a search finds.

    Against scanning them all; settings that suffice are kept.

    Examples:

      maxmatch index verify photos

      maxmatch index verify photos -k 100 --queries captions.txt --sample 500
    """
    from maxmatch.search.index import SetIndex

    with SetIndex.open(index) as opened:
        sets = None
        if queries is not None:
            from maxmatch.cli.loading import load_for_search, model_of
            from maxmatch.search.sources import list_source

            texts = list(list_source(queries, "text").values)[:sample]
            sets = model_of(opened, index, model, device, load_for_search).encode_texts(texts)
        measured = opened.verify(sets, k, sample=sample, target=target)
    facts = {
        "path": str(index),
        **measured.chosen.model_dump(mode="json"),
        "target": target,
        "reached": measured.reached,
        "scan_milliseconds": measured.scan_milliseconds,
        "trials": [{**asdict(one), "settings": one.settings._asdict()} for one in measured.trials],
    }
    _print(as_json, facts, _advice(index, measured))


@app.command()
def info(index: _Folder, as_json: _Json = False) -> None:
    """Say what an index holds, and how it is kept.

    Examples:

      maxmatch index info photos

      maxmatch index info photos --json
    """
    from maxmatch.search.index import SetIndex
    from maxmatch.search.origin import read_origin

    with SetIndex.open(index) as opened:
        known: dict[str, Any] = {"path": str(index), **opened.info()}
    origin = read_origin(index.expanduser())
    if origin is not None:
        known |= {"model_path": origin.model, "modality": origin.modality}
    _print(as_json, known, "\n".join(_lines(known)))


@app.command()
def compact(index: _Folder, as_json: _Json = False) -> None:
    """Free the room of removed items, and merge small files. The index is brought up to date with what was added.

    Examples:

      maxmatch index compact photos
    """
    from maxmatch.search.index import SetIndex

    with SetIndex.open(index) as opened:
        opened.compact()
        items = len(opened)
    _print(as_json, {"path": str(index), "items": items}, f"{index}: {items:,} items")


def _advice(index: Path, measured: "Verification") -> str:
    chosen = measured.chosen
    lines = [f"{index}: {chosen.items:,} items, {chosen.queries:,} searches for the {chosen.k} best"]
    for one in measured.trials:
        how = f"{one.settings.candidates:,} candidates, effort {one.settings.effort:g}"
        lines.append(f"  {how:<32} finds {one.recall:6.1%} in {one.milliseconds:.1f} ms each")
    lines.append(f"  {'all items':<32} finds 100.0% in {measured.scan_milliseconds:.1f} ms each")
    if measured.trials:
        interval = f"95 %: {chosen.low:.1%} to {chosen.high:.1%}"
        kept = f"{chosen.candidates:,} candidates, effort {chosen.effort:g}"
        lines.append(f"Searches use {kept} from now on: {chosen.recall:.1%} are found ({interval}).")
    else:
        lines.append("Every search scans all items, and finds all.")
    if not measured.reached:
        lines.append(f"Less than the {measured.target:.1%} asked for: search with --exact where it matters.")
    if not chosen.real_queries:
        lines.append("Measured with items of the index; --queries FILE measures with what people will ask.")
    return "\n".join(lines)


def _lines(known: dict[str, Any], indent: str = "") -> list[str]:
    width = max(len(name) for name in known)
    lines = []
    for name, value in known.items():
        if isinstance(value, dict) and value:
            lines += [f"{indent}{name}", *_lines(value, indent + "  ")]
        else:
            lines.append(f"{indent}{name:<{width}}  {value if value is not None else '-'}")
    return lines


def _print(as_json: bool, facts: dict[str, Any], text: str) -> None:
    print(json.dumps(facts) if as_json else text)
