"""Precomp folders: whose row each caption belongs to, what is wrong with lines and arrays, writing and resuming."""

import os
import pickle
from itertools import pairwise

import numpy as np
import pytest
from made_data import captions, content, contents, features, mapped, run, split

from maxmatch.data.dataset import IMAGE, TEXT, DataError, Items, Rows, Split
from maxmatch.data.formats import precomp


def put(folder, prefix, array, texts, ids=None, end="\n"):
    """A split as other programs write it."""
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / f"{prefix}_ims.npy", array)
    (folder / f"{prefix}_caps.txt").write_bytes("".join(text + end for text in texts).encode())
    if ids is not None:
        (folder / f"{prefix}_ids.txt").write_text("".join(f"{name}\n" for name in ids))
    return folder


def lenient(folder):
    """The training split, read in spite of problems, and the problems."""
    problems = []
    return precomp.read(folder, problems.append)["train"], problems


def per_image(part):
    return np.bincount(part[TEXT].groups).tolist()


def same_rows(part, array):
    return [row.tolist() for row in part[IMAGE].values] == [row.tolist() for row in array]


@pytest.mark.parametrize("name", ["", "f30k_precomp", "coco/precomp", "data/f30k_precomp", "data/coco/precomp"])
def test_the_folder_is_found_under_all_its_names(tmp_path, name):
    array = features(4)
    for prefix in ("train", "dev", "test", "testall"):
        put(tmp_path / "here" / name, prefix, array, captions(20))
    (tmp_path / "here" / "images").mkdir()
    assert precomp.recognises(tmp_path / "here")
    splits = precomp.read(tmp_path / "here")
    assert list(splits) == ["train", "val", "test", "testall"]
    for part in splits.values():
        assert per_image(part) == [5] * 4
        assert same_rows(part, array)
        assert part[TEXT].values == captions(20)


def test_dev_may_be_called_val_but_not_both(tmp_path):
    put(tmp_path, "val", features(2), captions(10))
    assert list(precomp.read(tmp_path)) == ["val"]
    put(tmp_path, "dev", features(2), captions(10))
    with pytest.raises(DataError, match=r"dev_caps\.txt and val_caps\.txt are both there.*Keep the one that is right"):
        precomp.read(tmp_path)


def test_other_folders_are_not_recognised_and_several_not_guessed_at(tmp_path):
    (tmp_path / "images").mkdir()
    assert not precomp.recognises(tmp_path)
    assert not precomp.recognises(tmp_path / "nothing")
    with pytest.raises(DataError, match="found none"):
        precomp.read(tmp_path)
    for name in ("coco_precomp", "f30k_precomp"):
        put(tmp_path / name, "train", features(2), captions(2))
    with pytest.raises(DataError, match=r"found coco_precomp, f30k_precomp. Give the path of the precomp folder"):
        precomp.read(tmp_path)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_one_vector_per_image_is_one_region(tmp_path, dtype):
    array = features(3, 1, 6, dtype=dtype)
    put(tmp_path, "train", array[:, 0], captions(6))
    values = precomp.read(tmp_path)["train"][IMAGE].values
    assert values[1].shape == (1, 6)
    assert values.take([2, 0]).values.tolist() == array[[2, 0]].tolist()
    assert values.take([2, 0]).values.dtype == dtype


def test_arrays_of_python_2_are_read_without_a_word(tmp_path):
    array = features(2)
    put(tmp_path, "train", array, captions(10))
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (2L, 3L, 4L), }".ljust(117) + b"\n"
    (tmp_path / "train_ims.npy").write_bytes(b"\x93NUMPY\x01\x00\x76\x00" + header + array.tobytes())
    assert same_rows(precomp.read(tmp_path)["train"], array)


@pytest.mark.parametrize("ids", [None, "images", "captions"])
@pytest.mark.parametrize("counts", [[5, 5, 5], [1, 3, 2], [1, 1, 1]])
def test_as_many_rows_as_captions_means_rows_repeated(tmp_path, ids, counts):
    array = features(len(counts))
    array[0, 1] = np.nan  # not equal to itself, and still the same row
    owners = np.repeat(np.arange(len(counts)), counts)
    names = {"images": [f"im{n}" for n in owners], "captions": [f"c{n}" for n in range(len(owners))], None: None}[ids]
    put(tmp_path, "train", array[owners], captions(len(owners)), names)
    part = precomp.read(tmp_path)["train"]
    assert part[TEXT].groups.tolist() == owners.tolist()
    np.testing.assert_array_equal(part[IMAGE].values.take(range(len(counts))).values, array)
    if ids == "images":
        assert part[IMAGE].ids == [f"im{n}" for n in range(len(counts))]
    elif ids == "captions" and max(counts) > 1:
        assert part[TEXT].ids == names
    elif ids is None:
        firsts = np.flatnonzero(np.diff(owners, prepend=-1))
        assert part[IMAGE].ids == [f"train_{n}" for n in firsts]
        assert part[TEXT].ids == [f"train_{n}" for n in range(len(owners))]


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(3, 4), (40, 5)])
def test_repeated_rows_are_those_that_a_loop_finds(tmp_path, shape, order):
    array = np.repeat(features(20, *shape), np.random.default_rng(1).integers(1, 4, 20), axis=0)
    array[5:7] = np.nan
    array[12:15] = 0
    array[14, -1, -1] = 1  # differs only at its very end
    array = np.asarray(array, order=order)
    slow = [False, *(here.tobytes() == before.tobytes() for before, here in pairwise(array))]
    assert precomp.repeated(mapped(tmp_path, array)).tolist() == precomp.repeated(array).tolist() == slow
    rough = precomp.repeated(mapped(tmp_path, array), thorough=False)
    assert (rough | ~np.array(slow)).all()


