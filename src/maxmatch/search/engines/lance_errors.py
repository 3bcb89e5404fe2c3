"""LanceDB's errors as a person can act on them: what is full, what is damaged."""

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from maxmatch.search.engines.lance_files import damaged
from maxmatch.search.manifest import IndexFolderError

# LanceDB raises RuntimeError, OSError and ValueError alike, with the cause in the text.
_RAISED = (RuntimeError, OSError, ValueError)
_SYSTEM = re.compile(r"os error (\d+)")


@contextmanager
def storing(folder: Path) -> Iterator[None]:
    """A write that the system refuses becomes an OSError that names the folder."""
    try:
        yield
    except _RAISED as error:
        found = _SYSTEM.search(str(error))
        if found is None and not isinstance(error, OSError):
            raise
        code = int(found[1]) if found else error.errno or errno.EIO  # type: ignore[union-attr]
        raise OSError(
            code,
            f"{folder}: could not be written ({_short(error)}). Nothing was changed. Free some space or permit it.",
        ) from error


@contextmanager
def reading(table: Path) -> Iterator[None]:
    """What cannot be read becomes a refusal that names the file."""
    try:
        yield
    except IndexFolderError:
        raise
    except _RAISED as error:
        raise IndexFolderError(f"{_culprit(table)}: damaged ({_short(error)}). Restore it from a copy.") from error


def _culprit(table: Path) -> str:
    wrong = damaged(table, thorough=False) or damaged(table)
    return ", ".join(map(str, wrong)) if wrong else str(table)


def _short(error: Exception) -> str:
    """Without the places in Lance's source."""
    return re.sub(r", [^,]*\.rs:\d+:\d+", "", str(error)).splitlines()[0][:300]
