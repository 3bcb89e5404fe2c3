"""Image encoders: pixels through any vision backbone, or features extracted beforehand (regions, audio frames)."""

import math
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, distributed, nn
from torch.nn.functional import normalize

from maxmatch.core.array_checks import shape_of
from maxmatch.core.checks import check_images, check_width
from maxmatch.core.types import Features
from maxmatch.model.encoders.backbone import Freezable, grid_cells, mask_for, output_width, patch_size, probe_images
from maxmatch.model.layers import POOLING, grid_positions, masked_max, masked_mean, sine_positions


class MaskedBatchNorm(nn.BatchNorm1d):
    """BatchNorm over the real features of a batch: padding would move its statistics.

    Shapes do not depend on how many features are real, so the work can be queued or captured ahead. With
    `torch.distributed` running the statistics are those of the whole batch over all processes.
    """

    def forward(self, x: Float[Tensor, "B N W"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B N W"]:  # type: ignore[override]
        """The features normalised, those that are not real too."""
        precise = x.to(torch.promote_types(x.dtype, torch.float32))
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        assert self.momentum is not None
        mean, variance = self.running_mean, self.running_var
        if self.training:
            real = mask[..., None].to(precise.dtype)
            count = _over_processes(real.sum())
            mean = _over_processes((precise * real).sum((0, 1))) / count
            variance = _over_processes(((precise - mean).square() * real).sum((0, 1))) / count
            with torch.no_grad():
                unbiased = variance * count / (count - 1).clamp(min=1)
                self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
                self.running_var.lerp_(unbiased.to(self.running_var.dtype), self.momentum)
                self.num_batches_tracked.add_(1)
        scale = self.weight * (variance + self.eps).rsqrt()
        return ((precise - mean) * scale + self.bias).to(x.dtype)


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


class ResidualProjection(nn.Module):
    """P(x) = dropout(MLP(fc(x)) + fc(x));  MLP: D → D/2, BatchNorm, ReLU, → D.

    BatchNorm sees real features only: padding would move its statistics.
    mlp_reads: "fc", as above, or the "input": MLP(x) + fc(x), as in VSE∞.
    init: of fc, as torch starts linear layers, or "xavier": uniform in Glorot's bounds, bias 0.
    """

    def __init__(
        self,
        feature_width: int = 2048,
        width: int = 1024,
        dropout: float = 0.1,
        mlp_reads: Literal["fc", "input"] = "fc",
        init: Literal["torch", "xavier"] = "torch",
    ) -> None:
        super().__init__()
        if mlp_reads not in ("fc", "input"):
            raise ValueError(f"mlp_reads: expected 'fc' or 'input', got {mlp_reads!r}.")
        self.mlp_reads = mlp_reads
        self.fc = nn.Linear(feature_width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width if mlp_reads == "fc" else feature_width, width // 2),
            MaskedBatchNorm(width // 2),
            nn.ReLU(),
            nn.Linear(width // 2, width),
        )
        self.dropout = nn.Dropout(dropout)
        _start(self.fc, init)

    def project(self, x: Float[Tensor, "B N F"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B N D"]:
        """P of the real features, anything of the others."""
        projected = self.fc(x).masked_fill(~mask[..., None], 0.0)
        read = projected if self.mlp_reads == "fc" else x.masked_fill(~mask[..., None], 0.0)
        narrow, norm, relu, wide = self.mlp
        out: Tensor = self.dropout(wide(relu(norm(narrow(read), mask))) + projected)
        return out


def _start(layer: nn.Linear, init: str) -> None:
    if init not in ("torch", "xavier"):
        raise ValueError(f"init: expected torch or xavier, got {init!r}.")
    if init == "xavier":
        nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(layer.bias)


_PROJECTIONS: dict[str, type[nn.Module]] = {"linear": nn.Linear, "mlp": ResidualProjection, "none": nn.Identity}


class ConvEncoder(Freezable):
    """Local features: each cell of the last feature map, through a 1×1 convolution. Global feature: the mean (or
    maximum) over the map, through a projection of its own.

    projection: of the local features; in place of the "linear" 1×1 convolution the "mlp" of regions, or "none".
    pooling: "none": no projection of its own; the mean of the local features stands for the global one (without a
    projection of these it has their width: for heads that do not read it).
    unit_pooled: whether the pooled map has unit length before its projection, as in VSE++.
    init: of the linear projections, as torch starts them, or "xavier": uniform in Glorot's bounds, bias 0.

    backbone: a Hugging Face vision model (ResNet, ConvNeXt, ViT, DINO, the vision tower of CLIP or SigLIP), a timm
    model, or any module that maps images to (B, C, h, w) or (B, N, C). Class and register tokens are dropped.
    stride: pixels per token along one side, where the backbone yields tokens and does not tell itself.
    """

    def __init__(
        self,
        backbone: nn.Module,
        width: int = 1024,
        pooling: Literal["mean", "max", "none"] = "mean",
        stride: int | None = None,
        projection: Literal["linear", "mlp", "none"] = "linear",
        unit_pooled: bool = False,
        init: Literal["torch", "xavier"] = "torch",
    ) -> None:
        super().__init__()
        if pooling not in (*POOLING, "none"):
            raise ValueError(f"pooling: expected one of {', '.join(POOLING)}, none, got {pooling!r}.")
        if projection not in _PROJECTIONS:
            raise ValueError(f"projection: expected one of {', '.join(_PROJECTIONS)}, got {projection!r}.")
        self.backbone = backbone
        self.width = width
        self.stride = stride or patch_size(backbone)
        self.pooling = POOLING.get(pooling)
        self.unit_pooled = unit_pooled
        channels = output_width(backbone, lambda: grid_cells(backbone, probe_images(backbone), self.stride)[0])
        self.feature_width = channels
        self.local_width = channels if projection == "none" else width
        self.local_projection = _PROJECTIONS[projection](channels, width)
        self.pooled_projection = None if self.pooling is None else nn.Linear(channels, width)
        for layer in (self.local_projection, self.pooled_projection):
            if isinstance(layer, nn.Linear):
                _start(layer, init)

    def forward(
        self, images: Float[Tensor, "B c H W"] | Float[Tensor, "B N w"], mask: Bool[Tensor, "B N"] | None = None
    ) -> Features:
        """The features of B images of one size. mask: which cells of the grid count, row by row; None: all.

        Instead of pixels it also takes the cells of a square grid that the backbone computed before: a frozen backbone
        has to see each picture only once.
        """
        width = self.feature_width
        if images.ndim == 3 and images.shape[2] != width:
            raise ValueError(
                f"images: expected this backbone's features (items, cells, {width}) or pixels (items, channels, rows, "
                f"columns), got {shape_of(images)}. Extract features with this model. For one image use images[None]."
            )
        if images.ndim == 3:
            cells, rows = images, math.isqrt(images.shape[1])
            columns = rows
            if rows * columns != cells.shape[1]:
                raise ValueError(f"cells: expected those of a square grid, got {cells.shape[1]} of them.")
        else:
            cells, (rows, columns) = self.cells(images)
        mask = mask_for(cells, mask)
        positions = grid_positions(rows, columns, self.local_width, cells.device, cells.dtype)
        local = self._local(cells, mask)
        return Features(
            local=local,
            mask=mask,
            pooled=masked_mean(local, mask) if self.pooling is None else self._pooled(self.pooling(cells, mask)),
            positions=positions.expand(cells.shape[0], -1, -1),
            grid=(rows, columns),
        )

    def _local(self, cells: Float[Tensor, "B N w"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B N W"]:
        if isinstance(self.local_projection, ResidualProjection):
            return self.local_projection.project(cells, mask)
        local: Tensor = self.local_projection(cells)
        return local

    def _pooled(self, cell: Float[Tensor, "B w"]) -> Float[Tensor, "B D"]:
        assert self.pooled_projection is not None
        pooled: Tensor = self.pooled_projection(normalize(cell, dim=-1) if self.unit_pooled else cell)
        return pooled

    def cells(self, images: Float[Tensor, "B c H W"]) -> tuple[Float[Tensor, "B N w"], tuple[int, int]]:
        """What the backbone makes of images: the cells of a grid, row by row, and its rows and columns."""
        check_images(images)
        return grid_cells(self.backbone, images, self.stride)


class RegionEncoder(ResidualProjection):
    """Local features are P(x), the global feature is their maximum. Regions have no order, so no positions; features of
    a sequence, such as audio frames, are `ordered`.
    """

    def __init__(
        self,
        feature_width: int = 2048,
        width: int = 1024,
        dropout: float = 0.1,
        ordered: bool = False,
        mlp_reads: Literal["fc", "input"] = "fc",
        init: Literal["torch", "xavier"] = "torch",
    ) -> None:
        super().__init__(feature_width, width, dropout, mlp_reads, init)
        self.ordered = ordered
        self.feature_width = feature_width
        self.local_width = self.width = width

    def forward(self, regions: Float[Tensor, "B N F"], mask: Bool[Tensor, "B N"] | None = None) -> Features:
        """The features of B items of up to N regions."""
        check_width("regions", regions, ("items", "regions"), self.feature_width)
        mask = mask_for(regions, mask)
        local = self.project(regions, mask)
        positions = sine_positions(mask, self.width, local.dtype) if self.ordered else None
        return Features(local, mask, masked_max(local, mask), positions)
