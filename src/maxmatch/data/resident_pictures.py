"""Pictures that are decoded once and stay on the device, where random parts of them are cut out: fine-tuning a small
network is then no longer a matter of decoding.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor
from torch.nn.functional import grid_sample

from maxmatch.data.items import Items
from maxmatch.data.transforms import Augmentation, RandomCrop, RandomMirror, crop_box
from maxmatch.images import Source
from maxmatch.readers import PixelReader
from maxmatch.types import Inputs

_CHUNK = 512  # pictures on their way to the device at once


class ResidentPictures:
    """The pictures of a split as bytes on the device.

    Without crops, exactly what evaluation sees, mirrored or not. For random crops a picture is kept as the square in
    its middle (squashed, where the model squashes), a seventh larger than what the model sees, and the parts are cut
    from that square: what is left and right of it in a wide picture is never seen, as in evaluation.
    """

    def __init__(
        self, items: Items, reader: PixelReader, augmentation: Augmentation | None, device: torch.device, threads: int,
        progress: Callable[[int, int], object] | None = None,
    ) -> None:  # fmt: skip
        self.augmentation, self.transform = augmentation, reader.transform
        self.failed: dict[int, str] = {}
        cut = isinstance(augmentation, RandomCrop)
        side = self.transform.kept_side if cut else self.transform.size
        self.pixels = torch.zeros(len(items), side, side, 3, dtype=torch.uint8, device=device)
        look = self.transform.square if cut else self.transform.seen
        with ThreadPoolExecutor(threads) as pool:
            for first in range(0, len(items), _CHUNK):
                places = range(first, min(first + _CHUNK, len(items)))
                read = list(pool.map(lambda place: _bytes(look, items.values[place]), places))
                for place, picture in zip(places, read, strict=True):
                    if isinstance(picture, str):
                        self.failed[place] = picture
                good = [np.zeros((side, side, 3), np.uint8) if isinstance(one, str) else one for one in read]
                self.pixels[first : places.stop] = torch.from_numpy(np.stack(good)).to(device)
                if progress is not None:
                    progress(places.stop, len(items))
        self._mean = torch.tensor(self.transform.mean, device=device)[:, None, None]
        self._std = torch.tensor(self.transform.std, device=device)[:, None, None]

    def read(self, places: np.ndarray, seed: int | None = None) -> tuple[Inputs, dict[int, str]]:
        """Pixels (items, 3, size, size), as the network takes them; parts and mirroring depend on seed and place."""
        index = torch.from_numpy(np.ascontiguousarray(places)).to(self.pixels.device)
        # Channels stay last in memory: that is how convolutions are fastest.
        pixels = self.pixels.index_select(0, index).movedim(3, 1).float() / 255
        if seed is not None and self.augmentation is not None:
            boxes, mirrored = self._drawn(places, seed)
            pixels = cut_out(pixels, boxes, mirrored, self.transform.size)
        elif isinstance(self.augmentation, RandomCrop):
            pixels = self._middle(pixels)
        return Inputs((pixels - self._mean) / self._std, None), {}

    def _drawn(self, places: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """The part of each picture, and whether it is mirrored."""
        side = self.pixels.shape[1]
        boxes, mirrored = np.zeros((len(places), 4)), np.zeros(len(places), bool)
        assert isinstance(self.augmentation, RandomCrop | RandomMirror)
        for row, place in enumerate(places.tolist()):
            generator = np.random.default_rng([seed, place])
            boxes[row] = (0, 0, side, side)
            if isinstance(self.augmentation, RandomCrop):
                boxes[row] = crop_box(side, side, self.augmentation.scale, self.augmentation.ratio, generator)
            mirrored[row] = generator.random() < self.augmentation.flip
        return boxes, mirrored

    def _middle(self, pixels: Tensor) -> Tensor:
        first = (pixels.shape[2] - self.transform.size) // 2
        return pixels[:, :, first : first + self.transform.size, first : first + self.transform.size]


def cut_out(
    pictures: Float[Tensor, "B C S S"], boxes: np.ndarray, mirrored: np.ndarray, size: int
) -> Float[Tensor, "B C {size} {size}"]:
    """A part of each picture, as a square of `size` pixels, by bilinear interpolation.

    boxes: left, top, right, bottom of each, in pixels.
    """
    box = torch.from_numpy(boxes).to(pictures.device, torch.float32)
    flip = torch.from_numpy(mirrored).to(pictures.device)
    middle = (torch.arange(size, device=pictures.device) + 0.5) / size  # of each pixel, as a share of the part
    across = torch.where(flip[:, None], 1 - middle, middle)
    x = box[:, :1] + across * (box[:, 2:3] - box[:, :1])
    y = box[:, 1:2] + middle * (box[:, 3:] - box[:, 1:2])
    side = pictures.shape[2]
    grid = torch.stack(
        [(2 * x / side - 1)[:, None, :].expand(-1, size, -1), (2 * y / side - 1)[:, :, None].expand(-1, -1, size)], -1
    )
    return grid_sample(pictures, grid, mode="bilinear", padding_mode="border", align_corners=False)


def _bytes(look: Callable[[Source], Image.Image], source: Source) -> UInt8[np.ndarray, "S S 3"] | str:
    """A picture's pixels, or why there are none."""
    try:
        return np.asarray(look(source))
    except (ValueError, OSError) as error:
        return str(error)
