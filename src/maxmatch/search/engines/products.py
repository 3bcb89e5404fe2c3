"""The nearest of items that are in memory: every inner product, in one matrix product for all queries."""

from collections.abc import Sequence

import numpy as np
import torch

from maxmatch.search.engine import Found


def nearest(queries: np.ndarray, blocks: Sequence[Found], count: int) -> list[Found]:
    """For each query (q, K·D) the `count` items with the largest inner products; all of them if there are fewer.

    The products of some queries with all items are in memory at once: q × items × 4 bytes.
    """
    if not blocks:
        blocks = [Found([], np.empty(0, np.int64), np.empty((0, queries.shape[1]), np.float32))]
    asked = torch.from_numpy(np.ascontiguousarray(queries, np.float32))
    products = torch.cat([asked @ torch.from_numpy(block.vectors).T for block in blocks], 1)
    best = products.topk(min(count, products.shape[1]), sorted=False).indices.sort().values.numpy()
    starts = np.cumsum([0] + [len(block.ids) for block in blocks])
    return [_taken(blocks, starts, places) for places in best]


def _taken(blocks: Sequence[Found], starts: np.ndarray, places: np.ndarray) -> Found:
    """The items at some places of all blocks, in rising order."""
    ends = np.searchsorted(places, starts)
    parts = [
        (block, places[begin:end] - start)
        for block, start, begin, end in zip(blocks, starts, ends[:-1], ends[1:], strict=False)
        if end > begin
    ]
    if not parts:
        return blocks[0]
    metadata = [
        block.metadata[place] for block, within in parts if block.metadata is not None for place in within.tolist()
    ]
    return Found(
        [block.ids[place] for block, within in parts for place in within.tolist()],
        np.concatenate([block.added[within] for block, within in parts]),
        np.concatenate([block.vectors[within] for block, within in parts]),
        metadata if all(block.metadata is not None for block, _ in parts) else None,
    )
