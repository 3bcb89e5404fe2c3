"""`maxmatch serve`: the web page and the API for an index or for folders of photos."""

import io
import ipaddress
import json
import os
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from maxmatch.cli.common import ExcludeOption
from maxmatch.core.machine import use_few_heaps

_WAITING = 1024  # clients that the system keeps until the server accepts them
_THIS_MACHINE = "127.0.0.1"
_BEFORE_SERVING = 256  # new photos of each folder that are encoded first; the rest follow while the server runs

if TYPE_CHECKING:
    from maxmatch.search.set_index import SetIndex


def serve(
    index: Annotated[list[Path], typer.Argument(help="Folders of photos, or the folder of an image index.")],
    model: Annotated[
        str | None, typer.Option(help="Default: the index's model; for photo folders, maxmatch-small.")
    ] = None,
    pictures: Annotated[
        Path | None,
        typer.Option(help="The folder that item ids are relative to. Default: the folder that was encoded."),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Any address other than localhost requires --token.")
    ] = _THIS_MACHINE,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free port.")] = 8765,
    token: Annotated[
        str | None, typer.Option(envvar="MAXMATCH_TOKEN", help="Secret that clients must send; at least 16 characters.")
    ] = None,
    lan: Annotated[
        bool,
        typer.Option(
            "--lan", help="Serve phones and computers on your network; prints an address and a QR code with a token."
        ),
    ] = False,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    exclude: ExcludeOption = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 … Default: a GPU if there is one.")] = None,
    index_device: Annotated[
        str | None,
        typer.Option(help="Keep all items of an index in the memory of this device, as cuda, and score all of them."),
    ] = None,
) -> None:
    """Search photos in the browser, and see why each was found.

    The index of a photo folder is kept in your cache directory; photos that are already indexed are not read again. If
    there are many new photos, the page opens with the first ones and adds the others as they are read. While the server
    runs, it checks for new, changed and deleted photos every 10 to 45 seconds.

    The address is printed when the server is ready. Only indexed images are served, and only to this machine. To use it
    from your phone, add --lan and scan the QR code in the terminal. Or set --host and --token yourself; the token
    becomes part of the address. The API is at /api/v1 (see /api/v1/openapi.json), Prometheus metrics are at /metrics.
    Stop the server with Ctrl-C.

    Examples:

      maxmatch serve ~/Pictures --open

      maxmatch serve ~/Pictures --lan

      maxmatch serve ~/Pictures /mnt/photos --exclude '*.gif'

      maxmatch serve photos.index --open

      maxmatch serve photos --host 0.0.0.0 --token "$(openssl rand -hex 16)"
    """
    use_few_heaps()
    check_installed()
    import uvicorn

    from maxmatch.server.app import create_app
    from maxmatch.server.connections import server_config
    from maxmatch.server.security import check_token, kept_token

    if lan:
        host = "0.0.0.0" if host == _THIS_MACHINE else host
        token = token or kept_token()
    try:
        check_token(host, token)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    from maxmatch.cli.common import are_folders_of_photos, load_model, model_of, open_folders, say
    from maxmatch.search.set_index import SetIndex

    is_photos = are_folders_of_photos(index, exclude or ())
    if is_photos and index_device is not None:
        raise typer.BadParameter("--index-device is for an index. Folders of photos are kept in memory already.")
    with listen(host, port) as listener, ExitStack() as opened:  # an address in use is reported before anything is read
        if is_photos:
            library, encoder = open_folders(
                index, model, device, load_model, exclude=exclude or (), at_most=_BEFORE_SERVING, thorough=True
            )
            opened.callback(library.close)
            searched, look = library.index, partial(library.sync, encoder)
            picture: Callable[[str], Path] = library.picture
            name = " and ".join(one.root.resolve().name for one in library.folders)
        else:
            searched = opened.enter_context(SetIndex.open(index[0], index_device))
            encoder = model_of(searched, index[0], model, device, load_model)
            pictures = pictures or encoded_folder(searched)
            picture, look = picture_in(pictures), None
            name = (pictures or index[0]).expanduser().resolve().name
        app = create_app(searched, encoder, picture, name=name, token=token, look=look)
        say(f"{len(searched):,} pictures")
        _run(uvicorn.Server(server_config(app, host)), listener, host, token, open_page, lan)


