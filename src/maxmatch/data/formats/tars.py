"""What is where in a tar, found by reading its headers once; and its members, read when they are asked for."""

import os
import tarfile
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from maxmatch.data.problems import DataError, Problem

_BLOCK = 512
_OPEN_AT_ONCE = 64


class Member(NamedTuple):
    """A file within a tar."""

    tar: Path
    name: str
    offset: int
    size: int


class CutShort(DataError):
    """A tar that does not go on to its end. What was found before is whole."""


def members(path: Path) -> Iterator[Member]:
    """The files in a tar, in order, their data skipped. Raises CutShort after the last that is whole, if the tar ends
    early or is damaged.
    """
    length = path.stat().st_size
    last = "its beginning"
    try:
        with tarfile.open(path, "r:", errors="replace") as tar:
            for info in tar:
                end = info.offset_data + info.size
                if end > length:
                    raise _cut(path, f"ends early, at byte {length}, within {info.name}, which goes on to byte {end}")
                if info.isreg():
                    yield Member(path, info.name, info.offset_data, info.size)
                last = info.name
            _check_end(path, tar.offset, last)
    except tarfile.TarError as error:
        raise _cut(
            path, f"ends early or is damaged, at byte {length} of it or before, after {last} ({error})"
        ) from error


def _check_end(path: Path, offset: int, last: str) -> None:
    """A tar ends with blocks of zeros, which tell it from one that was cut between two files."""
    with path.open("rb") as file:
        file.seek(offset)
        block = file.read(_BLOCK)
    if len(block) < _BLOCK:
        raise _cut(path, f"ends early, at byte {offset + len(block)}, after {last}")
    if any(block):
        raise _cut(path, f"is damaged at byte {offset}, after {last}")


def _cut(path: Path, what: str) -> CutShort:
    cure = "Copy or download it again; a compressed tar has to be unpacked first."
    return CutShort(Problem(path, what, cure, fatal=True))


class TarItems(Sequence[bytes]):
    """The bytes of members, read when asked for, in any order, by any thread and any process it is sent to."""

    def __init__(self, found: Sequence[Member]) -> None:
        self._members = list(found)
        self._opened = lru_cache(_OPEN_AT_ONCE)(_Handle)

    def __len__(self) -> int:
        return len(self._members)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        member = self._members[index]
        data = self._opened(member.tar).read(member.offset, member.size)
        if len(data) < member.size:
            what = f"{member.name} has {len(data)} bytes in place of {member.size}"
            raise DataError(Problem(member.tar, what, "It has changed since it was opened: read it again.", fatal=True))
        return data

    def where(self, index: int) -> Path:
        """The tar, and the member's name in it, as if it were a folder."""
        member = self._members[index]
        return member.tar / member.name

    def __getstate__(self) -> list[Member]:
        return self._members

    def __setstate__(self, state: list[Member]) -> None:
        self.__init__(state)  # type: ignore[misc]


class _Handle:
    """An open file. It is read without moving a position, so that threads and forked processes may share it, and
    closed when the last who reads it lets go.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY)

    def read(self, offset: int, size: int) -> bytes:
        """The bytes at a place; fewer where the file ends."""
        return os.pread(self._descriptor, size, offset)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)
