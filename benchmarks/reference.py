"""References that the benchmarks check against and compare with."""

from itertools import permutations

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn.functional import avg_pool2d, normalize


def random_sets(count: int, size: int, width: int, seed: int, device: str = "cpu") -> Tensor:
    """Sets whose slots have their own directions, as in trained models, so that not all cosines are near 0."""
    generator = torch.Generator(device).manual_seed(seed)
    slots = torch.randn(size, width, generator=torch.Generator().manual_seed(7)).to(device)
    return normalize(torch.randn(count, size, width, generator=generator, device=device) + 0.5 * slots, dim=-1)


def scipy_scores(a: Tensor, b: Tensor) -> Tensor:
    """maxmatch with SciPy's solver, pair by pair, in float64."""
    x, y = a.double().cpu().numpy(), b.double().cpu().numpy()
    scores = np.empty((len(x), len(y)))
    for i, first in enumerate(x):
        for j, second in enumerate(y):
            cosines = first @ second.T
            scores[i, j] = np.expm1(cosines[linear_sum_assignment(cosines, maximize=True)]).mean()
    return torch.from_numpy(scores)


def paper_listing(a: Tensor, b: Tensor) -> Tensor:
    """lst:assignment_similarity, made runnable (it chooses the permutation with the largest sum of cosines)."""
    (n_a, size, width), n_b = a.shape, len(b)
    distances = a.reshape(-1, width) @ b.reshape(-1, width).T
    blocks = distances.detach().view(n_a, size, n_b, size).transpose(1, 2)
    orders = torch.tensor(list(permutations(range(size))), device=a.device)
    totals = blocks[:, :, torch.arange(size, device=a.device), orders].sum(-1)
    chosen = orders[totals.argmax(-1)]
    mask = torch.zeros_like(blocks).scatter_(3, chosen[..., None], 1.0).transpose(1, 2).reshape_as(distances)
    pooled: Tensor = avg_pool2d((torch.exp(mask * distances) - 1)[None], size)[0] * size
    return pooled


def assert_equal(scores: Tensor, reference: Tensor, tolerance: float, what: str) -> None:
    """Exit unless the scores agree.

    One pair in a thousand may differ: if two matchings tie to the last bit, rounding decides between them, and their
    means of exp(c) differ.
    """
    error = (scores.double().cpu() - reference.double().cpu()).abs()
    beyond = (~(error <= tolerance)).float().mean().item()
    if beyond > 1e-3:
        raise AssertionError(
            f"{what}: {beyond:.2%} of the values differ by more than {tolerance:.0e}, at most {error.max():.1e}"
        )
