"""A folder as people have it: every file in it is found, or named together with its cure."""

import io
import json
import os
import threading
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from camera_files import dng, halves, heic, video
from commands import run
from picture_heap import png
from PIL import Image

PACKAGES = ("pillow_heif", "rawpy", "av")
REPORTED = {
    "empty.jpg": ("empty", "Fetch it again"),
    "truncated.jpg": ("truncated", "fetch it again"),
    "text.jpg": ("not a readable picture", "Open it in a viewer"),
    "huge.png": ("400000000 pixels", "Make the picture smaller"),
    "broken.cr2": ("not a readable picture", "Open it in a viewer"),
    "broken.mp4": ("not a readable picture", "Open it in a viewer"),
    "closed": ("Permission denied", "Allow reading it"),
    "loop": ("symbolic link", "delete the link"),
    "pipe.jpg": ("not a file", "delete it"),
}
"""What cannot be read, with a word of the reason and of the cure."""


def write(folder):
    """The messy tail of a folder; the names of what can be read."""
    picture = halves()
    picture.save(folder / "plain.jpg")
    turned = Image.Exif()
    turned[0x0112] = 6
    picture.rotate(90, expand=True).save(folder / "turned.jpg", exif=turned)
    picture.save(folder / "moving.gif", save_all=True, append_images=[Image.new("RGB", picture.size)] * 3)
    picture.convert("CMYK").save(folder / "print.jpg")
    grey = np.asarray(picture.convert("L")).astype(np.uint16) * 257
    Image.fromarray(grey).save(folder / "deep.png")
    Image.fromarray(grey).save(folder / "deep.tif")
    picture.quantize(8).save(folder / "palette.png", transparency=0)
    picture.save(folder / "small.avif")
    picture.save(folder / "🐕 on a beach.jpg")
    picture.save(folder / "two\nlines.jpg")
    (folder / "phone.heic").write_bytes(heic(picture))
    (folder / "camera.cr2").write_bytes(dng(picture))  # LibRaw tells what it is by its contents
    video(folder / "film.mp4", picture)
    read = {path.name for path in folder.iterdir()}
    (folder / "empty.jpg").write_bytes(b"")
    file = io.BytesIO()
    Image.effect_noise((200, 200), 80).save(file, "JPEG")
    (folder / "truncated.jpg").write_bytes(file.getvalue()[:3000])
    (folder / "text.jpg").write_text("dear diary")
    (folder / "huge.png").write_bytes(png(20_000, 20_000))
    (folder / "broken.cr2").write_bytes(b"II*\0\x10\0\0\0CR\2\0" + bytes(4000))
    (folder / "broken.mp4").write_bytes(b"\0\0\0\x18ftypmp42" + bytes(1000))
    (folder / "closed").mkdir()
    picture.save(folder / "closed" / "hidden.jpg")
    (folder / "around").symlink_to(folder)
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "pipe.jpg")
    return read


@pytest.fixture
def messy(tmp_path, model, monkeypatch):
    """What of the folder can be read, and how to search it."""
    for package in PACKAGES:
        pytest.importorskip(package, reason=f"{package} reads files that phones and cameras make: an extra")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder, listed = tmp_path / "pictures", os.scandir
    folder.mkdir()
    read = write(folder)

    def scandir(place):  # as for a user who may not read it, which whoever runs the tests may be able to
        if Path(place).name == "closed":
            raise PermissionError(13, "Permission denied", str(place))
        return listed(place)

    monkeypatch.setattr(os, "scandir", scandir)
    return read, ("search", "two dogs", folder, "-k", "50", "--all", "--no-names", "--json", "--model", model)


def hits(said):
    return {hit["id"]: hit for hit in json.loads(said.out)["hits"]}


def test_every_file_is_found_or_named_with_its_cure(messy, capsys):
    read, search = messy
    said = run(capsys, *search)
    found = hits(said)
    assert found.keys() == read
    lines = said.err.splitlines()
    for name, (why, cure) in REPORTED.items():
        named = [line for line in lines if f"/{name}:" in line or f" {name}:" in line]
        assert len(named) == 1, name
        assert [word in named[0] for word in (why, cure)] == [True, True], named
    assert hits(run(capsys, *search)).keys() == read, "the second search reads the same"
    assert {(hit["metadata"]["width"], hit["metadata"]["height"]) for hit in found.values()} == {(96, 64)}
    # The same picture as the camera saw it: upright, its first frame, in another colour space or format.
    scores = {name: hit["score"] for name, hit in found.items()}
    for name in ("turned.jpg", "moving.gif", "print.jpg", "small.avif", "phone.heic", "camera.cr2", "film.mp4"):
        assert scores[name] == pytest.approx(scores["plain.jpg"], abs=0.02), name
    assert scores["deep.png"] == pytest.approx(scores["deep.tif"], abs=1e-6)


@contextmanager
def released(pipe, seconds=60):
    """Whoever still waits for the pipe after so many seconds finds it empty, again and again."""
    done = threading.Event()

    def release():
        if not done.wait(seconds):
            while not done.wait(0.1):
                with suppress(OSError):  # nobody waits
                    os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))

    thread = threading.Thread(target=release)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize(
    "command",
    [
        ("encode", "MODEL", "photos", "--out", "sets"),
        ("index", "build", "photos.index", "--source", "photos", "--model", "MODEL"),
        ("data", "check", "photos"),
    ],
    ids=" ".join,
)
def test_no_command_waits_for_a_pipe(command, tmp_path, model, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    halves().save(tmp_path / "photos" / "a.jpg")
    pipe = tmp_path / "photos" / "pipe.jpg"
    os.mkfifo(pipe)
    with released(pipe):
        done = run(capsys, *(model if word == "MODEL" else word for word in command))
    said = done.out + done.err
    assert [("not a file" in line) for line in said.splitlines() if "pipe.jpg" in line] == [True], said


def test_without_their_packages_files_are_counted_with_the_cure_at_every_search(messy, capsys, monkeypatch):
    read, search = messy
    monkeypatch.setattr("maxmatch.model.picture_files.find_spec", lambda name: None)
    for _ in range(2):
        said = run(capsys, *search)
        assert hits(said).keys() == read - {"phone.heic", "camera.cr2", "film.mp4"}
        assert "2 CR2, 2 MP4, 1 HEIC not read: pip install 'maxmatch[raw,video,heic]'" in said.err
