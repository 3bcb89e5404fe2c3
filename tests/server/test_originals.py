"""The files of photos: whole, only indexed ones, as a zip file, and shown in the file manager to a person here only."""

import io
import sys
import zipfile
from pathlib import Path
from urllib.parse import unquote

import pytest
from PIL import Image
from served import client_of
from starlette.requests import Request

from maxmatch.search.photos.facts import photo_facts
from maxmatch.server import originals
from maxmatch.server.api_schema import Refusal
from maxmatch.server.originals import details_of, file_manager, is_local, original_of, reveal, zip_names, zipped

ITEMS = "/api/v1/items"
DOWNLOADS = "/api/v1/downloads"


@pytest.fixture
def no_desktop(monkeypatch):
    monkeypatch.setattr(originals, "file_manager", lambda path: [])


def test_an_original_is_the_file_to_the_byte(client, gallery):
    path = gallery.root / gallery.ids[5]
    shown = client.get(f"{ITEMS}/{gallery.key(5)}/original")
    assert (shown.content, shown.headers["content-type"]) == (path.read_bytes(), "image/png")
    assert shown.headers["content-disposition"].startswith("inline")
    saved = client.get(f"{ITEMS}/{gallery.key(5)}/original", params={"download": True})
    assert saved.content == shown.content
    assert saved.headers["content-disposition"].startswith("attachment")
    assert "scene 05.png" in unquote(saved.headers["content-disposition"])
    part = client.get(f"{ITEMS}/{gallery.key(5)}/original", headers={"range": "bytes=0-7"})
    assert (part.status_code, part.content) == (206, path.read_bytes()[:8])
    for wanted, status in (("bytes=99999999-", 416), ("bytes=abc", 400), ("pages=1", 400)):
        refused = client.get(f"{ITEMS}/{gallery.key(5)}/original", headers={"range": wanted})
        assert (refused.status_code, "Range" in refused.json()["error"]["message"]) == (status, True), wanted
        if status == 416:
            assert refused.headers["content-range"] == f"bytes */{path.stat().st_size}"
    assert client.get(f"{ITEMS}/{'0' * 32}/original").status_code == 404


def test_a_link_that_no_longer_leads_to_a_picture_is_refused(tmp_path):
    secret, picture = tmp_path / "passwd", tmp_path / "there.png"
    secret.write_text("root")
    picture.write_bytes(b"picture")
    for name, target, found in (("a.png", secret, False), ("b.png", picture, True), ("c.png", tmp_path / "no", False)):
        (tmp_path / name).symlink_to(target)
        if found:
            assert original_of(tmp_path / name) == picture
        else:
            with pytest.raises(Refusal):
                original_of(tmp_path / name)
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(Refusal):
        original_of(tmp_path / "folder.png")


def test_what_browsers_could_run_is_never_shown(tmp_path):
    for name in ("a.svg", "a.html", "a.xml", "a.tif", "a.heic"):
        assert originals.shown_type(tmp_path / name) is None
    assert originals.shown_type(tmp_path / "a.JPG") == "image/jpeg"


def test_date_place_and_camera_are_read_from_the_file(tmp_path):
    path = tmp_path / "photo.jpg"
    notes = Image.Exif()
    notes[0x010F], notes[0x0110] = "NIKON CORPORATION\0", "NIKON Z 6"
    notes.get_ifd(0x8769).update({0x829A: 0.004, 0x829D: 2.8, 0x8827: 200, 0x920A: 35.0, 0xA434: "35mm f/1.8"})
    notes.get_ifd(0x8825).update({1: "S", 2: (33.0, 51.0, 24.84), 3: "E", 4: (151.0, 12.0, 54.0)})
    Image.new("RGB", (8, 8)).save(path, exif=notes)
    found = details_of(path, can_reveal=False)
    assert (found.camera, found.lens) == ("NIKON Z 6", "35mm f/1.8")
    assert found.settings == "1/250 s, f/2.8, ISO 200, 35 mm"
    assert (found.latitude, found.longitude) == pytest.approx((-33.8569, 151.215), abs=1e-4)


