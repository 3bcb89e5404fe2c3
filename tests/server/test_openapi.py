"""Requests that fit the OpenAPI description, and many that do not, get responses that fit it."""

import hypothesis
import pytest
import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from served import Running, app_of

CHECKS = [not_a_server_error, content_type_conformance, response_schema_conformance, status_code_conformance]
OPERATIONS = {
    "GET /api/v1/search": 12,
    "POST /api/v1/search": 12,
    "POST /api/v1/search/image": 8,
    "GET /api/v1/items/{key}": 4,
    "GET /api/v1/items/{key}/thumbnail": 8,
    "GET /api/v1/items/{key}/explain": 8,
    "GET /api/v1/uploads/{key}/thumbnail": 4,
    "GET /api/v1/gallery": 1,
    "GET /api/v1/health": 1,
}
"""And how many requests each gets."""


@pytest.fixture(scope="module")
def description(gallery):
    running = Running(app_of(gallery))
    yield schemathesis.openapi.from_url(f"{running.address}/api/v1/openapi.json")
    running.stop()


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
        *(("invalid", name) for name in OPERATIONS if name.split("/")[-1] not in ("gallery", "health")),
    ],
)
def test_valid_and_invalid_requests_never_fail_the_server(description, gallery, name, kind):
    method, path = name.split()
    operation = description[path][method]
    mode = {"valid": schemathesis.GenerationMode.POSITIVE, "invalid": schemathesis.GenerationMode.NEGATIVE}[kind]
    keys = iter(range(10_000))

    @hypothesis.settings(
        max_examples=OPERATIONS[name],
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    def answers(case):
        # A generated key is never an item's: every other request gets a real one.
        if "key" in (case.path_parameters or {}) and next(keys) % 2:
            case.path_parameters["key"] = gallery.key(next(keys) % 24)
        case.call_and_validate(checks=CHECKS, timeout=30)

    answers()
