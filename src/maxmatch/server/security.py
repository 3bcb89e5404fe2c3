"""What every request passes: who is answered, how much is accepted, the headers of every response; and metrics."""

import hmac
import ipaddress
import logging
import math
import os
import secrets
import time
from collections import OrderedDict
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import parse_qsl, urlencode

from fastapi.responses import JSONResponse, RedirectResponse, Response
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import cookie_parser
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from maxmatch.core.files import user_data
from maxmatch.server.api_schema import error_body

_log = logging.getLogger("maxmatch")
COOKIE = "maxmatch_token"
SHORTEST_TOKEN = 16
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
HEALTH = "/api/v1/health"
_GUESSES = 10
_GUESSES_FOR = 60.0  # seconds
_ADDRESSES = 10_000
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}
_RAW_HEADERS = {name.lower().encode(): value.encode() for name, value in HEADERS.items()}
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.5, 5.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """Counts of one server, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "maxmatch_requests_total", "Requests answered.", ["route", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "maxmatch_request_seconds", "Time to an answer.", ["route"], buckets=_SECONDS, registry=self.registry
        )
        self.batches = Histogram(
            "maxmatch_batch_size", "Requests answered together.", ["work"], buckets=_SIZES, registry=self.registry
        )
        self.items = Gauge("maxmatch_items", "Items in the index.", registry=self.registry)

    def text(self) -> bytes:
        """All metrics, in the format of Prometheus."""
        return generate_latest(self.registry)


@dataclass(frozen=True)
class Limits:
    """How much a request may send."""

    upload_bytes: int = 20 * 2**20
    upload_pixels: int = 50_000_000
    body_bytes: int = 128 * 2**10
    """Of any other request."""


@lru_cache(_ADDRESSES)
def is_loopback(host: str) -> bool:
    """Whether an address or name can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_token(host: str, token: str | None) -> None:
    """Refuse an address that others can reach without a token, and a token that can be guessed."""
    if token is None and not is_loopback(host):
        raise ValueError(
            f"--host {host}: anyone who can reach this address would see the pictures. "
            'Give a token: --token "$(openssl rand -hex 16)"'
        )
    if token is not None and not (token.isascii() and token.isprintable()):
        raise ValueError("--token: expected printable ASCII characters only.")
    if token is not None and len(token) < SHORTEST_TOKEN:
        raise ValueError(f"--token: expected at least {SHORTEST_TOKEN} characters, got {len(token)}.")


def kept_token() -> str:
    """The token for this user's network, made once and kept in the data folder, so that a phone needs it once."""
    path = user_data() / "maxmatch" / "token"
    for _ in range(2):
        try:
            token = path.read_text(encoding="ascii").strip()
            check_token("", token)
            return token
        except (FileNotFoundError, ValueError):  # none yet; or not one that is safe
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            with suppress(FileExistsError), open(path, "x", opener=_private, encoding="ascii") as file:
                file.write(secrets.token_hex(16) + "\n")
    raise ValueError(f"{path}: no token could be kept there. Give one: --token")


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


class Guesses:
    """Wrong tokens by address: after ten different ones, no token from there is looked at for the rest of a minute.

    The same one again, as the cookie of an old page, is no new guess.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[float, set[int]]] = OrderedDict()
        """By address, oldest first: until when its wrong tokens count, and their hashes."""

    def note(self, address: str, token: str) -> None:
        """A wrong token came from this address."""
        tokens = self._of(address)[1]
        tokens.add(hash(token))
        if len(tokens) == _GUESSES:
            _log.warning("%s: %d wrong tokens; no other is looked at for a minute", address, _GUESSES)
        while len(self._known) > _ADDRESSES:
            self._known.popitem(last=False)

    def seconds_to_wait(self, address: str) -> int:
        """Until a token from this address is looked at; 0: now."""
        known = self._known.get(_network(address))
        if known is None or len(known[1]) < _GUESSES:
            return 0
        return max(0, math.ceil(known[0] - time.monotonic()))

    def _of(self, address: str) -> tuple[float, set[int]]:
        network, now = _network(address), time.monotonic()
        if self._known.get(network, (0.0,))[0] <= now:
            self._known.pop(network, None)
            self._known[network] = (now + _GUESSES_FOR, set())
        return self._known[network]


def _network(address: str) -> str:
    """What one sender has: an IPv4 address, or 64 bits of an IPv6 one."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    return str(ipaddress.ip_network(f"{found}/64", strict=False)) if found.version == 6 else address


