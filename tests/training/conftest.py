"""Data that several tests train on and none changes."""

import pytest
from small_runs import write_data, write_pictures


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """Region features: 48 pictures to train on and 16 to validate, two captions each."""
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """A table of picture files and captions."""
    return write_pictures(tmp_path_factory.mktemp("pictures") / "data")
