"""A store of features: extracted once, appended to over several runs, read through a memory map.

    store.json     what the features are (`StoreInfo`); a folder without it is unfinished
    features.npy   (all features, width), the items one after the other
    counts.npy     how many features each item has
    ids.txt        the id of each item, one per line
    boxes.npy      (all features, 4) where each feature lies in the picture; not always there

While a store is written, features go to the disk first, then a line into the journal names their items. After a crash
the next process keeps the items in the journal and cuts off the rest. `FeatureWriter.finish` makes it a store.
"""

import json
import os
import time
import warnings
import zlib
from collections.abc import KeysView, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import TypeAdapter, ValidationError

from maxmatch.core.files import draft, lock, sync, whole
from maxmatch.core.manifest import problems
from maxmatch.data.dataset import (
    IMAGE,
    DataError,
    Dataset,
    Items,
    Problem,
    Report,
    Rows,
    Split,
    give_up,
    pick,
    refuse,
    same_item,
    without_groups,
)
from maxmatch.data.formats.shared import MANIFEST, read_lines

FORMAT, SCHEMA_VERSION = "maxmatch.FeatureStore", 1
INFO, IDS, JOURNAL = "store.json", "ids.txt", "features.journal"
FEATURES, COUNTS, BOXES = "features.npy", "counts.npy", "boxes.npy"
_EXTRACT = "Extract them: maxmatch data features."
_AGAIN = "Run the command that writes it again: it resumes."
_COMMIT_BYTES = 64 * 2**20
_COMMIT_SECONDS = 1.0  # of work at most are lost when the process is killed
_HEADER = 128  # bytes before a .npy array: enough for any shape, which is filled in at the end


@dataclass(frozen=True)
class StoreInfo:
    """What the features of a store are.

    source: where they come from, in words: the backbone and its preprocessing, or the files that were converted.
    grid: rows and columns of the features, where they are cells of a picture.
    """

    source: str
    width: int
    dtype: Literal["float16", "float32"] = "float32"
    grid: tuple[int, int] | None = None
    boxes: bool = False

    def text(self, **more: Any) -> str:
        """As JSON."""
        head = {"format": FORMAT, "schema_version": SCHEMA_VERSION}
        return json.dumps({**head, **asdict(self), **more}, ensure_ascii=False)

    @staticmethod
    def from_text(text: str) -> "StoreInfo":
        """From JSON. ValueError tells what is wrong with it."""
        data = json.loads(text)
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise ValueError(f"its format is not {FORMAT!r}")
        if data.get("schema_version") != SCHEMA_VERSION:
            raise ValueError(f"schema version {data.get('schema_version')!r}; this MaxMatch reads {SCHEMA_VERSION}")
        if missing := {"dtype", "grid", "boxes"} - data.keys():
            raise ValueError(f"it has no {', '.join(sorted(missing))}")
        try:
            return TypeAdapter(StoreInfo).validate_python(data)
        except ValidationError as error:
            raise ValueError(problems(error)) from error


@dataclass(frozen=True)
class FeatureStore:
    """The features of many items, read when they are asked for. boxes: where each feature lies in the picture."""

    folder: Path
    info: StoreInfo
    ids: Sequence[str]
    values: Rows
    boxes: Rows | None

    @staticmethod
    def open(folder: Path) -> "FeatureStore":
        """The store of a folder. DataError where it is unfinished, or its files do not belong together."""
        info = read_info(folder)
        features, counts = open_array(folder / FEATURES), open_array(folder / COUNTS)
        ids = [line or "" for _, line in read_lines(folder / IDS)]
        boxes = open_array(folder / BOXES) if info.boxes else None
        total = int(counts.sum())
        fits = len(ids) == len(counts) > 0 and features.dtype == info.dtype and features.shape == (total, info.width)
        if not fits or (boxes is not None and boxes.shape != (total, 4)):
            what = f"its files do not belong together: {len(ids)} ids, {len(counts)} counts, features {features.shape}"
            raise DataError(Problem(folder, what, "Copy the whole folder again.", fatal=True))
        values = _by_item(features, counts)
        return FeatureStore(folder, info, ids, values, None if boxes is None else _by_item(boxes, counts))

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def positions(self) -> dict[str, int]:
        """The position of each id."""
        return {name: position for position, name in enumerate(self.ids)}


