import os
import signal

import numpy as np
import pytest
from bad_data import BAD, butd_line
from made_data import content, features, run, split
from sample_splits import picture, sample_splits, split_of

from maxmatch.data.convert import TARGETS, convert
from maxmatch.data.dataset import IMAGE, TEXT, DataError, Items, Split
from maxmatch.data.features import FeatureStore
from maxmatch.data.formats import butd, folder, karpathy, precomp, tables
from maxmatch.data.load import read_dataset

OF_PICTURES = ("karpathy", "imagefolder", "csv", "tsv", "jsonl", "parquet", "webdataset", "huggingface")
OF_FEATURES = ("precomp", "features")


def of_pictures():
    """What every format of pictures can hold."""
    parts = {"train": [5, 1, 2], "val": [3, 3], "test": [1]}
    numbers = iter((0, 3, 5))
    splits = {name: split_of(next(numbers), counts, metadata=False) for name, counts in parts.items()}
    for part in splits.values():
        part[TEXT].values[:] = [" ".join(text.split()) for text in part[TEXT].values]
    return splits


def of_features():
    return {
        "train": split(features(5, dtype="float16"), 3),
        "val": split(features(2, dtype="float16"), 3, ids=["x", "y"]),
    }


def plain(splits):
    return {name: content(part) for name, part in splits.items()}


def test_all_formats_are_tried():
    assert {*OF_PICTURES, *OF_FEATURES, "folder", "table"} == set(TARGETS)


def test_from_format_to_format_nothing_changes(tmp_path):
    karpathy.write(of_pictures(), tmp_path / "0")
    for number, to in enumerate([*OF_PICTURES, *reversed(OF_PICTURES)]):
        done = convert(tmp_path / str(number), tmp_path / str(number + 1), to, workers=2)
        assert plain(read_dataset(tmp_path / str(number + 1)).splits) == plain(of_pictures()), to
        assert done.images == {"train": 3, "val": 2, "test": 1}
        assert done.captions == {"train": 8, "val": 6, "test": 1}


def test_features_with_captions_go_both_ways(tmp_path):
    precomp.write(of_features(), tmp_path / "0")
    for number, to in enumerate(["features", "precomp", "features", "features", "precomp", "precomp"]):
        convert(tmp_path / str(number), tmp_path / str(number + 1), to)
        assert plain(read_dataset(tmp_path / str(number + 1)).splits) == plain(of_features()), (number, to)
    assert FeatureStore.open(tmp_path / "1").info.source == "precomp: 0"


def butd_files(folder, ids):
    folder.mkdir(exist_ok=True)
    lines = [butd_line(name, features(1, seed=n)[0]) for n, name in enumerate(ids)]
    (folder / "a.tsv").write_text("".join(lines[:3]))
    (folder / "b.tsv").write_text("".join(lines[3:]))
    return folder


def test_regions_of_butd_join_captions_of_elsewhere_by_their_ids(tmp_path):
    ids = ["9", "5", "7", "6", "8", "4"]
    source = butd_files(tmp_path / "butd", ids)
    done = convert(source, tmp_path / "store", "features", dtype="float16")
    assert done.images == {"all": 6}
    assert FeatureStore.open(tmp_path / "store").info.dtype == "float16"
    parts = split([picture(n) for n in range(4)], 2, ids=["4", "5", "6", "7"])
    karpathy.write({"train": parts}, tmp_path / "captions")
    convert(tmp_path / "captions", tmp_path / "joined", "precomp", features=tmp_path / "store")
    again = precomp.read(tmp_path / "joined")["train"]
    assert again[IMAGE].ids == ["4", "5", "6", "7"]
    assert again[TEXT].values == parts[TEXT].values
    expected = [features(1, seed=ids.index(name))[0].astype("float16") for name in again[IMAGE].ids]
    assert np.array_equal(np.stack(list(again[IMAGE].values)), np.stack(expected))


