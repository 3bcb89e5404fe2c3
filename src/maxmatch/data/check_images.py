"""Looking at every picture of a data set, or at all of its features."""

import hashlib
import io
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from maxmatch.data.check_report import FeatureCounts, Level, Pictures, Spread
from maxmatch.data.formats.picture_files import in_order
from maxmatch.data.formats.tars import TarItems
from maxmatch.data.items import IMAGE, Dataset, Split
from maxmatch.data.problems import DataError, Problem
from maxmatch.data.rows import ZEROS, RaggedRows, Rows, bad_rows

Say = Callable[[Level, Problem], None]
Advance = Callable[[int], object]
_AGAIN = "Fetch it again, or take its captions out."
_SAME = "Leave one of the two out, with its captions, unless both are meant."
_LEAK = "Leave one of the two out: what is trained on cannot be tested on."


class Seen(NamedTuple):
    """What there is to know of a picture, or why there is nothing."""

    bytes: int = 0
    kind: str = ""
    width: int = 0
    height: int = 0
    missing: bool = False
    error: str | None = None


class Place(NamedTuple):
    """A picture of a data set."""

    split: str
    id: str
    values: Sequence[Any]
    number: int

    @property
    def value(self) -> Any:
        """Its path, or its bytes."""
        return self.values[self.number]


def places_of(splits: Mapping[str, Split]) -> list[Place]:
    """All pictures, split by split."""
    return [
        Place(name, image, split[IMAGE].values, number)
        for name, split in splits.items()
        if IMAGE in split.items
        for number, image in enumerate(split[IMAGE].ids)
    ]


def look_at_pictures(dataset: Dataset, say: Say, decode: bool, workers: int, advance: Advance) -> Pictures:
    """Open every picture, decode all of it or its beginning, and find those that are there twice."""
    places = places_of(dataset.splits)
    seen = []
    for one in in_order(lambda place: look(place, decode), places, workers):
        seen.append(one)
        advance(1)
    missing = [place for place, one in zip(places, seen, strict=True) if one.missing]
    if len(missing) == len(places) > 1:
        what = f"not one of the {len(places)} pictures is there, the first of which would be {missing[0].value}"
        say("error", Problem(dataset.path, what, "Give the folder they are in: --images DIR."))
    else:
        for place in missing:
            say("error", _problem(dataset, place, "no such picture", "Bring it back, or take its captions out."))
    for place, one in zip(places, seen, strict=True):
        if one.error is not None:
            say("error", _problem(dataset, place, one.error, _AGAIN))
    good = [(place, one) for place, one in zip(places, seen, strict=True) if one.kind]
    for first, second in twins(good, workers):
        leak = first.split != second.split and {first.split, second.split} != {"test", "testall"}
        what = f"the same picture as {first.id!r} of the split {first.split!r}"
        what += f", here in the split {second.split!r}" if leak else ""
        say("warning" if leak else "note", _problem(dataset, second, what, _LEAK if leak else _SAME))
    return Pictures(
        count=len(good),
        decoded=decode,
        kinds=dict(Counter(one.kind for _, one in good).most_common()),
        bytes=sum(one.bytes for _, one in good),
        widths=Spread.of([one.width for _, one in good]) if good else None,
        heights=Spread.of([one.height for _, one in good]) if good else None,
    )


def look(place: Place, decode: bool) -> Seen:
    """One picture. Whatever is wrong with it is said, never raised."""
    from PIL import Image

    from maxmatch.images import load_image

    try:
        value = place.value
        data = value if isinstance(value, bytes) else Path(value).read_bytes() if decode else None
        with Image.open(Path(value) if data is None else io.BytesIO(data)) as image:
            kind, (width, height) = image.format or "?", image.size
        if decode:
            load_image(data if data is not None else value, at_least=1)  # a JPEG at an eighth, yet all of it is read
        size = len(data) if data is not None else Path(value).stat().st_size
    except FileNotFoundError:
        return Seen(missing=True)
    except Exception as error:  # what a damaged file makes Pillow raise has no common class
        return Seen(error=_why(error))
    return Seen(size, kind, width, height)


def twins(seen: Sequence[tuple[Place, Seen]], workers: int) -> Iterator[tuple[Place, Place]]:
    """Pairs of pictures of the same content: by size first, for most differ in that."""
    by_size: dict[int, list[Place]] = defaultdict(list)
    for place, one in seen:
        by_size[one.bytes].append(place)
    suspects = [place for places in by_size.values() if len(places) > 1 for place in places]
    firsts: dict[bytes, Place] = {}
    for place, digest in zip(suspects, in_order(_digest, suspects, workers), strict=True):
        if digest is not None and firsts.setdefault(digest, place) is not place:
            yield firsts[digest], place


def look_at_features(dataset: Dataset, split: str, say: Say, scan: bool, advance: Advance) -> FeatureCounts:
    """Their shape and type; and, in all of them, NaN, infinite values and nothing but zeros."""
    items = dataset.splits[split][IMAGE]
    rows = items.values
    assert isinstance(rows, Rows | RaggedRows)
    counts = np.diff(rows.starts)[rows.numbers] if isinstance(rows, RaggedRows) else np.array([rows.array.shape[1]])
    if scan:
        file = Path(rows.array.filename or dataset.path) if isinstance(rows.array, np.memmap) else dataset.path
        names: dict[int, str] = {}
        for number, what in bad_rows(rows, advance=advance):
            names = names or dict(zip(rows.numbers.tolist(), items.ids, strict=True))
            cure = "Extract its features again, or leave it out." if what != ZEROS else "Extract its features again."
            about = f"{what}, of image {names[number]!r} of the split {split!r}"
            say("note" if what == ZEROS else "error", Problem(file, about, cure, number + 1))
    return FeatureCounts(rows.width, str(rows.array.dtype), Spread.of(counts), scan)


def _problem(dataset: Dataset, place: Place, what: str, cure: str) -> Problem:
    """At the picture's own file, or, where it lies in another, with its id."""
    if isinstance(place.values, TarItems):
        return Problem(place.values.where(place.number), what, cure)
    if isinstance(place.values, list) and isinstance(place.value, str | Path):
        return Problem(Path(place.value), what, cure)
    return Problem(dataset.path, f"image {place.id!r} of the split {place.split!r}: {what}", cure)


def _why(error: Exception) -> str:
    """What is wrong, without the name of what was read and without a cure: both are said beside it."""
    from maxmatch.images import ImageError, reason

    if isinstance(error, DataError):
        return error.problem.what
    if isinstance(error, ImageError):
        what, _, rest = str(error).partition(": ")[2].rstrip(".").rpartition(". ")
        return what or rest
    return f"not a readable picture ({reason(error)})"


def _digest(place: Place) -> bytes | None:
    try:
        value = place.value
        return hashlib.sha256(value if isinstance(value, bytes) else Path(value).read_bytes()).digest()
    except OSError:
        return None