def recognises(path: Path) -> bool:
    """Whether the folder is a store of features, finished or not."""
    return (path / INFO).is_file() or (path / JOURNAL).is_file()


def read_info(folder: Path) -> StoreInfo:
    """What a finished store holds."""
    file = folder / INFO
    if not file.is_file():
        if (folder / JOURNAL).is_file():
            raise DataError(Problem(folder, "the store of features is unfinished", _AGAIN, fatal=True))
        raise DataError(Problem(file, "missing: no store of features", "Give the folder that holds it.", fatal=True))
    try:
        return StoreInfo.from_text(file.read_text(encoding="utf-8"))
    except ValueError as error:
        what = f"not a store of features that can be read ({error})"
        raise DataError(Problem(file, what, "Copy it again, or upgrade MaxMatch.", fatal=True)) from error


def with_features(dataset: Dataset, store: FeatureStore, report: Report = refuse) -> Dataset:
    """The data set with the store's features, found by id, in place of its images. A group without them is left out."""
    known = store.positions
    images = [name for split in dataset.splits.values() for name in split[IMAGE].ids]
    if not any(name in known for name in images):
        what = f"features of {store.ids[0]!r} and others, but of no image of {dataset.path}, such as {images[:1]}"
        give_up(
            report, Problem(store.folder / IDS, what, "The ids are not the same: extract the features from this data.")
        )
    splits = {}
    for name, split in dataset.splits.items():
        items = split[IMAGE]
        absent = np.array([image not in known for image in items.ids], np.bool_)
        for place in np.flatnonzero(absent).tolist():
            what = f"no features of image {items.ids[place]!r} of the split {name!r}, whose group is left out"
            report(Problem(store.folder / IDS, what, _EXTRACT))
        kept = without_groups(split, items.groups[absent])
        if kept.size:
            found = np.array([known[image] for image in kept[IMAGE].ids], np.int64)
            splits[name] = Split({**kept.items, IMAGE: replace(kept[IMAGE], values=pick(store.values, found))})
    return replace(dataset, splits=splits)


def _by_item(array: np.ndarray, counts: np.ndarray) -> Rows:
    if (counts == counts[0]).all():
        return Rows(array.reshape(len(counts), int(counts[0]), -1), np.arange(len(counts)))
    return Rows(array, np.arange(len(counts)), np.concatenate([[0], np.cumsum(counts)]))


