"""Arrays appended to .npy files row by row, over several runs if one is interrupted."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from maxmatch.core.files import draft, sync
from maxmatch.core.progress import Advance
from maxmatch.data.dataset import Items, RaggedRows, Rows

_HEADER = 128  # bytes before the array: enough for any shape, which is filled in at the end
_BLOCK = 256  # rows written at once
_SAMPLE = 16  # rows by which is judged whether what is there was made from the same values


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


def write_rows(values: Sequence[Any], ids: Sequence[str], positions: np.ndarray, file: Path, advance: Advance) -> None:
    """Write the values at some positions, arrays of one shape, as the rows of a .npy file. A file that is there is what
    it is to be; what an interrupted call has written is kept, as far as it got to the disk. advance is called with
    the number of values written.
    """
    new = np.diff(positions, prepend=-1) != 0  # rows may be repeated; it is items that are counted
    if file.exists():
        advance(int(new.sum()))
        return
    first = _features(values[int(positions[0])], ids[int(positions[0])], None)
    array = AppendableNpy(file, first.dtype, first.shape)
    try:
        if array.rows > len(positions) or not _same(array.written(), values, positions):
            array.truncate(0)
        advance(int(new[: array.rows].sum()))
        for begin in range(array.rows, len(positions), _BLOCK):
            part = positions[begin : begin + _BLOCK]
            if isinstance(values, Rows):
                array.append(values.take(part))
            else:
                array.append(np.stack([_features(values[int(place)], ids[int(place)], first) for place in part]))
            advance(int(new[begin : begin + _BLOCK].sum()))
        array.finish()
    finally:
        array.close()


def check_features(items: Items, one_shape: bool) -> np.ndarray:
    """The first of some items, all of which have to be features; of one shape, too, where that is asked for.

    What lies on the disk is looked at when it is written.
    """
    first = _features(items.values[0], items.ids[0], None)
    if one_shape and isinstance(items.values, RaggedRows):
        counts = np.diff(items.values.starts)[items.values.numbers]
        place = int(np.argmax(counts != counts[0]))
        _features(items.values[place], items.ids[place], first)
    if isinstance(items.values, list):
        for name, value in zip(items.ids, items.values, strict=True):
            _features(value, name, first if one_shape else None)
    return first


def _features(value: Any, name: str, like: np.ndarray | None) -> np.ndarray:
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


def _same(rows: np.ndarray, values: Sequence[Any], positions: np.ndarray) -> bool:
    """Whether some rows of an array, the first and the last among them, are the values at those positions."""
    sample = np.unique(np.linspace(0, len(rows) - 1, _SAMPLE).astype(np.int64)).tolist() if len(rows) else []
    return all(rows[row].tobytes() == np.asarray(values[int(positions[row])]).tobytes() for row in sample)


def _header(dtype: np.dtype, shape: tuple[int, ...]) -> bytes:
    """The beginning of a .npy file, version 1.0, always equally long."""
    start = b"\x93NUMPY\x01\x00" + (_HEADER - 10).to_bytes(2, "little")
    text = repr({"descr": dtype.str, "fortran_order": False, "shape": shape}).encode()
    assert len(start) + len(text) < _HEADER
    return start + text.ljust(_HEADER - len(start) - 1) + b"\n"
