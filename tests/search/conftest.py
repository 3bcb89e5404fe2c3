"""An index on each engine."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from made_sets import ENGINES

from maxmatch import SetIndex

Make = Callable[..., SetIndex]


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make(engine: str, tmp_path: Path) -> Iterator[Make]:
    """Creates an index of sets of two vectors of width 8, on each engine in turn."""
    made: list[SetIndex] = []

    def create(name: str = "index", **options: Any) -> SetIndex:
        arguments = {"dim": 8, "set_size": 2, "engine": engine, "settings": ENGINES[engine], **options}
        made.append(SetIndex.create(tmp_path / name, **arguments))
        return made[-1]

    yield create
    for index in made:
        index.close()
