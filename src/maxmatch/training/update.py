"""From a batch to changed weights."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from maxmatch.model import SetEncoder
from maxmatch.training.average import Average
from maxmatch.training.criterion import Criterion
from maxmatch.training.distributed import add_gradients
from maxmatch.training.graph import Step
from maxmatch.training.optim import Group, clip_gradients
from maxmatch.training.step import gradients
from maxmatch.types import Batch, LossTerms


def updating(
    model: SetEncoder,
    groups: list[Group],
    adam: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    criterion: Criterion,
    *,
    precision: torch.dtype | None = None,
    chunks: int = 1,
    clip: float | None = None,
    average: Average | None = None,
) -> Step:
    """A function that takes one step of training with a batch and a seed for dropout."""

    def step(batch: Batch, seed: int) -> LossTerms:
        adam.zero_grad(set_to_none=True)
        with _fast_products(precision is not None):
            terms = gradients(model, batch, criterion, seed, precision, chunks, scaler.scale)
        add_gradients(model)
        scaler.unscale_(adam)
        clip_gradients(groups, clip)
        scaler.step(adam)
        scaler.update()
        if average is not None:
            average.update(model)
        return terms

    return step


@contextmanager
def _fast_products(mixed: bool) -> Iterator[None]:
    """In mixed precision the float32 products of the losses may be made by tensor cores (TF32), too."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if mixed else before)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