def test_splits_captions_and_images_can_be_chosen(tmp_path):
    karpathy.write(of_pictures(), tmp_path / "data")
    done = convert(tmp_path / "data", tmp_path / "copy", "csv", splits=["val", "train"], captions=2, limit=2)
    assert done.images == {"val": 2, "train": 2}
    assert done.captions == {"val": 4, "train": 3}
    again = read_dataset(tmp_path / "copy").splits
    assert again["train"][TEXT].values == [of_pictures()["train"][TEXT].values[place] for place in (0, 1, 5)]
    with pytest.raises(ValueError, match="has the splits train, val, test, not 'dev'"):
        convert(tmp_path / "data", tmp_path / "other", "csv", splits=["dev"])


def test_more_than_five_captions_of_karpathys_are_kept(tmp_path):
    splits = {"train": split_of(0, [7], metadata=False)}
    karpathy.write(splits, tmp_path / "data")
    assert convert(tmp_path / "data", tmp_path / "copy", "csv").captions == {"train": 7}
    said = []
    convert(tmp_path / "copy", tmp_path / "back", "karpathy", say=said.append)
    assert "more than 5 captions" in said[0]


def test_metadata_that_a_format_cannot_hold_are_reported(tmp_path):
    tables.write({"train": split_of(0, [1, 2])}, tmp_path / "data")
    said = []
    convert(tmp_path / "data", tmp_path / "copy", "karpathy", say=said.append)
    (line,) = said
    assert "licence, url, size, note, tokens …" in line
    convert(tmp_path / "data", tmp_path / "other", "jsonl", say=said.append)
    assert len(said) == 1


def test_missing_pictures_are_refused_before_anything_is_written_or_left_out(tmp_path):
    karpathy.write(of_pictures(), tmp_path / "data")
    for name in ("COCO_001.png", "COCO_005.png"):
        (tmp_path / "data" / "images" / name).unlink()
    with pytest.raises(DataError, match=r"COCO_001.png: no such file, and 2 are missing in all.*--skip-missing"):
        convert(tmp_path / "data", tmp_path / "copy", "csv")
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    problems = []
    done = convert(tmp_path / "data", tmp_path / "copy", "csv", skip_missing=True, report=problems.append)
    assert [problem.file.name for problem in problems] == ["COCO_001.png", "COCO_005.png"]
    assert done.images == {"train": 2, "val": 2}
    again = read_dataset(tmp_path / "copy").splits["train"]
    assert again[IMAGE].ids == ["COCO_000", "COCO_002"]
    assert again[TEXT].groups.tolist() == [0, 0, 0, 0, 0, 1, 1]


def grouped():
    images = Items([picture(0), picture(1)], np.zeros(2, np.int64), ["a", "b"])
    return {"train": Split({IMAGE: images, TEXT: Items(["one"], np.zeros(1, np.int64), ["1"])})}


