"""Sets that stay on a device to be searched again and again: in float, or as integers with a scale for each vector."""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from maxmatch.core.devices import free_memory_of
from maxmatch.core.types import TopHits
from maxmatch.matching import SetSimilarity
from maxmatch.matching.products import scans_for
from maxmatch.matching.scoring import top_hits

STORED = ("float32", "float16", "bfloat16", "int8")
"""What vectors can be kept in."""
_BLOCK = 2**24  # numbers that are floats at once, where integers are scored without a kernel for them
_UNASKED = 2**28  # bytes: for less on the way nobody asks how much memory is free


class StoredSets:
    """(n, K, D), at first undefined. An int8 vector is a scale times integers of which the largest is 127; its scores
    are those of what is stored.
    """

    def __init__(self, count: int, size: int, width: int, dtype: str, device: torch.device | str) -> None:
        self.values = torch.empty(count, size, width, dtype=getattr(torch, dtype), device=device)
        self.scales = torch.empty(count, size, device=device) if dtype == "int8" else None

    def __len__(self) -> int:
        return len(self.values)

    @property
    def nbytes(self) -> int:
        """On the device."""
        return self.values.nbytes + (0 if self.scales is None else self.scales.nbytes)

    def put(self, places: Int[Tensor, " n"] | slice, sets: Float[Tensor, "n K D"]) -> None:
        """Store sets."""
        if self.scales is None:
            self.values[places] = sets.to(self.values.dtype)
            return
        sets = sets.float()
        scales = sets.abs().amax(2) / 127
        self.scales[places] = scales
        self.values[places] = (sets / scales.clamp(min=1e-30)[:, :, None]).round().to(torch.int8)

    def at(self, places: Int[Tensor, "*n"] | slice) -> Float[Tensor, "*n K D"]:
        """Sets as they are stored, in float32."""
        values = self.values[places].float()
        return values if self.scales is None else values * self.scales[places][..., None]

    def best(
        self,
        queries: Float[Tensor, "B K D"],
        k: int,
        similarity: SetSimilarity,
        keep: Bool[Tensor, " n"] | None = None,
    ) -> TopHits:
        """The k best for each query, as `top_hits` finds them. A GPU makes queries as the stored sets are: half
        precision, or integers. Its kernel looks at no vector whether it is finite and has unit length, and nothing
        waits for it.
        """
        k = min(k, len(self))
        kernels = scans_for(self.values) if similarity.fast else None
        asked = queries if self.scales is not None else queries.to(self.values.dtype)
        if kernels is not None and kernels.can_scan(asked, self.values, k):
            parts = torch.split(asked, self._at_once(kernels, len(asked), k))
            found = [kernels.best_hits(part, self.values, k, keep, item_scales=self.scales) for part in parts]
            return TopHits(*(found[0] if len(found) == 1 else map(torch.cat, zip(*found, strict=True))))
        if self.scales is None:
            return top_hits(asked, self.values, k, similarity, keep=keep)
        return self._best_of_blocks(queries.float(), k, similarity, keep)

    def _at_once(self, kernels: Any, queries: int, k: int) -> int:
        """How many queries go together: a kernel has its most, and the GPU may be full of what is stored."""
        queries = min(queries, kernels.most_queries(self.values.device))
        each = kernels.scan_bytes(len(self), k)
        free = free_memory_of(self.values.device) if queries * each > _UNASKED else None
        return queries if free is None else max(1, min(queries, free // 2 // each))

    def _best_of_blocks(self, queries: Tensor, k: int, similarity: SetSimilarity, keep: Tensor | None) -> TopHits:
        step = max(1, _BLOCK // max(1, self.values[:1].numel()))
        scores, places = queries.new_empty(len(queries), 0), torch.empty(len(queries), 0).to(queries.device, torch.long)
        for start in range(0, len(self), step):
            part = slice(start, start + step)
            own = None if keep is None else keep[part]
            hits = top_hits(queries, self.at(part), k, similarity, keep=own)
            found = torch.where(hits.indices < 0, -1, hits.indices + start)
            scores, places = torch.cat([scores, hits.scores], 1), torch.cat([places, found], 1)
            order = scores.sort(dim=1, descending=True, stable=True).indices[:, :k]
            scores, places = scores.gather(1, order), places.gather(1, order)
        return TopHits(scores, places)
