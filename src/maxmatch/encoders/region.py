"""Features extracted beforehand: of detected regions (Faster R-CNN BUTD: 36 of width 2048) or of audio frames."""

from jaxtyping import Bool, Float
from torch import Tensor, nn

from maxmatch.checks import check_width
from maxmatch.encoders.protocol import mask_for
from maxmatch.layers.norm import MaskedBatchNorm
from maxmatch.layers.pooling import masked_max
from maxmatch.layers.positions import sine_positions
from maxmatch.types import Features


class RegionEncoder(nn.Module):
    """P(x) = dropout(MLP(fc(x)) + fc(x));  MLP: D → D/2, BatchNorm, ReLU, → D.

    Local features are P(x), the global feature is their maximum. Regions have no order, so no positions; features of a
    sequence, such as audio frames, are `ordered`. BatchNorm sees real features only: padding would move its statistics.
    """

    def __init__(
        self, feature_width: int = 2048, width: int = 1024, dropout: float = 0.1, ordered: bool = False
    ) -> None:
        super().__init__()
        self.ordered = ordered
        self.feature_width = feature_width
        self.local_width = self.width = width
        self.fc = nn.Linear(feature_width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, width // 2), MaskedBatchNorm(width // 2), nn.ReLU(), nn.Linear(width // 2, width)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, regions: Float[Tensor, "B N F"], mask: Bool[Tensor, "B N"] | None = None) -> Features:
        """The features of B items of up to N regions."""
        check_width("regions", regions, ("items", "regions"), self.feature_width)
        mask = mask_for(regions, mask)
        projected = self.fc(regions).masked_fill(~mask[..., None], 0.0)
        narrow, norm, relu, wide = self.mlp
        local = self.dropout(wide(relu(norm(narrow(projected), mask))) + projected)
        positions = sine_positions(mask, self.width, local.dtype) if self.ordered else None
        return Features(local, mask, masked_max(local, mask), positions)
