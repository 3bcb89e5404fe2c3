"""A folder of photos, opened for a search: its index is made or brought up to date first."""

from pathlib import Path
from typing import TYPE_CHECKING

from maxmatch.cli.loading import Runtime, default_model, load_for_search
from maxmatch.cli.progress import say

if TYPE_CHECKING:
    from maxmatch.search.identity import Model
    from maxmatch.search.index import SetIndex

_SHOWN = 10


def open_folder(
    folder: Path, model: str | None, device: str | None, runtime: Runtime = "auto"
) -> "tuple[SetIndex, Model]":
    """The index of a folder of photos, up to date, and its model."""
    from tqdm import tqdm

    from maxmatch.data.items import IMAGE
    from maxmatch.search.photos import UNREADABLE, open_photos, place_of, sync

    if not folder.expanduser().is_dir():
        raise FileNotFoundError(f"{folder}: no such folder. Name an index, or a folder of photos.")
    encoder = load_for_search(model or default_model(), device, runtime, IMAGE)
    place = place_of(folder, encoder)
    index = open_photos(place, encoder)
    with tqdm(total=0, desc="photos", disable=None, leave=False) as shown:
        done = sync(index, encoder, folder, begin=shown.reset, advance=shown.update)
    for one in done.unreadable[:_SHOWN]:
        say(f"left out: {one.reason}")  # which names the file
    if len(done.unreadable) > _SHOWN:
        say(f"… and {len(done.unreadable) - _SHOWN} more that cannot be read; all are in {place / UNREADABLE}")
    if done.added or done.changed or done.removed:
        say(f"{len(index):,} photos: {done.added:,} new, {done.changed:,} changed, {done.removed:,} gone")
    return index, encoder
