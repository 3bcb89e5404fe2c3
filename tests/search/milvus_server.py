"""A real Milvus server of one's own: PyPI's `milvus`, started on free ports, killed and started again."""

import json
import lzma
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from maxmatch.search.engine import Location
from maxmatch.search.engines import milvus

_make_collection = milvus.make_collection
START_SECONDS = 120  # it takes 4 on two idle cores
SETTINGS = {
    "proxy.timeTickInterval": "20",  # ms that a strongly consistent read waits at most; by default 200
    "queryCoord.checkInterval": "100",  # so that a new collection is ready in half a second and not in three
    "queryCoord.distPullInterval": "50",
    "common.session.ttl": "10",  # s until a server that was killed is taken for gone; by default 30
    "log.level": "warn",
    "proxy.ip": "127.0.0.1",
}


def unpacked(folder: Path) -> Path:
    """The server's program and libraries, 246 MB, in a folder that later runs find again."""
    import milvus

    packed = Path(milvus.__file__).parent / "data" / "bin"
    target = folder / f"milvus-{milvus.__version__}"
    target.mkdir(parents=True, exist_ok=True)

    def unpack(source: Path) -> None:
        if not (place := target / source.stem).exists():
            part = place.with_name(f"{source.stem}.{os.getpid()}")
            part.write_bytes(lzma.decompress(source.read_bytes()))
            part.chmod(0o755)
            part.replace(place)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(unpack, sorted(packed.glob("*.lzma"), key=lambda path: -path.stat().st_size)))
    return target


class MilvusServer:
    """A server whose data are in a folder. `kill`, then `start` again: the same data, the same ports."""

    def __init__(self, program: Path, folder: Path) -> None:
        from milvus import MilvusServerConfig

        self.program, self.folder = program, folder
        self.process: subprocess.Popen[bytes] | None = None
        config = MilvusServerConfig(data_dir=str(folder))
        names = [name for name in config.configurable_items if name.endswith("_port")]
        self.health, clients, peers, *ports = _free_ports(3 + len(names))
        config.update(**dict(zip(names, ports, strict=True)))
        for name, value in SETTINGS.items():
            config.set(name, value)
        config.resolve()
        self._write_etcd_config(clients, peers)
        self.uri = f"http://127.0.0.1:{config.get('proxy_port')}"

    def _write_etcd_config(self, clients: int, peers: int) -> None:
        """Without it the etcd within listens at 2379 and 2380, where another server may be."""
        at = [f"http://127.0.0.1:{port}" for port in (clients, peers)]
        settings = {
            "name": "etcd",
            "data-dir": str(self.folder / "data" / "etcd.data"),
            "listen-client-urls": at[0],
            "advertise-client-urls": at[0],
            "listen-peer-urls": at[1],
            "initial-advertise-peer-urls": at[1],
            "initial-cluster": f"etcd={at[1]}",
        }
        (self.folder / "configs" / "etcd.json").write_text(json.dumps(settings))

    def start(self) -> None:
        """Start it and wait until it answers."""
        assert self.process is None
        environment = {
            **os.environ,
            "DEPLOY_MODE": "STANDALONE",
            "ETCD_CONFIG_PATH": str(self.folder / "configs" / "etcd.json"),
            "METRICS_PORT": str(self.health),
            "LD_LIBRARY_PATH": str(self.program),
        }
        # setpriv: the server dies with the tests, also when these are killed and cannot stop it.
        command = ["setpriv", "--pdeathsig", "KILL", str(self.program / "milvus"), "run", "standalone"]
        with (self.folder / "logs" / "output.log").open("ab") as log:
            self.process = subprocess.Popen(command, cwd=self.folder, env=environment, stdout=log, stderr=log)
        try:
            self._wait()
        except BaseException:
            self.kill()
            raise

    def _wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not self._healthy():
            code = self.process.poll()
            if code is not None or time.monotonic() > deadline:
                what = f"ended with code {code}" if code is not None else f"gave no answer in {START_SECONDS} s"
                log = (self.folder / "logs" / "output.log").read_text(errors="replace")[-4000:]
                raise RuntimeError(f"the Milvus server {what}:\n{log}")
            time.sleep(0.1)

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.health}/healthz", timeout=5) as answer:
                return b"OK" in answer.read()
        except (urllib.error.URLError, OSError):
            return False

    def kill(self) -> None:
        """SIGKILL, at once. Asked to end it would take its time, and a crash is what its data must survive."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@contextmanager
def running_server(cache: Path, folder: Path) -> Iterator[MilvusServer]:
    """A server, ended in the end whatever happens."""
    server = MilvusServer(unpacked(cache), folder)
    try:
        server.start()
        yield server
    finally:
        server.kill()


def _free_ports(count: int) -> list[int]:
    """Ports that nobody uses: all held at once, so that they differ, then let go."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


class Recycling:
    """In place of `make_collection`, for indexes without wishes of their own: Milvus takes three seconds to make a
    collection ready, so one whose index is gone is emptied and used again.
    """

    def __init__(self) -> None:
        self.made: dict[str, Location] = {}

    def __call__(self, place: Location, server: milvus.Server, client: Any) -> str:
        for name, old in self.made.items():
            if not old.folder.exists() and (old.width, old.settings) == (place.width, place.settings):
                rows = client.query(name, filter="draw >= 0", output_fields=["id"], consistency_level="Strong")
                if rows:
                    client.delete(name, filter=f"id in {json.dumps([row['id'] for row in rows])}")
                (place.folder / milvus.FILE).write_text(json.dumps({"collection": name}))
                self.made[name] = place
                return name
        name = _make_collection(place, server, client)
        self.made[name] = place
        return name
