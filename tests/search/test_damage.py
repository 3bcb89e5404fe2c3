"""Damaged files, folders that are no index: each is named, and what was there stays."""

import json
import sys
from datetime import timedelta

import pytest
from made_sets import unit_sets

from maxmatch import SetIndex
from maxmatch.search.engines import lance
from maxmatch.search.engines.lance_files import damaged
from maxmatch.search.index_folder import IndexFolderError


@pytest.fixture
def stored(tmp_path):
    index = SetIndex.create(tmp_path / "index", dim=8, set_size=2)
    index.add([str(n) for n in range(50)], unit_sets(50))
    return index.folder


@pytest.mark.parametrize("what", ["cut", "overwritten", "empty", "missing"])
def test_a_damaged_file_is_named_by_whoever_reads_it(stored, what):
    (path,) = stored.glob("items.lance/data/*.lance")
    content = path.read_bytes()
    if what == "missing":
        path.unlink()
    else:
        path.write_bytes({"cut": content[:-300], "overwritten": b"x" * len(content), "empty": b""}[what])
    with pytest.raises(IndexFolderError, match=path.name):
        SetIndex.open(stored).search(unit_sets(1))


def test_a_flipped_bit_is_found_by_verify(stored):
    (path,) = stored.glob("items.lance/data/*.lance")
    content = bytearray(path.read_bytes())
    content[1000] ^= 1
    path.write_bytes(content)
    assert damaged(stored / "items.lance") == [path]
    with pytest.raises(IndexFolderError, match=f"{path.name}: changed since it was written. Restore it"):
        SetIndex.open(stored).verify()


def test_a_damaged_cache_is_called_one_with_how_to_rebuild_it(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    place = tmp_path / "maxmatch" / "photos" / "pictures-0123"
    index = SetIndex.create(place / "index", dim=8, set_size=2)
    index.add([str(n) for n in range(50)], unit_sets(50))
    (path,) = index.folder.glob("items.lance/data/*.lance")
    path.write_bytes(path.read_bytes()[:-300])
    for read in (
        lambda: SetIndex.open(index.folder).search(unit_sets(1)),
        index.check_files,
        lambda: SetIndex.open(index.folder),
    ):
        with pytest.raises(IndexFolderError, match=f"cache: delete {place},") as refused:
            read()
        assert "copy" not in str(refused.value)
        (index.folder / "index.json").write_text("{")


def test_a_damaged_version_is_named(stored):
    for path in stored.glob("items.lance/_versions/*.manifest"):
        path.write_bytes(path.read_bytes()[:10])
    with pytest.raises(IndexFolderError, match=r"items\.lance/_versions/.*: damaged"):
        SetIndex.open(stored)


def test_a_folder_that_is_no_index_is_refused_with_the_reason(stored, tmp_path):
    for folder, message in ((tmp_path / "nothing", "no such folder"), (tmp_path, "holds no index")):
        with pytest.raises(IndexFolderError, match=message):
            SetIndex.open(folder)
    path = stored / "index.json"
    whole = json.loads(path.read_text())
    for text, message in (
        ("{", "index.json: not readable as JSON"),
        ("[]", "index.json: not an index of MaxMatch"),
        (json.dumps({**whole, "format": "other"}), "not an index of MaxMatch"),
        (json.dumps({**whole, "schema_version": 3}), "schema version 3, but this MaxMatch .* reads up to 2. Upgrade"),
        (json.dumps({**whole, "dim": -1}), "index.json: dim: "),
        (json.dumps({**whole, "colour": 1}), "unknown key 'colour'"),
        (json.dumps({**whole, "dim": 16}), "vectors of 16 numbers, but index.json has 32"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            SetIndex.open(stored)
    path.write_text(json.dumps(whole))
    (stored / "items.lance").rename(stored / "elsewhere")
    with pytest.raises(FileNotFoundError, match=r"items\.lance: missing; it holds the items"):
        SetIndex.open(stored)


def test_what_a_killed_create_has_left_is_taken_over(stored):
    (stored / "index.json").unlink()
    assert len(SetIndex.create(stored, dim=4, set_size=3)) == 0


def test_a_library_that_is_missing_is_named_with_the_cure(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("maxmatch.search.engines.lance")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"engine 'lance' needs pyarrow: pip install 'maxmatch\[search\]'"):
        SetIndex.create(tmp_path / "index", dim=8, set_size=2)


def test_room_is_freed_and_files_are_merged(tmp_path, monkeypatch):
    monkeypatch.setattr(lance, "_KEPT", timedelta(milliseconds=1))
    index = SetIndex.create(tmp_path / "index", dim=8, set_size=2)
    for piece in range(6):
        index.add([f"{piece}-{n}" for n in range(100)], unit_sets(100, seed=piece))
    index.remove([f"{piece}-{n}" for piece in range(5) for n in range(100)])
    before = index.engine.facts()
    index.compact()
    after = index.engine.facts()
    assert (before["files"], after["files"]) == (6, 1) or before["files"] == after["files"] == 1
    assert int(str(after["bytes"])) < int(str(before["bytes"])) / 2
    listed = (index.folder / "items.lance.sums").read_text().splitlines()
    assert all((index.folder / "items.lance" / line.split(" ", 2)[2]).exists() for line in listed)
    assert len(index) == 100
