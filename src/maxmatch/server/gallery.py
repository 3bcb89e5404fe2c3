"""What the server shows of an index: its items under opaque keys."""

import asyncio
import hashlib
import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property
from pathlib import Path
from sys import intern
from typing import Any

import numpy as np

from maxmatch.core.machine import return_memory
from maxmatch.core.progress import Advance, Bar
from maxmatch.search.filters import Condition, Every, passes
from maxmatch.search.folding import Grouping, Sketcher
from maxmatch.search.photos import facts
from maxmatch.search.photos.file_names import MOST_NAMED, NameList, name_of
from maxmatch.search.photos.library import JoinedEngine
from maxmatch.search.photos.sync import Synced
from maxmatch.search.set_index import SetIndex
from maxmatch.server.api_schema import ItemFacts

_log = logging.getLogger("maxmatch")
PictureOf = Callable[[str], Path]
"""The file of an indexed item's picture, by the item's id."""
_SCAN_BLOCK = 1024
_REFRESH_AFTER = 10.0  # seconds
_REST = 10  # times as long as reading the index took, at least
_CACHED_FILTERS = 32
_OFFERED = 400  # cameras and places
_SOONEST = 10.0  # seconds between two looks at the folders, at least
_RARELY = 50  # times as long as a look takes


@dataclass(frozen=True)
class GalleryState:
    """The items as they were when the index was last read."""

    items: dict[str, ItemFacts]
    """By key."""
    newest: list[ItemFacts]
    """Newest first; those without a date last."""
    names: NameList
    """Of `newest`."""
    sketches: dict[str, np.ndarray]
    """By id."""
    took: float
    """Seconds to read it."""
    version: Hashable
    """The index's, taken before reading it."""
    passing: dict[Condition | None, list[ItemFacts]] = field(default_factory=dict)
    """What passed the last filters."""
    groupings: dict[tuple[Condition | None, float], Grouping] = field(default_factory=dict)
    """Near-duplicates among these."""

    @cached_property
    def words(self) -> list[str]:
        """Words of their names that tell some of them from others."""
        return self.names.words()

    @cached_property
    def cameras(self) -> list[str]:
        """That the photos were taken with, the most frequent first."""
        return [name for name, _ in Counter(item.camera for item in self.newest if item.camera).most_common(_OFFERED)]

    @cached_property
    def places(self) -> list[str]:
        """That are written in the photos' files, the most frequent first."""
        return [name for name, _ in Counter(item.place for item in self.newest if item.place).most_common(_OFFERED)]

    @cached_property
    def by_id(self) -> dict[str, ItemFacts]:
        """The items by their ids."""
        return {item.id: item for item in self.newest}