@pytest.mark.parametrize(
    ("make", "to", "message"),
    [
        (lambda path: tables.write(sample_splits(), path), "karpathy", "split 'test_b': Karpathy's JSON knows"),
        (lambda path: tables.write(grouped(), path), "karpathy", "2 images in 1 groups"),
        (lambda path: karpathy.write(of_pictures(), path), "precomp", "expected features.*maxmatch data features"),
        (lambda path: karpathy.write(of_pictures(), path), "features", "expected features.*maxmatch data features"),
        (lambda path: karpathy.write(of_pictures(), path), "folder", "a plain folder holds pictures only"),
        (lambda path: precomp.write(of_features(), path), "csv", "expected files .* got ndarray.*'precomp'"),
        (lambda path: precomp.write(of_features(), path), "karpathy", "expected files .* got ndarray"),
        (lambda path: butd_files(path, "abcd"), "precomp", "features without captions.*--features STORE"),
        (lambda path: karpathy.write(of_pictures(), path), "lmdb", "to: expected one of features, huggingface"),
        (BAD["cut, tar of two"].make, "csv", "ends early"),
        (BAD["half a split"].make, "features", "the split 'test' is left out"),
        (BAD["cut, karpathy"].make, "csv", "breaks off"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_and_nothing_is_left_behind(tmp_path, make, to, message):
    (tmp_path / "in").mkdir()
    make(tmp_path / "in")
    with pytest.raises(ValueError, match=message):
        convert(tmp_path / "in", tmp_path / "out", to)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_a_type_is_for_features_only(tmp_path):
    karpathy.write(of_pictures(), tmp_path / "data")
    with pytest.raises(ValueError, match="dtype: only a store of features has one"):
        convert(tmp_path / "data", tmp_path / "copy", "csv", dtype="float16")


def test_pictures_alone_go_from_folder_to_folder(tmp_path):
    folder.write({"all": Split({IMAGE: split_of(0, [1, 1, 1])[IMAGE]})}, tmp_path / "data")
    convert(tmp_path / "data", tmp_path / "copy", "folder")
    assert len(read_dataset(tmp_path / "copy").splits["all"][IMAGE]) == 3


def test_a_bad_line_is_reported_and_the_rest_is_converted(tmp_path):
    (tmp_path / "in").mkdir()
    path = BAD["utf-8, csv"].make(tmp_path / "in")
    problems = []
    done = convert(path, tmp_path / "out", "webdataset", report=problems.append)
    assert done.images == {"train": 2}
    assert [(problem.file.name, problem.line) for problem in problems] == [("captions.csv", 4)]
    with pytest.raises(DataError, match="not UTF-8"):
        convert(path, tmp_path / "strict", "webdataset")


KILLED = """
import os, sys
from pathlib import Path
from killed import Countdown, in_child
from maxmatch.data import features
from maxmatch.data.convert import convert

features._COMMIT_SECONDS = 0
countdown = Countdown()
countdown.count(os, "rename", "replace", "fsync", "mkdir")
root = Path(sys.argv[1])
for pair in sys.argv[2:]:
    source, to = pair.split(":")
    countdown.left = 0
    convert(root / source, root / f"{pair}-0", to)
    steps = -countdown.left
    for step in (2, steps // 2, steps - 2):
        def work():
            countdown.left = step
            convert(root / source, root / f"{pair}-{step}", to)
        print(pair, step, in_child(work))
"""


def test_a_conversion_killed_at_any_step_resumes(tmp_path):
    karpathy.write(of_pictures(), tmp_path / "pictures")
    precomp.write(of_features(), tmp_path / "regions")
    butd_files(tmp_path / "butd", "abcdef")
    pairs = ["pictures:csv", "pictures:karpathy", "pictures:webdataset", "regions:features", "regions:precomp",
             "butd:features"]  # fmt: skip
    done = run(KILLED, tmp_path, *pairs)
    outcomes = [line.split() for line in done.stdout.splitlines()]
    assert len(outcomes) == 3 * len(pairs), done.stderr
    for pair, step, outcome in outcomes:
        assert int(outcome) == -signal.SIGKILL
        source, to = pair.split(":")
        target = tmp_path / f"{pair}-{step}"
        assert source == "butd" or not target.exists()
        convert(tmp_path / source, target, to)
        assert not target.with_name(f".{target.name}.partial").exists()
        straight = tmp_path / f"{pair}-0"
        assert len(list(target.rglob("*"))) == len(list(straight.rglob("*")))
        assert plain(read_dataset(target).splits) == plain(read_dataset(straight).splits)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".") and os.path.isdir(path)]


def test_files_of_butd_are_recognised_before_tables_are(tmp_path):
    source = butd_files(tmp_path / "butd", "abcd")
    assert butd.recognises(source)
    assert convert(source / "a.tsv", tmp_path / "store", "features").images == {"all": 3}
