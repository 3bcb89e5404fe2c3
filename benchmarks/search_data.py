"""Sets for the search benchmark: real ones tiled and perturbed to size, or made up with the structure of real ones."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from maxmatch import top_hits

_CHUNK = 20_000
_LATENT = 48
_NOISE = 0.5  # a copy's cosine with the original is then 0.89


@dataclass(frozen=True)
class Data:
    """Items in a file (float32, (n, K, D)), queries, and the true ten best of each query."""

    path: Path
    items: int
    queries: np.ndarray
    truth: np.ndarray

    def chunks(self, start: int = 0) -> Iterator[tuple[int, np.ndarray]]:
        """The items in pieces, with the place of the first: read, not mapped, so that memory is what an index takes."""
        size, width = self.queries.shape[1:]
        with self.path.open("rb") as file:
            for begin in range(start, self.items, _CHUNK):
                count = min(_CHUNK, self.items - begin)
                file.seek(begin * size * width * 4)
                yield begin, np.fromfile(file, np.float32, count * size * width).reshape(count, size, width)

    def mapped(self) -> np.ndarray:
        """All items, as a memory map."""
        return np.memmap(self.path, np.float32, "r", shape=(self.items, *self.queries.shape[1:]))


def prepare(folder: Path, items: int, size: int, width: int, queries: int, real: Path | None) -> Data:
    """Write the items, and find out what is truly best."""
    path = folder / f"items-{items}-{width}.f32"
    random = np.random.default_rng(0)
    source = _Made(size, width, items) if real is None else _Tiled(real, size, width)
    with path.open("wb") as file:
        for begin in range(0, items, _CHUNK):
            source.items(begin, min(_CHUNK, items - begin)).tofile(file)
    asked = source.queries(random.choice(items, queries, replace=False))
    data = Data(path, items, asked, np.empty((queries, 0)))
    truth = top_hits(torch.from_numpy(asked), data.mapped(), 10)
    return Data(path, items, asked, truth.indices.numpy())


class _Made:
    """Every item has a latent point, near one of many centres; each slot sees it through a map of its own."""

    def __init__(self, size: int, width: int, items: int) -> None:
        random = np.random.default_rng(1)
        self.maps = random.normal(size=(size, _LATENT, width)).astype(np.float32) / np.sqrt(_LATENT)
        self.maps *= (1 / np.sqrt(1 + np.arange(_LATENT) / 8))[None, :, None].astype(np.float32)
        self.offsets = 0.3 * random.normal(size=(size, width)).astype(np.float32)
        self.centres = random.normal(size=(max(50, items // 200), _LATENT)).astype(np.float32)

    def items(self, begin: int, count: int) -> np.ndarray:
        return self._sets(self._points(begin, count), np.random.default_rng([2, begin]), 0.4)

    def queries(self, places: np.ndarray) -> np.ndarray:
        points = np.concatenate([self._points(int(place), 1) for place in places])
        return self._sets(points, np.random.default_rng(3), 0.8)

    def _points(self, begin: int, count: int) -> np.ndarray:
        """Of each place by itself, so that a query can be made of one."""
        noise = [np.random.default_rng([4, place]).normal(size=_LATENT) for place in range(begin, begin + count)]
        centres = np.random.default_rng(5).permutation(len(self.centres))[
            np.arange(begin, begin + count) % len(self.centres)
        ]
        return (self.centres[centres] + 0.7 * np.array(noise)).astype(np.float32)

    def _sets(self, points: np.ndarray, random: np.random.Generator, noise: float) -> np.ndarray:
        slots = []
        for slot, offset in zip(self.maps, self.offsets, strict=True):
            seen = points + noise * random.normal(size=points.shape).astype(np.float32)
            slots.append(seen @ slot + offset + 0.2 * random.normal(size=(len(points), slot.shape[1])))
        return _unit(np.stack(slots, 1))


class _Tiled:
    """Real sets again and again, each copy turned a little; queries are other copies."""

    def __init__(self, path: Path, size: int, width: int) -> None:
        if path.suffix == ".safetensors":
            from safetensors.numpy import load_file

            self.sets = next(iter(load_file(path).values()))
        else:
            self.sets = np.load(path, mmap_mode="r", allow_pickle=False)
        if self.sets.shape[1:] != (size, width):
            raise SystemExit(f"{path}: sets of {self.sets.shape[1:]}, but --dim says {(size, width)}")

    def items(self, begin: int, count: int) -> np.ndarray:
        return self._copies(np.arange(begin, begin + count), np.random.default_rng([2, begin]))

    def queries(self, places: np.ndarray) -> np.ndarray:
        return self._copies(places, np.random.default_rng(3))

    def _copies(self, places: np.ndarray, random: np.random.Generator) -> np.ndarray:
        sets = np.asarray(self.sets[places % len(self.sets)], np.float32)
        noise = random.normal(size=sets.shape).astype(np.float32) / np.sqrt(sets.shape[2])
        return _unit(sets + _NOISE * noise)


def _unit(sets: np.ndarray) -> np.ndarray:
    return np.asarray(sets / np.linalg.norm(sets, axis=-1, keepdims=True), np.float32)
