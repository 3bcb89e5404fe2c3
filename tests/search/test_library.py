"""Several folders searched as one: the same hits as one folder with all their photos would give."""

import numpy as np
import pytest
from PIL import Image

from maxmatch.search.engine import Engine
from maxmatch.search.photos import library as module
from maxmatch.search.photos.file_names import named_items
from maxmatch.search.photos.library import Library, distinct_folders
from maxmatch.search.photos.sync import is_excluded, open_photos, sync
from maxmatch.search.query import search_parts

NAMES = ["rome/0.png", "rome/1.png", "2.png", "screens/3.png", "4.gif"]


def photo(path, seed):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (30, 40, 3), np.uint8)).save(path)


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    base = tmp_path_factory.mktemp("library")
    for place, (root, name) in enumerate([(root, name) for root in ("home/Pictures", "disk/photos") for name in NAMES]):
        photo(base / root / name, place)
        photo(base / "all" / root.split("/")[1] / name, place)
    return base


@pytest.fixture(scope="module")
def folders(roots, model):
    opened = []
    for name in ("home/Pictures", "disk/photos", "all"):
        index = open_photos(roots / "caches" / name.replace("/", "-"), model)
        sync(index, model, roots / name)
        opened.append((roots / name, index))
    yield opened
    for _, index in opened:
        index.close()


def ids(hits):
    return [hit.id for hit in hits]


@pytest.mark.parametrize("where", [None, "folder = 'rome'", "width > 9000"])
def test_the_hits_are_those_of_one_folder_with_all_photos(folders, model, where):
    *several, whole = folders
    joined = Library(several)
    assert isinstance(joined.index.engine, Engine)
    queries = model.encode_texts(["a dog", "two people", "a red bus"])
    of_one = None if where is None or "width" in where else "name = '0.png' OR name = '1.png'"
    for found, expected in zip(
        joined.index.search(queries, k=20, where=where),
        whole[1].search(queries, k=20, where=of_one or where),
        strict=True,
    ):
        assert ids(found) == ids(expected)
        np.testing.assert_allclose([hit.score for hit in found], [hit.score for hit in expected], atol=1e-5)
    assert len(joined.index) == 10
    parts = search_parts(joined.index, list(queries[:2]), [1.0, -0.5], 5)
    assert ids(parts) == ids(search_parts(whole[1], list(queries[:2]), [1.0, -0.5], 5))
    name = ids(joined.index.search(queries[:1], k=1)[0])[0]
    assert joined.picture(name).read_bytes() == (whole[0] / name).read_bytes()
    np.testing.assert_array_equal(joined.index.fetch([name])[name], whole[1].fetch([name])[name])
    assert joined.index.engine.fetch([]).ids == []


def test_what_is_excluded_is_not_found_in_any_folder(folders, model):
    library = Library(folders[:2], ["screens", "*.gif"])
    found = ids(library.index.search(model.encode_texts(["a dog"]), k=20)[0])
    assert sorted(found) == sorted(f"{root}/{name}" for root in ("Pictures", "photos") for name in NAMES[:3])
    assert len(library.index) == 6
    assert library.index.engine.fetch(["Pictures/4.gif"]).ids == []
    alone = Library(folders[:1], ["rome/*"])
    assert sorted(ids(alone.index.search(model.encode_texts(["a dog"]), k=20)[0])) == sorted(NAMES[2:])
    assert Library(folders[:1]).index is folders[0][1], "one folder without exclusions is its own index"


def test_a_folder_that_proposes_candidates_and_one_that_does_not_are_searched_together(folders, model, monkeypatch):
    library = Library(folders[:2])
    large = folders[0][1].engine
    every = next(large.scan(100, metadata=True))

    def proposed(queries, count, *more):
        return [every for _ in queries]

    monkeypatch.setattr(large, "candidates", proposed, raising=False)
    monkeypatch.setattr(module, "_BLOCK", 2)
    query = model.encode_texts(["a dog", "a cat"])
    found = library.index.engine.candidates(query.reshape(2, -1).numpy(), 3)
    for each, asked in zip(found, query, strict=True):
        assert [name for name in each.ids if name.startswith("Pictures/")] == [f"Pictures/{one}" for one in every.ids]
        small = next(folders[1][1].engine.scan(100))
        products = np.asarray(small.vectors) @ asked.reshape(-1).numpy()
        best = {f"photos/{small.ids[place]}" for place in np.argsort(-products)[:3]}
        assert {name for name in each.ids if name.startswith("photos/")} == best
    assert len(each.metadata) == len(each.ids) == len(each.vectors) == 8


def test_labels_differ_and_a_folder_within_another_is_not_read_twice(tmp_path, folders):
    assert distinct_folders([tmp_path / "a", tmp_path / "a" / "b", tmp_path / "a", tmp_path / "ab"]) == [
        tmp_path / "a",
        tmp_path / "ab",
    ]
    index = folders[0][1]
    roots = [tmp_path / "x" / "photos", tmp_path / "y" / "photos", tmp_path / "w" / "z"]
    same = Library([(root, index) for root in roots])
    assert [one.label for one in same.folders] == ["x/photos/", "y/photos/", "w/z/"]
    nested = Library([(tmp_path / "a", index), (tmp_path / "y" / "a" / "b", index), (tmp_path / "z" / "b", index)])
    assert nested.picture("a/b/1.jpg") == tmp_path / "y" / "a" / "b" / "1.jpg", "of one depth, no label begins another"
    assert same.picture("y/photos/a/1.jpg") == tmp_path / "y" / "photos" / "a" / "1.jpg"
    with pytest.raises(FileNotFoundError):
        same.picture("elsewhere/1.jpg")


def test_the_name_of_a_given_folder_is_no_name_of_its_photos(folders):
    index = Library(folders[:2]).index
    assert named_items(index, ("photos",)) == named_items(index, ("pictures", "rome")) == []
    found = [f"{root}/rome/{name}" for root in ("Pictures", "photos") for name in ("0.png", "1.png")]
    assert sorted(named_items(index, ("rome",))) == found
    assert len(named_items(folders[2][1], ("photos",))) == len(NAMES), "within a given folder it is one"


@pytest.mark.parametrize(
    ("name", "pattern", "is_out"),
    [
        ("a.gif", "*.gif", True),
        ("x/a.gif", "*.gif", True),
        ("x/a.gif", "x", True),
        ("x/y/a.gif", "x/", True),
        ("x/y/a.gif", "*/y", True),
        ("xy/a.gif", "x", False),
        ("y/x/a.gif", "x", False),
        ("a.gif.png", "*.gif", False),
        ("x/a[1].png", "x/a[[]1]*", True),
        ("x/a.png", "X", False),
    ],
)
def test_a_pattern_is_that_of_a_path_or_of_a_folder_above_it(name, pattern, is_out):
    assert is_excluded(name, [pattern]) == is_out
    assert not is_excluded(name, [])
