"""A folder of photos, opened for a search: its index is made or brought up to date first."""

from pathlib import Path
from typing import TYPE_CHECKING

from maxmatch.cli.interrupts import going_on
from maxmatch.cli.loading import Loaded, check_modality, default_model
from maxmatch.cli.progress import plain, say

if TYPE_CHECKING:
    from collections.abc import Callable

    from maxmatch.search.index import SetIndex

_SHOWN = 10


def is_folder_of_photos(folder: Path) -> bool:
    """Whether what was named holds photos, not an index. FileNotFoundError where it is no folder at all."""
    from maxmatch.search.manifest import is_index

    place = folder.expanduser()
    if not place.is_dir():
        what = "a file" if place.exists() else "no such folder"
        raise FileNotFoundError(f"{folder}: {what}. Expected a folder of photos, or an index (maxmatch index build).")
    return not is_index(place)


def open_folder(
    folder: Path,
    model: str | None,
    device: str | None,
    load: "Callable[[str, str | None], Loaded]",
    load_many: "Callable[[str, str | None], Loaded] | None" = None,
) -> "tuple[SetIndex, Loaded]":
    """The index of a folder of photos, up to date, and its model. load: `load_model` or `load_for_search`. load_many:
    what loads it where all photos are still to be read.
    """
    from tqdm import tqdm

    from maxmatch.data.items import IMAGE
    from maxmatch.search.photos import UNREADABLE, is_indexed, open_photos, place_of, sync

    named = model or default_model()
    encoder = load(named, device)
    check_modality(named, encoder.set_sizes, IMAGE)
    place = place_of(folder, encoder)
    if load_many is not None and not is_indexed(place):
        encoder = load_many(named, device)
    index = open_photos(place, encoder)
    with going_on(folder), tqdm(total=0, desc="photos", disable=None, leave=False) as shown:
        done = sync(index, encoder, folder, begin=shown.reset, advance=shown.update)
    for one in done.unreadable[:_SHOWN]:
        say(f"left out: {plain(one.reason)}")  # which names the file
    if len(done.unreadable) > _SHOWN:
        say(f"… and {len(done.unreadable) - _SHOWN} more that cannot be read; all are in {place / UNREADABLE}")
    if done.added or done.changed or done.removed:
        say(f"{len(index):,} photos: {done.added:,} new, {done.changed:,} changed, {done.removed:,} gone")
    return index, encoder
