"""The files of a Lance table on the disk: synced when written, and a list of their checksums.

Lance's files never change once they are written, but carry no checksums, and its errors seldom say which file they
mean. `items.lance.sums` has a line for each: size, CRC-32 and name. It is only ever used to find what was damaged.
"""

import zlib
from contextlib import suppress
from pathlib import Path

from maxmatch.files import sync, whole

_KINDS = ("data/*.lance", "_deletions/*", "_indices/*/*", "_versions/*.manifest")
_READ_BYTES = 2**20


def put_on_disk(table: Path) -> None:
    """Wait until every file that is not yet in the list is on the disk, then add it to the list."""
    known = _listed(table)
    new = [path for path in _files(table) if _name(table, path) not in known]
    for path in new:
        sync(path)
    hint = table / "_versions" / "latest_version_hint.json"  # the only file that changes; it can be done without
    for path in {hint, table, table.parent, *(path.parent for path in new), *(path.parent.parent for path in new)}:
        if path.exists():
            sync(path)
    with _list_of(table).open("ab") as file:
        for path in new:
            file.write(_line(table, path).encode())
        file.flush()
    sync(_list_of(table))


def forget_removed(table: Path) -> None:
    """Take files that are no longer there off the list."""
    listed = _listed(table)
    with whole(_list_of(table)) as file:
        for name, (size, checksum) in listed.items():
            if (table / name).exists():
                file.write(f"{size} {checksum:08x} {name}\n".encode())


def damaged(table: Path, thorough: bool = True) -> list[Path]:
    """The files whose size, or (thorough) content, is not what was written."""
    wrong = []
    for name, (size, checksum) in _listed(table).items():
        path = table / name
        if path.exists() and (path.stat().st_size != size or (thorough and _checksum(path) != checksum)):
            wrong.append(path)
    return wrong


def bytes_on_disk(table: Path) -> int:
    """What the table takes. What another process removes meanwhile takes nothing."""
    taken = 0
    for path in table.rglob("*"):
        with suppress(FileNotFoundError):
            taken += path.stat().st_size if path.is_file() else 0
    return taken


def _list_of(table: Path) -> Path:
    return table.with_name(f"{table.name}.sums")


def _files(table: Path) -> list[Path]:
    return [path for pattern in _KINDS for path in table.glob(pattern) if path.is_file()]


def _name(table: Path, path: Path) -> str:
    return path.relative_to(table).as_posix()


def _listed(table: Path) -> dict[str, tuple[int, int]]:
    path = _list_of(table)
    found = {}
    for line in path.read_text().splitlines(keepends=True) if path.exists() else ():
        parts = line.rstrip("\n").split(" ", 2)
        if line.endswith("\n") and len(parts) == 3:  # else it was being written when the process was killed
            found[parts[2]] = int(parts[0]), int(parts[1], 16)
    return found


def _line(table: Path, path: Path) -> str:
    return f"{path.stat().st_size} {_checksum(path):08x} {_name(table, path)}\n"


def _checksum(path: Path) -> int:
    value = 0
    with path.open("rb") as file:
        while part := file.read(_READ_BYTES):
            value = zlib.crc32(part, value)
    return value
