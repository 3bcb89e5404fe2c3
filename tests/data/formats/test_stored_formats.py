import json

import numpy as np
import pytest
from made_data import content, contents, features, interrupting, split

from maxmatch.data.dataset import IMAGE, TEXT, DataError, Items, Split
from maxmatch.data.features import FeatureStore
from maxmatch.data.formats import stored
from maxmatch.data.load import read_dataset, recognise


def two_splits(**options):
    return {
        "train": split(features(4, **options), [5, 1, 2, 1]),
        "test_b": split(features(2, seed=1), 2, ids=["x", "y"]),
    }


def test_features_with_captions_read_as_they_were(tmp_path):
    steps = []
    stored.write(two_splits(), tmp_path / "store", steps.append)
    assert sum(steps) == 6
    assert recognise(tmp_path / "store") == "features"
    again = read_dataset(tmp_path / "store").splits
    assert contents(again) == contents(two_splits())
    assert not list((tmp_path / "store").glob(".*"))


def test_metadata_and_items_of_different_lengths_are_kept(tmp_path):
    values = [features(1, 1 + n, 4, seed=n)[0] for n in range(3)]
    images = Items(values, np.arange(3), ["../a", "/b", "c d"], [{"licence": n} for n in range(3)])
    texts = Items(["one", " two\n", "[3]"], np.arange(3), ["1", "2", "3"], [{"rank": n / 2} for n in range(3)])
    splits = {"train": Split({IMAGE: images, TEXT: texts})}
    stored.write(splits, tmp_path / "store")
    again = read_dataset(tmp_path / "store").splits
    assert content(again["train"]) == content(splits["train"])
    assert [dict(known) for known in again["train"][IMAGE].metadata] == images.metadata
    assert [dict(known) for known in again["train"][TEXT].metadata] == texts.metadata


def test_without_captions_the_splits_become_one(tmp_path):
    parts = {name: Split({IMAGE: part[IMAGE]}) for name, part in two_splits().items()}
    stored.write(parts, tmp_path / "store")
    [(name, again)] = stored.read(tmp_path / "store").items()
    assert name == "all"
    assert list(again.items) == [IMAGE]
    assert again[IMAGE].ids == ["0", "1", "2", "3", "x", "y"]


def test_an_image_of_two_splits_is_stored_once(tmp_path):
    array = features(5)
    splits = {"test": split(array[:2], 2), "testall": split(array, 2)}
    stored.write(splits, tmp_path / "store")
    assert FeatureStore.open(tmp_path / "store").ids == ["0", "1", "2", "3", "4"]
    assert contents(stored.read(tmp_path / "store")) == contents(splits)


@pytest.mark.parametrize(
    ("dtype", "asked", "stored_as"),
    [
        ("float16", None, "float16"),
        ("float32", None, "float32"),
        ("float64", None, "float32"),
        ("float32", "float16", "float16"),
    ],
)
def test_the_type_of_the_features(tmp_path, dtype, asked, stored_as):
    splits = {"train": split(features(3, dtype=dtype), 2)}
    stored.write(splits, tmp_path / "store", dtype=asked, source="precomp: f30k")
    store = FeatureStore.open(tmp_path / "store")
    assert (store.info.dtype, store.info.source) == (stored_as, "precomp: f30k")
    assert store.values[1].tolist() == features(3, dtype=dtype)[1].astype(stored_as).tolist()


def test_what_a_store_cannot_hold_is_refused_before_anything_is_written(tmp_path):
    array = features(2)
    for splits, message in (
        ({"train": split([b"picture"], 1)}, "image '0': expected features.*got bytes"),
        ({"train": split([array[0], b"picture"], 1)}, "image '1': expected features.*got bytes"),
        (
            {"train": split(array, 1), "val": split(array[::-1], 1)},
            "image '0' of .*'train' is another in 'val'",
        ),
        ({"train": split(array, 1, ids=["a", "b\nc"])}, "does not fit on a line"),
        ({"a/b": split(array, 1)}, "expected a name of letters"),
        ({}, "no image to write"),
    ):
        with pytest.raises(ValueError, match=message):
            stored.write(splits, tmp_path / "store")
        assert not list(tmp_path.iterdir())


def test_an_interrupted_write_resumes_and_is_no_store_before(tmp_path, monkeypatch):
    monkeypatch.setattr(stored, "_BLOCK", 2)
    stored.write(two_splits(), tmp_path / "straight")
    with pytest.raises(KeyboardInterrupt):
        stored.write(two_splits(), tmp_path / "store", interrupting(2))
    assert not (tmp_path / "store").exists()
    stored.write(two_splits(), tmp_path / "store")
    for file in (tmp_path / "straight").iterdir():
        assert (tmp_path / "store" / file.name).read_bytes() == file.read_bytes(), file.name
    with pytest.raises(FileExistsError, match="holds something else"):
        stored.write(two_splits(seed=3), tmp_path / "store")


def test_captions_of_images_that_the_store_lacks_are_reported(tmp_path):
    stored.write(two_splits(), tmp_path / "store")
    with (tmp_path / "store" / "captions.jsonl").open("a") as file:
        file.write(json.dumps({"split": "train", "image": "9", "image_id": "gone", "caption": ["a dog"]}) + "\n")
    problems = []
    again = stored.read(tmp_path / "store", problems.append)
    assert content(again["train"]) == content(two_splits()["train"])
    [problem] = problems
    assert "no features of image 'gone'" in problem.what
    with pytest.raises(DataError, match="no features of image 'gone'"):
        stored.read(tmp_path / "store")
