"""A few queries against many sets by one kernel, interpreted on the CPU: `score_matrix` is the reference."""

import pytest
import torch
from reference import random_sets

from maxmatch.matching.scoring import first_largest, score_matrix
from maxmatch.matching.triton_scan import best_places, can_scan, scan


def halves(count, width, seed):
    return random_sets(seed, count, 4, width).half()


@pytest.mark.parametrize(("queries", "items", "width"), [(1, 200, 32), (3, 64, 64), (16, 130, 96), (5, 7, 64)])
def test_scores_are_those_of_the_matching_and_the_best_of_each_block_is_its_largest(queries, items, width):
    asked, there = halves(queries, width, 0), halves(items, width, 1)
    scores, best = scan(asked, there)
    torch.testing.assert_close(scores, score_matrix(asked.float(), there.float()).float(), rtol=0, atol=1e-5)
    for block, largest in enumerate(best.T):
        assert torch.equal(largest, scores[:, block * 64 : (block + 1) * 64].amax(1))


@pytest.mark.parametrize("k", [1, 3, 10, 130])
def test_the_best_places_are_those_of_all_scores_and_of_equal_ones_the_first(k):
    there = halves(65, 32, 1).repeat(2, 1, 1)  # every score twice, in different blocks
    scores, best = scan(halves(2, 32, 0), there)
    found, expected = best_places(scores, best, k, first_largest), first_largest(scores, k)
    for ours, wanted in zip(found, expected, strict=True):
        assert torch.equal(ours, wanted)


@pytest.mark.parametrize(
    ("queries", "items", "fits"),
    [
        (torch.zeros(16, 4, 32).half(), torch.zeros(9, 4, 32).half(), True),
        (torch.zeros(17, 4, 32).half(), torch.zeros(9, 4, 32).half(), False),
        (torch.zeros(1, 3, 32).half(), torch.zeros(9, 3, 32).half(), False),
        (torch.zeros(1, 4, 40).half(), torch.zeros(9, 4, 40).half(), False),
        (torch.zeros(1, 4, 32), torch.zeros(9, 4, 32), False),
        (torch.zeros(1, 4, 32).half(), torch.zeros(9, 32, 4).half().transpose(1, 2), False),
    ],
)
def test_what_can_be_scanned(queries, items, fits):
    assert can_scan(queries, items) is fits
