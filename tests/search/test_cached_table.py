"""The cache of a small table answers as the table does, as long as the table has not changed."""

import shutil

import numpy as np
import pytest
from made_sets import unit_sets

from maxmatch import SetIndex
from maxmatch.search.engine import metadata_of, present, proposes
from maxmatch.search.engines import cached_table
from maxmatch.search.engines.cached_table import FILE, VECTORS, CachedEngine, write_cache

ITEMS, QUERIES = unit_sets(30), unit_sets(3, seed=1)
NAMES = [f"item '{place}'" for place in range(30)]
FACTS = [{"even": place % 2 == 0, "place": place, "Zoë": None} for place in range(30)]


@pytest.fixture(scope="module", params=["one file", "vectors beside"])
def made(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cached") / "index"
    with pytest.MonkeyPatch.context() as patch, SetIndex.create(folder, dim=8, set_size=2, dtype="float16") as index:
        index.add(NAMES, ITEMS, FACTS)
        patch.setattr(cached_table, "_MOST", 10_000 if request.param == "one file" else 5)
        assert write_cache(index.engine, index.folder)
        assert (folder / VECTORS).exists() == (request.param != "one file")
    return folder


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made, tmp_path / "index")


def is_cache(index):
    """Whether the cache alone has answered so far."""
    return isinstance(index.engine, CachedEngine) and not index.engine.opened


def answers(index, **more):
    return [[(hit.id, hit.score, hit.matches, hit.metadata) for hit in hits] for hits in index.search(QUERIES, **more)]


def test_it_finds_what_the_table_finds_and_proposes_no_candidates(folder):
    filters = (None, "even = true AND place > 4", "place IN (3, 5)", "place = 99")
    with SetIndex.open(folder) as index:
        found = [answers(index, where=where) for where in filters]
        assert not proposes(index.engine)
        assert is_cache(index)
        (folder / FILE).unlink()
    with SetIndex.open(folder) as index:
        assert not isinstance(index.engine, CachedEngine)
        assert [answers(index, where=where) for where in filters] == found


def test_it_counts_fetches_and_knows_its_ids(folder):
    with SetIndex.open(folder) as index:
        assert len(index) == 30
        assert present(index.engine, [NAMES[3], "no such item"]) == {NAMES[3]}
        assert metadata_of(index.engine, ["no such item"]) == {}
        fetched = index.fetch([NAMES[3], "no such item", NAMES[0]])
        assert is_cache(index)
    assert list(fetched) == [NAMES[3], NAMES[0]]
    np.testing.assert_allclose(fetched[NAMES[3]], ITEMS[3], atol=1e-3)


def test_what_another_process_writes_and_what_is_written_through_it_is_seen_at_once(folder):
    with SetIndex.open(folder) as reader, SetIndex.open(folder) as writer:
        assert len(reader) == 30
        writer.remove([NAMES[1]])
        assert len(reader) == 29
        assert not is_cache(reader)
        reader.add([NAMES[1]], ITEMS[1:2])
        assert write_cache(reader.engine, folder)
    with SetIndex.open(folder) as index:
        index.upsert([NAMES[0], "new"], unit_sets(2, seed=2), [{"place": 100}, {"place": 101}])
        assert len(index) == 31
        assert {hit.id for hit in index.search(QUERIES[:1], k=40, where="place >= 100")[0]} == {NAMES[0], "new"}
        assert write_cache(index.engine, folder)
    with SetIndex.open(folder) as index:
        assert len(index) == 31
        assert is_cache(index)


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "foreign"])
def test_a_damaged_cache_is_ignored(folder, damage):
    data = bytearray((folder / FILE).read_bytes())
    middle = len(data) // 2
    data[middle] ^= 0xFF
    changed = {"cut": data[:middle], "flipped": data, "empty": b"", "foreign": b"PK no zip"}[damage]
    (folder / FILE).write_bytes(changed)
    with SetIndex.open(folder) as index:
        assert not isinstance(index.engine, CachedEngine)
        assert len(index) == 30
        assert write_cache(index.engine, folder)


@pytest.mark.parametrize("damage", ["gone", "cut", "of another state"])
def test_vectors_beside_that_do_not_fit_are_ignored(folder, damage, monkeypatch):
    monkeypatch.setattr(cached_table, "_MOST", 5)
    (folder / FILE).unlink()
    with SetIndex.open(folder) as index:
        assert write_cache(index.engine, folder)
    data = (folder / VECTORS).read_bytes()
    (folder / VECTORS).unlink()
    if damage != "gone":
        (folder / VECTORS).write_bytes(data[:-100] if damage == "cut" else data[:-64] + b"0" * 64)
    with SetIndex.open(folder) as index:
        assert not isinstance(index.engine, CachedEngine)
        assert len(index) == 30


def test_for_many_searches_the_engine_itself_is_opened(folder):
    with SetIndex.open(folder) as index:
        index.engine.in_memory = True
        assert not is_cache(index)
        assert len(index) == 30
