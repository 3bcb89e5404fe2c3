"""The engines that an index can stand on, by name. Each is a module with `create(place)` and `open_engine(place)`."""

from importlib import import_module
from types import ModuleType

from maxmatch.search.engine import Engine, EngineMaker, Location
from maxmatch.search.engines.cached_table import CopiedEngine, read_copy

# name -> module. Loaded when first used: each brings a library of its own.
ENGINES = {
    "lance": "maxmatch.search.engines.lance",
    "exhaustive": "maxmatch.search.engines.exhaustive",
    "milvus": "maxmatch.search.engines.milvus",
}
_COPIED = ("lance", "exhaustive")


def create_engine(name: str, place: Location) -> Engine:
    """An empty store."""
    create: EngineMaker = _module(name).create
    return create(place)


def open_engine(name: str, place: Location) -> Engine:
    """The store that is there; where a copy of it can be read, the copy, and the store once it is needed."""
    copy = read_copy(place.folder, place.width) if name in _COPIED else None
    if copy is not None:
        return CopiedEngine(place, copy, lambda place: open_engine_itself(name, place))
    return open_engine_itself(name, place)


def open_engine_itself(name: str, place: Location) -> Engine:
    """The store, without a look for a copy."""
    open_it: EngineMaker = _module(name).open_engine
    return open_it(place)


def _module(name: str) -> ModuleType:
    if name not in ENGINES:
        raise ValueError(f"engine: expected one of {', '.join(ENGINES)}, got {name!r}.")
    try:
        return import_module(ENGINES[name])
    except ImportError as error:
        if error.name is not None and error.name.startswith("maxmatch"):
            raise
        extra = "milvus" if name == "milvus" else "search"
        raise ImportError(f"engine {name!r} needs {error.name}: pip install 'maxmatch[{extra}]'") from error