class Guard:
    """Wraps the application. Without a token only this machine is answered, under its own names."""

    def __init__(
        self, app: ASGIApp, limits: Limits, token: str | None, upload_paths: Collection[str], metrics: Metrics
    ) -> None:
        self.app = app
        self.limits = limits
        self.token = token
        self.upload_paths = upload_paths
        self.metrics = metrics
        self.guesses = Guesses()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or refuse before anything is read."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        response = _Response(send, self.metrics, scope)
        headers = Headers(scope=scope)
        limit = self.limits.upload_bytes if scope["path"] in self.upload_paths else self.limits.body_bytes
        refusal = self._refusal(scope, headers) or _too_long(headers, limit)
        if refusal is not None:
            await refusal(scope, receive, response)
            return
        try:
            await self.app(scope, _metered(receive, limit), response)
        except Exception:
            _log.exception("%s %s failed", scope["method"], scope["path"])
            if not response.begun:
                failure = _refuse(500, "failed", "The server failed to answer this request. See its log.")
                await failure(scope, receive, response)

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        """Why this request is not answered, or None."""
        host = headers.get("host", "")
        if self.token is None:
            client = scope.get("client")
            if client is None or not is_loopback(client[0]):
                return _refuse(403, "forbidden", "Without a token only this machine is answered.")
            if host_name(host) not in LOOPBACK_NAMES:  # DNS rebinding: another site's name, pointed at this machine
                return _refuse(421, "forbidden", "This server answers as localhost or 127.0.0.1 only.")
        if not (_same_origin(headers, host) or _opens_the_page(scope, headers)):
            return _refuse(403, "forbidden", "A page of another site may not use this server.")
        return None if self.token is None else self._without_token(scope, headers)

    def _without_token(self, scope: Scope, headers: Headers) -> Response | None:
        """None for a request with the token in a header or cookie; `/?token=…` is redirected, with the cookie."""
        assert self.token is not None
        asked = (scope["method"], scope["path"])
        parameters = parse_qsl(scope["query_string"].decode("latin-1"))
        kind, _, bearer = headers.get("authorization", "").partition(" ")
        in_header = bearer.strip() if kind.lower() == "bearer" else ""
        in_address = dict(parameters).get("token", "") if asked == ("GET", "/") else ""
        given = [one for one in (in_header, _cookie(headers.get("cookie", "")), in_address) if one]
        client = (scope.get("client") or ("",))[0]
        wait = self.guesses.seconds_to_wait(client)
        if wait and given:
            message = "Too many wrong tokens came from this address. Try again in a minute."
            return JSONResponse(error_body("too_many", message), 429, {"Retry-After": str(wait)})
        if any(_equal(one, self.token) for one in given):
            if not _equal(in_address, self.token):
                return None
            rest = urlencode([(name, value) for name, value in parameters if name != "token"])
            response = RedirectResponse(f"/?{rest}" if rest else "/", 303)
            response.set_cookie(COOKIE, self.token, httponly=True, samesite="strict", path="/")
            return response
        for one in given:
            self.guesses.note(client, one)
        if asked == ("GET", HEALTH):  # that it runs is no secret; what it serves is
            return JSONResponse({"status": "ok"})
        return JSONResponse(
            error_body("unauthorised", "A token is needed: open the address printed by `maxmatch serve`."),
            401,
            {"WWW-Authenticate": "Bearer"},
        )


def _metered(receive: Receive, limit: int) -> Receive:
    """The request's body, counted: past the limit the application's attempt to read on is refused."""
    received = 0

    async def counted() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > limit:
            raise HTTPException(413, _too_large(limit), {"Connection": "close"})
        return message

    return counted


class _Response:
    """The response: with the security headers, and counted."""

    def __init__(self, send: Send, metrics: Metrics, scope: Scope) -> None:
        self.send = send
        self.metrics = metrics
        self.scope = scope
        self.started = time.perf_counter()
        self.begun = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begun = True
            headers = [pair for pair in message["headers"] if pair[0] not in _RAW_HEADERS]
            if all(name != b"cache-control" for name, _ in headers):
                headers.append((b"cache-control", b"no-store"))
            message["headers"] = [*headers, *_RAW_HEADERS.items()]
            # The route's pattern, not the path, which would make a new series for every item.
            route = getattr(self.scope.get("route"), "path", "none")
            self.metrics.requests.labels(route, str(message["status"])).inc()
            self.metrics.seconds.labels(route).observe(time.perf_counter() - self.started)
        await self.send(message)


def _too_long(headers: Headers, limit: int) -> Response | None:
    """Refuse by the declared length, before any of the body is read."""
    length = headers.get("content-length", "")
    short = length.isascii() and length.isdigit() and len(length) < 20 and int(length) <= limit
    if short or not length:
        return None
    return JSONResponse(error_body("too_large", _too_large(limit)), 413, {"Connection": "close"})


def _too_large(limit: int) -> str:
    size = f"{limit / 2**20:.0f} MB" if limit >= 2**20 else f"{limit / 2**10:.0f} kB"
    return f"The request is larger than {size}."


def _refuse(status: int, code: str, message: str) -> Response:
    return JSONResponse(error_body(code, message), status)


def host_name(host: str) -> str:
    """A host without its port."""
    return host if host.endswith("]") else host.rsplit(":", 1)[0] if ":" in host else host


def _same_origin(headers: Headers, host: str) -> bool:
    """Whether a request comes from the server's own page, or from no page at all."""
    if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    return origin is None or origin.partition("://")[2] == host


def _opens_the_page(scope: Scope, headers: Headers) -> bool:
    """Whether a link to the page was followed: that is the only request that another site's page may cause."""
    followed = (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")) == ("navigate", "document")
    return followed and "origin" not in headers and scope["path"] == "/" and scope["method"] == "GET"


def _cookie(text: str) -> str:
    # Not SimpleCookie, which drops all cookies if it cannot parse one of another program.
    return cookie_parser(text).get(COOKIE, "")


def _equal(given: str, token: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), token.encode())
