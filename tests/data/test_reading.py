import signal
from functools import partial

import numpy as np
import pytest
from made_data import interrupting, run
from sample_splits import picture, plain, sample_splits, split_of

from maxmatch.data.dataset import IMAGE, TEXT, DataError, Items, Split
from maxmatch.data.formats import huggingface, imagefolder, tables, webdataset
from maxmatch.data.load import FORMATS, read_dataset, recognise

WRITERS = {
    "csv": partial(tables.write, kind="csv"),
    "tsv": partial(tables.write, kind="tsv"),
    "jsonl": partial(tables.write, kind="jsonl"),
    "parquet": partial(tables.write, kind="parquet"),
    "imagefolder": imagefolder.write,
    "huggingface": huggingface.write,
    "webdataset": partial(webdataset.write, max_samples=3),
}


@pytest.fixture(params=[name for name in WRITERS if name not in ("tsv", "jsonl")])  # which are as CSV is
def write(request):
    return WRITERS[request.param]


def files_in(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in ("state.json", "dataset_info.json")  # these hold a random name
    }


@pytest.mark.parametrize("name", WRITERS)
def test_what_is_written_is_recognised_and_read_as_the_same(name, tmp_path):
    WRITERS[name](sample_splits(), tmp_path / "data")
    assert recognise(tmp_path / "data") == (name if name in FORMATS else "table")
    assert plain(read_dataset(tmp_path / "data").splits) == plain(sample_splits())
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_from_format_to_format_nothing_changes(tmp_path):
    splits = sample_splits()
    for number, (name, write) in enumerate([*WRITERS.items(), *reversed(WRITERS.items())]):
        write(splits, tmp_path / f"{number}{name}", workers=2)
        splits = read_dataset(tmp_path / f"{number}{name}").splits
        assert plain(splits) == plain(sample_splits()), name


def test_without_metadata_there_is_none(write, tmp_path):
    splits = {"train": split_of(0, [2, 1], metadata=False)}
    write(splits, tmp_path / "data")
    assert plain(read_dataset(tmp_path / "data").splits) == plain(splits)


def test_several_images_of_a_group_stay_together(write, tmp_path):
    images = Items([picture(number) for number in range(6)], np.array([0, 0, 1, 2, 2, 2]), list("abcdef"))
    texts = Items(["one", "two", "three", "four", "four"], np.array([0, 0, 0, 1, 2]), list("12345"))
    splits = {"train": Split({IMAGE: images, TEXT: texts})}
    write(splits, tmp_path / "data")
    assert plain(read_dataset(tmp_path / "data").splits) == plain(splits)


def test_captions_that_read_alike_are_kept_apart_by_their_ids(write, tmp_path):
    texts = Items(["a dog", "a dog"], np.array([0, 0]), ["1", "2"])
    splits = {"train": Split({IMAGE: Items([picture(0)], np.array([0]), ["a"]), TEXT: texts})}
    write(splits, tmp_path / "data")
    assert plain(read_dataset(tmp_path / "data").splits) == plain(splits)


def test_a_second_write_of_the_same_changes_nothing(write, tmp_path):
    write(sample_splits(), tmp_path / "data")
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "data").rglob("*")}
    steps = []
    write(sample_splits(), tmp_path / "data", steps.append)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "data").rglob("*")} == times
    assert sum(steps) == 7


def test_other_data_are_never_written_over(write, tmp_path):
    write({"train": split_of(0, [2])}, tmp_path / "data")
    before = files_in(tmp_path / "data")
    with pytest.raises(FileExistsError, match=r"data: is there and holds something else. Give a new folder"):
        write({"train": split_of(1, [2])}, tmp_path / "data")
    assert files_in(tmp_path / "data") == before
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.tex").write_text("years of work")
    with pytest.raises(FileExistsError):
        write(sample_splits(), tmp_path / "thesis")


def test_an_empty_folder_is_filled(write, tmp_path):
    write(sample_splits(), tmp_path)
    assert plain(read_dataset(tmp_path).splits) == plain(sample_splits())


@pytest.mark.parametrize("steps", [1, 6])
def test_an_interrupted_write_is_not_recognised_and_resumes(write, steps, tmp_path):
    write(sample_splits(), tmp_path / "straight")
    done = []

    def interrupt(count):
        done.extend(range(count))
        if len(done) >= steps:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(sample_splits(), tmp_path / "data", interrupt)
    assert not (tmp_path / "data").exists()
    with pytest.raises(DataError, match="an interrupted write"):
        read_dataset(tmp_path / ".data.partial")
    again = []
    write(sample_splits(), tmp_path / "data", again.append)
    assert sum(again) == 7
    assert plain(read_dataset(tmp_path / "data").splits) == plain(sample_splits())
    assert files_in(tmp_path / "data") == files_in(tmp_path / "straight")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "straight"]


@pytest.mark.parametrize("name", ["csv", "webdataset", "huggingface"])
def test_what_an_interrupted_write_completed_is_kept(name, tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface, "_CHUNK", 2)
    with pytest.raises(KeyboardInterrupt):
        WRITERS[name](sample_splits(), tmp_path / "data", interrupting(4))
    kinds = (".png", ".jpg", ".tar", ".arrow")
    kept = {path: path.stat().st_ino for path in (tmp_path / ".data.partial").rglob("*") if path.suffix in kinds}
    assert kept
    seen = []

    def look(count):
        seen.append({path: path.stat().st_ino for path in kept if path.exists()})

    WRITERS[name](sample_splits(), tmp_path / "data", look)
    assert seen[-1] == kept


