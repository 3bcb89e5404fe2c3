"""ResNeXt: a residual network with grouped convolutions, which transformers does not have (its ResNet has no groups).

Parameters are named as in torchvision and timm, so that published weights fit as they are.
"""

from collections.abc import Mapping, Sequence

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import relu


class Bottleneck(nn.Module):
    """1×1, grouped 3×3, 1×1, each with BatchNorm; added to the input, which is projected where the shapes differ."""

    def __init__(self, inputs: int, inner: int, outputs: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, inner, 1, bias=False), nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride, padding=1, groups=groups, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3, self.bn3 = nn.Conv2d(inner, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Float[Tensor, "B c h w"]) -> Float[Tensor, "B d i j"]:
        """The map after the block."""
        y = relu(self.bn1(self.conv1(x)))
        y = relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNeXt(nn.Module):
    """Images (B, 3, H, W) -> the last feature map (B, 32 · base_width, ⌈H/32⌉, ⌈W/32⌉) for four stages.

    Stage s has depths[s] blocks of `groups` groups, 2^s · group_width channels each, and 2^s · 4 · base_width outputs.
    The default is ResNeXt-101 32×8d.
    """

    def __init__(
        self,
        depths: Sequence[int] = (3, 4, 23, 3),
        groups: int = 32,
        group_width: int = 8,
        base_width: int = 64,
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, base_width, 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(base_width)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        inputs = base_width
        self.stages = len(depths)
        for stage, depth in enumerate(depths):
            inner, outputs = groups * group_width * 2**stage, 4 * base_width * 2**stage
            blocks = []
            for place in range(depth):
                stride = 2 if stage and not place else 1
                blocks.append(Bottleneck(inputs, inner, outputs, stride, groups))
                inputs = outputs
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))

    def forward(self, images: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B d h w"]:
        """The last feature map."""
        x: Tensor = self.maxpool(relu(self.bn1(self.conv1(images))))
        for stage in range(self.stages):
            x = self.get_submodule(f"layer{stage + 1}")(x)
        return x

    def load_published(self, weights: Mapping[str, Tensor]) -> None:
        """Take weights as torchvision and timm name them. The classifier is left out."""
        self.load_state_dict({name: value for name, value in weights.items() if not name.startswith("fc.")})
