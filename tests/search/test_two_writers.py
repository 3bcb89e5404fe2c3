"""Several processes at one index: writers wait for each other, readers for nobody."""

import threading

import pytest
from made_sets import unit_sets

from maxmatch import SetIndex
from maxmatch.search import index_folder


def _add_in_pieces(folder, letter, count):
    index = SetIndex.open(folder)
    for piece in range(count):
        index.add([f"{letter}{piece}"], unit_sets(1, seed=piece))
    index.close()


def test_two_writers_take_turns_and_nothing_is_lost(make):
    index = make()
    others = [threading.Thread(target=_add_in_pieces, args=(index.folder, letter, 5)) for letter in "ab"]
    for other in others:
        other.start()
    for other in others:
        other.join()
    expected = {f"{letter}{piece}" for letter in "ab" for piece in range(5)}
    assert {hit.id for hit in index.search(unit_sets(1), k=20)[0]} == expected


def test_who_waits_too_long_gets_an_error_and_readers_never_wait(make, monkeypatch):
    index = make()
    index.add(["a"], unit_sets(1))
    monkeypatch.setattr(index_folder, "_PATIENCE", 0.1)
    with index_folder.writing(index.folder):
        assert [hit.id for hit in index.search(unit_sets(1))[0]] == ["a"]
        assert len(SetIndex.open(index.folder)) == 1
        for write in (lambda: index.add(["b"], unit_sets(1)), lambda: index.remove(["a"]), index.compact):
            with pytest.raises(ValueError, match="another process is writing there"):
                write()
    index.add(["b"], unit_sets(1))
    assert len(index) == 2


def test_a_scan_that_has_begun_ends_on_the_state_it_began_with(make):
    index = make()
    index.add([str(n) for n in range(20)], unit_sets(20))
    blocks = index.engine.scan(3)
    seen = list(next(blocks).ids)
    index.remove([str(n) for n in range(10)])
    index.add(["later"], unit_sets(1))
    index.compact()
    for block in blocks:
        seen += block.ids
    assert sorted(seen, key=int) == [str(n) for n in range(20)]
