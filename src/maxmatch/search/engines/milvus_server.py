"""The connection to a Milvus server: where it is, which collection is ours, and what an error means."""

import json
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urlsplit

from maxmatch.search.engine import Place

if TYPE_CHECKING:
    from pymilvus import MilvusClient

SETTINGS = frozenset({"uri", "timeout", "consistency", "collection", "index", "shards"})
TOKEN = "MAXMATCH_MILVUS_TOKEN"
FILE = "milvus.json"
"""In the index's folder: which collection holds its items."""


@dataclass(frozen=True)
class Server:
    """Where a server is, how long to wait for its answers, and how fresh they must be."""

    uri: str
    seconds: float
    consistency: str

    @contextmanager
    def talking(self, collection: str | None = None) -> Iterator[None]:
        """Errors of the client become one line each, that says what to do."""
        import grpc
        from pymilvus.exceptions import MilvusException

        try:
            yield
        except (MilvusException, grpc.RpcError) as error:
            self._explain(error, collection)

    def _explain(self, error: Any, collection: str | None) -> NoReturn:
        import grpc
        from pymilvus.exceptions import MilvusException

        of_client = isinstance(error, MilvusException)
        code = error.code if of_client else error.code()
        reason = " ".join(str(error.message if of_client else error.details()).split())[:300]
        if code == grpc.StatusCode.UNAUTHENTICATED or "auth check fail" in reason:
            raise ConnectionError(
                f"{self.uri}: the Milvus server refused the login ({reason}). Set {TOKEN} to user:password or a token."
            ) from error
        if isinstance(code, grpc.StatusCode) or re.search("(?i)timeout|fail connecting|unavailable|deadline", reason):
            raise ConnectionError(
                f"{self.uri}: the Milvus server does not answer ({reason}). "
                "Start it, or mend the address or the network; what was acknowledged is kept."
            ) from error
        where = self.uri if collection is None else f"{self.uri}, collection {collection}"
        raise OSError(f"{where}: the Milvus server refused ({reason}).") from error

    def connect(self) -> "MilvusClient":
        """A connection. ConnectionError if nobody answers."""
        try:
            from pymilvus import MilvusClient
        except ImportError as error:
            raise ImportError("the engine milvus needs its client: pip install 'maxmatch[milvus]'") from error
        # The client logs every error with its stack before it raises it; the error alone is enough.
        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
        with self.talking():
            return MilvusClient(uri=self.uri, token=os.environ.get(TOKEN, ""), timeout=min(self.seconds, 10.0))


def server_of(place: Place) -> Server:
    """The server that the settings name."""
    unknown = sorted(set(place.settings) - SETTINGS)
    if unknown:
        raise ValueError(f"settings: Milvus knows {', '.join(sorted(SETTINGS))}; got {unknown[0]!r}.")
    uri = place.settings.get("uri")
    parts = urlsplit(uri) if isinstance(uri, str) else None
    if not isinstance(uri, str) or parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"uri: expected the address of a Milvus server, as http://localhost:19530, got {uri!r}.")
    if parts.username or parts.password:
        raise ValueError(f"uri: a password would be written to the folder. Leave it out, and set {TOKEN} instead.")
    seconds = place.settings.get("timeout", 60)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds <= 0:
        raise ValueError(f"timeout: expected seconds to wait for the Milvus server, got {seconds!r}.")
    consistency = place.settings.get("consistency", "Strong")
    if consistency not in ("Strong", "Session", "Bounded", "Eventually"):
        raise ValueError(f"consistency: expected Strong, Session, Bounded or Eventually, got {consistency!r}.")
    shards = place.settings.get("shards", 1)
    if isinstance(shards, bool) or not isinstance(shards, int) or not 1 <= shards <= 16:
        raise ValueError(f"shards: expected 1 to 16, got {shards!r}.")
    return Server(uri, float(seconds), str(consistency))


def chosen_collection(place: Place) -> str | None:
    """The name of the collection, where the settings give one."""
    name = place.settings.get("collection")
    if name is None or (isinstance(name, str) and re.fullmatch("[A-Za-z_][A-Za-z0-9_]{0,254}", name)):
        return name
    raise ValueError(f"collection: expected letters, digits and _, not a digit first, got {name!r}.")


def noted_collection(place: Place) -> str:
    """The name of the collection, as the folder has it."""
    path = place.folder / FILE
    if not path.is_file():
        raise FileNotFoundError(f"{path}: not there. It names the collection on the Milvus server; restore it.")
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["collection"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f'{path}: expected {{"collection": "…"}}. Restore it from a copy.') from error
