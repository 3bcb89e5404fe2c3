"""Items: their facts, small pictures of them, and why they were found."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from fastapi.responses import Response

from maxmatch import __version__
from maxmatch.images import ImageError
from maxmatch.server.errors import Refusal, documented, not_found
from maxmatch.server.explaining import explain, facts_of, reads_pictures
from maxmatch.server.schema import Asked, Explained, FolderOut, GalleryOut, Health, ItemFacts, Key
from maxmatch.server.service import Service
from maxmatch.server.thumbnails import Size, webp

_WEBP: dict[int | str, dict[str, Any]] = {200: {"content": {"image/webp": {}}, "description": "The picture."}}
_A_DAY = "private, max-age=86400"
KeyPath = Annotated[Key, Path()]


def picture_routes(service: Service) -> APIRouter:
    """The routes of items."""
    router = APIRouter(tags=["items"])

    @router.get("/items/{key}", responses=documented(404, 422))
    async def item(key: KeyPath) -> ItemFacts:
        """The facts of a picture."""
        return ItemFacts(**facts_of(service.item(key)))

    @router.get("/items/{key}/thumbnail", response_class=Response, responses={**_WEBP, **documented(404, 422)})
    async def thumbnail(
        key: KeyPath,
        size: Annotated[Size, Query(description="The longest side.")] = 320,
        v: Annotated[str | None, Query(max_length=32, description="The item's version, for caches.")] = None,
    ) -> Response:
        """A small picture of it, upright, as WebP, without the notes of the original."""
        found = service.item(key)
        try:
            path = service.gallery.picture(found.id)
            made = await asyncio.to_thread(service.thumbnails.make, path, size)
        except (FileNotFoundError, ImageError):
            raise _unreadable() from None
        return Response(made, media_type="image/webp", headers={"Cache-Control": _A_DAY})

    @router.get("/items/{key}/explain", responses=documented(404, 422))
    async def why(key: KeyPath, query: Annotated[Asked, Query()]) -> Explained:
        """Why it was found: where its slots and those of the query looked, and who matched whom."""
        found, parts = service.item(key), service.parts(query)
        try:
            return await asyncio.to_thread(
                explain,
                service.model,
                service.gallery,
                service.uploads,
                service.gallery.index.manifest.similarity,
                found,
                parts,
            )
        except (FileNotFoundError, ImageError):
            raise _unreadable() from None

    @router.get("/uploads/{key}/thumbnail", response_class=Response, responses={**_WEBP, **documented(404, 422)})
    async def upload_thumbnail(
        key: KeyPath, size: Annotated[Size, Query(description="The longest side.")] = 320
    ) -> Response:
        """A small picture of one that was sent."""
        made = await asyncio.to_thread(webp, service.uploads.get(key).picture, size)
        return Response(made, media_type="image/webp", headers={"Cache-Control": _A_DAY})

    @router.get("/gallery")
    async def gallery() -> GalleryOut:
        """What there is to search, for filters."""
        dates = [item.taken for item in service.gallery.state.items.values() if item.taken]
        return GalleryOut(
            name=service.gallery.name,
            total=len(service.gallery.state.items),
            folders=[FolderOut(folder=name, count=count) for name, count in service.gallery.folders().items()],
            earliest=min(dates, default=None),
            latest=max(dates, default=None),
            set_size=service.gallery.index.manifest.set_size,
            reads_pictures=reads_pictures(service.model),
        )

    @router.get("/health", tags=["server"])
    async def health() -> Health:
        """That the server is there."""
        return Health(status="ok", items=len(service.gallery.state.items), version=__version__)

    return router


def _unreadable() -> Refusal:
    return not_found("The file of this picture is gone or cannot be read.")
