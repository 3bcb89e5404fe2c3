"""The moving average of the weights, which often validates better than the weights themselves."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor

from maxmatch.model import SetEncoder


class Average:
    """average ← decay · average + (1 − decay) · weights, after each step."""

    def __init__(self, model: SetEncoder, decay: float) -> None:
        self.decay = decay
        self.weights: dict[str, Tensor] = {name: p.detach().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: SetEncoder) -> None:
        """One step on."""
        current = [parameter.detach() for parameter in model.parameters()]
        torch._foreach_lerp_(list(self.weights.values()), current, 1 - self.decay)

    @contextmanager
    def in_place(self, model: SetEncoder) -> Iterator[None]:
        """The model with the averaged weights, for as long as this lasts."""
        own = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        self._put(model, self.weights)
        try:
            yield
        finally:
            self._put(model, own)

    @staticmethod
    @torch.no_grad()
    def _put(model: SetEncoder, weights: dict[str, Tensor]) -> None:
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])


def with_average(average: Average | None, model: SetEncoder) -> AbstractContextManager[None]:
    """The model with the averaged weights, where there are such."""
    return nullcontext() if average is None else average.in_place(model)
