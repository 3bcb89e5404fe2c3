"""All items of an index in the memory of a GPU, or of the CPU: every search scores all of them."""

import logging
import threading
import time
import weakref
from collections.abc import Hashable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from maxmatch.core.devices import chosen_device, free_memory_of
from maxmatch.matching.stored_sets import STORED, StoredSets
from maxmatch.search.engine import Engine
from maxmatch.search.filters import Condition
from maxmatch.search.index_folder import Manifest
from maxmatch.search.rerank import NONE, Best, best_of_rows

_BLOCK = 16_384  # items that are read at once
_QUERIES = 256  # at once: while the best of these become hits, a GPU finds those of the next
_AGAIN = 2**26  # numbers of items that are scored again at once
_BESIDE = 16  # items beside k, at least, that are scored again, with queries in full precision
_FAST = 256  # items: the kernel of a GPU finds no more
_READINGS = 5  # where others write meanwhile
_PATIENCE = 10.0  # seconds, in which others end the searches that they have begun
_MASKS = 16  # filters whose items are remembered
_log = logging.getLogger("maxmatch")


class _Items(NamedTuple):
    """One state of the items, in the order in which they were added."""

    version: Hashable
    ids: np.ndarray
    added: np.ndarray
    metadata: np.ndarray
    sets: StoredSets
    masks: dict[Condition, Tensor]
    """Which of them pass a filter, on the device."""


class _Candidates(NamedTuple):
    """Of some queries, on their way from the device."""

    places: Tensor
    """(n, m), in the order in which the items were added; −1 stands for none."""
    planes: Tensor
    """Their cosines (K, K, n·m), of queries in full precision."""
    ready: torch.cuda.Event | None


def checked_place(
    folder: Path, manifest: Manifest, device: str | torch.device, dtype: str | None
) -> tuple[torch.device, str]:
    """Where the items of an index can be kept, and in what precision; ValueError where they cannot."""
    if manifest.set_size is None:
        raise ValueError(f"{folder}: device: sets of any size cannot be kept on one. Open it without device.")
    if dtype is not None and dtype not in STORED:
        raise ValueError(f"device_dtype: expected one of {', '.join(STORED)}, got {dtype!r}.")
    chosen = chosen_device(device)
    return chosen, dtype or (manifest.dtype if chosen.type == "cpu" else "float16")


