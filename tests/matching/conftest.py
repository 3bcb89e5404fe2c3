"""What the tests of several parts of scoring use."""

import pytest

from maxmatch.matching import numba_backend, scoring


@pytest.fixture(params=["plain", "compiled"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With and without the compiled code, whatever the size of the job and whether it was loaded before."""
    code = numba_backend if request.param == "compiled" else None
    monkeypatch.setattr(scoring, "compiled_for", lambda sets, **_: code if sets.element_size() <= 4 else None)
    return request.param
