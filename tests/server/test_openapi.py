"""The OpenAPI description is exact: what fits it is answered, what does not is refused, and all responses fit it."""

import io

import httpx
import hypothesis
import pytest
import schemathesis
from hypothesis import strategies
from PIL import Image
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.specs.openapi.checks import ignored_auth
from served import Running, app_of

OPERATIONS = {
    "GET /api/v1/search": 12,
    "POST /api/v1/search": 12,
    "POST /api/v1/search/image": 8,
    "GET /api/v1/items/{key}": 4,
    "GET /api/v1/items/{key}/thumbnail": 8,
    "GET /api/v1/items/{key}/explain": 8,
    "GET /api/v1/uploads/{key}/thumbnail": 4,
    "GET /api/v1/items/{key}/details": 4,
    "GET /api/v1/items/{key}/original": 6,
    "POST /api/v1/items/{key}/reveal": 3,
    "POST /api/v1/downloads": 6,
    "GET /api/v1/downloads/{key}": 3,
    "GET /api/v1/albums": 1,
    "POST /api/v1/albums": 6,
    "POST /api/v1/albums/{key}/photos": 6,
    "PATCH /api/v1/albums/{key}": 6,
    "DELETE /api/v1/albums/{key}": 3,
    "POST /api/v1/searches": 8,
    "DELETE /api/v1/searches/{key}": 3,
    "GET /api/v1/gallery": 1,
    "GET /api/v1/timeline": 4,
    "GET /api/v1/health": 1,
    "GET /api/v1/not-read": 1,
}
"""And how many requests each gets."""


def picture(kind):
    file = io.BytesIO()
    Image.new("RGB", (20, 10), "green").save(file, kind)
    return file.getvalue()


for kind in ("jpeg", "png", "webp", "gif", "bmp", "tiff", "avif"):
    schemathesis.openapi.media_type(f"image/{kind}", strategies.just(picture(kind)))
load_all_checks()


@pytest.fixture(scope="module")
def running(gallery):
    with pytest.MonkeyPatch.context() as patched:  # no windows on the screen of who runs the tests
        patched.setattr("maxmatch.server.originals.file_manager", lambda path: [])
        server = Running(app_of(gallery))
        yield server
        server.stop()


@pytest.fixture(scope="module")
def description(running):
    return schemathesis.openapi.from_url(f"{running.address}/api/v1/openapi.json")


@pytest.fixture(scope="module")
def uploaded(running):
    """The key of an uploaded picture."""
    sent = httpx.post(f"{running.address}/api/v1/search/image", files={"file": picture("png")}, timeout=30)
    return sent.json()["upload"]


def test_every_route_is_described_and_tried(description):
    described = {
        f"{operation.ok().method.upper()} {operation.ok().path}" for operation in description.get_all_operations()
    }
    assert described == set(OPERATIONS)


# The server works in a thread of this process, and may draw a random number while a request is being made up.
@pytest.mark.filterwarnings("ignore:Do not use the `random` module:hypothesis.errors.HypothesisDeprecationWarning")
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("valid", name) for name in OPERATIONS),
        *(
            ("invalid", name)
            for name in OPERATIONS
            if name.split("/")[-1] not in ("gallery", "health", "not-read") and name != "GET /api/v1/albums"
        ),
    ],
)
def test_requests_are_answered_as_described(description, gallery, uploaded, name, kind):
    method, path = name.split()
    operation = description[path][method]
    mode = {"valid": schemathesis.GenerationMode.POSITIVE, "invalid": schemathesis.GenerationMode.NEGATIVE}[kind]
    numbers = iter(range(10_000))
    checks = [check for check in CHECKS.get_all() if check is not ignored_auth]

    @hypothesis.settings(
        max_examples=OPERATIONS[name],
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    def answers(case):
        # A generated key is never an item's: every other valid request gets real ones.
        if kind == "valid" and next(numbers) % 2:
            real = {"key": gallery.key(5), "like": gallery.key(6), "upload": uploaded}
            if "/uploads/" in path:
                real["key"] = uploaded
            body = case.body if isinstance(case.body, dict) else {}
            for values in (case.path_parameters or {}, case.query or {}, *body.get("parts", [])):
                values.update({field: real[field] for field in real if values.get(field)})
        case.call_and_validate(checks=checks, timeout=30)

    answers()


def test_a_refused_method_is_told_all_that_are_allowed(client):
    assert client.delete("/api/v1/search").headers["allow"] == "GET, POST"
    assert client.post("/api/v1/gallery").headers["allow"] == "GET"


def test_days_are_written_as_days(client):
    for value in ("0", "0.0", "1704067200", "2024-1-1", "20240101", "2024-01-01T00:00:00", "2024-13-01"):
        assert client.get("/api/v1/search", params={"from": value}).status_code == 422, value
    assert client.get("/api/v1/search", params={"from": "2024-01-03"}).json()["total"] == 22
    refused = client.get("/api/v1/search", params={"from": "2024-01-03", "to": "2024-01-01"})
    assert (refused.status_code, "after the last" in refused.json()["error"]["message"]) == (409, True)


@pytest.mark.filterwarnings("ignore::maxmatch.model.text.TextTruncated")
def test_the_longest_texts_that_are_described_are_read(running, gallery):
    """Each character takes twelve bytes in an address, and in JSON."""
    text = "\N{GRINNING FACE}" * 1000
    with httpx.Client(base_url=f"{running.address}/api/v1", timeout=60) as client:
        assert client.get("/search", params={"q": text, "folder": text}).status_code == 200
        body = {"parts": [{"text": text}] * 8, "folder": text}
        assert client.post("/search", json=body).status_code == 200