KILLED = """
import os, sys
from pathlib import Path
from killed import Countdown, in_child
from sample_splits import split_of
from test_reading import WRITERS

countdown = Countdown()
countdown.count(os, "rename", "replace", "fsync", "mkdir")
folder, write = Path(sys.argv[1]), WRITERS[sys.argv[2]]
splits = {"train": split_of(0, [2, 1]), "val": split_of(2, [1])}
write(splits, folder / "0" / "data")
steps = -countdown.left
for step in {*range(1, steps, steps // 4), steps - 1, steps}:
    def work():
        countdown.left = step
        write(splits, folder / str(step) / "data")
    print(step, in_child(work))
"""


@pytest.mark.parametrize("name", ["csv", "imagefolder", "webdataset", "huggingface"])
def test_a_process_killed_at_any_step_leaves_nothing_half_written(name, tmp_path):
    """Each child is killed by SIGKILL at another call of the system; then the same is written to the end."""
    done = run(KILLED, tmp_path, name)
    outcomes = dict(map(int, line.split()) for line in done.stdout.splitlines())
    assert len(outcomes) >= 5, done.stderr
    splits = {"train": split_of(0, [2, 1]), "val": split_of(2, [1])}
    for step, outcome in outcomes.items():
        assert outcome == -signal.SIGKILL
        # Only the last call, which sees to it that the new name is on the disk, comes after all is done.
        assert (tmp_path / str(step) / "data").exists() == (step == max(outcomes))
        WRITERS[name](splits, tmp_path / str(step) / "data")
        assert plain(read_dataset(tmp_path / str(step) / "data").splits) == plain(splits)
        assert [path.name for path in (tmp_path / str(step)).iterdir()] == ["data"]


def test_a_folder_of_something_else_says_what_was_looked_for_and_found(tmp_path):
    for name in ("thesis.tex", "notes.txt", "a.docx", "b.docx", "c.docx", "d.docx"):
        (tmp_path / name).write_text("")
    with pytest.raises(DataError) as refusal:
        read_dataset(tmp_path)
    message = str(refusal.value)
    assert message.startswith(str(tmp_path))
    assert all(name in message for name in FORMATS)
    assert "Found a.docx, b.docx, c.docx, d.docx, notes.txt and 1 more" in message


def test_an_empty_folder_and_a_missing_one_are_told_apart(tmp_path):
    with pytest.raises(DataError, match="the folder is empty"):
        read_dataset(tmp_path)
    with pytest.raises(DataError, match=r"nowhere: no such file or folder. Check the path."):
        read_dataset(tmp_path / "nowhere")


def test_an_unknown_format_is_refused_with_the_choices(tmp_path):
    with pytest.raises(ValueError, match=r"format: expected one of .*imagefolder.*, got 'lmdb'"):
        read_dataset(tmp_path, format="lmdb")


def test_a_format_may_be_named_and_options_reach_it(tmp_path):
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "a.png").write_bytes(picture(0))
    (tmp_path / "captions.csv").write_text("image,caption\na.png,a dog\n")
    dataset = read_dataset(str(tmp_path), format="folder")
    assert (dataset.format, list(dataset.splits["all"][IMAGE].ids)) == ("folder", ["pictures/a.png"])
    dataset = read_dataset(tmp_path, images=tmp_path / "pictures")
    assert (dataset.format, dataset.path) == ("table", tmp_path)
    assert dataset.split("train")[IMAGE].values == [tmp_path / "pictures" / "a.png"]


def test_features_are_refused_with_the_format_that_holds_them(write, tmp_path):
    images = Items(np.zeros((2, 36, 8), np.float32), np.arange(2), ["a", "b"])
    splits = {"train": Split({IMAGE: images, TEXT: Items(["one", "two"], np.arange(2), ["1", "2"])})}
    with pytest.raises(ValueError, match=r"split 'train': image: expected files .* got ndarray.*'precomp'"):
        write(splits, tmp_path / "data")
    assert not list(tmp_path.iterdir())


def test_pictures_without_captions_are_refused_with_the_format_that_holds_them(write, tmp_path):
    splits = {"all": Split({IMAGE: split_of(0, [1])[IMAGE]})}
    with pytest.raises(ValueError, match=r"split 'all' has no text: .*'folder'"):
        write(splits, tmp_path / "data")


def test_a_picture_that_is_missing_is_named(write, tmp_path):
    images = Items([tmp_path / "gone.jpg"], np.arange(1), ["a"])
    splits = {"train": Split({IMAGE: images, TEXT: Items(["one"], np.arange(1), ["1"])})}
    with pytest.raises(DataError, match=r"gone.jpg: no such file"):
        write(splits, tmp_path / "data")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("name", ["../up", "a/b", ""])
def test_a_split_whose_name_is_no_name_for_a_folder_is_refused(write, name, tmp_path):
    with pytest.raises(ValueError, match="expected a name of letters"):
        write({name: split_of(0, [1])}, tmp_path / "data")


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


def test_what_an_interrupted_write_of_other_data_left_is_not_mixed_in(write, tmp_path):
    def interrupt(count):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write({"train": split_of(20, [1, 1])}, tmp_path / "data", interrupt)
    write(sample_splits(), tmp_path / "data")
    write(sample_splits(), tmp_path / "straight")
    assert files_in(tmp_path / "data") == files_in(tmp_path / "straight")


def test_a_folder_that_is_only_named_like_an_interrupted_write_is_left_alone(tmp_path):
    (tmp_path / ".data.partial").mkdir()
    (tmp_path / ".data.partial" / "mine.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="Move it elsewhere"):
        tables.write(sample_splits(), tmp_path / "data")
    assert (tmp_path / ".data.partial" / "mine.txt").read_text() == "mine"
