"""What the API takes and returns, from which its OpenAPI description is made; and its errors."""

import re
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, Literal, Self

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from starlette.exceptions import HTTPException
from starlette.routing import Match
from starlette.types import Scope

from maxmatch.search.index_folder import ReplacedIndexError
from maxmatch.search.query import LARGEST_WEIGHT, MOST_PARTS

ItemKey = Annotated[str, Field(pattern="^[0-9a-f]{32}$", description="The key of an item, as search returns it.")]
Slot = Annotated[int, Field(ge=0, le=15, description="Search with this one of the query's K vectors only.")]
Text = Annotated[str, Field(max_length=1000)]


def _written_day(value: Any) -> Any:
    """Pydantic would take a number for the seconds since 1970."""
    if not (value is None or isinstance(value, date) or (isinstance(value, str) and _DAY.fullmatch(value))):
        raise ValueError("expected a day, as 2024-05-31")
    return value


_DAY = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}")
Day = Annotated[date, BeforeValidator(_written_day)]
Sort = Literal["relevance", "date"]
LONGEST_PAGE = 200
DEEPEST = 10_000_000
MOST_ZIPPED = 500
"""Photos in one zip file."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", populate_by_name=True)


class Paging(_Strict):
    """Which results to return, in what order, and filters on them."""

    k: Annotated[int, Field(ge=1, le=LONGEST_PAGE, description="How many results.")] = 48
    offset: Annotated[int, Field(ge=0, le=DEEPEST, description="How many to skip before them.")] = 0
    sort: Annotated[
        Sort, Field(description="date: newest first; with a query, among its 500 most relevant results.")
    ] = "relevance"
    fold: Annotated[bool, Field(description="Show near-duplicates as one.")] = True
    names: Annotated[bool, Field(description="Items that have all words of a text in their name come first.")] = True
    everything: Annotated[
        bool, Field(alias="all", description="Also what does not seem to fit the text that is searched for.")
    ] = False
    min_score: Annotated[
        float | None,
        Field(
            allow_inf_nan=False, description="Only results with at least this score, whether they seem to fit or not."
        ),
    ] = None
    folder: Annotated[Text | None, Field(description="In or below this folder.")] = None
    start: Annotated[Day | None, Field(alias="from", description="Taken on this day or later.")] = None
    end: Annotated[Day | None, Field(alias="to", description="Taken on this day or earlier.")] = None
    orientation: Literal["landscape", "portrait", "square"] | None = None
    album: Annotated[ItemKey | None, Field(description="In this album.")] = None
    camera: Annotated[Text | None, Field(description="Taken with this camera.")] = None
    place: Annotated[Text | None, Field(description="Taken at this place, as it is written in the file.")] = None


class Asked(_Strict):
    """What to search for: a text, an item, or an uploaded picture; nothing means everything."""

    q: Annotated[Text | None, Field(description='A text; or parts: beach -people, "beach" + "dog" - 2 "people".')] = (
        None
    )
    like: Annotated[ItemKey | None, Field(description="The key of an item: find similar ones.")] = None
    upload: Annotated[ItemKey | None, Field(description="The key of a picture uploaded to /search/image.")] = None
    slot: Slot | None = None


class SearchQuery(Asked, Paging):
    """The parameters of GET /search."""


class QueryPart(_Strict):
    """One part of a query: a text, an item or an uploaded picture."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                {"required": [name], "properties": {name: {"type": "string"}}} for name in ("text", "like", "upload")
            ]
        }
    )
    text: Annotated[str, Field(min_length=1, max_length=1000)] | None = None
    like: ItemKey | None = None
    upload: ItemKey | None = None
    slot: Slot | None = None
    weight: Annotated[float, Field(ge=-LARGEST_WEIGHT, le=LARGEST_WEIGHT, description="Negative: avoid this.")] = 1.0

    @model_validator(mode="after")
    def _one(self) -> Self:
        if sum(value is not None for value in (self.text, self.like, self.upload)) != 1:
            raise ValueError("give exactly one of text, like and upload")
        return self