class ItemsOnDevice:
    """The items of an index on a device, read again when they have changed. A GPU has them in float16, unless another
    precision is asked for, and finds the best by it; the CPU in the index's precision.
    """

    def __init__(
        self, folder: Path, engine: Engine, manifest: Manifest, device: str | torch.device, dtype: str | None = None
    ) -> None:
        self.device, self.dtype = checked_place(folder, manifest, device, dtype)
        assert manifest.set_size is not None
        self.set_size = manifest.set_size
        self._folder, self._engine, self._manifest = folder, engine, manifest
        self._busy = threading.Lock()
        self._items: _Items | None = None
        self._held = weakref.WeakSet[StoredSets]()  # searches that have begun keep the items as they were
        self._current()

    def best(self, queries: np.ndarray, k: int, where: Condition | None) -> list[Best]:
        """The k best of each query (n, K, D) among all items that pass, by the items as they are stored here."""
        items = self._current()
        if not len(items.ids):
            return [NONE] * len(queries)
        keep = None if where is None else self._passing(items, where)
        asked = torch.from_numpy(queries).to(self.device)
        wanted = min(_wanted(k), len(items.ids))
        at_once = self._at_once(len(queries), wanted * self.set_size * self._manifest.dim)
        under_way = [self._candidates(items, part, wanted, keep) for part in torch.split(asked, at_once)]
        return [each for candidates in under_way for each in self._chosen(items, candidates, k)]

    def _at_once(self, queries: int, each: int) -> int:
        """How many queries, by the numbers that are scored again for each. They take 14 bytes each, and some more."""
        numbers = _AGAIN
        if min(queries, _QUERIES) * each > numbers // 4:
            free = free_memory_of(self.device)
            numbers = numbers if free is None else min(numbers, free // 32)
        return max(1, min(_QUERIES, numbers // max(1, each)))

    def _candidates(self, items: _Items, queries: Tensor, wanted: int, keep: Tensor | None) -> _Candidates:
        """Found by what the items are stored in; nothing waits for them yet."""
        found = items.sets.best(queries, wanted, self._manifest.scoring, keep).indices
        places = found.sort(dim=1).values
        exact = torch.float32 if self.device.type == "mps" else torch.float64  # and never tensor cores' float32
        sets = items.sets.at(places.clamp(min=0)).to(exact)
        planes = queries.to(exact) @ sets.flatten(1, 2).transpose(1, 2)  # (n, K, m·K)
        planes = planes.view(len(queries), -1, *sets.shape[1:3]).permute(1, 3, 0, 2).flatten(2).float()
        if self.device.type != "cuda":
            return _Candidates(places.cpu(), planes.cpu(), None)
        places, planes = (
            torch.empty(each.shape, dtype=each.dtype, pin_memory=True).copy_(each, non_blocking=True)
            for each in (places, planes)
        )
        ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
        ready.record(torch.cuda.current_stream(queries.device))
        return _Candidates(places, planes, ready)

    def _chosen(self, items: _Items, candidates: _Candidates, k: int) -> list[Best]:
        if candidates.ready is not None:
            candidates.ready.synchronize()
        places, planes = candidates.places.numpy(), candidates.planes.numpy()
        order, scores, partners, cosines = best_of_rows(planes, places >= 0, k, self._manifest.scoring)
        places = np.take_along_axis(places, order, 1)
        ids, texts = items.ids[places].tolist(), items.metadata[places].tolist()
        counts = (places >= 0).sum(1).tolist()
        return [
            Best(ids[row][:n], scores[row, :n], partners[row, :n], cosines[row, :n], texts[row][:n])
            for row, n in enumerate(counts)
        ]

    def _passing(self, items: _Items, where: Condition) -> Tensor:
        known = items.masks.get(where)
        if known is None:
            passing = np.zeros(len(items.ids), bool)
            for found in self._engine.scan(_BLOCK, where, vectors=False):
                places, there = _places(items.added, found.added)
                passing[places[there]] = True
            known = torch.from_numpy(passing).to(self.device)
            if len(items.masks) >= _MASKS:
                items.masks.clear()
            items.masks[where] = known
        return known

    def _current(self) -> _Items:
        with self._busy:
            version = self._engine.version()
            if self._items is None or self._items.version != version:
                self._items = None  # first: the device may not hold both
                self._items = self._read()
            return self._items

    def _read(self) -> _Items:
        began = time.monotonic()
        for _ in range(_READINGS):
            items = self._read_once()
            if items is not None:
                took, size = time.monotonic() - began, _size(items.sets)
                _log.info(
                    "%s: %d items on %s (%s), read in %.1f s", self._folder, len(items.ids), self.device, size, took
                )
                return items
        raise RuntimeError(
            f"{self._folder}: others wrote to it while it was read to {self.device}, {_READINGS} times in a row. "
            "Search again when less is written, or open the index without device."
        )

    def _read_once(self) -> _Items | None:
        """Twice: first in what order they are, then all of them, each to its place. None where another process has
        written meanwhile.
        """
        version = self._engine.version()
        blocks = [np.array(found.added) for found in self._engine.scan(_BLOCK, vectors=False)]
        added = np.sort(np.concatenate([np.empty(0, np.int64), *blocks]))
        ids, metadata = np.empty(len(added), object), np.empty(len(added), object)
        sets, count = self._room(len(added)), 0
        for found in self._engine.scan(_BLOCK, metadata=True):
            places, there = _places(added, found.added)
            if not there.all():
                return None
            count += len(places)
            ids[places], metadata[places] = np.array(found.ids, object), np.array(found.metadata, object)
            vectors = torch.from_numpy(np.array(found.vectors)).to(self.device)
            sets.put(torch.from_numpy(places).to(self.device), vectors.view(-1, *sets.values.shape[1:]))
        return _Items(version, ids, added, metadata, sets, {}) if count == len(added) else None

    def _room(self, count: int) -> StoredSets:
        """Waits for the searches of other threads among the items as they were, where the device cannot hold both."""
        shape = count, self.set_size, self._manifest.dim
        needed, until = StoredSets(*shape, self.dtype, "meta"), time.monotonic() + _PATIENCE
        while True:
            alone = not self._held or time.monotonic() > until
            free = free_memory_of(self.device)
            if free is None or needed.nbytes <= 0.9 * free:
                break
            if alone:
                smaller = "" if self.dtype == "int8" else 'with device_dtype="int8", '
                raise ValueError(
                    f"{self._folder}: {count} items take {_size(needed)} in {self.dtype}, and {self.device} has "
                    f"{free / 1e9:.1f} GB free. Open the index {smaller}without device, or use a GPU with more memory."
                )
            time.sleep(0.01)
        sets = StoredSets(*shape, self.dtype, self.device)
        self._held.add(sets)
        return sets


def _wanted(k: int) -> int:
    """How many items are scored again for k hits: twice as many; fewer, where the kernel of a GPU then finds them."""
    most = k + max(k, _BESIDE)
    return min(most, _FAST) if k + _BESIDE <= _FAST else most


def _places(added: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where each is in a sorted array, and whether it is there."""
    places = np.searchsorted(added, wanted)
    there = places < len(added)
    there[there] = added[places[there]] == wanted[there]
    return places, there


def _size(sets: StoredSets) -> str:
    return f"{sets.nbytes / 1e9:.1f} GB"
