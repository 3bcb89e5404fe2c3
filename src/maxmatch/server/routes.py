"""The routes: search, items with their thumbnails and explanations, the page, and metrics."""

import asyncio
import inspect
import os
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Annotated, Any, get_args

from fastapi import APIRouter, File, Path, Query, Request, Response, UploadFile
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from pydantic_core import to_json
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from maxmatch import __version__
from maxmatch.core.machine import return_memory
from maxmatch.model.encoder import SetEncoder
from maxmatch.model.images import ImageError
from maxmatch.model.names import language_of
from maxmatch.model.picture_files import not_read as unread_formats
from maxmatch.model.text import Words
from maxmatch.search.filters import Every
from maxmatch.search.photos.file_names import query_words
from maxmatch.search.query import TextPart, parse_query, unknown_parts
from maxmatch.server.album_routes import Shelf
from maxmatch.server.api_schema import (
    Asked,
    Explained,
    FolderOut,
    GalleryOut,
    Health,
    ItemFacts,
    ItemKey,
    MonthOut,
    Narrowed,
    NotReadOut,
    Paging,
    QueryPart,
    Refusal,
    SearchBody,
    SearchQuery,
    SearchResult,
    TimelineOut,
    documented,
    not_found,
)
from maxmatch.server.gallery import Gallery, Watch
from maxmatch.server.pictures import (
    PICTURE_TYPES,
    Size,
    Thumbnails,
    Upload,
    Uploads,
    explain,
    read_upload,
    reads_pictures,
    vocabulary,
    webp,
)
from maxmatch.server.searcher import QueryTerm, Searcher
from maxmatch.server.security import Limits, Metrics

IMAGE_SEARCH = "/search/image"
KeyPath = Annotated[ItemKey, Path()]
_WEBP: dict[int | str, dict[str, Any]] = {200: {"content": {"image/webp": {}}, "description": "The thumbnail."}}
_PICTURE_FORM: dict[str, Any] = {
    "requestBody": {"content": {"multipart/form-data": {"encoding": {"file": {"contentType": PICTURE_TYPES}}}}}
}
# Some systems call a script plain text, which browsers do not run, and do not know the other one.
_PAGE_TYPES = {".js": "text/javascript; charset=utf-8", ".webmanifest": "application/manifest+json"}
_VOCABULARY = 2_000  # words that are offered while someone types
_REASONS = 500  # why files cannot be read, at most
_CACHED_FOR_A_DAY = {"Cache-Control": "private, max-age=86400"}


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
    shelf: Shelf
    watch: Watch | None = None
    one_upload: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    """Uploads are decoded one at a time: many at once would fill the memory."""

    def item(self, key: str) -> ItemFacts:
        """The item with this key; refused if there is none."""
        found = self.gallery.find(key)
        if found is None:
            raise not_found("This picture is not in the index.")
        return found

    def terms(self, asked: Asked) -> list[QueryTerm]:
        """The parts of a GET request's query."""
        if asked.like and asked.upload:
            raise Refusal(409, "conflict", "Give one of like and upload.")
        terms = []
        if asked.like or asked.upload:
            terms = [self.term(QueryPart(like=asked.like or None, upload=asked.upload or None, slot=asked.slot))]
        if asked.q and asked.q.strip():
            try:
                parts = parse_query(asked.q, beside_picture=bool(terms))
            except ValueError as error:
                raise Refusal(422, "invalid", str(error)) from None
            terms += [QueryTerm("text", text, weight, None if terms else asked.slot) for text, weight in parts]
        return terms

    def term(self, part: QueryPart) -> QueryTerm:
        """A part of a query as it is searched for; refused if its item or upload is not there."""
        if part.text is not None:
            return QueryTerm("text", part.text, part.weight, part.slot)
        if part.like is not None:
            return QueryTerm("item", self.item(part.like).id, part.weight, part.slot)
        assert part.upload is not None
        self.uploads.get(part.upload)
        return QueryTerm("upload", part.upload, part.weight, part.slot)

    def split(self, terms: list[QueryTerm]) -> tuple[list[QueryTerm], list[str]]:
        """The parts that are searched for, and the texts of those that are left out since the model knows no word of
        them.
        """
        beside = any(term.kind != "text" and term.weight > 0 for term in terms)
        texts = [TextPart(term.value, term.weight) for term in terms if term.kind == "text"]
        left_out = [part.text for part in unknown_parts(texts, self.model.known_words, beside)]
        return [term for term in terms if term.kind != "text" or term.value not in left_out], left_out


