"""Every search scans: the same table as `lance`, without an index over its vectors."""

from maxmatch.search.engine import Engine, Place
from maxmatch.search.engines import lance


def create(place: Place) -> Engine:
    """An empty table in the folder."""
    return lance.create(place, trained=False)


def open_engine(place: Place) -> Engine:
    """The table of the folder."""
    return lance.open_engine(place, trained=False)