@pytest.mark.parametrize("lines", [["a", "b"], ["a"] * 5 + ["b"] * 5, [f"c{n}" for n in range(10)]])
def test_ids_stand_for_images_or_captions(tmp_path, lines):
    put(tmp_path, "dev", features(2), captions(10), lines)
    part = precomp.read(tmp_path)["val"]
    of_captions = lines[0] == "c0"
    assert part[IMAGE].ids == (["dev_0", "dev_1"] if of_captions else ["a", "b"])
    assert part[TEXT].ids == (lines if of_captions else [f"dev_{n}" for n in range(10)])


@pytest.mark.parametrize("missing", ["ims.npy", "caps.txt"])
def test_half_a_split_is_reported_and_left_out(tmp_path, missing):
    put(tmp_path, "train", features(2), captions(2))
    put(tmp_path, "test", features(2), captions(2))
    (tmp_path / f"test_{missing}").unlink()
    with pytest.raises(DataError, match=rf"test_{missing}: missing, so that the split 'test' is left out"):
        precomp.read(tmp_path)
    assert list(precomp.read(tmp_path, lambda problem: None)) == ["train"]
    (tmp_path / f"train_{missing}").unlink()
    with pytest.raises(DataError, match=r"no split has both|found none"):
        precomp.read(tmp_path, lambda problem: None)


def test_arrays_that_cannot_be_used_are_refused(tmp_path):
    class Trap:
        def __reduce__(self):
            return (os.abort, ())

    put(tmp_path, "train", features(4), captions(4))
    file = tmp_path / "train_ims.npy"
    whole = file.read_bytes()
    np.savez(tmp_path / "archive.npz", array=features(4))
    archive = (tmp_path / "archive.npz").read_bytes()
    for data in (b"", whole[:5], whole[:100], whole[:-1], pickle.dumps(Trap()), archive):
        file.write_bytes(data)
        with pytest.raises(DataError, match=r"train_ims\.npy: not a whole \.npy array of numbers.*Fetch or copy"):
            precomp.read(tmp_path)
    for array, message in (
        (np.array([Trap()]), "not a whole .npy array of numbers"),
        (np.zeros((4, 3, 2), np.int64), r"expected an array of float16, float32 or float64, got int64"),
        (np.zeros((4, 2, 2, 2)), r"expected the shape \(rows, regions, width\) or \(rows, width\), got \(4, 2, 2, 2\)"),
        (np.zeros((4, 0, 2)), r"expected the shape"),
    ):
        np.save(file, array)
        with pytest.raises(DataError, match=message):
            precomp.read(tmp_path)


MEMORY = """
import sys
from pathlib import Path
import numpy as np
from made_data import peak_megabytes
folder, rows = Path(sys.argv[1]), 113_287
array = np.lib.format.open_memmap(folder / "train_ims.npy", "w+", np.float32, (rows, 36, 2048))
places = np.random.default_rng(0).choice(rows, 128, replace=False)
array[places[:16], 0, 0] = places[:16]
del array
with open(folder / "train_caps.txt", "w") as file:
    file.writelines(f"a man rides a horse along the beach at sunset, take {n}\\n" for n in range(2 * rows))
np.lib.format.open_memmap(folder / "small.npy", "w+", np.float32, (2000, 36, 2048))
from maxmatch.data.check import bad_rows
from maxmatch.data.dataset import Rows
from maxmatch.data.formats import precomp
small = np.load(folder / "small.npy", mmap_mode="r")
before = peak_megabytes()
assert sum(1 for _ in bad_rows(Rows(small, np.arange(len(small))), chunk=2**24)) == len(small)
assert precomp.repeated(small).sum() == len(small) - 1
print(peak_megabytes() - before)
train = precomp.read(folder)["train"]
batch = train["image"].values.take(places).values
assert train.size == rows and len(train["text"]) == 2 * rows
assert batch.shape == (128, 36, 2048) and batch[:16, 0, 0].tolist() == places[:16].tolist()
assert "torch" not in sys.modules
print(peak_megabytes())
from maxmatch.data.dataset import Split
from maxmatch.data.feed import MappedFeed
from maxmatch.data.sampler import GroupSampler
from maxmatch.model.inputs import FeatureReader
before = peak_megabytes()
feed = MappedFeed(Split({"image": train["image"]}), {"image": FeatureReader(2048)}, "cpu", workers=0)
for _ in zip(range(3), feed.batches(GroupSampler(rows, 128, seed=0).plans(0))):
    pass
print(peak_megabytes() - before)
"""


