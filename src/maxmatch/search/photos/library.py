"""Several folders of photos searched as one, without those that are excluded. Each folder keeps its own index."""

import hashlib
import json
from collections.abc import Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import NoReturn

import numpy as np
from pydantic import JsonValue

from maxmatch.core.array_checks import UsageError
from maxmatch.core.progress import Bar, no_bar
from maxmatch.model.names import AnyModel
from maxmatch.search.engine import USUAL, CandidateOptions, Engine, Found, ItemRows, proposes
from maxmatch.search.filters import Begins, Condition, Some
from maxmatch.search.photos.facts import PATH
from maxmatch.search.photos.sync import Synced, is_excluded, sync
from maxmatch.search.set_index import SetIndex

_BLOCK = 4_096
_READ_ONLY = "an index over several folders can only be searched. Write to the index of one folder (`Library.folders`)."


@dataclass(frozen=True)
class LibraryFolder:
    """A folder of a library. label: what its photos' ids begin with; "" for the only one."""

    root: Path
    label: str
    index: SetIndex


class Library:
    """Folders of photos, each with its index, and one index over all of them.

    Ids are paths in the folder, as ever; of several folders they begin with the folder's name ("Pictures/rome/1.jpg"),
    or with so many names above it that all differ.

    Args:
        folders: none within another (`distinct_folders`), each with its index.
        exclude: patterns of photos that are neither encoded nor found (`maxmatch.search.photos.sync.is_excluded`).
    """

    def __init__(self, folders: Sequence[tuple[Path, SetIndex]], exclude: Sequence[str] = ()) -> None:
        labels = _labels([root.resolve() for root, _ in folders])
        self.exclude = tuple(exclude)
        self.folders = [LibraryFolder(root, label, index) for (root, index), label in zip(folders, labels, strict=True)]
        self.index = self._joined()

    def picture(self, name: str) -> Path:
        """The file of a photo, by its id."""
        for one in self.folders:
            if name.startswith(one.label):
                return one.root / name.removeprefix(one.label)
        raise FileNotFoundError(f"{name}: in none of the folders.")

    def sync(self, model: AnyModel, bar: Bar = no_bar) -> list[Synced]:
        """Bring the indexes of all folders up to date while they are searched. A folder that cannot be read does not
        stop the others; the last error is raised.
        """
        done: list[Synced] = []
        failed: Exception | None = None
        for one in self.folders:
            try:
                with SetIndex.open(one.index.folder) as own:  # of its own: others are reading through the first one
                    done.append(sync(own, model, one.root, exclude=self.exclude, copied=False, bar=bar))
            except (OSError, ValueError) as error:
                failed = error
        if failed is not None:
            raise failed
        return done

    def close(self) -> None:
        """Close all indexes."""
        for one in self.folders:
            one.index.close()

    def _joined(self) -> SetIndex:
        first = self.folders[0].index
        if len(self.folders) == 1 and not self.exclude:
            return first
        largest = max((one.index for one in self.folders), key=len)
        described = json.dumps([*sorted(str(one.index.folder) for one in self.folders), *self.exclude])
        own = first.folder.parent / f"joined-{hashlib.sha256(described.encode()).hexdigest()[:16]}"
        with suppress(OSError):  # what is measured of all of them together is kept there
            own.mkdir(exist_ok=True)
        return SetIndex(own, largest.manifest, JoinedEngine(self.folders, self.exclude))


def distinct_folders(folders: Sequence[Path]) -> list[Path]:
    """Folders as they were given, without those that are the same as another one of them, or within it."""
    roots: dict[Path, Path] = {}
    for folder in folders:
        roots.setdefault(folder.expanduser().resolve(), folder.expanduser())
    return [folder for root, folder in roots.items() if roots.keys().isdisjoint(root.parents)]


def _labels(roots: Sequence[Path]) -> list[str]:
    """What the ids of each folder's photos begin with: the shortest ends of their paths, of one depth, that all differ.
    Of one depth, none is the beginning of another.
    """
    if len(roots) == 1:
        return [""]
    depth = next(depth for depth in count(1) if len({root.parts[-depth:] for root in roots}) == len(roots))
    return ["/".join(part.strip("/") or "(root)" for part in root.parts[-depth:]) + "/" for root in roots]


