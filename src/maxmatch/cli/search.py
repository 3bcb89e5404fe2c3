"""`maxmatch search`: the items of an index, or the photos of a folder, that are nearest to a text or a picture."""

import json
import os
import sys
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from maxmatch.cli.loading import RuntimeOption
from maxmatch.cli.progress import plain, say

if TYPE_CHECKING:
    from maxmatch.cli.previews import Way
    from maxmatch.search.hit import Hit
    from maxmatch.search.identity import Model
    from maxmatch.search.index import SetIndex


def _something(query: str | None) -> str:
    if query is None:
        examples = 'maxmatch search "two dogs" ~/Pictures, or maxmatch search --image dog.jpg ~/Pictures'
        raise typer.BadParameter(f"say what to look for, and where: {examples}")
    return query


def search(
    query: Annotated[
        str | None,
        typer.Argument(help="What to look for, in words. Left out with --image.", callback=_something),
    ] = None,
    index: Annotated[Path | None, typer.Argument(help="A folder of photos, or an index's folder.")] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="How many items.")] = 10,
    image: Annotated[Path | None, typer.Option(help="A picture to look for, in place of words.")] = None,
    where: Annotated[str | None, typer.Option(help='Only items whose metadata are so: "year >= 2020"')] = None,
    exact: Annotated[bool, typer.Option("--exact", help="Score every item: slower, and misses nothing.")] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show which slots were matched, their cosines, and metadata.")
    ] = False,
    paths: Annotated[bool, typer.Option("--paths", help="Print paths alone, for another program.")] = False,
    model: Annotated[str | None, typer.Option(help="Default: the index's own; for photos the one that ships.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda … Default: a GPU where there is one.")] = None,
    preview: Annotated[
        bool | None,
        typer.Option(
            "--preview/--no-preview",
            help="Show the pictures, if need be in coarse blocks. Default: in kitty, Ghostty, iTerm2 and WezTerm.",
            show_default=False,
        ),
    ] = None,
    runtime: RuntimeOption = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print the hits as JSON.")] = False,
) -> None:
    """Find what is nearest to words or to a picture. In a folder of photos, or in an index.

    A folder's own index is kept in the user's cache: photos that are new or changed are read first, those that are gone
    are forgotten. Words can be weighed: '"beach" + 2 "dog" - "people"'. Photos' paths alone are printed where the
    output is no terminal, and in one that can show pictures they are shown.

    Examples:

      maxmatch search "two dogs in the snow" ~/Pictures

      maxmatch search "a dog on a beach" photos.index

      maxmatch search "a dog" photos.index -k 50 --where "size > 100000" --explain

      maxmatch search --image dog.jpg ~/Pictures --model runs/first --paths
    """
    # NumPy's products are small here, and its threads wait by spinning: ten times as long beside other work. Read when
    # NumPy is loaded, which is below.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from maxmatch.cli.loading import load_for_search, model_of
    from maxmatch.cli.photos import is_folder_of_photos, open_folder
    from maxmatch.search.index import SetIndex

    if image is not None and index is not None:
        raise typer.BadParameter("one query: words, or --image; not both")
    assert query is not None
    words, folder = (query, index) if image is None else ("", Path(query))
    if folder is None:
        raise typer.BadParameter('name a folder of photos, or an index, too: maxmatch search "two dogs" ~/Pictures')
    if image is None and not words.strip():
        raise typer.BadParameter("an empty query finds nothing: write some words")
    way = _way(preview, as_json or paths)
    photos = is_folder_of_photos(folder)
    load = partial(load_for_search, runtime=runtime)
    if photos:
        opened, encoder = open_folder(folder, model, device, load, partial(load, many=True))
    else:
        opened = SetIndex.open(folder)
        encoder = model_of(opened, folder, model, device, load)
    with opened:
        hits = _found(opened, encoder, words, image, k, where, exact)
        unknown = _unknown_keys(opened, where) if where and not hits else []
    if photos:
        root = folder.expanduser()
        hits = [replace(hit, metadata={"path": str(root / hit.id), **hit.metadata}) for hit in hits]
        paths = paths or not (as_json or explain or sys.stdout.isatty())
    if as_json:
        print(json.dumps({"query": words if image is None else str(image), "hits": [_plain(hit) for hit in hits]}))
    elif paths:
        for hit in hits:
            print(plain(_name(hit)) if sys.stdout.isatty() else _name(hit))
    else:
        for rank, hit in enumerate(hits, start=1):
            print(f"{rank:>3}  {hit.score:7.4f}  {plain(_name(hit))}")
            if way is not None:
                _show(hit, way)
            if explain:
                print("\n".join(_reasons(hit)))
    if not hits and not as_json:
        say(f"nothing in {folder}" + (" that passes --where" if where else ""))
        for key in unknown:
            hint = "" if photos else " `maxmatch search … --json` shows what items have."
            say(f"--where: no item has {key!r}.{hint}")


def _unknown_keys(index: "SetIndex", where: str) -> list[str]:
    """The keys of a filter that no item has."""
    from maxmatch.search.where import Missing, Not, keys_of
    from maxmatch.search.where_parser import parse_where

    return [key for key in keys_of(parse_where(where)) if not index.engine.count(Not(Missing(key)))]


def _found(
    index: "SetIndex", model: "Model", query: str, image: Path | None, k: int, where: str | None, exact: bool
) -> "list[Hit]":
    from maxmatch.images import load_image
    from maxmatch.search.parts import parse_query, search_parts

    if image is not None:
        picture = load_image(image.expanduser())  # here, so that its name alone stands in a message
        return index.search(model.encode_images([picture]), k, where, exact)[0]
    parts = parse_query(query)
    sets = model.encode_texts([part.text for part in parts])
    if len(parts) == 1:
        return index.search(sets, k, where, exact)[0]
    if exact:
        raise typer.BadParameter("--exact: a query of several parts weighs the best of each part. Leave it out.")
    return search_parts(index, list(sets), [part.weight for part in parts], k, where)


def _way(asked: bool | None, for_programs: bool) -> "Way | None":
    """How pictures are shown beside the hits."""
    if asked is False or (asked is None and for_programs):
        return None
    from maxmatch.cli.previews import way_asked_for, way_to_show

    if asked is None:
        return way_to_show(os.environ, sys.stdout.isatty())
    if for_programs:
        raise typer.BadParameter("--preview: pictures are for people; leave out --json or --paths")
    try:
        return way_asked_for(os.environ, sys.stdout.isatty())
    except ValueError as error:
        raise typer.BadParameter(f"--preview: {error}") from None


def _show(hit: "Hit", way: "Way") -> None:
    from maxmatch.cli.previews import preview

    path = hit.metadata.get("path")
    picture = preview(Path(path), way) if isinstance(path, str) else ""
    if picture:
        print(picture)


def _name(hit: "Hit") -> str:
    """Where an item is, or what it says, or its id."""
    known = hit.metadata.get("path") or hit.metadata.get("text")
    return known if isinstance(known, str) else hit.id


def _reasons(hit: "Hit") -> list[str]:
    lines = [f"     slot {one.query_slot} – {one.item_slot}   cosine {one.cosine:6.3f}" for one in hit.matches]
    shown = {name: value for name, value in hit.metadata.items() if value != _name(hit)}
    return [*lines, *(plain(f"     {name}: {value}") for name, value in shown.items())]


def _plain(hit: "Hit") -> dict[str, Any]:
    plain = asdict(hit)
    plain["matches"] = [one._asdict() for one in hit.matches]
    return plain
