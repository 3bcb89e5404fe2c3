"""A copy of a small table answers as the table does, for as long as the table is what it was, and no longer."""

import numpy as np
import pytest
from made_sets import unit_sets

from maxmatch import SetIndex
from maxmatch.search.engines.cached_table import FILE, CopiedEngine, keep_copy

ITEMS, QUERIES = unit_sets(30), unit_sets(3, seed=1)
NAMES = [f"item '{place}'" for place in range(30)]
FACTS = [{"even": place % 2 == 0, "place": place, "Zoë": None} for place in range(30)]


@pytest.fixture
def folder(tmp_path):
    with SetIndex.create(tmp_path / "index", dim=8, set_size=2, dtype="float16") as index:
        index.add(NAMES, ITEMS, FACTS)
        assert keep_copy(index.engine, index.folder)
    return tmp_path / "index"


def is_copy(index):
    """Whether the copy alone has answered so far."""
    return isinstance(index.engine, CopiedEngine) and not index.engine._opened


def answers(index, **more):
    return [[(hit.id, hit.score, hit.matches, hit.metadata) for hit in hits] for hits in index.search(QUERIES, **more)]


@pytest.mark.parametrize("where", [None, "even = true AND place > 4", "place IN (3, 5)", "place = 99"])
def test_it_finds_what_the_table_finds(folder, where):
    with SetIndex.open(folder) as index:
        found = answers(index, where=where)
        assert is_copy(index)
        (folder / FILE).unlink()
    with SetIndex.open(folder) as index:
        assert not isinstance(index.engine, CopiedEngine)
        assert answers(index, where=where) == found


def test_it_counts_fetches_and_knows_its_ids(folder):
    with SetIndex.open(folder) as index:
        assert len(index) == 30
        assert index.engine.present([NAMES[3], "no such item"]) == {NAMES[3]}
        assert index.engine.metadata(["no such item"]) == {}
        fetched = index.fetch([NAMES[3], "no such item", NAMES[0]])
        assert is_copy(index)
    assert list(fetched) == [NAMES[3], NAMES[0]]
    np.testing.assert_allclose(fetched[NAMES[3]], ITEMS[3], atol=1e-3)


def test_what_another_process_writes_is_seen_at_once(folder):
    with SetIndex.open(folder) as reader, SetIndex.open(folder) as writer:
        assert len(reader) == 30
        writer.remove([NAMES[0]])
        assert len(reader) == 29
        assert not is_copy(reader)
    with SetIndex.open(folder) as index:
        assert not isinstance(index.engine, CopiedEngine)
        assert NAMES[0] not in index.fetch([NAMES[0]])


def test_what_is_written_through_it_is_there(folder):
    with SetIndex.open(folder) as index:
        index.upsert([NAMES[0], "new"], unit_sets(2, seed=2), [{"place": 100}, {"place": 101}])
        assert len(index) == 31
        assert {hit.id for hit in index.search(QUERIES[:1], k=40, where="place >= 100")[0]} == {NAMES[0], "new"}
        assert keep_copy(index.engine, folder)
    with SetIndex.open(folder) as index:
        assert len(index) == 31
        assert is_copy(index)


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "foreign"])
def test_a_damaged_copy_is_as_none(folder, damage):
    data = bytearray((folder / FILE).read_bytes())
    middle = len(data) // 2
    data[middle] ^= 0xFF
    changed = {"cut": data[:middle], "flipped": data, "empty": b"", "foreign": b"PK no zip"}[damage]
    (folder / FILE).write_bytes(changed)
    with SetIndex.open(folder) as index:
        assert not isinstance(index.engine, CopiedEngine)
        assert len(index) == 30
        assert keep_copy(index.engine, folder)


def test_an_index_with_candidates_of_its_own_gets_no_copy(tmp_path):
    with SetIndex.create(tmp_path / "index", dim=8, set_size=2, stability=1.0, settings={"train_from": 12}) as index:
        index.add(NAMES, ITEMS)
        assert index.engine.approximate
        assert not keep_copy(index.engine, index.folder)
    assert not (tmp_path / "index" / FILE).exists()


def test_one_who_searches_often_gets_the_engine_itself(folder):
    with SetIndex.open(folder) as index:
        index.engine.hold()
        assert not is_copy(index)
        assert len(index) == 30
