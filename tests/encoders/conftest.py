from collections.abc import Iterator

import pytest
from jaxtyping import config


@pytest.fixture
def without_shape_checks() -> Iterator[None]:
    """As a user has it: no import hook, so that wrong input reaches the package's own checks."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)
