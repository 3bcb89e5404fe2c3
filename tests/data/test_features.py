"""Stores of features: what was written is read, a killed writer loses nothing, features join data by id."""

import json
import os
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
from made_data import content, features, run, split

from maxmatch.data.dataset import IMAGE, TEXT, DataError, Dataset, Items, Split
from maxmatch.data.features import AppendableNpy, FeatureStore, FeatureWriter, StoreInfo, recognises, with_features
from maxmatch.data.formats import karpathy, precomp


def stored(folder, arrays, ids=None, dtype="float32", boxes=None, **info):
    info = StoreInfo("made in a test", arrays[0].shape[1], dtype, boxes=boxes is not None, **info)
    with FeatureWriter(folder, info) as writer:
        writer.append(ids or [str(n) for n in range(len(arrays))], arrays, boxes)
        return writer.finish()


def ragged(counts, width=4):
    array = features(sum(counts), 1, width)[:, 0]
    return np.split(array, np.cumsum(counts)[:-1])


@pytest.mark.parametrize(("counts", "dtype"), [([3, 3, 3], "float16"), ([3, 1, 2], "float32")])
def test_a_store_holds_what_was_written(tmp_path, counts, dtype):
    arrays = ragged(counts)
    boxes = [np.full((count, 4), n, np.float32) for n, count in enumerate(counts)]
    ids = ["a b", "größer", "3"]
    grid = (1, 3) if counts == [3, 3, 3] else None
    store = stored(tmp_path / "store", arrays, ids, dtype, boxes, grid=grid)
    names = ["boxes.npy", "counts.npy", "features.npy", "ids.txt", "store.json"]
    assert sorted(path.name for path in (tmp_path / "store").iterdir()) == names
    assert (len(store), store.ids, store.info.dtype, store.info.grid) == (3, ids, dtype, grid)
    for n, array in enumerate(arrays):
        assert store.values[n].tolist() == array.astype(dtype).tolist()
        assert store.boxes[n].tolist() == boxes[n].tolist()
    values, mask = store.values.take([2, 0])
    assert mask.sum(axis=1).tolist() == [counts[2], counts[0]]
    assert values[mask].tolist() == np.concatenate([arrays[2], arrays[0]]).astype(dtype).tolist()
    assert np.load(tmp_path / "store" / "features.npy").shape == (sum(counts), 4)
    assert json.loads((tmp_path / "store" / "store.json").read_text())["count"] == 3
    again = pickle.loads(pickle.dumps(store.values))
    assert again[1:][0].tolist() == store.values[1].tolist()


NO_DTYPE = '{"format": "maxmatch.FeatureStore", "schema_version": 1, "source": "x", "width": 4, "count": 1}'


def damage(folder, name):
    file = folder / name
    if name == "store.json":
        file.write_text(file.read_text().replace('"schema_version": 1', '"schema_version": 9'))
    elif name == "ids.txt":
        file.write_text(file.read_text() + "one more\n")
    else:
        os.truncate(file, file.stat().st_size - 1)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("store.json", r"store\.json: .*schema version 9; this MaxMatch reads 1"),
        ("features.npy", r"features\.npy: not a whole \.npy array"),
        ("counts.npy", r"counts\.npy: not a whole \.npy array"),
        ("boxes.npy", r"boxes\.npy: not a whole \.npy array"),
        ("ids.txt", r"its files do not belong together: 4 ids, 3 counts"),
    ],
)
def test_a_damaged_store_is_refused(tmp_path, name, message):
    stored(tmp_path, ragged([1, 2, 3]), boxes=[np.zeros((n, 4)) for n in (1, 2, 3)])
    damage(tmp_path, name)
    with pytest.raises(DataError, match=message):
        FeatureStore.open(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises((DataError, FileNotFoundError), match=name):
        FeatureStore.open(tmp_path)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": "maxmatch.FeatureStore", "schema_version": 1, "width": 3}', NO_DTYPE]
)
def test_a_description_that_is_not_ours_is_refused(tmp_path, text):
    stored(tmp_path, ragged([1]))
    (tmp_path / "store.json").write_text(text)
    with pytest.raises(DataError, match=r"store\.json: not a store of features that can be read"):
        FeatureStore.open(tmp_path)


def test_stores_are_recognised_and_unfinished_ones_reported(tmp_path):
    assert not recognises(tmp_path)
    with pytest.raises(DataError, match="missing: no store of features"):
        FeatureStore.open(tmp_path)
    with FeatureWriter(tmp_path, StoreInfo("test", 4)) as writer:
        writer.append(["a"], ragged([2]))
    assert recognises(tmp_path)
    with pytest.raises(DataError, match=r"unfinished. Run the command that writes it again"):
        FeatureStore.open(tmp_path)


