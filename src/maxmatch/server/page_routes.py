"""The page and its files, and what Prometheus asks for."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from maxmatch.server.errors import not_found
from maxmatch.server.pages import START, page_files
from maxmatch.server.service import Service


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
