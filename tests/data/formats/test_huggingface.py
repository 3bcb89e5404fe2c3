import builtins
import pickle
import sys

import datasets
import numpy as np
import pytest
from sample_splits import picture, plain, sample_splits

from maxmatch.data.dataset import IMAGE, TEXT, DataError
from maxmatch.data.formats import huggingface

TWO = {
    "image": [{"bytes": picture(0), "path": None}, {"bytes": picture(1), "path": "b.png"}],
    "caption": [["one", "two"], ["three"]],
}


def table(cells, **kinds):
    features = {"image": datasets.Image(), "caption": [datasets.Value("string")], **kinds}
    return datasets.Dataset.from_dict(cells, features=datasets.Features(features))


def test_a_single_table_is_read_with_its_pictures_undecoded(tmp_path):
    table(TWO).save_to_disk(str(tmp_path / "data"))
    assert huggingface.recognises(tmp_path / "data")
    split = huggingface.read(tmp_path / "data")["train"]
    assert [split[IMAGE].values[number] for number in (1, 0)] == [picture(1), picture(0)]
    assert list(split[IMAGE].values) == [picture(0), picture(1)]
    assert split[IMAGE].values[np.int64(0)] == picture(0)
    assert list(split[TEXT].values) == ["one", "two", "three"]
    assert (split[IMAGE].ids, split[TEXT].ids) == (["0", "1"], ["0#0", "0#1", "1#0"])
    assert list(pickle.loads(pickle.dumps(split[IMAGE].values))) == [picture(0), picture(1)]


def test_what_is_written_here_datasets_shows_as_pictures(tmp_path):
    huggingface.write(sample_splits(), tmp_path / "data")
    loaded = datasets.load_from_disk(str(tmp_path / "data"))
    assert set(loaded) == {"train", "val", "test_b"}
    assert loaded["train"][1]["image"].getpixel((0, 0)) == (1, 0, 7)
    assert loaded["train"][0]["caption"] == sample_splits()["train"][TEXT].values[:5]


def test_columns_named_and_laid_out_as_on_the_hub_are_understood():
    """As `nlphuji/flickr30k` has them: one table, splits in a column."""
    cells = {**TWO, "split": ["train", "val"], "img_id": ["7", "8"], "filename": ["a.jpg", "b.jpg"]}
    kinds = {name: datasets.Value("string") for name in ("split", "img_id", "filename")}
    splits = huggingface.from_loaded(datasets.DatasetDict({"test": table(cells, **kinds)}))
    assert {name: split[IMAGE].metadata for name, split in splits.items()} == {
        "train": [{"img_id": "7", "filename": "a.jpg"}],
        "val": [{"img_id": "8", "filename": "b.jpg"}],
    }


def test_rows_of_one_image_are_joined_by_its_id():
    cells = {
        "image": [{"bytes": picture(number), "path": None} for number in (0, 1, 0)],
        "caption": [["one"], ["two"], ["three"]],
        "image_id": [5, 6, 5],
    }
    split = huggingface.from_loaded(table(cells, image_id=datasets.Value("int64")))["train"]
    assert (split[IMAGE].ids, split[TEXT].values) == (["5", "6"], ["one", "three", "two"])
    assert list(split[IMAGE].values) == [picture(0), picture(1)]


def test_pictures_may_be_paths(tmp_path):
    (tmp_path / "a.png").write_bytes(picture(0))
    cells = {"image": [str(tmp_path / "a.png")], "caption": [["one"]]}
    split = huggingface.from_loaded(table(cells))["train"]
    assert split[IMAGE].values[0] == tmp_path / "a.png"
    texts = datasets.Dataset.from_dict({"image": ["a.png", "../b.png"], "caption": ["one", "two"]})
    problems = []
    split = huggingface.from_loaded(texts, problems.append, tmp_path)["train"]
    assert split[IMAGE].values == [tmp_path / "a.png"]
    assert [(problem.line, problem.what.split(" leaves")[0]) for problem in problems] == [(2, "'../b.png'")]


def test_a_bad_row_is_named_and_left_out(tmp_path):
    problems = []
    cells = {"image": TWO["image"], "caption": [["one"], []]}
    splits = huggingface.from_loaded(table(cells), problems.append, tmp_path)
    assert splits["train"].size == 1
    assert str(problems[0]).startswith(f"{tmp_path}:2: nothing usable in the column 'caption'.")


def test_a_row_without_picture_is_named_when_it_is_asked_for():
    split = huggingface.from_loaded(table({"image": [TWO["image"][0], None], "caption": [["one"], ["two"]]}))["train"]
    with pytest.raises(DataError, match="datasets:2: no picture in this row"):
        split[IMAGE].values[1]


def test_missing_columns_are_named_with_those_found():
    with pytest.raises(DataError, match=r"expected the columns one of image,.*; found picture, caption"):
        huggingface.from_loaded(datasets.Dataset.from_dict({"picture": ["a"], "caption": ["one"]}))


def test_a_split_that_comes_twice_is_refused():
    cells = datasets.Dataset.from_dict({"image": ["a.png"], "caption": ["one"], "split": ["train"]})
    with pytest.raises(DataError, match="the split 'train' comes twice, the second time in the rows of 'test'"):
        huggingface.from_loaded(datasets.DatasetDict({"train": cells, "test": cells}))


def test_a_damaged_folder_is_refused(tmp_path):
    table(TWO).save_to_disk(str(tmp_path / "data"))
    next((tmp_path / "data").glob("*.arrow")).write_bytes(b"ARROW no more")
    with pytest.raises(DataError, match=r"data: not readable by datasets .*Copy or write it again"):
        huggingface.read(tmp_path / "data", lambda problem: None)


def test_the_hub_is_asked_only_when_told_to(monkeypatch):
    asked = []
    monkeypatch.setattr(datasets, "load_dataset", lambda name, **options: asked.append((name, options)) or table(TWO))
    splits = huggingface.read_hub("someone/pictures", revision="main")
    assert asked == [("someone/pictures", {"revision": "main"})]
    assert plain(splits) == plain(huggingface.from_loaded(table(TWO)))


def test_without_the_package_the_message_says_what_to_install(monkeypatch, tmp_path):
    original = builtins.__import__

    def without(name, *arguments, **options):
        if name == "datasets":
            raise ImportError(name)
        return original(name, *arguments, **options)

    monkeypatch.delitem(sys.modules, "datasets")
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"pip install 'maxmatch\[data\]'"):
        huggingface.read(tmp_path)


def test_bars_of_the_package_are_as_they_were(tmp_path, capfd):
    assert not datasets.are_progress_bars_disabled()
    huggingface.write(sample_splits(), tmp_path / "data")
    assert not datasets.are_progress_bars_disabled()
    assert capfd.readouterr() == ("", "")
