"""What the tests of several verbs use."""

import pytest
from picture_heap import write_heap
from tiny_models import saved_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder of a small model that reads pictures and texts."""
    return saved_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def heap(tmp_path_factory):
    """A folder of pictures and other things, which of them can be read, and which cannot and why."""
    folder = tmp_path_factory.mktemp("heap")
    return (folder, *write_heap(folder, 60))
