"""Bottom-up attention's features (BUTD): tab-separated files, made into a store of features.

A line: image_id, image_w, image_h, num_boxes, boxes (num_boxes, 4), features (num_boxes, 2048), the last two float32 in
base64. The files hold no captions: `with_features` joins the store to data that has them, by id.
"""

import binascii
import codecs
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import count, islice, tee
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from maxmatch.core.progress import Advance, map_ahead, quiet
from maxmatch.data.dataset import Problem, Report, give_up, refuse
from maxmatch.data.features import FeatureStore, FeatureWriter, StoreInfo

MUCH = 64 * 2**20
"""Bytes above which starting processes to decode is worth it."""
_COLUMNS = "image_id, image_w, image_h, num_boxes, boxes, features"
_BEGINNING = re.compile(rb"(\xef\xbb\xbf)?[^\t\n]+\t\d+\t\d+\t\d+\t[A-Za-z0-9+/]+|image_id\t")
_USUAL_WIDTH = 2048
_LONGEST = 64 * 2**20  # bytes of a line; 100 boxes of 2,048 values have 1.1 million
_BUFFER = 2**20
_BLOCK = 32  # lines decoded at once
_AGAIN = "Fetch the file again, or leave the image out."


class _Line(NamedTuple):
    file: Path
    number: int
    image: str
    offset: int
    size: int


class _Item(NamedTuple):
    boxes: np.ndarray
    features: np.ndarray


def recognises(path: Path) -> bool:
    """Whether the path is such a file (by its first bytes), or a folder with files of that kind."""
    return bool(files_at(path))


def convert(
    source: Path,
    folder: Path,
    report: Report = refuse,
    advance: Advance = quiet,
    workers: int = 1,
    dtype: Literal["float16", "float32"] = "float32",
) -> FeatureStore:
    """Make a store of features from a file or a folder of files.

    An interrupted conversion resumes when run again. A repeated image is reported and dropped. advance is called
    with the number of bytes that were read; workers are processes that decode.
    """
    files = _files(source, report)
    info = StoreInfo(f"BUTD TSV: {', '.join(file.name for file in files)}", _width(files), dtype, boxes=True)
    with FeatureWriter(folder, info) as writer:
        for new in _new_items(files, writer.done, info.width, dtype, workers, advance, report):
            items = [item for _, item in new.values()]
            writer.append(list(new), [item.features for item in items], [item.boxes for item in items])
        if not writer.done:
            give_up(report, Problem(files[0], "no line can be used", "Fetch the file again."))
        return writer.finish()


def scan(
    source: Path, report: Report = refuse, advance: Advance = quiet, workers: int = 1
) -> tuple[Sequence[int], int]:
    """Decode all lines and keep nothing: what is wrong with them is reported, NaN and infinite values too. Returns the
    number of boxes of each image, and the width of the features.
    """
    files = _files(source, report)
    found: dict[str, int] = {}
    width = _width(files)
    for new in _new_items(files, found.keys(), width, "float32", workers, advance, report):
        for image, (line, item) in new.items():
            found[image] = len(item.features)
            if not np.isfinite(item.features).all():
                what = f"image {image}: NaN or infinite values among its features"
                report(Problem(line.file, what, _AGAIN, line.number, fatal=True))  # it would be in the store
    if not found:
        give_up(report, Problem(files[0], "no line can be used", "Fetch the file again."))
    return list(found.values()), width


def files_at(path: Path) -> list[Path]:
    """The file itself or, sorted, those of a folder (x.tsv, x.tsv.0, …) that begin as they should."""
    found = []
    for file in sorted(path.glob("*.tsv*")) if path.is_dir() else [path]:
        if file.is_file():
            with file.open("rb") as opened:
                if _BEGINNING.match(opened.read(512)):
                    found.append(file)
    return found


def _files(source: Path, report: Report) -> list[Path]:
    files = files_at(source)
    if not files:
        what = f"no tab-separated file with the columns {_COLUMNS}"
        give_up(report, Problem(source, what, "Give the TSV file, unpacked, or the folder it is in."))
    return files


def _width(files: Sequence[Path]) -> int:
    """How wide the features of the first good line are; as usual, where there is none."""
    for line in _lines(files, frozenset(), quiet, lambda problem: None):
        number, boxes, features = _columns(line)
        with suppress(ValueError, ZeroDivisionError):
            width = len(binascii.a2b_base64(features, strict_mode=True)) // (4 * int(number))
            _item(number, boxes, features, width, "float32")
            return width
    return _USUAL_WIDTH