class Gallery:
    """The items of an index. Changes to the index are seen within seconds."""

    def __init__(self, index: SetIndex, picture: PictureOf, name: str = "Pictures") -> None:
        size = index.manifest.set_size
        if size is None:
            raise ValueError(
                f"{index.folder}: holds sets of any size, which can be searched from Python and by `maxmatch search`, "
                "but not served. Serve an index of sets of one size."
            )
        self.set_size = size
        self.index = index
        index.engine.in_memory = True
        self.picture = picture
        self.name = name
        self._sketcher = Sketcher(size * index.manifest.dim)
        self._busy = threading.Lock()
        self.state = self._read()
        self._looked = time.monotonic()

    def find(self, key: str) -> ItemFacts | None:
        """The item with this key, or None."""
        return self.state.items.get(key)

    def refresh(self, at_once: bool = False) -> None:
        """Read the index again if it was last read some seconds ago, or `at_once`, and has been written to since."""
        rest = 0.0 if at_once else max(_REFRESH_AFTER, min(1.0, _REFRESH_AFTER) * _REST * self.state.took)
        if time.monotonic() - self._looked < rest or not self._busy.acquire(blocking=at_once):
            return
        try:
            if self.index.engine.version() != self.state.version:
                self.state = self._read()
            self._looked = time.monotonic()
        finally:
            self._busy.release()

    def condition(
        self,
        folder: str | None = None,
        start: date | None = None,
        end: date | None = None,
        orientation: str | None = None,
        camera: str | None = None,
        place: str | None = None,
    ) -> Condition | None:
        """A filter on the items' facts; folder: as items name theirs, in or below it."""
        engine = self.index.engine
        if not folder or not isinstance(engine, JoinedEngine):
            return facts.facts_condition(folder, start, end, orientation, camera, place)
        rest = facts.facts_condition(None, start, end, orientation, camera, place)
        return engine.below(folder) if rest is None else Every((engine.below(folder), rest))

    def passing(self, condition: Condition | None, state: GalleryState | None = None) -> list[ItemFacts]:
        """The items that pass a filter on their facts, newest first; as they are, or were in a state."""
        state = state or self.state
        if condition is None:
            return state.newest
        found = state.passing.get(condition)
        if found is None:
            if len(state.passing) >= _CACHED_FILTERS:
                state.passing.clear()
                state.groupings.clear()
            found = [item for item in state.newest if passes(condition, _facts(item))]
            state.passing[condition] = found
        return found

    def grouping(self, condition: Condition | None, threshold: float) -> tuple[list[ItemFacts], Grouping]:
        """The items that pass a filter, newest first, and near-duplicates among them."""
        state, key = self.state, (condition, threshold)
        items = self.passing(condition, state)
        found = state.groupings.get(key)
        if found is None:
            found = state.groupings[key] = Grouping([item.id for item in items], state.sketches, threshold)
        return items, found

    def named(self, words: Sequence[str], condition: Condition | None) -> tuple[str, ...]:
        """The ids of the items that pass a filter and have all these words in their path; none where too many do."""
        state = self.state
        if not state.names.may_have(words):
            return ()
        items = [state.newest[place] for place in state.names.places(words)]
        found = tuple(item.id for item in items if condition is None or passes(condition, _facts(item)))
        return found if len(found) <= MOST_NAMED else ()

    def folders(self) -> dict[str, tuple[int, ItemFacts]]:
        """Every folder and its parents, with the number of items in and below it, and the newest of them."""
        counts: Counter[str] = Counter()
        newest: dict[str, ItemFacts] = {}
        for item in self.state.newest:
            parts = item.folder.split("/") if item.folder else []
            for depth in range(1, len(parts) + 1):
                above = "/".join(parts[:depth])
                counts[above] += 1
                newest.setdefault(above, item)
        return {folder: (count, newest[folder]) for folder, count in sorted(counts.items())}

    def months(self, condition: Condition | None) -> dict[str, int]:
        """How many items that pass a filter are of each month ("2024-05"), newest first; "": without a date."""
        return dict(Counter((item.date or "")[:7] for item in self.passing(condition)))

    def _read(self) -> GalleryState:
        version, started = self.index.engine.version(), time.monotonic()
        items: list[ItemFacts] = []
        sketches: dict[str, np.ndarray] = {}
        for found in self.index.engine.scan(_SCAN_BLOCK, metadata=True):
            texts = found.metadata or []
            items += [item_of(name, json.loads(text)) for name, text in zip(found.ids, texts, strict=True)]
            sketches |= dict(zip(found.ids, self._sketcher(found.vectors), strict=True))
        items.sort(key=lambda item: (item.date or "", item.id), reverse=True)
        return_memory()  # what reading the vectors took
        took = time.monotonic() - started
        names = NameList(map(name_of(self.index), (item.id for item in items)))
        return GalleryState({item.key: item for item in items}, items, names, sketches, took, version)


