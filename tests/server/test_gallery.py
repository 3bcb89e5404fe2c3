"""What the server shows of an index: its items as they are now, near-duplicates as one."""

from datetime import date
from pathlib import Path

import numpy as np
import pytest
from made_sets import unit_sets

from maxmatch import SetIndex
from maxmatch.search.filters import Comparison
from maxmatch.search.folding import Sketcher, group_near_duplicates
from maxmatch.search.photos.facts import facts_condition
from maxmatch.server import gallery as module
from maxmatch.server.gallery import Gallery, item_of, key_of


def test_changes_to_the_index_are_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_REFRESH_AFTER", 0.0)
    index = SetIndex.create(tmp_path / "index", dim=8, set_size=2, engine="exhaustive")
    index.add(["a", "b"], unit_sets(2), [{"taken": "2020"}, {"taken": "2021"}])
    gallery = Gallery(index, Path)
    assert [item.id for item in gallery.passing(None)] == ["b", "a"]
    index.add(["c"], unit_sets(1), [{"taken": "2022"}])
    gallery.refresh()
    assert [item.id for item in gallery.passing(None)] == ["c", "b", "a"]
    late = Comparison("taken", ">=", "2021")
    assert [item.id for item in gallery.passing(late)] == ["c", "b"]
    index.remove(["b"])
    gallery.refresh()
    assert gallery.find(key_of("b")) is None
    assert [item.id for item in gallery.passing(late)] == ["c"]
    assert set(gallery.state.sketches) == {"a", "c"}
    before = gallery.state.sketches["a"]
    index.upsert(["a"], unit_sets(3)[2:], [{"taken": "2030"}])
    gallery.refresh()
    assert [item.id for item in gallery.passing(None)] == ["a", "c"], "a replaced item has new facts"
    assert (gallery.state.sketches["a"] != before).any()
    monkeypatch.setattr(Gallery, "_read", lambda self: pytest.fail("an unchanged index was read again"))
    gallery.refresh()
    assert len(gallery.passing(None)) == 2


def test_without_a_date_by_exif_the_files_counts_and_is_marked(tmp_path):
    index = SetIndex.create(tmp_path / "index", dim=8, set_size=2)
    facts = [
        {"taken": "2020-01-01T00:00:00", "date": "2020-01-01T00:00:00", "date_from": "exif"},
        {"taken": None, "date": "2021-06-01T00:00:00", "date_from": "file"},
        {"taken": "2022-01-01T00:00:00"},  # noted by an earlier version
    ]
    index.add(["a", "b", "c"], unit_sets(3), facts)
    with index:
        gallery = Gallery(index, Path)
        assert [item.id for item in gallery.state.newest] == ["c", "b", "a"]
        assert [(item.taken, item.date_from) for item in gallery.state.newest][1] == (None, "file")
        condition = facts_condition(start=date(2021, 1, 1))
        assert [item.id for item in gallery.passing(condition)] == ["c", "b"]
        assert {hit.id for hit in index.search(unit_sets(1), where=condition)[0]} == {"b", "c"}


def test_an_index_without_facts_is_shown(tmp_path):
    index = SetIndex.create(tmp_path / "index", dim=8, set_size=2, engine="exhaustive")
    index.add(["x/a.jpg", "b"], unit_sets(2), [{"width": "wide", "height": -3, "name": 7}, {}])
    items = {item.id: item for item in Gallery(index, Path).passing(None)}
    assert items["x/a.jpg"].name == "a.jpg"
    assert items["x/a.jpg"].width is None
    assert items["b"].folder == ""


def test_keys_hide_ids_and_differ():
    keys = {key_of(name) for name in ("a", "b", "a/b", "../a", "ä")}
    assert len(keys) == 5
    assert all(len(key) == 32 and set(key) <= set("0123456789abcdef") for key in keys)
    assert item_of("a", {}).key == key_of("a")


K, D = 4, 64


def sets(count, seed=0):
    vectors = np.random.default_rng(seed).standard_normal((count, K, D)).astype("float32")
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def near(base, cosine, seed):
    """Sets whose slots all have this cosine with those of `base`."""
    other = sets(len(base), seed)
    other -= (other * base).sum(-1, keepdims=True) * base
    other /= np.linalg.norm(other, axis=-1, keepdims=True)
    return cosine * base + np.sqrt(1 - cosine**2) * other


@pytest.mark.parametrize("cosine", [0.95, 0.98, 0.995])
def test_a_sketch_keeps_how_near_two_sets_are(cosine):
    sketcher, base = Sketcher(K * D), sets(200)
    one, two = (sketcher(each.reshape(200, -1)).astype("float64") for each in (base, near(base, cosine, 1)))
    estimates = 1 - (one * two).sum(1)
    assert np.abs(estimates / (1 - cosine) - 1).mean() < 0.15


def test_groups_are_led_by_the_first_item():
    base = sets(5)
    all_sets = np.concatenate([base, near(base[:2], 0.999, 1), near(base[:1], 0.998, 2)])
    ids = [str(place) for place in range(8)]
    sketches = dict(zip(ids, Sketcher(K * D)(all_sets.reshape(8, -1)), strict=True))
    assert group_near_duplicates(ids, sketches, 0.99) == [[0, 5, 7], [1, 6], [2], [3], [4]]
    assert group_near_duplicates(ids, sketches, 1.1) == [[place] for place in range(8)]
    assert group_near_duplicates([], sketches) == []


def test_a_longer_list_begins_with_the_same_leaders():
    base = sets(20)
    all_sets = np.concatenate([base, near(base, 0.995, 1), near(base, 0.98, 2)])
    order = np.random.default_rng(0).permutation(60)
    ids = [str(place) for place in order]
    sketches = dict(zip(ids, Sketcher(K * D)(all_sets[order].reshape(60, -1)), strict=True))
    whole = [group[0] for group in group_near_duplicates(ids, sketches, 0.99)]
    for length in (1, 7, 30, 59):
        leaders = [group[0] for group in group_near_duplicates(ids[:length], sketches, 0.99)]
        assert leaders == whole[: len(leaders)]


def test_items_without_a_sketch_stay_alone():
    assert group_near_duplicates(["a", "b", "a"], {}) == [[0], [1], [2]]
