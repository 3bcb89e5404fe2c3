import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
import segno
import torch
from commands import run
from made_data import environment
from PIL import Image
from served import make_gallery
from torch.nn.functional import normalize

from maxmatch import SetIndex
from maxmatch.cli import main as command
from maxmatch.cli import serve
from maxmatch.cli.serve import encoded_folder, listen, picture_in, reachable
from maxmatch.search.engines import cached_table
from maxmatch.server.security import kept_token


@pytest.mark.parametrize("more", [["--host", "0.0.0.0"], ["--host", "192.168.1.2"], ["--token", "short"]])
def test_others_are_not_listened_to_without_a_token(tmp_path, capsys, more):
    with pytest.raises(SystemExit) as end:
        command.main(["serve", str(tmp_path), "--model", "x", *more])
    assert end.value.code == 2
    assert "--token" in capsys.readouterr().err


def test_a_network_is_served_under_a_token_that_is_kept(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("MAXMATCH_TOKEN", raising=False)
    token = kept_token()
    assert kept_token() == token
    assert len(token) == 32
    place = tmp_path / "maxmatch" / "token"
    assert place.stat().st_mode & 0o077 == 0, "nobody else may read it"
    place.write_text("short")
    assert len(kept_token()) == 32, "one that can be guessed is replaced"


def test_lan_listens_to_the_network_with_the_kept_token(model, tmp_path, capsys, monkeypatch):
    for name in ("XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.delenv("MAXMATCH_TOKEN", raising=False)
    started = []
    monkeypatch.setattr("maxmatch.cli.serve._run", lambda *arguments: started.append(arguments[1:]))
    folder = tmp_path / "pictures"
    folder.mkdir()
    Image.new("RGB", (40, 50), "teal").save(folder / "a.png")
    assert run(capsys, "serve", folder, "--model", model, "--port", "0", "--lan").code == 0
    [(_, *rest)] = started
    assert rest == ["0.0.0.0", kept_token(), False, True]


def test_the_qr_code_says_the_address(capsys):
    address = "http://192.168.1.7:8765/?token=0123456789abcdef0123456789abcdef"
    serve._show_code(address)
    drawn = [line for line in capsys.readouterr().err.splitlines() if line and set(line) <= set(" ▀▄█")]
    dark = {" ": (0, 0), "▀": (1, 0), "▄": (0, 1), "█": (1, 1)}
    rows = [[dark[one][half] for one in line] for line in drawn for half in (0, 1)]
    expected = [list(row) for row in segno.make(address, error="l", micro=False).matrix_iter(border=4)]
    found = [row[: len(expected[0])] for row in rows[: len(expected)]]
    inverted = [[1 - one for one in row] for row in found]
    assert expected in (found, inverted)


def test_an_unusable_address_is_reported_before_any_picture_is_read(tmp_path, capsys):
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        for more, named in (
            (["--port", str(port)], f"127.0.0.1, port {port}: address already in use"),
            (["--host", "no.such.host.invalid", "--token", "0123456789abcdef"], "--host no.such.host.invalid"),
        ):
            with pytest.raises(SystemExit) as end:
                command.main(["serve", str(tmp_path), *more])
            assert end.value.code == 1
            [line] = capsys.readouterr().err.splitlines()
            assert named in line


def test_an_index_of_encoded_pictures_knows_their_folder(tmp_path):
    with SetIndex.create(tmp_path / "index", dim=4, set_size=2) as index:
        assert encoded_folder(index) is None, "an empty one knows nothing"
        for name, metadata, folder in (
            ("a/1.jpg", {"path": "/photos/a/1.jpg"}, Path("/photos")),
            ("1.jpg", {"path": "/photos/a1.jpg"}, None),
            ("/photos/1.jpg", {"path": "/photos/1.jpg"}, None),
            ("1.jpg", {}, None),
        ):
            index.add([name], normalize(torch.ones(1, 2, 4), dim=-1), [metadata])
            assert encoded_folder(index) == folder
            index.remove([name])


def test_damage_that_only_a_search_would_read_is_found_at_the_start(model, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(cached_table, "_MOST_BESIDE", 0)  # as for many photos: no copy answers for the table
    monkeypatch.setattr("maxmatch.cli.serve._run", lambda *arguments: None)
    folder = tmp_path / "pictures"
    folder.mkdir()
    for seed in range(4):
        pixels = np.random.default_rng(seed).integers(0, 256, (40, 50, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{seed}.png")
    asked = ("serve", folder, "--model", model, "--port", "0")
    assert "4 new" in run(capsys, *asked).err
    assert "new" not in run(capsys, *asked).err
    [table] = tmp_path.glob("cache/maxmatch/photos/*/index/items.lance/data")
    [path] = table.iterdir()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1  # of a vector
    path.write_bytes(content)
    again = run(capsys, *asked)
    assert again.code == 0
    assert str(table.parents[2]) in again.err
    assert "4 new" in again.err
    assert "new" not in run(capsys, *asked).err


def test_no_id_leads_out_of_the_folder(tmp_path):
    picture = picture_in(tmp_path)
    assert picture("a/b.jpg") == tmp_path / "a" / "b.jpg"
    for name in ("../x.jpg", "a/../../x.jpg", "/etc/passwd"):
        with pytest.raises(FileNotFoundError):
            picture(name)


def test_the_printed_address_can_be_opened_from_elsewhere(monkeypatch):
    with listen("0.0.0.0", 0) as listener:
        shown = reachable("0.0.0.0", listener)
        with socket.create_connection((shown, listener.getsockname()[1]), timeout=30):
            pass

        class Asked(socket.socket):
            def connect(self, address):
                pass

            def getsockname(self):
                return ("192.168.1.7", 9)

        monkeypatch.setattr(socket, "socket", Asked)
        assert reachable("0.0.0.0", listener) == "192.168.1.7"
        monkeypatch.setattr(Asked, "connect", lambda self, address: exec("raise OSError"))
        assert reachable("0.0.0.0", listener) == "0.0.0.0", "without a network"
    with listen("127.0.0.1", 0) as listener:
        assert reachable("127.0.0.1", listener) == "127.0.0.1"
        assert reachable("localhost", listener) == "localhost"


@contextmanager
def served(tmp_path, *start):
    """A server in a process of its own: its gallery, process and address."""
    gallery = make_gallery(tmp_path, 8)
    gallery.model.save_pretrained(tmp_path / "model")
    given = [tmp_path / "index", "--model", tmp_path / "model", "--pictures", gallery.root, "--port", "0"]
    server = subprocess.Popen(
        [*start, sys.executable, "-m", "maxmatch.cli.main", "serve", *map(str, given)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    try:
        yield gallery, server, server.stdout.readline().strip()
    finally:
        server.kill()
        server.wait(30)
        server.stdout.close()
        server.stderr.close()


def test_the_address_is_printed_once_ready_and_control_c_stops_it(tmp_path):
    with served(tmp_path) as (gallery, server, address):
        assert address.startswith("http://127.0.0.1:"), server.stderr.read()
        with urllib.request.urlopen(f"{address}api/v1/items/{gallery.key(6)}/thumbnail", timeout=30) as answer:
            assert answer.headers["content-type"] == "image/webp"
        server.send_signal(signal.SIGINT)
        assert server.wait(30) in (0, 130)
        assert "Traceback" not in server.stderr.read()


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="only POSIX systems limit the files of a process")
def test_more_half_open_connections_than_descriptors_keep_nobody_out(tmp_path):
    with served(tmp_path, "sh", "-c", 'ulimit -n 200; exec "$@"', "serve") as (_, server, address):
        port = urlsplit(address).port
        clients = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(300)]
        try:
            for client in clients:
                with suppress(ConnectionError):  # closed already, to make room
                    client.sendall(b"GET / HTTP/1.1\r\nX-Slow: ")
            for _ in range(3):
                with urllib.request.urlopen(f"{address}api/v1/search?q=dog", timeout=30) as answer:
                    assert answer.status == 200
        finally:
            for client in clients:
                client.close()
        server.terminate()
        server.wait(30)
        log = server.stderr.read()
        assert "Traceback" not in log
        assert len(log.splitlines()) < 10


def test_systemd_understands_the_unit_and_the_command_its_options(tmp_path, capsys):
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("no systemd here, not run")
    command = tmp_path / ".local" / "bin" / "maxmatch"
    command.parent.mkdir(parents=True)
    command.symlink_to(sys.executable)  # verify asks that it is there
    unit = Path(__file__).parents[2] / "docs" / "deploy" / "maxmatch.service"
    written = unit.read_text().replace("%h", str(tmp_path))
    (tmp_path / unit.name).write_text(written)
    own = {**os.environ, "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    said = subprocess.run(
        [verify, "verify", "--user", tmp_path / unit.name], env=own, capture_output=True, text=True, timeout=60
    )
    assert (said.returncode, [line for line in said.stderr.splitlines() if unit.name in line]) == (0, [])
    [started] = [line for line in written.splitlines() if line.startswith("ExecStart=")]
    failed = run(capsys, *started.split()[1:])  # the folder is not there
    assert failed.code == 1
    assert f"{tmp_path / 'Pictures'}: no such folder" in failed.err
