"""What the tests of matching run over: similarities, batches of sets, and what scores them."""

from functools import partial

import pytest
import reference
import torch
from hypothesis import strategies as st
from reference import random_mask, random_sets
from torch import Tensor

from maxmatch import score_matrix, top_hits, top_hits_both

every_similarity = pytest.mark.parametrize("name", reference.NAMES)
of_any_two_sizes = pytest.mark.parametrize("name", [name for name in reference.NAMES if name != "paired"])
every_function = pytest.mark.parametrize(
    "function", [score_matrix, partial(top_hits, k=2), partial(top_hits_both, k=2)], ids=["matrix", "hits", "both"]
)

A, B = random_sets(1, 11, 4, 16), random_sets(2, 13, 4, 16)
A_MASK, B_MASK = random_mask(3, 11, 4), random_mask(4, 13, 4)
MASKS = {"a_mask": A_MASK, "b_mask": B_MASK}
TINY = 20_000  # bytes: a few pairs per tile
FEW, MANY = random_sets(5, 3, 4, 64), random_sets(6, 40, 4, 64)  # so few rows that the columns are not copied

seeds = st.integers(0, 10**6)
sizes = st.integers(1, 6)


def size_beside(name: str, rows: int, columns: int) -> int:
    """The size of the second sets: `columns`, but for a similarity of sets of one size."""
    return rows if name == "paired" else columns


@st.composite
def two_batches(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Sets in general position, in float64."""
    seed, width = draw(seeds), draw(st.integers(2, 8))
    a = random_sets(seed, draw(st.integers(1, 4)), draw(sizes), width, dtype=torch.float64)
    return a, random_sets(seed + 1, draw(st.integers(1, 4)), draw(sizes), width, dtype=torch.float64)