def test_features_of_the_size_of_coco_are_read_checked_and_fed_in_little_memory(tmp_path):
    """31 GiB, of which only a few rows are really on the disk."""
    probe = tmp_path / "probe"
    with probe.open("wb") as file:
        file.truncate(2**20)
    if probe.stat().st_blocks * 512 >= 2**20:
        pytest.skip("the file system of the temporary folder has no sparse files: 31 GiB would be written")
    done = run(MEMORY, tmp_path)
    assert done.returncode == 0, done.stderr
    checked, read, fed = map(int, done.stdout.split())
    assert (tmp_path / "train_ims.npy").stat().st_size > 31 * 2**30
    assert checked < 150, "MB, of a file of 590"
    assert read < 500
    assert fed < 500


# Lines: what is wrong is named, and the lines after it keep their images.


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["a", "b", "c"], r"train_ids\.txt: 3 ids for 2 images, expected one each"),
        (["a", "a"], r"the id 'a' is that of image 1 and of image 2"),
        (["a", "b"] * 3, r"the id 'a' is that of caption 1 and of caption 3"),
        ([], r"0 ids for 2 images"),
    ],
)
def test_ids_that_do_not_fit_are_reported_and_replaced(tmp_path, lines, message):
    put(tmp_path, "train", features(2), captions(6), lines)
    with pytest.raises(DataError, match=message):
        precomp.read(tmp_path)
    part, problems = lenient(tmp_path)
    assert part[IMAGE].ids == ["train_0", "train_1"]
    assert part[TEXT].ids == [f"train_{n}" for n in range(6)]
    assert len(problems) == 1
    assert "made from the numbers of rows and lines" in problems[0].cure


def test_ids_that_contradict_the_rows_are_reported_with_their_line(tmp_path):
    put(tmp_path, "train", np.repeat(features(2), [2, 1], axis=0), captions(3), ["a", "b", "b"])
    part, problems = lenient(tmp_path)
    assert per_image(part) == [2, 1]
    assert str(problems[0]).startswith(f"{tmp_path / 'train_ids.txt'}:3: the id 'b' of the line before, but another")


@pytest.mark.parametrize(("end", "mark"), [("\r\n", b""), ("\n", b"\xef\xbb\xbf")])
def test_line_ends_byte_order_mark_and_the_last_newline_make_no_difference(tmp_path, end, mark):
    put(tmp_path, "train", features(2), captions(6), end=end)
    file = tmp_path / "train_caps.txt"
    file.write_bytes(mark + file.read_bytes().removesuffix(end.encode()))
    assert precomp.read(tmp_path)["train"][TEXT].values == captions(6)


@pytest.mark.parametrize(("line", "what"), [(b"caf\xe9", "not UTF-8"), (b"  ", "the line is empty")])
def test_a_line_that_cannot_be_used_is_named_and_those_after_it_keep_their_images(tmp_path, line, what):
    put(tmp_path, "train", features(2), captions(6))
    lines = (tmp_path / "train_caps.txt").read_bytes().split(b"\n")
    lines[2] = line
    (tmp_path / "train_caps.txt").write_bytes(b"\n".join(lines))
    with pytest.raises(DataError, match=rf"train_caps\.txt:3: {what}"):
        precomp.read(tmp_path)
    part, problems = lenient(tmp_path)
    assert [problem.line for problem in problems] == [3]
    assert part[TEXT].values == [text for n, text in enumerate(captions(6)) if n != 2]
    assert part[TEXT].groups.tolist() == [0, 0, 1, 1, 1]
    assert part[TEXT].ids == [f"train_{n}" for n in (0, 1, 3, 4, 5)]


def test_an_image_that_loses_all_its_captions_is_named_and_left_out(tmp_path):
    texts, array = captions(6), features(3)
    texts[2] = texts[3] = ""
    put(tmp_path, "train", array, texts, ["a", "b", "c"])
    part, problems = lenient(tmp_path)
    assert str(problems[-1]).startswith(f"{tmp_path / 'train_ims.npy'}:2: no caption of this row can be used")
    assert part[IMAGE].ids == ["a", "c"]
    assert part[TEXT].groups.tolist() == [0, 0, 1, 1]
    assert same_rows(part, array[[0, 2]])
    put(tmp_path, "train", array, [""] * 3)
    with pytest.raises(DataError, match="no caption can be used"):
        lenient(tmp_path)


