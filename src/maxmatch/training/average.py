"""The moving average of the weights, which often validates better than the weights themselves."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor

from maxmatch.model import SetEncoder


class Average:
    """average ← decay · average + (1 − decay) · weights, after each step. BatchNorm's statistics go with them."""

    def __init__(self, model: SetEncoder, decay: float) -> None:
        self.decay = decay
        self.weights: dict[str, Tensor] = {name: value.clone() for name, value in _averaged(model).items()}

    @torch.no_grad()
    def update(self, model: SetEncoder) -> None:
        """One step on."""
        torch._foreach_lerp_(list(self.weights.values()), list(_averaged(model).values()), 1 - self.decay)

    @contextmanager
    def in_place(self, model: SetEncoder) -> Iterator[None]:
        """The model with the averaged weights, for as long as this lasts."""
        own = {name: value.clone() for name, value in _averaged(model).items()}
        self._put(model, self.weights)
        try:
            yield
        finally:
            self._put(model, own)

    @staticmethod
    @torch.no_grad()
    def _put(model: SetEncoder, weights: dict[str, Tensor]) -> None:
        for name, value in _averaged(model).items():
            value.copy_(weights[name])


def _averaged(model: SetEncoder) -> dict[str, Tensor]:
    """What can be averaged: parameters and statistics, not counts."""
    return {name: value.detach() for name, value in model.state_dict().items() if value.is_floating_point()}


def with_average(average: Average | None, model: SetEncoder) -> AbstractContextManager[None]:
    """The model with the averaged weights, where there are such."""
    return nullcontext() if average is None else average.in_place(model)