@pytest.mark.parametrize(
    "gps", [{}, {2: (1.0, 2.0)}, {1: "N", 2: (91.0, 0.0, 0.0), 4: (0.0, 0.0, 0.0)}, {2: (0.0, 0.0, 0.0), 4: (0.0,) * 3}]
)
def test_notes_that_make_no_sense_count_as_none(tmp_path, gps):
    path = tmp_path / "photo.jpg"
    notes = Image.Exif()
    notes.get_ifd(0x8825).update(gps)
    notes.get_ifd(0x8769).update({0x829A: 0.0, 0x8827: (0, 1)})
    Image.new("RGB", (8, 8)).save(path, exif=notes)
    found = details_of(path, can_reveal=False)
    assert (found.latitude, found.longitude, found.settings, found.camera) == (None,) * 4
    path.write_bytes(b"no picture")
    assert details_of(path, can_reveal=False).place is None


def test_a_place_that_a_person_wrote_is_told(tmp_path):
    def field(number, text):
        return b"\x1c\x02" + bytes([number]) + len(text).to_bytes(2, "big") + text

    block = field(90, "Città".encode()) + field(101, b"Italy")
    resource = b"8BIM\x04\x04\0\0" + len(block).to_bytes(4, "big") + block + b"\0" * (len(block) % 2)
    segment = b"Photoshop 3.0\0" + resource
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "JPEG")
    jpeg = file.getvalue()
    path = tmp_path / "photo.jpg"
    path.write_bytes(jpeg[:2] + b"\xff\xed" + (len(segment) + 2).to_bytes(2, "big") + segment + jpeg[2:])
    assert details_of(path, can_reveal=False).place == "Città, Italy"
    assert photo_facts(path, tmp_path)["place"] == "Città, Italy"
    path.write_bytes(path.read_bytes().replace(b"\x1c\x02", b"\x1c\xff"))  # damaged notes are none
    assert photo_facts(path, tmp_path)["place"] is None


@pytest.mark.usefixtures("no_desktop")
def test_a_zip_file_holds_the_chosen_photos_and_no_others(client, gallery):
    chosen = [gallery.key(place) for place in (1, 2, 2, 9)]
    prepared = client.post(DOWNLOADS, json={"keys": chosen}).json()
    assert prepared["count"] == 3
    answer = client.get(f"{DOWNLOADS}/{prepared['key']}")
    assert answer.headers["content-type"] == "application/zip"
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        assert archive.testzip() is None
        held = {name: archive.read(name) for name in archive.namelist()}
    assert held == {
        Path(gallery.ids[place]).name: (gallery.root / gallery.ids[place]).read_bytes() for place in (1, 2, 9)
    }
    assert prepared["bytes"] == sum(map(len, held.values()))
    assert client.post(DOWNLOADS, json={"keys": [*chosen, "0" * 32]}).status_code == 404
    assert client.post(DOWNLOADS, json={"keys": []}).status_code == 422
    assert client.get(f"{DOWNLOADS}/{'0' * 32}").status_code == 404


def test_a_download_is_bounded_and_forgotten(client, gallery, monkeypatch):
    monkeypatch.setattr(originals, "MOST_ZIPPED_BYTES", 10)
    refused = client.post(DOWNLOADS, json={"keys": [gallery.key(1)]})
    assert (refused.status_code, refused.json()["error"]["code"]) == (413, "too_large")
    monkeypatch.setattr(originals, "MOST_ZIPPED_BYTES", 10**9)
    monkeypatch.setattr(originals, "_KEPT_FOR", -1.0)
    key = client.post(DOWNLOADS, json={"keys": [gallery.key(1)]}).json()["key"]
    assert client.get(f"{DOWNLOADS}/{key}").status_code == 404


def test_a_zip_file_is_made_piece_by_piece_and_names_what_is_missing(tmp_path):
    large = tmp_path / "large.png"
    with large.open("wb") as file:
        file.truncate(5 * 2**20)
    pieces = list(zipped([("large.png", large), ("gone.png", tmp_path / "gone.png")]))
    assert max(map(len, pieces)) < 2**20
    with zipfile.ZipFile(io.BytesIO(b"".join(pieces))) as archive:
        assert archive.testzip() is None
        assert archive.getinfo("large.png").file_size == 5 * 2**20
        assert "gone.png" in archive.read("missing photos.txt").decode()


