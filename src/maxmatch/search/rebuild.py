"""The items of an index encoded again, as for a newer model; then they take the place of the old ones."""

import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
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
    FILE,
    FILES,
    Manifest,
    Origin,
    is_half_replaced,
    model_version,
    other_files,
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
    modality: str | None = None,
    bar: Bar = no_bar,
    say: Callable[[str], object] = lambda line: None,
    **options: Any,
) -> int:
    """Encode the items of an index again, and replace it; how many there were, 0 where its sets are of this model.

    Engine, precision, ids and metadata stay. Until the new index is complete the old one is there; it is not written to
    meanwhile. After a kill the next call resumes. name: of the model, as `name_to_record` gives it. source: where the
    items are now. missing: whether those that are gone, or cannot be read, are refused or left out. modality: None: as
    noted with the index, or guessed. say: is told where relative paths are looked up. options: of `encode_source`.
    """
    folder = folder.expanduser().resolve()
    new = rebuilt_folder(folder)
    finish_replacing(folder)
    if read_manifest(folder).engine == "milvus":  # and what is no index is refused before a lock is put there
        cure = "Build another one of them: maxmatch index build NEW --source … --engine milvus --uri …"
        raise ValueError(f"{folder}: its items are on a Milvus server. {cure}")
    with writing(folder), SetIndex.open(folder) as old:
        if old.manifest.model == model_identity(model):
            _clean(new)
            return 0
        listing = _items(old, model, name, source, missing, modality, say)
        added = _build_beside(old, new, model, name, listing, missing, bar, options)
        with writing(new):  # its lock is the index's from now on
            _refuse_other_files(folder)  # again: encoding takes long
            os.rename(folder, replaced_folder(folder))
            finish_replacing(folder)
            _clean(new)
    return added


def _clean(new: Path) -> None:
    """Remove what lies beside an index that is complete."""
    discard(new)
    shutil.rmtree(waiting_shards(new), ignore_errors=True)


def _items(
    old: SetIndex,
    model: SetEncoder,
    name: str,
    source: Path | None,
    missing: Literal["refuse", "ignore"],
    modality: str | None,
    say: Callable[[str], object],
) -> Listing:
    """What is to be encoded; refused where the index cannot be replaced, or not by this."""
    folder, origin = old.folder, read_origin(old.folder)
    _refuse_other_files(folder)
    if is_begun(folder):
        raise unfinished(folder)
    known = modality or (origin.modality if origin else None)
    listing = list_indexed(old, known, source, say)
    if listing.modality not in model.towers:
        raise ValueError(f"{name}: this model reads {', '.join(model.towers)}, not {listing.modality}.")
    if listing.left_out and (missing == "refuse" or not len(listing)):
        raise _gone(folder, old.manifest, listing, len(old), guessed=known is None)
    return listing


def _build_beside(
    old: SetIndex,
    new: Path,
    model: SetEncoder,
    name: str,
    listing: Listing,
    missing: Literal["refuse", "ignore"],
    bar: Bar,
    options: Mapping[str, Any],
) -> int:
    """Build the new index, complete in its own folder; how many items it has."""
    folder, manifest, shards = old.folder, old.manifest, waiting_shards(new)
    with bar(listing.modality, len(listing)) as advance:
        encode_for(new, model, listing, manifest.dtype, name=name, advance=advance, **options)
    incoming = from_shards([shards])
    if not incoming.items:
        raise ValueError(f"{folder}: nothing could be encoded. See {shards / SKIPPED} for the reasons.")
    if missing == "refuse" and incoming.items < len(listing):
        first = json.loads((shards / SKIPPED).read_text(encoding="utf-8").splitlines()[0])
        raise ValueError(
            f"{folder}: {len(listing) - incoming.items:,} of {len(listing):,} items could not be encoded "
            f"({first['id']}: {first['reason']}) To leave them out, which is quick now: --missing ignore. To try them "
            f"again, first remove {shards}"
        )
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
    shutil.copyfile(shards / SKIPPED, new / SKIPPED)
    return incoming.items


