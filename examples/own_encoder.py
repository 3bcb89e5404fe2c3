"""Your own image encoder, in a model with one of the package's text encoders.

    python examples/own_encoder.py                      # seconds; the weights are random

An encoder is any module with two widths that turns inputs and a mask into `Features`. A tower is an encoder, a head
that makes the sets, and a reader that turns the user's items into inputs. `three_modalities.py` trains such a tower.
"""

import sys

import torch
from PIL import Image
from torch import Tensor, nn

from maxmatch import SetEncoder
from maxmatch.core.types import Features
from maxmatch.model.config import IMAGENET_MEAN, IMAGENET_STD
from maxmatch.model.encoder import Tower
from maxmatch.model.encoders import GRUEncoder
from maxmatch.model.images import ImageTransform
from maxmatch.model.inputs import PixelReader, TextReader
from maxmatch.model.layers import SetHead, grid_positions, masked_mean
from maxmatch.model.text import word_tokenizer

WIDTH, SIDE, PATCH = 64, 96, 16


class PatchEncoder(nn.Module):
    """Cuts an image into patches and runs each through a small network."""

    def __init__(self, width: int, patch: int) -> None:
        super().__init__()
        self.local_width = self.width = width  # widths of the local features and of the global one
        self.network = nn.Sequential(nn.Conv2d(3, width, patch, patch), nn.GELU(), nn.Conv2d(width, width, 1))

    def forward(self, pixels: Tensor, mask: Tensor | None = None) -> Features:
        """Local features: the patches. Global feature: their mean. The grid lets `look` show where slots look."""
        cells = self.network(pixels)
        rows, columns = cells.shape[2:]
        local = cells.flatten(2).transpose(1, 2)
        real = torch.ones(local.shape[:2], dtype=torch.bool, device=local.device)  # images have no padding
        positions = grid_positions(rows, columns, self.width, local.device, local.dtype).expand_as(local)
        return Features(local, real, masked_mean(local, real), positions, (rows, columns))


def build(captions: list[str]) -> SetEncoder:
    """Two towers with the same kind of head."""
    torch.manual_seed(0)
    tokenizer = word_tokenizer(captions, min_count=1)
    texts = GRUEncoder(tokenizer.get_vocab_size(), word_width=32, width=WIDTH)
    pictures = PatchEncoder(WIDTH, PATCH)
    pixels = ImageTransform(SIDE, "squash", IMAGENET_MEAN, IMAGENET_STD)
    return SetEncoder(
        {
            "image": Tower(pictures, _head(pictures.local_width), PixelReader(pixels)),
            "text": Tower(texts, _head(texts.local_width), TextReader(tokenizer)),
        }
    )


def _head(local_width: int) -> SetHead:
    return SetHead(local_width, WIDTH, set_size=4, heads=2, head_width=32)


def main() -> int:
    """Encode, compare and look. (`save_pretrained` supports only the package's encoders; save a state_dict.)"""
    captions = ["a red square", "something blue"]
    pictures = [Image.new("RGB", (120, 100), colour) for colour in ("red", "blue", "green")]
    model = build(captions)
    images, texts = model.encode_images(pictures), model.encode_texts(captions)
    print("image sets", tuple(images.shape), "and text sets", tuple(texts.shape))
    print("scores\n", model.similarity(images, texts))
    print("where each of the four vectors of an image looked", tuple(model.look("image", pictures[0]).attention.shape))
    return 0


if __name__ == "__main__":
    sys.exit(main())
