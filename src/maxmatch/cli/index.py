"""`maxmatch index`: build, check and maintain an index."""

import json
import shutil
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from maxmatch import __version__
from maxmatch.cli.common import resumable

if TYPE_CHECKING:
    from maxmatch.search.encode_files import Dtype
    from maxmatch.search.ingest import IngestSource
    from maxmatch.search.set_index import SetIndex
    from maxmatch.search.verify import Verification


_From = Annotated[list[Path] | None, typer.Option("--from", help="A folder written by `maxmatch encode`; repeatable.")]
_Sets = Annotated[
    Path | None,
    typer.Option(
        help="Sets made by another program: a .npy file (items, K, D) of unit vectors. For sets of different sizes, "
        "a .npz file with vectors (N, D) and sizes (items)."
    ),
]
_Ids = Annotated[Path | None, typer.Option(help="The ids of --sets: a text file with one id per line.")]
_Metadata = Annotated[Path | None, typer.Option(help="The metadata of --sets: a table with one row per item.")]
_Source = Annotated[
    Path | None, typer.Option(help="What to encode and add: images, a table, tar files or a .txt file.")
]
_Modality = Annotated[str | None, typer.Option(help="The modality of --source: image, text … Default: image.")]
_Device = Annotated[str | None, typer.Option(help="cpu, cuda … Default: a GPU if there is one.")]
_Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def build(
    index: Annotated[Path, typer.Argument(help="A new folder for the index.")],
    shards: _From = None,
    sets: _Sets = None,
    ids: _Ids = None,
    metadata: _Metadata = None,
    source: _Source = None,
    modality: _Modality = None,
    model: Annotated[
        str | None,
        typer.Option(help="What encodes --source (default: maxmatch-small) or made --sets. Not needed with --from."),
    ] = None,
    engine: Annotated[
        Literal["lance", "exhaustive", "milvus"],
        typer.Option(help="lance: local files. milvus: a server (see --uri). exhaustive: scans all items."),
    ] = "lance",
    uri: Annotated[str | None, typer.Option(help="The address of the Milvus server: http://localhost:19530")] = None,
    dtype: Annotated[
        Literal["fp16", "fp32"] | None, typer.Option(help="Type of the stored sets. Default: unchanged.")
    ] = None,
    similarity: Annotated[
        str | None, typer.Option(help="How sets are compared. Default: as the model does, or maxmatch.")
    ] = None,
    stability: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="How often slot i of a query is matched with slot i of its item. Default: the model's."
        ),
    ] = None,
    device: _Device = None,
    as_json: _Json = False,
) -> None:
    """Build an index. If it is interrupted, run the same command again to resume; nothing is added twice.

    Examples:

      maxmatch index build photos.index --from sets

      maxmatch index build photos.index --source ~/Pictures

      maxmatch index build mine --sets s.npy --ids ids.txt --metadata meta.csv

      maxmatch index build big --from sets --engine milvus --uri http://db:19530
    """
    from maxmatch.cli.common import default_model, load_model
    from maxmatch.core.progress import bar
    from maxmatch.model.names import name_to_record
    from maxmatch.search.index_folder import Origin, write_origin
    from maxmatch.search.ingest import build as fill
    from maxmatch.search.ingest import refuse_index
    from maxmatch.search.set_index import SetIndex

    if (engine == "milvus") != (uri is not None):
        raise typer.BadParameter("--engine milvus and --uri go together")
    if source is not None and model is None:
        model = default_model()
    folder = index.expanduser()
    precision: Dtype | None = {"fp16": "float16", "fp32": "float32", None: None}[dtype]
    refuse_index(folder)  # before hours of encoding
    encoder = load_model(model, device) if model is not None else None
    given = _Given(shards, sets, ids, metadata, source, modality)
    incoming = _incoming(folder, given, encoder, model, precision or "float16")
    made_by = incoming.made_by
    if encoder is not None:
        _check_model(encoder, incoming, model)
    known: dict[str, Any] = {}  # what the shards tell
    if made_by is not None:
        known = {"model": made_by.identity, "similarity": made_by.similarity, "stability": made_by.stability}
        if similarity in (None, made_by.similarity):
            known["similarity_options"] = made_by.similarity_options
    asked = {"model": encoder, "similarity": similarity, "stability": stability}
    create = partial(
        SetIndex.create,
        folder,
        incoming.dim,
        incoming.set_size,
        dtype=precision or (made_by.dtype if made_by else "float32"),
        engine=engine,
        settings={} if uri is None else {"uri": uri},
        **known | {name: value for name, value in asked.items() if value is not None},
    )
    with resumable(index), bar("items", incoming.items) as advance:
        opened = fill(folder, incoming, create, advance)
    name = name_to_record(model) if model is not None else made_by.model if made_by else None
    if name is not None:
        about = (made_by.modality, made_by.version) if made_by else (modality, __version__)
        write_origin(folder, Origin(name, *about))
    _finish(opened, index, incoming, source, as_json)


