"""The application: `create_app(index)` answers /api/v1 and gives the page."""

import asyncio
import gc
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI

from maxmatch import __version__
from maxmatch.model.encoder import SetEncoder
from maxmatch.model.identity import model_identity
from maxmatch.model.names import SHIPPED, shipped_model
from maxmatch.search.encode_files import read_origin
from maxmatch.search.set_index import SetIndex
from maxmatch.server.api_schema import add_handlers
from maxmatch.server.gallery import THRESHOLD, Gallery, PictureOf
from maxmatch.server.pictures import Thumbnails, Uploads
from maxmatch.server.querying import Searcher
from maxmatch.server.routes import IMAGE_SEARCH, Service, page_routes, picture_routes, search_routes
from maxmatch.server.security import Guard, Limits, Metrics

API = "/api/v1"
_log = logging.getLogger("maxmatch")
_LOOK_AGAIN = 5.0  # seconds


def create_app(
    index: SetIndex,
    model: SetEncoder | None = None,
    picture: PictureOf = Path,
    *,
    name: str = "Pictures",
    token: str | None = None,
    limits: Limits | None = None,
    batch: int = 32,
    window: float = 0.002,
    near_duplicate: float = THRESHOLD,
) -> FastAPI:
    """A server over an index whose sets `model` has made.

    model: where none is given, the one that is noted with the index, else the one that ships. picture: the file of an
    item's picture, by the item's id; without it ids are paths. token: whoever asks must show it; without one only this
    machine is answered. batch: how many queries are encoded and searched together at most; window: how many seconds the
    first of them waits for others. near_duplicate: from this mean cosine on pictures are shown as one.
    """
    model = _noted_model(index) if model is None else model
    known = index.manifest.model
    if index.manifest.dim != model.dim or (known is not None and known != model_identity(model)):
        raise ValueError(
            f"{index.folder}: its sets were made by another model ({(known or 'unknown')[:16]}, width "
            f"{index.manifest.dim}). Take that model, or make another index with this one."
        )
    model.eval()
    limits = limits or Limits()
    metrics, uploads = Metrics(), Uploads()
    gallery = Gallery(index, picture, name)
    searcher = Searcher(gallery, model, uploads, metrics, batch, window, near_duplicate)
    service = Service(gallery, model, searcher, uploads, Thumbnails(), metrics, limits)

    @asynccontextmanager
    async def running(app: FastAPI) -> AsyncIterator[None]:
        looking = asyncio.create_task(_keep_looking(gallery))
        # What is there now stays: Python need not look for garbage in it. A look through all modules takes 200 ms, in
        # which no request is answered, and would come after every few hundred of them.
        gc.collect()
        gc.freeze()
        try:
            async with searcher:
                yield
        finally:
            gc.unfreeze()
            looking.cancel()

    app = FastAPI(
        title="MaxMatch",
        summary="Photo search by sets of vectors.",
        version=__version__,
        openapi_url=f"{API}/openapi.json",
        docs_url=None,  # these pages come from elsewhere
        redoc_url=None,
        lifespan=running,
    )
    add_handlers(app)
    app.include_router(search_routes(service), prefix=API)
    app.include_router(picture_routes(service), prefix=API)
    app.include_router(page_routes(service))
    app.add_middleware(Guard, limits=limits, token=token, upload_paths=(f"{API}{IMAGE_SEARCH}",), metrics=metrics)
    return app


def _noted_model(index: SetIndex) -> SetEncoder:
    origin = read_origin(index.folder)
    name = SHIPPED if origin is None else origin.model
    return SetEncoder.from_pretrained(shipped_model(name) or name)


async def _keep_looking(gallery: Gallery) -> None:
    """See what is added to the index and removed from it while the server runs."""
    while True:
        await asyncio.sleep(_LOOK_AGAIN)
        try:
            await asyncio.to_thread(gallery.refresh)
        except Exception as error:  # the next look may succeed; what was seen last is served until then
            _log.warning("the index could not be looked at again: %s", error)
