"""All items of an index in the memory of a GPU, or of the CPU: every search scores all of them."""

import logging
import threading
import time
from collections.abc import Hashable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from maxmatch.core.devices import chosen_device
from maxmatch.matching.scoring import top_hits
from maxmatch.search.engine import Engine, Found
from maxmatch.search.filters import Condition
from maxmatch.search.index_folder import Manifest
from maxmatch.search.rerank import Best, best_of_each

_BLOCK = 16_384  # items that are read at once
_QUERIES = 128  # at once: the most that a GPU's kernel takes in one pass
_BESIDE = 16  # items beside k that are scored again, with queries in full precision
_MASKS = 16  # filters whose items are remembered
_log = logging.getLogger("maxmatch")


class _Items(NamedTuple):
    """One state of the items, in the order in which they were added."""

    version: Hashable
    ids: np.ndarray
    added: np.ndarray
    metadata: np.ndarray
    sets: Tensor
    """(n, K, D), on the device."""
    masks: dict[Condition, Tensor]
    """Which of them pass a filter, on the device."""


class ItemsOnDevice:
    """The items of an index on a device, read again when they have changed. A GPU has them in float16, and finds the
    best by it; the CPU in the index's precision.
    """

    def __init__(self, folder: Path, engine: Engine, manifest: Manifest, device: str | torch.device) -> None:
        if manifest.set_size is None:
            raise ValueError(f"{folder}: device: sets of any size cannot be kept on one. Open it without device.")
        self.set_size = manifest.set_size
        self.device = chosen_device(device)
        self._folder, self._engine, self._manifest = folder, engine, manifest
        self._busy = threading.Lock()
        self._items: _Items | None = None
        self._current()

    def best(self, queries: np.ndarray, k: int, where: Condition | None) -> list[Best]:
        """The k best of each query (n, K, D) among all items that pass; scored again in float32."""
        items = self._current()
        keep = None if where is None else self._passing(items, where)
        best: list[Best] = []
        for start in range(0, len(queries), _QUERIES):
            part = queries[start : start + _QUERIES]
            asked = torch.from_numpy(part).to(self.device, items.sets.dtype)
            hits = top_hits(asked, items.sets, k + max(k, _BESIDE), self._manifest.scoring, keep=keep)
            best += best_of_each(part, _found(items, hits.indices), k, self._manifest.scoring)
        return best

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
        """Twice: first in what order they are, then all of them, each to its place."""
        began = time.monotonic()
        count, added = -1, np.empty(0, np.int64)
        while count != len(added):  # again where another process has written meanwhile
            version = self._engine.version()
            blocks = [np.array(found.added) for found in self._engine.scan(_BLOCK, vectors=False)]
            added = np.sort(np.concatenate([added[:0], *blocks]))
            ids, metadata = np.empty(len(added), object), np.empty(len(added), object)
            sets, count = self._room(len(added)), 0
            for found in self._engine.scan(_BLOCK, metadata=True):
                places, there = _places(added, found.added)
                if not there.all():
                    break
                count += len(places)
                ids[places], metadata[places] = np.array(found.ids, object), np.array(found.metadata, object)
                vectors = torch.from_numpy(np.array(found.vectors)).to(self.device, sets.dtype)
                sets[torch.from_numpy(places).to(self.device)] = vectors.view(-1, *sets.shape[1:])
        took = time.monotonic() - began
        _log.info("%s: %d items on %s (%s), read in %.1f s", self._folder, count, self.device, _size(sets), took)
        return _Items(version, ids, added, metadata, sets, {})

    def _room(self, count: int) -> Tensor:
        on_cpu = self.device.type == "cpu"
        dtype = torch.float32 if on_cpu and self._manifest.dtype == "float32" else torch.float16
        shape = count, self.set_size, self._manifest.dim
        needed = torch.empty(shape, dtype=dtype, device="meta")
        if self.device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(self.device)
            free += torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
            if needed.nbytes > 0.9 * free:
                raise ValueError(
                    f"{self._folder}: {count} items take {_size(needed)} in float16, and {self.device} has "
                    f"{free / 1e9:.1f} GB free. Open the index without device, or use a GPU with more memory."
                )
        return torch.empty(shape, dtype=dtype, device=self.device)


def _places(added: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where each is in a sorted array, and whether it is there."""
    places = np.searchsorted(added, wanted)
    there = places < len(added)
    there[there] = added[places[there]] == wanted[there]
    return places, there


def _found(items: _Items, indices: Tensor) -> list[Found]:
    """The items of each row of places; −1 stands for none."""
    vectors = items.sets[indices.clamp(min=0)].flatten(2).float().cpu().numpy()
    found = []
    for own, places in zip(vectors, indices.cpu().numpy(), strict=True):
        at = places[places >= 0]
        found.append(Found(items.ids[at].tolist(), items.added[at], own[places >= 0], items.metadata[at].tolist()))
    return found


def _size(sets: Tensor) -> str:
    return f"{sets.nbytes / 1e9:.1f} GB"
