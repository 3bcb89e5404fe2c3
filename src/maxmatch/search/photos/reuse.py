"""Photos that were renamed, moved or copied keep their sets: a photo is known by the hash of its file."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from pydantic import JsonValue

from maxmatch.core.files import content_hash
from maxmatch.search.index_folder import FILE, IndexFolderError, read_manifest
from maxmatch.search.set_index import SetIndex

HASH = "hash"
"""Under which an index notes the hash of a photo's file."""
_BYTES, _MODIFIED = "bytes", "modified"
_BATCH = 1_024  # sets at once
_SCAN = 4_096
_WORTH_OPENING = 16  # new photos: fewer are encoded sooner than the indexes of other folders are read

FileState = tuple[int, int]
"""Size and time of change of a file."""
FactsOf = Callable[[str, str], "dict[str, JsonValue] | str"]
"""The facts of a new photo, from its name and hash; or why it has none."""


class _Known(NamedTuple):
    """A photo in an index, whose set a file of the same contents can take over."""

    name: str
    modified: int
    hash: str | None


class Reused(NamedTuple):
    """What was taken over. names: the new photos that need not be encoded, and which one each of them was before, if
    that is of the same index. hashes: of other new photos that had to be hashed.
    """

    names: dict[str, str | None]
    hashes: dict[str, str]


def reuse_sets(
    index: SetIndex, folder: Path, new: Sequence[str], states: Mapping[str, FileState], facts_of: FactsOf
) -> Reused:
    """Give new photos of a folder the sets of photos with the same contents: of this index, then of the indexes of
    other folders beside it that the same model made. The old ones stay: a kill at any moment loses no set.

    Only a file of the same size as a known one is hashed. A photo that was indexed before hashes were noted is known by
    its size, time and file name.
    """
    names: dict[str, str | None] = {}
    hashes: dict[str, str] = {}
    if not new:
        return Reused(names, hashes)
    with suppress(OSError):  # what cannot be written here is reported when the photos are encoded
        waiting = list(new)
        for source in _sources(index, len(new)):
            taken = _take(index, source, folder, waiting, states, facts_of, hashes)
            names |= {name: old if source is index else None for name, old in taken.items()}
            waiting = [name for name in waiting if name not in names]
            if source is not index:
                source.close()
            if not waiting:
                break
    return Reused(names, hashes)


def _sources(index: SetIndex, new: int) -> Iterator[SetIndex]:
    """This index; then those of other folders, by the same model, with sets of the same form."""
    yield index
    places = index.folder.parent.parent.iterdir() if new >= _WORTH_OPENING else ()
    for place in sorted(places):
        other = place / "index"
        if other == index.folder or not (other / FILE).is_file():
            continue
        try:
            manifest = read_manifest(other)
            same = (manifest.model, manifest.set_size, manifest.dim, manifest.dtype)
            own = index.manifest
            if own.model is None or same != (own.model, own.set_size, own.dim, own.dtype):
                continue
            opened = SetIndex.open(other)
        except (OSError, IndexFolderError):
            continue  # damaged or gone: it helps nobody
        yield opened


def _take(
    index: SetIndex,
    source: SetIndex,
    folder: Path,
    waiting: Sequence[str],
    states: Mapping[str, FileState],
    facts_of: FactsOf,
    hashes: dict[str, str],
) -> dict[str, str]:
    """What new photos take over from one index: the old name of each. hashes: receives those that were needed."""
    sizes = {states[name][0] for name in waiting}
    known: dict[int, list[_Known]] = defaultdict(list)
    try:
        for found in source.engine.scan(_SCAN, vectors=False, metadata=True):
            for name, text in zip(found.ids, found.metadata or [], strict=True):
                facts: dict[str, Any] = json.loads(text)
                if facts.get(_BYTES) in sizes:
                    known[facts[_BYTES]].append(_Known(name, facts.get(_MODIFIED, -1), facts.get(HASH)))
        pairs: dict[str, tuple[str, str]] = {}
        for name in waiting:
            size, modified = states[name]
            if size not in known:
                continue
            try:
                digest = hashes.setdefault(name, hashes.get(name) or content_hash(folder / name))
            except OSError:
                continue  # it is reported when it is encoded
            same = _same(known[size], name, modified, digest)
            if same is not None:
                pairs[name] = same, digest
        return _copy(index, source, pairs, facts_of)
    except IndexFolderError:
        if source is index:
            raise
        return {}


def _same(known: Sequence[_Known], name: str, modified: int, digest: str) -> str | None:
    """The name of a known photo of the same size that is the same."""
    for one in known:
        if one.hash == digest:
            return one.name
    file = PurePosixPath(name).name
    for one in known:
        if one.hash is None and one.modified == modified and PurePosixPath(one.name).name == file:
            return one.name
    return None


def _copy(index: SetIndex, source: SetIndex, pairs: Mapping[str, tuple[str, str]], facts_of: FactsOf) -> dict[str, str]:
    """Store sets under new names. pairs: the old name and the hash of each new one."""
    done: dict[str, str] = {}
    new = list(pairs)
    for start in range(0, len(new), _BATCH):
        part = new[start : start + _BATCH]
        found = source.engine.fetch(sorted({pairs[name][0] for name in part}))
        place_of = {name: place for place, name in enumerate(found.ids)}
        facts = {name: facts_of(name, pairs[name][1]) for name in part if pairs[name][0] in place_of}
        good = {name: known for name, known in facts.items() if not isinstance(known, str)}
        if good:
            vectors = found.vectors[[place_of[pairs[name][0]] for name in good]]
            sets = vectors.reshape(len(good), index.manifest.set_size, index.manifest.dim)
            index.upsert(list(good), sets, list(good.values()))
        done |= {name: pairs[name][0] for name in good}
    return done
