"""A Milvus server for the search benchmark: PyPI's `milvus`, with its data in a folder, unpacked once."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.search_ours import MILVUS, PROCESS

_SETTINGS = {
    "common.session.ttl": "10",  # seconds until a killed server counts as gone; no other starts before. Default: 30
    "log.level": "warn",
    # Not an absolute path: 2.3.5 would mistake the vector files for its cache of them, which it deletes. An index that
    # does not contain the vectors (IVF_SQ8) then lost them at the next start of the server.
    "localStorage.path": "data",
}


@contextmanager
def running(folder: Path, program: Path) -> Iterator[int]:
    """Start a server on the data in the folder, if any, and write its address there. Yields its process id.

    The program, 246 MB, is unpacked to a folder that later servers reuse.
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
            server.server_proc.kill()  # its own `stop` waits only three seconds; nothing is lost either way
            server.server_proc.wait()
            server.server_proc = None


def stored(folder: Path) -> Path:
    """Where the server keeps its data."""
    return folder / "server" / "data"
