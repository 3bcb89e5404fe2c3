"""Every photo is there: long lists, months and folders, names, several folders, and folders that change meanwhile."""

import time
from functools import partial

import numpy as np
import pytest
from PIL import Image
from served import EXACT, client_of
from starlette.testclient import TestClient

from maxmatch.search import folding, plausible
from maxmatch.search.folding import Grouping, Sketcher
from maxmatch.search.photos.library import Library
from maxmatch.search.photos.sync import open_photos, sync
from maxmatch.search.plausible import CutOff, Limits
from maxmatch.search.rerank import Best
from maxmatch.server import gallery as gallery_module
from maxmatch.server import searcher
from maxmatch.server.app import create_app
from maxmatch.server.gallery import Watch

SEARCH = "/api/v1/search"


def ids(answer):
    assert answer.status_code == 200, answer.text
    return [hit["item"]["id"] for hit in answer.json()["hits"]]


def pages(client, k=5, **query):
    found = []
    while True:
        answer = client.get(SEARCH, params={**query, "k": k, "offset": len(found)})
        found += answer.json()["hits"]
        if not answer.json()["more"]:
            return found


@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize(
    "query", [{}, {"q": "a dog"}, {"q": '"a dog" - "a cat"'}, {"q": "garden"}, {"q": "dog", "slot": 1}]
)
def test_long_lists_continue_short_ones_up_to_the_last_item(client, monkeypatch, query, fold):
    short = client.get(SEARCH, params={**query, "fold": fold, "k": 24}).json()
    monkeypatch.setattr(searcher, "_LONG", 9)
    found = pages(client, **query, fold=fold)
    assert not short["more"]
    assert [hit["item"]["id"] for hit in found] == [hit["item"]["id"] for hit in short["hits"]]
    assert len(found) == (23 if fold else 24)
    for one, other in zip(found, short["hits"], strict=True):
        assert one["score"] == pytest.approx(other["score"], abs=1e-5)
        assert [match["item_slot"] for match in one["matches"]] == [match["item_slot"] for match in other["matches"]]
        assert one["name_match"] == other["name_match"]
        assert {item["id"] for item in one["duplicates"]} == {item["id"] for item in other["duplicates"]}


def test_what_candidates_missed_comes_after_the_short_list(client, gallery, monkeypatch):
    whole = [hit["item"]["id"] for hit in pages(client, q="a dog", fold=False)]
    real = gallery.index.best

    def without_third(best, k):
        places = [place for place, name in enumerate(best.ids) if name != whole[2]][:k]
        ids, texts = ([values[place] for place in places] if values else None for values in (best.ids, best.metadata))
        return Best(ids, best.scores[places], best.partners[places], best.cosines[places], texts)

    def missing(self, sets, k, where=None, *more, **settings):
        return [without_third(best, k) for best in real(sets, k + 1, where)]

    monkeypatch.setattr(type(gallery.index), "best", missing)
    monkeypatch.setattr(searcher, "_LONG", 9)
    found = [hit["item"]["id"] for hit in pages(client, q="a  dog", fold=False)]
    assert sorted(found) == sorted(whole)
    assert found.index(whole[2]) >= 8


@pytest.mark.parametrize("alike", [(), ((3, 5),), ((0, 1), (8, 9), (8, 30))])
def test_a_list_without_near_duplicates_is_told_from_one_with_them(monkeypatch, alike):
    vectors = np.random.default_rng(0).standard_normal((40, 256)).astype("float32")
    for one, other in alike:
        vectors[other] = vectors[one]
    names = [str(place) for place in range(40)]
    sketches = dict(zip(names[:35], Sketcher(256)(vectors), strict=False))  # some have none
    quickly = Grouping(names, sketches, 0.99).first(40)
    monkeypatch.setattr(Grouping, "_all_alone", lambda self, end: False)
    assert Grouping(names, sketches, 0.99).first(40) == quickly
    assert len(quickly) == 40 - len(alike)


def test_near_duplicates_far_apart_in_a_long_list_stay_apart(monkeypatch):
    monkeypatch.setattr(folding, "_WINDOW", 6)
    monkeypatch.setattr(folding, "_GROUPED", 4)
    vectors = np.random.default_rng(0).standard_normal((20, 256)).astype("float32")
    vectors[5], vectors[9], vectors[15] = vectors[3], vectors[8], vectors[8]
    names = [str(place) for place in range(20)]
    sketches = dict(zip(names, Sketcher(256)(vectors), strict=True))
    groups = Grouping(names, sketches, 0.99).first(20)
    assert [group for group in groups if len(group) > 1] == [[3, 5], [8, 9]]
    assert sorted(place for group in groups for place in group) == list(range(20))
    bit_by_bit = Grouping(names, sketches, 0.99)
    assert [len(bit_by_bit.first(count)) for count in range(1, 19)] == list(range(1, 19))
    assert bit_by_bit.first(20) == groups


