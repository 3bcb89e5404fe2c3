"""`maxmatch index build` and `add`: from shards, arrays of others, or a source that is encoded on the way."""

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from maxmatch.cli.interrupts import going_on

if TYPE_CHECKING:
    from maxmatch.search.index import SetIndex
    from maxmatch.search.parcels import Cargo

_From = Annotated[list[Path] | None, typer.Option("--from", help="A folder of `maxmatch encode`; may be given again.")]
_Sets = Annotated[Path | None, typer.Option(help="Another program's sets: a .npy (items, K, D) of unit vectors.")]
_Ids = Annotated[Path | None, typer.Option(help="Their ids: a text file with one a line.")]
_Metadata = Annotated[Path | None, typer.Option(help="What is known about them: a table with a row each.")]
_Source = Annotated[Path | None, typer.Option(help="What to encode first: pictures, a table, tars, a .txt.")]
_Modality = Annotated[str | None, typer.Option(help="Of --source: image, text … Default: image.")]
_Device = Annotated[str | None, typer.Option(help="cpu, cuda … Default: a GPU where there is one.")]
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
        typer.Option(help="Of --source (default: the one that ships), or what made --sets. Shards know theirs."),
    ] = None,
    engine: Annotated[
        Literal["lance", "exhaustive", "milvus"], typer.Option(help="lance: files. milvus: a server, see --uri.")
    ] = "lance",
    uri: Annotated[str | None, typer.Option(help="Where the Milvus server is: http://localhost:19530")] = None,
    dtype: Annotated[Literal["fp16", "fp32"] | None, typer.Option(help="Default: that of the sets.")] = None,
    similarity: Annotated[str | None, typer.Option(help="Default: the model's, or maxmatch.")] = None,
    stability: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="How often slot i of a query meets slot i of its item. Default: the model's."),
    ] = None,
    device: _Device = None,
    as_json: _Json = False,
) -> None:
    """Make an index. One that was killed goes on when the same command runs again, and adds nothing twice.

    Examples:

      maxmatch index build photos --from sets

      maxmatch index build photos --source ~/Pictures

      maxmatch index build mine --sets sets.npy --ids ids.txt --metadata meta.parquet --model runs/coco/best

      maxmatch index build photos --from sets --engine milvus --uri http://localhost:19530
    """
    from maxmatch.cli.loading import default_model, load_model, located
    from maxmatch.cli.progress import bar
    from maxmatch.search.filling import build as fill
    from maxmatch.search.filling import refuse_index
    from maxmatch.search.index import SetIndex
    from maxmatch.search.origin import Origin, write_origin

    if (engine == "milvus") != (uri is not None):
        raise typer.BadParameter("--engine milvus and --uri go together")
    if source is not None and model is None:
        model = default_model()
    folder = index.expanduser()
    refuse_index(folder)  # before hours of encoding
    encoder = load_model(model, device) if model is not None else None
    cargo = _cargo(folder, shards, sets, ids, metadata, source, modality, encoder, model, dtype)
    made_by = cargo.made_by
    if encoder is not None:
        _check_model(encoder, cargo, model)
    settings: dict[str, Any] = {} if uri is None else {"uri": uri}
    precision = {"fp16": "float16", "fp32": "float32"}.get(dtype or "", made_by.dtype if made_by else "float32")

    def create() -> SetIndex:
        return SetIndex.create(
            folder,
            cargo.dim,
            cargo.set_size,
            model=encoder if encoder is not None else made_by.identity if made_by else None,
            similarity=similarity or (made_by.similarity if made_by else None),
            stability=stability if stability is not None else made_by.stability if made_by else None,
            dtype=precision,
            engine=engine,
            settings=settings,
        )

    with going_on(index), bar("items", cargo.items) as advance:
        opened = fill(folder, cargo, create, advance)
    name = located(model) if model is not None else made_by.model if made_by else None
    if name is not None:
        write_origin(folder, Origin(name, made_by.modality if made_by else modality))
    _finish(opened, index, cargo, source, as_json)


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
        Literal["refuse", "skip", "replace"], typer.Option(help="What to do with ids that are in the index.")
    ] = "refuse",
    device: _Device = None,
    as_json: _Json = False,
) -> None:
    """Add items to an index. What was killed goes on when the same command runs again, and adds nothing twice.

    Examples:

      maxmatch index add photos --from more_sets

      maxmatch index add photos --source ~/Pictures --existing skip

      maxmatch index add mine --sets more.npy --ids more.txt --existing replace
    """
    from maxmatch.cli.loading import load_model, model_of
    from maxmatch.cli.progress import bar
    from maxmatch.search.filling import add as fill
    from maxmatch.search.index import SetIndex
    from maxmatch.search.origin import read_origin

    folder = index.expanduser()
    opened = SetIndex.open(folder)
    manifest = opened.manifest
    encoder = model_of(opened, folder, model, device, load_model) if source is not None else None
    origin = read_origin(folder)
    name = model or (origin.model if origin else None)
    keep = opened if existing == "skip" else None
    precision: Literal["fp16", "fp32"] = "fp16" if manifest.dtype == "float16" else "fp32"
    modality = modality or (origin.modality if origin else None)
    cargo = _cargo(folder, shards, sets, ids, metadata, source, modality, encoder, name, precision, keep)
    if cargo.made_by is not None and manifest.model is not None and cargo.made_by.identity != manifest.model:
        raise ValueError(
            f"{index}: another model made its sets ({origin.model if origin else manifest.model}) than these "
            f"({cargo.made_by.model}). Encode again with the index's model, or build another index."
        )
    with going_on(index), bar("items", cargo.items) as advance:
        fill(opened, cargo, existing, advance)
    _finish(opened, index, cargo, source, as_json)


