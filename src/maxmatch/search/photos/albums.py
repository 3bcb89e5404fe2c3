"""Albums and saved searches: a JSON file in the user's data folder, in which photos are named by what is in them.

A photo is its SHA-256. So albums outlive the cache, a new model, and files that are renamed or moved. Beside the hash,
the file's size, time and path are noted: a file that is still there as it was is not read again, and of renamed ones
only files of the right size are.
"""

import json
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Annotated, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from maxmatch.core.files import content_hash, locked, user_data, write_whole

FILE = "albums.json"
_FORMAT = 1
_PATIENCE = 10.0  # seconds that a process waits for another one's change
_MOST_HASHED = 256  # files of one size that are read to find one photo; the next attempt continues
MOST = 1_000
"""Albums, and saved searches."""
MOST_PHOTOS = 20_000
"""Of one album."""
Named = TypeVar("Named", "Album", "SavedSearch")


class PhotoFile(NamedTuple):
    """A file as it was last seen. modified: in nanoseconds."""

    path: str
    size: int
    modified: int


class _Noted(BaseModel):
    """What a later version notes in addition is kept."""

    model_config = ConfigDict(extra="allow")


class AlbumPhoto(_Noted):
    """A photo of an album: its content, and the file in which it was last seen."""

    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    size: int
    modified: int
    path: str

    @property
    def file(self) -> PhotoFile:
        """The file in which it was last seen."""
        return PhotoFile(self.path, self.size, self.modified)


class Album(_Noted):
    """Photos under a name."""

    key: str
    name: str
    photos: list[AlbumPhoto] = []


class SavedSearch(_Noted):
    """A query and its filters under a name. like: the photo that is searched with, if it is one."""

    key: str
    name: str
    query: dict[str, JsonValue]
    like: AlbumPhoto | None = None


class Saved(_Noted):
    """All of the file."""

    format: int = _FORMAT
    albums: list[Album] = []
    searches: list[SavedSearch] = []


class AlbumsError(ValueError):
    """Albums that cannot be read or changed as asked."""


class NoSuchAlbumError(AlbumsError):
    """There is no album or saved search with this key."""


class Albums:
    """The user's albums and saved searches. Every change reads the file again and replaces it as a whole, under a lock:
    several processes may change it.

    Example:
        >>> import tempfile
        >>> albums = Albums(Path(tempfile.mkdtemp()))
        >>> rome = albums.create("Rome", [])
        >>> [album.name for album in albums.read().albums]
        ['Rome']
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = user_data() / "maxmatch" if folder is None else folder
        self.path = self.folder / FILE

    def read(self) -> Saved:
        """Everything that is saved."""
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return Saved()
        try:
            saved = Saved.model_validate(json.loads(text))
        except (ValueError, ValidationError) as error:
            what = str(error).splitlines()[0]
            cure = "Mend the file, or rename it to begin anew."
            raise AlbumsError(f"{self.path}: not the albums that were expected ({what}). {cure}") from error
        if saved.format > _FORMAT:
            raise AlbumsError(f"{self.path}: written by a newer version of maxmatch. Upgrade this one.")
        return saved

    def create(self, name: str, photos: Sequence[AlbumPhoto]) -> Album:
        """A new album."""
        with self._changing() as saved:
            made = Album(key=secrets.token_hex(16), name=_free(name, saved.albums), photos=_once(photos))
            saved.albums.append(made)
        return made

    def change(self, key: str, add: Sequence[AlbumPhoto] = (), remove: Sequence[str] = ()) -> Album:
        """Put photos into an album, and take others out by their hashes."""
        with self._changing() as saved:
            album = named(saved.albums, key)
            gone = set(remove)
            album.photos = _once([photo for photo in album.photos if photo.sha256 not in gone] + list(add))
        return album

    def rename(self, key: str, name: str) -> Album:
        """Give an album another name."""
        with self._changing() as saved:
            album = named(saved.albums, key)
            if album.name != name:
                album.name = _free(name, [other for other in saved.albums if other is not album])
        return album

    def delete(self, key: str) -> None:
        """Delete an album; its photos stay where they are."""
        with self._changing() as saved:
            saved.albums.remove(named(saved.albums, key))

    def save_search(self, name: str, query: dict[str, JsonValue], like: AlbumPhoto | None = None) -> SavedSearch:
        """Save a search; one of the same name is replaced."""
        with self._changing() as saved:
            made = SavedSearch(key=secrets.token_hex(16), name=name, query=query, like=like)
            same = [place for place, old in enumerate(saved.searches) if old.name == name]
            if same:
                made.key = saved.searches[same[0]].key
                saved.searches[same[0]] = made
            else:
                if len(saved.searches) >= MOST:
                    raise AlbumsError(f"There are {MOST:,} saved searches already. Delete one.")
                saved.searches.append(made)
        return made

    def delete_search(self, key: str) -> None:
        """Forget a saved search."""
        with self._changing() as saved:
            saved.searches.remove(named(saved.searches, key))

    @contextmanager
    def _changing(self) -> Iterator[Saved]:
        """What is saved, to be changed: written when all went well."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder, _PATIENCE):
            saved = self.read()
            yield saved
            write_whole(self.path, json.dumps(saved.model_dump(mode="json"), ensure_ascii=False, indent=1) + "\n")