def open_array(file: Path) -> np.ndarray:
    """A .npy file as a memory map. DataError where it is none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # SCAN wrote its arrays with Python 2, which is harmless
            return np.lib.format.open_memmap(file, mode="r")  # of a .npy and nothing else, never of a pickle
    except (ValueError, OSError, EOFError) as error:
        what = f"not a whole .npy array of numbers ({error})"
        raise DataError(Problem(file, what, "Fetch or copy it again.", fatal=True)) from error


def distinct_images(splits: Mapping[str, Split]) -> dict[str, tuple[str, int]]:
    """Where each image is, by its id: the first split that has it, and its place there. ValueError where another split
    has another image under the same id, for a store knows an image by its id.
    """
    found: dict[str, tuple[str, int]] = {}
    for name, split in splits.items():
        for number, image in enumerate(split[IMAGE].ids):
            first, there = found.setdefault(image, (name, number))
            if first != name and not same_item(splits[first][IMAGE].values[there], split[IMAGE].values[number]):
                raise ValueError(
                    f"image {image!r} of the split {first!r} is another in {name!r}: a store knows an image by its id. "
                    "Make a store of each split, with --split."
                )
    return found


class FeatureWriter:
    """Appends items to a store that is not finished. Use it in a `with`, which keeps what was appended.

    An unfinished folder of an earlier process is continued: `done` are the ids that are there already. Of a
    finished store all are done. ValueError where the folder holds other features than those described by `info`.
    """

    def __init__(self, folder: Path, info: StoreInfo) -> None:
        self.folder, self.info = folder, info
        self._counts: dict[str, int] = {}
        self._journal: _Journal | None = None
        if (folder / INFO).is_file():
            _check_same(folder, read_info(folder), info)
            self._counts = dict.fromkeys(FeatureStore.open(folder).ids, 0)
            (folder / JOURNAL).unlink(missing_ok=True)
            return
        if not (folder / JOURNAL).exists() and _others(folder):
            raise FileExistsError(f"{folder}: holds files, but no store of features. Choose a new folder.")
        folder.mkdir(parents=True, exist_ok=True)
        self._journal = _Journal(folder / JOURNAL, info)
        self._arrays = [AppendableNpy(folder / FEATURES, np.dtype(info.dtype), (info.width,))]
        if info.boxes:
            self._arrays.append(AppendableNpy(folder / BOXES, np.dtype(np.float32), (4,)))
        self._resume(self._journal)
        self._pending: list[str] = []
        self._pending_bytes, self._last_commit = 0, time.monotonic()
        self._failed = False

    @property
    def done(self) -> KeysView[str]:
        """The ids of the items that are there, in their order."""
        return self._counts.keys()

    def append(
        self,
        ids: Sequence[str],
        features: Sequence[np.ndarray] | np.ndarray,
        boxes: Sequence[np.ndarray] | np.ndarray | None = None,
    ) -> None:
        """Add items: ids, features (at least one, width) of each, and boxes (as many, 4) where the store has them."""
        if self._journal is None:
            raise ValueError(f"{self.folder}: the store is finished. Write what is new to another folder.")
        assert len(ids) == len(features)
        assert (boxes is not None) == self.info.boxes
        for place, (name, item) in enumerate(zip(ids, features, strict=True)):
            self._check(name, item, None if boxes is None else boxes[place])
        if len(set(ids)) != len(ids):
            raise ValueError(f"{self.folder}: an id comes twice among {list(ids)[:8]}… Give each item its own.")
        items = [_converted(name, item, self.info.dtype) for name, item in zip(ids, features, strict=True)]
        self._failed = True  # until all is written: half an item must not be kept
        for array, values in zip(self._arrays, [items] if boxes is None else [items, boxes], strict=True):
            for value in values:
                array.append(value)
        self._failed = False
        self._counts.update((name, len(item)) for name, item in zip(ids, items, strict=True))
        self._pending += ids
        self._pending_bytes += sum(item.nbytes for item in items)
        if self._pending_bytes >= _COMMIT_BYTES or time.monotonic() - self._last_commit >= _COMMIT_SECONDS:
            self.commit()

    def commit(self) -> None:
        """Put all that was appended on the disk, so that a crash does not lose it."""
        if self._journal is None or not self._pending:
            return
        for array in self._arrays:
            array.sync()
        self._journal.add({"ids": self._pending, "counts": [self._counts[name] for name in self._pending]})
        self._pending, self._pending_bytes, self._last_commit = [], 0, time.monotonic()

    def finish(self) -> FeatureStore:
        """Make it a store, and open that."""
        if self._journal is not None:
            if not self._counts:
                raise ValueError(f"{self.folder}: no features were appended; a store holds at least one item.")
            self.commit()
            for array in self._arrays:
                array.finish()
            with whole(self.folder / COUNTS) as file:
                np.save(file, np.array(list(self._counts.values()), np.int64), allow_pickle=False)
            with whole(self.folder / IDS) as file:
                file.writelines(f"{name}\n".encode() for name in self._counts)
            with whole(self.folder / INFO) as file:
                file.write(self.info.text(count=len(self._counts)).encode() + b"\n")
            self._journal.remove()
            self._journal = None
        return FeatureStore.open(self.folder)

    def close(self) -> None:
        """Keep what was appended, and let go of the files."""
        if self._journal is None:
            return
        if not self._failed:
            self.commit()
        for array in self._arrays:
            array.close()
        self._journal.close()
        self._journal = None

    def __enter__(self) -> "FeatureWriter":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _resume(self, journal: "_Journal") -> None:
        """Keep the items that are whole: those in the journal, as far as the arrays reach."""
        there = min(array.rows for array in self._arrays)
        total, kept = 0, 1
        for _, record in journal.records[1:]:
            rows = total + sum(record["counts"])
            if rows > there:
                break
            total, kept = rows, kept + 1
            self._counts.update(zip(record["ids"], record["counts"], strict=True))
        journal.keep(kept)
        for array in self._arrays:
            array.truncate(total)

    def _check(self, name: str, item: np.ndarray, boxes: np.ndarray | None) -> None:
        if not name or not name.isprintable():
            raise ValueError(f"{self.folder}: the id {name!r} does not fit on a line. Give the item another.")
        if name in self._counts:
            raise ValueError(f"{self.folder}: {name!r} is there already. Leave out what is in `done`.")
        if item.ndim != 2 or item.shape[1] != self.info.width or not len(item):
            raise ValueError(
                f"features of {name!r}: expected (at least one, {self.info.width}), got {item.shape}. "
                "All features of a store have one width."
            )
        if self.info.grid is not None and len(item) != self.info.grid[0] * self.info.grid[1]:
            raise ValueError(f"features of {name!r}: expected the grid {self.info.grid}, got {len(item)} features.")
        if boxes is not None and boxes.shape != (len(item), 4):
            raise ValueError(f"boxes of {name!r}: expected {(len(item), 4)}, got {boxes.shape}.")


class AppendableNpy:
    """A .npy file to which rows are appended. It gets its name, and its header, when it is finished.

    Rows that an earlier process wrote are kept: `rows` is the number of complete ones.
    """

    def __init__(self, path: Path, dtype: np.dtype, row: tuple[int, ...]) -> None:
        self.path, self.dtype, self.row = path, dtype, row
        self._row_bytes = dtype.itemsize * int(np.prod(row, dtype=np.int64))
        if path.exists():  # its process ended between the renaming and whatever makes the array part of something
            os.replace(path, draft(path))
        self._file = open(draft(path), "r+b" if draft(path).exists() else "w+b")  # noqa: SIM115 (closed by close)
        size = self._file.seek(0, os.SEEK_END)
        self.rows = max(size - _HEADER, 0) // self._row_bytes
        self.truncate(self.rows)

    def append(self, rows: np.ndarray) -> None:
        """Add rows at the end, converted to the array's type."""
        assert rows.shape[1:] == self.row
        self._file.write(np.ascontiguousarray(rows, self.dtype).data.cast("B") if rows.size else b"")
        self.rows += len(rows)

    def written(self) -> np.ndarray:
        """The rows that are there, as a memory map."""
        self._file.flush()
        if not self.rows:
            return np.zeros((0, *self.row), self.dtype)
        return np.memmap(draft(self.path), self.dtype, "r", _HEADER, (self.rows, *self.row))

    def truncate(self, rows: int) -> None:
        """Keep only the first rows."""
        assert rows <= self.rows
        self._file.seek(0)
        self._file.write(_header(self.dtype, (rows, *self.row)))
        self._file.flush()
        self._file.truncate(_HEADER + rows * self._row_bytes)
        self._file.seek(0, os.SEEK_END)
        self.rows = rows

    def sync(self) -> None:
        """Wait until all rows are on the disk for good."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file; appending to it can be resumed."""
        self._file.close()

    def finish(self) -> None:
        """Give the array its header and its name."""
        self.truncate(self.rows)
        self.sync()
        self.close()
        os.replace(draft(self.path), self.path)
        sync(self.path.parent)