def _refuse_other_files(folder: Path) -> None:
    """What is not the index's would be deleted with it."""
    if others := other_files(folder, (*FILES, SKIPPED)):
        raise FileExistsError(
            f"{folder}: holds files that are not the index's ({others[0]}). Move them elsewhere, and run this again."
        )


def _gone(folder: Path, manifest: Manifest, listing: Listing, items: int, guessed: bool) -> FileNotFoundError:
    version, gone = model_version(folder, manifest), listing.left_out
    as_it_is = "" if version is None else f" To search the index as it is: install maxmatch {version}."
    other = TEXT if listing.modality == IMAGE else IMAGE
    guess = f" They were taken for {listing.modality}s; if they are not, give --modality {other}." if guessed else ""
    return FileNotFoundError(
        f"{folder}: {len(gone):,} of {items:,} items cannot be encoded again ({gone[0].reason}). If they have moved, "
        f"give --source FOLDER; to leave them out, --missing ignore.{guess}{as_it_is}"
    )


def finish_replacing(folder: Path) -> None:
    """Put the new index in its place where a killed process has moved the old one away, and remove the old one. Where
    there is no new one, the old one gets its place back.
    """
    new, old = rebuilt_folder(folder), replaced_folder(folder)
    if is_half_replaced(folder):
        os.rename(new if new.is_dir() else old, folder)
        sync(folder.parent)
    if (folder / FILE).is_file():
        shutil.rmtree(old, ignore_errors=True)


def list_indexed(
    index: SetIndex,
    modality: str | None = None,
    source: Path | None = None,
    say: Callable[[str], object] = lambda line: None,
) -> Listing:
    """The items of an index, to be encoded again. left_out: those that are gone, or whose place it does not note.

    Pictures by the path in their metadata, or else by their id, captions by their text, with their metadata and in
    their order. source: where they are now, by their ids; what it knows of them replaces what the index knows.
    """
    rows = [row for found in index.engine.scan(_SCAN, vectors=False, metadata=True) for row in _rows(found)]
    rows.sort()
    known = _Parsed([text for _, _, text in rows])
    if modality is None:
        modality = TEXT if rows and "text" in known[0] and "path" not in known[0] else IMAGE
    if source is not None:
        places = {name: place for place, (_, name, _) in enumerate(rows)}
        listing = list_source(source, modality)
        gone = [Skipped(name, f"{name}: not in {source}") for name in sorted(places.keys() - set(listing.ids))]
        listing = without(listing, set(listing.ids) - places.keys())
        merged = [{**known[places[name]], **new} for name, new in zip(listing.ids, listing.metadata, strict=True)]
        return replace(listing, metadata=merged, left_out=gone)
    values: list[str | Path] = []
    kept, gone = [], []
    relative = 0
    for place, (_, name, _) in enumerate(rows):
        facts = known[place]
        text, path = facts.get("text"), facts.get("path")
        file = Path(path if path and isinstance(path, str) else name)
        if modality == TEXT and isinstance(text, str):
            values.append(text)
            kept.append(place)
        elif modality == IMAGE and os.path.isfile(file) and not _is_other(file, facts):
            values.append(file)
            kept.append(place)
            relative += not file.is_absolute()
        else:
            reason = f"{name}: the index does not have its text"
            if modality == IMAGE:
                what = "of another size than the picture that was indexed" if os.path.isfile(file) else "no such file"
                reason = f"{file.absolute()}: {what}"
            gone.append(Skipped(name, reason))
    root = index.folder
    if relative:
        root = Path.cwd()  # what is encoded in another folder is another source
        say(f"{index.folder}: {relative:,} relative paths are looked up in {root}")
    metadata = _Parsed([rows[place][2] for place in kept])
    return Listing(root, "index", modality, values, [rows[place][1] for place in kept], metadata, gone)


def _is_other(file: Path, facts: Mapping[str, Any]) -> bool:
    """Whether a file that was found in the current folder is surely not the one that was indexed: of another size."""
    return not file.is_absolute() and {"size", "mtime"} <= facts.keys() and facts["size"] != file.stat().st_size


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