def test_names_in_a_zip_file_can_be_unpacked_everywhere():
    names = ["a.jpg", "A.jpg", "a.jpg", "../../etc/x.jpg", "new\nline.jpg", "c:\\x.jpg", "..", "Größe 🐘.png"]
    made = [name for name, _ in zip_names((name, Path(name)) for name in names)]
    assert made == [
        "a.jpg", "A (2).jpg", "a (3).jpg", "_.._etc_x.jpg", "new_line.jpg", "c__x.jpg", "photo", "Größe 🐘.png",
    ]  # fmt: skip


def local(host="127.0.0.1:8765", client="127.0.0.1", **headers):
    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in {"host": host, **headers}.items()]
    return is_local(Request({"type": "http", "client": client and (client, 1), "headers": named}))


def test_only_a_person_at_this_machine_may_open_a_window_on_it():
    assert local()
    assert local("localhost:8765", "::1")
    assert not local("192.168.1.7:8765", "127.0.0.1")
    assert not local("photos.example", "127.0.0.1"), "through a proxy on this machine"
    assert not local(x_forwarded_for="203.0.113.5")
    assert not local(forwarded="for=203.0.113.5")
    assert not local(client="192.168.1.20")
    assert not local(client=None)


def test_reveal_is_refused_to_others_and_for_what_is_not_indexed(gallery, monkeypatch):
    shown = []
    monkeypatch.setattr("maxmatch.server.album_routes.reveal", shown.append)
    monkeypatch.setattr("maxmatch.server.album_routes.file_manager", lambda path: [["some"]])
    with client_of(gallery) as client:
        address = f"{ITEMS}/{gallery.key(3)}/reveal"
        assert client.get(f"{ITEMS}/{gallery.key(3)}/details").json()["can_reveal"] is True
        assert client.get(address).status_code == 405, "a link cannot do it"
        for headers in (
            {"sec-fetch-site": "cross-site"},
            {"origin": "http://evil.example"},
            {"x-forwarded-for": "203.0.113.5"},
            {"host": "evil.example"},
        ):
            assert client.post(address, headers=headers).status_code in (403, 421)
        assert client.post(f"{ITEMS}/{'0' * 32}/reveal").status_code == 404
        assert shown == []
        assert client.post(address).json() == {"done": True}
        assert shown == [(gallery.root / gallery.ids[3]).resolve()]
    with client_of(gallery, token="0123456789abcdef") as client:  # as on a network
        headers = {"authorization": "Bearer 0123456789abcdef", "host": "192.168.1.7"}
        assert client.post(address, headers=headers).status_code == 403
        assert client.get(f"{ITEMS}/{gallery.key(3)}/details", headers=headers).json()["can_reveal"] is False


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other file managers")
@pytest.mark.parametrize("answers", [("0", "1"), ("1", "0"), ("1", "1")])
def test_no_name_of_a_file_is_ever_read_by_a_shell(tmp_path, monkeypatch, answers):
    path = tmp_path / "$(touch owned) `touch owned`; -x,string:'\"\n.png"
    path.write_bytes(b"")
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, code in zip(("dbus-send", "xdg-open"), answers, strict=True):
        (programs / name).write_text(
            f"#!{sys.executable}\nimport os, sys\n"
            f"open({str(tmp_path / name)!r}, 'w').write('\\0'.join(sys.argv[1:]))\nsys.exit({code})\n"
        )
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.chdir(tmp_path)
    if answers == ("1", "1"):
        with pytest.raises(Refusal):
            reveal(path)
    else:
        reveal(path)
    *_, items, _ = (tmp_path / "dbus-send").read_text().split("\0")
    assert items == f"array:string:{path.as_uri()}"
    assert "," not in items, "a comma would begin a second file"
    assert (tmp_path / "xdg-open").exists() is (answers[0] == "1")
    if answers[0] == "1":
        assert (tmp_path / "xdg-open").read_text() == tmp_path.as_uri()
    assert not list(tmp_path.rglob("owned"))
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert file_manager(path) == [], "without a desktop"
