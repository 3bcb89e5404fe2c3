"""What is promised of Milvus beyond what every engine promises: its limits, its refusals, and that it may crash."""

import json
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from made_sets import unit_sets
from pymilvus import MilvusClient

from maxmatch import SetIndex, top_hits
from maxmatch.search.engine import ItemRows, Location, metadata_of, present, sample
from maxmatch.search.engines import milvus
from maxmatch.search.engines.milvus import (
    FILE,
    KINDS,
    TOKEN,
    Milvus,
    Server,
    _schema,
    expression,
    filterable,
    keeps_half,
    make_collection,
)
from maxmatch.search.filters import parse_where


@pytest.fixture(params=[pytest.param(None, marks=pytest.mark.slow)], ids=["server"])
def settings(request):
    """A real server: whatever asks for it is slow."""
    return {"uri": request.getfixturevalue("milvus_server").uri}


@pytest.fixture
def index(tmp_path, settings):
    """An index of sets of two vectors of width 8."""
    index = SetIndex.create(tmp_path / "index", dim=8, set_size=2, engine="milvus", settings=settings)
    yield index
    index.close()
    shutil.rmtree(index.folder)


def test_nothing_acknowledged_is_lost_when_the_server_is_killed(index, milvus_server, tmp_path):
    items, other = unit_sets(200), unit_sets(200, seed=1)
    names = [f"item {place}" for place in range(200)]
    index.add(names[:60], items[:60])
    index.compact()  # some items are in a closed segment, others in one that grows
    index.add(names[60:100], items[60:100], [{"n": place} for place in range(60, 100)])
    index.upsert(names[:10], other[:10])
    index.remove(names[10:20])
    acknowledged = []

    def write():
        for start in range(100, 200, 5):
            try:
                index.add(names[start : start + 5], items[start : start + 5])
            except OSError:
                return
            acknowledged.extend(names[start : start + 5])
            if start == 150:
                under_way.set()

    under_way = threading.Event()
    index.engine.server = index.engine.server.model_copy(update={"timeout": 2.0})
    writer = threading.Thread(target=write)
    writer.start()
    under_way.wait(60)
    milvus_server.kill()
    writer.join()
    for call in (lambda: len(index), lambda: index.search(items[:1]), lambda: index.add(["x"], items[:1])):
        with pytest.raises(ConnectionError, match=r"http://127.0.0.1:\d+: the Milvus server does not answer") as caught:
            call()
        assert "\n" not in str(caught.value)
        assert "Start it" in str(caught.value)
    milvus_server.start()
    with SetIndex.open(index.folder) as again:
        kept = {hit.id: hit for hit in again.search(items[:1], k=300, exact=True)[0]}
        expected = set(names[:10] + names[20:100] + acknowledged)
        assert "item 154" in acknowledged
        assert expected <= set(kept) <= set(names[:10] + names[20:])
        found = {
            name: vector for block in again.engine.scan(1000) for name, vector in zip(block[0], block[2], strict=True)
        }
        for place, name in enumerate(names):
            if name in found:  # every item whole, in the vectors it had last
                last = other if place < 10 else items
                assert np.array_equal(found[name], last[place].reshape(-1).numpy())
        assert kept["item 77"].metadata == {"n": 77}
    index.engine = milvus.open_engine(index.engine.place)


def test_a_collection_of_another_form_is_refused(index, settings, tmp_path, milvus_server):
    def copy(**changes):
        data = json.loads((index.folder / "index.json").read_text())
        (tmp_path / "copy").mkdir(exist_ok=True)
        (tmp_path / "copy" / "index.json").write_text(json.dumps({**data, **changes}))

    client = index.engine.client
    copy()
    note = tmp_path / "copy" / FILE
    note.write_text('{"collection": "nowhere"}')
    with pytest.raises(FileNotFoundError, match="there is no collection nowhere"):
        SetIndex.open(tmp_path / "copy")
    shutil.copy(index.folder / FILE, note)
    copy(dim=16)
    with pytest.raises(ValueError, match="expected vectors of 32 numbers compared by IP, found 16 and IP"):
        SetIndex.open(tmp_path / "copy")
    copy()
    client.create_collection("foreign", dimension=16, auto_id=False)
    note.write_text('{"collection": "foreign"}')
    with pytest.raises(ValueError, match="collection foreign: expected a field id of type VARCHAR, found INT64"):
        SetIndex.open(tmp_path / "copy")
    with pytest.raises(ValueError, match="there is a collection foreign already"):
        make_collection(Location(tmp_path, 16), Server(**settings, collection="foreign"), client)
    client.drop_collection("foreign")


