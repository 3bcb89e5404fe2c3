"""`maxmatch desktop`: photo search as an entry in the desktop's application menu."""

import hashlib
import json
import os
import shlex
import subprocess
import sys
import urllib.request
import webbrowser
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

_FIRST_PORT, _PORTS = 49_152, 16_000  # ports that no other service is given
_ENTRY, _ICON = "applications/maxmatch.desktop", "icons/hicolor/scalable/apps/maxmatch.svg"


def desktop(
    folders: Annotated[list[Path] | None, typer.Argument(help="Folders of photos. Default: ~/Pictures.")] = None,
    install: Annotated[bool, typer.Option("--install", help="Add an entry to the application menu.")] = False,
    uninstall: Annotated[bool, typer.Option("--uninstall", help="Remove the entry.")] = False,
) -> None:
    """Open photo search from the desktop.

    Starts the server if it is not running, and opens the page. --install adds an entry to the application menu.

    The entry opens a terminal that shows the progress of indexing new photos. Close the terminal to stop the server.

    Examples:

      maxmatch desktop --install ~/Pictures

      maxmatch desktop --uninstall
    """
    if install and uninstall:
        raise typer.BadParameter("--install, --uninstall: give one of them.")
    if (install or uninstall) and sys.platform in ("win32", "darwin"):
        raise ValueError("desktop entries are for Linux desktops. Elsewhere, install the page from the browser's menu.")
    if uninstall:
        for path in (_data() / _ENTRY, _data() / _ICON):
            path.unlink(missing_ok=True)
        return
    chosen = [path.expanduser().resolve() for path in folders or [Path("~/Pictures")]]
    for path in chosen:
        if not path.is_dir():
            raise typer.BadParameter(f"{path}: no such folder.")
    if install:
        print(_install(chosen))
    else:
        _open(chosen)


def desktop_entry(folders: list[Path], program: list[str]) -> str:
    """The file of the entry, as the desktops' specification has it."""
    command = " ".join(_quoted(word) for word in [*program, *map(str, folders)])
    return (
        "[Desktop Entry]\nType=Application\nVersion=1.5\nName=MaxMatch\nGenericName=Photo search\n"
        "Comment=Search photos by describing them\nIcon=maxmatch\nTerminal=true\nCategories=Graphics;Viewer;\n"
        f"Keywords=photo;picture;image;search;\nExec={command}\n"
    )


def _quoted(word: str) -> str:
    """A word of `Exec`: quoted for the command, then for the file; a percent sign would stand for a file."""
    if "\n" in word or "\r" in word:
        raise ValueError(f"{word!r}: a desktop entry cannot hold a name with a line break. Rename the folder.")
    inner = "".join(f"\\{one}" if one in '"`$\\' else one for one in word)
    return f'"{inner}"'.replace("\\", "\\\\").replace("%", "%%")


def _install(folders: list[Path]) -> Path:
    from maxmatch.core.files import write_whole

    write_whole(_data() / _ICON, files("maxmatch.server").joinpath("static/icon.svg").read_text(encoding="utf-8"))
    entry = _data() / _ENTRY
    write_whole(entry, desktop_entry(folders, [sys.executable, "-m", "maxmatch", "desktop"]))
    return entry


def _data() -> Path:
    from maxmatch.core.files import user_data

    return user_data()


def _open(folders: list[Path]) -> None:
    """Open the page of a server that runs; else start one, in the place of this process."""
    port = port_of(folders)
    address = f"http://127.0.0.1:{port}/"
    if is_served(address):
        print(address)
        webbrowser.open(address)
        return
    command = [sys.executable, "-m", "maxmatch", "serve", *map(str, folders), "--port", str(port), "--open"]
    if os.name == "posix":
        print(shlex.join(command[2:]), file=sys.stderr, flush=True)
        os.execv(sys.executable, command)
    raise typer.Exit(subprocess.run(command, check=False).returncode)


def port_of(folders: list[Path]) -> int:
    """The port of the server of these folders, so that a second start finds the first."""
    digest = hashlib.sha256("\0".join(map(str, folders)).encode("utf-8", "surrogatepass")).digest()
    return _FIRST_PORT + int.from_bytes(digest[:4], "big") % _PORTS


def is_served(address: str) -> bool:
    """Whether one of our servers answers there."""
    try:
        with urllib.request.urlopen(f"{address}api/v1/health", timeout=2) as answer:
            health = json.load(answer)
    except (OSError, ValueError):
        return False
    return isinstance(health, dict) and health.get("status") == "ok" and "items" in health
