"""What `maxmatch data check` finds: counts, and problems by kind."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from maxmatch.data.problems import Problem

Level = Literal["error", "warning", "note"]
LEVELS: tuple[Level, ...] = ("error", "warning", "note")
# What differs between two problems of one kind: names in quotes or brackets, and numbers.
_PARTICULARS = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|\([^()]*\)|0x\w+|\d[\d.,]*")


@dataclass(frozen=True)
class Finding:
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
    """The words of the captions, lower-cased, as `maxmatch.text.word_tokenizer` divides them."""

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


@dataclass(frozen=True)
class CheckReport:
    """All that was found."""

    path: Path
    format: str | None = None
    """None where it was not recognised."""
    splits: Mapping[str, SplitCounts] = field(default_factory=dict)
    vocabulary: Vocabulary | None = None
    pictures: Pictures | None = None
    features: Mapping[str, FeatureCounts] = field(default_factory=dict)
    findings: Sequence[Finding] = ()

    @property
    def usable(self) -> bool:
        """Whether the data can be used as it is."""
        return not any(finding.level == "error" for finding in self.findings)

    def count(self, level: Level) -> int:
        """How many findings of a level there are."""
        return sum(finding.level == level for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        """Everything, as what JSON knows."""
        plain = asdict(self)
        findings = []
        for finding in self.findings:
            about = asdict(finding.problem)
            about["file"] = str(about["file"])
            del about["fatal"]
            findings.append({"level": finding.level, "kind": finding.kind, **about})
        return {**plain, "path": str(self.path), "usable": self.usable, "findings": findings}