# Features in the place of pictures.


@pytest.fixture
def pictures(tmp_path):
    part = split([tmp_path / f"{n}.jpg" for n in range(4)], [2, 1, 3, 1], ids=["a", "b", "c", "d"])
    metadata = [{"licence": n} for n in range(4)]
    images = Items(part[IMAGE].values, part[IMAGE].groups, part[IMAGE].ids, metadata)
    return Dataset(tmp_path, "karpathy", {"train": Split({IMAGE: images, TEXT: part[TEXT]})})


@pytest.mark.parametrize("counts", [[2] * 5, [2, 1, 4, 3, 1]])
def test_features_take_the_place_of_pictures_by_id(tmp_path, pictures, counts):
    arrays = ragged(counts)
    found = with_features(pictures, stored(tmp_path / "store", arrays, ["d", "x", "b", "a", "c"]))
    assert (found.path, found.format) == (pictures.path, pictures.format)
    images, texts = (found.splits["train"][name] for name in (IMAGE, TEXT))
    assert [value.tolist() for value in images.values] == [arrays[n].tolist() for n in (3, 2, 4, 0)]
    assert content(Split({TEXT: texts})) == content(Split({TEXT: pictures.splits["train"][TEXT]}))
    assert images.metadata == [{"licence": n} for n in range(4)]


def test_a_group_without_features_is_named_and_left_out(tmp_path, pictures):
    arrays = ragged([2, 2])
    store = stored(tmp_path / "store", arrays, ["c", "a"])
    with pytest.raises(DataError, match=r"ids\.txt: no features of image 'b' of the split 'train'"):
        with_features(pictures, store)
    problems = []
    part = with_features(pictures, store, problems.append).splits["train"]
    assert len(problems) == 2
    assert part[IMAGE].ids == ["a", "c"]
    assert part[IMAGE].metadata == [{"licence": 0}, {"licence": 2}]
    assert [value.tolist() for value in part[IMAGE].values] == [arrays[1].tolist(), arrays[0].tolist()]
    before = pictures.splits["train"][TEXT]
    assert part[TEXT].values == before.values[:2] + before.values[3:6]
    assert part[TEXT].groups.tolist() == [0, 0, 1, 1, 1]


def test_features_of_other_data_are_refused_and_a_split_without_any_is_left_out(tmp_path, pictures):
    store = stored(tmp_path / "store", ragged([2]), ["x"])
    with pytest.raises(DataError, match=r"features of 'x' and others, but of no image of .* such as \['a'\]"):
        with_features(pictures, store, lambda problem: None)
    data = Dataset(tmp_path, "karpathy", {**pictures.splits, "val": split([Path("x")], 2, ids=["x"])})
    problems = []
    assert list(with_features(data, store, problems.append).splits) == ["val"]
    assert len(problems) == 4


def test_captions_joined_to_a_store_are_the_same_as_a_precomp_folder(tmp_path):
    array, ids = features(5, 3, 4), [f"picture {n}" for n in range(5)]
    in_precomp = {"train": split(array[:3], 5, ids[:3]), "val": split(array[3:], [2, 4], ids[3:], start=30)}
    precomp.write(in_precomp, tmp_path / "precomp")
    in_json = {}
    for name, part in in_precomp.items():
        pictures = [b"GIF8" + image.encode() for image in part[IMAGE].ids]
        in_json[name] = Split({**part.items, IMAGE: Items(pictures, part[IMAGE].groups, part[IMAGE].ids)})
    karpathy.write(in_json, tmp_path / "json")
    store = stored(tmp_path / "store", list(array[::-1]), ids[::-1])
    joined = with_features(Dataset(tmp_path / "json", "karpathy", karpathy.read(tmp_path / "json")), store)
    for name, part in precomp.read(tmp_path / "precomp").items():
        assert content(joined.splits[name]) == content(part) == content(in_precomp[name])


# The writer, killed and resumed.

INFO = StoreInfo("made in a test", 8, "float16", boxes=True)
COUNT = 10


def item(number):
    """Features and boxes of an item, of 1 to 4 regions."""
    values = features(1, 1 + number % 4, 8, seed=number)[0]
    return values, values[:, :4]


def resume(folder, count=COUNT, info=INFO):
    """Append what is not there yet, two at a time, and finish."""
    with FeatureWriter(folder, info) as writer:
        left = [n for n in range(count) if str(n) not in writer.done]
        for pair in zip(left[::2], [*left[1::2], None], strict=False):
            numbers = [n for n in pair if n is not None]
            writer.append([str(n) for n in numbers], [item(n)[0] for n in numbers], [item(n)[1] for n in numbers])
        return writer.finish()


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def done(folder):
    with FeatureWriter(folder, INFO) as writer:
        assert list(writer.done) == [str(n) for n in range(len(writer.done))]
        return len(writer.done)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    resume(folder)
    return files(folder)


