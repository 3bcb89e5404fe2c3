"""The routes of single files and of what a person keeps: originals, downloads, albums, saved searches."""

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path as FilePath
from typing import Annotated, Any, NamedTuple
from urllib.parse import quote

from fastapi import APIRouter, Path, Query, Request, Response
from starlette.responses import StreamingResponse

from maxmatch.search.filters import Among, Condition
from maxmatch.search.photos import facts
from maxmatch.search.photos.albums import Album, AlbumPhoto, Albums, FileList, NoSuchAlbumError, PhotoFile, PhotoFinder
from maxmatch.search.photos.albums import named as named_in
from maxmatch.server.api_schema import (
    AlbumChangeIn,
    AlbumIn,
    AlbumNameIn,
    AlbumOut,
    DetailsOut,
    Done,
    DownloadOut,
    ItemFacts,
    ItemKey,
    KeysIn,
    Refusal,
    SavedOut,
    SavedSearchIn,
    SavedSearchOut,
    documented,
    not_found,
)
from maxmatch.server.gallery import Gallery
from maxmatch.server.originals import (
    SHOWN_TYPES,
    Downloads,
    Original,
    details_of,
    file_manager,
    is_local,
    original_of,
    reveal,
    shown_type,
    zipped,
)

KeyPath = Annotated[ItemKey, Path()]
_TYPES: dict[str, Any] = {kind: {} for kind in ("application/octet-stream", *SHOWN_TYPES)}
_FILE: dict[int | str, dict[str, Any]] = {
    200: {"content": _TYPES, "description": "The file."},
    206: {"content": _TYPES, "description": "A part of the file."},
}
_ZIP: dict[int | str, dict[str, Any]] = {200: {"content": {"application/zip": {}}, "description": "The zip file."}}


class _Known(NamedTuple):
    """The files of a gallery in one state, and photos that were found among them."""

    items: list[ItemFacts]
    files: FileList
    found: dict[tuple[str, ...], list[ItemFacts | None]]


class Shelf:
    """The user's albums over a gallery: which of their photos are in it."""

    def __init__(self, gallery: Gallery, albums: Albums) -> None:
        self._gallery = gallery
        self.albums = albums
        self._finder = PhotoFinder()
        self._known: _Known | None = None

    def note(self, items: Sequence[ItemFacts]) -> list[AlbumPhoto]:
        """Items as photos of an album; those that cannot be read are left out, unless all are."""
        noted = []
        for item in items:
            try:
                noted.append(self._finder.note(self._gallery.picture(item.id)))
            except OSError:
                continue
        if items and not noted:
            raise not_found("The files of these pictures are missing or cannot be read.")
        return noted

    def find(self, wanted: Sequence[AlbumPhoto]) -> list[ItemFacts | None]:
        """The items that are these photos."""
        items = self._gallery.state.newest
        known = self._known
        if known is None or known.items is not items:
            files = [PhotoFile(item.path or item.id, item.bytes or 0, int(item.version, 16)) for item in items]
            known = self._known = _Known(items, FileList(files), {})
        key = tuple(photo.sha256 for photo in wanted)
        found = known.found.get(key)
        if found is None:
            found = [None if at is None else items[at] for at in self._finder.find(wanted, known.files)]
            if None not in found:  # a search for renamed files may continue the next time
                known.found[key] = found
        return found

    def hashes(self, key: str, keys: Sequence[str]) -> list[str]:
        """The hashes of some items among the photos of an album, as they were when they were put there."""
        album, asked = named_in(self.albums.read().albums, key), set(keys)
        found = zip(album.photos, self.find(album.photos), strict=True)
        return [photo.sha256 for photo, item in found if item is not None and item.key in asked]

    def condition(self, key: str) -> Condition:
        """The filter that the photos of an album pass. Indexes without paths have no albums."""
        with _refusals():
            album = named_in(self.albums.read().albums, key)
        paths = [item.path for item in self.find(album.photos) if item is not None and item.path is not None]
        return Among(facts.PATH, tuple(paths) or ("",))

    def show(self, album: Album) -> AlbumOut:
        """An album with its cover."""
        found = [item for item in self.find(album.photos) if item is not None]
        missing = len(album.photos) - len(found)
        return AlbumOut(
            key=album.key, name=album.name, count=len(found), missing=missing, cover=found[0] if found else None
        )

    def show_all(self) -> SavedOut:
        """All albums and saved searches."""
        saved = self.albums.read()
        searches = []
        for one in saved.searches:
            query = {name: value for name, value in one.query.items() if isinstance(value, str | bool)}
            [like] = self.find([one.like]) if one.like is not None else [None]
            if like is not None:
                query["like"] = like.key
            missing = one.like is not None and like is None
            searches.append(SavedSearchOut(key=one.key, name=one.name, query=query, missing=missing))
        return SavedOut(albums=[self.show(album) for album in saved.albums], searches=searches)


def _path_of(gallery: Gallery, item: ItemFacts) -> FilePath:
    """The file of an item, or one that cannot be there, which a zip file names as missing."""
    try:
        return gallery.picture(item.id)
    except FileNotFoundError:  # outside the folder that is served
        return FilePath(os.devnull, "missing")


@contextmanager
def _refusals() -> Iterator[None]:
    """What the albums cannot do, as an answer."""
    try:
        yield
    except NoSuchAlbumError as error:
        raise not_found(str(error)) from None
    except ValueError as error:  # an AlbumsError; or another process is writing
        raise Refusal(409, "conflict", str(error)) from None
    except OSError as error:
        raise Refusal(507, "not_written", str(error.strerror or error)) from None


