"""Many scenes as a folder in the layout of Hugging Face's imagefolder."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NoReturn

from maxmatch.core.files import whole, write_whole
from maxmatch.core.progress import Advance, map_ahead, quiet
from maxmatch.data.dataset import DataError, Problem
from maxmatch.data.scenes.captions import choose_facets, say
from maxmatch.data.scenes.drawing import draw
from maxmatch.data.scenes.world import PAINT, WORDS, Scene, generator, make_scene

VERSION = 1
"""Raised by one when the same seed gives other scenes, captions or pictures than before."""
SETTINGS, METADATA, PICTURES = "scenes.json", "metadata.jsonl", "images"
SPLITS: Mapping[str, float] = {"train": 0.8, "val": 0.1, "test": 0.1}
_FORMAT = "maxmatch.scenes"
_SIZES = range(32, 1025)
_START, _END = b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"
_BLOCK = 16  # pictures handed to a process at once


def generate(
    folder: str | Path,
    images: int = 2_000,
    seed: int = 0,
    size: int = 96,
    splits: Mapping[str, float] = SPLITS,
    workers: int | None = None,
    advance: Advance = quiet,
) -> None:
    """Write the first `images` scenes of a seed to a folder: pictures of `size` pixels, five captions each.

    splits: the share of each split. Where a scene goes depends on its number alone, so a larger folder holds a smaller
    one, split for split. workers: how many processes; None does all in this one. (Others are started afresh: a script
    that asks for them needs `if __name__ == "__main__":`.) advance: called for each picture.

    A folder of the same settings is continued, and may grow; any other is refused.
    """
    folder = Path(folder)
    if images < 1:
        raise ValueError(f"images: expected at least 1, got {images}.")
    if size not in _SIZES:
        raise ValueError(f"size: expected {_SIZES[0]} to {_SIZES[-1]} pixels, got {size}.")
    if not splits or min(splits.values()) < 0 or abs(sum(splits.values()) - 1) > 1e-6:
        raise ValueError(f"splits: expected shares that sum to 1, such as {dict(SPLITS)}, got {dict(splits)}.")
    make_scene(seed, 0)  # refuses a seed that is out of range before anything is written
    _claim(folder, images, {"version": VERSION, "seed": seed, "size": size, "splits": dict(splits)})
    blocks = (range(first, min(first + _BLOCK, images)) for first in range(0, images, _BLOCK))
    rows = map_ahead(partial(_make, folder, seed, size), blocks, workers or 1, processes=True)
    with closing(rows) as made, whole(folder / METADATA) as file:
        for row, split in zip(chain.from_iterable(made), _assigned(splits), strict=False):
            file.write(f"{json.dumps({**row, 'split': split}, ensure_ascii=False)}\n".encode())
            advance(1)


def describe(scene: Scene, seed: int, index: int) -> dict[str, Any]:
    """The record of scene `index` of a seed in metadata.jsonl, except for its split."""
    rng = generator(seed, index, WORDS)
    facets = choose_facets(scene, rng)
    return {
        "file_name": f"{PICTURES}/{index:06d}.png",
        "image_id": f"{index:06d}",
        "captions": [say(facet, rng) for facet in facets],
        "facets": [facet.record() for facet in facets],
        "scene": scene.record(),
    }


def _make(folder: Path, seed: int, size: int, indices: range) -> list[dict[str, Any]]:
    rows = []
    for index in indices:
        scene = make_scene(seed, index)
        row = describe(scene, seed, index)
        path = folder / row["file_name"]
        if not _is_whole(path):
            picture = draw(scene, size, generator(seed, index, PAINT))
            # Not synced, which can take longer than drawing: a picture that a power cut leaves cut short is recognised
            # by its end, and made again.
            with whole(path, synced=False) as file:
                picture.save(file, format="PNG", compress_level=3)
        rows.append(row)
    return rows


def _is_whole(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            start = file.read(len(_START))
            file.seek(-len(_END), os.SEEK_END)
            return start == _START and file.read() == _END
    except OSError:  # not there, or shorter than the end of a picture
        return False


def _assigned(splits: Mapping[str, float]) -> Iterator[str]:
    """The split of scene 0, 1, 2, …: each time the one that lacks most to its share so far."""
    names, counts, total = sorted(splits), dict.fromkeys(splits, 0), 0
    while True:
        total += 1
        split = max(names, key=lambda name: splits[name] * total - counts[name])
        counts[split] += 1
        yield split


def split_sizes(images: int, splits: Mapping[str, float] = SPLITS) -> dict[str, int]:
    """How many scenes go to each split."""
    names = list(islice(_assigned(splits), images))
    return {name: names.count(name) for name in splits}


def _claim(folder: Path, images: int, settings: dict[str, Any]) -> None:
    """Write the settings into the folder; refuse one that holds anything else."""
    path = folder / SETTINGS
    if folder.exists() and not folder.is_dir():
        _refuse(folder, "a file, where a folder is to be made", "Give another name")
    if path.exists():
        _compare(path, settings)
    elif folder.exists() and any(folder.iterdir()):
        _refuse(folder, f"holds files, but no {SETTINGS}: not a folder of scenes", "Give a new or an empty folder")
    (folder / PICTURES).mkdir(parents=True, exist_ok=True)
    beyond = sum(int(picture.stem) >= images for picture in (folder / PICTURES).glob("[0-9]*.png"))
    if beyond:
        _refuse(folder, f"holds {images + beyond} scenes or more, but {images} are asked for", "Give a new folder")
    if not path.exists():
        write_whole(path, json.dumps({"format": _FORMAT, **settings}, indent=2))


def _compare(path: Path, settings: dict[str, Any]) -> None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        found = None
    if not isinstance(found, dict) or found.get("format") != _FORMAT:
        _refuse(path, f"not the {SETTINGS} of a folder of scenes", "Give a new folder, or remove this one")
    other = [f"{name} {found.get(name)}, not {value}" for name, value in settings.items() if found.get(name) != value]
    if other:
        _refuse(path, f"the scenes here were made with {', '.join(other)}", "Give a new folder, or ask for the same")


def _refuse(file: Path, what: str, cure: str) -> NoReturn:
    raise DataError(Problem(file, what, f"{cure}.", fatal=True))