def add(
    index: Annotated[Path, typer.Argument(help="The index's folder.")],
    shards: _From = None,
    sets: _Sets = None,
    ids: _Ids = None,
    metadata: _Metadata = None,
    source: _Source = None,
    modality: _Modality = None,
    model: Annotated[str | None, typer.Option(help="What encodes --source. Default: the index's model.")] = None,
    existing: Annotated[
        Literal["refuse", "skip", "replace"], typer.Option(help="What to do with ids that are already in the index.")
    ] = "refuse",
    device: _Device = None,
    as_json: _Json = False,
) -> None:
    """Add items to an index. If it is interrupted, run the same command again to resume; nothing is added twice.

    Examples:

      maxmatch index add photos.index --from more_sets

      maxmatch index add photos.index --source ~/Pictures --existing skip

      maxmatch index add mine --sets more.npy --ids more.txt --existing replace
    """
    from maxmatch.cli.common import load_model, model_of
    from maxmatch.core.progress import bar
    from maxmatch.model.names import model_title
    from maxmatch.search.index_folder import read_origin
    from maxmatch.search.ingest import add as fill
    from maxmatch.search.set_index import SetIndex

    folder = index.expanduser()
    opened = SetIndex.open(folder)
    manifest = opened.manifest
    encoder = model_of(opened, folder, model, device, load_model) if source is not None else None
    origin = read_origin(folder)
    name = model or (origin.model if origin else None)
    keep = opened if existing == "skip" else None
    given = _Given(shards, sets, ids, metadata, source, modality or (origin.modality if origin else None))
    incoming = _incoming(folder, given, encoder, name, manifest.dtype, keep)
    if incoming.made_by is not None and manifest.model is not None and incoming.made_by.identity != manifest.model:
        raise ValueError(
            f"{index}: another model made its sets ({model_title(manifest.model, origin and origin.model)}) than these "
            f"({model_title(incoming.made_by.identity, incoming.made_by.model)}). Encode again with the index's model, "
            f"or the index's items with this one: maxmatch index rebuild {index}"
        )
    with resumable(index), bar("items", incoming.items) as advance:
        fill(opened, incoming, existing, advance)
    _finish(opened, index, incoming, source, as_json)


class _Given(NamedTuple):
    """What is to be added, in one of three ways."""

    shards: list[Path] | None
    sets: Path | None
    ids: Path | None
    metadata: Path | None
    source: Path | None
    modality: str | None


def _incoming(
    folder: Path, given: _Given, encoder: Any, name: str | None, dtype: "Dtype", keep: "SetIndex | None" = None
) -> "IngestSource":
    """What is added; a source is encoded beside the index first. keep: an index whose items are not encoded again."""
    from maxmatch.search.ingest import from_arrays, from_shards

    shards, sets, ids, metadata, source, modality = given
    if sum(way is not None for way in (shards or None, sets, source)) != 1:
        raise typer.BadParameter("give one of: --from SHARDS, --sets with --ids, or --source")
    if sets is not None:
        if ids is None:
            raise typer.BadParameter("--sets needs --ids, a text file with one per line")
        return from_arrays(sets.expanduser(), ids.expanduser(), metadata.expanduser() if metadata else None)
    if ids is not None or metadata is not None:
        raise typer.BadParameter("--ids and --metadata go with --sets; what was encoded has its own")
    if shards:
        return from_shards([one.expanduser() for one in shards])
    assert source is not None
    assert name is not None
    from maxmatch.cli.common import cores, say
    from maxmatch.cli.encode import first_reasons
    from maxmatch.core.progress import bar
    from maxmatch.model.names import name_to_record
    from maxmatch.search.encode_files import encode_for, waiting_shards
    from maxmatch.search.engine import present
    from maxmatch.search.ingest import is_begun, unfinished
    from maxmatch.search.shards import SKIPPED, read_manifest
    from maxmatch.search.sources import list_source, without

    place = waiting_shards(folder)
    if is_begun(folder):  # a process was killed while it filled the index; everything is encoded
        if place.exists() and read_manifest(place).source == str(source.expanduser().absolute()):
            return from_shards([place])
        raise unfinished(folder)
    listing = list_source(source, modality)
    if keep is not None:
        listing = without(listing, present(keep.engine, list(listing.ids)))
    say(f"{source}: {len(listing):,} items ({listing.modality}, {listing.format})")
    options = {"name": name_to_record(name), "report": first_reasons(folder / SKIPPED)}
    options |= {"batch_size": 16 if encoder.device.type == "cpu" else 64, "workers": cores()}
    with resumable(source), bar(listing.modality, len(listing)) as advance:
        manifest = encode_for(folder, encoder, listing, dtype, advance=advance, **options)
    if not manifest.encoded and keep is None:
        raise ValueError(f"{source}: nothing could be encoded. See {place / SKIPPED} for the reasons.")
    return from_shards([place])


