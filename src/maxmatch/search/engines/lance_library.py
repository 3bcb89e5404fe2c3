"""LanceDB, told beforehand what it can only be told in its environment."""

import os
from types import ModuleType

_AHEAD_BYTES = 64 * 2**20


def lancedb_library() -> ModuleType:
    """The module. A scan of it would read ahead by 2 GiB; and of its own inner workings it would warn, in thousands of
    lines while a million items are indexed.
    """
    os.environ.setdefault("LANCE_DEFAULT_IO_BUFFER_SIZE", str(_AHEAD_BYTES))
    os.environ.setdefault("LANCEDB_LOG", "error")
    import lancedb

    return lancedb
