"""All items of a small table in memory, read once for each state of the table."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from maxmatch.search.engine import Found, Place
from maxmatch.search.engines.copied import versions_of
from maxmatch.search.engines.lance_index import VectorIndex
from maxmatch.search.engines.lance_rows import found_in

_MOST_BYTES = 256 * 2**20


class Known(NamedTuple):
    """What is known of a table: of at least that state."""

    state: object
    fits: bool
    indexed: bool


class Held:
    """Questions to a table that is searched often, answered without LanceDB as long as no new version of it is there: a
    call of LanceDB goes through other threads, which wait for a server's Python, several times as long as it takes.
    """

    def __init__(self, place: Place, table: Any, index: VectorIndex | None) -> None:
        self._place = place
        self._table = table
        self._index = index
        self._known: Known | None = None
        self._items: tuple[object, Found] | None = None

    def known(self) -> Known:
        """Whether all items fit into memory, and whether the index over the vectors has any."""
        known, state = self._known, self._state()
        if known is None or known.state != state:
            fits = int(self._table.count_rows()) * self._place.width * 4 <= _MOST_BYTES
            known = Known(state, fits, self._index is not None and self._index.coverage().indexed > 0)
            self._known = known
        return known

    def items(self) -> Found:
        """All of them, with their metadata."""
        kept, state = self._items, self._state()  # looked at once: another thread may read a newer version
        if kept is None or kept[0] != state:
            # Not by batches, which end where a file does: a table that grew photo by photo has many small ones.
            found = found_in(self._table.search().select(["id", "added", "vector", "metadata"]).to_arrow())
            kept = state, found._replace(vectors=np.array(found.vectors, np.float32))
            self._items = kept
        return kept[1]

    def blocks(self, size: int) -> Iterator[Found]:
        """All of them, so many at a time."""
        ids, added, vectors, texts = self.items()
        assert texts is not None
        for start in range(0, len(ids), size):
            part = slice(start, start + size)
            yield Found(ids[part], added[part], vectors[part], texts[part])

    def _state(self) -> object:
        return versions_of(self._place.folder) or self._table.version
