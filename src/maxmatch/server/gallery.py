"""What the server shows of an index: its items under opaque keys, near-duplicates folded into one."""

import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from maxmatch.search import photos
from maxmatch.search.filters import Condition, passes
from maxmatch.search.set_index import SetIndex

# Near-duplicates: pictures whose sets are almost the same, shown as one.
#
# How near two sets are is the mean cosine of slot i with slot i. Items of one modality have their slots in one order,
# so
# for near-duplicates this is their best matching. It is estimated from sketches: a random projection keeps squared
# distances within √(2/width), here an eighth, of themselves, so an estimate is precise where it matters, near 1.

THRESHOLD = 0.99
_WIDTH = 128


class Sketcher:
    """From flattened sets (n, K·D) to sketches (n, 128) of unit length."""

    def __init__(self, width: int, seed: int = 0) -> None:
        generator = np.random.default_rng(seed)
        self._projection = generator.standard_normal((width, _WIDTH), dtype=np.float32)

    def __call__(self, vectors: np.ndarray) -> np.ndarray:
        """The sketches in half precision."""
        sketches = np.asarray(vectors, dtype=np.float32) @ self._projection
        norms = np.linalg.norm(sketches, axis=1, keepdims=True)
        return np.asarray(sketches / np.maximum(norms, 1e-12), dtype=np.float16)


def fold(ids: Sequence[str], sketches: Mapping[str, np.ndarray], threshold: float = THRESHOLD) -> list[list[int]]:
    """Groups of places in `ids`, best first: each begins with its leader, the first that is near no earlier leader.

    A longer list begins with the same leaders, so pages of results fit together. What has no sketch stays alone.
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


# What the server shows of an index: its items under opaque keys, with the facts of their pictures.

PictureOf = Callable[[str], Path]
"""The file of an indexed item's picture, by the item's id."""
_SCAN_BLOCK = 1024
_LOOK_AGAIN = 10.0  # seconds
_FILTERS = 32  # whose items are remembered


@dataclass(frozen=True)
class Item:
    """An indexed picture. A fact that the index does not know is None."""

    key: str
    id: str
    name: str
    folder: str
    taken: str | None = None
    width: int | None = None
    height: int | None = None
    orientation: str | None = None
    bytes: int | None = None
    modified: int | None = None


@dataclass(frozen=True)
class GalleryState:
    """The items as they were when the index was last looked at. Never changed, only replaced."""

    items: dict[str, Item]
    """By key."""
    newest: list[Item]
    """The latest taken first; those without a date last."""
    sketches: dict[str, np.ndarray]
    """By id."""
    at: float
    version: Hashable
    """The index's, before the look."""


class Gallery:
    """The items of an index. What is added to it, replaced or removed meanwhile is seen within seconds."""

    def __init__(self, index: SetIndex, picture: PictureOf, name: str = "Pictures") -> None:
        self.index = index
        index.engine.hold()
        self.picture = picture
        self.name = name
        self._sketcher = Sketcher(index.manifest.set_size * index.manifest.dim)
        self._busy = threading.Lock()
        self._passing: tuple[GalleryState, dict[Condition, list[Item]]] | None = None
        self.state = self._look()

    def find(self, key: str) -> Item | None:
        """The item of a key; None for any other text."""
        return self.state.items.get(key)

    def refresh(self) -> None:
        """Look at the index again if the last look is some seconds old and the index was written to meanwhile."""
        if time.monotonic() - self.state.at < _LOOK_AGAIN or not self._busy.acquire(blocking=False):
            return
        try:
            changed = self.index.engine.version() != self.state.version
            self.state = self._look() if changed else replace(self.state, at=time.monotonic())
        finally:
            self._busy.release()

    def passing(self, condition: Condition | None) -> list[Item]:
        """The items that pass a filter on their facts, latest first."""
        state = self.state
        if condition is None:
            return state.newest
        known = self._passing
        if known is None or known[0] is not state or len(known[1]) >= _FILTERS:
            self._passing = known = (state, {})
        if condition not in known[1]:
            known[1][condition] = [item for item in state.newest if passes(condition, _facts(item))]
        return known[1][condition]

    def folders(self) -> dict[str, int]:
        """Every folder, and those above it, with the number of items in and under it."""
        counts: Counter[str] = Counter()
        for folder, count in Counter(item.folder for item in self.state.items.values()).items():
            parts = folder.split("/") if folder else []
            for depth in range(1, len(parts) + 1):
                counts["/".join(parts[:depth])] += count
        return dict(sorted(counts.items()))

    def _look(self) -> GalleryState:
        version = self.index.engine.version()
        items: list[Item] = []
        sketches: dict[str, np.ndarray] = {}
        for found in self.index.engine.scan(_SCAN_BLOCK):
            texts = found.metadata
            if texts is None:
                known = self.index.engine.metadata(found.ids)
                texts = [known.get(name, "{}") for name in found.ids]
            items += [item_of(name, json.loads(text)) for name, text in zip(found.ids, texts, strict=True)]
            sketches |= dict(zip(found.ids, self._sketcher(found.vectors), strict=True))
        items.sort(key=lambda item: (item.taken or "", item.id), reverse=True)
        return GalleryState({item.key: item for item in items}, items, sketches, time.monotonic(), version)


def key_of(name: str) -> str:
    """The key under which an item is known outside. A request names it so, never by its id, which may be a path."""
    return hashlib.sha256(name.encode()).hexdigest()[:32]


def item_of(name: str, metadata: Mapping[str, Any]) -> Item:
    """An item from its id and the metadata that `search.facts` describes, as far as it is there."""
    known = metadata.get
    return Item(
        key=key_of(name),
        id=name,
        name=_text(known(photos.NAME)) or name.rsplit("/", 1)[-1],
        folder=_text(known(photos.FOLDER)) or "",
        taken=_text(known(photos.TAKEN)),
        width=_number(known(photos.WIDTH)),
        height=_number(known(photos.HEIGHT)),
        orientation=_text(known(photos.ORIENTATION)),
        bytes=_number(known(photos.BYTES)),
        modified=_number(known(photos.MODIFIED)),
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: Any) -> int | None:
    """A whole number above zero; what JSON calls true is none."""
    return int(value) if type(value) in (int, float) and value > 0 else None


def _facts(item: Item) -> dict[str, Any]:
    return {photos.FOLDER: item.folder, photos.TAKEN: item.taken, photos.ORIENTATION: item.orientation}
