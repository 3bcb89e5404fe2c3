"""SCAN's `precomp` folders: region features as one array per split, captions as lines, in the order of the rows.

    train_ims.npy (rows, regions, width) · train_caps.txt · train_ids.txt, likewise dev (or val), test and testall

As many rows as captions: the row of an image is repeated for each of its captions. Fewer rows: each image has
captions/rows captions, one after the other. The arrays are memory maps and are never loaded.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

import numpy as np

from maxmatch.core.files import whole
from maxmatch.core.progress import Advance, quiet
from maxmatch.data.dataset import IMAGE, TEXT, DataError, Items, Problem, Report, Rows, Split, fresh, give_up, refuse
from maxmatch.data.features import AppendableNpy, check_features, checked_features, open_array
from maxmatch.data.formats.shared import check_writable, one_line, read_lines, write_folder

_PREFIXES = {"train": "train", "dev": "val", "val": "val", "test": "test", "testall": "testall"}
_PLACES = ("", "*precomp*", "*/precomp", "data/*precomp*", "data/*/precomp")  # where the folder may lie in another
_IDS_CURE = "Correct the file, or remove it: ids are then made from the numbers of rows and lines."
_BLOCK = 256  # rows written at once
_SAMPLE = 16  # rows by which is judged whether what is there was made from the same values
_PROBE = 64  # values at the start of a row, on one page of the disk, that tell two rows apart almost always
_MAPPED_BYTES = 64 * 2**20
LOOKS_LIKE, KEEPS_METADATA = "train_ims.npy with train_caps.txt", False


def recognises(path: Path) -> bool:
    """Whether the path is such a folder, or one in which such a folder lies."""
    return bool(_folders(path))


def read(path: Path, report: Report = refuse) -> dict[str, Split]:
    """The splits train, val, test and testall, as far as they are there.

    Ids: the lines of `_ids.txt`, one per image or per caption, and of `_cap_ids.txt`, which only `write` makes; else
    made from the numbers of rows and lines. A caption that cannot be used is left out and keeps its place in the count.
    """
    folders = _folders(path)
    if len(folders) != 1:
        found = ", ".join(str(folder.relative_to(path)) for folder in folders)
        what = f"expected one folder with train_ims.npy and train_caps.txt, found {found or 'none'}"
        give_up(report, Problem(path, what, "Give the path of the precomp folder itself."))
    folder = folders[0]
    prefixes = [prefix for prefix in _PREFIXES if _complete(folder, prefix, report)]
    if {"dev", "val"} <= set(prefixes):
        what = "dev_caps.txt and val_caps.txt are both there, and both mean the split 'val'"
        give_up(report, Problem(folder, what, "Keep the one that is right: rename or remove the files of the other."))
    if not prefixes:
        give_up(report, Problem(folder, "no split has both an array and captions", "Fetch the missing files."))
    return {_PREFIXES[prefix]: _split(folder, prefix, report) for prefix in prefixes}


def write(splits: Mapping[str, Split], path: Path, advance: Advance = quiet, workers: int = 1) -> None:
    """Write a precomp folder. The images' values are arrays (regions, width), all of one shape in a split.

    Where images have different numbers of captions, rows are repeated for each. Only what the format knows: metadata
    are not written, and line breaks in captions become spaces. workers is ignored: the disk is the bottleneck.
    """
    check_writable(splits, "a precomp folder", ("train", "val", "test", "testall"), pairs=True)
    for split in splits.values():
        check_features(split[IMAGE], one_shape=True)
        for name in (*split[IMAGE].ids, *split[TEXT].ids):
            if not name or name != one_line(name):
                raise ValueError(f"the id {name!r} does not fit on a line. Choose another format.")

    def fill(folder: Path) -> None:
        for name, split in splits.items():
            prefix = "dev" if name == "val" else name
            captions = np.diff(split[TEXT].starts)
            positions = np.arange(split.size)
            if (captions != captions[0]).any():
                positions = np.repeat(positions, captions)
            _write_rows(split[IMAGE].values, split[IMAGE].ids, positions, folder / f"{prefix}_ims.npy", advance)
            _write_lines([split[IMAGE].ids[position] for position in positions.tolist()], folder / f"{prefix}_ids.txt")
            _write_lines(split[TEXT].ids, folder / f"{prefix}_cap_ids.txt")
            _write_lines([one_line(text) for text in split[TEXT].values], folder / f"{prefix}_caps.txt")

    write_folder(path, "precomp", splits, fill, advance)


def _folders(path: Path) -> list[Path]:
    """The precomp folders at or in a path, from the first place where there is any."""
    for place in _PLACES if path.is_dir() else ():
        folders = sorted(path.glob(place)) if place else [path]
        found = [folder for folder in folders if any(_parts(folder, prefix)[0].is_file() for prefix in _PREFIXES)]
        if found:
            return found
    return []


def _parts(folder: Path, prefix: str) -> tuple[Path, Path]:
    return folder / f"{prefix}_ims.npy", folder / f"{prefix}_caps.txt"


def _complete(folder: Path, prefix: str, report: Report) -> bool:
    """Whether a split is there; half of it is a problem."""
    missing = [part for part in _parts(folder, prefix) if not part.is_file()]
    if len(missing) == 1:
        what = f"missing, so that the split {_PREFIXES[prefix]!r} is left out"
        report(Problem(missing[0], what, "Fetch the file, or remove the split's others.", fatal=True))
    return not missing


def _split(folder: Path, prefix: str, report: Report) -> Split:
    images, captions = _parts(folder, prefix)
    array = _array(images, report)
    texts = _captions(captions, images, len(array), report)
    ids = _Ids(folder / f"{prefix}_ids.txt", folder / f"{prefix}_cap_ids.txt", report)
    if len(texts) != len(array):
        firsts, owners = np.arange(len(array)), np.arange(len(texts)) // (len(texts) // len(array))
    else:
        again = _repeated(array, ids, report)
        firsts, owners = np.flatnonzero(~again), np.cumsum(~again) - 1
    image_ids, caption_ids = _named(ids, firsts, owners, prefix, report)
    # A caption that was left out keeps its place up to here, and takes its image along when it was the only one.
    kept = np.array([place for place, text in enumerate(texts) if text is not None], np.int64)
    groups, owners = np.unique(owners[kept], return_inverse=True)
    for lost in np.setdiff1d(np.arange(len(firsts)), groups):
        report(Problem(images, "no caption of this row can be used", "Correct its captions.", int(firsts[lost]) + 1))
    if not len(kept):
        give_up(report, Problem(captions, "no caption can be used", "Fetch the file again."))
    pictures = Items(Rows(array, firsts[groups]), np.arange(len(groups)), [image_ids[group] for group in groups])
    words = [text for text in texts if text is not None]
    return Split({IMAGE: pictures, TEXT: Items(words, owners, [caption_ids[place] for place in kept])})


def _array(file: Path, report: Report) -> np.ndarray:
    """The features (rows, regions, width) as a memory map."""
    try:
        array = open_array(file)
    except DataError as error:
        give_up(report, error.problem)
    if array.dtype.kind != "f" or array.dtype.itemsize not in (2, 4, 8):
        what = f"expected an array of float16, float32 or float64, got {array.dtype}"
        give_up(report, Problem(file, what, "Convert it with numpy's astype('float32')."))
    if array.ndim not in (2, 3) or not array.size:
        what = f"expected the shape (rows, regions, width) or (rows, width), got {array.shape}"
        give_up(report, Problem(file, what, "Give the array that one shape, with one image per row."))
    return array if array.ndim == 3 else array[:, None]


def _captions(file: Path, images: Path, rows: int, report: Report) -> list[str | None]:
    """The captions, line by line; None where one cannot be used."""
    texts: list[str | None] = []
    for _, line in read_lines(file, report):
        texts.append(None if line is None else line.strip())
    blank = sum(1 for _ in takewhile(lambda text: text == "", reversed(texts)))
    if len(texts) % rows and len(texts) > blank and not (len(texts) - blank) % rows:
        texts = texts[: len(texts) - blank]  # empty lines that no row is meant for: nothing is lost
    if not texts or len(texts) % rows:
        what = (
            f"{len(texts)} captions for the {rows} rows of {images.name}: expected as many, or a multiple, "
            "for the captions belong to the rows by their order"
        )
        cure = "A line was lost or added, or a caption holds a line break: fetch both files again, from one place."
        give_up(report, Problem(file, what, cure))
    for number, text in enumerate(texts, 1):
        if text == "":
            cure = "Write the caption there. Do not delete the line: all captions after it would belong to other rows."
            report(Problem(file, "the line is empty, expected a caption", cure, number))
    return [text or None for text in texts]


class _Ids:
    """The lines of the two files of ids; None where there is none, or it cannot be used."""

    def __init__(self, file: Path, captions_file: Path, report: Report) -> None:
        self.file, self.captions_file = file, captions_file
        self.lines, self.captions = (_id_lines(path, report) for path in (file, captions_file))


def _id_lines(file: Path, report: Report) -> list[str] | None:
    if not file.is_file():
        return None
    lines = [None if line is None else line.strip() for _, line in read_lines(file, report)]
    while lines and not lines[-1] and lines[-1] is not None:
        lines.pop()
    return None if None in lines else [line or "" for line in lines]


def _repeated(array: np.ndarray, ids: _Ids, report: Report) -> np.ndarray:
    """Which rows repeat the row before, for another caption of the same image."""
    lines = ids.lines
    if lines is None or len(lines) != len(array):
        return repeated(array)
    by_id = np.array([False, *(here == before for before, here in pairwise(lines))])
    if ids.captions is not None:  # `write` was here: the other file's lines are images
        return by_id
    if not by_id.any():  # one caption per image, or ids of captions
        return repeated(array)
    wrong = np.flatnonzero(by_id & ~repeated(array, thorough=False))
    if not len(wrong):
        return by_id
    what = f"the id {lines[wrong[0]]!r} of the line before, but another row in the array"
    report(Problem(ids.file, what, _IDS_CURE, int(wrong[0]) + 1))
    return repeated(array)


def repeated(array: np.ndarray, thorough: bool = True) -> np.ndarray:
    """Which rows are the same, bit by bit, as the row before. Unless thorough, only their beginnings are compared;
    otherwise whole rows too, where the beginnings agree.
    """
    same = np.zeros(len(array), np.bool_)
    step = max(1, min(4096, _MAPPED_BYTES // max(array[:1].nbytes, 1)))
    for begin in range(0, len(array) - 1, step):
        part = fresh(array)[begin : begin + step + 1]
        probes = np.ascontiguousarray(part.reshape(len(part), -1)[:, :_PROBE]).view(np.uint8)
        alike = np.flatnonzero((probes[1:] == probes[:-1]).all(axis=1))
        if thorough:
            alike = alike[[part[place].tobytes() == part[place + 1].tobytes() for place in alike]]
        same[begin + 1 + alike] = True
    return same


def _named(
    ids: _Ids, firsts: np.ndarray, owners: np.ndarray, prefix: str, report: Report
) -> tuple[Sequence[str], Sequence[str]]:
    """The ids of images and of captions, each once."""
    images, captions = [f"{prefix}_{row}" for row in firsts], [f"{prefix}_{line}" for line in range(len(owners))]
    if ids.captions is not None and _usable(ids.captions, len(captions), "caption", ids.captions_file, report):
        captions = ids.captions
    lines = ids.lines
    if lines is None:
        return images, captions
    if len(lines) == len(owners):
        heads = [lines[place] for place in np.flatnonzero(np.diff(owners, prepend=-1))]
        if any(line != heads[owner] for line, owner in zip(lines, owners, strict=True)):
            return images, lines if _usable(lines, len(captions), "caption", ids.file, report) else captions
        lines = heads
    return lines if _usable(lines, len(images), "image", ids.file, report) else images, captions


def _usable(lines: Sequence[str], count: int, what: str, file: Path, report: Report) -> bool:
    """Whether there are as many ids as items, and no two the same; reports it where not."""
    if len(lines) != count:
        report(Problem(file, f"{len(lines)} ids for {count} {what}s, expected one each", _IDS_CURE))
        return False
    seen: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if seen.setdefault(line, number) != number:
            what = f"the id {line!r} is that of {what} {seen[line]} and of {what} {number}"
            report(Problem(file, what, _IDS_CURE))
            return False
    return True


def _write_lines(lines: Sequence[str], file: Path) -> None:
    with whole(file) as out:
        out.writelines(f"{line}\n".encode() for line in lines)


def _write_rows(values: Sequence[Any], ids: Sequence[str], positions: np.ndarray, file: Path, advance: Advance) -> None:
    """Write the values at some positions, arrays of one shape, as the rows of a .npy file. A file that is there is what
    it is to be; what an interrupted call has written is kept, as far as it got to the disk. advance is called with
    the number of values written.
    """
    new = np.diff(positions, prepend=-1) != 0  # rows may be repeated; it is items that are counted
    if file.exists():
        advance(int(new.sum()))
        return
    first = checked_features(values[int(positions[0])], ids[int(positions[0])], None)
    array = AppendableNpy(file, first.dtype, first.shape)
    try:
        if array.rows > len(positions) or not _same(array.written(), values, positions):
            array.truncate(0)
        advance(int(new[: array.rows].sum()))
        for begin in range(array.rows, len(positions), _BLOCK):
            part = positions[begin : begin + _BLOCK]
            if isinstance(values, Rows) and values.starts is None:
                array.append(values.take(part).values)
            else:
                array.append(np.stack([checked_features(values[int(place)], ids[int(place)], first) for place in part]))
            advance(int(new[begin : begin + _BLOCK].sum()))
        array.finish()
    finally:
        array.close()


def _same(rows: np.ndarray, values: Sequence[Any], positions: np.ndarray) -> bool:
    """Whether some rows of an array, the first and the last among them, are the values at those positions."""
    sample = np.unique(np.linspace(0, len(rows) - 1, _SAMPLE).astype(np.int64)).tolist() if len(rows) else []
    return all(rows[row].tobytes() == np.asarray(values[int(positions[row])]).tobytes() for row in sample)
