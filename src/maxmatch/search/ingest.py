"""Adding shards or arrays to an index: every item once, also where a process is killed and the next one resumes."""

import hashlib
import json
import shutil
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from maxmatch.core.files import write_whole
from maxmatch.core.progress import Advance, quiet
from maxmatch.core.ragged_array import RaggedArray
from maxmatch.data.dataset import DataError, Problem, refuse
from maxmatch.data.formats.shared import read_lines
from maxmatch.data.formats.tables import TABLES, value_of
from maxmatch.search.engine import present
from maxmatch.search.index_folder import FILE as INDEX_FILE
from maxmatch.search.index_folder import UNIT_TOLERANCE, checked_ids
from maxmatch.search.set_index import SetIndex
from maxmatch.search.shards import ShardError, ShardManifest, read_manifest, read_shard
from maxmatch.search.sources import plain

_BATCH_BYTES = 64 * 2**20


class IngestBatch(NamedTuple):
    """Items that are added at once."""

    ids: Sequence[str]
    sets: np.ndarray | RaggedArray
    metadata: Sequence[Mapping[str, Any]] | None


@dataclass(frozen=True)
class IngestSource:
    """All that is added. read(n) gives batch n of `count`, always the same; mark identifies the content."""

    mark: str
    items: int
    count: int
    set_size: int | None
    """None: of any size."""
    dim: int
    read: Callable[[int], IngestBatch]
    made_by: ShardManifest | None = None
    """The manifest of the shards, which names their model."""

    def batches(self, start: int = 0) -> Iterator[IngestBatch]:
        """All batches from number `start`."""
        return (self.read(number) for number in range(start, self.count))


def from_shards(folders: Sequence[Path]) -> IngestSource:
    """The sets of some folders of shards, all of one model and complete."""
    manifests = [read_manifest(folder) for folder in folders]
    first = manifests[0]
    for folder, manifest in zip(folders, manifests, strict=True):
        if manifest.encoded is None:
            raise ShardError(
                f"{folder}: the encoding is not finished. Run the same `maxmatch encode` again to resume it."
            )
        if manifest.identity != first.identity:
            raise ShardError(f"{folder}: made by another model than {folders[0]}. Build an index of each.")
        if (manifest.set_size, manifest.dim) != (first.set_size, first.dim):
            raise ShardError(f"{folder}: sets of another size than in {folders[0]}. Build an index of each.")
    places = [(at, number) for at, manifest in enumerate(manifests) for number in range(manifest.shards)]

    def read(number: int) -> IngestBatch:
        at, shard = places[number]
        found = read_shard(folders[at], shard, manifests[at])
        return IngestBatch(found.ids, found.sets, found.metadata)

    if len(folders) > 1:
        _refuse_twice(folders, places, read)
    marks = [[manifest.identity, manifest.source_digest, manifest.encoded, manifest.dtype] for manifest in manifests]
    items = sum(manifest.encoded or 0 for manifest in manifests)
    return IngestSource(_mark(marks), items, len(places), first.set_size, first.dim, read, first)


