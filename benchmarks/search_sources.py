"""Any number of sets for the search benchmark: real ones tiled and perturbed, or synthetic ones like them."""

from pathlib import Path
from typing import Protocol

import numpy as np

_LATENT = 48
_LOOKED_AT = 2000
_HALVINGS = 30


class Source(Protocol):
    """Items by position, and queries that search for such items."""

    size: int
    width: int
    title: str

    def items(self, begin: int, count: int) -> np.ndarray:
        """Items (count, K, D) from that position on; the same for the same arguments."""

    def queries(self, count: int, items: int) -> np.ndarray:
        """Queries (count, K, D) for the first `items` of the items."""


class Tiled:
    """Real sets, repeated. The first round is the sets themselves.

    Every later copy of x is moved in a direction in which the data themselves differ, x + a·(u − v) with two other sets
    drawn at random, and normalised again. a is such that a copy is as near to its original as an image is to its
    nearest neighbour (medians).
    """

    def __init__(self, sets: Path, queries: Path | None) -> None:
        self.sets, self.asked = read_sets(sets), None if queries is None else read_sets(queries)
        self.size, self.width = self.sets.shape[1:]
        if self.asked is not None and self.asked.shape[1:] != self.sets.shape[1:]:
            raise SystemExit(
                f"{queries}: sets of {self.asked.shape[1:]}, but those of {sets} are {self.sets.shape[1:]}"
            )
        self.nearest = self._nearest_other()
        self.step = self._step()
        self.title = (
            f"{len(self.sets):,} real sets, tiled; a copy's cosine with its original {self._cosine(self.step):.3f}, "
            f"an image's with its nearest other {self.nearest:.3f} (a = {self.step:.3f})"
        )

    def items(self, begin: int, count: int) -> np.ndarray:
        """Copies of the sets in order."""
        places = np.arange(begin, begin + count)
        copies = self._moved(places % len(self.sets), self.step, np.random.default_rng([2, begin]))
        first = self.sets[begin : begin + count]
        copies[: len(first)] = first
        return copies

    def queries(self, count: int, items: int) -> np.ndarray:
        """Real queries drawn at random; without any, other copies of items."""
        random = np.random.default_rng(3)
        if self.asked is None:
            return self._moved(random.choice(min(items, len(self.sets)), count), self.step, random)
        if count > len(self.asked):
            raise SystemExit(f"{count} queries are needed, and there are {len(self.asked)}")
        return self.asked[random.choice(len(self.asked), count, replace=False)]

    def _moved(self, places: np.ndarray, step: float, random: np.random.Generator) -> np.ndarray:
        others = random.integers(len(self.sets), size=(2, len(places)))
        moved: np.ndarray = self.sets[others[0]]
        moved -= self.sets[others[1]]
        moved *= step
        moved += self.sets[places]
        moved /= np.sqrt(np.einsum("nkd,nkd->nk", moved, moved))[..., None]
        return moved

    def _nearest_other(self) -> float:
        flat = self.sets.reshape(len(self.sets), -1)
        some = np.random.default_rng(0).permutation(len(flat))[:_LOOKED_AT]
        cosines = flat[some] @ flat.T / self.size
        cosines[np.arange(len(some)), some] = -1
        return float(np.median(cosines.max(1)))

    def _cosine(self, step: float) -> float:
        some = np.random.default_rng(0).permutation(len(self.sets))[:_LOOKED_AT]
        moved = self._moved(some, step, np.random.default_rng(1))
        return float(np.median((moved * self.sets[some]).sum((1, 2)) / self.size))

    def _step(self) -> float:
        low, high = 0.0, 4.0
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if self._cosine(middle) > self.nearest else (low, middle)
        return low


class Made:
    """Every item has a latent point near one of many centres; each slot sees it through its own linear map."""

    title = "made up"

    def __init__(self, size: int, width: int, items: int) -> None:
        self.size, self.width = size, width
        random = np.random.default_rng(1)
        self.maps = random.normal(size=(size, _LATENT, width)).astype(np.float32) / np.sqrt(_LATENT)
        self.maps *= (1 / np.sqrt(1 + np.arange(_LATENT) / 8))[None, :, None].astype(np.float32)
        self.offsets = 0.3 * random.normal(size=(size, width)).astype(np.float32)
        self.centres = random.normal(size=(max(50, items // 200), _LATENT)).astype(np.float32)

    def items(self, begin: int, count: int) -> np.ndarray:
        """Sets near their latent points."""
        return self._sets(self._points(begin, count), np.random.default_rng([2, begin]), 0.4)

    def queries(self, count: int, items: int) -> np.ndarray:
        """Sets further away from the latent points of some items."""
        places = np.random.default_rng(0).choice(items, count, replace=False)
        points = np.concatenate([self._points(int(place), 1) for place in places])
        return self._sets(points, np.random.default_rng(3), 0.8)

    def _points(self, begin: int, count: int) -> np.ndarray:
        """The latent point of each position on its own, so that a query can be made from one item."""
        noise = [np.random.default_rng([4, place]).normal(size=_LATENT) for place in range(begin, begin + count)]
        order = np.random.default_rng(5).permutation(len(self.centres))
        centres = order[np.arange(begin, begin + count) % len(self.centres)]
        return (self.centres[centres] + 0.7 * np.array(noise)).astype(np.float32)

    def _sets(self, points: np.ndarray, random: np.random.Generator, noise: float) -> np.ndarray:
        slots = []
        for slot, offset in zip(self.maps, self.offsets, strict=True):
            seen = points + noise * random.normal(size=points.shape).astype(np.float32)
            slots.append(seen @ slot + offset + 0.2 * random.normal(size=(len(points), slot.shape[1])))
        return _unit(np.stack(slots, 1))


def read_sets(path: Path) -> np.ndarray:
    """Sets (n, K, D) from a .npy file or from the shards of `maxmatch encode`, as float32 unit vectors."""
    if path.is_dir():
        from safetensors.numpy import load_file

        shards = [load_file(shard)["sets"] for shard in sorted(path.glob("shard-*.safetensors"))]
        if not shards:
            raise SystemExit(f"{path}: no shards (shard-*.safetensors). Write them with maxmatch encode")
        return _unit(np.concatenate(shards).astype(np.float32))
    sets = np.load(path, allow_pickle=False)
    if sets.ndim != 3:
        raise SystemExit(f"{path}: expected sets (n, K, D), found an array {sets.shape}")
    return _unit(sets.astype(np.float32))


def _unit(sets: np.ndarray) -> np.ndarray:
    return np.asarray(sets / np.linalg.norm(sets, axis=-1, keepdims=True), np.float32)
