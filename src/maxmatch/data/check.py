"""What is in a data set, and what is wrong with it. Everything is checked; no problem ends the check."""

import hashlib
import io
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from maxmatch.core.progress import Advance, Bar, map_ahead, no_bar, quiet
from maxmatch.data.dataset import (
    IMAGE,
    TEXT,
    DataError,
    Dataset,
    LazyItems,
    Problem,
    Report,
    Rows,
    Split,
    fresh,
    same_item,
)
from maxmatch.data.formats import butd
from maxmatch.data.formats.stored import ALL
from maxmatch.data.formats.webdataset import TarMember
from maxmatch.data.load import read_all, recognise

Level = Literal["error", "warning", "note"]
# What differs between two problems of one kind: names in quotes or brackets, and numbers.
_PARTICULARS = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|\([^()]*\)|0x\w+|\d[\d.,]*")
_AGAIN = "Fetch it again, or take its captions out."
_SAME = "Leave one of the two out, with its captions, unless both are meant."
_LEAK = "Leave one of the two out: what is trained on cannot be tested on."
_ZEROS = "all values are zero"
_CHUNK_BYTES = 4 * 2**20  # little enough to stay in a processor's cache
_MIN_COUNT = 4
_SAMPLE = 64  # images of one id in two splits that are compared, to tell whether they are the same
_LONGEST = 126  # words, with <start> and <end> around them, that the usual tokenizer does not cut
_TRAIN = "train"


@dataclass(frozen=True)
class DataFinding:
    """A problem, and how bad it is.

    error: the data cannot be used as it is: nothing can be read, or a file, a split or a picture is lost.
    warning: a caption or a line is left out, or a result would mislead. note: worth a look.
    """

    level: Level
    problem: Problem

    @property
    def kind(self) -> str:
        """The same for problems that differ in names and numbers only."""
        return _PARTICULARS.sub("…", self.problem.what)


@dataclass(frozen=True)
class Spread:
    """The least, the middle one and the most of some numbers."""

    least: float
    median: float
    most: float
    mean: float

    @staticmethod
    def of(numbers: Sequence[int] | np.ndarray) -> "Spread":
        """Of at least one number."""
        values = np.asarray(numbers, np.float64)
        return Spread(float(values.min()), float(np.median(values)), float(values.max()), float(values.mean()))


@dataclass(frozen=True)
class SplitCounts:
    """How much is in a split."""

    groups: int
    items: Mapping[str, int]
    """By modality."""
    captions_per_image: Spread | None


@dataclass(frozen=True)
class Vocabulary:
    """The words of the captions, lower-cased, as `maxmatch.model.text.word_tokenizer` divides them."""

    split: str
    """Where they were counted: the training split, if there is one."""
    words: int
    frequent: int
    """Words that occur at least `min_count` times."""
    min_count: int
    longest: int
    """Words of the longest caption."""


@dataclass(frozen=True)
class Pictures:
    """The pictures that were looked at."""

    count: int
    decoded: bool
    """Whether all of each was, or its beginning only."""
    kinds: Mapping[str, int]
    bytes: int
    widths: Spread | None
    heights: Spread | None


@dataclass(frozen=True)
class FeatureCounts:
    """The features of a split's images."""

    width: int
    dtype: str
    per_image: Spread
    scanned: bool
    """Whether all values were looked at."""


@dataclass
class CheckReport:
    """All that was found."""

    path: Path
    format: str | None = None
    """None where it was not recognised."""
    splits: Mapping[str, SplitCounts] = field(default_factory=dict)
    vocabulary: Vocabulary | None = None
    pictures: Pictures | None = None
    features: dict[str, FeatureCounts] = field(default_factory=dict)
    findings: Sequence[DataFinding] = ()

    def count(self, level: Level) -> int:
        """How many findings of a level there are."""
        return sum(finding.level == level for finding in self.findings)

    @property
    def usable(self) -> bool:
        """Whether the data can be used as it is."""
        return not self.count("error")

    def as_json(self) -> dict[str, Any]:
        """Everything, as what JSON knows."""
        findings = []
        for finding in self.findings:
            about = {**vars(finding.problem), "file": str(finding.problem.file)}
            del about["fatal"]
            findings.append({"level": finding.level, "kind": finding.kind, **about})
        return {**asdict(self), "path": str(self.path), "usable": self.usable, "findings": findings}


Say = Callable[[Level, Problem], object]


