"""What the API takes and returns, as pydantic models: the source of its OpenAPI description; and its errors."""

from datetime import date
from typing import Annotated, Any, Literal, Self

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.exceptions import HTTPException

from maxmatch.search.query import LARGEST_WEIGHT, MOST_PARTS
from maxmatch.server.batching import Busy

# What the API takes and gives, as pydantic models: the source of its OpenAPI description.

ItemKey = Annotated[str, Field(pattern="^[0-9a-f]{32}$", description="The key of an item, as a search gives it.")]
Slot = Annotated[int, Field(ge=0, le=15, description="Search with this one of the query's K vectors only.")]
Text = Annotated[str, Field(max_length=1000)]
Sort = Literal["relevance", "date"]
LONGEST_PAGE = 200
DEEPEST = 1000


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", populate_by_name=True)


class Paging(_Strict):
    """Which of the results, in what order, and of what."""

    k: Annotated[int, Field(ge=1, le=LONGEST_PAGE, description="How many results.")] = 48
    offset: Annotated[int, Field(ge=0, le=DEEPEST, description="How many to leave out before them.")] = 0
    sort: Annotated[
        Sort, Field(description="date: the latest first, of the 500 most relevant where something is searched for.")
    ] = "relevance"
    fold: Annotated[bool, Field(description="Show near-duplicates as one.")] = True
    folder: Annotated[Text | None, Field(description="In this folder, or under it.")] = None
    start: Annotated[date | None, Field(alias="from", description="Taken on this day or later.")] = None
    end: Annotated[date | None, Field(alias="to", description="Taken on this day or earlier.")] = None
    orientation: Literal["landscape", "portrait", "square"] | None = None


class Asked(_Strict):
    """What is searched for: a text, an item, or a picture that was sent before; or nothing, for everything."""

    q: Annotated[Text | None, Field(description='A text; or weighted parts: "beach" + "dog" - 2 "people".')] = None
    like: Annotated[ItemKey | None, Field(description="An item, by its key: what is similar to it.")] = None
    upload: Annotated[ItemKey | None, Field(description="A picture that was sent to /search/image.")] = None
    slot: Slot | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if sum(bool(value) for value in (self.q, self.like, self.upload)) > 1:
            raise ValueError("give one of q, like and upload")
        return self


class SearchQuery(Asked, Paging):
    """The parameters of GET /search."""


class QueryPart(_Strict):
    """One part of a query: a text, an item or a picture that was sent before."""

    text: Annotated[str, Field(min_length=1, max_length=1000)] | None = None
    like: ItemKey | None = None
    upload: ItemKey | None = None
    slot: Slot | None = None
    weight: Annotated[float, Field(ge=-LARGEST_WEIGHT, le=LARGEST_WEIGHT, description="Below zero: against.")] = 1.0

    @model_validator(mode="after")
    def _one(self) -> Self:
        if sum(value is not None for value in (self.text, self.like, self.upload)) != 1:
            raise ValueError("give exactly one of text, like and upload")
        return self


class SearchBody(Paging):
    """The body of POST /search."""

    parts: Annotated[list[QueryPart], Field(min_length=1, max_length=MOST_PARTS)]


class ItemFacts(BaseModel):
    """An indexed picture. What is not known of it is null."""

    key: str
    id: str
    name: str
    folder: str
    taken: Annotated[str | None, Field(description="Local time, as 2024-05-31T18:02:11.")]
    width: int | None
    height: int | None
    orientation: str | None
    bytes: int | None
    version: Annotated[str, Field(description="Another text when the file is another.")]


class PairOut(BaseModel):
    """A slot of the query, the slot of the item that it was matched with, and their cosine."""

    query_slot: int
    item_slot: int
    cosine: float


class HitOut(BaseModel):
    """A result."""

    item: ItemFacts
    score: Annotated[float | None, Field(description="By the model's similarity; null where nothing is searched for.")]
    matches: Annotated[list[PairOut], Field(description="Who matched whom; empty for a query of several parts.")]
    duplicates: Annotated[list[ItemFacts], Field(description="Near-duplicates that are folded into it.")]


