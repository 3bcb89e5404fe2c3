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
import zlib
from collections.abc import KeysView, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from maxmatch.core.files import lock, sync, whole
from maxmatch.data.dataset import (
    IMAGE,
    DataError,
    Dataset,
    LazyItems,
    Padded,
    Problem,
    RaggedRows,
    Report,
    Rows,
    Split,
    give_up,
    pick,
    refuse,
    without_groups,
)
from maxmatch.data.formats.shared import MANIFEST, read_lines
from maxmatch.data.npy import AppendableNpy

FORMAT, SCHEMA_VERSION = "maxmatch.FeatureStore", 1
INFO, IDS, JOURNAL = "store.json", "ids.txt", "features.journal"
FEATURES, COUNTS, BOXES = "features.npy", "counts.npy", "boxes.npy"
_EXTRACT = "Extract them: maxmatch data features."
_AGAIN = "Run the command that writes it again: it resumes."


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
        if data.get("dtype") not in ("float16", "float32"):
            raise ValueError(f"features of type {data.get('dtype')!r}")
        try:
            grid = None if data["grid"] is None else (int(data["grid"][0]), int(data["grid"][1]))
            return StoreInfo(str(data["source"]), int(data["width"]), data["dtype"], grid, bool(data["boxes"]))
        except (KeyError, TypeError, IndexError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error


class FeatureStore(LazyItems):
    """The features of many items: item i is an array (features, width). Nothing is read before it is asked for.

    values: `Rows` where all items have equally many features, `RaggedRows` where not. boxes: likewise, or None.
    """

    def __init__(
        self, folder: Path, info: StoreInfo, ids: list[str], values: Rows | RaggedRows, boxes: Rows | RaggedRows | None
    ) -> None:
        self.folder, self.info, self.ids, self.values, self.boxes = folder, info, ids, values, boxes

    @staticmethod
    def open(folder: Path) -> "FeatureStore":
        """The store of a folder. DataError where it is unfinished, or its files do not belong together."""
        info = read_info(folder)
        features, counts = _array(folder / FEATURES), _array(folder / COUNTS)
        ids = [line or "" for _, line in read_lines(folder / IDS)]
        boxes = _array(folder / BOXES) if info.boxes else None
        total = int(counts.sum())
        fits = len(ids) == len(counts) > 0 and features.dtype == info.dtype and features.shape == (total, info.width)
        if not fits or (boxes is not None and boxes.shape != (total, 4)):
            what = f"its files do not belong together: {len(ids)} ids, {len(counts)} counts, features {features.shape}"
            raise DataError(Problem(folder, what, "Copy the whole folder again.", fatal=True))
        values = _by_item(features, counts)
        return FeatureStore(folder, info, ids, values, None if boxes is None else _by_item(boxes, counts))

    def __len__(self) -> int:
        return len(self.ids)

    def item(self, position: int) -> np.ndarray:
        """(features, width)"""
        return self.values.item(position)

    def __reduce__(self) -> tuple[Any, ...]:
        return (FeatureStore.open, (self.folder,))

    @cached_property
    def positions(self) -> dict[str, int]:
        """The position of each id."""
        return {name: position for position, name in enumerate(self.ids)}

    def rows(self, ids: Sequence[str]) -> np.ndarray:
        """The positions of some ids."""
        absent = [name for name in ids if name not in self.positions]
        if absent:
            raise ValueError(f"{self.folder}: no features of {len(absent)} ids, such as {absent[0]!r}. {_EXTRACT}")
        return np.array([self.positions[name] for name in ids], np.int64)

    def take(self, positions: Sequence[int] | np.ndarray) -> Padded:
        """A batch of items (items, most features, width), and which of the features are real."""
        if isinstance(self.values, RaggedRows):
            return self.values.take(positions)
        values = self.values.take(positions)
        return Padded(values, np.ones(values.shape[:2], np.bool_))


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
        found = store.rows(kept[IMAGE].ids)
        if len(found):
            stored = replace(kept[IMAGE], values=pick(store.values, found))
            splits[name] = Split({**kept.items, IMAGE: stored})
    return replace(dataset, splits=splits)


def _by_item(array: np.ndarray, counts: np.ndarray) -> Rows | RaggedRows:
    if (counts == counts[0]).all():
        return Rows(array.reshape(len(counts), int(counts[0]), -1), np.arange(len(counts)))
    return RaggedRows(array, np.concatenate([[0], np.cumsum(counts)]), np.arange(len(counts)))


def _array(file: Path) -> np.ndarray:
    try:
        return np.lib.format.open_memmap(file, mode="r")  # of a .npy and nothing else, never of a pickle
    except (ValueError, OSError, EOFError) as error:
        what = f"not a whole .npy array ({error})"
        raise DataError(Problem(file, what, "Copy the whole folder again.", fatal=True)) from error


_COMMIT_BYTES = 64 * 2**20
_COMMIT_SECONDS = 1.0  # of work at most are lost when the process is killed


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
            store = FeatureStore.open(folder)
            self._counts = dict.fromkeys(store.ids, 0)
            (folder / JOURNAL).unlink(missing_ok=True)
            return
        if not (folder / JOURNAL).exists() and _others(folder):
            raise FileExistsError(f"{folder}: holds files, but no store of features. Choose a new folder.")
        folder.mkdir(parents=True, exist_ok=True)
        self._journal = _Journal(folder / JOURNAL, info)
        self._features = AppendableNpy(folder / FEATURES, np.dtype(info.dtype), (info.width,))
        self._boxes = AppendableNpy(folder / BOXES, np.dtype(np.float32), (4,)) if info.boxes else None
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
        assert (boxes is None) == (self._boxes is None)
        for place, (name, item) in enumerate(zip(ids, features, strict=True)):
            self._check(name, item, None if boxes is None else boxes[place])
        if len(set(ids)) != len(ids):
            raise ValueError(f"{self.folder}: an id comes twice among {list(ids)[:8]}… Give each item its own.")
        converted = [_converted(name, item, self._features.dtype) for name, item in zip(ids, features, strict=True)]
        self._failed = True  # until all is written: half an item must not be kept
        for place, item in enumerate(converted):
            self._features.append(item)
            if self._boxes is not None and boxes is not None:
                self._boxes.append(np.asarray(boxes[place]))
        self._failed = False
        self._counts.update((name, len(item)) for name, item in zip(ids, converted, strict=True))
        self._pending += ids
        self._pending_bytes += sum(item.nbytes for item in converted)
        if self._pending_bytes >= _COMMIT_BYTES or time.monotonic() - self._last_commit >= _COMMIT_SECONDS:
            self.commit()

    def commit(self) -> None:
        """Put all that was appended on the disk, so that a crash does not lose it."""
        if self._journal is None or not self._pending:
            return
        self._features.sync()
        if self._boxes is not None:
            self._boxes.sync()
        self._journal.add({"ids": self._pending, "counts": [self._counts[name] for name in self._pending]})
        self._pending, self._pending_bytes, self._last_commit = [], 0, time.monotonic()

    def finish(self) -> FeatureStore:
        """Make it a store, and open that."""
        if self._journal is not None:
            if not self._counts:
                raise ValueError(f"{self.folder}: no features were appended; a store holds at least one item.")
            self.commit()
            self._features.finish()
            if self._boxes is not None:
                self._boxes.finish()
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
        for file in (self._features, self._boxes, self._journal):
            if file is not None:
                file.close()
        self._journal = None

    def __enter__(self) -> "FeatureWriter":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _resume(self, journal: "_Journal") -> None:
        """Keep the items that are whole: those in the journal, as far as the arrays reach."""
        arrays = [array for array in (self._features, self._boxes) if array is not None]
        there = min(array.rows for array in arrays)
        total, kept = 0, 1
        for record in journal.records[1:]:
            rows = total + sum(record["counts"])
            if rows > there:
                break
            total, kept = rows, kept + 1
            self._counts.update(zip(record["ids"], record["counts"], strict=True))
        journal.keep(kept)
        for array in arrays:
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


class _Journal:
    """Lines of JSON behind their checksums: first what the features are, then which items were added.

    One process at a time holds it. A last line that is not whole is cut off.
    """

    def __init__(self, path: Path, info: StoreInfo) -> None:
        self._path = path
        self._file = path.open("a+b")
        try:
            lock(self._file, path.parent)
            self._file.seek(0)
            self._ends, self.records = [0], []
            for line in self._file:
                record = _record(line)
                if record is None:
                    break
                self._ends.append(self._ends[-1] + len(line))
                self.records.append(record)
            self.keep(len(self.records))
            if not self.records:
                self.add({"info": info.text()})
                sync(path.parent)
            _check_same(path.parent, StoreInfo.from_text(self.records[0]["info"]), info)
        except BaseException:
            self._file.close()
            raise

    def add(self, record: dict[str, Any]) -> None:
        """Write a line, on the disk for good."""
        text = json.dumps(record).encode()
        line = b"%08x %s\n" % (zlib.crc32(text), text)
        self._file.write(line)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._ends.append(self._ends[-1] + len(line))
        self.records.append(record)

    def keep(self, count: int) -> None:
        """Keep only the first records."""
        self._file.truncate(self._ends[count])
        self._ends, self.records = self._ends[: count + 1], self.records[:count]

    def close(self) -> None:
        """Let another process have it."""
        self._file.close()

    def remove(self) -> None:
        """Remove the file, when it is no longer needed."""
        self._path.unlink()
        self._file.close()


def _record(line: bytes) -> dict[str, Any] | None:
    """The record in a line, if it is complete."""
    checksum, _, text = line.rstrip(b"\n").partition(b" ")
    if not line.endswith(b"\n") or checksum != b"%08x" % zlib.crc32(text):
        return None
    record: dict[str, Any] = json.loads(text)
    return record


def _others(folder: Path) -> bool:
    """Whether there is anything in the folder but what is written before a store is begun."""
    return folder.is_dir() and any(entry.name != MANIFEST for entry in folder.iterdir())


def _check_same(folder: Path, there: StoreInfo, asked: StoreInfo) -> None:
    """Refuse to mix features of different kinds."""
    names = [field.name for field in fields(StoreInfo) if getattr(there, field.name) != getattr(asked, field.name)]
    if names:
        differences = ", ".join(f"{name} {getattr(there, name)!r} and not {getattr(asked, name)!r}" for name in names)
        raise ValueError(f"{folder}: holds other features: {differences}. Choose a new folder, or remove this one.")


def _converted(name: str, item: np.ndarray, dtype: np.dtype) -> np.ndarray:
    try:
        with np.errstate(over="raise"):
            return item.astype(dtype, copy=False)
    except FloatingPointError as error:
        raise ValueError(f"features of {name!r}: too large for {dtype}. Write the store in float32.") from error