class PageFiles(StaticFiles):
    """The page's own files, asked for again each time: one that has not changed costs a 304."""

    def file_response(
        self, full_path: str | os.PathLike[str], stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        """The file, or that it has not changed."""
        response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers["Cache-Control"] = "no-cache"
        kind = _PAGE_TYPES.get(PurePath(full_path).suffix)
        if kind is not None and status_code == 200:
            response.headers["Content-Type"] = kind
        return response


def page_routes(service: Service) -> APIRouter:
    """The routes that are not the API's."""
    router = APIRouter(include_in_schema=False)
    files = PageFiles(packages=[("maxmatch.server", "static")])

    @router.get("/")
    async def start(request: Request) -> Response:
        return await files.get_response("index.html", request.scope)

    @router.get("/static/{name}")
    async def static(name: str, request: Request) -> Response:
        return await files.get_response(name, request.scope)

    @router.get("/sw.js")  # at the root: a service worker has a say over the addresses below its own
    @router.get("/manifest.webmanifest")
    async def at_root(request: Request) -> Response:
        return await files.get_response(request.url.path.removeprefix("/"), request.scope)

    @router.get("/favicon.ico")
    async def icon(request: Request) -> Response:
        return await files.get_response("icon.svg", request.scope)

    @router.get("/metrics")
    @router.get("/api/v1/metrics")
    async def metrics() -> Response:
        service.metrics.items.set(len(service.gallery.state.items))
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return router


class QueryRoute(APIRoute):
    """A route whose one parameter is a model of the whole query string, which pydantic reads: FastAPI itself looks at
    the type of every field in every request, which takes as long as all else that it does.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """What answers a request."""
        [parameter] = inspect.signature(self.endpoint).parameters.values()
        model: type[BaseModel] = get_args(parameter.annotation)[0]

        async def answered(request: Request) -> Response:
            try:
                query = model.model_validate(dict(request.query_params))
            except ValidationError as error:
                problems = error.errors(include_url=False)
                raise RequestValidationError([{**one, "loc": ("query", *one["loc"])} for one in problems]) from None
            response: Response = await self.endpoint(query)
            return response

        return answered


def search_routes(service: Service) -> APIRouter:
    """The routes of search."""
    router = APIRouter(tags=["search"])

    async def search(query: Annotated[SearchQuery, Query()]) -> Response:
        """By text, by item or by an uploaded picture; without any of them, everything, newest first."""
        return await answer(service, service.terms(query), query)

    responses = documented(404, 409, 422, 503)
    router.add_api_route(
        "/search",
        search,
        methods=["GET"],
        response_model=SearchResult,
        responses=responses,
        route_class_override=QueryRoute,
    )

    @router.post("/search", response_model=SearchResult, responses=documented(400, 404, 409, 413, 422, 503))
    async def search_by_parts(query: SearchBody) -> Response:
        """By several weighted parts: texts, items and uploaded pictures."""
        terms = [service.term(part) for part in query.parts]
        terms = [term for term in terms if term.weight]
        if not any(term.weight > 0 for term in terms):
            raise Refusal(422, "invalid", "parts: expected at least one with a weight above zero.")
        return await answer(service, terms, query)

    @router.post(
        IMAGE_SEARCH,
        response_model=SearchResult,
        openapi_extra=_PICTURE_FORM,
        responses=documented(400, 404, 409, 413, 415, 422, 503),
    )
    async def search_by_image(
        file: Annotated[UploadFile, File(description="The picture.", json_schema_extra={"minLength": 1})],
        query: Annotated[Paging, Query()],
    ) -> Response:
        """By a picture. It is kept in memory for a while; `upload` in the response is its key, for further pages."""
        key = await receive(service, file)
        return await answer(service, [QueryTerm("upload", key)], query, upload=key)

    return router


async def receive(service: Service, file: UploadFile) -> str:
    """Read and encode an uploaded picture and keep it; its key."""
    if not reads_pictures(service.model):
        raise Refusal(422, "no_pictures", "This model reads features, not pictures.")
    async with service.one_upload:
        data = await file.read()
        picture = await asyncio.to_thread(read_upload, data, service.limits.upload_pixels)
        del data
        [vectors] = await asyncio.to_thread(service.model.encode_images, [picture], show_progress=False)
        await asyncio.to_thread(return_memory)
    return service.uploads.keep(Upload(picture, vectors))


async def answer(service: Service, terms: list[QueryTerm], paging: Paging, upload: str | None = None) -> Response:
    """A page of results: the JSON of a `SearchResult`, written without validating each of its values, which would take
    half of the server's time, and by pydantic's writer, which takes a third of the time of Python's.
    """
    started = time.perf_counter()
    if paging.start and paging.end and paging.start > paging.end:
        raise Refusal(409, "conflict", "The first day (from) is after the last one (to).")
    where = service.gallery.condition(
        paging.folder, paging.start, paging.end, paging.orientation, paging.camera, paging.place
    )
    if paging.album:
        within = await asyncio.to_thread(service.shelf.condition, paging.album)
        where = within if where is None else Every((where, within))
    looked_for = [TextPart(term.value, term.weight) for term in terms if term.kind == "text"]
    words = query_words(looked_for) if paging.names and len(looked_for) == len(terms) else ()
    kept, left_out = service.split(terms)
    page = await service.searcher.page(kept, paging, where, words)
    hits = [
        {
            "item": result.item,
            "score": result.score,
            "matches": [
                {"query_slot": slot, "item_slot": met, "cosine": cosine} for slot, met, cosine in result.matches
            ],
            "duplicates": result.duplicates,
            "name_match": result.named,
        }
        for result in page.results
    ]
    texts = [term.value for term in terms if term.kind == "text"]
    read = service.model.known_words(*texts) if texts else Words([], [])  # a model of pictures alone reads no words
    passing = service.gallery.passing
    total = len(passing(None) if where is None else await asyncio.to_thread(passing, where))
    took = (time.perf_counter() - started) * 1000
    page_out = {
        "hits": hits,
        "total": total,
        "more": page.more,
        "fits": page.verdict.fits,
        "cut_off": page.verdict.ends,
        "ended": page.ended,
        "upload": upload,
        "unknown_words": read.unknown,
        "any_word_known": bool(read.known) if texts else None,
        "left_out": left_out,
        "took_ms": took,
    }
    return Response(to_json(page_out, inf_nan_mode="null"), media_type="application/json")


def picture_routes(service: Service) -> APIRouter:
    """The routes of items."""
    router = APIRouter(tags=["items"])
    learned = vocabulary(service.model, _VOCABULARY)

    @router.get("/items/{key}", responses=documented(404, 422))
    async def item(key: KeyPath) -> ItemFacts:
        """The facts of a picture."""
        return service.item(key)

    @router.get("/items/{key}/thumbnail", response_class=Response, responses={**_WEBP, **documented(404, 422)})
    async def thumbnail(
        key: KeyPath,
        size: Annotated[Size, Query(description="The longest side.")] = 320,
        v: Annotated[str | None, Query(max_length=32, description="The item's version, for caches.")] = None,
    ) -> Response:
        """A thumbnail: WebP, upright, without the EXIF data of the original."""
        found = service.item(key)
        try:
            path = service.gallery.picture(found.id)
            made = await asyncio.to_thread(service.thumbnails.make, path, size)
        except (FileNotFoundError, ImageError):
            raise _unreadable() from None
        return Response(made, media_type="image/webp", headers=_CACHED_FOR_A_DAY)

    @router.get("/items/{key}/explain", responses=documented(404, 409, 422))
    async def why(key: KeyPath, query: Annotated[Asked, Query()]) -> Explained:
        """Why it was found: where its slots and those of the query look, and which slots match."""
        found, (terms, _) = service.item(key), service.split(service.terms(query))
        similarity = service.gallery.index.manifest.scoring
        try:
            return await asyncio.to_thread(
                explain, service.model, service.gallery, service.uploads, similarity, found, terms
            )
        except (FileNotFoundError, ImageError):
            raise _unreadable() from None

    @router.get("/uploads/{key}/thumbnail", response_class=Response, responses={**_WEBP, **documented(404, 422)})
    async def upload_thumbnail(
        key: KeyPath, size: Annotated[Size, Query(description="The longest side.")] = 320
    ) -> Response:
        """A thumbnail of an uploaded picture."""
        made = await asyncio.to_thread(webp, service.uploads.get(key).picture, size)
        return Response(made, media_type="image/webp", headers=_CACHED_FOR_A_DAY)

    @router.get("/gallery")
    def gallery() -> GalleryOut:
        """What there is to search: the number of items, folders and dates."""
        dates = [item.date for item in service.gallery.state.items.values() if item.date]
        return GalleryOut(
            name=service.gallery.name,
            total=len(service.gallery.state.items),
            folders=[
                FolderOut(folder=name, count=count, cover=newest)
                for name, (count, newest) in service.gallery.folders().items()
            ],
            words=service.gallery.state.words,
            cameras=service.gallery.state.cameras,
            places=service.gallery.state.places,
            vocabulary=learned,
            earliest=min(dates, default=None),
            latest=max(dates, default=None),
            set_size=service.gallery.set_size,
            language=language_of(service.gallery.index.manifest.model or service.model),
            reads_pictures=reads_pictures(service.model),
        )

    @router.get("/timeline", responses=documented(422))
    async def timeline(query: Annotated[Narrowed, Query()]) -> TimelineOut:
        """How many items there are of each month, newest first."""
        where = service.gallery.condition(
            query.folder, orientation=query.orientation, camera=query.camera, place=query.place
        )
        found = await asyncio.to_thread(service.gallery.months, where)
        return TimelineOut(months=[MonthOut(month=month, count=count) for month, count in found.items()])

    @router.get("/health", tags=["server"])
    async def health() -> Health:
        """The server is running."""
        watch, items = service.watch, len(service.gallery.state.items)
        left, bad = (
            (0, 0) if watch is None else (watch.left, sum(len(one.still) + len(one.unread) for one in watch.done))
        )
        return Health(status="ok", items=items, left=left, not_read=bad, version=__version__)

    @router.get("/not-read")
    def not_read() -> NotReadOut:
        """Which files of the folders cannot be read, why, and what to do."""
        done = () if service.watch is None else service.watch.done
        reasons = [skipped.reason for one in done for skipped in one.still]
        unread = [name for one in done for name in one.unread]
        cure = unread_formats(unread) if unread else None
        return NotReadOut(count=len(reasons) + len(unread), reasons=reasons[:_REASONS], cure=cure)

    return router


def _unreadable() -> Refusal:
    return not_found("The file of this picture is missing or cannot be read.")