def _new_items(
    files: Sequence[Path],
    done: Collection[str],
    width: int,
    dtype: str,
    workers: int,
    advance: Advance,
    report: Report,
) -> Iterator[dict[str, tuple[_Line, _Item]]]:
    """Block by block, the images that are not done yet. `done` may grow meanwhile."""
    lines = _lines(files, frozenset(done), advance, report)
    blocks, sent = tee(iter(lambda: list(islice(lines, _BLOCK)), []))
    decoded = map_ahead(partial(_decode, width, dtype), sent, workers, ahead=2, processes=True)
    for block, items in zip(blocks, decoded, strict=True):
        new: dict[str, tuple[_Line, _Item]] = {}
        for line, item in zip(block, items, strict=True):
            if isinstance(item, str):
                report(Problem(line.file, f"image {line.image}: {item}", _AGAIN, line.number))
            elif line.image in done or line.image in new:
                _report_again(line, report)
            else:
                new[line.image] = (line, item)
        if new:
            yield new


def _lines(files: Sequence[Path], done: frozenset[str], advance: Advance, report: Report) -> Iterator[_Line]:
    """The lines whose images are not done yet. The wrong ones are reported, as far as that shows before decoding."""
    met: set[str] = set()
    for file in files:
        with file.open("rb", buffering=_BUFFER) as opened:
            for number in count(1):
                offset, data = opened.tell(), opened.readline(_LONGEST)
                if not data:
                    break
                advance(len(data))
                if len(data) == _LONGEST:
                    what = f"a line of more than {_LONGEST} bytes, expected {_COLUMNS}"
                    give_up(report, Problem(file, what, "Give a TSV file, unpacked.", number))
                name, columns = data.split(b"\t", 1)[0], data.count(b"\t") + 1
                image = (name.removeprefix(codecs.BOM_UTF8) if number == 1 else name).decode("utf-8", "replace")
                line = _Line(file, number, image, offset, len(data))
                if number == 1 and image == "image_id":
                    continue
                if columns != 6:
                    report(Problem(file, f"{columns} columns, expected 6: {_COLUMNS}", _AGAIN, number))
                elif not image.isprintable() or not image or "\ufffd" in image:
                    report(Problem(file, f"expected an image's id, got {image[:40]!r}", _AGAIN, number))
                elif image not in done:
                    yield line
                elif image in met:
                    _report_again(line, report)
                else:
                    met.add(image)


def _decode(width: int, dtype: str, lines: Sequence[_Line]) -> list[_Item | str]:
    """Boxes and features of some lines, or what is wrong with them.

    The lines are read again, from the system's memory: to send a place to another process costs less than a line.
    """
    items: list[_Item | str] = []
    for line in lines:
        try:
            items.append(_item(*_columns(line), width, dtype))
        except ValueError as error:
            items.append(str(error))
    return items


def _columns(line: _Line) -> tuple[bytes, bytes, bytes]:
    """The number of boxes, the boxes and the features of a line, as they are written."""
    with line.file.open("rb", buffering=0) as file:
        file.seek(line.offset)
        number, boxes, features = file.read(line.size).rstrip(b"\r\n").split(b"\t")[3:]
    return number, boxes, features


def _item(number: bytes, boxes: bytes, features: bytes, width: int, dtype: str) -> _Item:
    if not number.isdigit() or not 0 < int(number) < 100_000:
        raise ValueError(f"expected the number of boxes, at least 1, got {number[:20].decode('utf-8', 'replace')!r}")
    arrays = {}
    for name, field, size in (("boxes", boxes, 4), ("features", features, width)):
        try:
            data = binascii.a2b_base64(field, strict_mode=True)
        except binascii.Error as error:
            raise ValueError(f"{name}: no whole base64 ({error})") from error
        if len(data) != int(number) * size * 4:
            raise ValueError(f"{name}: expected {int(number)}×{size} numbers (float32), got {len(data)} bytes")
        arrays[name] = np.frombuffer(data, "<f4").reshape(int(number), size)
    try:
        with np.errstate(over="raise"):
            return _Item(arrays["boxes"], arrays["features"].astype(dtype, copy=False))
    except FloatingPointError as error:
        raise ValueError(f"features: too large for {dtype}") from error


def _report_again(line: _Line, report: Report) -> None:
    what = f"image {line.image} came before; the first is kept"
    report(Problem(line.file, what, "Nothing is lost, unless the two differ.", line.number))