def _check_model(encoder: Any, incoming: "IngestSource", name: str | None) -> None:
    from maxmatch.model.names import model_identity

    if incoming.made_by is not None and incoming.made_by.identity != model_identity(encoder):
        raise ValueError(
            f"{name}: another model than the one that made the sets ({incoming.made_by.model}). Leave it out."
        )
    if encoder.dim != incoming.dim or incoming.set_size not in encoder.set_sizes.values():
        sizes = ", ".join(f"{size} × {encoder.dim}" for size in sorted(set(encoder.set_sizes.values())))
        these = f"{incoming.set_size or 'of any size'} × {incoming.dim}"
        raise ValueError(f"{name}: makes sets {sizes}; these are {these}. Name their own model.")


def _finish(opened: "SetIndex", index: Path, incoming: "IngestSource", source: Path | None, as_json: bool) -> None:
    """Print what was done, and remove temporary files."""
    from maxmatch.search.encode_files import waiting_shards
    from maxmatch.search.shards import SKIPPED

    items = len(opened)
    manifest = opened.manifest
    opened.close()
    if source is not None:
        place = waiting_shards(index)
        shutil.copyfile(place / SKIPPED, opened.folder / SKIPPED)
        shutil.rmtree(place)
    if as_json:
        facts = {"path": str(index), "added": incoming.items, "items": items, **manifest.model_dump(mode="json")}
        print(json.dumps(facts))
        return
    sets = f"sets {manifest.set_size or 'of any size'} × {manifest.dim}"
    print(f"{index}: {incoming.items:,} added; {items:,} items, {sets}, {manifest.engine}")


_HELP = """Build, check and maintain an index of sets.

From sets already encoded, or directly from a folder:

  maxmatch encode ~/Pictures --out sets

  maxmatch index build photos.index --from sets

  maxmatch index add photos.index --source ~/Downloads

Encode again with a newer model:

  maxmatch index rebuild photos.index

From arrays of another program:

  maxmatch index build mine --sets s.npy --ids ids.txt --metadata meta.csv

Then inspect, measure and search:

  maxmatch index info photos.index

  maxmatch index verify photos.index --queries captions.txt

  maxmatch search "a dog on a beach" photos.index
"""

app = typer.Typer(help=_HELP, short_help="Build, check and maintain an index of sets.", no_args_is_help=True)
app.command()(build)
app.command()(add)

_Folder = Annotated[Path, typer.Argument(help="The index's folder.")]


@app.command()
def remove(
    index: _Folder,
    items: Annotated[list[str] | None, typer.Argument(metavar="[ID…]", help="Items to remove.")] = None,
    ids: Annotated[list[str] | None, typer.Option(help="The same as an option; repeatable.")] = None,
    ids_file: Annotated[Path | None, typer.Option(help="A text file with one id per line.")] = None,
    missing: Annotated[
        Literal["refuse", "ignore"], typer.Option(help="What to do if an id is not in the index.")
    ] = "refuse",
    as_json: _Json = False,
) -> None:
    """Remove items: all of the given ids, or none.

    Examples:

      maxmatch index remove photos.index 2019/dog.jpg 2019/cat.jpg

      maxmatch index remove photos.index --ids-file gone.txt --missing ignore
    """
    from maxmatch.search.engine import present
    from maxmatch.search.ingest import read_ids
    from maxmatch.search.set_index import SetIndex

    given = [*(items or []), *(ids or []), *(read_ids(ids_file) if ids_file is not None else [])]
    names = list(dict.fromkeys(given))
    if not names:
        raise typer.BadParameter("give the ids of the items, or --ids-file")
    with SetIndex.open(index) as opened:
        if missing == "ignore":
            known = present(opened.engine, names)
            names = [name for name in names if name in known]
        opened.remove(names)
        left = len(opened)
    facts = {"path": str(index), "removed": len(names), "items": left}
    _print(as_json, facts, f"{index}: {len(names):,} removed, {left:,} left")


