"""A small data set in memory, in which everything is that a format has to keep; and what equality of two means."""

import io
import json
from pathlib import Path

import numpy as np
from PIL import Image

from maxmatch.data.dataset import IMAGE, TEXT, Items, Split

ODD_TEXTS = [
    "a dog, running",
    'a "big" dog',
    "two\nlines",
    "a tab\there",
    "un chien 🐕 court\r\n",
    " spaces ",
    "007",
    "[1]",
]


def picture(number: int, kind: str = "png") -> bytes:
    """A picture unlike those of other numbers."""
    file = io.BytesIO()
    Image.new("RGB", (4, 4), (number % 256, number // 256, 7)).save(file, kind)
    return file.getvalue()


def split_of(first: int, captions: list[int], metadata: bool = True) -> Split:
    """Pictures numbered from `first`, with so many captions each."""
    numbers = range(first, first + len(captions))
    groups = np.repeat(np.arange(len(captions)), captions)
    odd = [ODD_TEXTS[(first + number) % len(ODD_TEXTS)] for number in range(len(groups))]
    images = Items(
        values=[picture(number, "png" if number % 2 else "jpeg") for number in numbers],
        groups=np.arange(len(captions)),
        ids=[f"COCO_{number:03d}" for number in numbers],
        metadata=[{"licence": number, "url": f"http://{number}", "size": [4, 4], "note": "7"} for number in numbers],
    )
    texts = Items(
        values=[f"{text} #{number}" if number % 3 else text for number, text in enumerate(odd)],
        groups=groups,
        ids=[str(100 * first + number) for number in range(len(groups))],
        metadata=[{"tokens": text.split(), "rank": 0.5 + number} for number, text in enumerate(odd)],
    )
    if not metadata:
        images, texts = (Items(items.values, items.groups, items.ids) for items in (images, texts))
    return Split({IMAGE: images, TEXT: texts})


def sample_splits() -> dict[str, Split]:
    """Some images have one caption and some have five; ids and groups are not the same."""
    return {"train": split_of(0, [5, 1, 2, 3]), "val": split_of(4, [1, 1]), "test_b": split_of(6, [5])}


def content(value: object) -> object:
    """A picture's bytes, wherever they are; a text as it is."""
    return value.read_bytes() if isinstance(value, Path) else value


def plain(splits: dict[str, Split]) -> dict[str, object]:
    """All that two data sets have to have in common to be the same, readable where they are not."""
    return {
        f"{name}/{modality}": {
            "values": [content(value) for value in items.values],
            "groups": items.groups.tolist(),
            "ids": list(items.ids),
            "metadata": None if items.metadata is None else [json.loads(json.dumps(known)) for known in items.metadata],
        }
        for name, split in splits.items()
        for modality, items in split.items.items()
    }
