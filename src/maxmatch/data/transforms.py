"""What training does to a picture: a random part of it, at times mirrored."""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from PIL import Image
from torch import Tensor, from_numpy

from maxmatch.images import DRAFT, Channels, ImageTransform, Source, load_image, normalised

_TRIES = 10


@dataclass(frozen=True)
class RandomCrop:
    """A part of the picture, of random area and shape, as a square of `size` pixels; then (pixel − mean)/std.

    scale: the least and largest share of the picture's area; ratio: the same of width to height. flip: how often the
    part is mirrored, left to right.
    """

    size: int
    mean: Channels
    std: Channels
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5

    def __post_init__(self) -> None:
        """Refuse what no part can have."""
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise ValueError(f"scale: expected two shares of the area, 0 < least ≤ largest ≤ 1, got {self.scale}.")
        if not 0 < self.ratio[0] <= self.ratio[1]:
            raise ValueError(f"ratio: expected 0 < least ≤ largest width to height, got {self.ratio}.")

    def __call__(self, source: Source, generator: np.random.Generator) -> Float[Tensor, "3 {self.size} {self.size}"]:
        """A random part of the picture as the model takes it."""
        image = load_image(source, at_least=self._at_least())
        box = crop_box(image.width, image.height, self.scale, self.ratio, generator)
        image = image.crop(box).resize((self.size, self.size), Image.Resampling.BILINEAR)
        if generator.random() < self.flip:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return from_numpy(normalised(image, self.mean, self.std))

    def _at_least(self) -> int:
        """Evaluation sees seven eighths of the short side; a part may be as small as a quarter of it, and must have
        `size` pixels of its own still: a picture decoded any smaller would be blown up again.
        """
        smallest = math.sqrt(self.scale[0] * min(self.ratio[0], 1 / self.ratio[1]))
        return math.ceil(self.size / smallest / DRAFT)


@dataclass(frozen=True)
class RandomMirror:
    """The picture as evaluation sees it, but mirrored, left to right, with probability `flip`."""

    transform: ImageTransform
    flip: float = 0.5

    @property
    def size(self) -> int:
        """The side of the square."""
        return self.transform.size

    def __call__(self, source: Source, generator: np.random.Generator) -> Float[Tensor, "3 {self.size} {self.size}"]:
        """The picture as the model takes it."""
        pixels = self.transform(source)
        return pixels.flip(-1) if generator.random() < self.flip else pixels


Augmentation = RandomCrop | RandomMirror


def crop_box(
    width: int, height: int, scale: tuple[float, float], ratio: tuple[float, float], generator: np.random.Generator
) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of a random part of a picture.

    Area uniform in `scale`, shape uniform in the logarithm of `ratio`; after ten that do not fit, the middle of the
    picture, as much of it as has an allowed shape.
    """
    for _ in range(_TRIES):
        area = width * height * generator.uniform(*scale)
        shape = math.exp(generator.uniform(math.log(ratio[0]), math.log(ratio[1])))
        w, h = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(generator.integers(width - w + 1)), int(generator.integers(height - h + 1))
            return left, top, left + w, top + h
    w = min(width, max(round(height * ratio[1]), 1))
    h = min(height, max(round(width / ratio[0]), 1))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h
