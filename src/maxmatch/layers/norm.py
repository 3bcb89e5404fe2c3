"""BatchNorm that sees real features only, and those of all processes when there are several."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, distributed, nn


class MaskedBatchNorm(nn.BatchNorm1d):
    """BatchNorm over the real features of a batch: padding would move its statistics.

    Shapes do not depend on how many features are real, so the work can be queued or captured ahead. With
    `torch.distributed` at work the statistics are those of the whole batch over all processes.
    """

    def forward(self, x: Float[Tensor, "B N W"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B N W"]:  # type: ignore[override]
        """The features normalised, those that are not real too."""
        precise = x.to(torch.promote_types(x.dtype, torch.float32))
        mean, variance = self.running_mean, self.running_var
        assert mean is not None
        assert variance is not None
        if self.training:
            mean, variance, count = _statistics(precise, mask)
            self._remember(mean.detach(), variance.detach(), count)
        scale = self.weight * (variance + self.eps).rsqrt()
        return ((precise - mean) * scale + self.bias).to(x.dtype)

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        assert self.momentum is not None
        unbiased = variance * count / (count - 1).clamp(min=1)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), self.momentum)
        self.num_batches_tracked.add_(1)


def _statistics(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance of the real features, and how many there are."""
    real = mask[..., None].to(x.dtype)
    count = _over_processes(real.sum())
    mean = _over_processes((x * real).sum((0, 1))) / count
    variance = _over_processes(((x - mean).square() * real).sum((0, 1))) / count
    return mean, variance, count


def _over_processes(total: Tensor) -> Tensor:
    if not (distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1):
        return total
    summed: Tensor = _SumOverProcesses.apply(total)  # type: ignore[no-untyped-call]
    return summed


class _SumOverProcesses(torch.autograd.Function):
    """The sum over all processes. Each of them then uses it, so its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: object, total: Tensor) -> Tensor:
        total = total.clone()
        distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        gradient = gradient.contiguous().clone()
        distributed.all_reduce(gradient)
        return gradient
