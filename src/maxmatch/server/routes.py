"""The routes: search, items and their pictures, explanations, the page and its metrics."""

import asyncio
import hashlib
import json
import time
from dataclasses import dataclass, field
from importlib import resources
from typing import Annotated, Any

from fastapi import APIRouter, File, Path, Query, Request, Response, UploadFile

from maxmatch import __version__
from maxmatch.model.encoder import SetEncoder
from maxmatch.model.images import ImageError
from maxmatch.search.photos import facts_condition
from maxmatch.search.query import parse_query
from maxmatch.server.api_schema import (
    Asked,
    Explained,
    FolderOut,
    GalleryOut,
    Health,
    ItemFacts,
    ItemKey,
    Paging,
    QueryPart,
    Refusal,
    SearchBody,
    SearchQuery,
    SearchResult,
    documented,
    not_found,
)
from maxmatch.server.explain import explain, facts_of, reads_pictures
from maxmatch.server.gallery import Gallery, Item
from maxmatch.server.pictures import Size, Thumbnails, Upload, Uploads, read_upload, webp
from maxmatch.server.querying import QueryTerm, Searcher
from maxmatch.server.security import Limits, Metrics

# What the routes share.


@dataclass(frozen=True)
class Service:
    """The parts of a running server."""

    gallery: Gallery
    model: SetEncoder
    searcher: Searcher
    uploads: Uploads
    thumbnails: Thumbnails
    metrics: Metrics
    limits: Limits
    one_picture: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    """Pictures that come are decoded one at a time, so that many at once do not fill the memory."""

    def item(self, key: str) -> Item:
        """The item of a key; refused if there is none."""
        found = self.gallery.find(key)
        if found is None:
            raise not_found("There is no such picture in the index.")
        return found

    def parts(self, asked: Asked) -> list[QueryTerm]:
        """A query of GET as parts."""
        if asked.q and asked.q.strip():
            try:
                return [QueryTerm("text", text, weight, asked.slot) for text, weight in parse_query(asked.q)]
            except ValueError as error:
                raise Refusal(422, "invalid", str(error)) from None
        if asked.like:
            return [QueryTerm("item", self.item(asked.like).id, 1.0, asked.slot)]
        if asked.upload:
            self.uploads.get(asked.upload)
            return [QueryTerm("upload", asked.upload, 1.0, asked.slot)]
        return []

    def given_parts(self, given: list[QueryPart]) -> list[QueryTerm]:
        """A query of POST as parts."""
        parts = []
        for part in given:
            if part.text is not None:
                parts.append(QueryTerm("text", part.text, part.weight, part.slot))
            elif part.like is not None:
                parts.append(QueryTerm("item", self.item(part.like).id, part.weight, part.slot))
            else:
                assert part.upload is not None
                self.uploads.get(part.upload)
                parts.append(QueryTerm("upload", part.upload, part.weight, part.slot))
        parts = [part for part in parts if part.weight]
        if not any(part.weight > 0 for part in parts):
            raise Refusal(422, "invalid", "parts: expected at least one with a weight above zero.")
        return parts


# The page's own files, read once: a request chooses among them by name and never reaches the file system.

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
START = "index.html"


@dataclass(frozen=True)
class PageFile:
    """A file of the page."""

    content: bytes
    type: str
    tag: str
    """Another one when the content is another."""


def page_files() -> dict[str, PageFile]:
    """Every file of the page by its name."""
    folder = resources.files("maxmatch.server") / "static"
    files = {}
    for entry in folder.iterdir():
        kind = _TYPES.get(entry.name.rsplit(".", 1)[-1])
        if kind is not None and entry.is_file():
            content = entry.read_bytes()
            files[entry.name] = PageFile(content, kind, f'"{hashlib.sha256(content).hexdigest()[:16]}"')
    return files


# The page and its files, and what Prometheus asks for.


