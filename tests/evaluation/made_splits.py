"""Encoded splits made by hand, and galleries of given ranks."""

import torch

from maxmatch.core.types import Ranks
from maxmatch.evaluation.encoding import EncodedSplit
from maxmatch.evaluation.metrics import SearchRanks

torch.set_num_threads(1)


def unit(*shape, seed=0):
    return torch.nn.functional.normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


def split_of(images=20, captions=3, size=4, width=6, seed=0, noise=0.7):
    """Captions are noisy copies of their images; captions: of each image, a number or a list."""
    per = [captions] * images if isinstance(captions, int) else captions
    groups = {"image": torch.arange(images), "text": torch.arange(images).repeat_interleave(torch.tensor(per))}
    pictures = unit(images, size, width, seed=seed)
    texts = pictures[groups["text"]] + noise * unit(len(groups["text"]), size, width, seed=seed + 1)
    sets = {"image": pictures, "text": torch.nn.functional.normalize(texts, dim=-1)}
    ids = {name: [f"{name}-{number}" for number in range(len(groups[name]))] for name in groups}
    return EncodedSplit(sets, groups, ids)


def gallery_of(i2t, t2i, image_groups, text_groups):
    ranks = [Ranks(torch.tensor(some), torch.zeros(len(some), dtype=torch.long)) for some in (i2t, t2i)]
    return SearchRanks(*ranks, torch.tensor(image_groups), torch.tensor(text_groups))
