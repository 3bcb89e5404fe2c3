"""The engines that an index can use, by name. A new one is a module with `create`, `open_engine` and `check_files`,
and a line in the table.
"""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

from maxmatch.search.engine import Engine, Location
from maxmatch.search.engines.cached_table import CachedEngine, read_cache


class EngineEntry(NamedTuple):
    """An engine: its module in this package, loaded when first used, and the extra that installs its library."""

    module: str
    extra: str
    options: dict[str, Any] = {}  # noqa: RUF012
    """Passed to the module's `create` and `open_engine`."""
    cached: bool = False
    """Whether a small table is also kept in one file, which is read in milliseconds."""


ENGINES = {
    "lance": EngineEntry("lance", "search", cached=True),
    "exhaustive": EngineEntry("lance", "search", {"trained": False}, cached=True),  # every search scans
    "milvus": EngineEntry("milvus", "milvus"),
}


def create_engine(name: str, place: Location) -> Engine:
    """An empty store. What a killed `create` left there is discarded."""
    engine: Engine = _function(name, "create")(place)
    return engine


def open_engine(name: str, place: Location) -> Engine:
    """The existing store; where its cache is up to date, the cache, and the store once it is needed."""
    entry = ENGINES.get(name)
    cache = read_cache(place.folder, place.width) if entry is not None and entry.cached else None
    if cache is not None:
        return CachedEngine(place, cache, lambda place: open_engine_itself(name, place))
    return open_engine_itself(name, place)


def open_engine_itself(name: str, place: Location) -> Engine:
    """The store, without looking for a cache; FileNotFoundError or ConnectionError if there is none."""
    engine: Engine = _function(name, "open_engine")(place)
    return engine


def check_files(name: str, place: Location) -> None:
    """Look for damage that reading alone does not show; ValueError that names the file. A server checks its own."""
    _function(name, "check_files")(place)


def _function(name: str, what: str) -> Callable[..., Any]:
    """A function of an engine's module, with the options of the table."""
    if name not in ENGINES:
        raise ValueError(f"engine: expected one of {', '.join(ENGINES)}, got {name!r}.")
    entry = ENGINES[name]
    try:
        function: Callable[..., Any] = getattr(import_module(f"maxmatch.search.engines.{entry.module}"), what)
    except ImportError as error:
        if error.name is not None and error.name.startswith("maxmatch"):
            raise
        raise ImportError(f"engine {name!r} needs {error.name}: pip install 'maxmatch[{entry.extra}]'") from error
    return partial(function, **entry.options)
