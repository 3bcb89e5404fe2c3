"""The data of one size of the search benchmark: items in a file, queries, and the exact answers."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

import numpy as np
import torch

from benchmarks.search_sources import Source
from maxmatch import maximal_assignment, top_hits
from maxmatch.core.files import whole, write_whole

K_BEST = 10
ITEMS = "items"
_CHUNK = 20_000
_CHECKED = (5, 2000)  # queries and items for checking the exact answers by a search of all permutations


@dataclass(frozen=True)
class Data:
    """Items in a file (n, K, D); queries to measure, others to choose settings with; the ten best."""

    folder: Path
    items: int
    dtype: np.dtype
    queries: np.ndarray
    tuning: np.ndarray
    truth: np.ndarray
    scores: np.ndarray
    tuning_truth: np.ndarray

    def chunks(self) -> Iterator[tuple[int, np.ndarray]]:
        """The items in chunks, as float32, with the position of the first.

        They are read, not mapped, so that the memory measured is that of the index.
        """
        size, width = self.queries.shape[1:]
        with (self.folder / ITEMS).open("rb") as file:
            for begin in range(0, self.items, _CHUNK):
                count = min(_CHUNK, self.items - begin)
                sets = np.fromfile(file, self.dtype, count * size * width).reshape(count, size, width)
                yield begin, sets.astype(np.float32, copy=False)

    def mapped(self) -> np.ndarray:
        """All items, as a memory map."""
        return np.memmap(self.folder / ITEMS, self.dtype, "r", shape=(self.items, *self.queries.shape[1:]))


def prepare(folder: Path, source: Source, items: int, queries: int, tuning: int, dtype: np.dtype) -> str:
    """Write the items and the exact answers unless they exist. Returns a description of them."""
    if not (folder / ITEMS).exists():
        with whole(folder / ITEMS) as file:
            for begin in range(0, items, _CHUNK):
                file.write(source.items(begin, min(_CHUNK, items - begin)).astype(dtype, copy=False).data)
    note = folder / "data.txt"
    about = f"{source.title}; in {dtype}; {queries} queries"
    if note.exists():
        text = note.read_text()
        if not text.startswith(about):
            raise SystemExit(f"{folder}: holds rows of other sets ({text}). Choose another folder.")
        return text
    asked = source.queries(queries + tuning, items)
    nothing = np.empty((0, K_BEST))
    mapped = Data(folder, items, dtype, asked, asked, nothing, nothing, nothing).mapped()
    best = top_hits(torch.from_numpy(asked), mapped, K_BEST)
    truth, scores = best.indices.numpy(), best.scores.numpy()
    _check(asked, mapped, truth, scores)
    with whole(folder / "asked.npz") as file:
        np.savez(
            file,
            queries=asked[:queries],
            tuning=asked[queries:],
            truth=truth[:queries],
            scores=scores[:queries],
            tuning_truth=truth[queries:],
        )
    text = f"{about}; slot i meets slot i in {_aligned(asked, mapped, truth):.1%} of the best hits"
    write_whole(note, text)
    return text


def load(folder: Path, items: int) -> Data:
    """What `prepare` wrote."""
    asked = np.load(folder / "asked.npz", allow_pickle=False)
    dtype = np.dtype(np.float16 if "; in float16; " in (folder / "data.txt").read_text() else np.float32)
    return Data(folder, items, dtype, **{name: asked[name] for name in asked.files})


def recall_of(found: list[list[int]], truth: np.ndarray) -> float:
    """The share of the exact answers that were found."""
    shares = [len(set(mine) & set(true)) / len(true) for mine, true in zip(found, truth.tolist(), strict=True)]
    return float(np.mean(shares))


def _check(asked: np.ndarray, items: np.ndarray, truth: np.ndarray, scores: np.ndarray) -> None:
    """Check the answers with all permutations: the scores of the hits, and that no other item is better."""
    count, others = _CHECKED
    some = np.sort(np.random.default_rng(7).permutation(len(items))[:others])
    for query, found, claimed in zip(asked[:count], truth, scores, strict=False):
        np.testing.assert_allclose(_by_permutations(query, items[found]), claimed, atol=1e-5)
        rest = some[~np.isin(some, found)]
        assert _by_permutations(query, items[rest]).max(initial=-1) <= claimed[-1] + 1e-5, "a better item was not found"


def _by_permutations(query: np.ndarray, sets: np.ndarray) -> np.ndarray:
    cosines = np.einsum("kd,nld->nkl", query.astype(np.float64), sets.astype(np.float64))
    slots = range(query.shape[0])
    chosen = np.stack([cosines[:, slots, order] for order in permutations(slots)], 1)
    best = chosen.sum(2).argmax(1)
    matched = np.take_along_axis(chosen, best[:, None, None], 1)[:, 0]
    return np.asarray((np.exp(matched) - 1).mean(1))


def _aligned(asked: np.ndarray, items: np.ndarray, truth: np.ndarray) -> float:
    best = np.stack([items[place] for place in truth[:, 0]]).astype(np.float32)
    partners = maximal_assignment(torch.from_numpy(np.einsum("nkd,nld->nkl", asked, best)))
    return float((partners == torch.arange(partners.shape[1])).float().mean())
