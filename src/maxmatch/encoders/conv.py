"""Pixels: any vision backbone that yields a grid (CNNs) or tokens (transformers)."""

import math
from typing import Literal

from jaxtyping import Bool, Float
from torch import Tensor, nn

from maxmatch.checks import check_images
from maxmatch.encoders.backbone import grid_cells, output_width, patch_size, probe_images
from maxmatch.encoders.freezing import Freezable
from maxmatch.encoders.protocol import mask_for
from maxmatch.layers.pooling import POOLING
from maxmatch.layers.positions import grid_positions
from maxmatch.types import Features


class ConvEncoder(Freezable):
    """Local features: each cell of the last feature map, through a 1×1 convolution. Global feature: the mean (or
    maximum) over the map, through a projection of its own.

    backbone: a Hugging Face vision model (ResNet, ConvNeXt, ViT, DINO, the vision tower of CLIP or SigLIP), a timm
    model, or any module that maps images to (B, C, h, w) or (B, N, C). Class and register tokens are dropped.
    stride: pixels a token stands for, where the backbone yields tokens and does not say so itself.
    """

    def __init__(
        self,
        backbone: nn.Module,
        width: int = 1024,
        pooling: Literal["mean", "max"] = "mean",
        stride: int | None = None,
    ) -> None:
        super().__init__()
        if pooling not in POOLING:
            raise ValueError(f"pooling: expected one of {', '.join(POOLING)}, got {pooling!r}.")
        self.backbone = backbone
        self.local_width = self.width = width
        self.stride = stride or patch_size(backbone)
        self.pooling = POOLING[pooling]
        channels = output_width(backbone, lambda: grid_cells(backbone, probe_images(backbone), self.stride)[0])
        self.local_projection = nn.Linear(channels, width)
        self.pooled_projection = nn.Linear(channels, width)

    def forward(
        self, images: Float[Tensor, "B c H W"] | Float[Tensor, "B N w"], mask: Bool[Tensor, "B N"] | None = None
    ) -> Features:
        """The features of B images of one size. The mask says which cells of the grid count, row by row (all).

        In place of pixels the cells of a square grid may come, that the backbone made of them before: a frozen one
        need see a picture only once.
        """
        made_before = images.ndim == 3 and images.shape[2] == self.local_projection.in_features
        cells, (rows, columns) = self.square(images) if made_before else self.cells(images)
        mask = mask_for(cells, mask)
        positions = grid_positions(rows, columns, self.width, cells.device, cells.dtype)
        return Features(
            local=self.local_projection(cells),
            mask=mask,
            pooled=self.pooled_projection(self.pooling(cells, mask)),
            positions=positions.expand(cells.shape[0], -1, -1),
            grid=(rows, columns),
        )

    def cells(self, images: Float[Tensor, "B c H W"]) -> tuple[Float[Tensor, "B N w"], tuple[int, int]]:
        """What the backbone makes of images: the cells of a grid, row by row, and its rows and columns."""
        check_images(images)
        return grid_cells(self.backbone, images, self.stride)

    def square(self, cells: Float[Tensor, "B N w"]) -> tuple[Float[Tensor, "B N w"], tuple[int, int]]:
        """Cells made before, as they are, and the rows and columns of their grid."""
        side = math.isqrt(cells.shape[1])
        if side * side != cells.shape[1]:
            raise ValueError(f"cells: expected those of a square grid, got {cells.shape[1]} of them.")
        return cells, (side, side)