def test_names_come_first_unless_that_is_not_wanted(client, gallery):
    hits = client.get(SEARCH, params={"q": "the garden", "k": 24, "fold": False}).json()["hits"]
    in_garden = [hit["item"]["folder"] == "garden" for hit in hits]
    assert in_garden == [hit["name_match"] for hit in hits] == sorted(in_garden, reverse=True)
    assert sum(in_garden) == 6
    scores = [hit["score"] for hit in hits]
    assert scores[:6] == sorted(scores[:6], reverse=True)
    plain = client.get(SEARCH, params={"q": "the garden", "k": 24, "fold": False, "names": False}).json()["hits"]
    assert [hit["score"] for hit in plain] == pytest.approx(sorted(scores, reverse=True), abs=1e-5)
    assert not any(hit["name_match"] for hit in plain)
    [one] = [hit for hit in client.get(SEARCH, params={"q": "scene 05.png"}).json()["hits"] if hit["name_match"]]
    assert one["item"]["id"] == gallery.ids[5]
    mixed = client.post(SEARCH, json={"parts": [{"text": "garden"}, {"like": gallery.key(0)}]}).json()["hits"]
    assert not any(hit["name_match"] for hit in mixed), "a picture has no name"


def test_months_and_folders_count_what_is_there(client, gallery):
    [month] = client.get("/api/v1/timeline").json()["months"]
    assert month == {"month": "2024-01", "count": 24}
    assert client.get("/api/v1/timeline", params={"folder": "holiday"}).json()["months"][0]["count"] == 12
    folders = client.get("/api/v1/gallery").json()["folders"]
    assert [(one["folder"], one["count"], one["cover"]["id"]) for one in folders] == [
        ("garden", 6, gallery.ids[23]),
        ("holiday", 12, gallery.ids[22]),
        ("holiday/rome", 6, gallery.ids[22]),
    ]


def photo(path, seed):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (30, 40, 3), np.uint8)).save(path)


@pytest.fixture
def library(gallery, tmp_path):
    """Two folders of which one is empty but for a picture."""
    folders = []
    for place, name in enumerate(("home/Pictures", "disk/photos")):
        photo(tmp_path / name / "rome" / f"{place}.png", place)
        index = open_photos(tmp_path / "caches" / str(place), gallery.model)
        sync(index, gallery.model, tmp_path / name)
        folders.append((tmp_path / name, index))
    made = Library(folders, ["*.gif"])
    yield made
    made.close()


def served(library, model, **more):
    app = create_app(library.index, model, library.picture, near_duplicate=EXACT, cut=False, **more)
    return TestClient(app, base_url="http://127.0.0.1:8765", client=("127.0.0.1", 50000))


def test_several_folders_are_one_tree(library, gallery):
    with served(library, gallery.model) as client:
        folders = {one["folder"]: one["count"] for one in client.get("/api/v1/gallery").json()["folders"]}
        assert folders == {"Pictures": 1, "Pictures/rome": 1, "photos": 1, "photos/rome": 1}
        for query in ({}, {"q": "a dog"}):
            assert sorted(ids(client.get(SEARCH, params=query))) == ["Pictures/rome/0.png", "photos/rome/1.png"]
            for folder in ("photos", "photos/rome"):
                assert ids(client.get(SEARCH, params={**query, "folder": folder})) == ["photos/rome/1.png"]
            for folder in ("photo", "rome", "nowhere"):
                assert ids(client.get(SEARCH, params={**query, "folder": folder})) == []
        for word, count in (("photos", 0), ("pictures", 0), ("rome", 2)):  # what was given is no photo's name
            hits = client.get(SEARCH, params={"q": word}).json()["hits"]
            assert sum(hit["name_match"] for hit in hits) == count
        [hit] = client.get(SEARCH, params={"folder": "photos", "from": "2000-01-01"}).json()["hits"]
        assert client.get(f"/api/v1/items/{hit['item']['key']}/thumbnail").status_code == 200


def wait_until(true, seconds=60):
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.05)
    assert true()


