"""What the tests of several verbs use."""

import pytest
from tiny_models import saved_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder of a small model that reads pictures and texts."""
    return saved_model(tmp_path_factory.mktemp("models") / "tiny")