def _header(dtype: np.dtype, shape: tuple[int, ...]) -> bytes:
    """The beginning of a .npy file, version 1.0, always equally long."""
    start = b"\x93NUMPY\x01\x00" + (_HEADER - 10).to_bytes(2, "little")
    text = repr({"descr": dtype.str, "fortran_order": False, "shape": shape}).encode()
    assert len(start) + len(text) < _HEADER
    return start + text.ljust(_HEADER - len(start) - 1) + b"\n"


class _Journal:
    """Lines of JSON behind their checksums: first what the features are, then which items were added.

    One process at a time holds it. A last line that is not whole is cut off.
    """

    def __init__(self, path: Path, info: StoreInfo) -> None:
        self._path = path
        self._file = path.open("a+b")
        self.records: list[tuple[int, dict[str, Any]]] = []  # each with the place of its end
        try:
            lock(self._file, path.parent)
            self._file.seek(0)
            for line in self._file:
                checksum, _, text = line.rstrip(b"\n").partition(b" ")
                if not line.endswith(b"\n") or checksum != b"%08x" % zlib.crc32(text):
                    break
                end = self.records[-1][0] if self.records else 0
                self.records.append((end + len(line), json.loads(text)))
            self.keep(len(self.records))
            if self.records:
                _check_same(path.parent, StoreInfo.from_text(self.records[0][1]["info"]), info)
            else:
                self.records.append((self.add({"info": info.text()}), {}))
                sync(path.parent)
        except BaseException:
            self._file.close()
            raise

    def add(self, record: dict[str, Any]) -> int:
        """Write a line, on the disk for good. Returns where it ends."""
        text = json.dumps(record).encode()
        self._file.write(b"%08x %s\n" % (zlib.crc32(text), text))
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def keep(self, count: int) -> None:
        """Keep only the first records."""
        self._file.truncate(self.records[count - 1][0] if count else 0)

    def close(self) -> None:
        """Let another process have it."""
        self._file.close()

    def remove(self) -> None:
        """Remove the file, when it is no longer needed."""
        self._path.unlink()
        self._file.close()