def check(
    path: Path,
    format: str | None = None,
    *,
    images: Path | None = None,
    pictures: bool = True,
    quick: bool = False,
    workers: int = 4,
    bar: Bar = no_bar,
) -> CheckReport:
    """Look at a data set in any format, at a store of features, or at files of BUTD.

    images: the folder of the pictures, where the data does not say. pictures: whether to look at them at all. quick:
    pictures are opened but not decoded to their end, and the values of features are not read.
    """
    report = CheckReport(path.expanduser())
    found: dict[Problem, DataFinding] = {}  # each once: a reader that gives up reports a problem, and raises it too

    def say(level: Level, problem: Problem) -> None:
        found.setdefault(problem, DataFinding(level, problem))

    def note(problem: Problem) -> None:
        say("error" if problem.fatal else "warning", problem)

    try:
        if format == "butd" or (format is None and butd.recognises(report.path)):
            _look_at_butd(report, note, workers, bar)
        else:
            report.format = format or recognise(report.path)
            dataset = read_all(report.path, report.format, images, note)
            _look(report, dataset, say, pictures, quick, workers, bar)
    except DataError as error:
        note(replace(error.problem, fatal=True))
    report.findings = list(found.values())
    return report


def _look(report: CheckReport, dataset: Dataset, say: Say, pictures: bool, quick: bool, workers: int, bar: Bar) -> None:
    """All that there is to see once the data is read."""
    splits = {name: split for name, split in dataset.splits.items() if split.size}
    if not splits:
        say("error", Problem(dataset.path, "no item can be used", "See the problems before this one."))
    report.splits = {name: _counts(split) for name, split in splits.items()}
    total = sum(len(split[IMAGE]) for split in splits.values())
    if any(isinstance(split[IMAGE].values, Rows) for split in splits.values()):
        with bar("features", 0 if quick else total) as advance:
            for name in splits:
                report.features[name] = _look_at_features(dataset, name, say, not quick, advance)
    elif pictures and splits:
        with bar("pictures", total) as advance:
            report.pictures = _look_at_pictures(dataset, say, not quick, workers, advance)
    _find_leaks(dataset, splits, say)
    report.vocabulary = _read_captions(dataset, splits, say)


def _counts(split: Split) -> SplitCounts:
    captions = Spread.of(np.diff(split[TEXT].starts)) if TEXT in split.items else None
    return SplitCounts(split.size, {name: len(items) for name, items in split.items.items()}, captions)


# Pictures.


class PictureLocation(NamedTuple):
    """A picture of a data set."""

    split: str
    id: str
    values: Sequence[Any]
    number: int

    @property
    def value(self) -> Any:
        """Its path, or its bytes."""
        return self.values[self.number]


class PictureFacts(NamedTuple):
    """What there is to know of a picture."""

    bytes: int
    kind: str
    width: int
    height: int


def _look_at_pictures(dataset: Dataset, say: Say, decode: bool, workers: int, advance: Advance) -> Pictures:
    """Open every picture, decode all of it or its beginning, and find those that are there twice."""
    places = [
        PictureLocation(name, image, split[IMAGE].values, number)
        for name, split in dataset.splits.items()
        for number, image in enumerate(split[IMAGE].ids)
    ]
    good: list[tuple[PictureLocation, PictureFacts]] = []
    missing: list[PictureLocation] = []
    for place, facts in zip(places, map_ahead(lambda place: _facts(place, decode), places, workers), strict=True):
        if facts is None:
            missing.append(place)
        elif isinstance(facts, str):
            say("error", _problem(dataset, place, facts, _AGAIN))
        else:
            good.append((place, facts))
        advance(1)
    if len(missing) == len(places) > 1:
        what = f"not one of the {len(places)} pictures is there, the first of which would be {missing[0].value}"
        say("error", Problem(dataset.path, what, "Give the folder they are in: --images DIR."))
    else:
        for place in missing:
            say("error", _problem(dataset, place, "no such picture", "Bring it back, or take its captions out."))
    for first, second in _duplicates(good, workers):
        leak = first.split != second.split and {first.split, second.split} != {"test", "testall"}
        what = f"the same picture as {first.id!r} of the split {first.split!r}"
        what += f", here in the split {second.split!r}" if leak else ""
        say("warning" if leak else "note", _problem(dataset, second, what, _LEAK if leak else _SAME))
    return Pictures(
        count=len(good),
        decoded=decode,
        kinds=dict(Counter(facts.kind for _, facts in good).most_common()),
        bytes=sum(facts.bytes for _, facts in good),
        widths=Spread.of([facts.width for _, facts in good]) if good else None,
        heights=Spread.of([facts.height for _, facts in good]) if good else None,
    )


