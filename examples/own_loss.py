"""Your own loss: scores by any similarity, terms from `maxmatch.losses`, and a term that you write.

    python examples/own_loss.py                         # seconds

The two sides of a pair share four hidden vectors. Each side sees them through its own matrix, in its own order and with
noise. Two linear maps learn to undo that, so that unseen pairs find each other.
"""

import argparse
import sys

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from maxmatch import losses, similarity
from maxmatch.evaluation.metrics import retrieval

WIDTH = 16


def made_pairs(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Two views (count, 4, WIDTH) of the same hidden vectors, in a different order in each item of the second."""
    rng, views = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(0)
    hidden = torch.randn(count, 4, WIDTH, generator=rng)
    order = torch.rand(count, 4, generator=rng).argsort(1)
    shuffled = hidden.gather(1, order[..., None].expand_as(hidden))
    first, second = (
        side @ torch.randn(WIDTH, WIDTH, generator=views) + torch.randn(side.shape, generator=rng)
        for side in (hidden, shuffled)
    )
    return first, second


def spread(sets: Tensor) -> Tensor:
    """Your own term: the vectors of a batch should use the whole space, so their mean should be near 0."""
    return sets.mean((0, 1)).square().sum()


def my_loss(a: Tensor, b: Tensor) -> Tensor:
    """Item i of one side belongs to item i of the other; `positive` may also have several true values per row."""
    scores = similarity.maxmatch(a, b)  # or smooth_chamfer, mil, …, or your own function of two batches of sets
    positive = torch.eye(len(a), dtype=torch.bool)
    ranking = losses.triplet(scores, positive, margin=0.2, negatives="semi_hard")
    apart = losses.intra_set_divergence(a) + losses.intra_set_divergence(b)
    return ranking + 0.1 * apart + 0.1 * (spread(a) + spread(b))


def main(arguments: list[str] | None = None) -> int:
    """Train, and print R@1 on unseen pairs before and after."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    steps = parser.parse_args(arguments).steps
    torch.manual_seed(0)
    towers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
    adam = torch.optim.Adam(towers.parameters(), lr=1e-2)

    def sets(count: int, seed: int) -> tuple[Tensor, Tensor]:
        a, b = (normalize(tower(side), dim=-1) for tower, side in zip(towers, made_pairs(count, seed), strict=True))
        return a, b

    def r1() -> float:
        with torch.no_grad():
            a, b = sets(200, seed=1)
        return retrieval(a, b, torch.arange(200), torch.arange(200))["i2t_r1"]

    before = r1()
    for step in range(steps):
        adam.zero_grad()
        loss = my_loss(*sets(64, seed=2 + step))
        torch.autograd.backward(loss)
        adam.step()
    print(f"R@1 among 200 unseen pairs: {before:.1f} % before, {r1():.1f} % after {steps} steps")
    return 0


if __name__ == "__main__":
    sys.exit(main())
