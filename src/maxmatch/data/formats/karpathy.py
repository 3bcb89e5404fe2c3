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
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from maxmatch.core.files import whole
from maxmatch.core.progress import Advance, quiet
from maxmatch.data.dataset import IMAGE, TEXT, Items, Problem, Report, Split, give_up, refuse
from maxmatch.data.formats.shared import check_files, check_pairs, copy_all, one_line, write_folder

_SPLITS = {"train": "train", "restval": "train", "val": "val", "test": "test"}
_OTHERS = {"dataset_info.json", "dataset_dict.json"}  # Hugging Face's, which share the beginning of the name
_FOLDERS = ("images", "{name}_images", "{name}-images", "Flicker8k_Dataset", "Flickr8k_Dataset", "flickr30k-images", "")
_OUTWARDS = re.compile(r"^[/\\]|^[A-Za-z]:|(?:^|[/\\])\.\.(?:[/\\]|$)|\0")  # also as Windows would understand it
_WORD = re.compile(r"\w+")
_MEND = "Mend the entry, or fetch the file again."


class _Wrong(Exception):
    """What is wrong with an entry."""


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
        give_up(report, Problem(file, "no image can be used", _MEND))
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
    check_pairs(splits, ("train", "val", "test"), "Karpathy's JSON")
    check_files(splits)
    images = Counter(name for split in splits.values() for name in split[IMAGE].ids)
    if repeated := [name for name, times in images.items() if times > 1]:
        raise ValueError(f"image {repeated[0]!r} is in several splits: a picture belongs to one. Leave the others out.")
    data = path.expanduser().resolve().name

    def fill(folder: Path) -> None:
        taken: set[str] = set()
        parts = [copy_all(split[IMAGE], folder / "images", taken, workers, advance) for split in splits.values()]
        files = chain.from_iterable(parts)
        with whole(folder / f"dataset_{data}.json") as file:
            file.write(b'{"dataset": %s, "images": [' % json.dumps(data).encode())
            for number, (entry, picture) in enumerate(zip(_entries(splits), files, strict=True)):
                file.write(b",\n" if number else b"\n")  # one image per line, for people and `diff`
                file.write(json.dumps(_entry(number, *entry, picture), ensure_ascii=False).encode())
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
    seen: dict[str, set[str]] = {}
    for number, entry in enumerate(entries, 1):
        where = f"image {number}"
        try:
            if not isinstance(entry, dict):
                raise _Wrong(f"expected an object, got {_shown(entry)}")
            path = _path(entry)
            where = f"{where} ({path})"
            split = _value(entry, "split", str)
            if split not in _SPLITS:
                raise _Wrong(f"'split': expected {', '.join(_SPLITS)}, got {split!r}")
            sentences = _value(entry, "sentences", list)
            ids = [str(_value(entry, key, int, str)) if key in entry else None for key in ("cocoid", "imgid")]
        except _Wrong as wrong:
            report(Problem(file, f"{where}: {wrong}", _MEND))
            continue
        captions = []
        for place, sentence in enumerate(sentences[:most], 1):
            try:
                captions.append(_caption(sentence, seen.setdefault(_SPLITS[split], set())))
            except _Wrong as wrong:
                report(Problem(file, f"{where}, caption {place}: {wrong}", _MEND))
        if captions:
            yield _Image(where, _SPLITS[split], path, ids[0], ids[1], captions)
        else:
            report(Problem(file, f"{where}: no caption", "Give it one, or leave the image out."))


def _value(entry: Mapping[str, Any], key: str, *kinds: type) -> Any:
    if key not in entry:
        raise _Wrong(f"{key!r} is missing")
    if not isinstance(entry[key], kinds) or isinstance(entry[key], bool):
        raise _Wrong(f"{key!r}: expected {' or '.join(kind.__name__ for kind in kinds)}, got {_shown(entry[key])}")
    return entry[key]


def _shown(value: Any) -> str:
    return json.dumps(value)[:40]


def _path(entry: Mapping[str, Any]) -> str:
    """Where the picture lies in the folder of pictures. A file from elsewhere cannot point out of it."""
    name, folder = _value(entry, "filename", str), _value(entry, "filepath", str) if "filepath" in entry else ""
    for part in (name, folder):
        if _OUTWARDS.search(part):
            raise _Wrong(f"the path {part!r} leads out of the folder of pictures")
    if not name.strip("./"):
        raise _Wrong("'filename' is empty")
    return posixpath.normpath(posixpath.join(folder, name))


def _caption(sentence: Any, seen: set[str]) -> _Caption:
    if not isinstance(sentence, dict):
        raise _Wrong(f"expected an object, got {_shown(sentence)}")
    text, name = one_line(_value(sentence, "raw", str)), str(_value(sentence, "sentid", int, str))
    if not text:
        raise _Wrong("the text is empty")
    if not _is_text(text):
        raise _Wrong("the text holds half a character (a lone surrogate)")
    if name in seen:
        raise _Wrong(f"another caption has the 'sentid' {name} too")
    seen.add(name)
    return _Caption(name, text)


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


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


def _entries(splits: Mapping[str, Split]) -> Iterator[tuple[str, str, list[_Caption]]]:
    """Of each image its split, its id and its captions."""
    for name, split in splits.items():
        starts, texts = split[TEXT].starts, split[TEXT]
        for group, image in enumerate(split[IMAGE].ids):
            places = range(starts[group], starts[group + 1])
            yield name, image, [_Caption(texts.ids[place], texts.values[place]) for place in places]


def _entry(number: int, split: str, name: str, captions: Sequence[_Caption], file: str) -> dict[str, Any]:
    """An image as Karpathy has it. An id that is no number and not the file's name stands where COCO's would."""
    known = {} if _stem(file) == name and not _is_number(name) else {"cocoid": _numeric(name)}
    sentences = [
        {"raw": text, "tokens": _WORD.findall(text.lower()), "imgid": number, "sentid": _numeric(sentid)}
        for sentid, text in captions
    ]
    sentids = [sentence["sentid"] for sentence in sentences]
    return {"filename": file, **known, "imgid": number, "split": split, "sentids": sentids, "sentences": sentences}


def _numeric(name: str) -> int | str:
    return int(name) if _is_number(name) else name


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit() and len(name) < 19 and str(int(name)) == name