class JoinedEngine:
    """The engines of several folders, read as one: their ids with the folder's label before them, without what is
    excluded. Conditions see the metadata of each folder as they are. It is written through the folders' own indexes.
    """

    def __init__(self, folders: Sequence[LibraryFolder], exclude: Sequence[str] = ()) -> None:
        self._folders = folders
        self._exclude = exclude

    @property
    def _engines(self) -> list[Engine]:
        return [one.index.engine for one in self._folders]

    @property
    def sure_of_few(self) -> bool:
        """Whether all of them are."""
        return all(engine.sure_of_few for engine in self._engines)

    @property
    def in_memory(self) -> bool:
        """Whether all keep their items in memory."""
        return all(engine.in_memory for engine in self._engines)

    @in_memory.setter
    def in_memory(self, keep: bool) -> None:
        for engine in self._engines:
            engine.in_memory = keep

    def scan(
        self, block: int, where: Condition | None = None, vectors: bool = True, metadata: bool = False
    ) -> Iterator[Found]:
        """Every item of one folder after the other."""
        for label, engine in self._labelled():
            for found in engine.scan(block, where, vectors, metadata):
                yield self._shown(found, label)

    def candidates(
        self, queries: np.ndarray, count: int, where: Condition | None = None, options: CandidateOptions = USUAL
    ) -> list[Found] | None:
        """For each query those of every folder: a folder too small to propose any gives its nearest."""
        if not any(proposes(engine) for engine in self._engines):
            return None
        if not len(queries):
            return []
        found: list[list[Found]] = [[] for _ in queries]
        for label, engine in self._labelled():
            proposed = engine.candidates(queries, count, where, options)
            for place, each in enumerate(_nearest(engine, queries, count, where) if proposed is None else proposed):
                found[place].append(self._shown(each, label))
        return [_together(each) for each in found]

    def fetch(self, ids: Sequence[str], vectors: bool = True, metadata: bool = False) -> Found:
        """Stored items by their ids."""
        parts = []
        for label, engine in self._labelled():
            names = [name.removeprefix(label) for name in ids if name.startswith(label)]
            parts.append(self._shown(engine.fetch(names, vectors, metadata), label))
        return _together(parts)

    def path_in_folder(self, name: str) -> str:
        """A photo's path in the folder that was given, without the folder's label, which nobody gave the photo."""
        return next((name.removeprefix(one.label) for one in self._folders if name.startswith(one.label)), name)

    def below(self, folder: str) -> Condition:
        """A filter that passes the photos in or below a folder, as ids name it: by their paths, which `folder` within
        each root does not tell apart.
        """
        roots = []
        for one in self._folders:
            if f"{folder}/".startswith(one.label):
                roots.append(one.root.resolve() / f"{folder}/"[len(one.label) :])
            elif one.label.startswith(f"{folder}/"):
                roots.append(one.root.resolve())
        return Some(tuple(Begins(PATH, f"{root}/") for root in roots)) if roots else Begins(PATH, "no such folder/")

    def count(self, where: Condition | None = None) -> int:
        """How many items there are, or pass."""
        if not self._exclude:
            return sum(engine.count(where) for engine in self._engines)
        return sum(len(found.ids) for found in self.scan(_BLOCK, where, vectors=False))

    def version(self) -> Hashable:
        """All versions."""
        return tuple(engine.version() for engine in self._engines)

    def facts(self) -> dict[str, JsonValue]:
        """The facts of each."""
        return {str(one.root): one.index.engine.facts() for one in self._folders}

    def close(self) -> None:
        """Close all."""
        for engine in self._engines:
            engine.close()

    def add(self, rows: ItemRows) -> NoReturn:
        """Refused: photos are added to the index of their folder."""
        raise UsageError(_READ_ONLY)

    def upsert(self, rows: ItemRows) -> NoReturn:
        """Refused, as `add`."""
        raise UsageError(_READ_ONLY)

    def delete(self, ids: Sequence[str]) -> NoReturn:
        """Refused, as `add`."""
        raise UsageError(_READ_ONLY)

    def flush(self, thorough: bool = False) -> bool:
        """Nothing was written."""
        return False

    def _labelled(self) -> Iterator[tuple[str, Engine]]:
        return ((one.label, one.index.engine) for one in self._folders)

    def _shown(self, found: Found, label: str) -> Found:
        """Without what is excluded, under the ids of the library."""
        if self._exclude:
            places = [place for place, name in enumerate(found.ids) if not is_excluded(name, self._exclude)]
            found = found if len(places) == len(found.ids) else found.at(places)
        return found._replace(ids=[label + name for name in found.ids]) if label else found


def _together(parts: Sequence[Found]) -> Found:
    if len(parts) == 1:
        return parts[0]
    texts = None
    if all(part.metadata is not None for part in parts):
        texts = [text for part in parts for text in part.metadata or []]
    vectors = [part.vectors for part in parts if len(part.ids)] or [parts[0].vectors]
    added = np.concatenate([part.added for part in parts])
    return Found([name for part in parts for name in part.ids], added, np.concatenate(vectors), texts)


def _nearest(engine: Engine, queries: np.ndarray, count: int, where: Condition | None) -> list[Found]:
    """For each query (q, K·D) the items of a small engine with the largest inner products, block by block."""
    best: list[Found | None] = [None] * len(queries)
    for block in engine.scan(_BLOCK, where, metadata=True):
        for place, query in enumerate(queries):
            so_far = best[place]
            both = block if so_far is None else _together([so_far, block])
            products = np.asarray(both.vectors, np.float32) @ query
            chosen: Sequence[int] | np.ndarray = []
            if len(products):
                chosen = np.sort(np.argpartition(-products, min(count, len(products)) - 1)[:count])
            best[place] = both.at(chosen)
    empty = engine.fetch([], metadata=True)
    return [empty if one is None else one for one in best]
