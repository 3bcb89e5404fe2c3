"""Sets of vectors for tests of search, and the engines that they run on."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

# engine -> its settings in tests: an index over the vectors as soon as there are a few. The Milvus server's address
# is put in by the fixture that starts it (tests/search/conftest.py).
ENGINES: dict[str, dict[str, Any]] = {"lance": {"train_from": 12, "keys_from": 12}, "milvus": {}}


def unit_sets(count: int, size: int = 2, width: int = 8, seed: int = 0) -> Tensor:
    """Random sets of unit vectors."""
    generator = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(count, size, width, generator=generator), dim=-1)


def axis_sets(count: int, size: int = 2, width: int = 8, seed: int = 0) -> Tensor:
    """Sets of axes: every sum of products is exact, so that equal scores are equal to the last bit."""
    axes = np.random.default_rng(seed).integers(width, size=(count, size))
    return torch.eye(width)[torch.from_numpy(axes)]


def aligned_sets(count: int, queries: int, size: int = 4, width: int = 16, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Items, and queries near some of them whose slot i meets slot i."""
    random = np.random.default_rng(seed)
    slots = 2 * random.normal(size=(size, width))
    items = random.normal(size=(count, size, width)) + slots
    near = items[random.choice(count, queries, replace=False)] + 0.3 * random.normal(size=(queries, size, width))
    made = [torch.from_numpy(sets.astype(np.float32)) for sets in (items, near)]
    return torch.nn.functional.normalize(made[0], dim=-1), torch.nn.functional.normalize(made[1], dim=-1)