@app.command()
def rebuild(
    index: _Folder,
    model: Annotated[
        str | None, typer.Option(help="The model to encode with. Default: the current version of the index's model.")
    ] = None,
    source: Annotated[
        Path | None, typer.Option(help="Where the items are now. Default: the paths in the index.")
    ] = None,
    missing: Annotated[
        Literal["refuse", "ignore"],
        typer.Option(help="What to do if items are missing or cannot be read; ignore: leave them out."),
    ] = "refuse",
    modality: Annotated[
        str | None,
        typer.Option(help="What the items are: image, text … Default: as recorded in the index, or a guess."),
    ] = None,
    device: _Device = None,
    as_json: _Json = False,
) -> None:
    """Encode the items of an index again, e.g. with a newer model.

    Images are read from the paths in the index (relative to the current folder), captions from the texts in it. Ids and
    metadata are kept. With --source, items are found there by their ids, and its metadata replaces that of the index.
    The --stability given to `build` and the results of `verify` belong to the old model and are dropped. The old index
    stays in place until the new one is complete. If it is interrupted, run the same command again to resume.

    Examples:

      maxmatch index rebuild photos.index

      maxmatch index rebuild photos.index --source /mnt/photos
    """
    from maxmatch.cli.common import cores, default_model, load_model, say
    from maxmatch.cli.encode import first_reasons
    from maxmatch.core.progress import bar
    from maxmatch.model.names import name_to_record, recorded_model
    from maxmatch.search.index_folder import read_manifest, read_origin
    from maxmatch.search.rebuild import finish_replacing
    from maxmatch.search.rebuild import rebuild as encode_again
    from maxmatch.search.set_index import SetIndex
    from maxmatch.search.shards import SKIPPED

    folder = index.expanduser().resolve()
    finish_replacing(folder)
    before, origin = read_manifest(folder), read_origin(folder)
    name = model or (default_model() if origin is None else recorded_model(origin.model))
    encoder = load_model(name, device)
    options: dict[str, Any] = {"batch_size": 16 if encoder.device.type == "cpu" else 64, "workers": cores()}
    with resumable(index):
        report = first_reasons(index / SKIPPED)
        options |= {"modality": modality, "bar": bar, "say": say, "report": report}
        added = encode_again(folder, encoder, name_to_record(name), source, missing, **options)
    with SetIndex.open(folder) as opened:
        items, now = len(opened), opened.manifest
    if now.scoring != before.scoring:
        say(f"{index}: compared by {now.similarity}, as this model was trained; before by {before.similarity}")
    facts = {"path": str(index), "added": added, "items": items, **now.model_dump(mode="json")}
    done = f"{added:,} items encoded again, sets {now.set_size} × {now.dim}" if added else "of this model already"
    _print(as_json, facts, f"{index}: {done}")


@app.command()
def verify(
    index: _Folder,
    k: Annotated[int, typer.Option("-k", min=1, help="Number of items that a search returns.")] = 10,
    sample: Annotated[int, typer.Option(min=1, help="Number of searches to measure with.")] = 200,
    target: Annotated[float, typer.Option(min=0, max=1, help="The recall to reach.")] = 0.99,
    queries: Annotated[
        Path | None,
        typer.Option(help="Real queries: a text file with one per line. Default: use items of the index as queries."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="The model that encodes the queries. Default: the index's model.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda … Default: a GPU if there is one.")] = None,
    as_json: _Json = False,
) -> None:
    """Measure the recall of a search against a scan of all items.

    The search settings that reach the target recall are saved in the index.

    Examples:

      maxmatch index verify photos.index

      maxmatch index verify photos.index -k 100 --queries captions.txt
    """
    from maxmatch.search.set_index import SetIndex

    with SetIndex.open(index) as opened:
        sets = None
        if queries is not None:
            from maxmatch.cli.common import load_for_search, model_of, say
            from maxmatch.search.sources import list_source

            listed = list_source(queries, "text")
            for one in listed.left_out[:5]:
                say(f"left out: {one}")
            if len(listed.left_out) > 5:
                say(f"… and {len(listed.left_out) - 5:,} more")
            texts = list(listed.values)[:sample]
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
    """Show the contents and settings of an index.

    Examples:

      maxmatch index info photos.index

      maxmatch index info photos.index --json
    """
    from maxmatch.search.index_folder import model_version, read_origin
    from maxmatch.search.set_index import SetIndex

    with SetIndex.open(index) as opened:
        known: dict[str, Any] = {"path": str(index), **opened.info()}
        known["model_version"] = model_version(opened.folder, opened.manifest)
    origin = read_origin(index.expanduser())
    if origin is not None:
        known |= {"model_path": origin.model, "modality": origin.modality}
    _print(as_json, known, "\n".join(_lines(known)))


@app.command()
def compact(index: _Folder, as_json: _Json = False) -> None:
    """Free unused space, merge small files and update the index.

    Examples:

      maxmatch index compact photos.index
    """
    from maxmatch.search.set_index import SetIndex

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
        lines.append(f"Searches use {kept} from now on: {chosen.recall:.1%} found ({interval}).")
    else:
        lines.append("Every search scans all items, and finds all.")
    if not measured.reached:
        lines.append(f"Less than the {measured.target:.1%} asked for: search with --exact where it matters.")
    if not chosen.real_queries:
        lines.append("Measured with items of the index; use --queries FILE to measure with real queries.")
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
