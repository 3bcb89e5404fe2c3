"""Every search scans: the same table as `lance`, without an index over its vectors."""

from maxmatch.search.engine import Engine, Location
from maxmatch.search.engines import lance


def create(place: Location) -> Engine:
    """An empty table in the folder."""
    return lance.create(place, trained=False)


def open_engine(place: Location) -> Engine:
    """The table of the folder."""
    return lance.open_engine(place, trained=False)
