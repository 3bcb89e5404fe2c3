"""Photos found by name: all words of the query, as words of the path."""

import numpy as np
import pytest
from made_sets import unit_sets

from maxmatch import SetIndex
from maxmatch.search.photos import file_names
from maxmatch.search.photos.file_names import NameList, is_named, named_first, named_items, query_words
from maxmatch.search.query import parse_query, search_parts


@pytest.mark.parametrize(
    ("path", "query", "found"),
    [
        ("2024/Rome/IMG_1234.jpg", "rome", True),
        ("2024/Rome/IMG_1234.jpg", "img_1234", True),
        ("2024/Rome/IMG_1234.jpg", "IMG_1234.jpg", True),
        ("2024/Rome/IMG_1234.jpg", "rome 2024", True),
        ("2024/Rome/IMG_1234.jpg", "rome 2023", False),
        ("2024/Rome/IMG_1234.jpg", "jpg", False),
        ("2024/Rome/IMG_1234.jpg", "rom", False),
        ("the dog.png", "a dog", True),
        ("the dog.png", "a dog on the beach", False),
        ("the dog.png", "the", False),
        ("category.png", "cat", False),
        ("Café/1.png", "cafe\u0301", True),
        ("STRASSE.png", "straße", True),
        ("beach people.png", "beach -people", True),
        ("people.png", "beach -people", False),
        ("собака.png", "собака", True),
        ("x.png", "?!", False),
        ("dog", "dog", True),
    ],
)
def test_all_words_of_the_query_are_words_of_the_path(path, query, found):
    words = query_words(parse_query(query))
    assert is_named(path, words) == found
    assert NameList(["x", path, "y", path]).places(words) == ([1, 3] if found else [])


def test_a_list_of_names_finds_what_each_of_them_alone_would():
    paths = ["", "rome/rome.jpg", "a\nrome.png", "b", "Rome\n", "rome", "ro/me.png", "rome.jpg", "x/ROME 2.gif"]
    listed = NameList(paths)
    for words in (("rome",), ("me",), ("rome", "2"), ("jpg",), ("a", "rome"), ()):
        assert listed.places(words) == [place for place, path in enumerate(paths) if is_named(path, words)]
        assert listed.may_have(words) or not listed.places(words)
    assert NameList([]).places(("rome",)) == []


def test_words_that_no_path_has_are_known_without_a_look_at_the_paths():
    listed = NameList(["2024/Rome/IMG_1234.jpg", "Café del mar.png"])
    assert listed.may_have(("rome",))
    assert listed.may_have(("café", "1234"))
    for words in (("rom",), ("rome", "2023"), ("img_1234",), ()):
        assert not listed.may_have(words)
    assert not NameList([]).may_have(("rome",))


def test_words_that_name_some_photos_are_offered_the_frequent_ones_first():
    rome = [f"2024/Rome/IMG_{n}.jpg" for n in range(4)]
    other = [f"IMG_{n} Café del mar.jpeg" for n in range(3)] + ["x2y/IMG.a.png", "IMG_9.png", "IMG_8.png"]
    assert NameList(rome + other).words() == ["rome", "café", "del", "mar"]
    assert NameList(rome + other).words(most=1) == ["rome"]
    assert NameList([]).words() == []


def test_named_items_come_first_by_their_scores_and_the_rest_as_it_was(tmp_path, monkeypatch):
    sets, queries = unit_sets(30), unit_sets(2, seed=1)
    ids = [f"{'rome' if place % 7 == 0 else 'other'}/{place}.jpg" for place in range(30)]
    with SetIndex.create(tmp_path / "index", dim=8, set_size=2) as index:
        index.add(ids, sets, [{"place": place} for place in range(30)])
        found = named_items(index, ("rome",))
        assert found == ids[::7]
        assert named_items(index, ("rome",), "place > 10") == ids[14::7]
        for parts, hits in (
            ([queries[0]], index.search(queries[:1], k=30)[0]),
            (list(queries), search_parts(index, list(queries), [1.0, -0.5], 30)),
        ):
            order = [hit.id for hit in hits]
            first = named_first(index, hits[:8], found, parts, [1.0, -0.5][: len(parts)], 8)
            expected = [name for name in order if name in found] + [name for name in order[:8] if name not in found]
            assert [hit.id for hit in first] == expected[:8]
            scores = {hit.id: hit.score for hit in hits}
            np.testing.assert_allclose([hit.score for hit in first], [scores[hit.id] for hit in first], atol=1e-5)
            assert first[0].metadata == {"place": int(first[0].id.split("/")[1].split(".")[0])}
            assert len(first[0].matches) == (2 if len(parts) == 1 else 0)
        monkeypatch.setattr(file_names, "MOST_NAMED", 4)
        assert named_items(index, ("rome",)) == []
