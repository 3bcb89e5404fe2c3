"""What the tests of several verbs use."""

import pytest
from tiny_models import tiny_model, with_statistics


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder of a small model that reads pictures and texts."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    with_statistics(tiny_model("resnet152_bigru", seed=1)).save_pretrained(folder)
    return folder