def test_empty_lines_at_the_end_that_no_row_is_meant_for_are_no_captions(tmp_path):
    put(tmp_path, "train", features(2), [*captions(6), ""])
    assert precomp.read(tmp_path)["train"][TEXT].values == captions(6)
    put(tmp_path, "train", features(2), [*captions(5), ""])  # here a row is meant for it
    with pytest.raises(DataError, match=r"train_caps\.txt:6: the line is empty"):
        precomp.read(tmp_path)


@pytest.mark.parametrize("count", [0, 1, 19, 21])
def test_captions_that_are_no_multiple_of_the_rows_name_both_files_and_the_cure(tmp_path, count):
    put(tmp_path, "train", features(4), captions(count))
    with pytest.raises(DataError, match=rf"train_caps\.txt: {count} captions for the 4 rows of train_ims\.npy") as bad:
        lenient(tmp_path)
    assert bad.value.problem.fatal
    assert "fetch both files again" in bad.value.problem.cure


# Writing.


@pytest.mark.parametrize("counts", [5, [1, 4, 2, 1, 5, 2]])
def test_what_was_written_reads_as_it_was(tmp_path, counts):
    array = features(6, dtype="float16")
    array[3] = array[2]  # two images alike, one after the other, are still two
    splits = {
        "train": split(array, counts),
        "val": split(list(array), counts, start=100),
        "testall": split(Rows(array, np.arange(6)), counts, ids=[f"im {n}" for n in range(6)]),
    }
    advanced = []
    precomp.write(splits, tmp_path / "copy", advanced.append)
    again = precomp.read(tmp_path / "copy")
    assert contents(again) == contents(splits)
    assert sum(advanced) == 3 * 6
    assert not list((tmp_path / "copy").glob(".*"))


def test_line_breaks_in_captions_are_written_as_spaces(tmp_path):
    texts = Items(["a\ndog ", "b"], np.zeros(2, np.int64), ["0", "1"])
    precomp.write({"train": Split({IMAGE: split(features(1), 2)[IMAGE], TEXT: texts})}, tmp_path)
    assert precomp.read(tmp_path)["train"][TEXT].values == ["a dog", "b"]


class Counting(list):
    """Features that notice how often they are read, and may fail."""

    def __init__(self, values, fails_at=None):
        super().__init__(values)
        self.fails_at, self.read = fails_at, 0

    def __getitem__(self, position):
        self.read += 1
        if position == self.fails_at:
            raise OSError("the disk went away")
        return super().__getitem__(position)


@pytest.mark.parametrize("seed", [0, 1])
def test_an_interrupted_write_resumes_unless_it_was_of_other_data(tmp_path, monkeypatch, seed):
    monkeypatch.setattr(precomp, "_BLOCK", 32)
    array = features(125)
    with pytest.raises(OSError, match="the disk went away"):
        precomp.write({"train": split(Counting(features(125, seed=seed), 91), 5)}, tmp_path)
    assert not precomp.recognises(tmp_path)
    source = Counting(array)
    precomp.write({"train": split(source, 5)}, tmp_path)
    assert (source.read < 125) == (seed == 0)
    assert content(precomp.read(tmp_path)["train"]) == content(split(array, 5))
    source = Counting(array)
    precomp.write({"train": split(source, 5)}, tmp_path)
    assert source.read < 50


def test_other_features_are_not_overwritten(tmp_path):
    precomp.write({"train": split(features(9), 5)}, tmp_path)
    for other in (features(9, seed=1), features(8), features(9, dtype="float16"), features(9, regions=2)):
        with pytest.raises(FileExistsError, match="is there and holds something else"):
            precomp.write({"train": split(other, 5)}, tmp_path)
    assert content(precomp.read(tmp_path)["train"]) == content(split(features(9), 5))


def test_what_the_format_cannot_hold_is_refused(tmp_path):
    for values, message in (
        ([b"picture"], r"image '0': expected features.*got bytes. Extract them first"),
        ([np.zeros((2, 2), np.int64)], r"got int64 \(2, 2\)"),
        ([np.zeros((2, 2)), np.zeros((3, 2))], r"image '1' has features float64 \(3, 2\), those before float64"),
    ):
        with pytest.raises(ValueError, match=message):
            precomp.write({"train": split(values, 5)}, tmp_path / "copy")
        assert not precomp.recognises(tmp_path / "copy")
    with pytest.raises(ValueError, match="the id 'a\\\\nb' does not fit on a line"):
        precomp.write({"train": split(features(1), 5, ids=["a\nb"])}, tmp_path / "copy")