@pytest.fixture
def begun(tmp_path):
    with FeatureWriter(tmp_path / "begun", INFO) as writer:
        for n in range(6):
            writer.append([str(n)], [item(n)[0]], [item(n)[1]])
            writer.commit()
    return tmp_path / "begun"


KILLED = """
import os, sys
from pathlib import Path
from killed import Countdown, in_child
from maxmatch.data import features
from test_features import INFO, resume
features._COMMIT_SECONDS = 0
features.StoreInfo.from_text(INFO.text())  # pydantic opens files the first time
root = Path(sys.argv[1])
append = features.AppendableNpy.append
for step in range(1, int(sys.argv[2]) + 1, 2):
    countdown = Countdown(step)
    def torn(self, rows):
        def half():
            self._file.write(rows.tobytes()[: 5 + rows.nbytes // 2])
            self._file.flush()
        countdown.tick(half)
        append(self, rows)
    def work():
        features.AppendableNpy.append = torn
        # A kill, unlike a power cut, leaves what the system has taken: waiting for the disk is left out.
        countdown.count(os, "replace", "fsync", "open", instead={"fsync": lambda handle: None})
        countdown.count(Path, "unlink", "open", "mkdir")
        resume(root / str(step))
    print({-9: "killed", 0: "done"}.get(in_child(work), "failed"))
"""


def test_a_process_killed_at_any_step_loses_nothing_that_was_committed(tmp_path, whole, monkeypatch):
    """Each child is killed by SIGKILL at its n-th call of the system, or in the middle of a write."""
    steps = 80
    program = run(KILLED, tmp_path, steps)
    outcomes = program.stdout.split()
    assert set(outcomes) == {"killed", "done"}, program.stderr
    assert outcomes == sorted(outcomes, reverse=True)  # every second step was tried, up to the last
    assert outcomes.count("killed") >= 25
    kept = []
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    for step in range(1, steps + 1, 2):
        folder = tmp_path / str(step)
        kept.append(done(folder))
        assert len(resume(folder)) == COUNT
        assert files(folder) == whole, step
    assert kept == sorted(kept)
    assert len(set(kept)) == COUNT // 2 + 1


