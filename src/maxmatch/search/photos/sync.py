"""A folder of photos and its index: new and changed photos are encoded, deleted ones removed."""

import errno
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from pydantic import JsonValue

from maxmatch.core.files import content_hash, write_whole
from maxmatch.core.progress import Bar, Skipped, no_bar
from maxmatch.data.dataset import IMAGE, DataError, Problem
from maxmatch.data.formats.folder import files_below
from maxmatch.data.formats.shared import EXPECTED
from maxmatch.model.images import lacks_avif
from maxmatch.model.names import SHIPPED, AnyModel, model_identity, older_models
from maxmatch.model.picture_files import SUFFIXES, is_read, not_read
from maxmatch.search.engine import present
from maxmatch.search.engines.cached_table import state_of, write_cache
from maxmatch.search.index_folder import (
    FILE,
    LONGEST_ID,
    IndexFolderError,
    NewerIndexError,
    as_sets,
    is_text,
    photo_caches,
    writing,
)
from maxmatch.search.photos.facts import BYTES, KEYS, MODIFIED, MTIME, SIZE, photo_facts
from maxmatch.search.photos.reuse import HASH, FileState, reuse_sets
from maxmatch.search.plausible import forget, is_much
from maxmatch.search.set_index import SetIndex


class Walked(NamedTuple):
    """What is below a folder. pictures: paths from the folder, sorted. closed: the folders that cannot be listed, and
    why; nothing is known of what is in them. unread: pictures of formats for which a package is missing, sorted.
    misnamed: pictures, among what is left out, whose names cannot be noted.
    """

    pictures: list[str]
    left_out: list[Skipped]
    closed: dict[Path, str]
    unread: list[str]
    misnamed: list[Skipped]


def walk(folder: Path) -> Walked:
    """The pictures of a folder and below it, and what else is there, but for what systems leave behind."""
    pictures, left_out, closed, unread, misnamed = walked = Walked([], [], {}, [], [])
    readable = {suffix: is_read(suffix) for suffix in SUFFIXES}
    above = len(os.path.join(folder, ""))
    for entry in files_below(folder, closed):  # plain texts: of 100,000 paths, objects take seconds
        name = entry.path[above:].replace(os.sep, "/")
        suffix = os.path.splitext(name)[1].lower()
        if suffix not in SUFFIXES:
            shown = name if is_text(name) else ascii(name)
            left_out.append(Skipped(shown, f"not a picture: its name ends in {suffix or 'nothing'}."))
        elif not is_text(name):
            misnamed.append(Skipped(ascii(name), "its name is not UTF-8. Rename the file."))
        elif len(name) > LONGEST_ID:
            misnamed.append(Skipped(name, f"its path has more than {LONGEST_ID:,} characters. Move the file up."))
        else:
            (pictures if readable[suffix] else unread).append(name)
    pictures.sort()
    unread.sort()
    left_out += misnamed
    return walked


def no_pictures(folder: Path, closed: Mapping[str, str], unread: Sequence[str] = ()) -> DataError:
    """The error for a folder without pictures. closed: the folders that cannot be read, and why. unread: pictures for
    which a package is missing.
    """
    if unread:
        return DataError(Problem(folder, "no pictures that can be read", f"{not_read(unread)}."))
    if closed:
        place, why = next(iter(closed.items()))
        return DataError(Problem(folder, f"no pictures that can be read: {place} ({why})", "Allow reading it."))
    return DataError(Problem(folder, "no pictures in it", EXPECTED))


# The index alone records what is known: a photo's metadata holds the size and time of the file that its set was made
# from. So whatever interrupts the work, the next call resumes with what is not in the index yet.

UNREADABLE = "unreadable.json"
_KNOWN = "known.json"
_BATCH = 128  # photos, after which the index has them for good
_AT_ONCE = 16  # through the network, while the next are read
_ANOTHER_PLACE = "Allow writing or free some space there, or set XDG_CACHE_HOME to another folder."
_MAY_ALL_GO = 10  # photos; where more are gone at once, a disk that is not mounted is likelier
_SCAN = 4_096

