"""Data sets written in every format, read as the same, converted, interrupted, killed and resumed."""

import os
import signal
from functools import partial

import numpy as np
import pytest
from bad_data import BAD, butd_line
from made_data import contents, features, interrupting, run, split
from sample_splits import picture, plain, sample_splits, split_of

from maxmatch.data.convert import TARGETS, convert
from maxmatch.data.dataset import IMAGE, TEXT, DataError, Items, Split
from maxmatch.data.features import FeatureStore
from maxmatch.data.formats import butd, folder, huggingface, imagefolder, karpathy, precomp, tables, webdataset
from maxmatch.data.load import FORMATS, read_dataset, recognise

WRITERS = {
    "csv": partial(tables.write, kind="csv"),
    "tsv": partial(tables.write, kind="tsv"),
    "jsonl": partial(tables.write, kind="jsonl"),
    "parquet": partial(tables.write, kind="parquet"),
    "imagefolder": imagefolder.write,
    "huggingface": huggingface.write,
    "webdataset": webdataset.write,
}
ONE_OF_EACH = pytest.mark.parametrize("name", ["csv", "webdataset", "huggingface"])
OF_PICTURES = ("karpathy", *WRITERS)
OF_FEATURES = ("precomp", "features")


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(webdataset, "_MOST_SAMPLES", 3)
    monkeypatch.setattr(huggingface, "_CHUNK", 2)


def files_in(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in ("state.json", "dataset_info.json")  # these hold a random name
    }


def grouped():
    """Several images of a group, in one split only."""
    images = Items([picture(number) for number in range(6)], np.array([0, 0, 1, 2, 2, 2]), list("abcdef"))
    texts = Items(["one", "two", "three", "four", "four"], np.array([0, 0, 0, 1, 2]), list("12345"))
    return {"train": Split({IMAGE: images, TEXT: texts}), "val": split_of(6, [2, 1])}


def alike():
    """Captions that read alike, and no metadata."""
    texts = Items(["a dog", "a dog"], np.array([0, 0]), ["1", "2"])
    part = Split({IMAGE: Items([picture(9)], np.array([0]), ["g"]), TEXT: texts})
    return {"train": part, "test": split_of(0, [2, 1], metadata=False)}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("splits", [sample_splits, grouped, alike])
def test_what_is_written_is_recognised_and_read_as_the_same(name, splits, tmp_path):
    WRITERS[name](splits(), tmp_path / "data", workers=2)
    assert recognise(tmp_path / "data") == (name if name in FORMATS else "table")
    assert plain(read_dataset(tmp_path / "data").splits) == plain(splits())
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


@ONE_OF_EACH
def test_a_second_write_of_the_same_changes_nothing(name, tmp_path):
    WRITERS[name](sample_splits(), tmp_path)  # an empty folder is filled
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    steps = []
    WRITERS[name](sample_splits(), tmp_path, steps.append)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == times
    assert sum(steps) == 7


@ONE_OF_EACH
def test_other_data_are_never_written_over(name, tmp_path):
    write = WRITERS[name]
    write({"train": split_of(0, [2])}, tmp_path / "data")
    before = files_in(tmp_path / "data")
    with pytest.raises(FileExistsError, match=r"data: is there and holds something else. Give a new folder"):
        write({"train": split_of(1, [2])}, tmp_path / "data")
    assert files_in(tmp_path / "data") == before
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.tex").write_text("years of work")
    with pytest.raises(FileExistsError):
        write(sample_splits(), tmp_path / "thesis")


