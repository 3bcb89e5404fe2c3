"""Two batches of sets, and what is asked of them."""

from functools import partial

import pytest
from reference import random_mask, random_sets

from maxmatch import score_matrix, top_hits, top_hits_both

every_function = pytest.mark.parametrize(
    "function", [score_matrix, partial(top_hits, k=2), partial(top_hits_both, k=2)], ids=["matrix", "hits", "both"]
)

A, B = random_sets(1, 11, 4, 16), random_sets(2, 13, 4, 16)

A_MASK, B_MASK = random_mask(3, 11, 4), random_mask(4, 13, 4)

TINY = 20_000  # a few pairs a tile