def original_routes(gallery: Gallery, item_of: Callable[[str], ItemFacts]) -> APIRouter:
    """The routes of files."""
    router = APIRouter(tags=["items"])
    downloads = Downloads()

    def file_of(item: ItemFacts) -> FilePath:
        try:
            return original_of(gallery.picture(item.id))
        except FileNotFoundError:  # outside the folder that is served
            raise not_found("The file of this picture is missing or cannot be read.") from None

    @router.get("/items/{key}/details", responses=documented(404, 422))
    async def details(key: KeyPath, request: Request) -> DetailsOut:
        """Where and how a picture was taken, from its file."""
        path = await asyncio.to_thread(file_of, item_of(key))
        can_reveal = is_local(request) and bool(file_manager(path))
        return await asyncio.to_thread(details_of, path, can_reveal)

    @router.get("/items/{key}/original", response_class=Response, responses={**_FILE, **documented(400, 404, 416, 422)})
    async def original(
        key: KeyPath,
        download: Annotated[bool, Query(description="To be saved rather than shown.")] = False,
    ) -> Response:
        """The file of a picture as it is, with all that is noted in it."""
        found = item_of(key)
        path = await asyncio.to_thread(file_of, found)
        kind = shown_type(path)
        disposition = "attachment" if download or kind is None else "inline"
        return Original(
            path,
            media_type=kind or "application/octet-stream",
            filename=found.name.encode("utf-8", "replace").decode(),
            content_disposition_type=disposition,
            headers={"Cache-Control": "private, no-cache"},
        )

    @router.post("/items/{key}/reveal", responses=documented(403, 404, 409, 422))
    async def show_in_folder(key: KeyPath, request: Request) -> Done:
        """Show the picture in the file manager; only for a person at the machine that serves."""
        if not is_local(request):
            raise Refusal(403, "forbidden", "Only a browser on the machine that serves can show a file's folder.")
        path = await asyncio.to_thread(file_of, item_of(key))
        await asyncio.to_thread(reveal, path)
        return Done()

    @router.post("/downloads", responses=documented(400, 404, 413, 422))
    async def prepare(asked: KeysIn) -> DownloadOut:
        """Prepare a zip file of some pictures, to be fetched under its key within ten minutes."""
        items = [item_of(key) for key in dict.fromkeys(asked.keys)]
        paths = [(item.name, _path_of(gallery, item)) for item in items]
        key, made = await asyncio.to_thread(downloads.prepare, paths)
        return DownloadOut(key=key, count=len(items), bytes=made.size)

    @router.get("/downloads/{key}", response_class=Response, responses={**_ZIP, **documented(404, 422)})
    async def fetch(key: KeyPath) -> Response:
        """The zip file, made while it is sent."""
        headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{quote('photos.zip')}"}
        return StreamingResponse(zipped(downloads.get(key).files), media_type="application/zip", headers=headers)

    return router


def album_routes(shelf: Shelf, item_of: Callable[[str], ItemFacts]) -> APIRouter:
    """The routes of albums and saved searches."""
    router = APIRouter(tags=["albums"])

    def items(keys: Sequence[str]) -> list[ItemFacts]:
        return [item_of(key) for key in dict.fromkeys(keys)]

    # Plain functions: FastAPI runs them in threads, where files may be read.
    @router.get("/albums", responses=documented(409))
    def albums() -> SavedOut:
        """All albums and saved searches."""
        with _refusals():
            return shelf.show_all()

    @router.post("/albums", responses=documented(400, 404, 409, 413, 422, 507))
    def create(asked: AlbumIn) -> AlbumOut:
        """A new album."""
        with _refusals():
            return shelf.show(shelf.albums.create(asked.name.strip(), shelf.note(items(asked.keys))))

    @router.post("/albums/{key}/photos", responses=documented(400, 404, 409, 413, 422, 507))
    def change(key: KeyPath, asked: AlbumChangeIn) -> AlbumOut:
        """Put pictures into an album, or take them out."""
        with _refusals():
            removed = shelf.hashes(key, [item.key for item in items(asked.remove)])
            return shelf.show(shelf.albums.change(key, shelf.note(items(asked.add)), removed))

    @router.patch("/albums/{key}", responses=documented(400, 404, 409, 413, 422, 507))
    def rename(key: KeyPath, asked: AlbumNameIn) -> AlbumOut:
        """Give an album another name."""
        with _refusals():
            return shelf.show(shelf.albums.rename(key, asked.name.strip()))

    @router.delete("/albums/{key}", responses=documented(404, 409, 422, 507))
    def delete(key: KeyPath) -> Done:
        """Delete an album. Its pictures stay where they are."""
        with _refusals():
            shelf.albums.delete(key)
        return Done()

    @router.post("/searches", responses=documented(400, 404, 409, 413, 422, 507))
    def save(asked: SavedSearchIn) -> SavedSearchOut:
        """Save a search. One of the same name is replaced."""
        like = shelf.note([item_of(asked.like)])[0] if asked.like else None
        given = asked.model_dump(mode="json", by_alias=True, exclude={"name", "like"}, exclude_defaults=True)
        with _refusals():
            made = shelf.albums.save_search(asked.name.strip(), given, like)
        query = {**given, **({"like": asked.like} if asked.like else {})}
        return SavedSearchOut(key=made.key, name=made.name, query=query, missing=False)

    @router.delete("/searches/{key}", responses=documented(404, 409, 422, 507))
    def forget(key: KeyPath) -> Done:
        """Forget a saved search."""
        with _refusals():
            shelf.albums.delete_search(key)
        return Done()

    return router