def page_routes(service: Service) -> APIRouter:
    """The routes that are not the API's."""
    router = APIRouter(include_in_schema=False)
    files = page_files()

    def give(name: str, request: Request) -> Response:
        file = files.get(name)
        if file is None:
            raise not_found("There is nothing here.")
        headers = {"ETag": file.tag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == file.tag:
            return Response(status_code=304, headers=headers)
        return Response(file.content, media_type=file.type, headers=headers)

    @router.get("/")
    async def start(request: Request) -> Response:
        return give(START, request)

    @router.get("/static/{name}")
    async def static(name: str, request: Request) -> Response:
        return give(name, request)

    @router.get("/favicon.ico")
    async def icon(request: Request) -> Response:
        return give("icon.svg", request)

    @router.get("/metrics")
    @router.get("/api/v1/metrics")
    async def metrics() -> Response:
        service.metrics.items.set(len(service.gallery.state.items))
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return router


# Search: by text, by parts, by item, by a picture that is sent.

IMAGE_SEARCH = "/search/image"


def search_routes(service: Service) -> APIRouter:
    """The routes of search."""
    router = APIRouter(tags=["search"])

    @router.get("/search", response_model=SearchResult, responses=documented(404, 422, 503))
    async def search(query: Annotated[SearchQuery, Query()]) -> Response:
        """By text, by item or by a picture that was sent; without any of them everything, the latest first."""
        return await answer(service, service.parts(query), query)

    @router.post("/search", response_model=SearchResult, responses=documented(400, 404, 413, 422, 503))
    async def search_by_parts(query: SearchBody) -> Response:
        """By several parts, each with a weight: texts, items and pictures that were sent."""
        return await answer(service, service.given_parts(query.parts), query)

    @router.post(IMAGE_SEARCH, response_model=SearchResult, responses=documented(400, 413, 415, 422, 503))
    async def search_by_image(
        file: Annotated[UploadFile, File(description="The picture.")],
        query: Annotated[Paging, Query()],
    ) -> Response:
        """By a picture. It is kept in memory for a while; `upload` of the answer is its key, for further pages."""
        key = await receive(service, file)
        return await answer(service, [QueryTerm("upload", key)], query, upload=key)

    return router


async def receive(service: Service, file: UploadFile) -> str:
    """Read a picture that was sent, make its set, keep both; the key under which."""
    if not reads_pictures(service.model):
        raise Refusal(422, "no_pictures", "This model reads features, not pictures.")
    async with service.one_picture:
        data = await file.read()
        picture = await asyncio.to_thread(read_upload, data, service.limits.upload_pixels)
        del data
        [vectors] = await asyncio.to_thread(service.model.encode_images, [picture], show_progress=False)
    return service.uploads.keep(Upload(picture, vectors))


async def answer(service: Service, parts: list[QueryTerm], paging: Paging, upload: str | None = None) -> Response:
    """A page of results as it goes out: a `SearchResult`, written as JSON without a model for each of its values, which
    would take half of the server's time.
    """
    started = time.perf_counter()
    if paging.start and paging.end and paging.start > paging.end:
        raise Refusal(422, "invalid", "from: expected a day that is not after the day of `to`.")
    where = facts_condition(paging.folder, paging.start, paging.end, paging.orientation)
    page = await service.searcher.page(parts, paging, where)
    hits = [
        {
            "item": facts_of(result.item),
            "score": result.score,
            "matches": [match._asdict() for match in result.matches],
            "duplicates": [facts_of(item) for item in result.duplicates],
        }
        for result in page.results
    ]
    total = len(service.gallery.passing(where))
    took = (time.perf_counter() - started) * 1000
    page_out = {"hits": hits, "total": total, "more": page.more, "upload": upload, "took_ms": took}
    return Response(json.dumps(page_out, ensure_ascii=False, allow_nan=False), media_type="application/json")


# Items: their facts, small pictures of them, and why they were found.

_WEBP: dict[int | str, dict[str, Any]] = {200: {"content": {"image/webp": {}}, "description": "The picture."}}
_A_DAY = "private, max-age=86400"
KeyPath = Annotated[ItemKey, Path()]


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
