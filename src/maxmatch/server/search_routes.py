"""Search: by text, by parts, by item, by a picture that is sent."""

import asyncio
import json
import time
from typing import Annotated

from fastapi import APIRouter, File, Query, Response, UploadFile

from maxmatch.search.facts import facts_condition
from maxmatch.server.errors import Refusal, documented
from maxmatch.server.explaining import facts_of, reads_pictures
from maxmatch.server.querying import Part
from maxmatch.server.schema import Paging, SearchBody, SearchQuery, SearchResult
from maxmatch.server.service import Service
from maxmatch.server.uploads import Upload, read_upload

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
        return await answer(service, [Part("upload", key)], query, upload=key)

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


async def answer(service: Service, parts: list[Part], paging: Paging, upload: str | None = None) -> Response:
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
