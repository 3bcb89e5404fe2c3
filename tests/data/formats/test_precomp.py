import os
import pickle

import numpy as np
import pytest
from made_data import captions, features, run
from precomp_folders import per_image, put, same_rows

from maxmatch.data.dataset import IMAGE, TEXT, DataError
from maxmatch.data.formats import precomp


@pytest.mark.parametrize(
    "name", ["", "f30k_precomp", "coco_precomp", "coco/precomp", "data/f30k_precomp", "data/coco/precomp"]
)
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
    with pytest.raises(
        DataError, match=r"found coco_precomp, f30k_precomp. Give the path of the precomp folder itself"
    ):
        precomp.read(tmp_path)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_one_vector_an_image_is_one_region(tmp_path, dtype):
    array = features(3, 1, 6, dtype=dtype)
    put(tmp_path, "train", array[:, 0], captions(6))
    values = precomp.read(tmp_path)["train"][IMAGE].values
    assert values[1].shape == (1, 6)
    assert values.take([2, 0]).tolist() == array[[2, 0]].tolist()
    assert values.take([2, 0]).dtype == dtype


def test_arrays_of_python_2_are_read_without_a_word(tmp_path):
    array = features(2)
    put(tmp_path, "train", array, captions(10))
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (2L, 3L, 4L), }".ljust(117) + b"\n"
    (tmp_path / "train_ims.npy").write_bytes(b"\x93NUMPY\x01\x00\x76\x00" + header + array.tobytes())
    assert same_rows(precomp.read(tmp_path)["train"], array)


@pytest.mark.parametrize("ids", [None, "images", "captions"])
@pytest.mark.parametrize("counts", [[5, 5, 5], [1, 3, 2], [1, 1, 1], [4]])
def test_as_many_rows_as_captions_means_rows_repeated(tmp_path, ids, counts):
    array = features(len(counts))
    array[0, 1] = np.nan  # not equal to itself, and still the same row
    owners = np.repeat(np.arange(len(counts)), counts)
    names = {"images": [f"im{n}" for n in owners], "captions": [f"c{n}" for n in range(len(owners))], None: None}[ids]
    put(tmp_path, "train", array[owners], captions(len(owners)), names)
    part = precomp.read(tmp_path)["train"]
    assert part[TEXT].groups.tolist() == owners.tolist()
    np.testing.assert_array_equal(part[IMAGE].values.take(range(len(counts))), array)
    if ids == "images":
        assert part[IMAGE].ids == [f"im{n}" for n in range(len(counts))]
    elif ids == "captions" and max(counts) > 1:
        assert part[TEXT].ids == names


def test_rows_that_differ_are_told_apart_though_their_beginnings_agree(tmp_path):
    array = np.zeros((4, 40, 5), np.float32)
    array[:, -1, -1] = [1, 1, 2, 2]
    put(tmp_path, "train", array, captions(4))
    assert per_image(precomp.read(tmp_path)["train"]) == [2, 2]


@pytest.mark.parametrize("many", ["images", "captions of images", "captions"])
def test_ids_stand_for_images_or_captions(tmp_path, many):
    lines = {
        "images": ["a", "b"],
        "captions of images": ["a"] * 5 + ["b"] * 5,
        "captions": [f"c{n}" for n in range(10)],
    }[many]
    put(tmp_path, "dev", features(2), captions(10), lines)
    part = precomp.read(tmp_path)["val"]
    assert part[IMAGE].ids == (["dev_0", "dev_1"] if many == "captions" else ["a", "b"])
    assert part[TEXT].ids == (lines if many == "captions" else [f"dev_{n}" for n in range(10)])


def test_without_ids_names_are_made_from_rows_and_lines(tmp_path):
    put(tmp_path, "train", np.repeat(features(2), 3, axis=0), captions(6))
    part = precomp.read(tmp_path)["train"]
    assert part[IMAGE].ids == ["train_0", "train_3"]
    assert part[TEXT].ids == [f"train_{n}" for n in range(6)]


@pytest.mark.parametrize("present", ["ims.npy", "caps.txt"])
def test_half_a_split_is_reported_and_left_out(tmp_path, present):
    put(tmp_path, "train", features(2), captions(2))
    put(tmp_path, "test", features(2), captions(2))
    missing = "caps.txt" if present == "ims.npy" else "ims.npy"
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
    for data in (b"", whole[:5], whole[:100], whole[:-1], pickle.dumps(Trap()), b"PK\x03\x04"):
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
    np.savez(tmp_path / "archive.npz", array=features(4))
    (tmp_path / "archive.npz").rename(file)
    with pytest.raises(DataError, match=r"not a whole \.npy array of numbers"):
        precomp.read(tmp_path)


def test_coco_train_opens_and_yields_a_batch_in_little_memory(tmp_path):
    """31 GiB, of which only a few rows are really on the disk."""
    probe = tmp_path / "probe"
    with probe.open("wb") as file:
        file.truncate(2**20)
    if probe.stat().st_blocks * 512 >= 2**20:
        pytest.skip("the file system of the temporary folder has no sparse files: 31 GiB would be written")
    code = """
import sys, time
from pathlib import Path
import numpy as np
from made_data import peak_megabytes
folder, rows = Path(sys.argv[1]), 113_287
array = np.lib.format.open_memmap(folder / "train_ims.npy", "w+", np.float32, (rows, 36, 2048))
places = np.random.default_rng(0).choice(rows, 128, replace=False)
array[places[:16], 0, 0] = places[:16]
del array
with open(folder / "train_caps.txt", "w") as file:
    file.writelines(f"a man rides a horse along the beach at sunset, take {n}\\n" for n in range(5 * rows))
from maxmatch.data.formats import precomp
train = precomp.read(folder)["train"]
batch = train["image"].values.take(places)
assert train.size == rows and len(train["text"]) == 5 * rows
assert batch.shape == (128, 36, 2048) and batch[:16, 0, 0].tolist() == places[:16].tolist()
assert "torch" not in sys.modules
print(peak_megabytes())
"""
    done = run(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "train_ims.npy").stat().st_size > 31 * 2**30
    print(f"{done.stdout.strip()} MB")
    assert int(done.stdout) < 500