def _others(folder: Path) -> bool:
    """Whether there is anything in the folder but what is written before a store is begun."""
    return folder.is_dir() and any(entry.name != MANIFEST for entry in folder.iterdir())


def _check_same(folder: Path, there: StoreInfo, asked: StoreInfo) -> None:
    """Refuse to mix features of different kinds."""
    names = [field.name for field in fields(StoreInfo) if getattr(there, field.name) != getattr(asked, field.name)]
    if names:
        differences = ", ".join(f"{name} {getattr(there, name)!r} and not {getattr(asked, name)!r}" for name in names)
        raise ValueError(f"{folder}: holds other features: {differences}. Choose a new folder, or remove this one.")


def _converted(name: str, item: np.ndarray, dtype: str) -> np.ndarray:
    try:
        with np.errstate(over="raise"):
            return item.astype(dtype, copy=False)
    except FloatingPointError as error:
        raise ValueError(f"features of {name!r}: too large for {dtype}. Write the store in float32.") from error


def check_features(items: Items, one_shape: bool) -> np.ndarray:
    """The first of some items, all of which have to be features; of one shape, too, where that is asked for.

    What lies on the disk is looked at when it is written.
    """
    first = checked_features(items.values[0], items.ids[0], None)
    if one_shape and isinstance(items.values, Rows):
        counts = items.values.counts
        place = int(np.argmax(counts != counts[0]))
        checked_features(items.values[place], items.ids[place], first)
    if isinstance(items.values, list):
        for name, value in zip(items.ids, items.values, strict=True):
            checked_features(value, name, first if one_shape else None)
    return first


def checked_features(value: Any, name: str, like: np.ndarray | None) -> np.ndarray:
    """The value, if it is an array of features of the same shape and type as another."""
    if not isinstance(value, np.ndarray) or value.ndim != 2 or value.dtype.kind != "f":
        shape = f"{value.dtype} {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
        raise ValueError(
            f"image {name!r}: expected features, a floating-point array (regions, width), got {shape}. "
            "Extract them first with: maxmatch data features"
        )
    if like is not None and (value.shape, value.dtype) != (like.shape, like.dtype):
        raise ValueError(
            f"image {name!r} has features {value.dtype} {value.shape}, those before {like.dtype} {like.shape}: "
            "in this format all have one shape and type. Choose another format."
        )
    return value