def encoded_folder(index: "SetIndex") -> Path | None:
    """The folder that ids are relative to, from the full path that `maxmatch encode` records with each item. None if
    there is no such path: then ids are full paths.
    """
    first = next(index.engine.scan(1, vectors=False, metadata=True), None)
    for name, text in zip(first.ids, first.metadata or [], strict=True) if first is not None else ():
        path = json.loads(text).get("path")
        if isinstance(path, str) and path != name and path.endswith(f"/{name}"):
            return Path(path.removesuffix(name))
    return None


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens on the address. OSError if that is not possible."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise OSError(
            f"--host {host}: not an address of this machine ({error.strerror}). 127.0.0.1 always is."
        ) from error
    listener = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":  # as asyncio does: the port of a server that just stopped is free
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()  # from here on the port is ours; early clients wait
    except OSError as error:
        listener.close()
        reason = os.strerror(error.errno).lower() if error.errno else str(error)
        raise OSError(
            f"cannot listen on {host}, port {port}: {reason}. Choose another --port (0: any free one) or --host."
        ) from error
    return listener


def reachable(host: str, listener: socket.socket) -> str:
    """An address that other machines can open: for 0.0.0.0 and ::, this machine's own in its network."""
    try:
        if not ipaddress.ip_address(listener.getsockname()[0]).is_unspecified:
            return host
        family = listener.family
        if family == socket.AF_INET6 and not listener.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY):
            family = socket.AF_INET  # it is reached under both, and this one is shorter to type
        outside = "2001:db8::1" if family == socket.AF_INET6 else "192.0.2.1"  # addresses of documentation
        with socket.socket(family, socket.SOCK_DGRAM) as asked:
            asked.connect((outside, 9))  # chooses a route; nothing is sent
            return str(asked.getsockname()[0])
    except (OSError, ValueError):  # no network
        return host


def check_installed() -> None:
    """Name the packages that are missing, if any."""
    try:
        import uvicorn  # noqa: F401

        import maxmatch.server.app  # noqa: F401
        from maxmatch.search.engines.lance_search import lancedb_library

        lancedb_library()
    except ImportError as error:
        raise ValueError(f"serve needs {error.name}: pip install 'maxmatch[server,search]'") from error


def picture_in(folder: Path | None) -> Callable[[str], Path]:
    """The file of an id: a path in the folder, never outside it; without a folder, the id itself."""
    if folder is None:
        return Path
    root = folder.expanduser().resolve()

    def picture(name: str) -> Path:
        path = Path(os.path.normpath(root / name))
        if not path.is_relative_to(root):
            raise FileNotFoundError(f"{name}: not in {root}.")
        return path

    return picture


def _address(host: str, port: int, token: str | None) -> str:
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}/" + (f"?token={quote(token, safe='')}" if token else "")


def _show_code(address: str) -> None:
    """The address as a QR code on stderr, to be read by a phone's camera."""
    try:
        import segno
    except ImportError:
        print("maxmatch: for a QR code: pip install segno", file=sys.stderr)
        return
    code = io.StringIO()
    segno.make(address, error="l", micro=False).terminal(code, compact=True)
    print(code.getvalue(), file=sys.stderr)
    print("maxmatch: whoever has this address sees the pictures; nothing is encrypted.", file=sys.stderr)


def _run(server: object, listener: socket.socket, host: str, token: str | None, open_page: bool, lan: bool) -> None:
    """Serve until Ctrl-C; print the address once the server is ready, for a phone as a QR code too."""
    import asyncio
    import webbrowser

    import uvicorn

    assert isinstance(server, uvicorn.Server)

    async def announced() -> None:
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started and not serving.done():
            await asyncio.sleep(0.05)
        if server.started:
            listener.listen(_WAITING)
            port = listener.getsockname()[1]
            reached = reachable(host, listener)
            address = _address(reached, port, token)
            if lan:
                _show_code(address)
            print(address, flush=True)
            if open_page:  # a page under this machine's own name may show files in their folders
                everywhere = lan and ipaddress.ip_address(listener.getsockname()[0]).is_unspecified
                webbrowser.open(_address(_THIS_MACHINE, port, token) if everywhere else address)
        await serving

    asyncio.run(announced())
