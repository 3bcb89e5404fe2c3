"""A Milvus server for the search benchmark: PyPI's `milvus`, its data in a folder, its program unpacked once."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.search_ours import MILVUS, PROCESS

_SETTINGS = {
    "common.session.ttl": "10",  # s until a server that was killed is taken for gone, before which none starts: else 30
    "log.level": "warn",
    # Not a whole path: 2.3.5 would take the files of vectors themselves for its cache of them, which it deletes. An
    # index that does not hold the vectors (IVF_SQ8) had lost them when the server was started again.
    "localStorage.path": "data",
}


@contextmanager
def running(folder: Path, program: Path) -> Iterator[int]:
    """Start it on the data in the folder, or on none; its address is noted there. Gives the number of its process. The
    program, 246 MB, is unpacked to a folder where the next one finds it.
    """
    from milvus import MilvusServer, MilvusServerConfig

    program.mkdir(parents=True, exist_ok=True)
    (folder / "server").mkdir(exist_ok=True)
    if not (folder / "server" / "bin").exists():
        (folder / "server" / "bin").symlink_to(program.resolve())
    config = MilvusServerConfig(data_dir=str(folder / "server"))
    for name, value in _SETTINGS.items():
        config.set(name, value)
    server = MilvusServer(config)
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