def from_arrays(sets: Path, ids: Path, metadata: Path | None = None) -> IngestSource:
    """Sets from a .npy (n, K, D), or of any size from a .npz; ids from a text file with one per line, metadata from a
    table of n rows. All of it is checked first; an error names the row.

    The .npz has all vectors one after the other, `vectors` (N, D), and how many each item has, `sizes` (n,).
    """
    array = _any_size(sets) if sets.suffix.lower() == ".npz" else _array(sets)
    names = checked_ids(read_ids(ids, distinct=True))
    if len(names) != len(array):
        what = f"{len(names):,} ids, and {len(array):,} sets in {sets}"
        raise _refusal(ids, what, "Give one id for each set, in the same order.")
    rows = None if metadata is None else _metadata(metadata, len(array), sets)
    width = array.values.shape[1] if isinstance(array, RaggedArray) else array.shape[2]
    numbers = len(array.values) * width // len(array) if isinstance(array, RaggedArray) else array.shape[1] * width
    step = max(1, _BATCH_BYTES // (numbers * 4))
    _check(array, names, sets, step)

    def read(number: int) -> IngestBatch:
        part = slice(number * step, (number + 1) * step)
        return IngestBatch(names[part], _floats(array[part]), None if rows is None else rows[part])

    files = [file.stat() for file in (sets, metadata) if file is not None]
    mark = _mark([[str(sets.absolute())], names, [[one.st_size, one.st_mtime_ns] for one in files]])
    size = None if isinstance(array, RaggedArray) else array.shape[1]
    return IngestSource(mark, len(names), -(-len(names) // step), size, width, read)


def read_ids(path: Path, distinct: bool = False) -> list[str]:
    """The ids in a text file, one per line, each listed once. distinct: one that comes again is refused."""
    lines: dict[str, int] = {}
    for number, line in read_lines(path):
        if not line:
            raise _refusal(path, "an empty line", "Write an id there, or remove it.", number)
        if lines.setdefault(line, number) != number and distinct:
            raise _refusal(path, f"the id {line!r} is in line {lines[line]}, too", "Give each item its own.", number)
    return list(lines)


def _refusal(path: Path, what: str, cure: str, line: int | None = None) -> DataError:
    return DataError(Problem(path, what, cure, line, fatal=True))


def _refuse_twice(
    folders: Sequence[Path], places: Sequence[tuple[int, int]], read: Callable[[int], IngestBatch]
) -> None:
    """Ids are distinct within a folder, but perhaps not among several."""
    owner: dict[str, int] = {}
    for number, (at, _) in enumerate(places):
        for name in read(number).ids:
            if owner.setdefault(name, at) != at:
                first = folders[owner[name]]
                raise ShardError(
                    f"{folders[at]}: {name!r} is in {first}, too. Build an index of each, or rename items."
                )


def _array(path: Path) -> np.ndarray:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        cure = "Write one with numpy.save(path, sets); it may be cut short."
        raise _refusal(path, f"not a readable .npy file ({error})", cure) from error
    if not isinstance(array, np.ndarray) or array.ndim != 3 or array.dtype not in (np.float16, np.float32, np.float64):
        shape = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else "several arrays"
        what = f"expected an array of numbers (items, K, D), found {shape}"
        raise _refusal(path, what, "For one vector per item: sets[:, None, :].")
    if not len(array):
        raise _refusal(path, "no sets in it", "Give at least one.")
    return array


def _any_size(path: Path) -> RaggedArray:
    cure = "Write it with numpy.savez(path, vectors=all_of_them, sizes=how_many_of_each_item)."
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as parts:
            vectors, sizes = parts["vectors"], parts["sizes"]
    except (ValueError, EOFError, KeyError, AttributeError, TypeError, zipfile.BadZipFile) as error:
        raise _refusal(path, f"not a readable .npz file of vectors and sizes ({error})", cure) from error
    if vectors.ndim != 2 or vectors.dtype.kind != "f" or sizes.ndim != 1 or sizes.dtype.kind not in "iu":
        what = f"expected vectors (N, D) and sizes (items), found {vectors.dtype} {vectors.shape} and {sizes.shape}"
        raise _refusal(path, what, cure)
    if not len(sizes) or int(sizes.min()) < 1 or int(sizes.sum()) != len(vectors):
        what = f"sizes of 1 or more that add up to the {len(vectors):,} vectors were expected, found {sizes.sum():,}"
        raise _refusal(path, what, cure)
    return RaggedArray(vectors, np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]))


def _floats(sets: np.ndarray | RaggedArray) -> np.ndarray | RaggedArray:
    """In half precision, if they are, or float32."""
    if isinstance(sets, RaggedArray):
        vectors = sets.flat()
        half = vectors.dtype == np.float16
        return RaggedArray(np.asarray(vectors, np.float16 if half else np.float32), sets.starts - sets.starts[0])
    return np.asarray(sets, np.float16 if sets.dtype == np.float16 else np.float32)


def _metadata(path: Path, count: int, sets: Path) -> list[dict[str, Any]]:
    suffix = path.suffix.lower()
    if suffix not in TABLES:
        what = f"metadata in a file that ends in {suffix or 'nothing'}"
        raise _refusal(path, what, f"Give a table: {', '.join(TABLES)}.")
    if not path.is_file():
        raise _refusal(path, "no such file", "Check the path.")
    # A row that cannot be read is refused: leaving it out would shift all others.
    rows = [plain(cells) for _, cells in TABLES[suffix](path, refuse)]
    if suffix in (".csv", ".tsv"):  # all cells are text: parsed as JSON where possible, as those of a table of pictures
        rows = [{name: value_of(cell) for name, cell in cells.items()} for cells in rows]
    if len(rows) != count:
        what = f"{len(rows):,} rows, and {count:,} sets in {sets}"
        raise _refusal(path, what, "Give one row for each set, in the same order.")
    return rows


def _check(array: np.ndarray | RaggedArray, names: Sequence[str], path: Path, step: int) -> None:
    for start in range(0, len(array), step):
        part = array[start : start + step]
        if isinstance(part, RaggedArray):
            vectors, starts = np.asarray(part.flat(), np.float32), part.starts - part.starts[0]
        else:
            vectors = np.asarray(part, np.float32).reshape(-1, part.shape[2])
            starts = np.arange(len(part) + 1) * part.shape[1]
        norms = np.sqrt(np.einsum("nd,nd->n", vectors, vectors))
        wrong = np.flatnonzero(~(np.abs(norms - 1) <= UNIT_TOLERANCE))
        if len(wrong):
            row = int(np.searchsorted(starts, wrong[0], side="right")) - 1
            own = norms[starts[row] : starts[row + 1]]
            what, cure = "NaN or infinite values", "Leave the item out."
            if np.isfinite(own).all():
                what = f"vectors of length {own.min():.3g} to {own.max():.3g}"
                cure = "Normalise: sets / numpy.linalg.norm(sets, axis=2, keepdims=True)."
            raise _refusal(path, f"{what}, of the item {names[start + row]!r}", cure, start + row + 1)


def _mark(parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


# While items are added, a note lies beside the index, `.NAME.filling`: what is being added, and how many batches are
# acknowledged. The first batch after those may be in the index already, its acknowledgement lost: it is written again.

Existing = Literal["refuse", "skip", "replace"]


def build(folder: Path, incoming: IngestSource, create: Callable[[], SetIndex], advance: Advance = quiet) -> SetIndex:
    """Build an index, or resume what a killed process began. create: makes the empty index."""
    refuse_index(folder)
    done = _begun(folder, incoming)
    if done is None:
        _note(folder, incoming, 0, builds=True)
    try:
        index = SetIndex.open(folder) if (folder / INDEX_FILE).exists() else create()
    except BaseException:
        if not done:
            _note_file(folder).unlink(missing_ok=True)
        raise
    return _fill(index, folder, incoming, done or 0, "refuse", advance, builds=True)


def refuse_index(folder: Path) -> None:
    """Refuse to build over an index, unless a killed process was building it."""
    note = _read_note(folder)
    if (folder / INDEX_FILE).exists() and not (note is not None and note.get("builds", True)):
        raise FileExistsError(
            f"{folder}: is an index already. Add to it with `maxmatch index add`, or remove it first."
        )


def add(index: SetIndex, incoming: IngestSource, existing: Existing = "refuse", advance: Advance = quiet) -> SetIndex:
    """Add items to an index, or resume where a killed process stopped. existing: what to do with ids that are there:
    refuse them all before anything is added, keep what the index has, or replace it.
    """
    folder = index.folder
    done = _begun(folder, incoming)
    if done is None:
        for batch in incoming.batches() if existing == "refuse" else ():
            known = present(index.engine, list(batch.ids))
            if known:
                first = next(name for name in batch.ids if name in known)
                raise ValueError(
                    f"{folder}: {first!r} is in the index already. Nothing was added: use --existing skip to keep "
                    "what is there, or --existing replace."
                )
        _note(folder, incoming, 0, builds=False)
    return _fill(index, folder, incoming, done or 0, existing, advance, builds=False)


def _fill(
    index: SetIndex, folder: Path, incoming: IngestSource, done: int, existing: Existing, advance: Advance, builds: bool
) -> SetIndex:
    for number, batch in enumerate(incoming.batches(done), start=done):
        new = _without(index, batch) if existing == "skip" else batch
        again = existing == "replace" or (existing == "refuse" and number == done)
        if len(new.ids):
            (index.upsert if again else index.add)(list(new.ids), new.sets, new.metadata, optimise=False)
        _note(folder, incoming, number + 1, builds)
        advance(len(batch.ids))
    index.compact()
    _note_file(folder).unlink(missing_ok=True)
    return index


def _without(index: SetIndex, batch: IngestBatch) -> IngestBatch:
    """The items of a batch that the index does not have."""
    known = present(index.engine, list(batch.ids))
    new = [place for place, name in enumerate(batch.ids) if name not in known]
    metadata = None if batch.metadata is None else [batch.metadata[place] for place in new]
    return IngestBatch([batch.ids[place] for place in new], batch.sets[np.array(new, np.int64)], metadata)


def _begun(folder: Path, incoming: IngestSource) -> int | None:
    """How many batches an earlier process has added; None where none was begun."""
    note = _read_note(folder)
    if note is None:
        return None
    if note["mark"] != incoming.mark:
        raise unfinished(folder)
    return int(note["done"])


def unfinished(folder: Path) -> FileExistsError:
    """The error for adding something else before an interrupted addition is finished."""
    return FileExistsError(
        f"{folder}: adding other items was interrupted. Run that command again to finish; or remove "
        f"{_note_file(folder)} to leave the index as it is."
    )


def discard(folder: Path) -> None:
    """Remove an index that was not completed, if there is one. First its note: without it nothing resumes."""
    _note_file(folder).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def is_begun(folder: Path) -> bool:
    """Whether something is being added to an index, or was when its process was killed."""
    return _read_note(folder) is not None


def _note(folder: Path, incoming: IngestSource, done: int, builds: bool) -> None:
    write_whole(_note_file(folder), json.dumps({"mark": incoming.mark, "done": done, "builds": builds}))


def _read_note(folder: Path) -> dict[str, Any] | None:
    try:
        note: dict[str, Any] = json.loads(_note_file(folder).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return note


def _note_file(folder: Path) -> Path:
    folder = folder.expanduser().resolve()
    return folder.with_name(f".{folder.name}.filling")
