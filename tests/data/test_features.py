import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from made_data import content, features, split

from maxmatch.data.dataset import IMAGE, TEXT, DataError, Dataset, Items, RaggedRows, Rows, Split
from maxmatch.data.features import FeatureStore, FeatureWriter, StoreInfo, recognises, with_features
from maxmatch.data.formats import karpathy, precomp


def stored(folder, arrays, ids=None, dtype="float32", boxes=None, **info):
    info = StoreInfo("made in a test", arrays[0].shape[1], dtype, boxes=boxes is not None, **info)
    with FeatureWriter(folder, info) as writer:
        writer.append(ids or [str(n) for n in range(len(arrays))], arrays, boxes)
        return writer.finish()


def ragged(counts, width=4):
    array = features(sum(counts), 1, width)[:, 0]
    return np.split(array, np.cumsum(counts)[:-1])


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("counts", [[3, 3, 3], [3, 1, 2]])
def test_a_store_holds_what_was_written(tmp_path, counts, dtype):
    arrays = ragged(counts)
    boxes = [np.full((count, 4), n, np.float32) for n, count in enumerate(counts)]
    ids = ["a b", "größer", "3"]
    store = stored(tmp_path / "store", arrays, ids, dtype, boxes)
    assert sorted(path.name for path in (tmp_path / "store").iterdir()) == [
        "boxes.npy",
        "counts.npy",
        "features.npy",
        "ids.txt",
        "store.json",
    ]
    assert (len(store), store.ids, store.info.dtype) == (3, ids, dtype)
    assert isinstance(store.values, Rows if counts == [3, 3, 3] else RaggedRows)
    for n, array in enumerate(arrays):
        assert store[n].tolist() == array.astype(dtype).tolist()
        assert store.boxes[n].tolist() == boxes[n].tolist()
    assert store.rows(["3", "a b"]).tolist() == [2, 0]
    values, mask = store.take([2, 0])
    assert mask.sum(axis=1).tolist() == [counts[2], counts[0]]
    assert values[mask].tolist() == np.concatenate([arrays[2], arrays[0]]).astype(dtype).tolist()
    assert np.load(tmp_path / "store" / "features.npy").shape == (sum(counts), 4)
    assert json.loads((tmp_path / "store" / "store.json").read_text())["count"] == 3
    again = pickle.loads(pickle.dumps(store))
    assert again[1:][0].tolist() == store[1].tolist()


def test_an_id_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"no features of 2 ids, such as 'x'. Extract them: maxmatch data features"):
        stored(tmp_path, ragged([1, 2])).rows(["0", "x", "y"])


def test_a_grid_is_kept(tmp_path):
    assert stored(tmp_path, ragged([6, 6]), grid=(2, 3)).info.grid == (2, 3)


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
        (
            "store.json",
            r"store\.json: not a store of features that can be read \(schema version 9; this MaxMatch reads 1\)",
        ),
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
    "text", ["", "[]", "{}", '{"format": "maxmatch.FeatureStore", "schema_version": 1, "width": 3}']
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
    with pytest.raises(DataError, match=r"the store of features is unfinished. Run the command that writes it again"):
        FeatureStore.open(tmp_path)


@pytest.fixture
def pictures(tmp_path):
    part = split([tmp_path / f"{n}.jpg" for n in range(4)], [2, 1, 3, 1], ids=["a", "b", "c", "d"])
    metadata = [{"licence": n} for n in range(4)]
    images = Items(part[IMAGE].values, part[IMAGE].groups, part[IMAGE].ids, metadata)
    return Dataset(tmp_path, "karpathy", {"train": Split({IMAGE: images, TEXT: part[TEXT]})})


@pytest.mark.parametrize("counts", [[2] * 5, [2, 1, 4, 3, 1]])
def test_features_take_the_place_of_pictures_by_id(tmp_path, pictures, counts):
    arrays = ragged(counts)
    store = stored(tmp_path / "store", arrays, ["d", "x", "b", "a", "c"])
    found = with_features(pictures, store)
    assert (found.path, found.format) == (pictures.path, pictures.format)
    assert [value.tolist() for value in found.splits["train"][IMAGE].values] == [
        arrays[n].tolist() for n in (3, 2, 4, 0)
    ]
    assert content(Split({TEXT: found.splits["train"][TEXT]})) == content(Split({TEXT: pictures.splits["train"][TEXT]}))
    assert found.splits["train"][IMAGE].metadata == [{"licence": n} for n in range(4)]


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


def test_features_of_other_data_are_refused_whatever_the_report_does(tmp_path, pictures):
    store = stored(tmp_path / "store", ragged([2]), ["x"])
    with pytest.raises(DataError, match=r"features of 'x' and others, but of no image of .* such as \['a'\]"):
        with_features(pictures, store, lambda problem: None)


def test_a_split_without_any_features_is_left_out(tmp_path, pictures):
    other = split([Path("x")], 2, ids=["x"])
    data = Dataset(tmp_path, "karpathy", {**pictures.splits, "val": other})
    store = stored(tmp_path / "store", ragged([2]), ["x"])
    problems = []
    assert list(with_features(data, store, problems.append).splits) == ["val"]
    assert len(problems) == 4


def test_the_same_content_is_the_same_in_every_format(tmp_path):
    """Pictures and captions as Karpathy's JSON joined to a store, and as a precomp folder with the same features."""
    array = features(5, 3, 4)
    ids = [f"picture {n}" for n in range(5)]
    in_precomp = {"train": split(array[:3], 5, ids[:3]), "val": split(array[3:], [2, 4], ids[3:], start=30)}
    precomp.write(in_precomp, tmp_path / "precomp")
    in_json = {
        name: Split(
            {
                IMAGE: Items(
                    [b"GIF8" + image.encode() for image in part[IMAGE].ids], part[IMAGE].groups, part[IMAGE].ids
                ),
                TEXT: part[TEXT],
            }
        )
        for name, part in in_precomp.items()
    }
    karpathy.write(in_json, tmp_path / "json")
    store = stored(tmp_path / "store", list(array[::-1]), ids[::-1])
    joined = with_features(Dataset(tmp_path / "json", "karpathy", karpathy.read(tmp_path / "json")), store)
    for name, part in precomp.read(tmp_path / "precomp").items():
        assert content(joined.splits[name]) == content(part) == content(in_precomp[name])
