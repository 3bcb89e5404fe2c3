"""An index on each engine."""

import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from made_sets import ENGINES
from picture_heap import HEAP, write_heap
from tiny_models import saved_model

from maxmatch import SetEncoder, SetIndex

if TYPE_CHECKING:
    from milvus_server import MilvusServer

Make = Callable[..., SetIndex]
EACH_ENGINE = ["lance", pytest.param("milvus", marks=pytest.mark.slow)]


@pytest.fixture(scope="session")
def milvus_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> "Iterator[MilvusServer]":
    """One server for all tests; never skipped on Linux."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        pytest.skip("PyPI's milvus has a server for Linux on x86-64 only")
    from milvus_server import Recycling, running_server

    from maxmatch.search.engines import milvus

    cache = request.config.cache.mkdir("milvus")
    with running_server(cache, tmp_path_factory.mktemp("milvus")) as server, pytest.MonkeyPatch.context() as patch:
        patch.setattr(milvus, "make_collection", Recycling())
        ENGINES["milvus"]["uri"] = server.uri
        yield server


@pytest.fixture(params=EACH_ENGINE, scope="module")
def engine(request: pytest.FixtureRequest) -> str:
    if request.param == "milvus":
        request.getfixturevalue("milvus_server")
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
        shutil.rmtree(index.folder)  # with it goes the claim to a collection on the server


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small model that reads pictures and texts."""
    return saved_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def model(checkpoint: Path) -> SetEncoder:
    return SetEncoder.from_pretrained(checkpoint)


@pytest.fixture(scope="session")
def heap(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str], dict[str, str]]:
    """A folder of pictures and other things, which of them can be read, and which cannot and why."""
    folder = tmp_path_factory.mktemp("heap")
    return (folder, *write_heap(folder, HEAP))
