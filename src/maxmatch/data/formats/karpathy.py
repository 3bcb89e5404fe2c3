"""Karpathy's JSON of Flickr8k, Flickr30k and COCO, with the pictures beside it.

    {"dataset": "coco", "images": [{"filename": …, "filepath": …, "cocoid": …, "imgid": …, "split": "restval",
                                    "sentences": [{"raw": …, "sentid": …}, …]}, …]}

COCO's `restval` belongs to the training split. In messages, the images are counted from 1.
"""

import json
import posixpath
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from maxmatch.core.files import whole
from maxmatch.core.progress import Advance, quiet
from maxmatch.data.dataset import IMAGE, TEXT, Items, Problem, Report, Split, give_up, refuse
from maxmatch.data.formats.columns import caption_text
from maxmatch.data.formats.shared import (
    BadCell,
    check_files,
    check_writable,
    copy_all,
    one_line,
    path_inside,
    write_folder,
)

_SPLITS = {"train": "train", "restval": "train", "val": "val", "test": "test"}
_OTHERS = {"dataset_info.json", "dataset_dict.json"}  # Hugging Face's, which share the beginning of the name
_FOLDERS = ("images", "{name}_images", "{name}-images", "Flicker8k_Dataset", "Flickr8k_Dataset", "flickr30k-images", "")
_WORD = re.compile(r"\w+")
_CORRECT = "Correct the entry, or fetch the file again."


class _Caption(NamedTuple):
    id: str
    text: str


class _Image(NamedTuple):
    where: str
    split: str
    path: str
    cocoid: str | None
    imgid: str | None
    captions: list[_Caption]


LOOKS_LIKE, KEEPS_METADATA = "dataset_NAME.json, Karpathy's", False


def recognises(path: Path) -> bool:
    """Whether the path is a JSON file, or a folder with a `dataset_*.json`."""
    if path.is_dir():
        return bool(_files(path))
    return path.suffix == ".json" and path.name not in _OTHERS and path.is_file()


def read(
    path: Path, report: Report = refuse, images: Path | None = None, captions_per_image: int | None = 5
) -> dict[str, Split]:
    """The splits of a JSON file, or of a folder with one `dataset_*.json`.

    images: the folder of the pictures; without it, the usual places beside the file. Whether the pictures are there is
    not looked at. captions_per_image: how many are taken, from the first; None takes all.
    Ids: COCO's image id, or the file's name without its ending, or `imgid` where two files share that; and `sentid`.
    """
    file = _file(path, report)
    data = _parsed(file, report)
    if not isinstance(data, dict) or not isinstance(data.get("images"), list):
        expected = "expected an object with the list 'images' (Karpathy's format)"
        give_up(report, Problem(file, expected, "Give one of Karpathy's dataset_*.json."))
    found = list(_checked(data["images"], file, captions_per_image, report))
    named = list(_named(found, file, report))
    if not named:
        give_up(report, Problem(file, "no image can be used", _CORRECT))
    folder = images or _pictures(file, [image.path for image in found])
    return {
        split: _split([pair for pair in named if pair[1].split == split], folder)
        for split in dict.fromkeys(_SPLITS.values())
        if any(image.split == split for _, image in named)
    }


def write(splits: Mapping[str, Split], path: Path, advance: Advance = quiet, workers: int = 1) -> None:
    """Write the pictures to `images/` in a folder, and then the rest to `dataset_<name of the folder>.json`.

    Only what the format knows: metadata and space around captions are not written.
    """
    check_writable(splits, "Karpathy's JSON", ("train", "val", "test"), pairs=True)
    check_files(splits)
    images = Counter(name for split in splits.values() for name in split[IMAGE].ids)
    if repeated := [name for name, times in images.items() if times > 1]:
        raise ValueError(f"image {repeated[0]!r} is in several splits: a picture belongs to one. Leave the others out.")
    data = path.expanduser().resolve().name

    def fill(folder: Path) -> None:
        taken: set[str] = set()
        files = {
            name: copy_all(split[IMAGE], folder / "images", taken, workers, advance) for name, split in splits.items()
        }
        with whole(folder / f"dataset_{data}.json") as file:
            file.write(b'{"dataset": %s, "images": [' % json.dumps(data).encode())
            for entry in _entries(splits, files):
                file.write(b",\n" if entry["imgid"] else b"\n")  # one image per line, for people and `diff`
                file.write(json.dumps(entry, ensure_ascii=False).encode())
            file.write(b"\n]}\n")

    write_folder(path, "karpathy", splits, fill, advance)


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.glob("dataset_*.json") if file.name not in _OTHERS)


def _file(path: Path, report: Report) -> Path:
    if not path.is_dir():
        if not path.is_file():
            give_up(report, Problem(path, "no such file", "Give the JSON file, or the folder that holds it."))
        return path
    files = _files(path)
    if len(files) != 1:
        what = f"expected one dataset_*.json, found {', '.join(file.name for file in files) or 'none'}"
        give_up(report, Problem(path, what, "Give the path of the JSON file itself."))
    return files[0]


def _parsed(file: Path, report: Report) -> Any:
    """The JSON without the words of the captions, which would take most of the memory."""

    def without_words(part: dict[str, Any]) -> dict[str, Any]:
        part.pop("tokens", None)
        return part

    data = file.read_bytes()
    try:
        return json.loads(data, object_hook=without_words)
    except json.JSONDecodeError as error:
        what = f"the JSON breaks off or is damaged at column {error.colno}: {error.msg}"
        give_up(report, Problem(file, what, "Fetch or copy the file again.", error.lineno))
    except UnicodeDecodeError as error:
        what = f"not UTF-8: the byte 0x{data[error.start]:02x}"
        give_up(report, Problem(file, what, "Save the file as UTF-8.", data.count(b"\n", 0, error.start) + 1))
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, endless nesting
        give_up(report, Problem(file, f"no usable JSON: {error}", "Fetch the file again."))