def named(known: Sequence[Named], key: str) -> Named:
    """The album or saved search with a key."""
    for one in known:
        if one.key == key:
            return one
    raise NoSuchAlbumError("This album or saved search is no longer there.")


def _free(name: str, albums: Sequence[Album]) -> str:
    if any(album.name == name for album in albums):
        raise AlbumsError(f"There is an album called {name!r} already. Choose another name.")
    if len(albums) >= MOST:
        raise AlbumsError(f"There are {MOST:,} albums already. Delete one.")
    return name


def _once(photos: Sequence[AlbumPhoto]) -> list[AlbumPhoto]:
    """Each photo once; the file in which it was last seen is the later one."""
    found = {photo.sha256: photo for photo in photos}
    if len(found) > MOST_PHOTOS:
        raise AlbumsError(f"An album holds at most {MOST_PHOTOS:,} photos.")
    return list(found.values())


class FileList(list[PhotoFile]):
    """Files, in which one is found at once."""

    @cached_property
    def places(self) -> dict[PhotoFile, int]:
        """Where each file is."""
        return {file: place for place, file in enumerate(self)}


class PhotoFinder:
    """Finds the photos of albums among files by their content. Hashes are kept while the files stay as they are.

    hash_of: tests count its calls.
    """

    def __init__(self, hash_of: Callable[[Path], str] = content_hash) -> None:
        self._hash_of = hash_of
        self._known: dict[PhotoFile, str] = {}

    def note(self, path: Path) -> AlbumPhoto:
        """A file, as it is now, as a photo of an album. OSError if it cannot be read."""
        state = path.stat()
        file = PhotoFile(str(path), state.st_size, state.st_mtime_ns)
        return AlbumPhoto(sha256=self._hash(file), size=file.size, modified=file.modified, path=file.path)

    def find(self, photos: Sequence[AlbumPhoto], files: "FileList") -> list[int | None]:
        """The place in `files` of each photo; None where none of them has its content."""
        places = files.places
        wanted = {photo.size for photo in photos if photo.file not in places}
        by_size: defaultdict[int, list[int]] = defaultdict(list)
        for place, file in enumerate(files) if wanted else ():
            if file.size in wanted:
                by_size[file.size].append(place)
        return [
            places[photo.file] if photo.file in places else self._renamed(photo, files, by_size[photo.size])
            for photo in photos
        ]

    def _renamed(self, photo: AlbumPhoto, files: Sequence[PhotoFile], places: Sequence[int]) -> int | None:
        name = Path(photo.path).name
        new = 0
        for place in sorted(places, key=lambda place: Path(files[place].path).name != name):
            if files[place] not in self._known:
                new += 1
                if new > _MOST_HASHED:
                    return None
            try:
                if self._hash(files[place]) == photo.sha256:
                    return place
            except OSError:  # gone, or may not be read: not this one
                continue
        return None

    def _hash(self, file: PhotoFile) -> str:
        known = self._known.get(file)
        if known is None:
            known = self._known[file] = self._hash_of(Path(file.path))
        return known
