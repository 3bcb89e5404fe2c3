"""`maxmatch search`: find the photos of a folder, or the items of an index, that best match a text or an image."""

import io
import json
import math
import os
import sys
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from maxmatch.cli.common import ExcludeOption, RuntimeOption, plain, say, usage_errors

if TYPE_CHECKING:
    from PIL import Image

    from maxmatch.model.names import AnyModel
    from maxmatch.model.text import Words
    from maxmatch.search.engine import Hit
    from maxmatch.search.plausible import CutOff, Verdict
    from maxmatch.search.query import Answer, TextPart


Way = Literal["kitty", "iterm", "blocks"]
_KITTY = ("kitty", "ghostty")
_ITERM = ("iTerm.app", "WezTerm")
_COLUMNS, _ROWS = 36, 9  # at most; a cell is about twice as high as wide
_CELL = 20, 40  # pixels of a cell on a fine screen
_SIGNS = ("+", "-")
_CHUNK = 4096  # characters that kitty takes at once


def way_to_show(environment: Mapping[str, str], is_terminal: bool, asked: bool = False) -> Way | None:
    """How the terminal shows pictures, by its variables; None where it does not, or where tmux or screen hides it.

    asked: in coarse blocks if need be; ValueError where the terminal cannot show those either.
    """
    way: Way | None = None
    program = environment.get("TERM_PROGRAM", "")
    terminal = environment.get("TERM", "").removeprefix("xterm-")
    # tmux and screen swallow pictures, but pass on the variables of the terminal around them.
    if is_terminal and not environment.get("TMUX") and not environment.get("STY"):
        if program in _ITERM:
            way = "iterm"
        elif terminal in _KITTY or program in _KITTY or environment.get("KITTY_WINDOW_ID"):
            way = "kitty"
    if asked and not is_terminal:
        raise ValueError("the output is not a terminal.")
    if asked and way is None and environment.get("COLORTERM") not in ("truecolor", "24bit"):
        raise ValueError("this terminal shows neither pictures nor all colours (COLORTERM=truecolor).")
    return way or ("blocks" if asked else None)


def show(path: Path, way: Way) -> str:
    """What to print to show a picture; nothing for what is not one."""
    from maxmatch.model.images import ImageError, load_image

    try:
        picture = load_image(path, at_least=_ROWS * _CELL[1])
    except (OSError, ImageError):
        return ""
    scale = min(_COLUMNS / picture.width, 2 * _ROWS / picture.height)
    columns, rows = max(1, round(picture.width * scale)), max(1, round(picture.height * scale / 2))
    if way == "blocks":
        return blocks(picture.resize((columns, 2 * rows)))
    picture.thumbnail((columns * _CELL[0], rows * _CELL[1]))
    file = io.BytesIO()
    picture.save(file, "PNG")
    return (kitty if way == "kitty" else iterm)(file.getvalue(), columns, rows)


def kitty(png: bytes, columns: int, rows: int) -> str:
    """A PNG in kitty's graphics protocol: in chunks, and without an answer that would end up in the next command."""
    text = b64encode(png).decode()
    chunks = [text[start : start + _CHUNK] for start in range(0, len(text), _CHUNK)]
    heads = [f"a=T,f=100,q=2,c={columns},r={rows},"] + [""] * (len(chunks) - 1)
    more = [1] * (len(chunks) - 1) + [0]
    return "".join(
        f"\033_G{head}m={follows};{chunk}\033\\" for head, follows, chunk in zip(heads, more, chunks, strict=True)
    )


def iterm(png: bytes, columns: int, rows: int) -> str:
    """A PNG as an inline image of iTerm2."""
    facts = f"inline=1;size={len(png)};width={columns};height={rows};preserveAspectRatio=1"
    return f"\033]1337;File={facts}:{b64encode(png).decode()}\a"


def blocks(picture: "Image.Image") -> str:
    """Two pixels a character: the upper half in the colour of the letter, the lower in that of the ground."""
    import numpy as np

    pixels = np.asarray(picture.convert("RGB")).tolist()
    lines = []
    for y in range(0, picture.height - 1, 2):
        cells = []
        for x in range(picture.width):
            colours = [";".join(map(str, pixels[row][x])) for row in (y, y + 1)]
            cells.append(f"\033[38;2;{colours[0]};48;2;{colours[1]}m▀")
        lines.append("".join(cells) + "\033[0m")
    return "\n".join(lines)


def _required(query: str | None) -> str:
    if query is None:
        examples = 'maxmatch search "two dogs" ~/Pictures, or maxmatch search --image dog.jpg ~/Pictures'
        raise typer.BadParameter(f"give a query and a folder: {examples}")
    return query