def test_what_a_killed_create_has_left_is_dropped(index, settings, tmp_path):
    client = index.engine.client
    (tmp_path / FILE).write_text('{"collection": "left"}')
    client.create_collection("left", schema=_schema(index.engine.place, client))
    name = make_collection(Location(tmp_path, 16, settings=settings), index.engine.server, client)
    there = client.list_collections()
    assert "left" not in there
    assert name in there
    assert json.loads((tmp_path / FILE).read_text()) == {"collection": name}
    client.drop_collection(name)


def test_long_writes_reads_and_batches_of_queries_go_in_several_messages(index, monkeypatch):
    monkeypatch.setattr(milvus, "_MESSAGE_BYTES", 20_000)
    monkeypatch.setattr(milvus, "_IDS", 50)
    small = milvus.open_engine(index.engine.place)  # pages of some sixty items
    items, queries = unit_sets(300), unit_sets(4, seed=1)
    names = [f"item {place}" for place in range(300)]
    index.engine.close()
    index.engine = small
    index.add(names, items, [{"text": "y" * place} for place in range(300)])
    blocks = list(small.scan(25))
    assert sorted(name for block in blocks for name in block.ids) == sorted(names)
    assert max(len(block.ids) for block in blocks) <= 25
    expected = top_hits(queries, items, 5)
    for found in (index.search(queries, k=5, exact=True), index.search(queries, k=5)):
        assert [[hit.id for hit in hits] for hits in found] == [[names[n] for n in row] for row in expected.indices]
        assert all(hit.metadata == {"text": "y" * int(hit.id[5:])} for hits in found for hit in hits)
    candidates = small.candidates(queries.reshape(4, -1).numpy(), 290)  # more than go into one message
    assert [len(set(one.ids)) for one in candidates] == [290] * 4
    place = names.index(candidates[3].ids[11])
    assert np.array_equal(candidates[3].vectors[11], items[place].reshape(-1).numpy())
    index.remove(names[:100])
    assert present(small, names) == set(names[100:])


def test_the_metadata_of_few_candidates_come_along_and_those_of_many_are_fetched(index):
    index.add(["a", "b"], unit_sets(2), [{"n": 1}, {"n": 2}])
    queries = unit_sets(2).reshape(2, -1).numpy()
    few, many = index.engine.candidates(queries[:1], 2)[0], index.engine.candidates(queries, 1000)[0]
    assert dict(zip(few.ids, few.metadata, strict=True)) == {"a": '{"n": 1}', "b": '{"n": 2}'}
    assert many.metadata is None
    assert metadata_of(index.engine, ["b", "gone", "a"]) == {"b": '{"n": 2}', "a": '{"n": 1}'}


def test_a_sample_is_the_same_for_a_seed_and_spread_over_all_items(index):
    names = [str(place) for place in range(400)]
    index.add(names, unit_sets(400))
    drawn = [sample(index.engine, 40, seed) for seed in (0, 0, 1)]
    assert drawn[0].ids == drawn[1].ids != drawn[2].ids
    assert all(len(set(one.ids)) == 40 for one in drawn)
    seen = [int(name) for seed in range(10) for name in sample(index.engine, 40, seed).ids]
    assert 150 < np.mean(seen) < 250
    assert len(set(seen)) > 200
    assert sorted(sample(index.engine, 1000, 0).ids) == sorted(names)
    vectors = unit_sets(400).reshape(400, -1).numpy()
    assert all(
        np.array_equal(vector, vectors[int(name)]) for name, vector in zip(drawn[0].ids, drawn[0].vectors, strict=True)
    )


# What needs no server.

NOBODY = {"uri": "http://127.0.0.1:9", "timeout": 0.5}


class Client(MilvusClient):
    """A client without a server."""

    def __init__(self, version="2.4.0"):
        self.version = version

    def get_server_version(self):
        return self.version


@pytest.fixture
def engine():
    return Milvus(Location(Path(), 8), Server(**NOBODY), Client(), "items")


