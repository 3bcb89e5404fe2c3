"""What every query of a job found, kept beside its result: paired tests between models need it."""

import hashlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from maxmatch.evaluation.protocol import Gallery
from maxmatch.files import whole
from maxmatch.types import Ranks

RANKS = "ranks.npy"
"""int32 (queries, 3): whether the query is a caption, its group, and the rank of its best true answer."""


def write_ranks(folder: Path, search: Gallery) -> str:
    """Put the ranks of a search into a folder; the digest by which its result knows them again."""
    ways = ((search.i2t, search.image_groups), (search.t2i, search.text_groups))
    columns = [
        np.stack([np.full(len(groups), way), groups.cpu().numpy(), ranks.ranks.cpu().numpy()], 1)
        for way, (ranks, groups) in enumerate(ways)
    ]
    with io.BytesIO() as made:
        np.save(made, np.concatenate(columns).astype(np.int32), allow_pickle=False)
        content = made.getvalue()
    with whole(folder / RANKS) as file:
        file.write(content)
    return _digest(content)


def read_ranks(folder: Path, result: Mapping[str, Any]) -> Gallery | None:
    """The search that a result was taken from; None where it was not kept, or what lies there is another's."""
    try:
        content = (folder / RANKS).read_bytes()
    except OSError:
        return None
    if result.get("ranks") != _digest(content):
        return None
    found = torch.from_numpy(np.load(io.BytesIO(content), allow_pickle=False)).long()
    images, texts = found[found[:, 0] == 0], found[found[:, 0] == 1]
    # Ties count against us in the ranks already; how many there were is not kept.
    i2t, t2i = (Ranks(side[:, 2], torch.zeros_like(side[:, 2])) for side in (images, texts))
    return Gallery(i2t, t2i, images[:, 1], texts[:, 1])


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