_CLOSED: FileState = (-1, -1)
"""Of a folder or photo that may not or cannot be read here; a photo's own state need not change when it can be."""


class Synced(NamedTuple):
    """What was done to bring an index up to date. unreadable: photos and folders that were found to be so this time.
    unread: photos of formats for which a package is missing, every time. still: photos and folders that cannot be read,
    whenever that was found.
    renamed: photos that have another name now. taken_over: new photos whose sets were copied from a photo of the same
    contents, in another folder or this one. Neither count as added, which are the photos that were encoded.
    """

    added: int
    changed: int
    removed: int
    unreadable: list[Skipped]
    unread: list[str]
    renamed: int = 0
    taken_over: int = 0
    still: Sequence[Skipped] = ()


def place_of(folder: Path, model: AnyModel | str) -> Path:
    """Where the index of a folder is kept: in the user's cache, by the folder's path and the model."""
    named = f"{folder.expanduser().resolve()}\n{model_identity(model)}"
    digest = hashlib.sha256(named.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    name = folder.expanduser().resolve().name.encode("utf-8", "replace")[:80].decode("utf-8", "ignore")
    return photo_caches() / f"{name or 'root'}-{digest}"


def is_indexed(place: Path) -> bool:
    """Whether there is an index at a place; it may still be incomplete."""
    return (place / "index" / FILE).is_file()


def open_photos(place: Path, model: AnyModel) -> SetIndex:
    """The index at a place, made where there is none."""
    if not is_indexed(place):
        try:
            return SetIndex.create(place / "index", dim=model.dim, set_size=model.set_sizes[IMAGE], model=model)
        except FileExistsError:
            pass  # another process was faster
        except OSError as error:
            raise _not_written(place, error) from error
    try:
        return SetIndex.open(place / "index")
    except FileNotFoundError as error:
        raise IndexFolderError(str(error)) from error


def open_synced(
    place: Path,
    model: AnyModel,
    folder: Path,
    *,
    exclude: Sequence[str] = (),
    at_most: int | None = None,
    anew: bool = False,
    thorough: bool = False,
    bar: Bar = no_bar,
    say: Callable[[str], object] = lambda line: None,
) -> tuple[SetIndex, Synced]:
    """The index of a folder, brought up to date as `sync` does. It is a cache: a damaged one is removed and built anew,
    which `say` is told. anew: it was found to be damaged. thorough: look for damage in all of its files, those too that
    only a search reads.
    """
    for _ in range(0 if anew else 2):  # twice: another process may have replaced what was being read
        try:
            index = open_photos(place, model)
            if thorough:
                index.check_files()
            return index, sync(index, model, folder, exclude=exclude, at_most=at_most, bar=bar)
        except NewerIndexError:
            raise
        except IndexFolderError:
            pass
    say(f"{place}: the cache of this folder is damaged; it is built anew")
    try:
        shutil.rmtree(place)
    except OSError as error:
        raise _not_written(place, error) from error
    index = open_photos(place, model)
    return index, sync(index, model, folder, exclude=exclude, at_most=at_most, bar=bar)


@contextmanager
def replacing_older(folder: Path, model: AnyModel, say: Callable[[str], object]) -> Iterator[None]:
    """While a folder is read by a model that ships: `say` that an older one has read it, and remove what that one left
    when all is done. Whatever ends the work before, the old cache stays, and the next search resumes.
    """
    old = [place_of(folder, identity) for identity in older_models(model)]
    if any(map(is_indexed, old)):
        say(f"{folder} was read by an older {SHIPPED}; reading it anew once")
    yield
    for place in old:
        with suppress(OSError):
            (place / "index" / FILE).unlink()  # first: what a kill leaves of the rest is no index any more
        shutil.rmtree(place, ignore_errors=True)


def _not_written(place: Path, error: OSError) -> OSError:
    """The error where the cache of a folder cannot be written."""
    return OSError(error.errno or errno.EIO, f"{place}: the cache cannot be written ({_why(error)}). {_ANOTHER_PLACE}")


def _why(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else str(error)


def sync(
    index: SetIndex,
    model: AnyModel,
    folder: Path,
    *,
    exclude: Sequence[str] = (),
    at_most: int | None = None,
    copied: bool = True,
    bar: Bar = no_bar,
) -> Synced:
    """Bring an index up to date with a folder. exclude: patterns of photos that are not encoded (`is_excluded`).
    at_most: how many to encode now; the next call encodes the rest. copied: write what lets the next search start
    quickly. bar: shows how many photos are read.

    A photo that was renamed, moved or copied keeps its set (`search.photos.reuse`). A photo that cannot be read is not
    tried again before its file changes or may be read; those of a folder that cannot be listed stay as they are. Both
    are reported once. Excluded photos that the index has stay in it. Ids are the photos' paths in the folder.
    """
    folder = folder.expanduser().resolve()
    (known, outdated), (noted, reasons) = _known(index), _read_notes(index.folder.parent / UNREADABLE)
    present, closed, unread, misnamed = _present(folder)
    if not present and not known:
        raise no_pictures(folder, closed, unread)
    hidden = {name: state for name, state in {**noted, **known}.items() if closed and _is_below(name, closed)}
    hidden |= {name: known[name] for name in unread if name in known}  # read when the package was there
    gone = [name for name in known if name not in present and name not in hidden]
    if not present and len(gone) > _MAY_ALL_GO:
        what = f"no pictures, but the index has {len(gone):,}; nothing was removed"
        cure = f"Is the disk mounted? If they were deleted, delete {index.folder.parent}."
        raise DataError(Problem(folder, what, cure, fatal=True))
    present = {**hidden, **present}
    bad = {
        name: state
        for name, state in noted.items()
        if present.get(name) == state or (state == _CLOSED and name in present and not _may_be_read(folder / name))
    }
    bad |= dict.fromkeys([*closed, *(one.id for one in misnamed)], _CLOSED)
    reasons |= {place: _closed(folder / place, why) for place, why in closed.items()}
    reasons |= {one.id: f"{one.id}: {one.reason}" for one in misnamed}
    changed = [name for name, state in present.items() if state != known.get(name) and name not in bad]
    changed = [name for name in changed if not is_excluded(name, exclude)]

    def facts_of(name: str, digest: str) -> dict[str, JsonValue] | str:
        return _facts(folder, name, present[name], digest)

    reused = reuse_sets(index, folder, changed, present, facts_of)
    todo = [name for name in changed if name not in reused.names][:at_most]
    failed: list[Skipped] = []
    done: list[str] = list(reused.names)
    before = {old for name, old in reused.names.items() if name not in known and old is not None}.intersection(gone)
    removed = 0
    try:
        _forget(index, gone)  # after others took over their sets
        removed = len(gone)
        _refresh(index, folder, [name for name in outdated if present.get(name) == known[name]], known)
        if todo or bad != noted:  # before photos are encoded in vain, where nothing can be written
            _write_notes(index, bad, reasons)
        with bar("photos", len(todo)) if todo else no_bar("", 0) as advance:
            for start in range(0, len(todo), _BATCH):
                names = todo[start : start + _BATCH]
                more = _encode(index, model, folder, names, present, reused.hashes)
                # Its old set is of a picture that is gone. Before the note, which marks this batch as done.
                _forget(index, [one.id for one in more if one.id in known])
                failed += more
                for one in more:  # a file that is missing now is tried again the next time
                    if os.path.isfile(folder / one.id):
                        bad[one.id] = present[one.id] if _may_be_read(folder / one.id) else _CLOSED
                        reasons[one.id] = one.reason
                lost = {one.id for one in more}
                done += [name for name in names if name not in lost]
                _write_notes(index, bad, reasons)
                advance(len(names))
    except OSError as error:
        if not len(index):
            raise _not_written(index.folder.parent, error) from error
        missing = f"{len(changed) - len(done) - len(failed):,} new or changed photos are not in it"
        late = f"{len(gone) - removed:,} deleted ones still are"
        why = f"the cache cannot be written ({_why(error)}): {missing}, {late}. {_ANOTHER_PLACE}"
        failed.append(Skipped(str(index.folder), f"{index.folder.parent}: {why}"))
    with suppress(OSError):  # a full disk: the next search starts more slowly, and that is all
        if copied:
            write_cache(index.engine, index.folder)
    if is_much(len(done) + removed, len(index)):
        forget(index.folder)
    again = sum(name in known for name in done)
    hopeless = [*closed, *(one.id for one in misnamed)]
    failed += [Skipped(name, reasons[name]) for name in hopeless if noted.get(name) != _CLOSED]
    still = [Skipped(name, reasons.get(name) or f"{folder / name}: cannot be read.") for name in bad]
    taken_over = sum(name not in known for name in reused.names) - len(before)
    added, gone_now = len(done) - again - len(before) - taken_over, removed - min(removed, len(before))
    missing_package = [name for name in unread if name not in known]
    return Synced(added, again, gone_now, failed, missing_package, len(before), taken_over, still)


def _closed(place: Path, why: str) -> str:
    """That a folder cannot be read, with the cure."""
    cure = "Mend or delete the link." if place.is_symlink() else "Allow reading it."
    return f"{place}: cannot be read ({why}); its photos stay in the index as they were. {cure}"


def is_excluded(name: str, patterns: Sequence[str]) -> bool:
    """Whether a photo's path in its folder, or that of a folder above it, matches a pattern as of `fnmatch`: "*.gif",
    "Screenshots", "*/thumbs".
    """
    if not patterns:
        return False
    path = PurePosixPath(name)
    above = [place.as_posix() for place in (path, *path.parents) if place.name]
    return any(fnmatch(place, pattern.rstrip("/")) for pattern in patterns for place in above)


def _may_be_read(path: Path) -> bool:
    """Whether reading is allowed and this Pillow knows the format: either can change without the file."""
    return os.access(path, os.R_OK) and not lacks_avif(path)


def _forget(index: SetIndex, names: Sequence[str]) -> None:
    """Remove photos; another process may have done so already."""
    there = present(index.engine, names)
    if there:
        index.remove([name for name in names if name in there])


def _encode(
    index: SetIndex,
    model: AnyModel,
    folder: Path,
    names: Sequence[str],
    states: Mapping[str, FileState],
    hashes: Mapping[str, str],
) -> list[Skipped]:
    """Encode some photos and put them into the index; which could not be read, and why. states: of the files before
    they are read, so that a change meanwhile is seen the next time. hashes: those that are known.
    """
    sources = [folder / name for name in names]
    with ThreadPoolExecutor(1) as beside:
        hashed = beside.map(lambda name: hashes.get(name) or _hash(folder / name), names)
        encoded = model.encode_images(sources, batch_size=_AT_ONCE, errors="skip", show_progress=False)
        digests = list(hashed)
    failed = [Skipped(names[one.index], one.reason) for one in encoded.skipped]
    kept, facts = [], []
    for place, of in enumerate(encoded.kept):
        known = _facts(folder, names[of], states[names[of]], digests[of])
        if isinstance(known, str):  # it was readable a moment ago
            failed.append(Skipped(names[of], known))
            continue
        kept.append(place)
        facts.append(known)
    if kept:
        index.upsert([names[encoded.kept[place]] for place in kept], encoded.sets[kept], facts, model=model)
    return failed


def _hash(path: Path) -> str | None:
    with suppress(OSError):
        return content_hash(path)
    return None


def _present(folder: Path) -> tuple[dict[str, FileState], dict[str, str], list[str], list[Skipped]]:
    """The photos of a folder, of which one that is gone before it is looked at is left out; what cannot be looked at,
    folders or photos, and why; the photos of formats for which a package is missing; and those that are misnamed,
    which pipes and devices are as well.
    """
    walked = walk(folder)
    found, closed = {}, {place.relative_to(folder).as_posix(): why for place, why in walked.closed.items()}
    for name in walked.pictures:
        try:
            state = os.stat(f"{folder}/{name}")
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as error:  # the folder's: it can be listed, but not entered
            closed[PurePosixPath(name).parent.as_posix()] = error.strerror or str(error)
        except OSError as error:
            closed[name] = error.strerror or str(error)
        else:
            if stat.S_ISREG(state.st_mode):
                found[name] = (state.st_size, state.st_mtime_ns)
            else:  # a pipe, say, at which whoever opens it waits forever
                walked.misnamed.append(Skipped(name, "not a file. Give it a name that is no picture's, or delete it."))
    return found, closed, walked.unread, walked.misnamed


def _is_below(name: str, places: Container[str]) -> bool:
    """Whether a photo, or a folder above it, is one of these."""
    path = PurePosixPath(name)
    return any(place.as_posix() in places for place in (path, *path.parents))


def _refresh(index: SetIndex, folder: Path, names: Sequence[str], states: Mapping[str, FileState]) -> None:
    """Note again the facts of photos whose files have not changed; their sets stay."""
    for start in range(0, len(names), _SCAN):
        found = index.engine.fetch(names[start : start + _SCAN], metadata=True)
        hashes = {name: json.loads(text).get(HASH) for name, text in zip(found.ids, found.metadata or [], strict=True)}
        read = {name: _facts(folder, name, states[name], hashes[name]) for name in found.ids}
        facts = {name: known for name, known in read.items() if not isinstance(known, str)}
        kept = [place for place, name in enumerate(found.ids) if name in facts]
        if kept:
            sets = as_sets(index.manifest, found.vectors[kept])
            index.upsert([found.ids[place] for place in kept], sets, [facts[found.ids[place]] for place in kept])


def _facts(folder: Path, name: str, state: FileState, digest: str | None) -> dict[str, JsonValue] | str:
    """The facts of a photo whose file was in a state before it was read, with its hash; or why it has none."""
    try:
        known = photo_facts(folder / name, folder)
    except Exception as error:  # what a damaged file makes Pillow raise has no common class
        return str(error)
    of_file = {BYTES: state[0], SIZE: state[0], MODIFIED: state[1], MTIME: state[1] / 1e9}
    return {**known, **of_file, **({} if digest is None else {HASH: digest})}


def _known(index: SetIndex) -> tuple[dict[str, FileState], list[str]]:
    """The photos in the index, as their files were; and those whose facts an earlier version noted. What is read is
    noted beside the index for as long as that is in the same state: of 100,000 photos it takes a second.
    """
    known: dict[str, FileState] = {}
    outdated = []
    note, state = index.folder.parent / _KNOWN, state_of(index.folder)
    described = [state, sorted(KEYS)]
    with suppress(OSError, ValueError, TypeError, KeyError):
        read = json.loads(note.read_text(encoding="utf-8"))
        if state is not None and read["of"] == described:
            return {name: (size, time) for name, size, time in read["photos"]}, read["outdated"]
    for found in index.engine.scan(_SCAN, vectors=False, metadata=True):
        for name, text in zip(found.ids, found.metadata or [], strict=True):
            facts = json.loads(text)
            known[name] = (facts.get(BYTES, -1), facts.get(MODIFIED, -1))
            if not facts.keys() >= KEYS:
                outdated.append(name)
    if state is not None and state_of(index.folder) == state:
        with suppress(OSError):
            photos = [(name, *seen) for name, seen in known.items()]
            write_whole(note, json.dumps({"of": described, "photos": photos, "outdated": outdated}))
    return known, outdated


def _write_notes(index: SetIndex, bad: Mapping[str, FileState], reasons: Mapping[str, str]) -> None:
    lines = [f"{json.dumps(name)}: {json.dumps([*state, reasons.get(name, '')])}" for name, state in bad.items()]
    with writing(index.folder):  # of two searches at once, the one that ends later is right
        write_whole(index.folder.parent / UNREADABLE, "{\n" + ",\n".join(lines) + "\n}\n")


def _read_notes(path: Path) -> tuple[dict[str, FileState], dict[str, str]]:
    """The photos that could not be read, and why, which earlier versions did not note; none where the note is missing
    or broken, for then they are tried again.
    """
    try:
        read = json.loads(path.read_text(encoding="utf-8")).items()
        states = {name: (size, time) for name, (size, time, *_) in read}
        return states, {name: str(why[0]) for name, (_, _, *why) in read if why}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}, {}