def test_a_journal_cut_anywhere_resumes_after_its_last_complete_line(tmp_path, begun, whole, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    before = files(begun)
    journal = before["features.journal"]
    for cut in range(0, len(journal) + 1, 41):
        folder = tmp_path / str(cut)
        folder.mkdir()
        for name, data in before.items():
            (folder / name).write_bytes(data[:cut] if name == "features.journal" else data)
        assert done(folder) == max(journal[:cut].count(b"\n") - 1, 0)
        resume(folder)
        assert files(folder) == whole


def change_checksum(folder):
    lines = (folder / "features.journal").read_bytes().splitlines(keepends=True)
    lines[3] = lines[3].replace(b'"2"', b'"7"')
    (folder / "features.journal").write_bytes(b"".join(lines))


def cut_features(folder):
    os.truncate(folder / ".features.npy.part", (folder / ".features.npy.part").stat().st_size - 1)


def cut_boxes(folder):
    os.truncate(folder / ".boxes.npy.part", (folder / ".boxes.npy.part").stat().st_size - 1)


@pytest.mark.parametrize(("harm", "left"), [(change_checksum, 2), (cut_features, 5), (cut_boxes, 5)])
def test_items_after_what_was_damaged_are_not_done(begun, whole, harm, left):
    harm(begun)
    assert done(begun) == left
    resume(begun)
    assert files(begun) == whole


def test_a_finished_store_has_nothing_left_to_do(tmp_path):
    resume(tmp_path)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert len(resume(tmp_path)) == COUNT
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == times
    with FeatureWriter(tmp_path, INFO) as writer, pytest.raises(ValueError, match="the store is finished"):
        writer.append(["new"], [item(0)[0]], [item(0)[1]])


@pytest.mark.parametrize("finished", [False, True])
def test_other_features_are_not_mixed_in(begun, finished):
    if finished:
        resume(begun)
    before = files(begun)
    for other, message in (
        (StoreInfo("elsewhere", 8, "float16", boxes=True), "source 'made in a test' and not 'elsewhere'"),
        (StoreInfo("made in a test", 9, "float16", boxes=True), "width 8 and not 9"),
        (StoreInfo("made in a test", 8, "float32", boxes=True), "dtype 'float16' and not 'float32'"),
        (StoreInfo("made in a test", 8, "float16", (1, 1), boxes=True), r"grid None and not \(1, 1\)"),
        (StoreInfo("made in a test", 8, "float16"), "boxes True and not False"),
    ):
        with pytest.raises(ValueError, match=f"holds other features: {message}. Choose a new folder"):
            FeatureWriter(begun, other)
    assert files(begun) == before


@pytest.mark.skipif(sys.platform == "win32", reason="files are not locked on Windows")
def test_two_writers_do_not_share_a_folder(tmp_path):
    with FeatureWriter(tmp_path, INFO), pytest.raises(ValueError, match="another process is writing there"):
        FeatureWriter(tmp_path, INFO)
    FeatureWriter(tmp_path, INFO).close()


def test_an_array_of_someone_else_is_not_touched(tmp_path):
    np.save(tmp_path / "features.npy", np.zeros(3))
    with pytest.raises(FileExistsError, match="holds files, but no store of features"):
        FeatureWriter(tmp_path, INFO)
    assert np.load(tmp_path / "features.npy").tolist() == [0, 0, 0]


def test_what_does_not_fit_is_refused_and_nothing_of_its_batch_is_kept(tmp_path):
    good = np.ones((2, 8))
    with FeatureWriter(tmp_path, StoreInfo("test", 8, "float16")) as writer:
        writer.append(["a"], [good])
        for ids, arrays, message in (
            (["b", "c"], [good, np.ones((2, 7))], r"features of 'c': expected \(at least one, 8\), got \(2, 7\)"),
            (["b", "c"], [good, np.ones((0, 8))], r"got \(0, 8\)"),
            (["b", "c"], [good, np.ones(8)], r"got \(8,\)"),
            (["b", "a"], [good, good], r"'a' is there already"),
            (["b", "b"], [good, good], r"an id comes twice"),
            (["b", "c\nd"], [good, good], r"the id 'c\\nd' does not fit on a line"),
            (["b", ""], [good, good], r"the id '' does not fit"),
            (["b", "c"], [good, good * 1e5], r"features of 'c': too large for float16. Write the store in float32"),
        ):
            with pytest.raises(ValueError, match=message):
                writer.append(ids, arrays)
        assert list(writer.done) == ["a"]
        writer.append(["z"], [good * 2])
        store = writer.finish()
    assert store.ids == ["a", "z"]
    assert store.values[1].tolist() == (good * 2).tolist()
    with FeatureWriter(tmp_path / "grid", StoreInfo("test", 8, grid=(2, 2))) as writer:
        with pytest.raises(ValueError, match=r"expected the grid \(2, 2\), got 3 features"):
            writer.append(["a"], [np.ones((3, 8))])
        with pytest.raises(ValueError, match="no features were appended"):
            writer.finish()
    with (
        FeatureWriter(tmp_path / "boxes", INFO) as writer,
        pytest.raises(ValueError, match=r"boxes of 'a': expected \(2, 4\)"),
    ):
        writer.append(["a"], [good], [np.ones((1, 4))])


def test_a_write_that_fails_halfway_is_cut_off(begun, monkeypatch, whole):
    def full(rows):
        raise OSError("no space left")

    with FeatureWriter(begun, INFO) as writer:
        monkeypatch.setattr(writer._arrays[1], "append", full)
        with pytest.raises(OSError, match="no space left"):
            writer.append(["6"], [item(6)[0]], [item(6)[1]])
    assert done(begun) == 6
    resume(begun)
    assert files(begun) == whole


@pytest.mark.parametrize(("row", "dtype"), [((), "int64"), ((36, 2048), "float16")])
def test_an_array_grows_over_several_processes_and_is_numpys_in_the_end(tmp_path, row, dtype):
    rows = np.arange(5 * int(np.prod(row)), dtype=dtype).reshape(5, *row)
    for begin, end in ((0, 2), (2, 2), (2, 5)):
        array = AppendableNpy(tmp_path / "rows.npy", np.dtype(dtype), row)
        assert array.rows == begin
        assert np.array_equal(array.written(), rows[:begin])
        array.append(rows[begin:end])
        array.close()
    with (tmp_path / ".rows.npy.part").open("ab") as file:
        file.write(b"x")  # a part of a row
    array = AppendableNpy(tmp_path / "rows.npy", np.dtype(dtype), row)
    array.finish()
    assert [path.name for path in tmp_path.iterdir()] == ["rows.npy"]
    found = np.load(tmp_path / "rows.npy", allow_pickle=False)
    assert found.dtype == dtype
    assert np.array_equal(found, rows)