def test_a_server_that_is_not_there_is_named_and_the_folder_stays_usable(tmp_path):
    with pytest.raises(ConnectionError, match=r"does not answer .* Start it, or correct the address") as caught:
        SetIndex.create(tmp_path / "index", dim=8, set_size=2, engine="milvus", settings=NOBODY)
    assert NOBODY["uri"] in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(SetIndex.create(tmp_path / "index", dim=8, set_size=2)) == 0


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ({"uri": None}, "uri: expected the address of a Milvus server, as http://localhost:19530, got None"),
        ({"uri": "photos.db"}, "uri: expected the address"),
        ({"uri": "http://me:secret@there:1"}, f"a password would be written to the folder. .* {TOKEN}"),
        ({"token": "secret"}, "unknown key 'token'"),
        ({"timeout": 0}, "timeout: .*greater than 0, got 0"),
        ({"timeout": True}, "timeout: .*got True"),
        ({"consistency": "strong"}, "consistency: .*'Strong'.*got 'strong'"),
        ({"collection": "my photos"}, "collection: .*got 'my photos'"),
        ({"index": "hnsw"}, "index: .*'HNSW'.*got 'hnsw'"),
        ({"shards": 0}, "shards: .*got 0"),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_made(wish, message, tmp_path):
    with pytest.raises(ValueError, match=message) as caught:
        SetIndex.create(tmp_path / "index", dim=8, set_size=2, engine="milvus", settings={**NOBODY, **wish})
    assert "secret" not in str(caught.value)
    assert not (tmp_path / "index" / FILE).exists()


def test_what_does_not_fit_into_milvus_is_refused(engine, tmp_path):
    with pytest.raises(ValueError, match="sets of 40000 numbers: Milvus takes at most 32768 per vector"):
        make_collection(Location(tmp_path, 40_000), engine.server, Client())
    long = ItemRows(["b"], np.arange(1), np.ones((1, 8), np.float32), [json.dumps({"text": "x" * 70_000})])
    with pytest.raises(ValueError, match="metadata of 'b': 70012 bytes as JSON, but Milvus takes at most 65535"):
        engine.add(long)


def test_a_folder_without_the_name_of_its_collection_is_refused(tmp_path):
    place = Location(tmp_path, 16, settings=NOBODY)
    with pytest.raises(FileNotFoundError, match=r"milvus.json: not there. It names the collection"):
        milvus.open_engine(place)
    (tmp_path / FILE).write_text("{")
    with pytest.raises(ValueError, match=r'milvus.json: expected {"collection"'):
        milvus.open_engine(place)


def test_items_on_a_server_are_never_taken_for_items_in_memory(engine):
    """Else a search would take few candidates, as if all inner products were compared."""
    engine.in_memory = True
    assert not engine.in_memory


@pytest.mark.parametrize("kind", KINDS)
def test_more_effort_never_looks_at_less(kind):
    look = KINDS[kind][1]
    for count in (1, 100, 10_000):
        for low, high in ((0.1, 1.0), (1.0, 2.0), (2.0, 1e6)):
            assert all(look(count, low)[name] <= value for name, value in look(count, high).items())
        assert all(value >= count for name, value in look(count, 0.01).items() if name in ("ef", "search_list"))


@pytest.mark.parametrize(
    ("version", "half"), [("v2.3.5-lite", False), ("v2.4.0", True), ("2.10.1", True), ("v3.0", True)]
)
def test_half_precision_is_kept_as_such_where_the_server_can(version, half):
    assert keeps_half(Location(Path(), 8, "float16"), Client(version)) is half
    assert not keeps_half(Location(Path(), 8, "float32"), Client(version))


def test_not_stands_before_exists_alone():
    written = expression(parse_where("NOT (year >= 2020 AND album != 'Ro\"me' OR NOT blurred = true)"))
    assert written == (
        '(((filter["n:year"] < 2020.0 or (not (exists filter["n:year"]))) '
        'or (filter["t:album"] == "Ro\\"me" or (not (exists filter["t:album"])))) and filter["b:blurred"] == true)'
    )
    assert filterable('{"year": 2020, "a\\"b": "x", "n": null, "l": [1], "ok": false}') == {
        "n:year": 2020.0,
        "t:a%22;b": "x",
        "b:ok": False,
    }
