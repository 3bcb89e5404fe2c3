"""Encoded splits with known structure, for reports."""

import torch

from maxmatch.evaluation.encoding import EncodedSplit

RECORDS = [
    {"kind": "train", "step": 10, "epoch": 0, "loss": 2.0, "triplet": 0.4, "mmd": None},
    {"kind": "train", "step": 20, "epoch": 0, "loss": 1.5, "triplet": 0.3, "mmd": None},
    {"kind": "val", "step": 20, "epoch": 0, "rsum": 50.0, "chance_rsum": 5.0, "image_log_variance": -0.5},
    {"kind": "val", "step": 40, "epoch": 1, "rsum": 80.0, "chance_rsum": 5.0, "image_log_variance": -0.4},
]


def made_sets(images=12, captions=2, size=3, width=8, noise=0.7, seed=0):
    """Sets of random vectors; a caption's are those of its image, with noise. Some captions so fail to find it."""
    generator = torch.Generator().manual_seed(seed)
    pictures = torch.randn(images, size, width, generator=generator)
    texts = pictures.repeat_interleave(captions, 0)
    texts = texts + noise * torch.randn(texts.shape, generator=generator)
    groups = torch.arange(images)
    return EncodedSplit(
        {"image": _unit(pictures), "text": _unit(texts)},
        {"image": groups, "text": groups.repeat_interleave(captions)},
        {"image": [f"picture-{n}" for n in range(images)], "text": [f"caption-{n}" for n in range(len(texts))]},
    )


def _unit(vectors):
    return torch.nn.functional.normalize(vectors, dim=-1)
