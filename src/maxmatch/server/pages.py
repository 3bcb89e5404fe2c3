"""The page's own files, read once: a request chooses among them by name and never reaches the file system."""

import hashlib
from dataclasses import dataclass
from importlib import resources

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
START = "index.html"


@dataclass(frozen=True)
class PageFile:
    """A file of the page."""

    content: bytes
    type: str
    tag: str
    """Another one when the content is another."""


def page_files() -> dict[str, PageFile]:
    """Every file of the page by its name."""
    folder = resources.files("maxmatch.server") / "static"
    files = {}
    for entry in folder.iterdir():
        kind = _TYPES.get(entry.name.rsplit(".", 1)[-1])
        if kind is not None and entry.is_file():
            content = entry.read_bytes()
            files[entry.name] = PageFile(content, kind, f'"{hashlib.sha256(content).hexdigest()[:16]}"')
    return files
