"""Entropic transport between two sets: a soft one-to-one matching, by Sinkhorn's iterations in the log domain."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad

from maxmatch.core.devices import in_float32

SMALLEST = 1e-6
"""The least ε: with less, float32 rounds away what the plan depends on."""
_BLOCK = 2**19  # cosines at work at once: on a CPU more leave the cache, and take three times as long


def check_transport(epsilon: float, iterations: int) -> None:
    """Refuse options that make no plan."""
    if not epsilon >= SMALLEST:
        raise ValueError(f"epsilon: expected a number of at least {SMALLEST:g}, got {epsilon}.")
    if iterations != int(iterations) or iterations < 1:
        raise ValueError(f"iterations: expected a whole number of at least 1, got {iterations}.")


@torch.no_grad()
@in_float32
def transport_plan(
    cosines: Float[Tensor, "K L B C"],
    epsilon: float,
    iterations: int,
    a_real: Bool[Tensor, "K 1 B 1"] | None = None,
    b_real: Bool[Tensor, "1 L 1 C"] | None = None,
) -> Float[Tensor, "K L B C"]:
    """The plan P that maximises Σ P c + ε H(P), without gradient; 0 where a vector is not real.

    Every real vector has mass 1. The smaller set moves completely; what is left of the larger one goes to a column of
    mass |K − L| that is no vector's, and counts in H. As ε → 0 the plan becomes the best one-to-one matching.

    One iteration scales the rows, then the columns. The columns are those of the smaller set (of `b`, where both have
    as many): their mass is exactly 1 after any number of iterations, so that Σ P is the number of pairs.
    """
    cosines = cosines.detach()  # forward derivatives, too
    rows, columns, n_a, n_b = cosines.shape
    step = max(1, _BLOCK // (rows * columns * max(1, n_b))) if cosines.device.type == "cpu" else max(1, n_a)
    plan = torch.empty_like(cosines)
    for begin in range(0, n_a, step):
        part = slice(begin, begin + step)
        block, in_a = cosines[:, :, part], None if a_real is None else a_real[:, :, part]
        if in_a is not None or b_real is not None:
            plan[:, :, part] = _masked_plan(block, epsilon, int(iterations), in_a, b_real)
        elif rows < columns:
            plan[:, :, part] = _plan(block.transpose(0, 1), epsilon, int(iterations)).transpose(0, 1)
        else:
            plan[:, :, part] = _plan(block, epsilon, int(iterations))
    return plan


def _plan(cosines: Tensor, epsilon: float, iterations: int) -> Tensor:
    """With K ≥ L."""
    rows, columns = cosines.shape[:2]
    column_mass = cosines.new_ones(1, columns, 1, 1)
    if rows > columns:  # a column without mass would have a potential of −∞
        cosines = _padded(cosines, rows, columns + 1)
        column_mass = pad(column_mass, (0, 0, 0, 0, 0, 1), value=rows - columns)
    return _scaled(cosines, cosines.new_zeros(1, 1, 1, 1), column_mass.log(), epsilon, iterations)[:, :columns]


def _masked_plan(
    cosines: Tensor, epsilon: float, iterations: int, a_real: Tensor | None, b_real: Tensor | None
) -> Tensor:
    """Pairs whose first set has fewer real vectors are turned round, so that all have no fewer rows than columns."""
    rows, columns, n_a, n_b = cosines.shape
    size = max(rows, columns)
    a_real = cosines.new_ones(rows, 1, n_a, 1, dtype=torch.bool) if a_real is None else a_real
    b_real = cosines.new_ones(1, columns, 1, n_b, dtype=torch.bool) if b_real is None else b_real
    turned = a_real.sum((0, 1)) < b_real.sum((0, 1))  # (B, C)
    left = (a_real.sum((0, 1)) - b_real.sum((0, 1))).abs().to(cosines.dtype)[None, None]
    in_a, in_b = _padded(a_real, size, 1), _padded(b_real, 1, size)
    in_rows = torch.where(turned, in_b.transpose(0, 1), in_a)
    in_columns = torch.where(turned, in_a.transpose(0, 1), in_b)
    square = _padded(cosines, size, size)
    square = torch.where(turned, square.transpose(0, 1), square)
    column_mass = torch.cat([in_columns.to(cosines.dtype), left], 1)
    plan = _scaled(
        _padded(square, size, size + 1), in_rows.to(cosines.dtype).log(), column_mass.log(), epsilon, iterations
    )[:, :size]
    plan = plan.masked_fill_(~in_columns, 0.0)
    return torch.where(turned, plan.transpose(0, 1), plan)[:rows, :columns]


def _padded(planes: Tensor, rows: int, columns: int) -> Tensor:
    """With planes of zeros after the last."""
    return pad(planes, (0, 0, 0, 0, 0, columns - planes.shape[1], 0, rows - planes.shape[0]))


def _scaled(cosines: Tensor, log_rows: Tensor, log_columns: Tensor, epsilon: float, iterations: int) -> Tensor:
    """The plan of given masses (−∞: none), its columns of mass 1 each. The potentials are in units of ε."""
    x = (cosines - cosines.amax(1, keepdim=True)) / epsilon  # near 0 where it matters: float32 is finer there
    g = torch.zeros_like(log_columns).masked_fill(log_columns == -torch.inf, -torch.inf)
    f = log_rows - (x + g).logsumexp(1, keepdim=True)
    for _ in range(iterations - 1):
        g = log_columns - (x + f).logsumexp(0, keepdim=True)
        f = log_rows - (x + g).logsumexp(1, keepdim=True)
    return (x + f).softmax(0)