_WHERE = (
    "Only items whose metadata match, e.g. \"taken >= '2024'\". Fields of photos: path, relative_path, name, folder, "
    "taken (from EXIF), date (taken, or else the file's date), width, height, orientation, size, mtime."
)


def search(
    query: Annotated[
        str | None,
        typer.Argument(help="What to look for, in words. Optional with --image.", callback=_required),
    ] = None,
    index: Annotated[list[Path] | None, typer.Argument(help="Folders of photos, or the folder of an index.")] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Number of hits.")] = 10,
    image: Annotated[Path | None, typer.Option(help="An image to look for, alone or together with words.")] = None,
    without: Annotated[
        list[str] | None, typer.Option(help="What should not be in the photo, e.g. people. Repeatable.")
    ] = None,
    where: Annotated[str | None, typer.Option(help=_WHERE)] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also list photos that do not seem to fit the query, up to -k.")
    ] = False,
    min_score: Annotated[
        float | None, typer.Option(help="List everything with at least this score, whether it seems to fit or not.")
    ] = None,
    sort: Annotated[
        Literal["relevance", "date"], typer.Option(help="date: the 500 most relevant, newest first.")
    ] = "relevance",
    fold: Annotated[
        bool | None,
        typer.Option(
            "--fold/--no-fold",
            help="Show near-duplicates as one hit. Default: on in a terminal, off with --paths and --json.",
            show_default=False,
        ),
    ] = None,
    exact: Annotated[bool, typer.Option("--exact", help="Score every item: slower, but misses nothing.")] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show which slots were matched, with their cosines, and metadata.")
    ] = False,
    paths: Annotated[bool, typer.Option("--paths", help="Print only paths, for use by other programs.")] = False,
    null: Annotated[
        bool, typer.Option("-0", "--null", help="End each path with NUL instead of a line break, for xargs -0.")
    ] = False,
    exclude: ExcludeOption = None,
    names: Annotated[
        bool,
        typer.Option(
            "--names/--no-names", help="List photos first whose file or folder name has all words of the query."
        ),
    ] = True,
    model: Annotated[str | None, typer.Option(help="Default: the index's model; for photos, maxmatch-small.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda … Default: a GPU if there is one.")] = None,
    preview: Annotated[
        bool | None,
        typer.Option(
            "--preview/--no-preview",
            help="Show the photos in the terminal, as coloured blocks if it cannot show images. Default: on in kitty, "
            "Ghostty, iTerm2 and WezTerm.",
            show_default=False,
        ),
    ] = None,
    runtime: RuntimeOption = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print the hits as JSON.")] = False,
) -> None:
    """Find photos or indexed items by words or an image.

    The index of a photo folder is kept in your cache directory. Each search first indexes new and changed photos and
    removes deleted ones; renamed photos are not read again.

    Use a minus to leave something out: 'beach -people'. Parts can be weighted: '"beach" + 2 "dog" - "two people"'.

    Photos whose name has all words of the query come first and are marked. The list ends where photos stop fitting the
    query, and is empty if none fits; --all lists the rest. If the output is not a terminal, only paths are printed.

    Examples:

      maxmatch search "two dogs in the snow" ~/Pictures

      maxmatch search "a dog" ~/Pictures /mnt/photos --exclude Screenshots

      maxmatch search "a dog on a beach" photos.index

      maxmatch search "a dog" ~/Pictures -k 50 --where "width > 2000" --explain

      maxmatch search --image dog.jpg ~/Pictures --model runs/first --paths

      maxmatch search --image dog.jpg + "at night" - "people" ~/Pictures
    """
    # NumPy's products are small here, and its threads wait by spinning: ten times as long beside other work. Read when
    # NumPy is loaded, which is below.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from maxmatch.cli.common import are_folders_of_photos, load_for_search, model_of, open_folders
    from maxmatch.model.names import language_of
    from maxmatch.search.index_folder import IndexFolderError, NewerIndexError
    from maxmatch.search.photos.file_names import named_first, named_items, query_words
    from maxmatch.search.plausible import calibrated
    from maxmatch.search.query import answered
    from maxmatch.search.set_index import SetIndex

    assert query is not None
    joined, given = _joined(query, index or [])
    no_folder = joined == query and not given  # then the query is one
    query, without_words = joined, image is not None and (no_folder or Path(joined).expanduser().is_dir())
    words, folders = ("", [Path(query), *given]) if without_words else (query, given)
    if not folders:
        raise typer.BadParameter('give a folder of photos or an index: maxmatch search "two dogs" ~/Pictures')
    if image is None and not words.strip():
        raise typer.BadParameter("the query is empty: write some words")
    if image is None and not folders[0].expanduser().exists() and Path(words).expanduser().is_dir():
        raise typer.BadParameter(f"the words come first, then the folder: maxmatch search {str(folders[0])!r} {words}")
    if (
        image is None
        and len(folders) > 1
        and not folders[0].expanduser().exists()
        and folders[-1].expanduser().is_dir()
    ):
        several = " ".join([words, *(str(folder) for folder in folders[:-1])])
        raise typer.BadParameter(f"{folders[0]}: no such folder. Put the words in quotes: '{several}' {folders[-1]}")
    if min_score is not None and not math.isfinite(min_score):
        raise typer.BadParameter(f"--min-score: expected a number, got {min_score}")
    from maxmatch.search.filters import parse_where
    from maxmatch.search.query import TextPart, parse_query, unknown_parts

    with usage_errors():
        parts = parse_query(words, image is not None) if words.strip() else []
        parts += [TextPart(one, -1.0) for one in without or [] if one.strip()]
        if where is not None:
            parse_where(where)
    if exact and len(parts) + (image is not None) > 1:
        raise typer.BadParameter("--exact: a query of several parts weighs the best of each part. Leave it out.")
    if null and as_json:
        raise typer.BadParameter("--null: not with --json")
    paths = paths or null
    way = _way(preview, as_json or paths)
    photos = are_folders_of_photos(folders, exclude or ())
    load = partial(load_for_search, runtime=runtime)

    folded = fold if fold is not None else not (as_json or paths) and sys.stdout.isatty()

    def found(anew: bool) -> "_Found":
        if photos:
            library, encoder = open_folders(
                folders, model, device, load, partial(load, many=True), exclude=exclude or (), anew=anew
            )
            opened = library.index
        else:
            opened = SetIndex.open(folders[0])
            encoder = model_of(opened, folders[0], model, device, load)
        with opened, usage_errors():
            left_out = unknown_parts(parts, encoder.known_words, image is not None)
            kept = [part for part in parts if part not in left_out]
            every = encoder.known_words(*(part.text for part in parts)) if parts else None
            read = encoder.known_words(*(part.text for part in kept)) if kept else None
            # Scores of pictures, and sums of several parts, mean something else than those of a text.
            is_text = image is None and len(kept) == 1 and kept[0].weight == 1
            judged = is_text and not everything and min_score is None
            cut_off = calibrated(opened, encoder) if judged else None
            sets = _sets(encoder, kept, image)
            weights = [*([1.0] if image is not None else []), *(part.weight for part in kept)]
            by_name = photos and names and image is None and min_score is None
            named = named_items(opened, query_words(parts), where) if by_name else []
            answer = answered(
                opened,
                sets,
                weights,
                k,
                where,
                exact,
                judge=partial(_judged, cut_off, read),
                min_score=min_score,
                first=lambda hits, most: named_first(opened, hits, named, sets, weights, most),
                by_date=sort == "date",
                fold=folded,
            )
            if photos:
                shown = [_shown(group, library.picture, as_json) for group in answer.groups]
                answer = answer._replace(groups=shown)
            texts = [part.text for part in left_out]
            language = language_of(encoder) if every is not None and every.unknown else None
            return _Found(answer, every, read, texts, judged and cut_off is None, set(named), language)

    # Some files are read only by a search. Twice, since another process may have replaced what was being read; then the
    # index of a folder, which is a cache, is built anew.
    for anew in (False, False, True) if photos else (True,):
        try:
            answer, every, read, left_out, cannot_tell, named, language = found(anew)
            break
        except IndexFolderError as error:
            if anew or isinstance(error, NewerIndexError):
                raise
    hits = [group[0] for group in answer.groups]
    others = {group[0].id: [hit.id for hit in group[1:]] for group in answer.groups}
    if photos:
        paths = paths or not (as_json or explain or sys.stdout.isatty())
    if as_json:
        known = {
            "unknown_words": every.unknown if every else [],
            "any_word_known": bool(every.known) if every else None,
            "left_out": left_out,
        }
        fits = {"fits": answer.verdict.fits, "cut_off": answer.verdict.ends}
        listed = [
            _plain(hit)
            | ({"duplicates": others[hit.id]} if folded else {})
            | ({"name_match": hit.id in named} if photos else {})
            for hit in hits
        ]
        asked = {"query": words or str(image), "image": None if image is None else str(image)}
        print(json.dumps({**asked, **known, **fits, "ended": answer.ended, "hits": listed}))
        return
    having = sum(hit.id in named for hit in hits)
    reads = f" (it reads {language})" if language else ""
    if left_out:
        say(f"left out, since the model knows no word of it: {', '.join(left_out)}{reads}")
    if read is not None and not read.known:
        first = f"{having} {'photo has them in its' if having == 1 else 'photos have them in their'} name"
        rest = len(hits) > having
        guess = f"; {first}{', the rest is a guess' if rest else ''}" if having else "; what follows is a guess"
        say(f"the model knows none of these words{reads}" + (guess if hits else ""))
    elif read is not None and read.unknown:
        say(f"the model does not know: {', '.join(read.unknown)}{reads}")
    if paths:
        for hit in hits:
            escaped = sys.stdout.isatty() and not null
            print(plain(_name(hit)) if escaped else _name(hit), end="\0" if null else "\n")
    else:
        for rank, hit in enumerate(hits, start=1):
            same = f"  (+{len(others[hit.id])} almost the same)" if others[hit.id] else ""
            print(f"{rank:>3}  {hit.score:7.4f}  {plain(_name(hit))}{same}" + ("  (name)" if hit.id in named else ""))
            path = hit.metadata.get("path")
            if way is not None and isinstance(path, str) and (picture := show(Path(path), way)):
                print(picture)
            if explain:
                print("\n".join(_reasons(hit)))
    folder = " or ".join(map(str, folders))
    if answer.verdict.fits is False and len(hits) < k:
        say(f"nothing {'else ' if having else ''}in {folder} seems to fit; --all lists the closest")
    elif answer.ended and min_score is None:
        say("the rest does not seem to fit; --all lists it")
    elif not hits:
        options = (("--where", where), ("--min-score", min_score), ("--exclude", exclude))
        passing = [option for option, given in options if given is not None]
        say(f"nothing in {folder}" + (f" that passes {' and '.join(passing)}" if passing else ""))
    elif cannot_tell and sys.stdout.isatty():
        say("too few photos, or a model that reads too few words, to tell which fit: none is left out")


