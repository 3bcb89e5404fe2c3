"""The items of an index encoded again, as for a newer model; then they take the place of the old ones."""

import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from maxmatch import __version__
from maxmatch.core.files import sync
from maxmatch.core.progress import Bar, Skipped, no_bar
from maxmatch.data.dataset import IMAGE, TEXT
from maxmatch.model.encoder import SetEncoder
from maxmatch.model.names import model_identity
from maxmatch.search.encode_files import encode_for, waiting_shards
from maxmatch.search.engine import Found
from maxmatch.search.index_folder import (
    Manifest,
    Origin,
    is_half_replaced,
    model_version,
    read_manifest,
    read_origin,
    rebuilt_folder,
    replaced_folder,
    write_origin,
    writing,
)
from maxmatch.search.ingest import build, discard, from_shards, is_begun, unfinished
from maxmatch.search.set_index import SetIndex
from maxmatch.search.shards import SKIPPED
from maxmatch.search.sources import Listing, list_source, without

_SCAN = 4_096


def rebuild(
    folder: Path,
    model: SetEncoder,
    name: str,
    source: Path | None = None,
    missing: Literal["refuse", "ignore"] = "refuse",
    *,
    bar: Bar = no_bar,
    **options: Any,
) -> int:
    """Encode the items of an index again, and replace it; how many there were, 0 where its sets are of this model.

    Engine, precision, ids and metadata stay. Until the new index is complete the old one is there; it is not written to
    meanwhile. After a kill the next call resumes. name: of the model, as `name_to_record` gives it. source: where the
    items are now. missing: whether those that are gone are refused or left out. options: of `encode_source`.
    """
    folder = folder.expanduser().resolve()
    new = rebuilt_folder(folder)
    finish_replacing(folder)
    if read_manifest(folder).engine == "milvus":  # and what is no index is refused before a lock is put there
        cure = "Build another one of them: maxmatch index build NEW --source … --engine milvus --uri …"
        raise ValueError(f"{folder}: its items are on a Milvus server. {cure}")
    with writing(folder), SetIndex.open(folder) as old:
        added = 0
        if old.manifest.model != model_identity(model):
            added = _build_beside(old, new, model, name, source, missing, bar, options)
            os.rename(folder, replaced_folder(folder))
            finish_replacing(folder)
    discard(new)
    shutil.rmtree(waiting_shards(new), ignore_errors=True)
    return added


def _build_beside(
    old: SetIndex,
    new: Path,
    model: SetEncoder,
    name: str,
    source: Path | None,
    missing: Literal["refuse", "ignore"],
    bar: Bar,
    options: Mapping[str, Any],
) -> int:
    """Build the new index, complete in its own folder; how many items it has."""
    folder, manifest, origin = old.folder, old.manifest, read_origin(old.folder)
    if is_begun(folder):
        raise unfinished(folder)
    listing = list_indexed(old, origin.modality if origin else None, source)
    if listing.modality not in model.towers:
        raise ValueError(f"{name}: this model reads {', '.join(model.towers)}, not {listing.modality}.")
    if listing.left_out and (missing == "refuse" or not len(listing)):
        raise _gone(folder, manifest, listing.left_out, len(old))
    with bar(listing.modality, len(listing)) as advance:
        encode_for(new, model, listing, manifest.dtype, name=name, advance=advance, **options)
    incoming = from_shards([waiting_shards(new)])
    if not incoming.items:
        raise ValueError(f"{folder}: nothing could be encoded. See {waiting_shards(new) / SKIPPED} for the reasons.")
    discard(new)  # what a killed process has filled; filling is quick, unlike encoding
    create = partial(
        SetIndex.create,
        new,
        incoming.dim,
        incoming.set_size,
        model=model,
        dtype=manifest.dtype,
        engine=manifest.engine,
        settings=manifest.settings,
    )
    with bar("items", incoming.items) as advance:
        build(new, incoming, create, advance).close()
    write_origin(new, Origin(name, listing.modality, __version__))
    shutil.copyfile(waiting_shards(new) / SKIPPED, new / SKIPPED)
    return incoming.items


def _gone(folder: Path, manifest: Manifest, gone: Sequence[Skipped], items: int) -> FileNotFoundError:
    version = model_version(folder, manifest)
    as_it_is = "" if version is None else f' To search the index as it is: pip install "maxmatch=={version}"'
    return FileNotFoundError(
        f"{folder}: {len(gone):,} of {items:,} items cannot be encoded again ({gone[0].reason}). If they have moved, "
        f"give --source FOLDER; to leave them out, --missing ignore.{as_it_is}"
    )


def finish_replacing(folder: Path) -> None:
    """Put the new index in its place where a killed process has moved the old one away, and remove the old one."""
    if is_half_replaced(folder):
        os.rename(rebuilt_folder(folder), folder)
        sync(folder.parent)
    shutil.rmtree(replaced_folder(folder), ignore_errors=True)


def list_indexed(index: SetIndex, modality: str | None = None, source: Path | None = None) -> Listing:
    """The items of an index, to be encoded again. left_out: those that are gone, or whose place it does not note.

    Pictures by the path in their metadata, or else by their id, captions by their text, with their metadata and in
    their order. source: where they are now, by their ids, with the metadata that they have there.
    """
    rows = [row for found in index.engine.scan(_SCAN, vectors=False, metadata=True) for row in _rows(found)]
    rows.sort()
    known = _Parsed([text for _, _, text in rows])
    if modality is None:
        modality = TEXT if rows and "text" in known[0] and "path" not in known[0] else IMAGE
    if source is not None:
        ids = {name for _, name, _ in rows}
        listing = list_source(source, modality)
        gone = [Skipped(name, f"{name}: not in {source}") for name in sorted(ids.difference(listing.ids))]
        return replace(without(listing, set(listing.ids) - ids), left_out=gone)
    values: list[str | Path] = []
    kept, gone = [], []
    for place, (_, name, _) in enumerate(rows):
        text, path = (known[place].get(key) for key in ("text", "path"))
        file = Path(path or name)
        if modality == TEXT and isinstance(text, str):
            values.append(text)
            kept.append(place)
        elif modality == IMAGE and file.is_file():
            values.append(file)
            kept.append(place)
        else:
            reason = f"{path}: no such file" if path else f"{name}: the index does not note where it is"
            gone.append(Skipped(name, reason))
    metadata = _Parsed([rows[place][2] for place in kept])
    return Listing(index.folder, "index", modality, values, [rows[place][1] for place in kept], metadata, gone)


def _rows(found: Found) -> Iterable[tuple[int, str, str]]:
    return zip(found.added.tolist(), found.ids, found.metadata or [], strict=True)


class _Parsed(Sequence[Mapping[str, Any]]):
    """Metadata that are kept as JSON, in a fraction of the memory."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, place: Any) -> Any:
        return json.loads(self._texts[place])
