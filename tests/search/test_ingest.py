"""Filling an index: every item once, whatever happens meanwhile."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from made_data import run
from made_shards import D, K, random_sets, write_shards

from maxmatch.search.ingest import add, build, from_arrays, from_shards
from maxmatch.search.set_index import SetIndex
from maxmatch.search.shards import ShardError


def create(folder):
    return lambda: SetIndex.create(folder, D, K, engine="exhaustive", model="a" * 64)


def assert_holds(index, expected):
    """Every item once, with its set."""
    found = [one for block in index.engine.scan(100) for one in zip(block.ids, block.vectors, strict=True)]
    assert sorted(name for name, _ in found) == sorted(expected)
    for name, vector in found:
        np.testing.assert_allclose(vector.reshape(K, D), expected[name], atol=1e-6)


def test_an_index_built_of_shards_holds_each_item_with_its_metadata(tmp_path):
    first = write_shards(tmp_path / "a", 30)
    second = write_shards(tmp_path / "b", 15, seed=1, prefix="other")
    advanced = []
    incoming = from_shards([tmp_path / "a", tmp_path / "b"])
    with build(tmp_path / "index", incoming, create(tmp_path / "index"), advanced.append) as index:
        assert_holds(index, first | second)
        [[hit]] = index.search(first["item3"][None], 1, exact=True)
        assert (hit.id, hit.metadata) == ("item3", {"year": 2003, "path": "/photos/item3.jpg"})
    assert sum(advanced) == incoming.items == len(first) + len(second)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "index"]  # no note is left


KILLED = """
import json, os, random, signal, sys, time
from pathlib import Path
from types import SimpleNamespace
from maxmatch.core.files import write_whole
from maxmatch.search import ingest
from maxmatch.search.ingest import from_shards

class Ledger:
    # As an index keeps its promises: a write is whole or not at all, and a new item must not be there.
    def __init__(self, folder):
        self.folder, self.engine = folder, self
    @classmethod
    def open(cls, folder):
        return cls(folder)
    @classmethod
    def create(cls, folder):
        folder.mkdir(exist_ok=True)  # a killed one may have come so far
        write_whole(folder / "index.json", "{}")
        return cls(folder)
    def items(self):
        return json.loads((self.folder / "index.json").read_text())
    def fetch(self, ids, vectors):
        return SimpleNamespace(ids=self.items().keys() & set(ids))
    def add(self, ids, sets, metadata, optimise):
        assert not self.items().keys() & set(ids), "added twice"
        self.upsert(ids, sets, metadata, optimise)
    def upsert(self, ids, sets, metadata, optimise):
        new = dict(zip(ids, sets.tolist()))
        write_whole(self.folder / "index.json", json.dumps({**self.items(), **new}))
    def compact(self):
        pass

