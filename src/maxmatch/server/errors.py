"""Answers that are no results: one form for all, and no traceback in any."""

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from maxmatch.server.batching import Busy
from maxmatch.server.schema import ErrorOut

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