@pytest.mark.parametrize("steps", [1, 6])
@ONE_OF_EACH
def test_an_interrupted_write_is_not_recognised_and_resumes_with_what_is_complete(name, steps, tmp_path):
    write = WRITERS[name]
    write(sample_splits(), tmp_path / "straight")
    with pytest.raises(KeyboardInterrupt):
        write(sample_splits(), tmp_path / "data", interrupting(steps))
    assert not (tmp_path / "data").exists()
    with pytest.raises(DataError, match="an interrupted write"):
        read_dataset(tmp_path / ".data.partial")
    kinds = (".png", ".jpg", ".tar", ".arrow")
    parts = [path for path in (tmp_path / ".data.partial").rglob("*") if path.suffix in kinds]
    kept = {path: path.stat().st_ino for path in parts if not path.name.startswith(".")}
    assert kept or steps == 1
    again, seen = [], []

    def advance(count):
        again.append(count)
        seen.append({path: path.stat().st_ino for path in kept if path.exists()})

    write(sample_splits(), tmp_path / "data", advance)
    assert seen[-1] == kept
    assert sum(again) == 7
    assert files_in(tmp_path / "data") == files_in(tmp_path / "straight")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "straight"]


def test_a_write_is_not_resumed_over_a_damaged_tar(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        webdataset.write(sample_splits(), tmp_path / "data", interrupting(6))
    tar = next(path for path in (tmp_path / ".data.partial").rglob("*.tar") if not path.name.startswith("."))
    os.truncate(tar, tar.stat().st_size // 2)
    with pytest.raises(DataError, match="ends early"):
        webdataset.write(sample_splits(), tmp_path / "data")


@ONE_OF_EACH
def test_what_an_interrupted_write_of_other_data_left_is_not_mixed_in(name, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        WRITERS[name]({"train": split_of(20, [1, 1])}, tmp_path / "data", interrupting(1))
    WRITERS[name](sample_splits(), tmp_path / "data")
    assert plain(read_dataset(tmp_path / "data").splits) == plain(sample_splits())


def test_a_folder_that_is_only_named_like_an_interrupted_write_is_left_alone(tmp_path):
    (tmp_path / ".data.partial").mkdir()
    (tmp_path / ".data.partial" / "mine.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="Move it elsewhere"):
        tables.write(sample_splits(), tmp_path / "data")
    assert (tmp_path / ".data.partial" / "mine.txt").read_text() == "mine"


@pytest.mark.parametrize("name", ["csv", "parquet", "imagefolder", "huggingface", "webdataset"])
def test_what_a_format_of_pictures_cannot_hold_is_refused(name, tmp_path):
    texts = Items(["one", "two"], np.arange(2), ["1", "2"])
    arrays = Items(np.zeros((2, 36, 8), np.float32), np.arange(2), ["a", "b"])
    gone = Items([tmp_path / "gone.jpg", b"GIF8"], np.arange(2), ["a", "b"])
    for splits, message in (
        ({"train": Split({IMAGE: arrays, TEXT: texts})}, r"split 'train': image: expected files .* got ndarray"),
        ({"all": Split({IMAGE: gone})}, r"split 'all' has image: .*'folder'"),
        ({"../up": split_of(0, [1])}, "expected a name of letters"),
        ({"": split_of(0, [1])}, "expected a name of letters"),
        ({"train": Split({IMAGE: gone, TEXT: texts})}, "gone.jpg: no such file"),
    ):
        with pytest.raises(ValueError, match=message):
            WRITERS[name](splits, tmp_path / "data")
        assert not (tmp_path / "data").exists()


def test_metadata_of_mixed_kinds_is_kept_where_it_can_be_and_refused_elsewhere(tmp_path):
    images = Items([picture(0), picture(1)], np.arange(2), ["a", "b"], [{"note": 1}, {"note": "one"}])
    splits = {"train": Split({IMAGE: images, TEXT: Items(["one", "two"], np.arange(2), ["1", "2"])})}
    for name in ("csv", "jsonl", "imagefolder", "webdataset"):
        WRITERS[name](splits, tmp_path / name)
        assert plain(read_dataset(tmp_path / name).splits) == plain(splits)
    for name in ("parquet", "huggingface"):
        with pytest.raises(ValueError, match=r"'image.note' holds values of different kinds \(int, str\).*'jsonl'"):
            WRITERS[name](splits, tmp_path / name)
        assert not (tmp_path / name).exists()


# Recognition.


def test_a_folder_of_something_else_says_what_was_looked_for_and_found(tmp_path):
    with pytest.raises(DataError, match="the folder is empty"):
        read_dataset(tmp_path)
    with pytest.raises(DataError, match=r"nowhere: no such file or folder. Check the path."):
        read_dataset(tmp_path / "nowhere")
    for name in ("thesis.tex", "notes.txt", "a.docx", "b.docx", "c.docx", "d.docx"):
        (tmp_path / name).write_text("")
    with pytest.raises(DataError, match=r"Found a.docx, b.docx, c.docx, d.docx, notes.txt and 1 more") as refusal:
        read_dataset(tmp_path)
    assert all(name in str(refusal.value) for name in FORMATS)


def test_a_format_may_be_named_and_options_reach_it(tmp_path):
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "a.png").write_bytes(picture(0))
    (tmp_path / "captions.csv").write_text("image,caption\na.png,a dog\n")
    dataset = read_dataset(str(tmp_path), format="folder")
    assert (dataset.format, list(dataset.splits["all"][IMAGE].ids)) == ("folder", ["pictures/a.png"])
    dataset = read_dataset(tmp_path, images=tmp_path / "pictures")
    assert (dataset.format, dataset.path) == ("table", tmp_path)
    assert dataset.split("train")[IMAGE].values == [tmp_path / "pictures" / "a.png"]
    with pytest.raises(ValueError, match=r"format: expected one of .*imagefolder.*, got 'lmdb'"):
        read_dataset(tmp_path, format="lmdb")


# Conversion.


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


def butd_files(folder, ids):
    folder.mkdir(exist_ok=True)
    lines = [butd_line(name, features(1, seed=n)[0]) for n, name in enumerate(ids)]
    (folder / "a.tsv").write_text("".join(lines[:3]))
    (folder / "b.tsv").write_text("".join(lines[3:]))
    return folder


def test_from_format_to_format_nothing_changes(tmp_path):
    assert {*OF_PICTURES, *OF_FEATURES, "folder", "table"} == set(TARGETS)
    karpathy.write(of_pictures(), tmp_path / "0")
    for number, to in enumerate([*OF_PICTURES, "karpathy"]):
        done = convert(tmp_path / str(number), tmp_path / str(number + 1), to, workers=2)
        assert contents(read_dataset(tmp_path / str(number + 1)).splits) == contents(of_pictures()), to
        assert done.images == {"train": 3, "val": 2, "test": 1}
        assert done.captions == {"train": 8, "val": 6, "test": 1}


def test_features_with_captions_go_both_ways(tmp_path):
    precomp.write(of_features(), tmp_path / "0")
    for number, to in enumerate(["features", "features", "precomp", "precomp"]):
        convert(tmp_path / str(number), tmp_path / str(number + 1), to)
        assert contents(read_dataset(tmp_path / str(number + 1)).splits) == contents(of_features()), (number, to)
    assert FeatureStore.open(tmp_path / "1").info.source == "precomp: 0"


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


def test_files_of_butd_are_recognised_before_tables_are(tmp_path):
    source = butd_files(tmp_path / "butd", "abcd")
    assert butd.recognises(source)
    assert convert(source / "a.tsv", tmp_path / "store", "features").images == {"all": 3}


def test_splits_captions_and_images_can_be_chosen(tmp_path):
    karpathy.write(of_pictures(), tmp_path / "data")
    done = convert(tmp_path / "data", tmp_path / "copy", "csv", splits=["val", "train"], captions=2, limit=2)
    assert done.images == {"val": 2, "train": 2}
    assert done.captions == {"val": 4, "train": 3}
    again = read_dataset(tmp_path / "copy").splits
    assert again["train"][TEXT].values == [of_pictures()["train"][TEXT].values[place] for place in (0, 1, 5)]
    with pytest.raises(ValueError, match="has the splits train, val, test, not 'dev'"):
        convert(tmp_path / "data", tmp_path / "other", "csv", splits=["dev"])
    with pytest.raises(ValueError, match="dtype: only a store of features has one"):
        convert(tmp_path / "data", tmp_path / "other", "csv", dtype="float16")


def test_captions_and_metadata_that_a_format_does_not_keep_are_reported(tmp_path):
    tables.write({"train": split_of(0, [7, 2])}, tmp_path / "data")
    said = []
    convert(tmp_path / "data", tmp_path / "copy", "karpathy", say=said.append)
    assert "licence, url, size, note, tokens …" in said[0]
    assert "more than 5 captions" in said[1]
    convert(tmp_path / "data", tmp_path / "other", "jsonl", say=said.append)
    assert len(said) == 2
    assert convert(tmp_path / "copy", tmp_path / "back", "csv").captions == {"train": 9}  # all of them are kept


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


@pytest.mark.parametrize(
    ("make", "to", "message"),
    [
        (lambda path: tables.write(sample_splits(), path), "karpathy", "split 'test_b': Karpathy's JSON knows"),
        (lambda path: tables.write(grouped(), path), "karpathy", "6 images in 3 groups"),
        (lambda path: karpathy.write(of_pictures(), path), "precomp", "expected features.*maxmatch data features"),
        (lambda path: karpathy.write(of_pictures(), path), "folder", "a plain folder holds pictures only"),
        (lambda path: precomp.write(of_features(), path), "csv", "expected files .* got ndarray.*'precomp'"),
        (lambda path: butd_files(path, "abcd"), "precomp", "features without captions.*--features STORE"),
        (lambda path: karpathy.write(of_pictures(), path), "lmdb", "to: expected one of features, huggingface"),
        (BAD["cut, tar of two"].make, "csv", "ends early"),
        (BAD["half a split"].make, "features", "the split 'test' is left out"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_and_nothing_is_left_behind(tmp_path, make, to, message):
    (tmp_path / "in").mkdir()
    make(tmp_path / "in")
    with pytest.raises(ValueError, match=message):
        convert(tmp_path / "in", tmp_path / "out", to)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


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
from maxmatch.data.formats import huggingface, webdataset

features._COMMIT_SECONDS, huggingface._CHUNK, webdataset._MOST_SAMPLES = 0, 2, 3
countdown = Countdown()
# A kill, unlike a power cut, leaves what the system has taken: waiting for the disk is left out.
countdown.count(os, "rename", "replace", "fsync", "mkdir", instead={"fsync": lambda handle: None})
root = Path(sys.argv[1])
for pair in sys.argv[2:]:
    source, to = pair.split(":")
    countdown.left = 0
    convert(root / source, root / f"{pair}-0", to)
    steps = -countdown.left
    for step in sorted({1, 2, steps // 3, 2 * steps // 3, steps - 2, steps}):
        def work():
            countdown.left = step
            convert(root / source, root / f"{pair}-{step}", to)
        print(pair, step, in_child(work), int(step == steps))
"""


def test_a_process_killed_at_any_step_leaves_nothing_half_written_and_resumes(tmp_path, monkeypatch):
    """Each child is killed by SIGKILL at another call of the system; then the same is written to the end."""
    karpathy.write(of_pictures(), tmp_path / "pictures")
    precomp.write(of_features(), tmp_path / "regions")
    butd_files(tmp_path / "butd", "abcdef")
    pairs = [f"pictures:{to}" for to in ("csv", "karpathy", "imagefolder", "webdataset", "huggingface")]
    pairs += ["regions:features", "regions:precomp", "butd:features"]
    done = run(KILLED, tmp_path, *pairs)
    outcomes = [line.split() for line in done.stdout.splitlines()]
    assert len(outcomes) >= 5 * len(pairs), done.stderr
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    for pair, step, outcome, last in outcomes:
        assert int(outcome) == -signal.SIGKILL
        source, to = pair.split(":")
        target, straight = tmp_path / f"{pair}-{step}", tmp_path / f"{pair}-0"
        # Only the last call, which sees to it that the new name is on the disk, comes after all is done.
        assert source == "butd" or target.exists() == bool(int(last))
        convert(tmp_path / source, target, to)
        assert not target.with_name(f".{target.name}.partial").exists()
        assert len(list(target.rglob("*"))) == len(list(straight.rglob("*")))
        assert contents(read_dataset(target).splits) == contents(read_dataset(straight).splits)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".") and os.path.isdir(path)]