class SearchBody(Paging):
    """The body of POST /search."""

    parts: Annotated[
        list[QueryPart],
        Field(
            min_length=1,
            max_length=MOST_PARTS,
            description="At least one has a weight above zero.",
            json_schema_extra={"contains": {"properties": {"weight": {"exclusiveMinimum": 0}}}},
        ),
    ]


@dataclass(frozen=True, slots=True)
class ItemFacts:
    """An indexed picture. What is not known of it is null."""

    key: str
    id: str
    name: str
    folder: str
    taken: Annotated[str | None, Field(description="Local time by the camera, as 2024-05-31T18:02:11.")]
    width: int | None
    height: int | None
    orientation: str | None
    bytes: int | None
    version: Annotated[str, Field(description="Changes when the file changes.")]
    date: Annotated[str | None, Field(description="`taken`, or else when the file was changed.")] = None
    date_from: Annotated[str | None, Field(description="What `date` is from: exif or file.")] = None
    path: Annotated[str | None, Field(description="Of its file, on the machine that serves it.")] = None
    camera: str | None = None
    place: Annotated[str | None, Field(description="As it is written in the file (IPTC).")] = None


class PairOut(BaseModel):
    """A slot of the query, the slot of the item that it is matched with, and their cosine."""

    query_slot: int
    item_slot: int
    cosine: float


class HitOut(BaseModel):
    """One result."""

    item: ItemFacts
    score: Annotated[float | None, Field(description="By the model's similarity; null without a query.")]
    matches: Annotated[list[PairOut], Field(description="Which slots match; empty for a query of several parts.")]
    duplicates: Annotated[list[ItemFacts], Field(description="Near-duplicates shown as one with it.")]
    name_match: Annotated[
        bool, Field(description="Its file or folder name has all words of the query; such items come first.")
    ] = False


class SearchResult(BaseModel):
    """A page of results, best first."""

    hits: list[HitOut]
    total: Annotated[int, Field(description="How many items pass the filters.")]
    more: Annotated[bool, Field(description="Whether there is another page.")]
    fits: Annotated[
        bool | None,
        Field(description="false: nothing seems to fit the text, so no result is given; null: that cannot be told."),
    ] = None
    cut_off: Annotated[
        float | None, Field(description="The score below which results do not seem to fit; null: not known.")
    ] = None
    ended: Annotated[bool, Field(description="Whether there are results below the cut-off that are left out.")] = False
    upload: Annotated[str | None, Field(description="The key of the uploaded picture.")] = None
    unknown_words: Annotated[list[str], Field(description="The words of the query that the model does not know.")] = []
    any_word_known: Annotated[
        bool | None,
        Field(
            description="false: the model knows no word of the query, and without a picture the results are a guess; "
            "null without words."
        ),
    ] = None
    left_out: Annotated[
        list[str], Field(description="The parts of the query that did not count, as the model knows no word of them.")
    ] = []
    took_ms: float


class SlotsOut(BaseModel):
    """Where a picture's slots look."""

    attention: Annotated[list[list[list[float]]], Field(description="For each slot, rows of cells that sum to 1.")]
    box: Annotated[
        list[float], Field(description="The part of the picture that the model sees: left, top, right, bottom, 0 to 1.")
    ]


class PartExplained(BaseModel):
    """One part of the query, compared with the item."""

    label: str
    weight: float
    score: float
    query_slots: Annotated[list[int], Field(description="The slots of the query, one per row.")]
    cosines: Annotated[list[list[float]], Field(description="Rows: the query's slots; columns: the item's.")]
    pairs: Annotated[list[PairOut], Field(description="The best one-to-one matching.")]
    words: Annotated[list[str] | None, Field(description="The query's tokens.")]
    word_attention: Annotated[list[list[float]] | None, Field(description="One row per slot of the query.")]
    terms: Annotated[list[str] | None, Field(description="The words of the text, as a person counts them.")]
    word_effects: Annotated[
        list[list[float]] | None,
        Field(description="Rows: the query's slots. How much lower the matched cosine is without each of `terms`."),
    ]
    picture: Annotated[SlotsOut | None, Field(description="Where the query's slots look, if it is a picture.")]


