"""The application: `create_app(index)` serves the API under /api/v1, and the page."""

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from fastapi import FastAPI

from maxmatch import __version__
from maxmatch.core.progress import Bar
from maxmatch.model.encoder import SetEncoder
from maxmatch.model.names import SHIPPED, model_identity, model_title, recorded_model
from maxmatch.search.folding import NEAR_DUPLICATE
from maxmatch.search.index_folder import other_model, read_origin
from maxmatch.search.photos.albums import Albums
from maxmatch.search.photos.sync import Synced
from maxmatch.search.set_index import SetIndex
from maxmatch.server.album_routes import Shelf, album_routes, original_routes
from maxmatch.server.api_schema import add_handlers
from maxmatch.server.gallery import Gallery, PictureOf, Watch
from maxmatch.server.pictures import Thumbnails, Uploads
from maxmatch.server.routes import IMAGE_SEARCH, Service, page_routes, picture_routes, search_routes
from maxmatch.server.searcher import Searcher
from maxmatch.server.security import Guard, Limits, Metrics

API = "/api/v1"
_log = logging.getLogger("maxmatch")
_REFRESH_EVERY = 5.0  # seconds


def create_app(
    index: SetIndex,
    model: SetEncoder | None = None,
    picture: PictureOf = Path,
    *,
    name: str = "Pictures",
    token: str | None = None,
    limits: Limits | None = None,
    batch: int = 32,
    window: float = 0.0,
    near_duplicate: float = NEAR_DUPLICATE,
    look: Callable[[Bar], Sequence[Synced] | None] | None = None,
    look_every: float = 45.0,
    albums: Albums | None = None,
    cut: bool = True,
) -> FastAPI:
    """A server for an index whose sets were made by `model`.

    Args:
        index: what is searched. The caller closes it.
        model: default: the model recorded with the index, else the one that ships.
        picture: the file of an item's picture, by the item's id. By default ids are paths.
        name: what the page calls the collection.
        token: what clients must show; without one, only this machine is answered.
        limits: the largest uploads and requests.
        batch: how many queries are encoded and searched together at most.
        window: how many seconds the first of them waits for others, beyond those that are being answered.
        near_duplicate: the mean cosine from which pictures are shown as one.
        look: brings the index up to date with its folders, as `Library.sync`; called at the start and again and again.
        look_every: how many seconds after the last time, at most.
        albums: where albums and saved searches are kept. Default: in the user's data folder.
        cut: leave out what does not seem to fit a query, unless a request asks for it.

    Returns:
        An ASGI application, to be run by uvicorn or another server.

    Raises:
        ValueError: the index was made by another model.
    """
    model = _recorded_model(index) if model is None else model
    known = index.manifest.model
    if index.manifest.dim != model.dim or (known is not None and known != model_identity(model)):
        raise other_model(index.folder, index.manifest, model_title(model_identity(model)))
    model.eval()
    limits = limits or Limits()
    metrics, uploads = Metrics(), Uploads()
    gallery = Gallery(index, picture, name)
    searcher = Searcher(
        gallery, model, lambda key: uploads.get(key).vectors, metrics, batch, window, near_duplicate, cut
    )
    searcher.calibrate()
    watch = None if look is None else Watch(look, look_every, partial(gallery.refresh, at_once=True))
    shelf = Shelf(gallery, albums or Albums())
    service = Service(gallery, model, searcher, uploads, Thumbnails(), metrics, limits, shelf, watch)

    @asynccontextmanager
    async def running(app: FastAPI) -> AsyncIterator[None]:
        beside = [asyncio.create_task(_keep_refreshing(gallery, searcher))]
        if watch is not None:
            beside.append(asyncio.create_task(watch.run()))
        # What exists now stays, so garbage collection can skip it: going through all modules takes 200 ms, in which no
        # request is answered, and would happen every few hundred requests.
        gc.collect()
        gc.freeze()
        try:
            async with searcher.answering:
                yield
        finally:
            gc.unfreeze()
            for task in beside:
                task.cancel()

    app = FastAPI(
        title="MaxMatch",
        summary="Photo search by sets of vectors.",
        version=__version__,
        openapi_url=f"{API}/openapi.json",
        docs_url=None,  # these pages would load scripts from other hosts
        redoc_url=None,
        lifespan=running,
    )
    add_handlers(app)
    app.include_router(search_routes(service), prefix=API)
    app.include_router(picture_routes(service), prefix=API)
    app.include_router(original_routes(gallery, service.item), prefix=API)
    app.include_router(album_routes(shelf, service.item), prefix=API)
    app.include_router(page_routes(service))
    app.add_middleware(Guard, limits=limits, token=token, upload_paths=(f"{API}{IMAGE_SEARCH}",), metrics=metrics)
    return app


def _recorded_model(index: SetIndex) -> SetEncoder:
    origin = read_origin(index.folder)
    name = SHIPPED if origin is None else origin.model
    return SetEncoder.from_pretrained(recorded_model(name))


async def _keep_refreshing(gallery: Gallery, searcher: Searcher) -> None:
    """Notice changes to the index while the server runs."""
    while True:
        await asyncio.sleep(_REFRESH_EVERY)
        try:
            await asyncio.to_thread(gallery.refresh)
            await asyncio.to_thread(searcher.calibrate)
        except Exception as error:  # the next attempt may succeed; until then the last state is served
            _log.warning("the index could not be read again: %s", error)
