"""Albums and saved searches: nothing of them is lost, whatever happens to caches, models and names of files."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from tiny_models import tiny_model

from maxmatch.core import files
from maxmatch.core.files import content_hash, user_data
from maxmatch.search.photos import albums as module
from maxmatch.search.photos.albums import (
    AlbumPhoto,
    Albums,
    AlbumsError,
    FileList,
    NoSuchAlbumError,
    PhotoFile,
    PhotoFinder,
)
from maxmatch.search.photos.sync import open_synced
from maxmatch.server.album_routes import Shelf
from maxmatch.server.gallery import Gallery as ShownGallery


def photo(number):
    return AlbumPhoto(sha256=f"{number:064x}", size=number, modified=number, path=f"/photos/{number}.jpg")


def file_of(path):
    state = path.stat()
    return PhotoFile(str(path), state.st_size, state.st_mtime_ns)


def test_what_is_saved_is_read_again_and_a_person_can_read_it(tmp_path):
    albums = Albums(tmp_path)
    assert albums.read().albums == []
    rome = albums.create("Rom 🏛", [photo(1), photo(2), photo(1)])
    albums.change(rome.key, add=[photo(3)], remove=[photo(1).sha256])
    albums.save_search("dogs", {"q": "a dog", "fold": True}, photo(2))
    albums.save_search("dogs", {"q": "two dogs"})  # the same name: in its place
    saved = Albums(tmp_path).read()
    assert [(album.name, [one.size for one in album.photos]) for album in saved.albums] == [("Rom 🏛", [2, 3])]
    assert [(search.name, search.query, search.like) for search in saved.searches] == [
        ("dogs", {"q": "two dogs"}, None)
    ]
    assert "Rom 🏛" in albums.path.read_text(encoding="utf-8"), "not as an escape sequence"
    albums.rename(rome.key, "Rome")
    albums.delete_search(saved.searches[0].key)
    assert albums.read().albums[0].name == "Rome"
    albums.delete(rome.key)
    assert (albums.read().albums, albums.read().searches) == ([], [])


def test_what_cannot_be_done_is_refused_and_changes_nothing(tmp_path):
    albums = Albums(tmp_path)
    one, _ = albums.create("one", []), albums.create("two", [])
    before = albums.path.read_bytes()
    for attempt in (
        lambda: albums.create("one", []),
        lambda: albums.rename(one.key, "two"),
        lambda: albums.delete("0" * 32),
        lambda: albums.change("0" * 32, [photo(1)]),
        lambda: albums.delete_search(one.key),
    ):
        with pytest.raises(AlbumsError):
            attempt()
    with pytest.raises(NoSuchAlbumError):
        albums.rename("0" * 32, "three")
    assert albums.path.read_bytes() == before
    albums.rename(one.key, "one")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"albums": [{"name": 1}]}', '{"format": 2}'])
def test_a_file_that_is_damaged_or_newer_is_named_and_never_overwritten(tmp_path, text):
    albums = Albums(tmp_path)
    albums.path.write_text(text)
    for attempt in (albums.read, lambda: albums.create("new", [])):
        with pytest.raises(AlbumsError, match=r"albums\.json"):
            attempt()
    assert albums.path.read_text() == text


def test_what_a_later_version_notes_is_kept(tmp_path):
    albums = Albums(tmp_path)
    key = albums.create("one", [photo(1)]).key
    content = json.loads(albums.path.read_text())
    content["albums"][0]["colour"] = "blue"
    content["places"] = [1]
    albums.path.write_text(json.dumps(content))
    albums.change(key, add=[photo(2)])
    again = json.loads(albums.path.read_text())
    assert (again["albums"][0]["colour"], again["places"], len(again["albums"][0]["photos"])) == ("blue", [1], 2)


def test_two_processes_at_once_lose_nothing(tmp_path):
    program = (
        "import sys; from pathlib import Path; from maxmatch.search.photos.albums import Albums\n"
        "for n in range(25): Albums(Path(sys.argv[1])).create(f'{sys.argv[2]} {n}', [])"
    )
    source = str(Path(files.__file__).parents[2])
    started = [
        subprocess.Popen([sys.executable, "-c", program, str(tmp_path), name], env={**os.environ, "PYTHONPATH": source})
        for name in "ab"
    ]
    assert [process.wait(120) for process in started] == [0, 0]
    names = [album.name for album in Albums(tmp_path).read().albums]
    assert sorted(names) == sorted(f"{name} {number}" for name in "ab" for number in range(25))


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    albums = Albums(tmp_path)
    albums.create("one", [])
    before = albums.path.read_bytes()
    monkeypatch.setattr(os, "replace", lambda *names: exec("raise OSError(28, 'No space left on device')"))
    with pytest.raises(OSError, match=r"albums\.json"):
        albums.create("two", [])
    assert albums.path.read_bytes() == before


def test_renamed_photos_are_found_by_content_and_others_are_not_read(tmp_path):
    for number in range(4):
        (tmp_path / f"{number}.jpg").write_bytes(bytes([number]) * (100 + (number > 1)))  # 2 and 3 have one size
    read = []

    def counted(path):
        read.append(path.name)
        return content_hash(path)

    finder = PhotoFinder(counted)
    noted = [finder.note(tmp_path / f"{number}.jpg") for number in range(4)]
    read.clear()
    there = FileList(file_of(tmp_path / f"{number}.jpg") for number in range(4))
    assert PhotoFinder(counted).find(noted, there) == [0, 1, 2, 3]
    assert read == [], "files that are as they were"
    (tmp_path / "3.jpg").rename(tmp_path / "moved.jpg")
    (tmp_path / "0.jpg").unlink()
    (tmp_path / "other.jpg").write_bytes(b"?" * 100)  # the size of 0 and 1, another content
    now = FileList(file_of(tmp_path / name) for name in ("1.jpg", "2.jpg", "moved.jpg", "other.jpg"))
    later = PhotoFinder(counted)
    assert later.find(noted, now) == [None, 0, 1, 2]
    assert sorted(read) == ["1.jpg", "2.jpg", "moved.jpg", "other.jpg"]
    later.find(noted, now)
    assert len(read) == 4, "a hash is computed once"


def test_no_search_for_a_photo_reads_everything(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_MOST_HASHED", 3)
    for number in range(8):
        (tmp_path / f"{number}.bmp").write_bytes(bytes([number]) * 10)
    present = FileList(file_of(tmp_path / f"{number}.bmp") for number in range(8))
    wanted = AlbumPhoto(sha256=content_hash(tmp_path / "7.bmp"), size=10, modified=1, path="/elsewhere/x.bmp")
    read = []
    finder = PhotoFinder(lambda path: read.append(path) or content_hash(path))
    assert [finder.find([wanted], present)[0] for _ in range(3)] == [None, None, 7], "the next attempt continues"
    assert len(read) == len(set(read)) == 8


def test_the_data_folder_is_the_systems(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert user_data() == tmp_path
    assert Albums().path == tmp_path / "maxmatch" / "albums.json"
    monkeypatch.delenv("XDG_DATA_HOME")
    for system, folder in (("linux", ".local/share"), ("darwin", "Library/Application Support")):
        monkeypatch.setattr(files.sys, "platform", system)
        assert user_data() == Path.home() / folder
    monkeypatch.setattr(files.sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert user_data() == tmp_path / "local"


def found_in(shelf):
    """The names of an album's photos as the page shows them, and how many are missing."""
    [album] = shelf.albums.read().albums
    found = shelf.find(album.photos)
    return [item and item.name for item in found], shelf.show(album).missing