class Explained(BaseModel):
    """Why an item scores as it does; without a query, only where its slots look."""

    item: ItemFacts
    slots: SlotsOut
    parts: list[PartExplained]


class DetailsOut(BaseModel):
    """What the file of a picture says of how and where it was taken. What is not known is null."""

    path: str
    shown: Annotated[bool, Field(description="Whether browsers can show the original.")]
    can_reveal: Annotated[bool, Field(description="Whether this request may show it in the file manager.")]
    camera: str | None = None
    lens: str | None = None
    settings: Annotated[str | None, Field(description="As 1/250 s, f/2.8, ISO 100, 35 mm.")] = None
    place: Annotated[str | None, Field(description="As written into the file by a person or program.")] = None
    latitude: float | None = None
    longitude: float | None = None


class Done(BaseModel):
    """It was done."""

    done: Literal[True] = True


class DownloadOut(BaseModel):
    """A zip file that can be fetched for some minutes."""

    key: str
    count: int
    bytes: int


_PLAIN = r"[^\x00-\x1f\x7f]*"
_Name = Annotated[str, Field(min_length=1, max_length=200, pattern=rf"^{_PLAIN}[^\s\x00-\x1f\x7f]{_PLAIN}$")]
Keys = Annotated[list[ItemKey], Field(max_length=1000)]


class KeysIn(_Strict):
    """Some items."""

    keys: Annotated[list[ItemKey], Field(min_length=1, max_length=MOST_ZIPPED)]


class AlbumIn(_Strict):
    """A new album."""

    name: _Name
    keys: Keys = []


class AlbumNameIn(_Strict):
    """Another name of an album."""

    name: _Name


class AlbumChangeIn(_Strict):
    """Items to put into an album, and to take out of it."""

    add: Keys = []
    remove: Keys = []


class AlbumOut(BaseModel):
    """An album."""

    key: str
    name: str
    count: Annotated[int, Field(description="Its photos that are in this index.")]
    missing: Annotated[int, Field(description="Its photos that are not.")]
    cover: Annotated[ItemFacts | None, Field(description="The first of its photos.")]


class SavedSearchIn(_Strict):
    """A search to save."""

    name: _Name
    q: Annotated[str, Field(max_length=1000)] = ""
    like: ItemKey | None = None
    folder: Annotated[str, Field(max_length=1000)] = ""
    start: Annotated[Day | None, Field(alias="from")] = None
    end: Annotated[Day | None, Field(alias="to")] = None
    orientation: Literal["landscape", "portrait", "square"] | None = None
    album: ItemKey | None = None
    camera: Annotated[str, Field(max_length=1000)] = ""
    place: Annotated[str, Field(max_length=1000)] = ""
    sort: Sort = "relevance"
    fold: bool = True


class SavedSearchOut(BaseModel):
    """A saved search."""

    key: str
    name: str
    query: Annotated[dict[str, str | bool], Field(description="The parameters of GET /search.")]
    missing: Annotated[bool, Field(description="Whether the photo that it searches with is not in this index.")]


class SavedOut(BaseModel):
    """All albums and saved searches of the user."""

    albums: list[AlbumOut]
    searches: list[SavedSearchOut]


class FolderOut(BaseModel):
    """A folder, how many items are in and below it, and the newest of them."""

    folder: str
    count: int
    cover: ItemFacts


class MonthOut(BaseModel):
    """A month, and how many items are of it."""

    month: Annotated[str, Field(description="As 2024-05; empty for items without a date.")]
    count: int


class TimelineOut(BaseModel):
    """The months that have items, newest first."""

    months: list[MonthOut]


