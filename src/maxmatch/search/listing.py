"""What is to be encoded: the items of a source in a fixed order, each with its id and what is known about it."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from maxmatch.data.items import TEXT
from maxmatch.data.problems import DataError, Problem, Report


@dataclass(frozen=True)
class LeftOut:
    """An item that could not be used, and why. place: its number in the source, None where it is not listed at all."""

    id: str
    reason: str
    place: int | None = None


@dataclass(frozen=True)
class Listing:
    """The items of one modality of a source.

    values: as `SetEncoder.encode` takes them; indexing reads one. metadata: texts, numbers, lists and dicts.
    left_out: what was found and cannot be listed: files that are no pictures, bad rows of a table.
    """

    path: Path
    format: str
    modality: str
    values: Sequence[Any]
    ids: Sequence[str]
    metadata: Sequence[Mapping[str, Any]]
    left_out: Sequence[LeftOut] = field(default_factory=list)

    def __post_init__(self) -> None:
        assert len(self.values) == len(self.ids) == len(self.metadata)
        seen: set[str] = set()
        for name in self.ids:
            if name in seen:
                what = f"the id {name!r} comes twice"
                raise DataError(Problem(self.path, what, "Give each item its own id.", fatal=True))
            seen.add(name)

    def __len__(self) -> int:
        return len(self.values)

    def digest(self) -> str:
        """What tells this source from another: the ids in their order, and texts themselves."""
        known = hashlib.sha256(json.dumps([self.modality, len(self)]).encode())
        for place, name in enumerate(self.ids):
            known.update(json.dumps([name, self.values[place] if self.modality == TEXT else None]).encode())
        return known.hexdigest()


def noting(left_out: list[LeftOut]) -> Report:
    """A report of problems that notes what is left out; what is fatal is raised by the reader itself."""

    def report(problem: Problem) -> None:
        where = str(problem.file) if problem.line is None else f"{problem.file}:{problem.line}"
        left_out.append(LeftOut(where, f"{problem.what}. {problem.cure}"))

    return report


def plain(value: Any) -> Any:
    """Metadata as JSON holds it: numpy's numbers as Python's, NaN as nothing, and what JSON does not know as text."""
    if isinstance(value, np.generic | np.ndarray):
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value if value is None or isinstance(value, str | int) else str(value)
