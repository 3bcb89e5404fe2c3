"""Checks of sets that need no torch: they take tensors and NumPy arrays alike."""

import math
from typing import Any

import numpy as np

MAX_SET_SIZE = 16
_BLOCK = 4096

Array = Any
"""A tensor or a NumPy array."""


class NotFiniteError(ValueError):
    """Values that are NaN or infinite."""


class UsageError(ValueError):
    """Arguments that contradict each other or name what does not exist; a command ends with exit code 2."""


def shape_of(array: Array) -> str:
    """A shape, for messages."""
    return "×".join(map(str, array.shape)) or "a scalar"


def check_sets(name: str, sets: Array) -> None:
    """Refuse what is not a batch of sets: (items, vectors, width), floating point, at least one vector per set."""
    if sets.ndim != 3:
        raise ValueError(
            f"{name}: expected sets of shape (items, vectors, width), got {shape_of(sets)}. "
            f"For one set use {name}[None]; for one vector per item use {name}[:, None]."
        )
    floating = np.issubdtype(sets.dtype, np.floating) if isinstance(sets, np.ndarray) else sets.is_floating_point()
    if not floating:
        raise ValueError(f"{name}: expected floating-point vectors, got {sets.dtype}. Convert them to float32.")
    size, width = sets.shape[1:]
    if size == 0 or width == 0:
        raise ValueError(f"{name}: sets of {size} vectors of width {width} are empty; give at least one of each.")


def check_set_size(name: str, size: int) -> None:
    """Refuse sets of more vectors than the matching is made for."""
    if size > MAX_SET_SIZE:
        raise ValueError(
            f"{name}: sets of {size} vectors; matching is made for at most {MAX_SET_SIZE}. "
            "Use fewer vectors per item, or a similarity without matching, such as 'maxsim' or 'chamfer'."
        )


def check_equal_sizes(first: int, second: int) -> None:
    """Refuse sets of two sizes, for a similarity in which slot i meets slot i and no other."""
    if first != second:
        raise ValueError(
            f"paired: sets of {first} and of {second} vectors; slot i meets slot i, so that both need as many. "
            "Compare sets of one size, or use 'maxmatch'."
        )


def refuse_not_finite(name: str, sets: Array, mask: Array | None = None) -> None:
    """Raise if any value of a real vector is NaN or infinite, naming the first item that has one."""
    step = max(1, len(sets)) if getattr(sets, "is_cuda", False) else _BLOCK  # each look at a GPU's result waits for it
    for start in range(0, len(sets), step):
        part = slice(start, start + step)
        block = sets[part]
        with np.errstate(over="ignore", invalid="ignore"):
            if math.isfinite(block.sum().tolist()):  # the quick way to see that all are
                continue
        in_numpy = isinstance(block, np.ndarray)
        bad = ~(np.isfinite(block) if in_numpy else block.isfinite()).all(2)
        if mask is not None:
            bad &= np.asarray(mask[part]) if in_numpy else mask[part].to(bad.device)
        bad = bad.any(1)
        if bool(bad.any()):
            raise NotFiniteError(
                f"{name}: item {start + bad.tolist().index(True)} holds NaN or infinite values. "
                "Find what made them (a zero vector that was normalised?) or leave such items out."
            )
