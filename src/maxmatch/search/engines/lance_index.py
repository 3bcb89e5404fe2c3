"""Lance's index over the vectors: when it is trained, of what kind, and how much of it a search looks at.

Its name says for how many items it was trained, `vector_1000000`: from twice as many on it is trained anew.
"""

from typing import Any, NamedTuple

from maxmatch.search.engine import Place

KINDS = ("ivf_rq", "ivf_pq", "ivf_sq", "ivf_flat")
TRAIN_FROM = 10_000
"""Below that a scan is as fast."""
_PARTITION = 4_000  # items in one
_PROBES = 16
_UNINDEXED = 10_000  # items beside the index that a search scans
_PREFIX = "vector_"


class Coverage(NamedTuple):
    """Of how many items the index knows, how many were added since, and for how many it was trained."""

    indexed: int
    beside: int
    trained_for: int


class VectorIndex:
    """The index of one table."""

    def __init__(self, table: Any, place: Place) -> None:
        self.table = table
        self.kind = str(place.settings.get("index", KINDS[0]))
        self.train_from = int(str(place.settings.get("train_from", TRAIN_FROM)))
        if self.kind not in KINDS:
            raise ValueError(f"settings: index: expected one of {', '.join(KINDS)}, got {self.kind!r}.")

    def coverage(self) -> Coverage:
        """What it covers; zeros where there is none."""
        found = [index for index in self.table.list_indices() if index.name.startswith(_PREFIX)]
        if not found:
            return Coverage(0, 0, 0)
        newest = max(found, key=lambda index: index.created_at)
        return Coverage(newest.num_indexed_rows, newest.num_unindexed_rows, int(newest.name.removeprefix(_PREFIX)))

    def train_if_worth_it(self, items: int) -> bool:
        """Train it for the first time, or anew where there are twice as many items as then. True if it was."""
        trained_for = self.coverage().trained_for
        if items < max(self.train_from, 2 * trained_for):
            return False
        old = [index.name for index in self.table.list_indices() if index.name.startswith(_PREFIX)]
        name = f"{_PREFIX}{items}"
        self.table.create_index("vector", config=self._config(items), name=name, replace=True)
        for other in old:
            if other != name:
                self.table.drop_index(other)
        return True

    def is_behind(self) -> bool:
        """Whether so many items are beside it that a search suffers."""
        coverage = self.coverage()
        return coverage.indexed > 0 and coverage.beside > max(_UNINDEXED, coverage.indexed // 20)

    def probes(self, effort: float) -> int:
        """How many partitions a search looks at."""
        return max(1, round(_PROBES * effort))

    def _config(self, items: int) -> Any:
        from lancedb import index

        kinds: dict[str, Any] = {
            "ivf_rq": index.IvfRq,
            "ivf_pq": index.IvfPq,
            "ivf_sq": index.IvfSq,
            "ivf_flat": index.IvfFlat,
        }
        # Vectors of one length: the nearest are those with the largest inner product.
        return kinds[self.kind](distance_type="l2", num_partitions=max(1, items // _PARTITION))
