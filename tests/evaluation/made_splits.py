"""Encoded splits: random ones for slow references, and some whose analysis can be done by hand; galleries of ranks."""

from itertools import product

import torch
from hypothesis import strategies as st
from reference import random_sets
from torch.nn.functional import normalize

from maxmatch.core.types import Ranks
from maxmatch.evaluation.encoding import EncodedSplit, paired
from maxmatch.evaluation.metrics import SearchRanks

PAIR = ("image", "text")
COUNT, SLOTS = 27, 3


def unit(*shape, seed=0):
    return normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


def encoded(images, texts, image_groups=None, text_groups=None):
    """A split; without groups, text i belongs to image i."""
    sets = {"image": images, "text": texts}
    given = {"image": image_groups, "text": text_groups}
    groups = {
        name: torch.arange(len(sets[name])) if some is None else torch.as_tensor(some) for name, some in given.items()
    }
    return EncodedSplit(sets, groups, {name: [f"{name}-{n}" for n in range(len(sets[name]))] for name in sets})


def split_of(images=20, captions=3, size=4, width=6, seed=0, noise=0.7):
    """Captions are noisy copies of their images; captions: of each image, a number or a list."""
    per = torch.tensor([captions] * images if isinstance(captions, int) else captions)
    groups = torch.arange(images).repeat_interleave(per)
    pictures = unit(images, size, width, seed=seed)
    texts = normalize(pictures[groups] + noise * unit(len(groups), size, width, seed=seed + 1), dim=-1)
    return encoded(pictures, texts, None, groups)


def random_split(seed=0, slots=(3, 2), dtype=torch.float32):
    """Nine images with one to four captions each, in no order, sets of unequal size; true pairs are somewhat near."""
    generator = torch.Generator().manual_seed(seed)
    owners = torch.cat([torch.arange(9), torch.randint(9, (12,), generator=generator)])
    owners = owners[torch.randperm(21, generator=generator)]
    images = random_sets(seed, 9, slots[0], 6, dtype=dtype)
    texts = normalize(
        random_sets(seed + 1, 21, slots[1], 6, dtype=dtype) + images[owners].mean(1, keepdim=True), dim=-1
    )
    numbers = torch.tensor([70, 30, 10, 50, 20, 80, 60, 40, 90])
    return encoded(images, texts, numbers, numbers[owners])


def one_pair(slots=(2, 3)):
    """One image with one caption."""
    return encoded(random_sets(0, 1, slots[0], 4), random_sets(1, 1, slots[1], 4))


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


def facet_split(count=120, per_image=3, facets=3, seed=0, *, slot_of=None, noise=0.3, ease=None):
    """Images with captions about different facets, and the facet of each caption. A caption about facet f is near slot
    slot_of[f] of its image, in all of its slots; near all slots alike without slot_of. ease[f]: how near (1).
    """
    generator = torch.Generator().manual_seed(seed)
    images = random_sets(seed, count, 3, 48)
    owners = torch.arange(count).repeat_interleave(per_image)
    kinds = torch.cat([torch.randperm(facets, generator=generator)[:per_image] for _ in range(count)])
    told = images[owners].mean(1) if slot_of is None else images[owners, torch.tensor(slot_of)[kinds]]
    nearness = torch.ones(facets) if ease is None else torch.tensor(ease)
    rest = noise * torch.randn(len(owners), 3, 48, generator=generator) / 48**0.5
    texts = normalize(nearness[kinds][:, None, None] * normalize(told, dim=-1)[:, None] + rest, dim=-1)
    return encoded(images, texts, None, owners), [f"f{kind}" for kind in kinds.tolist()]


def pairs_of(split):
    """What every analysis begins with."""
    return paired(split, PAIR)


def gallery_of(i2t, t2i, image_groups, text_groups):
    """A search whose queries have these ranks."""
    ranks = [Ranks(torch.tensor(some), torch.zeros(len(some), dtype=torch.long)) for some in (i2t, t2i)]
    return SearchRanks(*ranks, torch.tensor(image_groups), torch.tensor(text_groups))


@st.composite
def galleries(draw):
    """Groups of any size on either side, in any order, with any ids; scores of few values or of many."""
    ids = draw(st.lists(st.integers(-(10**12), 10**12), min_size=1, max_size=6, unique=True))
    rows, columns = (
        draw(st.permutations([group for group in ids for _ in range(draw(st.integers(1, 4)))])) for _ in range(2)
    )
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    shape = len(rows), len(columns)
    values = draw(st.sampled_from([1, 2, 3, 10, None]))
    if values is None:
        scores = torch.randn(shape, generator=generator)
    else:
        scores = torch.randint(values, shape, generator=generator).float()
    return scores, torch.tensor(rows), torch.tensor(columns)