def _joined(query: str, folders: Sequence[Path]) -> tuple[str, list[Path]]:
    """Parts without quotes around all of them, + "at night" - "people", as one query; and the folders after them."""
    rest = [query, *map(str, folders)]
    parts = [] if rest[0] in _SIGNS or rest[1:2] not in (["+"], ["-"]) else [f'"{rest.pop(0)}"']
    while len(rest) > 1 and rest[0] in _SIGNS:
        parts.append(f'{rest.pop(0)} "{rest.pop(0)}"')
    return (" ".join(parts), list(map(Path, rest))) if parts else (query, list(folders))


class _Found(NamedTuple):
    """What a search found. every: the words of the query; read: of its parts that count. left_out: the others.
    language: that the model reads, where it does not know a word.
    """

    answer: "Answer"
    every: "Words | None"
    read: "Words | None"
    left_out: list[str]
    cannot_tell: bool
    named: set[str]
    language: str | None


def _judged(cut_off: "CutOff | None", read: "Words | None", hits: "Sequence[Hit]") -> "Verdict":
    from maxmatch.search.plausible import Verdict, verdict

    return Verdict() if read is None else verdict(cut_off, read, hits)


def _sets(model: "AnyModel", parts: "Sequence[TextPart]", image: Path | None) -> list[Any]:
    """The set of the picture, if any, and those of the texts."""
    from maxmatch.model.images import load_image

    sets: list[Any] = []
    if image is not None:
        picture = load_image(image.expanduser())  # here: a message then names the file alone
        sets += list(model.encode_images([picture]))
    return sets + (list(model.encode_texts([part.text for part in parts])) if parts else [])


def _shown(hits: "Sequence[Hit]", picture: "Callable[[str], Path]", as_json: bool) -> "list[Hit]":
    """Photos with their paths, as the folder was given; in JSON, what --where knows."""
    shown = {hit.id: {"path": str(picture(hit.id))} for hit in hits}
    return [
        replace(hit, metadata={**shown[hit.id], **hit.metadata} if as_json else {**hit.metadata, **shown[hit.id]})
        for hit in hits
    ]


def _way(asked: bool | None, for_programs: bool) -> "Way | None":
    """How pictures are shown beside the hits."""
    if asked is False or (asked is None and for_programs):
        return None
    if for_programs:
        raise typer.BadParameter("--preview: not with --json or --paths")
    try:
        return way_to_show(os.environ, sys.stdout.isatty(), asked=bool(asked))
    except ValueError as error:
        raise typer.BadParameter(f"--preview: {error}") from None


def _name(hit: "Hit") -> str:
    """An item's path, or its text, or its id."""
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