def _cargo(
    folder: Path,
    shards: list[Path] | None,
    sets: Path | None,
    ids: Path | None,
    metadata: Path | None,
    source: Path | None,
    modality: str | None,
    encoder: Any,
    name: str | None,
    dtype: Literal["fp16", "fp32"] | None,
    keep: "SetIndex | None" = None,
) -> "Cargo":
    """What is to be added, by whichever of the three ways was named."""
    from maxmatch.search.parcels import array_cargo, shards_cargo

    if sum(way is not None for way in (shards or None, sets, source)) != 1:
        raise typer.BadParameter("say what to add, in one way: --from SHARDS, --sets with --ids, or --source")
    if sets is not None:
        if ids is None:
            raise typer.BadParameter("--sets needs --ids, a text file with one a line")
        return array_cargo(sets.expanduser(), ids.expanduser(), metadata.expanduser() if metadata else None)
    if ids is not None or metadata is not None:
        raise typer.BadParameter("--ids and --metadata go with --sets; what was encoded has its own")
    if shards:
        return shards_cargo([one.expanduser() for one in shards])
    assert source is not None
    assert name is not None
    return _encoded(folder, source, modality, encoder, name, dtype, keep)


def _encoded(
    folder: Path,
    source: Path,
    modality: str | None,
    encoder: Any,
    name: str,
    dtype: Literal["fp16", "fp32"] | None,
    keep: "SetIndex | None",
) -> "Cargo":
    """The items of a source, encoded beside the index. keep: an index whose items are not encoded again."""
    from maxmatch.cli.encode import first_reasons
    from maxmatch.cli.loading import located
    from maxmatch.cli.progress import bar, cores, say
    from maxmatch.search.filling import is_begun, unfinished
    from maxmatch.search.origin import encode_for, waiting_shards
    from maxmatch.search.parcels import shards_cargo
    from maxmatch.search.shards import SKIPPED, read_manifest
    from maxmatch.search.sources import list_source, without

    place = waiting_shards(folder)
    if is_begun(folder):  # by a process that was killed while it filled the index, with all encoded
        if place.exists() and read_manifest(place).source == str(source.expanduser().absolute()):
            return shards_cargo([place])
        raise unfinished(folder)
    listing = list_source(source, modality)
    if keep is not None:
        listing = without(listing, keep.engine.present(list(listing.ids)))
    say(f"{source}: {len(listing):,} items ({listing.modality}, {listing.format})")
    precision: Literal["float16", "float32"] = "float32" if dtype == "fp32" else "float16"
    batch = 16 if encoder.device.type == "cpu" else 64
    with going_on(source), bar(listing.modality, len(listing)) as advance:
        manifest = encode_for(
            folder, encoder, listing, precision, located(name), batch, cores(), advance,
            first_reasons(folder / SKIPPED),
        )  # fmt: skip
    if not manifest.encoded and keep is None:
        raise ValueError(f"{source}: nothing could be encoded. {place / SKIPPED} says why.")
    return shards_cargo([place])


def _check_model(encoder: Any, cargo: "Cargo", name: str | None) -> None:
    from maxmatch.search.identity import model_identity

    if cargo.made_by is not None and cargo.made_by.identity != model_identity(encoder):
        raise ValueError(
            f"{name}: another model than the one that made the sets ({cargo.made_by.model}). Leave it out."
        )
    if encoder.dim != cargo.dim or cargo.set_size not in encoder.set_sizes.values():
        sizes = ", ".join(f"{size} × {encoder.dim}" for size in sorted(set(encoder.set_sizes.values())))
        raise ValueError(f"{name}: makes sets {sizes}; these are {cargo.set_size} × {cargo.dim}. Name their own model.")


def _finish(opened: "SetIndex", index: Path, cargo: "Cargo", source: Path | None, as_json: bool) -> None:
    """Say what was done, and tidy up."""
    from maxmatch.search.origin import waiting_shards
    from maxmatch.search.shards import SKIPPED

    items = len(opened)
    manifest = opened.manifest
    opened.close()
    if source is not None:
        place = waiting_shards(index)
        shutil.copyfile(place / SKIPPED, opened.folder / SKIPPED)
        shutil.rmtree(place)
    if as_json:
        facts = {"path": str(index), "added": cargo.items, "items": items, **manifest.model_dump(mode="json")}
        print(json.dumps(facts))
        return
    print(
        f"{index}: {cargo.items:,} added; {items:,} items, sets {manifest.set_size} × {manifest.dim}, {manifest.engine}"
    )
