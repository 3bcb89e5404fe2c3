"""Sets of unequal size: scoring and searching against the bare product of all their vectors.

`python -m benchmarks.late_interaction`, or with `busy` on a machine that others use: one thread, and the processor's
time in place of the clock's.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch.nn.utils.rnn import pad_sequence

from benchmarks.reference import assert_equal
from benchmarks.timing import Row, describe_machine, print_rows, rows_against
from maxmatch import SetIndex, score_matrix, top_hits
from maxmatch.core.ragged_array import RaggedArray

WIDTH = 128  # ColBERT's


def ragged_sets(count: int, least: int, most: int, seed: int) -> RaggedArray:
    """Sets of any number of vectors between two."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(least, most + 1, (count,), generator=generator).numpy()
    vectors = normalize(torch.randn(int(sizes.sum()), WIDTH, generator=generator), dim=-1).numpy()
    return RaggedArray(vectors, np.concatenate([[0], np.cumsum(sizes)]))


def one_by_one(queries: RaggedArray, documents: RaggedArray) -> Tensor:
    """MaxSim of each pair in a loop, in float64."""
    return torch.tensor(
        [[(q.astype(np.float64) @ d.astype(np.float64).T).max(1).sum() for d in documents] for q in queries]
    )


def padded_scores(queries: RaggedArray, documents: RaggedArray) -> Tensor:
    """As multi-vector libraries score: padded, one product, masked, maximum, sum; a part of the documents at a time."""
    q = pad_sequence([torch.from_numpy(one) for one in queries], batch_first=True)
    parts = []
    for start in range(0, len(documents), 128):
        some = documents[start : start + 128]
        d = pad_sequence([torch.from_numpy(one) for one in some], batch_first=True)
        real = torch.arange(d.shape[1]) < torch.from_numpy(some.sizes)[:, None]
        cosines = torch.einsum("qxd,cyd->qcxy", q, d).masked_fill(~real[None, :, None], -torch.inf)
        best = cosines.amax(3) * (torch.arange(q.shape[1]) < torch.from_numpy(queries.sizes)[:, None])[:, None]
        parts.append(best.sum(2))
    return torch.cat(parts, 1)


def processor_rows(baseline: Callable[[], object], named: Mapping[str, Callable[[], object]]) -> list[Row]:
    """As `rows_against`, by the time that the processor works for this process."""
    works = {"bare product": baseline, **named}
    best = dict.fromkeys(works, float("inf"))
    for _ in range(6):
        for what, work in works.items():
            begin = time.process_time()
            work()
            best[what] = min(best[what], (time.process_time() - begin) * 1e3)
    return [Row(what, ms, ms / best["bare product"]) for what, ms in best.items()]


def main(busy: bool) -> None:
    """One query, and many, against documents of 20 to 300 vectors."""
    if busy:
        torch.set_num_threads(1)
    print(describe_machine(), "(the processor's time)" if busy else "")
    documents = ragged_sets(1000, 20, 300, 1)
    y, listed = torch.from_numpy(documents.flat()), list(documents)
    with tempfile.TemporaryDirectory() as folder:
        index = SetIndex.create(Path(folder) / "index", dim=WIDTH, set_size=None, similarity="maxsim")
        index.add([str(number) for number in range(len(documents))], documents)
        for count in (1, 16):
            queries = ragged_sets(count, 8, 32, 2)
            x = torch.from_numpy(queries.flat())
            expected = one_by_one(queries[:4], documents[:50])
            scores = score_matrix(queries, documents, "maxsim")
            assert_equal(scores[:4, :50], expected, 1e-5, "score_matrix")
            assert_equal(padded_scores(queries[:4], documents[:50]), expected, 1e-5, "padded")
            best = scores.topk(10)
            assert_equal(top_hits(queries, documents, 10, "maxsim").scores, best.values, 1e-5, "top_hits")
            found = index.search(queries, k=10)
            for place, hits in enumerate(found):
                assert_equal(torch.tensor([hit.score for hit in hits]), best.values[place], 1e-5, "search")
            out = torch.empty(len(x), len(y))
            ways = {
                "score_matrix (maxsim), one array of all vectors": lambda q=queries: score_matrix(
                    q, documents, "maxsim"
                ),
                "score_matrix (maxsim), a list of arrays": lambda q=queries: score_matrix(q, listed, "maxsim"),
                "SetIndex.search, k = 10, with matches": lambda q=queries: index.search(q, k=10),
                "padded, masked, maximum, sum": lambda q=queries: padded_scores(q, documents),
            }
            product = lambda x=x, out=out: torch.mm(x, y.T, out=out)  # noqa: E731
            if busy:
                rows = processor_rows(product, ways)
            else:
                rows = rows_against(product, {what: (work, None) for what, work in ways.items()}, "bare product", 5)
            vectors = f"{len(x):,} × {len(y):,} vectors of width {WIDTH}"
            print_rows(f"CPU, {count} queries × {len(documents):,} documents: {vectors}, float32", rows)
        index.close()


if __name__ == "__main__":
    main("busy" in sys.argv[1:])