class Narrowed(_Strict):
    """Filters of the timeline."""

    folder: Annotated[Text | None, Field(description="In or below this folder.")] = None
    orientation: Literal["landscape", "portrait", "square"] | None = None
    camera: Text | None = None
    place: Text | None = None


class GalleryOut(BaseModel):
    """What there is to search."""

    name: str
    total: int
    folders: list[FolderOut]
    words: Annotated[list[str], Field(description="Words of file and folder names, the most frequent first.")]
    cameras: Annotated[list[str], Field(description="That its photos were taken with, the most frequent first.")]
    places: Annotated[list[str], Field(description="That are written in its photos, the most frequent first.")]
    vocabulary: Annotated[list[str], Field(description="Frequent words of the captions that the model learned from.")]
    earliest: str | None
    latest: str | None
    set_size: int
    language: Annotated[str | None, Field(description="Of the words that the model reads; null: not known.")]
    reads_pictures: Annotated[bool, Field(description="Whether pictures can be uploaded and explained.")]


class Health(BaseModel):
    """The server is running. Without the token, where one is needed, the status is all."""

    status: Literal["ok"]
    items: int | None = None
    left: Annotated[int | None, Field(description="Photos that were found and are not encoded yet.")] = None
    not_read: Annotated[int | None, Field(description="Files and folders that cannot be read.")] = None
    version: str | None = None


class NotReadOut(BaseModel):
    """What was found in the folders and cannot be read."""

    count: int
    reasons: Annotated[list[str], Field(description="Of the first 500: what, why, and what to do.")]
    cure: Annotated[str | None, Field(description="How to read the formats for which a package is missing.")]


class ErrorDetail(BaseModel):
    """What was wrong."""

    code: str
    message: str


class ErrorOut(BaseModel):
    """The body of every error response."""

    error: ErrorDetail


_CODES = {400: "bad_request", 404: "not_found", 405: "method_not_allowed", 409: "conflict", 413: "too_large"}


class Refusal(Exception):
    """A request that cannot be answered, and why, for the person who sent it."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


def not_found(message: str) -> Refusal:
    """What was asked for is not in the index."""
    return Refusal(404, "not_found", message)


def error_body(code: str, message: str) -> dict[str, Any]:
    """The JSON of an error."""
    return {"error": {"code": code, "message": message}}


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """For OpenAPI: the error statuses of a route."""
    return {status: {"model": ErrorOut} for status in statuses}


def add_handlers(app: FastAPI) -> None:
    """Turn every refusal into an `ErrorOut`. Unexpected failures are caught in `security.Guard`, around everything."""

    @app.exception_handler(Refusal)
    async def refused(request: Request, error: Refusal) -> JSONResponse:
        headers = {"Retry-After": "1"} if error.status == 503 else None
        return JSONResponse(error_body(error.code, error.message), error.status, headers)

    @app.exception_handler(ReplacedIndexError)
    async def replaced(request: Request, error: ReplacedIndexError) -> JSONResponse:
        message = "The index was encoded again by another model. Restart the server."
        return JSONResponse(error_body("replaced", message), 503)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        problems = "; ".join(_describe(problem) for problem in error.errors()[:5])
        return JSONResponse(error_body("invalid", problems), 422)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        code = _CODES.get(error.status_code, "error")
        headers = dict(error.headers or {})
        if error.status_code == 405:  # the router names the methods of one route only, where several have the path
            headers["Allow"] = ", ".join(_methods(app, request.scope))
        return JSONResponse(error_body(code, str(error.detail)), error.status_code, headers)


def _methods(app: FastAPI, scope: Scope) -> list[str]:
    """The methods that some route has for this path."""
    return [
        method
        for method in ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")
        if any(route.matches({**scope, "method": method})[0] is Match.FULL for route in app.routes)
    ]


def _describe(problem: Any) -> str:
    """The field and what is wrong with it; not its value, which may be long."""
    where = ".".join(str(part) for part in problem["loc"] if part not in ("query", "body", "path"))
    return f"{where}: {problem['msg']}" if where else str(problem["msg"])