ingest.SetIndex = Ledger
moments = random.Random(3)
root = Path(sys.argv[1])
for verb in sys.argv[2:]:
    folder = root / verb
    if verb != "build":
        Ledger.create(folder)
    for step in range(100):
        child = os.fork()
        if not child:
            if verb == "build":
                ingest.build(folder, from_shards([root / "shards"]), lambda: Ledger.create(folder))
            else:
                ingest.add(Ledger.open(folder), from_shards([root / "shards"]), verb)
            os._exit(0)
        time.sleep(moments.uniform(0, 0.002) * 1.2**step)  # longer and longer, however fast the disk is
        os.kill(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        there = Ledger(folder).items() if (folder / "index.json").exists() else {}
        if code == -signal.SIGKILL and len(there) == 36 and not ingest.is_begun(folder):
            code = 0  # killed between its last step and its end: all 36 that were encoded are there
        if code != -signal.SIGKILL:
            break
    print(code, step)
"""


def test_killed_at_random_moments_it_resumes_and_adds_nothing_twice(tmp_path):
    """Many kills, against the promises of an index; those of the index itself are tested beside it."""
    expected = write_shards(tmp_path / "shards", 40, shard_size=2)
    verbs = ["build", "refuse", "skip", "replace"]
    done = run(KILLED, tmp_path, *verbs)
    ends = [list(map(int, line.split())) for line in done.stdout.splitlines()]
    assert [code for code, _ in ends] == [0] * 4, done.stderr
    assert min(kills for _, kills in ends) >= 3
    for verb in verbs:
        found = json.loads((tmp_path / verb / "index.json").read_text())
        assert found.keys() == expected.keys()
        assert all(np.allclose(found[name], expected[name]) for name in found)
    assert not list(tmp_path.glob(".*filling*"))


def test_a_build_that_failed_halfway_resumes_after_what_was_acknowledged(tmp_path, monkeypatch):
    expected = write_shards(tmp_path / "shards", 30)
    write_shards(tmp_path / "other", 30, seed=1)
    incoming, index = from_shards([tmp_path / "shards"]), tmp_path / "index"
    added, real = [], SetIndex.add

    def full(self, ids, *arguments, **options):
        if len(added) == 2:
            raise OSError(28, "no space left")
        added.append(ids)
        real(self, ids, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(SetIndex, "add", full)
        with pytest.raises(OSError, match="no space left"):
            build(index, incoming, create(index))
    with pytest.raises(FileExistsError, match=r"adding other items was interrupted.*\.index\.filling"):
        build(index, from_shards([tmp_path / "other"]), create(index))
    advanced = []
    with build(index, incoming, create(index), advanced.append) as opened:
        assert_holds(opened, expected)
    assert sum(advanced) == len(incoming.read(3).ids)


def test_building_over_an_index_is_refused_and_a_create_that_fails_leaves_nothing(tmp_path):
    write_shards(tmp_path / "shards", 10)
    incoming = from_shards([tmp_path / "shards"])
    build(tmp_path / "index", incoming, create(tmp_path / "index")).close()
    with pytest.raises(FileExistsError, match=r"is an index already. Add to it with `maxmatch index add`"):
        build(tmp_path / "index", incoming, create(tmp_path / "index"))

    def fails():
        raise ValueError("engine: no such thing")

    with pytest.raises(ValueError, match="no such thing"):
        build(tmp_path / "other", incoming, fails)
    assert not list(tmp_path.glob(".other*"))


def test_items_that_are_there_are_refused_kept_or_replaced(tmp_path):
    old = write_shards(tmp_path / "old", 10)
    new = write_shards(tmp_path / "new", 20, seed=1)
    with build(tmp_path / "index", from_shards([tmp_path / "old"]), create(tmp_path / "index")) as index:
        incoming = from_shards([tmp_path / "new"])
        with pytest.raises(
            ValueError, match=r"'item0' is in the index already. Nothing was added: use --existing skip"
        ):
            add(index, incoming)
        assert_holds(index, old)
        add(index, incoming, "skip")
        assert_holds(index, new | old)
        add(index, incoming, "replace")
        assert_holds(index, new)


def test_shards_that_do_not_belong_together_are_refused(tmp_path):
    write_shards(tmp_path / "a", 10)
    write_shards(tmp_path / "b", 10, prefix="b", identity="b" * 64)
    write_shards(tmp_path / "again", 10)
    with pytest.raises(ShardError, match="made by another model"):
        from_shards([tmp_path / "a", tmp_path / "b"])
    with pytest.raises(ShardError, match=r"again: 'item0' is in .*a, too"):
        from_shards([tmp_path / "a", tmp_path / "again"])
    manifest = json.loads((tmp_path / "a" / "manifest.json").read_text())
    (tmp_path / "a" / "manifest.json").write_text(json.dumps({**manifest, "encoded": None}))
    with pytest.raises(ShardError, match=r"the encoding is not finished. Run the same `maxmatch encode` again"):
        from_shards([tmp_path / "a"])


@pytest.fixture
def arrays(tmp_path):
    """Another program's sets, ids and metadata."""
    np.save(tmp_path / "sets.npy", random_sets(5))
    (tmp_path / "ids.txt").write_text("a\nb\nc\nd\ne\n")
    rows = [{"year": 2000 + n} for n in range(5)]
    (tmp_path / "meta.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_arrays_of_another_program_are_taken_in(arrays, dtype):
    np.save(arrays / "sets.npy", random_sets(5, dtype=dtype))
    incoming = from_arrays(arrays / "sets.npy", arrays / "ids.txt", arrays / "meta.jsonl")
    with build(arrays / "index", incoming, create(arrays / "index")) as index:
        [[hit]] = index.search(random_sets(5)[2:3], 1, exact=True)
        assert (hit.id, hit.metadata) == ("c", {"year": 2002})
        assert len(index) == 5


def test_metadata_may_be_parquet_and_large_arrays_come_in_parcels(arrays, monkeypatch):
    pa.parquet.write_table(pa.table({"year": [1, 2, 3, 4, None]}), arrays / "meta.parquet")
    monkeypatch.setattr("maxmatch.search.ingest._BATCH_BYTES", 2 * K * D * 4)
    incoming = from_arrays(arrays / "sets.npy", arrays / "ids.txt", arrays / "meta.parquet")
    assert [list(batch.ids) for batch in incoming.batches()] == [["a", "b"], ["c", "d"], ["e"]]
    assert [list(batch.metadata) for batch in incoming.batches(1)] == [[{"year": 3}, {"year": 4}], [{"year": None}]]


def spoiled(change):
    sets = random_sets(5)
    sets[3] = change(sets[3])
    return sets


@pytest.mark.parametrize(
    ("file", "value", "words"),
    [
        ("sets.npy", spoiled(lambda one: one * np.nan), r"sets.npy:4: NaN or infinite values, of the item 'd'. Leave"),
        ("sets.npy", spoiled(lambda one: one * 2), r"sets.npy:4: vectors of length 2 to 2, of the item 'd'. Normalise"),
        ("sets.npy", random_sets(5)[:, 0], r"expected an array of numbers \(items, K, D\), found float32 \(5, 8\)"),
        ("sets.npy", np.array([None] * 5), "not a readable .npy file"),
        ("sets.npy", random_sets(5)[:0], "no sets in it"),
        ("sets.npy", b"", "not a readable .npy file"),
        ("ids.txt", b"a\nb\n", r"ids.txt: 2 ids, and 5 sets in .*sets.npy. Give one id for each set"),
        ("ids.txt", b"a\nb\nc\na\ne\n", "ids.txt:4: the id 'a' is in line 1, too. Give each item its own"),
        ("ids.txt", b"a\nb\n\nd\ne\n", "ids.txt:3: an empty line"),
        ("ids.txt", b"a\nb\nc\nd\ncaf\xe9\n", "ids.txt:5: not UTF-8"),
        ("meta.jsonl", b"{}\n{}\n", r"meta.jsonl: 2 rows, and 5 sets in .*sets.npy. Give one row for each set"),
        ("meta.jsonl", b"{}\n{}\n{\n{}\n{}\n", "meta.jsonl:3: not a whole JSON object"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_by_file_and_line(arrays, file, value, words):
    if isinstance(value, bytes):
        (arrays / file).write_bytes(value)
    else:
        np.save(arrays / file, value, allow_pickle=True)
    with pytest.raises(ValueError, match=words):
        from_arrays(arrays / "sets.npy", arrays / "ids.txt", arrays / "meta.jsonl")


def test_files_that_are_not_there_are_named(arrays):
    for files, words in (
        ((arrays / "x.npy", arrays / "ids.txt", None), "x.npy"),
        ((arrays / "sets.npy", arrays / "x.txt", None), "x.txt"),
        ((arrays / "sets.npy", arrays / "ids.txt", arrays / "x.parquet"), "x.parquet: no such file"),
        ((arrays / "sets.npy", arrays / "ids.txt", arrays / "x.xml"), "Give a table: .csv"),
    ):
        with pytest.raises((ValueError, OSError), match=words):
            from_arrays(*files)
