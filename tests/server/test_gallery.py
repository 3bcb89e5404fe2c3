from pathlib import Path

import pytest
import torch

from maxmatch import SetIndex
from maxmatch.search.filters import Comparison
from maxmatch.server import gallery as module
from maxmatch.server.gallery import Gallery, item_of, key_of


def unit_sets(count):
    return torch.nn.functional.normalize(torch.randn(count, 2, 8, generator=torch.Generator().manual_seed(0)), dim=-1)


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


def test_an_unchanged_index_is_not_read_again(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_REFRESH_AFTER", 0.0)
    index = SetIndex.create(tmp_path / "index", dim=8, set_size=2, engine="exhaustive")
    index.add(["a", "b"], unit_sets(2))
    gallery = Gallery(index, Path)
    monkeypatch.setattr(Gallery, "_read", lambda self: pytest.fail("read again"))
    gallery.refresh()
    assert len(gallery.passing(None)) == 2


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