def test_new_photos_appear_and_deleted_ones_go_while_the_server_runs(library, gallery, monkeypatch):
    monkeypatch.setattr(gallery_module, "_REFRESH_AFTER", 1e9)  # after a look, at once
    roots = [one.root for one in library.folders]
    with served(library, gallery.model, look=partial(library.sync, gallery.model), look_every=0.1) as client:
        photo(roots[0] / "new" / "2.png", 2)
        photo(roots[1] / "3.gif", 3)  # excluded
        (roots[1] / "rome" / "1.png").unlink()

        def now():
            return sorted(ids(client.get(SEARCH, params={"q": "a dog"})))

        wait_until(lambda: now() == ["Pictures/new/2.png", "Pictures/rome/0.png"])
        (roots[0] / "new").rename(roots[0] / "renamed")
        wait_until(lambda: now() == ["Pictures/renamed/2.png", "Pictures/rome/0.png"])
        assert client.get("/api/v1/health").json()["left"] == 0
        assert client.get("/api/v1/gallery").json()["total"] == 2


def test_what_cannot_be_read_is_told_with_its_cure(library, gallery, monkeypatch):
    monkeypatch.setattr("maxmatch.model.picture_files.find_spec", lambda name: None)
    roots = [one.root for one in library.folders]
    (roots[0] / "empty.jpg").write_bytes(b"")
    (roots[1] / "phone.heic").write_bytes(b"")
    with served(library, gallery.model, look=partial(library.sync, gallery.model), look_every=0.1) as client:
        wait_until(lambda: client.get("/api/v1/health").json()["not_read"] == 2)
        told = client.get("/api/v1/not-read").json()
        assert (told["count"], len(told["reasons"])) == (2, 1)
        assert str(roots[0] / "empty.jpg") in told["reasons"][0]
        assert "Fetch it again" in told["reasons"][0]
        assert told["cure"] == "1 HEIC not read: pip install 'maxmatch[heic]'"
        (roots[0] / "empty.jpg").unlink()
        wait_until(lambda: client.get("/api/v1/health").json()["not_read"] == 1)


def test_folders_that_are_listed_quickly_are_looked_at_sooner():
    clock = iter([0.0, 0.1, 0.0, 0.5, 0.0, 3.0])  # before and after each look

    def look(bar):
        with bar("photos", 1) as advance:  # what is encoded does not count
            advance(1)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(gallery_module.time, "monotonic", lambda: next(clock))
        watch, rests = Watch(look), []
        for _ in range(3):
            watch._once()
            rests.append(watch.rest)
    assert rests == [10, 25, 45]


def test_a_look_ends_with_its_batch_when_the_server_stops_and_a_failed_one_is_followed_by_the_next(gallery, caplog):
    looks, left = [], []

    def look(bar):
        looks.append(1)
        if len(looks) == 1:
            raise OSError("the disk is not mounted")
        with bar("photos", 1000) as advance:
            for _ in range(1000):
                left.append(watch.left)
                time.sleep(0.01)
                advance(1)

    watch = Watch(look)
    with client_of(gallery, look=look, look_every=0.01) as client:
        wait_until(lambda: len(looks) == 2)
        assert client.get("/api/v1/health").json()["left"] > 0
    assert len(looks) == 2
    assert len(left) < 1000
    assert "not mounted" in caplog.text


def test_what_fits_is_judged_by_the_best_of_all_items_whatever_comes_first(gallery, monkeypatch):
    monkeypatch.setattr(searcher, "calibrated", lambda index, model: CutOff(len(index), {}))
    monkeypatch.setattr(plausible, "is_understood", lambda words: True)  # the tiny model knows few words
    with client_of(gallery, cut=True) as client:
        by_score = client.get(SEARCH, params={"q": "garden", "names": False, "k": 200, "all": True}).json()["hits"]
        best = by_score[0]["score"]
        monkeypatch.setattr(CutOff, "limits", lambda self, words: Limits(best - 1e-4, best - 1e-4))
        for k in (1, 2, 200):
            assert client.get(SEARCH, params={"q": "garden", "k": k}).json()["fits"] is True


def test_a_long_list_has_what_the_gallery_knows(client, gallery, monkeypatch):
    monkeypatch.setattr(searcher, "_LONG", 3)
    before = [hit["item"]["id"] for hit in pages(client, q="a dog", fold=False)]
    known = gallery.index.fetch(before[:1])[before[0]]
    gallery.index.add(["new/one.png"], known[None])
    try:
        assert [hit["item"]["id"] for hit in pages(client, q="a dog", fold=False)] == before
    finally:
        gallery.index.remove(["new/one.png"])
