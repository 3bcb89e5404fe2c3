"""What the tests of the similarities run over."""

import pytest
import reference
import torch
from hypothesis import strategies as st
from reference import random_sets
from torch import Tensor

every_similarity = pytest.mark.parametrize("name", reference.NAMES)

seeds = st.integers(0, 10**6)

sizes = st.integers(1, 6)

# few against many, many against few, many against many; more and fewer vectors than the other set
SHAPES = [((1, 4, 16), (9, 4, 16)), ((9, 2, 16), (1, 5, 16)), ((6, 5, 8), (7, 3, 8)), ((5, 4, 3), (6, 4, 3))]


@st.composite
def two_batches(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Sets in general position, in float64."""
    seed, width = draw(seeds), draw(st.integers(2, 8))
    a = random_sets(seed, draw(st.integers(1, 4)), draw(sizes), width, dtype=torch.float64)
    return a, random_sets(seed + 1, draw(st.integers(1, 4)), draw(sizes), width, dtype=torch.float64)
