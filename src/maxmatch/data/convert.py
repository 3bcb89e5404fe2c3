"""Conversion between formats. An interrupted conversion resumes when run again; nothing partial ever has its name."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from maxmatch.core.progress import Bar, no_bar
from maxmatch.data.dataset import (
    IMAGE,
    TEXT,
    DataError,
    Dataset,
    Problem,
    Report,
    first_of_each,
    refuse,
    without_groups,
)
from maxmatch.data.features import FeatureStore, read_info, with_features
from maxmatch.data.formats import butd
from maxmatch.data.formats.tables import WRITERS
from maxmatch.data.load import FORMATS, read_all

Dtype = Literal["float16", "float32"]
TARGETS = (*FORMATS, *WRITERS)
_KARPATHY_READS = 5  # captions per image, by default


@dataclass(frozen=True)
class Converted:
    """What was written."""

    path: Path
    format: str
    images: Mapping[str, int]
    """By split."""
    captions: Mapping[str, int]


def convert(
    source: Path,
    target: Path,
    to: str,
    *,
    format: str | None = None,
    images: Path | None = None,
    features: Path | None = None,
    splits: Sequence[str] | None = None,
    captions: int | None = None,
    limit: int | None = None,
    skip_missing: bool = False,
    dtype: Dtype | None = None,
    workers: int = 1,
    report: Report = refuse,
    say: Callable[[str], object] = lambda line: None,
    bar: Bar = no_bar,
) -> Converted:
    """Write the data at `source` to a new folder `target`, in the format `to` (one of `TARGETS`).

    features: a store whose features take the place of the pictures. splits: those that are written, None for all.
    captions: the first so many of each image. limit: the first so many images of each split. skip_missing: leave out
    images whose files are missing; else they are refused before anything is written. dtype: of features in a store.
    say: called with a line about what the format cannot hold.
    """
    if to not in TARGETS:
        raise ValueError(f"to: expected one of {', '.join(TARGETS)}, got {to!r}.")
    source, target = source.expanduser(), target.expanduser()

    def strictly(problem: Problem) -> None:
        """A copy of which a file or a split is missing would be taken for the whole."""
        refuse(problem) if problem.fatal else report(problem)

    if format == "butd" or (format is None and butd.recognises(source)):
        return _convert_butd(source, target, to, dtype or "float32", workers, strictly, bar)
    dataset = read_all(source, format, images, strictly)
    if features is not None:
        dataset = with_features(dataset, FeatureStore.open(features.expanduser()), strictly)
    if splits:
        dataset = replace(dataset, splits={name: dataset.split(name) for name in splits})
    if captions is not None:
        dataset = first_of_each(dataset, TEXT, captions)
    if limit is not None:
        first = {name: without_groups(split, range(limit, split.size)) for name, split in dataset.splits.items()}
        dataset = replace(dataset, splits=first)
    dataset = _without_missing(dataset, skip_missing, report)
    for line in _left_behind(dataset, to):
        say(line)
    name = "table" if to in WRITERS else to
    options: dict[str, Any] = {"kind": to} if to in WRITERS else {}
    if to == "features":
        store = features or (source if dataset.format == "features" else None)
        known = None if store is None else read_info(store.expanduser()).source
        options = {"dtype": dtype, "source": known or f"{dataset.format}: {dataset.path.resolve().name}"}
    elif dtype is not None:
        raise ValueError(f"dtype: only a store of features has one, not the format {to!r}. Leave it out.")
    with bar("images", sum(len(split[IMAGE]) for split in dataset.splits.values())) as advance:
        FORMATS[name].write(dataset.splits, target, advance, workers, **options)
    return Converted(target, name, _counts(dataset, IMAGE), _counts(dataset, TEXT))


def _convert_butd(
    source: Path, target: Path, to: str, dtype: Dtype, workers: int, report: Report, bar: Bar
) -> Converted:
    if to != "features":
        raise ValueError(
            f"to: {source} holds features without captions (BUTD), which the format {to!r} cannot hold. Convert it to "
            "'features', and then the captions' own data with --features STORE."
        )
    total = sum(file.stat().st_size for file in butd.files_at(source))
    with bar("bytes", total) as advance:
        store = butd.convert(source, target, report, advance, workers if total > butd.MUCH else 1, dtype=dtype)
    return Converted(target, to, {"all": len(store)}, {})


def _without_missing(dataset: Dataset, skip: bool, report: Report) -> Dataset:
    """The data without the groups of which a file is missing; a refusal, where that was not asked for."""
    splits = {}
    missing: list[Path] = []
    for name, split in dataset.splits.items():
        lost: dict[int, Path] = {}
        for items in split.items.values():
            for value, group in zip(items.values, items.groups, strict=True) if isinstance(items.values, list) else ():
                if isinstance(value, Path) and not value.is_file():
                    lost[int(group)] = value
        missing += lost.values()
        splits[name] = without_groups(split, list(lost))
    if missing and not skip:
        what = f"no such file, and {len(missing)} are missing in all"
        raise DataError(Problem(missing[0], what, "List them with `maxmatch data check`, or give --skip-missing."))
    for path in missing:
        report(Problem(path, "no such file: left out", "Bring it back, and convert again to a new folder."))
    return replace(dataset, splits={name: split for name, split in splits.items() if split.size})


def _left_behind(dataset: Dataset, to: str) -> Iterator[str]:
    """What the format cannot hold and is not worth a refusal."""
    keys = {
        key: None
        for split in dataset.splits.values()
        for items in split.items.values()
        for known in items.metadata or ()
        for key in known
    }
    if keys and to in FORMATS and not FORMATS[to].KEEPS_METADATA:
        shown = ", ".join(list(keys)[:5]) + (" …" if len(keys) > 5 else "")
        yield f"metadata ({shown}) are not written: the format {to!r} has no place for them"
    if to == "karpathy":
        counts = (np.diff(split[TEXT].starts) for split in dataset.splits.values() if TEXT in split.items)
        most = max((int(count.max(initial=0)) for count in counts), default=0)
        if most > _KARPATHY_READS:
            yield f"some images have more than {_KARPATHY_READS} captions: by default only the first are read back"


def _counts(dataset: Dataset, modality: str) -> dict[str, int]:
    return {name: len(split[modality]) for name, split in dataset.splits.items() if modality in split.items}
