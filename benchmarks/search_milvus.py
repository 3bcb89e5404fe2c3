"""A Milvus server for the search benchmark: PyPI's `milvus` with its own settings, its data in a folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.search_ours import MILVUS, PROCESS


@contextmanager
def running(folder: Path) -> Iterator[int]:
    """Start it on the data in the folder, or on none; its address is noted there. Gives the number of its process."""
    from milvus import MilvusServer, MilvusServerConfig

    server = MilvusServer(MilvusServerConfig(data_dir=str(folder / "server")))
    try:
        server.start()
        (folder / MILVUS).write_text(f"http://127.0.0.1:{server.listen_port}")
        (folder / PROCESS).write_text(str(server.server_proc.pid))
        yield server.server_proc.pid
    finally:
        if server.server_proc is not None:
            server.server_proc.kill()  # its own `stop` waits three seconds and no longer; nothing is lost either way
            server.server_proc.wait()
            server.server_proc = None


def stored(folder: Path) -> Path:
    """Where the server keeps its data."""
    return folder / "server" / "data"