@pytest.mark.parametrize("what", ["nothing", "cache lost", "new model", "renamed", "folder moved"])
def test_an_album_outlives_caches_models_and_names(tmp_path, what):
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(3):
        Image.new("RGB", (40 + number, 30), (90 * number, 10, 10)).save(folder / f"{number}.png")

    def opened(model, cache, folder=folder):
        index, _ = open_synced(tmp_path / cache, model, folder)
        gallery = ShownGallery(index, lambda name: folder / name)
        return Shelf(gallery, Albums(tmp_path / "data")), gallery

    model = tiny_model("resnet152_bigru", set_size=3)
    shelf, gallery = opened(model, "cache")
    chosen = [item for item in gallery.state.newest if item.name != "1.png"]
    chosen.sort(key=lambda item: item.name)
    shelf.albums.create("two of them", shelf.note(chosen))
    gallery.index.close()
    assert found_in(shelf) == (["0.png", "2.png"], 0)
    names, cache = ["0.png", "2.png"], "cache"
    if what == "cache lost":
        cache = "another cache"
    elif what == "new model":
        model, cache = tiny_model("resnet152_bigru", set_size=2), "cache of another model"
    elif what == "renamed":
        (folder / "2.png").rename(folder / "1 .png")
        names = ["0.png", "1 .png"]
    elif what == "folder moved":
        folder = folder.rename(tmp_path / "moved")
        cache = "cache of another place"
    shelf, gallery = opened(model, cache, folder)
    assert found_in(shelf) == (names, 0)
    (folder / "0.png").unlink()
    gallery.index.close()
    shelf, gallery = opened(model, cache, folder)
    assert found_in(shelf) == ([None, names[1]], 1), "what is deleted is missing"
    gallery.index.close()
