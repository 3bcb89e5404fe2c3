"""What is in a data set, and what is wrong with it. Everything is looked at; no problem ends the looking."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from maxmatch.data.check_images import look_at_features, look_at_pictures
from maxmatch.data.check_report import (
    CheckReport,
    FeatureCounts,
    Finding,
    Level,
    Pictures,
    SplitCounts,
    Spread,
    Vocabulary,
)
from maxmatch.data.formats import butd
from maxmatch.data.formats.stored import ALL
from maxmatch.data.items import IMAGE, TEXT, Dataset, Split
from maxmatch.data.problems import DataError, Problem
from maxmatch.data.progress import Progress, no_progress
from maxmatch.data.reading import read_dataset, recognise
from maxmatch.data.rows import RaggedRows, Rows

MIN_COUNT = 4
_SAMPLE = 64  # images of one id in two splits that are compared, to tell whether they are the same
_LONGEST = 126  # words, with <start> and <end> around them, that the usual tokenizer does not cut
_TRAIN = "train"


class Collector:
    """Findings, each once: a reader that gives up reports a problem, and raises it too."""

    def __init__(self) -> None:
        self.found: dict[Problem, Level] = {}

    def __call__(self, problem: Problem) -> None:
        """What readers call."""
        self.say("error" if problem.fatal else "warning", problem)

    def say(self, level: Level, problem: Problem) -> None:
        """What checks call."""
        self.found.setdefault(problem, level)

    @property
    def findings(self) -> list[Finding]:
        """In the order in which they were found."""
        return [Finding(level, problem) for problem, level in self.found.items()]


def check(
    path: Path,
    format: str | None = None,
    *,
    images: Path | None = None,
    pictures: bool = True,
    quick: bool = False,
    workers: int = 4,
    progress: Progress = no_progress,
) -> CheckReport:
    """Look at a data set in any format, at a store of features, or at files of BUTD.

    images: the folder of the pictures, where the data does not say. pictures: whether to look at them at all. quick:
    pictures are opened but not decoded to their end, and the values of features are not read.
    """
    path, collector = path.expanduser(), Collector()
    report = CheckReport(path)
    try:
        if format == "butd" or (format is None and butd.recognises(path)):
            report = _look_at_butd(replace(report, format="butd"), collector, workers, progress)
        else:
            report = replace(report, format=format or recognise(path))
            # All captions that there are: how many are trained on is the recipe's choice.
            options: dict[str, Any] = {"captions_per_image": None} if report.format == "karpathy" else {}
            options |= {} if images is None else {"images": images.expanduser()}
            dataset = read_dataset(path, report.format, collector, **options)
            report = _look(report, dataset, collector, pictures, quick, workers, progress)
    except DataError as error:
        collector(replace(error.problem, fatal=True))
    return replace(report, findings=collector.findings)


def _look(
    report: CheckReport,
    dataset: Dataset,
    collector: Collector,
    pictures: bool,
    quick: bool,
    workers: int,
    progress: Progress,
) -> CheckReport:
    """All that there is to see once the data is read."""
    splits = {name: split for name, split in dataset.splits.items() if split.size}
    if not splits:
        collector.say("error", Problem(dataset.path, "not one item can be used", "See the problems before this one."))
    features: dict[str, FeatureCounts] = {}
    seen: Pictures | None = None
    total = sum(len(split[IMAGE]) for split in splits.values())
    if any(isinstance(split[IMAGE].values, Rows | RaggedRows) for split in splits.values()):
        with progress("features", 0 if quick else total) as advance:
            for name in splits:
                features[name] = look_at_features(dataset, name, collector.say, not quick, advance)
    elif pictures and splits:
        with progress("pictures", total) as advance:
            seen = look_at_pictures(dataset, collector.say, not quick, workers, advance)
    _find_leaks(dataset, splits, collector)
    return replace(
        report,
        splits={name: _counts(split) for name, split in splits.items()},
        vocabulary=_read_captions(dataset, splits, collector),
        pictures=seen,
        features=features,
    )


def _counts(split: Split) -> SplitCounts:
    captions = Spread.of(np.diff(split[TEXT].starts)) if TEXT in split.items else None
    return SplitCounts(split.size, {name: len(items) for name, items in split.items.items()}, captions)


def _read_captions(dataset: Dataset, splits: Mapping[str, Split], collector: Collector) -> Vocabulary | None:
    """Count words, and find captions that an image has twice, or that are longer than a model reads."""
    from maxmatch.text import split_into_words

    told = {name: split[TEXT] for name, split in splits.items() if TEXT in split.items}
    if not told:
        return None
    counted = _TRAIN if _TRAIN in told else next(iter(told))
    counts: Counter[str] = Counter()
    longest = 0
    for name, texts in told.items():
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
                collector.say("note", Problem(dataset.path, what, "Remove one of the two, unless both are meant."))
            if len(words) > _LONGEST:
                what = f"caption {caption!r} of the split {name!r} has {len(words)} words: {_shown(text)}"
                cure = "Shorten it, or raise data.max_length: the rest is not read."
                collector.say("note", Problem(dataset.path, what, cure))
    frequent = sum(count >= MIN_COUNT for count in counts.values())
    return Vocabulary(counted, len(counts), frequent, MIN_COUNT, longest)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:59]}…")


def _find_leaks(dataset: Dataset, splits: Mapping[str, Split], collector: Collector) -> None:
    """Images whose ids are in two splits. Whether they are the same images is seen from some of them."""
    for (one, first), (other, second) in combinations(splits.items(), 2):
        if IMAGE not in first.items or IMAGE not in second.items or {one, other} == {"test", "testall"}:
            continue
        places = {name: place for place, name in enumerate(first[IMAGE].ids)}
        shared = [(name, place) for place, name in enumerate(second[IMAGE].ids) if name in places]
        if not shared:
            continue
        some = shared[:: max(1, len(shared) // _SAMPLE)]
        if any(_same(first[IMAGE].values[places[name]], second[IMAGE].values[place]) for name, place in some):
            for name, _ in shared:
                what = f"image {name!r} is in the split {one!r} and in {other!r}"
                cure = "Leave it out of one of them: what is trained on cannot be tested on."
                collector.say("warning", Problem(dataset.path, what, cure))
        else:
            what = (
                f"{len(shared)} images of the split {one!r} have ids of others in {other!r}, such as {shared[0][0]!r}"
            )
            collector.say("note", Problem(dataset.path, what, "Give each image its own, to join anything by ids."))


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.array_equal(a, b)
    return bool(a == b)


def _look_at_butd(report: CheckReport, collector: Collector, workers: int, progress: Progress) -> CheckReport:
    """Decode every line of the files."""
    total = sum(file.stat().st_size for file in butd.files_at(report.path))
    with progress("bytes", total) as advance:
        found = butd.scan(report.path, collector, advance, workers if total > butd.MUCH else 1)
    images = len(found.boxes)
    return replace(
        report,
        splits={ALL: SplitCounts(images, {IMAGE: images}, None)},
        features={ALL: FeatureCounts(found.width, "float32", Spread.of(found.boxes), True)},
    )
