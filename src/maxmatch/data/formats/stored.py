"""A store of features as a data set: `captions.jsonl` beside the features holds the texts that belong to them.

    store.json · features.npy · counts.npy · ids.txt     see `maxmatch.data.features`
    captions.jsonl                                       {"split": "train", "image_id": "17", "caption": ["a dog", …]}

Without captions it holds one split "all" of images.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from maxmatch.core.files import whole
from maxmatch.core.progress import Advance, quiet
from maxmatch.data.dataset import IMAGE, TEXT, DataError, Dataset, Items, Report, Split, give_up, refuse
from maxmatch.data.features import (
    FeatureStore,
    FeatureWriter,
    StoreInfo,
    check_features,
    distinct_images,
    with_features,
)
from maxmatch.data.features import recognises as recognises
from maxmatch.data.formats import tables
from maxmatch.data.formats.columns import rows_of_split
from maxmatch.data.formats.shared import check_writable, write_folder
from maxmatch.data.formats.tables import write_jsonl

CAPTIONS, ALL = "captions.jsonl", "all"
_BLOCK = 256  # items written at once
LOOKS_LIKE, KEEPS_METADATA = "store.json, a feature store of MaxMatch", True


def read(path: Path, report: Report = refuse) -> dict[str, Split]:
    """The splits of a store."""
    try:
        store = FeatureStore.open(path)
    except DataError as error:
        give_up(report, error.problem)
    if not (path / CAPTIONS).is_file():
        return {ALL: Split({IMAGE: Items(store.values, np.arange(len(store)), store.ids)})}
    splits = tables.read(path / CAPTIONS, report)
    return dict(with_features(Dataset(path, "features", splits), store, report).splits)


def write(
    splits: Mapping[str, Split],
    path: Path,
    advance: Advance = quiet,
    workers: int = 1,
    dtype: Literal["float16", "float32"] | None = None,
    source: str = "converted",
) -> None:
    """Write a store with the features of all splits, and their captions. Without captions, the splits become one.

    dtype: None keeps float16, and makes all else float32. source: where the features come from, for `store.json`.
    workers is ignored: the disk is the bottleneck.
    """
    if any(TEXT in split.items for split in splits.values()):
        check_writable(splits, "features")
    firsts = [check_features(split[IMAGE], one_shape=False) for split in splits.values() if split.size]
    if not firsts:
        raise ValueError("no image to write: a store holds at least one.")
    kind = dtype or ("float16" if all(first.dtype == np.float16 for first in firsts) else "float32")
    info = StoreInfo(source, firsts[0].shape[1], kind)
    places = {image: place for place, image in enumerate(distinct_images(splits))}
    for image in places:
        if not image.isprintable():
            raise ValueError(f"the id {image!r} does not fit on a line. Choose another format.")

    def fill(folder: Path) -> None:
        with FeatureWriter(folder, info) as writer:
            for split in splits.values():
                _append(split[IMAGE], writer, advance)
            if any(TEXT in split.items for split in splits.values()):
                with whole(folder / CAPTIONS) as file:
                    write_jsonl(file, list(_rows(splits, places)))
            writer.finish()

    write_folder(path, "features", splits, fill, advance, dtype=kind)


def _append(items: Items, writer: FeatureWriter, advance: Advance) -> None:
    for begin in range(0, len(items), _BLOCK):
        block = range(begin, min(begin + _BLOCK, len(items)))
        new = [number for number in block if items.ids[number] not in writer.done]
        if new:
            writer.append([items.ids[number] for number in new], [items.values[number] for number in new])
        advance(len(block))


def _rows(splits: Mapping[str, Split], places: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    """A line for each image. The cell of the picture is its place in the store: a table wants a path there."""
    for name, split in splits.items():
        names = [str(places[image]) for image in split[IMAGE].ids]
        for cells in rows_of_split(split, {IMAGE: names}, listed=True):
            yield {"split": name, **cells}