def _facts(place: PictureLocation, decode: bool) -> PictureFacts | str | None:
    """What there is to know of a picture, or why it cannot be read; None where it is missing."""
    from PIL import Image

    from maxmatch.model.images import ImageError, lacks_avif, load_image, reason
    from maxmatch.model.picture_files import NotAFileError, refuse_pipe

    try:
        value = place.value
        if not isinstance(value, bytes):
            refuse_pipe(value)
        data = value if isinstance(value, bytes) else Path(value).read_bytes() if decode else None
        with Image.open(Path(value) if data is None else io.BytesIO(data)) as image:
            kind, (width, height) = image.format or "?", image.size
        if decode:
            load_image(data if data is not None else value, at_least=1)  # a JPEG at an eighth, yet all of it is read
        size = len(data) if data is not None else Path(value).stat().st_size
    except FileNotFoundError:
        return None
    # Without the name of what was read and without a cure, which are printed beside it.
    except DataError as error:
        return error.problem.what
    except ImageError as error:
        what, _, rest = str(error).partition(": ")[2].rstrip(".").rpartition(". ")
        return what or rest
    except NotAFileError as error:
        return str(error)
    except Exception as error:  # what a damaged file makes Pillow raise has no common class
        if lacks_avif(value if data is None else data):
            return "AVIF, which this Pillow cannot read (pip install -U 'Pillow>=11.3')"
        return f"not a readable picture ({reason(error)})"
    return PictureFacts(size, kind, width, height)


def _duplicates(
    seen: Sequence[tuple[PictureLocation, PictureFacts]], workers: int
) -> Iterator[tuple[PictureLocation, PictureLocation]]:
    """Pairs of pictures of the same content: by size first, for most differ in that."""
    by_size: dict[int, list[PictureLocation]] = defaultdict(list)
    for place, facts in seen:
        by_size[facts.bytes].append(place)
    suspects = [place for places in by_size.values() if len(places) > 1 for place in places]
    firsts: dict[bytes, PictureLocation] = {}
    for place, digest in zip(suspects, map_ahead(_digest, suspects, workers), strict=True):
        if digest is not None and firsts.setdefault(digest, place) is not place:
            yield firsts[digest], place


def _digest(place: PictureLocation) -> bytes | None:
    try:
        value = place.value
        return hashlib.sha256(value if isinstance(value, bytes) else Path(value).read_bytes()).digest()
    except OSError:
        return None


def _problem(dataset: Dataset, place: PictureLocation, what: str, cure: str) -> Problem:
    """At the picture's own file, or, where it lies in another, with its id."""
    member = place.values.handles[place.number] if isinstance(place.values, LazyItems) else None
    if isinstance(member, TarMember):  # as if the tar were a folder
        return Problem(member.tar / member.name, what, cure)
    if isinstance(place.values, list) and isinstance(place.value, str | Path):
        return Problem(Path(place.value), what, cure)
    return Problem(dataset.path, f"image {place.id!r} of the split {place.split!r}: {what}", cure)


# Features.


def _look_at_features(dataset: Dataset, split: str, say: Say, scan: bool, advance: Advance) -> FeatureCounts:
    """Their shape and type; and, in all of them, NaN, infinite values and nothing but zeros."""
    items = dataset.splits[split][IMAGE]
    rows = items.values
    assert isinstance(rows, Rows)
    if scan:
        file = Path(rows.array.filename or dataset.path) if isinstance(rows.array, np.memmap) else dataset.path
        names: dict[int, str] = {}
        for number, what in bad_rows(rows, advance=advance):
            names = names or dict(zip(rows.numbers.tolist(), items.ids, strict=True))
            cure = "Extract its features again, or leave it out." if what != _ZEROS else "Extract its features again."
            about = f"{what}, of image {names[number]!r} of the split {split!r}"
            say("note" if what == _ZEROS else "error", Problem(file, about, cure, number + 1))
    return FeatureCounts(rows.width, str(rows.array.dtype), Spread.of(rows.counts), scan)


