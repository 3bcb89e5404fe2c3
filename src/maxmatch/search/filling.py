"""Filling an index, over several processes where one is killed: every item once.

Beside the index lies a note, `.NAME.filling`, which says what is being added and how many parcels are acknowledged. The
first parcel after those may be in the index already, its acknowledgement lost: it is put there again, in place.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np

from maxmatch.files import write_whole
from maxmatch.search.index import SetIndex
from maxmatch.search.manifest import FILE as INDEX_FILE
from maxmatch.search.parcels import Cargo, Parcel

Existing = Literal["refuse", "skip", "replace"]
Advance = Callable[[int], object]


def build(
    folder: Path,
    cargo: Cargo,
    create: Callable[[], SetIndex],
    advance: Advance = lambda count: None,
) -> SetIndex:
    """Make an index of a cargo; or go on with one that a killed process has begun. create: makes the empty index."""
    refuse_index(folder)
    done = _begun(folder, cargo)
    if done is None:
        _note(folder, cargo, 0, builds=True)
    try:
        index = SetIndex.open(folder) if (folder / INDEX_FILE).exists() else create()
    except BaseException:
        if not done:
            _note_file(folder).unlink(missing_ok=True)
        raise
    return _fill(index, folder, cargo, done or 0, "refuse", advance, builds=True)


def refuse_index(folder: Path) -> None:
    """Where there is an index already, unless a killed process was building it."""
    building = is_begun(folder) and json.loads(_note_file(folder).read_text(encoding="utf-8")).get("builds", True)
    if (folder / INDEX_FILE).exists() and not building:
        raise FileExistsError(
            f"{folder}: is an index already. Add to it with `maxmatch index add`, or remove it to build anew."
        )


def add(
    index: SetIndex, cargo: Cargo, existing: Existing = "refuse", advance: Advance = lambda count: None
) -> SetIndex:
    """Add a cargo to an index; or go on where a killed process was. existing: what to do with ids that are there:
    refuse them all before anything is added, keep what the index has, or replace it.
    """
    folder = index.folder
    done = _begun(folder, cargo)
    if done is None:
        if existing == "refuse":
            _refuse_existing(index, cargo)
        _note(folder, cargo, 0, builds=False)
    return _fill(index, folder, cargo, done or 0, existing, advance, builds=False)


def _fill(
    index: SetIndex, folder: Path, cargo: Cargo, done: int, existing: Existing, advance: Advance, builds: bool
) -> SetIndex:
    for number, parcel in enumerate(cargo.parcels(done), start=done):
        if existing == "skip":
            _put(index.add, _without(index, parcel))
        elif existing == "replace" or number == done:
            _put(index.upsert, parcel)
        else:
            _put(index.add, parcel)
        _note(folder, cargo, number + 1, builds)
        advance(len(parcel.ids))
    index.compact()
    _note_file(folder).unlink(missing_ok=True)
    return index


def _put(call: Callable[..., None], parcel: Parcel) -> None:
    if len(parcel.ids):
        call(list(parcel.ids), parcel.sets, parcel.metadata, optimise=False)


def _without(index: SetIndex, parcel: Parcel) -> Parcel:
    """The items of a parcel that the index does not have."""
    present = index.engine.present(list(parcel.ids))
    new = [place for place, name in enumerate(parcel.ids) if name not in present]
    metadata = None if parcel.metadata is None else [parcel.metadata[place] for place in new]
    return Parcel([parcel.ids[place] for place in new], parcel.sets[np.array(new, np.int64)], metadata)


def _refuse_existing(index: SetIndex, cargo: Cargo) -> None:
    for parcel in cargo.parcels():
        present = index.engine.present(list(parcel.ids))
        if present:
            first = next(name for name in parcel.ids if name in present)
            raise ValueError(
                f"{index.folder}: {first!r} is in the index already. Nothing was added: say --existing skip to keep "
                "what is there, or --existing replace."
            )


def _begun(folder: Path, cargo: Cargo) -> int | None:
    """How many parcels of this cargo an earlier process has acknowledged; None where none was begun."""
    file = _note_file(folder)
    if not file.exists():
        return None
    note = json.loads(file.read_text(encoding="utf-8"))
    if note["mark"] != cargo.mark:
        raise unfinished(folder)
    return int(note["done"])


def unfinished(folder: Path) -> FileExistsError:
    """What is said to one who would add something else meanwhile."""
    return FileExistsError(
        f"{folder}: something else is being added to it, and was not finished. Run that command again; or, to "
        f"leave it as it is, remove {_note_file(folder)}."
    )


def _note(folder: Path, cargo: Cargo, done: int, builds: bool) -> None:
    write_whole(_note_file(folder), json.dumps({"mark": cargo.mark, "done": done, "builds": builds}))


def _note_file(folder: Path) -> Path:
    folder = folder.expanduser().resolve()
    return folder.with_name(f".{folder.name}.filling")


def is_begun(folder: Path) -> bool:
    """Whether something is being added to an index, or was when its process was killed."""
    return _note_file(folder).exists()
