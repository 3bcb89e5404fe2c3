"""Albums over the API: what is in them, searches within them, and saved searches."""

import json

import pytest
from served import client_of

from maxmatch.search.photos.albums import Albums

ALBUMS = "/api/v1/albums"
SEARCHES = "/api/v1/searches"


@pytest.fixture
def asked(gallery, tmp_path):
    with client_of(gallery, albums=Albums(tmp_path)) as client:
        client.albums = Albums(tmp_path)
        yield client


def names(client, **query):
    return [hit["item"]["name"] for hit in client.get("/api/v1/search", params=query).json()["hits"]]


def test_an_album_is_made_filled_searched_and_deleted(asked, gallery):
    made = asked.post(ALBUMS, json={"name": " Rome ", "keys": [gallery.key(4), gallery.key(1)]}).json()
    assert (made["name"], made["count"], made["missing"]) == ("Rome", 2, 0)
    assert made["cover"]["key"] == gallery.key(4)
    album = made["key"]
    changed = asked.post(f"{ALBUMS}/{album}/photos", json={"add": [gallery.key(0)], "remove": [gallery.key(4)]})
    assert changed.json()["count"] == 2
    assert names(asked, album=album) == ["scene 01.png", "scene 00.png"], "newest first"
    assert names(asked, album=album, q=gallery.captions[0]) == ["scene 00.png", "scene 01.png"], "best first"
    assert names(asked, album=album, q=gallery.captions[0], folder="holiday") == ["scene 01.png"]
    assert asked.get("/api/v1/search", params={"album": album}).json()["total"] == 2
    assert asked.patch(f"{ALBUMS}/{album}", json={"name": "Ostia"}).json()["name"] == "Ostia"
    assert [one["name"] for one in asked.get(ALBUMS).json()["albums"]] == ["Ostia"]
    assert asked.delete(f"{ALBUMS}/{album}").json() == {"done": True}
    assert asked.get(ALBUMS).json() == {"albums": [], "searches": []}
    assert asked.get("/api/v1/search", params={"album": album}).status_code == 404


def test_a_photo_that_was_edited_can_be_taken_out_of_an_album(asked, gallery):
    album = asked.post(ALBUMS, json={"name": "Rome", "keys": [gallery.key(4), gallery.key(1)]}).json()["key"]
    [file] = [path for path in gallery.root.rglob("*") if path.name == "scene 04.png"]
    before = file.read_bytes()
    try:
        file.write_bytes(before + b"edited")
        left = asked.post(f"{ALBUMS}/{album}/photos", json={"add": [], "remove": [gallery.key(4)]}).json()
        assert (left["count"], left["missing"]) == (1, 0)
    finally:
        file.write_bytes(before)


def test_an_empty_album_shows_nothing_and_unknown_photos_are_refused(asked, gallery):
    album = asked.post(ALBUMS, json={"name": "empty"}).json()["key"]
    assert names(asked, album=album) == names(asked, album=album, q="a dog") == []
    assert asked.post(ALBUMS, json={"name": "x", "keys": ["0" * 32]}).status_code == 404
    assert asked.post(ALBUMS, json={"name": "empty"}).status_code == 409
    for name in ("", "  ", "a\nb", "a\x07b", "\x07", "x" * 201):
        assert asked.post(ALBUMS, json={"name": name}).status_code == 422
    for method, path in (("patch", album[::-1]), ("delete", album[::-1])):
        body = {"json": {"name": "x"}} if method == "patch" else {}
        assert getattr(asked, method)(f"{ALBUMS}/{path}", **body).status_code == 404


def test_a_saved_search_is_found_again(asked, gallery):
    asked.post(SEARCHES, json={"name": "dogs", "q": "a dog", "from": "2024-01-03", "fold": False})
    asked.post(SEARCHES, json={"name": "like it", "like": gallery.key(5)})
    dogs, like = asked.get(ALBUMS).json()["searches"]
    assert dogs["query"] == {"q": "a dog", "from": "2024-01-03", "fold": False}
    assert (like["query"], like["missing"]) == ({"like": gallery.key(5)}, False)
    saved = json.loads(asked.albums.path.read_text())
    assert len(saved["searches"][1]["like"]["sha256"]) == 64, "by content, not by the key of a name"
    assert asked.delete(f"{SEARCHES}/{dogs['key']}").json() == {"done": True}
    assert len(asked.get(ALBUMS).json()["searches"]) == 1
    assert asked.post(SEARCHES, json={"name": "x", "like": "0" * 32}).status_code == 404


def test_a_damaged_file_is_reported_and_search_goes_on(asked):
    asked.albums.path.parent.mkdir(exist_ok=True)
    asked.albums.path.write_text("{")
    refused = asked.get(ALBUMS)
    assert refused.status_code == 409
    assert "albums.json" in refused.json()["error"]["message"]
    assert asked.get("/api/v1/search", params={"album": "0" * 32}).status_code == 409
    assert names(asked)
