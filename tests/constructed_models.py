"""Encoded splits whose analysis can be done by hand, and random ones for slow references."""

from itertools import product

import torch
from reference import random_sets

from maxmatch.evaluation.encoding import EncodedSplit

PAIR = ("image", "text")
COUNT, SLOTS = 27, 3


def encoded(images, texts, image_groups=None, text_groups=None):
    """A split; without groups, text i belongs to image i."""
    groups = {
        "image": torch.arange(len(images)) if image_groups is None else torch.tensor(image_groups),
        "text": torch.arange(len(texts)) if text_groups is None else torch.tensor(text_groups),
    }
    ids = {"image": [f"i{n}" for n in range(len(images))], "text": [f"t{n}" for n in range(len(texts))]}
    return EncodedSplit({"image": images, "text": texts}, groups, ids)


def collapsed():
    """27 pairs; all vectors of a set are the same, another axis for each pair."""
    sets = torch.eye(COUNT)[:, None].repeat(1, SLOTS, 1)
    return encoded(sets, sets.clone())


def one_slot():
    """27 pairs; slot 1 tells them apart, the other two are the same for all items, and unlike those of the others."""
    axes = torch.eye(COUNT + 4)
    images, texts = (axes[[first, 0, second]].repeat(COUNT, 1, 1) for first, second in ((-4, -3), (-2, -1)))
    images[:, 1] = texts[:, 1] = axes[:COUNT]
    return encoded(images, texts)


def diverse():
    """27 pairs, numbered by three digits of 0, 1, 2; slot k is an axis for its digit k: each tells a third of it."""
    digits = torch.tensor([number[::-1] for number in product(range(3), repeat=3)])  # item i = Σ digit_k · 3^k
    sets = torch.eye(9)[digits + 3 * torch.arange(3)]
    return encoded(sets, sets.clone())


def random_split(seed=0, slots=(3, 2), dtype=torch.float32):
    """Nine images with one to four captions each, in no order, sets of unequal size; true pairs are somewhat near."""
    generator = torch.Generator().manual_seed(seed)
    owners = torch.cat([torch.arange(9), torch.randint(9, (12,), generator=generator)])
    owners = owners[torch.randperm(21, generator=generator)]
    images = random_sets(seed, 9, slots[0], 6, dtype=dtype)
    texts = random_sets(seed + 1, 21, slots[1], 6, dtype=dtype) + images[owners].mean(1, keepdim=True)
    numbers = torch.tensor([70, 30, 10, 50, 20, 80, 60, 40, 90])
    texts = torch.nn.functional.normalize(texts, dim=-1)
    return encoded(images, texts, numbers.tolist(), numbers[owners].tolist())


def facet_split(count=120, per_image=3, facets=3, seed=0, *, slot_of=None, noise=0.3, ease=None):
    """Images with captions about different facets. Slot k of an image is a random axis-free vector; a caption about
    facet f is near slot slot_of[f] of its image, in all of its slots; near all slots alike without slot_of.
    ease[f]: how near (1 by default).
    """
    generator = torch.Generator().manual_seed(seed)
    images = random_sets(seed, count, 3, 48)
    owners = torch.arange(count).repeat_interleave(per_image)
    kinds = torch.cat([torch.randperm(facets, generator=generator)[:per_image] for _ in range(count)])
    told = images[owners].mean(1) if slot_of is None else images[owners, torch.tensor(slot_of)[kinds]]
    told = torch.nn.functional.normalize(told, dim=-1)
    nearness = torch.ones(facets) if ease is None else torch.tensor(ease)
    rest = noise * torch.randn(len(owners), 3, 48, generator=generator) / 48**0.5
    texts = torch.nn.functional.normalize(nearness[kinds][:, None, None] * told[:, None] + rest, dim=-1)
    return encoded(images, texts, None, owners.tolist()), [f"f{kind}" for kind in kinds.tolist()]
