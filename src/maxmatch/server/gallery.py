"""What the server shows of an index: its items under opaque keys, near-duplicates shown as one."""

import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from maxmatch.search import photos
from maxmatch.search.filters import Condition, passes
from maxmatch.search.set_index import SetIndex
from maxmatch.server.api_schema import ItemFacts

# Near-duplicates are pictures whose sets are almost equal. How near two sets are is the mean cosine of slot i with slot
# i: items of one modality have their slots in one order, so for near-duplicates this is their best matching. It is
# estimated from sketches: a random projection keeps squared distances to within √(2/width), here an eighth, so the
# estimate is precise where it matters, near 1.

NEAR_DUPLICATE = 0.99
_WIDTH = 128


class Sketcher:
    """From flattened sets (n, K·D) to sketches (n, 128) of unit length."""

    def __init__(self, width: int) -> None:
        self._projection = np.random.default_rng(0).standard_normal((width, _WIDTH), dtype=np.float32)

    def __call__(self, vectors: np.ndarray) -> np.ndarray:
        """The sketches in half precision."""
        sketches = np.asarray(vectors, dtype=np.float32) @ self._projection
        norms = np.linalg.norm(sketches, axis=1, keepdims=True)
        return np.asarray(sketches / np.maximum(norms, 1e-12), dtype=np.float16)


def group_near_duplicates(
    ids: Sequence[str], sketches: Mapping[str, np.ndarray], threshold: float = NEAR_DUPLICATE
) -> list[list[int]]:
    """Groups of positions in `ids`, best first. Each begins with its leader, the first that is near no earlier leader.

    A longer list begins with the same leaders, so that pages of results fit together. An id without a sketch stays
    alone.
    """
    known = [place for place, name in enumerate(ids) if name in sketches]
    if not known:
        return [[place] for place in range(len(ids))]
    vectors = np.stack([sketches[ids[place]] for place in known]).astype(np.float32)
    near = np.full((len(ids), len(ids)), -1.0, np.float32)
    near[np.ix_(known, known)] = vectors @ vectors.T
    np.fill_diagonal(near, -1.0)
    if near.max() < threshold:  # as a rule
        return [[place] for place in range(len(ids))]
    groups: list[list[int]] = []
    leaders: list[int] = []
    for place in range(len(ids)):
        best = int(near[place, leaders].argmax()) if leaders else -1
        if best >= 0 and near[place, leaders[best]] >= threshold:
            groups[best].append(place)
        else:
            leaders.append(place)
            groups.append([place])
    return groups


PictureOf = Callable[[str], Path]
"""The file of an indexed item's picture, by the item's id."""
_SCAN_BLOCK = 1024
_REFRESH_AFTER = 10.0  # seconds
_CACHED_FILTERS = 32


@dataclass(frozen=True)
class GalleryState:
    """The items as they were when the index was last read."""

    items: dict[str, ItemFacts]
    """By key."""
    newest: list[ItemFacts]
    """Newest first; those without a date last."""
    sketches: dict[str, np.ndarray]
    """By id."""
    at: float
    version: Hashable
    """The index's, taken before reading it."""
    passing: dict[Condition, list[ItemFacts]] = field(default_factory=dict)
    """What passed the last filters."""


class Gallery:
    """The items of an index. Changes to the index are seen within seconds."""

    def __init__(self, index: SetIndex, picture: PictureOf, name: str = "Pictures") -> None:
        self.index = index
        index.engine.in_memory = True
        self.picture = picture
        self.name = name
        self._sketcher = Sketcher(index.manifest.set_size * index.manifest.dim)
        self._busy = threading.Lock()
        self.state = self._read()

    def find(self, key: str) -> ItemFacts | None:
        """The item with this key, or None."""
        return self.state.items.get(key)

    def refresh(self) -> None:
        """Read the index again if it was last read some seconds ago and has been written to since."""
        if time.monotonic() - self.state.at < _REFRESH_AFTER or not self._busy.acquire(blocking=False):
            return
        try:
            changed = self.index.engine.version() != self.state.version
            self.state = self._read() if changed else replace(self.state, at=time.monotonic())
        finally:
            self._busy.release()

    def passing(self, condition: Condition | None) -> list[ItemFacts]:
        """The items that pass a filter on their facts, newest first."""
        state = self.state
        if condition is None:
            return state.newest
        found = state.passing.get(condition)
        if found is None:
            if len(state.passing) >= _CACHED_FILTERS:
                state.passing.clear()
            found = [item for item in state.newest if passes(condition, _facts(item))]
            state.passing[condition] = found
        return found

    def folders(self) -> dict[str, int]:
        """Every folder and its parents, with the number of items in and below it."""
        counts: Counter[str] = Counter()
        for folder, count in Counter(item.folder for item in self.state.items.values()).items():
            parts = folder.split("/") if folder else []
            for depth in range(1, len(parts) + 1):
                counts["/".join(parts[:depth])] += count
        return dict(sorted(counts.items()))

    def _read(self) -> GalleryState:
        version = self.index.engine.version()
        items: list[ItemFacts] = []
        sketches: dict[str, np.ndarray] = {}
        for found in self.index.engine.scan(_SCAN_BLOCK, metadata=True):
            texts = found.metadata or []
            items += [item_of(name, json.loads(text)) for name, text in zip(found.ids, texts, strict=True)]
            sketches |= dict(zip(found.ids, self._sketcher(found.vectors), strict=True))
        items.sort(key=lambda item: (item.date or "", item.id), reverse=True)
        return GalleryState({item.key: item for item in items}, items, sketches, time.monotonic(), version)


def key_of(name: str) -> str:
    """The key of an item. Requests name items by it, never by their ids, which may be paths."""
    return hashlib.sha256(name.encode()).hexdigest()[:32]


def item_of(name: str, metadata: Mapping[str, Any]) -> ItemFacts:
    """An item from its id and what is known of `search.photos.photo_facts`."""
    known = metadata.get
    return ItemFacts(
        key=key_of(name),
        id=name,
        name=_text(known(photos.NAME)) or name.rsplit("/", 1)[-1],
        folder=_text(known(photos.FOLDER)) or "",
        taken=_text(known(photos.TAKEN)),
        width=_number(known(photos.WIDTH)),
        height=_number(known(photos.HEIGHT)),
        orientation=_text(known(photos.ORIENTATION)),
        bytes=_number(known(photos.BYTES)),
        version=f"{_number(known(photos.MODIFIED)) or 0:x}",
        date=_text(known(photos.TAKEN)) or _text(known(photos.DATE)),
        date_from=_text(known(photos.DATE_FROM)),
        path=_text(known(photos.PATH)),
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: Any) -> int | None:
    """A whole number above zero; JSON's `true` is none."""
    return int(value) if type(value) in (int, float) and value > 0 else None


def _facts(item: ItemFacts) -> dict[str, Any]:
    return {
        photos.FOLDER: item.folder,
        photos.TAKEN: item.taken,
        photos.DATE: item.date,
        photos.ORIENTATION: item.orientation,
        photos.PATH: item.path,
    }