class Watch:
    """Looks for new, changed and deleted photos while the server runs, in a thread beside it.

    look: brings the indexes up to date, with a progress bar, and returns what was done. seen: called after each look.
    every: seconds between two at most; less than a minute, so that what is shown is not older than that. Where folders
    are listed quickly, it looks sooner: a fiftieth of the time goes into looking.
    """

    def __init__(
        self,
        look: Callable[[Bar], Sequence[Synced] | None],
        every: float = 45.0,
        seen: Callable[[], object] = lambda: None,
    ) -> None:
        self._look = look
        self._every = every
        self._seen = seen
        self._stopped = threading.Event()
        self._began = self._took = 0.0
        self.left = 0
        """Photos that were found and are not encoded yet."""
        self.done: Sequence[Synced] = ()
        """What the last look did, folder by folder."""

    @property
    def rest(self) -> float:
        """Seconds until the next look: the last one took so long until it began to encode."""
        return min(self._every, max(_SOONEST, _RARELY * self._took))

    async def run(self) -> None:
        """Look until it is cancelled."""
        try:
            while True:
                await asyncio.to_thread(self._once)
                await asyncio.sleep(self.rest)
        finally:
            self._stopped.set()  # a look that is under way ends after its batch

    def _once(self) -> None:
        self._began, self._took = time.monotonic(), 0.0
        try:
            self.done = self._look(self._bar) or ()
            self._seen()
        except _Stopped:
            pass
        except Exception as error:  # an unmounted disk, say: the next look may succeed
            _log.warning("looking for new photos: %s", error)
        finally:
            self.left = 0
            self._took = self._took or time.monotonic() - self._began

    @contextmanager
    def _bar(self, what: str, total: int) -> Iterator[Advance]:
        self.left = total
        self._took = self._took or time.monotonic() - self._began

        def advance(count: int) -> None:
            self.left -= count
            if self._stopped.is_set():
                raise _Stopped

        yield advance


class _Stopped(Exception):
    """The server is stopping."""


def key_of(name: str) -> str:
    """The key of an item. Requests name items by it, never by their ids, which may be paths."""
    return hashlib.sha256(name.encode()).hexdigest()[:32]


def item_of(name: str, metadata: Mapping[str, Any]) -> ItemFacts:
    """An item from its id and what is known of `search.photos.facts.photo_facts`."""
    known = metadata.get
    return ItemFacts(
        key=key_of(name),
        id=name,
        name=_text(known(facts.NAME)) or name.rsplit("/", 1)[-1],
        folder=intern(_folder(name, _text(known(facts.RELATIVE)), _text(known(facts.FOLDER)) or "")),
        taken=_text(known(facts.TAKEN)),
        width=_number(known(facts.WIDTH)),
        height=_number(known(facts.HEIGHT)),
        orientation=_shared(known(facts.ORIENTATION)),
        bytes=_number(known(facts.BYTES)),
        version=f"{_number(known(facts.MODIFIED)) or 0:x}",
        date=_text(known(facts.TAKEN)) or _text(known(facts.DATE)),
        date_from=_shared(known(facts.DATE_FROM)),
        path=_text(known(facts.PATH)),
        camera=_shared(known(facts.CAMERA)),
        place=_shared(known(facts.PLACE)),
    )


def _folder(name: str, relative: str | None, folder: str) -> str:
    """The folder that an item is shown in. Of several folders, ids begin with what the folder is called."""
    label = name.removesuffix(relative).rstrip("/") if relative and not name.startswith("/") else ""
    return "/".join(filter(None, (label if name.endswith(relative or "") else "", folder)))


def _shared(value: Any) -> str | None:
    """A text that many items have, in memory once."""
    return intern(value) if isinstance(value, str) else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: Any) -> int | None:
    """A whole number above zero; JSON's `true` is none."""
    return int(value) if type(value) in (int, float) and value > 0 else None


def _facts(item: ItemFacts) -> dict[str, Any]:
    return {
        facts.FOLDER: item.folder,
        facts.TAKEN: item.taken,
        facts.DATE: item.date,
        facts.ORIENTATION: item.orientation,
        facts.PATH: item.path,
        facts.CAMERA: item.camera,
        facts.PLACE: item.place,
    }