class SearchResult(BaseModel):
    """A page of results, best first."""

    hits: list[HitOut]
    total: Annotated[int, Field(description="How many items pass the filters.")]
    more: Annotated[bool, Field(description="Whether there is another page.")]
    upload: Annotated[str | None, Field(description="The key of the picture that was sent.")] = None
    took_ms: float


class SlotsOut(BaseModel):
    """Where a picture's slots looked."""

    attention: Annotated[list[list[list[float]]], Field(description="For each slot rows of cells; they sum to 1.")]
    box: Annotated[
        list[float], Field(description="The part of the picture that the model saw: left, top, right, bottom, 0 to 1.")
    ]


class PartExplained(BaseModel):
    """One part of the query against the item."""

    label: str
    weight: float
    score: float
    query_slots: Annotated[list[int], Field(description="Which slots of the query the rows are.")]
    cosines: Annotated[list[list[float]], Field(description="Rows: the query's slots; columns: the item's.")]
    pairs: Annotated[list[PairOut], Field(description="The best one-to-one matching.")]
    words: Annotated[list[str] | None, Field(description="The query's words, as the tokenizer divides it.")]
    word_attention: Annotated[list[list[float]] | None, Field(description="A row for each slot of the query.")]
    picture: Annotated[SlotsOut | None, Field(description="Where the query's slots looked, if it is a picture.")]


class Explained(BaseModel):
    """Why an item scores as it does; without a query only where its slots look."""

    item: ItemFacts
    slots: SlotsOut
    parts: list[PartExplained]


class FolderOut(BaseModel):
    """A folder, and how many items are in and under it."""

    folder: str
    count: int


class GalleryOut(BaseModel):
    """What there is to search."""

    name: str
    total: int
    folders: list[FolderOut]
    earliest: str | None
    latest: str | None
    set_size: int
    reads_pictures: Annotated[bool, Field(description="Whether one can search by a picture and ask why.")]


class Health(BaseModel):
    """That the server is there."""

    status: Literal["ok"]
    items: int
    version: str


class ErrorDetail(BaseModel):
    """What was wrong."""

    code: str
    message: str


class ErrorOut(BaseModel):
    """The body of every answer that is not 2xx."""

    error: ErrorDetail


# Answers that are no results: one form for all, and no traceback in any.

_CODES = {400: "bad_request", 404: "not_found", 405: "method_not_allowed", 413: "too_large"}


class Refusal(Exception):
    """A request that cannot be answered, and why, in words for the one who asked."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


def not_found(what: str) -> Refusal:
    """What was asked for is not in the index."""
    return Refusal(404, "not_found", what)


def body(code: str, message: str) -> dict[str, Any]:
    """The JSON of an error."""
    return {"error": {"code": code, "message": message}}


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """For OpenAPI: that these statuses may come."""
    return {status: {"model": ErrorOut} for status in statuses}


def add_handlers(app: FastAPI) -> None:
    """Make an `ErrorOut` of whatever is refused. What fails is caught in `security.Guard`, around everything."""

    @app.exception_handler(Refusal)
    async def refused(request: Request, error: Refusal) -> JSONResponse:
        return JSONResponse(body(error.code, error.message), error.status)

    @app.exception_handler(Busy)
    async def busy(request: Request, error: Busy) -> JSONResponse:
        return JSONResponse(body("busy", str(error)), 503, {"Retry-After": "1"})

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        problems = "; ".join(_said(problem) for problem in error.errors()[:5])
        return JSONResponse(body("invalid", problems), 422)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        code = _CODES.get(error.status_code, "error")
        return JSONResponse(body(code, str(error.detail)), error.status_code, error.headers)


def _said(problem: Any) -> str:
    """Where and what; without the value that came, which may be long."""
    where = ".".join(str(part) for part in problem["loc"] if part not in ("query", "body", "path"))
    return f"{where}: {problem['msg']}" if where else str(problem["msg"])
