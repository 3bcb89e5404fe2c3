"""Test suites from local files: hard negatives (SugarCrepe, ARO and the like), Winoground, PMRP, CxC, ECCV Caption.

`docs/suites.md` describes the files and where to get them. Ties count against the model.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from json import JSONDecodeError
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from maxmatch.core.array_checks import UsageError
from maxmatch.core.progress import Bar, no_bar
from maxmatch.data.dataset import TEXT
from maxmatch.evaluation.candidates import ModelName, sources_of
from maxmatch.evaluation.encoding import Say, left_out, log_line
from maxmatch.evaluation.evaluator import SetsAndMask
from maxmatch.evaluation.leaderboard import append_record, new_record
from maxmatch.evaluation.metrics import SINGLE_VECTORS, name_of_similarity
from maxmatch.evaluation.other_models import AnyEncoder, check_encoders, encode_pictures, open_encoder
from maxmatch.evaluation.result_tables import Cell, Column, Style, Table, filled, render
from maxmatch.evaluation.significance import Difference, Interval, mean_difference, mean_interval
from maxmatch.matching import SIMILARITIES
from maxmatch.matching.similarity import Similarity
from maxmatch.model.images import load_image

FORMAT, VERSION = "maxmatch-suite", 1
ContrastSuite = Literal["sugarcrepe", "aro", "contrast", "winoground"]
_PAIRS = 32  # scored at once
_SHOWN = 12  # columns of figures in a table
_KEYS = {
    "image": ("image", "filename", "image_path"),
    "caption": ("caption", "true_caption"),
    "negative": ("negative", "negative_caption", "negative_captions", "false_caption"),
    "category": ("category", "relation_name", "attributes"),
}
_BOX = ("bbox_x", "bbox_y", "bbox_w", "bbox_h")


class SuiteFileError(ValueError):
    """A file of a suite that cannot be used as it is."""


class Picture(NamedTuple):
    """A picture file, or a part of it: left, upper, right, lower."""

    path: Path
    box: tuple[int, int, int, int] | None = None


@dataclass(frozen=True)
class Example:
    """Pictures and captions to be told apart. One picture: the first caption is true, all others are false. Two of
    each: the first belong together, and so do the second.
    """

    pictures: tuple[Picture, ...]
    captions: tuple[str, ...]
    category: str
    where: str


# Reading.


def read_examples(suite: ContrastSuite, path: str | Path, images: str | Path | None = None) -> list[Example]:
    """The examples of a file, or of all .json and .jsonl files of a folder. images: the folder of the pictures."""
    if suite not in get_args(ContrastSuite):
        known = ", ".join(get_args(ContrastSuite))
        cure = "For labels call evaluate_labels, for pmrp, cxc and eccv evaluate_runs."
        raise UsageError(f"suite: expected one of {known}, got {suite!r}. {cure}")
    path = Path(path).expanduser()
    files = [path] if path.is_file() else sorted([*path.glob("*.json"), *path.glob("*.jsonl")])
    if not files:
        what = "no .json or .jsonl file in it" if path.is_dir() else "no such file or folder"
        raise SuiteFileError(f"{path}: {what}. See docs/suites.md for where to get the files of {suite}.")
    folder = None if images is None else Path(images).expanduser()
    if folder is not None and not folder.is_dir():
        raise SuiteFileError(f"{folder}: no such folder. Expected that of the pictures.")
    return [example for file in files for example in _read_file(suite, file, folder)]


def _read_file(suite: ContrastSuite, file: Path, images: Path | None) -> Iterable[Example]:
    entries = _entries(file)
    folder = images or file.parent
    if isinstance(entries, dict) and "items" in entries:
        _check_envelope(suite, file, entries)
        folder = images or file.parent / str(entries.get("images", "."))
        entries = entries["items"]
    elif isinstance(entries, dict) and {"version", "format"} & entries.keys():
        _check_envelope(suite, file, entries)
    named = entries.items() if isinstance(entries, dict) else enumerate(entries) if isinstance(entries, list) else None
    if named is None:
        raise SuiteFileError(f"{file}: expected a list or an object of entries, got {_shown(entries)}.")
    if not entries:
        raise SuiteFileError(f"{file}: has no entries, so there is nothing to measure. Get the file again.")
    read = _two_pairs if suite == "winoground" else _contrast
    seen = set[str]()
    for key, entry in named:
        where = f"{file}: entry {key}"
        if not isinstance(entry, dict):
            raise SuiteFileError(f"{where}: expected an object, got {_shown(entry)}.")
        name = str(entry.get("id", key))
        if name in seen:
            raise SuiteFileError(f"{where}: the id {name!r} occurs twice. Remove one, or give it another id.")
        seen.add(name)
        yield read(entry, where, folder, file.stem)


def _entries(file: Path) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [key for key, _ in pairs]
            twice = next(key for key in names if names.count(key) > 1)
            raise SuiteFileError(f"{file}: entry {twice!r} occurs twice. Remove one.")
        return found

    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SuiteFileError(f"{file}: expected text in UTF-8 ({error}). Get the file again.") from error
    lined = file.suffix == ".jsonl"
    found = []
    for number, line in enumerate(text.split("\n") if lined else [text], start=1):
        if line.strip() or not lined:
            try:
                found.append(json.loads(line, object_pairs_hook=unique))
            except JSONDecodeError as error:
                place = f"line {number}: {error.msg}" if lined else error
                raise SuiteFileError(f"{file}: not readable as JSON ({place}). Get the file again.") from error
    return found if lined else found[0]


def _check_envelope(suite: ContrastSuite, file: Path, found: Mapping[str, Any]) -> None:
    if found.get("format") != FORMAT:
        raise SuiteFileError(f"{file}: expected format {FORMAT!r}, got {_shown(found.get('format'))}.")
    if found.get("version") != VERSION:
        raise SuiteFileError(
            f"{file}: version {_shown(found.get('version'))} of the format, while this MaxMatch reads {VERSION}. "
            "Convert the file, or use the MaxMatch that it was made for."
        )
    if found.get("suite", suite) != suite:
        raise SuiteFileError(f"{file}: a file of the suite {found['suite']!r}, not of {suite!r}. Choose that suite.")
    if not isinstance(found.get("items"), list):
        raise SuiteFileError(f'{file}: expected a list "items" of entries.')


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"


def _text(entry: Mapping[str, Any], key: str, where: str) -> str:
    if key not in entry:
        raise SuiteFileError(f"{where}: has no {key}, got {', '.join(entry) or 'nothing'}. Is it a file of this suite?")
    value = entry[key]
    if not isinstance(value, str) or not value.strip():
        raise SuiteFileError(f"{where}: {key}: expected a text, got {_shown(value)}.")
    return value


def _either(entry: Mapping[str, Any], kind: str, where: str) -> str:
    """The key that an entry has for something."""
    for key in _KEYS[kind]:
        if key in entry:
            return key
    raise SuiteFileError(f"{where}: has no {kind}: expected one of {', '.join(_KEYS[kind])}, got {', '.join(entry)}.")


def _contrast(entry: Mapping[str, Any], where: str, folder: Path, stem: str) -> Example:
    picture = Picture(folder / _text(entry, _either(entry, "image", where), where), _box(entry, where))
    if "caption_options" in entry:
        captions = entry["caption_options"]
    else:
        negative = entry[_either(entry, "negative", where)]
        true = _text(entry, _either(entry, "caption", where), where)
        captions = [true, *(negative if isinstance(negative, list) else [negative])]
    if not isinstance(captions, list) or len(captions) < 2:
        raise SuiteFileError(f"{where}: expected a caption and at least one negative, got {_shown(captions)}.")
    for one in captions:
        if not isinstance(one, str) or not one.strip():
            raise SuiteFileError(f"{where}: captions: expected texts, got {_shown(one)}.")
    category = next((entry[key] for key in _KEYS["category"] if key in entry), stem)
    named = "_".join(map(str, category)) if isinstance(category, list) else str(category)
    return Example((picture,), tuple(captions), named, where)


def _box(entry: Mapping[str, Any], where: str) -> tuple[int, int, int, int] | None:
    if not any(key in entry for key in _BOX):
        return None
    values = [entry.get(key) for key in _BOX]
    if not all(isinstance(one, int | float) for one in values):
        raise SuiteFileError(f"{where}: expected numbers for {', '.join(_BOX)}, got {_shown(values)}.")
    left, upper, width, height = (int(one) for one in values if one is not None)
    if width < 1 or height < 1:
        raise SuiteFileError(f"{where}: a box of {width}×{height} pixels is empty.")
    return left, upper, left + width, upper + height


def _two_pairs(entry: Mapping[str, Any], where: str, folder: Path, stem: str) -> Example:
    pictures = tuple(Picture(_with_suffix(folder / _text(entry, key, where))) for key in ("image_0", "image_1"))
    captions = tuple(_text(entry, key, where) for key in ("caption_0", "caption_1"))
    category = str(entry.get("category") or entry.get("collapsed_tag") or entry.get("tag") or stem)
    return Example(pictures, captions, category, where)


def _with_suffix(path: Path) -> Path:
    """Winoground names pictures without their suffix."""
    if path.suffix or path.is_file():
        return path
    return next((other for other in (path.with_suffix(one) for one in (".png", ".jpg")) if other.is_file()), path)


# Measuring.


@dataclass(frozen=True)
class SuiteResult:
    """What a model reached. figures: in per cent. held: by measure, which examples it got right."""

    model: str
    identity: str
    similarity: str
    suite: str
    examples: int
    digest: str
    figures: Mapping[str, float]
    held: Mapping[str, np.ndarray] = field(repr=False, default_factory=dict)
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    against_first: Mapping[str, Difference] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """All figures, unrounded."""
        keys = ("model", "identity", "similarity", "suite", "examples", "digest")
        one: dict[str, Any] = {**{key: getattr(self, key) for key in keys}, **self.figures}
        one["intervals"] = {name: list(value) for name, value in self.intervals.items()}
        one["against_first"] = {name: value._asdict() for name, value in self.against_first.items()}
        return one


def evaluate_suite(
    models: str | Path | Sequence[ModelName],
    path: str | Path,
    suite: ContrastSuite,
    *,
    images: str | Path | None = None,
    draws: int = 1000,
    results: str | Path | None = None,
    device: str | None = None,
    batch_size: int = 64,
    say: Say = log_line,
    bar: Bar = no_bar,
) -> list[SuiteResult]:
    """How often models prefer the true caption, or the true picture.

    Args:
        models: Runs, checkpoints, names of models, or models of sentence-transformers.
        path: The suite's file, or a folder of them; see docs/suites.md.
        suite: "sugarcrepe", "aro", "contrast" (this package's format) or "winoground".
        images: The folder of the pictures. None: the one that the file names, or the file's own.
        draws: For intervals and for tests against the first model; 0 for none.
        results: A file to append the results to, see `maxmatch.evaluation.leaderboard`.
        device: None: a GPU if there is one.
        batch_size: Items encoded at once.
        say: Called with each message.
        bar: Opens a progress bar.

    Returns:
        One result for each model.

    Example:
        >>> evaluate_suite("maxmatch-small", "sugarcrepe", "sugarcrepe", images="val2017")  # doctest: +SKIP
    """
    sources = sources_of(models, say)
    check_encoders(sources)
    examples = read_examples(suite, path, images)
    pictures = {one.path for each in examples for one in each.pictures}
    if not any(one.is_file() for one in pictures):
        raise SuiteFileError(
            f"{path}: not one of its {len(pictures):,} pictures is there: {examples[0].pictures[0].path}, for example. "
            "Give their folder with --images."
        )
    found: list[SuiteResult] = []
    for source in sources:
        model = open_encoder(source, device)
        identity = model.identity()
        with bar(f"{source.name}: {suite}", len({one for each in examples for one in each.pictures})) as advance:
            scores = example_scores(model, examples, batch_size, left_out(say), advance)
        kept = [(one, some) for one, some in zip(examples, scores, strict=True) if some is not None]
        if not kept:
            raise SuiteFileError(f"{path}: not one picture could be read. Look at the messages above.")
        held = held_by_measure([some for _, some in kept])
        used = [one for one, _ in kept]
        figures = _figures(held, used)
        sure = {name: mean_interval(values, draws) for name, values in held.items()} if draws else {}
        digest = _digest(suite, used)
        tests = {}
        if draws and found and found[0].digest == digest:
            tests = {name: mean_difference(found[0].held[name], held[name], draws) for name in held}
        name = name_of_similarity(model.similarity)
        found.append(SuiteResult(source.name, identity, name, suite, len(used), digest, figures, held, sure, tests))
        if results is not None:
            data = {"path": str(path), "digest": digest, "examples": len(used)}
            append_record(results, new_record(source.name, identity, name, data, suite, figures))
    return found


def example_scores(
    model: AnyEncoder, examples: Sequence[Example], batch_size: int, report: Any, advance: Any
) -> list[np.ndarray | None]:
    """The scores (pictures, captions) of each example; None where a picture cannot be read. Every picture and every
    caption is encoded once.
    """
    pictures = list(dict.fromkeys(one for example in examples for one in example.pictures))
    captions = list(dict.fromkeys(one for example in examples for one in example.captions))
    opened = _Opened(pictures)
    image_sets, kept = encode_pictures(
        model.encode, opened, [one.path.name for one in pictures], batch_size, report, advance
    )
    if image_sets is None:
        return [None] * len(examples)
    text_sets = model.encode(TEXT, captions, batch_size)
    place = {picture: int(number) for picture, number in zip(pictures, np.cumsum(kept) - 1, strict=True)}
    readable = dict(zip(pictures, kept.tolist(), strict=True))
    column = {caption: number for number, caption in enumerate(captions)}
    pairs = dict.fromkeys(
        (place[picture], column[caption])
        for example in examples
        if all(readable[picture] for picture in example.pictures)
        for picture in example.pictures
        for caption in example.captions
    )
    scores = dict(zip(pairs, _pair_scores(model.similarity, image_sets, text_sets, list(pairs)), strict=True))
    return [
        np.array([[scores[place[one], column[text]] for text in example.captions] for one in example.pictures])
        if all(readable[one] for one in example.pictures)
        else None
        for example in examples
    ]


class _Opened(Sequence[Any]):
    """Pictures that are read and cut out when they are asked for."""

    def __init__(self, pictures: Sequence[Picture]) -> None:
        self.pictures = pictures

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, place: Any) -> Any:
        path, box = self.pictures[place]
        return path if box is None else load_image(path).crop(box)


def _pair_scores(
    similarity: str | Similarity, images: SetsAndMask, texts: SetsAndMask, pairs: Sequence[tuple[int, int]]
) -> list[float]:
    """The scores of some pairs of an image and a text."""
    found: list[float] = []
    for start in range(0, len(pairs), _PAIRS):
        rows, columns = torch.tensor(pairs[start : start + _PAIRS]).T
        a, b = torch.as_tensor(images.vectors)[rows], torch.as_tensor(texts.vectors)[columns]
        masks = [None if side.mask is None else side.mask[one] for side, one in ((images, rows), (texts, columns))]
        found += _scored(similarity, a, b, masks).diagonal().tolist()
    return found


def _scored(similarity: str | Similarity, a: Tensor, b: Tensor, masks: Sequence[Tensor | None]) -> Tensor:
    if isinstance(similarity, str) and similarity in SINGLE_VECTORS:
        return a[:, 0] @ b[:, 0].T
    function = SIMILARITIES[similarity] if isinstance(similarity, str) else similarity
    scores: Tensor = function(a, b, *masks)
    return scores


def held_by_measure(scores: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """Which examples a model gets right. One picture: "accuracy", the true caption scores more than every false one.

    Two pictures i, j and their captions: "text", each picture prefers its caption; "image", each caption prefers its
    picture; "group", both.
    """
    if scores[0].shape == (2, 2):
        each = np.stack(scores)
        own, crossed = each[:, [0, 1], [0, 1]], each[:, [0, 1], [1, 0]]
        text = np.asarray((own > crossed).all(1))  # picture 0: caption 0 against 1; picture 1: caption 1 against 0
        image = np.asarray((own > crossed[:, ::-1]).all(1))  # caption 0: picture 0 against 1
        return {"text": text, "image": image, "group": text & image}
    return {"accuracy": np.array([bool((one[0, 0] > one[0, 1:]).all()) for one in scores])}


def _figures(held: Mapping[str, np.ndarray], examples: Sequence[Example]) -> dict[str, float]:
    """The share of all examples, in per cent; of one picture each also the mean over categories, and each category."""
    figures = {name: 100 * float(values.mean()) for name, values in held.items()}
    categories = np.array([example.category for example in examples])
    if "accuracy" in held:
        each = {name: 100 * float(held["accuracy"][categories == name].mean()) for name in np.unique(categories)}
        figures |= {"category_mean": float(np.mean(list(each.values())))}
        figures |= {f"{name}_accuracy": value for name, value in each.items()} if len(each) > 1 else {}
    return figures


def _digest(suite: str, examples: Sequence[Example]) -> str:
    digest = hashlib.sha256(f"{suite} {VERSION}\n".encode())
    for one in examples:
        names = [(picture.path.name, picture.box) for picture in one.pictures]
        digest.update(json.dumps([names, one.captions, one.category]).encode())
    return digest.hexdigest()


def suite_table(results: Sequence[SuiteResult]) -> Table:
    """The figures of each model, with the interval of the first one, and the test against the first model."""
    main = next(iter(results[0].figures))
    rows: list[dict[str, Cell]] = []
    for one in results:
        row: dict[str, Cell] = {"model": one.model, "similarity": one.similarity, "examples": one.examples}
        row |= one.figures
        if main in one.intervals:
            row["interval"] = "{:.1f} to {:.1f}".format(*one.intervals[main])
        if main in one.against_first:
            value, low, high, p = one.against_first[main]
            row |= {"difference": f"{value:+.1f} ({low:.1f} to {high:.1f})", "p": p}
        rows.append(row)
    shown = [Column(name.removesuffix("_accuracy").replace("_", " "), name, ".1f") for name in results[0].figures]
    notes = []
    if len(shown) > _SHOWN:
        notes = [f"{len(shown) - 2} categories: --json has each"]
        shown = shown[:2]
    columns = [
        Column("model", "model"),
        Column("similarity", "similarity"),
        Column("examples", "examples", ",.0f"),
        shown[0],
        Column("95 %", "interval", "s"),
        Column("to the first", "difference", "s"),
        Column("p", "p", ".3g"),
        *shown[1:],
    ]
    return Table(filled(columns, rows), rows, notes)


def render_suite(results: Sequence[SuiteResult], style: Style = "text") -> str:
    """The table as text, Markdown or LaTeX."""
    return render(suite_table(results), style)