def _checked(entries: Sequence[Any], file: Path, most: int | None, report: Report) -> Iterator[_Image]:
    """The entries that can be used, and of each the captions that can."""
    seen: dict[str, set[str]] = {split: set() for split in _SPLITS.values()}
    for number, entry in enumerate(entries, 1):
        where = f"image {number}"
        try:
            path = _path(entry, file.parent)
            where = f"{where} ({path})"
            split = _value(entry, "split", str)
            if split not in _SPLITS:
                raise BadCell(f"'split': expected {', '.join(_SPLITS)}, got {split!r}", _CORRECT)
            sentences = _value(entry, "sentences", list)
            ids = [str(_value(entry, key, int, str)) if key in entry else None for key in ("cocoid", "imgid")]
        except BadCell as bad:
            report(Problem(file, f"{where}: {bad.what}", bad.cure))
            continue
        captions = []
        for place, sentence in enumerate(sentences[:most], 1):
            try:
                captions.append(_caption(sentence, seen[_SPLITS[split]]))
            except BadCell as bad:
                report(Problem(file, f"{where}, caption {place}: {bad.what}", bad.cure))
        if captions:
            yield _Image(where, _SPLITS[split], path, ids[0], ids[1], captions)
        else:
            report(Problem(file, f"{where}: no caption", "Give it one, or leave the image out."))


def _value(entry: Any, key: str, *kinds: type) -> Any:
    if not isinstance(entry, dict):
        raise BadCell(f"expected an object, got {json.dumps(entry)[:40]}", _CORRECT)
    if key not in entry:
        raise BadCell(f"{key!r} is missing", _CORRECT)
    value = entry[key]
    if not isinstance(value, kinds) or isinstance(value, bool):
        expected = " or ".join(kind.__name__ for kind in kinds)
        raise BadCell(f"{key!r}: expected {expected}, got {json.dumps(value)[:40]}", _CORRECT)
    return value


def _path(entry: Any, folder: Path) -> str:
    """Where the picture lies in the folder of pictures."""
    name = _value(entry, "filename", str)
    if not name.strip("./"):
        raise BadCell("'filename' is empty", _CORRECT)
    below = _value(entry, "filepath", str) if "filepath" in entry else ""
    return path_inside(folder, posixpath.join(below, name))[0]


def _caption(sentence: Any, seen: set[str]) -> _Caption:
    text = one_line(caption_text("raw", _value(sentence, "raw", str)))
    name = str(_value(sentence, "sentid", int, str))
    if name in seen:
        raise BadCell(f"another caption has the 'sentid' {name} too", _CORRECT)
    seen.add(name)
    return _Caption(name, text)


def _named(images: Sequence[_Image], file: Path, report: Report) -> Iterator[tuple[str, _Image]]:
    """The images with their ids, each picture and each id once."""
    stems = Counter(_stem(path) for path in {image.path for image in images if image.cocoid is None})
    ids: dict[str, _Image] = {}
    paths: dict[str, _Image] = {}
    for image in images:
        stem = _stem(image.path)
        name = image.cocoid or (image.imgid if stems[stem] > 1 and image.imgid else stem)
        other = paths.get(image.path) or ids.get(name)
        if other is not None:
            what = f"{image.where}: the same picture or id ({name}) as {other.where}"
            report(Problem(file, what, "Remove one of the two; a picture belongs to one split only."))
            continue
        ids[name] = paths[image.path] = image
        yield name, image


def _stem(path: str) -> str:
    return posixpath.splitext(posixpath.basename(path))[0]


def _pictures(file: Path, paths: Sequence[str]) -> Path:
    """The usual folder in which the first picture lies, or the last; else the first of the usual folders there is."""
    name = file.stem.removeprefix("dataset_")
    folders = [file.parent / folder.format(name=name) for folder in _FOLDERS]
    having = [folder for path in (paths[0], paths[-1]) for folder in folders if (folder / path).is_file()]
    return next(iter(having or [folder for folder in folders if folder.is_dir()]))


def _split(named: Sequence[tuple[str, _Image]], folder: Path) -> Split:
    captions = [caption for _, image in named for caption in image.captions]
    owners = np.repeat(np.arange(len(named)), [len(image.captions) for _, image in named])
    pictures = Items([folder / image.path for _, image in named], np.arange(len(named)), [name for name, _ in named])
    texts = Items([caption.text for caption in captions], owners, [caption.id for caption in captions])
    return Split({IMAGE: pictures, TEXT: texts})


def _entries(splits: Mapping[str, Split], files: Mapping[str, Sequence[str]]) -> Iterator[dict[str, Any]]:
    """The images as Karpathy has them. An id that is no number and not the file's name stands where COCO's would."""
    number = 0
    for name, split in splits.items():
        starts, texts = split[TEXT].starts, split[TEXT]
        for group, (image, file) in enumerate(zip(split[IMAGE].ids, files[name], strict=True)):
            own = slice(starts[group], starts[group + 1])
            known = {} if _stem(file) == image and not _is_number(image) else {"cocoid": _numeric(image)}
            sentences = [
                {"raw": text, "tokens": _WORD.findall(text.lower()), "imgid": number, "sentid": _numeric(sentid)}
                for text, sentid in zip(texts.values[own], texts.ids[own], strict=True)
            ]
            ids = {"imgid": number, "split": name, "sentids": [sentence["sentid"] for sentence in sentences]}
            yield {"filename": file, **known, **ids, "sentences": sentences}
            number += 1


def _numeric(name: str) -> int | str:
    return int(name) if _is_number(name) else name


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit() and len(name) < 19 and str(int(name)) == name