def bad_rows(rows: Rows, chunk: int = _CHUNK_BYTES, advance: Advance = quiet) -> Iterator[tuple[int, str]]:
    """The items that hold NaN or infinite values, or nothing but zeros: the number in the file, counted from 0, and
    what is wrong. Reads the file once, in its order, and holds no more than a few times `chunk` bytes. advance is
    called with the number of rows that were looked at.
    """
    unsigned = np.dtype(f"u{rows.array.dtype.itemsize}")
    infinity = np.array(np.inf, rows.array.dtype.newbyteorder("=")).view(unsigned) << unsigned.type(1)
    numbers = np.unique(rows.numbers)
    item_bytes = int(rows.counts.max(initial=1)) * rows.width * rows.array.dtype.itemsize
    step = max(1, chunk // max(1, item_bytes))
    for begin in range(0, len(numbers), step):
        part = numbers[begin : begin + step]
        values, mask = Rows(fresh(rows.array), part, rows.starts).take(range(len(part)))
        # A number's bits without its sign are 0 for zero, and no less than infinity's for infinity and NaN.
        bits = np.ascontiguousarray(values, values.dtype.newbyteorder("=")).view(unsigned)
        bits <<= unsigned.type(1)
        largest = bits.max(axis=2)
        for place in np.flatnonzero((largest >= infinity).any(axis=1) | (largest == 0).all(axis=1)):
            bad = int((largest[place] >= infinity).sum())
            what = f"NaN or infinite values in {bad} of {mask[place].sum()} features" if bad else _ZEROS
            yield int(part[place]), what
        advance(len(part))


def _look_at_butd(report: CheckReport, note: Report, workers: int, bar: Bar) -> None:
    """Decode every line of the files."""
    report.format = "butd"
    total = sum(file.stat().st_size for file in butd.files_at(report.path))
    with bar("bytes", total) as advance:
        boxes, width = butd.scan(report.path, note, advance, workers if total > butd.MUCH else 1)
    report.splits = {ALL: SplitCounts(len(boxes), {IMAGE: len(boxes)}, None)}
    report.features[ALL] = FeatureCounts(width, "float32", Spread.of(boxes), True)


# Captions and splits.


def _read_captions(dataset: Dataset, splits: Mapping[str, Split], say: Say) -> Vocabulary | None:
    """Count words, and find captions that an image has twice, or that are longer than a model reads."""
    from maxmatch.model.text import split_into_words

    texts_of = {name: split[TEXT] for name, split in splits.items() if TEXT in split.items}
    if not texts_of:
        return None
    counted = _TRAIN if _TRAIN in texts_of else next(iter(texts_of))
    counts: Counter[str] = Counter()
    longest = 0
    for name, texts in texts_of.items():
        seen: dict[tuple[int, str], str] = {}
        words_of_each = split_into_words(texts.values)
        for text, group, caption, words in zip(
            texts.values, texts.groups.tolist(), texts.ids, words_of_each, strict=True
        ):
            if name == counted:
                counts.update(words)
            longest = max(longest, len(words))
            first = seen.setdefault((group, " ".join(words)), caption)
            if first != caption:
                what = f"caption {caption!r} of the split {name!r} reads as {first!r} of the same image: {_shown(text)}"
                say("note", Problem(dataset.path, what, "Remove one of the two, unless both are meant."))
            if len(words) > _LONGEST:
                what = f"caption {caption!r} of the split {name!r} has {len(words)} words: {_shown(text)}"
                cure = "Shorten it, or raise data.max_length: the rest is not read."
                say("note", Problem(dataset.path, what, cure))
    frequent = sum(count >= _MIN_COUNT for count in counts.values())
    return Vocabulary(counted, len(counts), frequent, _MIN_COUNT, longest)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:59]}…")


def _find_leaks(dataset: Dataset, splits: Mapping[str, Split], say: Say) -> None:
    """Images whose ids are in two splits. Whether they are the same images is seen from some of them."""
    for (one, first), (other, second) in combinations(splits.items(), 2):
        if {one, other} == {"test", "testall"}:
            continue
        places = {name: place for place, name in enumerate(first[IMAGE].ids)}
        shared = [(name, place) for place, name in enumerate(second[IMAGE].ids) if name in places]
        if not shared:
            continue
        some = shared[:: max(1, len(shared) // _SAMPLE)]
        if any(same_item(first[IMAGE].values[places[name]], second[IMAGE].values[place]) for name, place in some):
            for name, _ in shared:
                what = f"image {name!r} is in the split {one!r} and in {other!r}"
                cure = "Leave it out of one of them: what is trained on cannot be tested on."
                say("warning", Problem(dataset.path, what, cure))
        else:
            name, _ = shared[0]
            what = f"{len(shared)} images of the split {one!r} have ids of others in {other!r}, such as {name!r}"
            say("note", Problem(dataset.path, what, "Give each image its own, to join anything by ids."))
