import json
import os
from pathlib import Path

import numpy as np
import pytest
from made_data import content, contents, features, interrupting, split

from maxmatch.data.dataset import IMAGE, TEXT, DataError, Items, Split
from maxmatch.data.formats import karpathy

FLICKR8K = Path(os.environ.get("MAXMATCH_FLICKR8K", Path(__file__).parents[4] / "shared" / "data" / "flickr8k"))


def image(number, split="train", captions=5, **more):
    sentences = [
        {"raw": f"caption {number}.{n}", "sentid": 10 * number + n, "tokens": ["caption"]} for n in range(captions)
    ]
    return {"filename": f"{number}.jpg", "imgid": number, "split": split, "sentences": sentences, **more}


def without(entry, key):
    return {name: value for name, value in entry.items() if name != key}


@pytest.fixture
def write_json(tmp_path):
    def written(images, name="dataset_tiny.json", **dump):
        path = tmp_path / name
        path.write_text(json.dumps({"dataset": "tiny", "images": images}, **dump))
        return path

    return written


def pictures(folder, count):
    folder.mkdir(parents=True)
    for n in range(count):
        (folder / f"picture {n}.jpg").write_bytes(b"\xff\xd8\xff" + bytes([n]) * (n + 1))
    return sorted(folder.iterdir())


@pytest.mark.skipif(
    not (FLICKR8K / "dataset_flickr8k.json").is_file(),
    reason=f"Flickr8k is not here: put it in {FLICKR8K}, or set MAXMATCH_FLICKR8K to its folder",
)
@pytest.mark.usefixtures("without_shape_checks")  # 35,000 captions
def test_flickr8k_reads_as_it_is_known():
    splits = karpathy.read(FLICKR8K)
    assert {name: part.size for name, part in splits.items()} == {"train": 6000, "val": 1000}
    for part in splits.values():
        assert np.bincount(part[TEXT].groups).tolist() == [5] * part.size
        assert all(path.is_file() for path in part[IMAGE].values[::500])
        assert len(set(part[IMAGE].ids)) == part.size
        assert len(set(part[TEXT].ids)) == 5 * part.size
    data = json.loads((FLICKR8K / "dataset_flickr8k.json").read_text())
    for place, name in enumerate(("train", "val")):
        entry = next(entry for entry in data["images"] if entry["split"] == name)
        assert splits[name][IMAGE].values[0].name == entry["filename"], place
        assert splits[name][TEXT].values[:5] == [sentence["raw"].strip() for sentence in entry["sentences"]]


def test_coco_keeps_its_ids_its_folders_and_its_restval(write_json):
    path = write_json(
        [
            image(1, "train", 7, cocoid=522418, filepath="train2014"),
            image(2, "restval", cocoid=318219, filepath="val2014"),
            image(3, "val", 6, cocoid=391895, filepath="val2014"),
            image(4, "test", cocoid=60623, filepath="val2014"),
        ]
    )
    splits = karpathy.read(path, images=Path("pictures"))
    assert {name: part[IMAGE].ids for name, part in splits.items()} == {
        "train": ["522418", "318219"],
        "val": ["391895"],
        "test": ["60623"],
    }
    assert splits["train"][IMAGE].values == [Path("pictures/train2014/1.jpg"), Path("pictures/val2014/2.jpg")]
    assert splits["train"][TEXT].ids == [str(10 * n + k) for n in (1, 2) for k in range(5)]
    assert splits["train"][TEXT].groups.tolist() == [0] * 5 + [1] * 5
    assert len(karpathy.read(path, captions_per_image=None)["train"][TEXT]) == 12
    assert len(karpathy.read(path, captions_per_image=1)["train"][TEXT]) == 2


def test_a_caption_is_one_line_and_names_that_two_files_share_give_way_to_numbers(write_json):
    entries = [image(1, captions=1), *(image(n, filepath=f"{n}", filename="x.jpg") for n in (2, 3))]
    entries[0]["sentences"][0]["raw"] = " A dog\nruns. \n"
    path = write_json(entries)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())  # a byte-order mark is no matter
    train = karpathy.read(path)["train"]
    assert train[TEXT].values[0] == "A dog runs."
    assert train[IMAGE].ids == ["1", "2", "3"]


@pytest.mark.parametrize("folder", ["tiny_images", "Flicker8k_Dataset", "."])
def test_pictures_are_found_in_the_usual_places(write_json, tmp_path, folder):
    path = write_json([image(1), image(2, filepath="sub")])
    (tmp_path / "images").mkdir()
    (tmp_path / folder / "sub").mkdir(parents=True)
    (tmp_path / folder / "sub" / "2.jpg").touch()  # the first picture is missing, the folder is found by the last
    found = karpathy.read(path)["train"][IMAGE].values
    assert [os.path.normpath(value) for value in found] == [
        os.path.normpath(tmp_path / folder / name) for name in ("1.jpg", "sub/2.jpg")
    ]


@pytest.mark.parametrize("share", [0.0, 0.5, 0.999])
def test_json_cut_short_names_file_line_and_column(write_json, share):
    path = write_json([image(n) for n in range(9)], indent=1)
    text = path.read_text()
    text = text[: int(len(text) * share)]
    path.write_text(text)
    with pytest.raises(DataError, match="breaks off or is damaged at column") as caught:
        karpathy.read(path)
    problem = caught.value.problem
    assert problem.fatal
    assert problem.file == path
    assert text.count("\n") <= problem.line <= text.count("\n") + 1
    assert "Fetch or copy the file again." in str(problem)


def test_bytes_that_are_not_utf_8_name_the_line(write_json):
    path = write_json([image(1)], indent=1)
    path.write_bytes(path.read_bytes().replace(b"caption 1.2", b"caf\xe9"))
    line = path.read_bytes().split(b"\xe9")[0].count(b"\n") + 1
    with pytest.raises(DataError, match=rf"dataset_tiny\.json:{line}: not UTF-8: the byte 0xe9"):
        karpathy.read(path)


@pytest.mark.parametrize("text", ["[]", "{}", '{"images": 3}', "[" * 100_000, '{"images": [' + "9" * 5000 + "]}"])
def test_json_of_another_kind_is_refused(tmp_path, text):
    (tmp_path / "some.json").write_text(text)
    with pytest.raises(DataError, match=r"expected an object with the list 'images'|no usable JSON|damaged"):
        karpathy.read(tmp_path / "some.json")


BAD = {
    "no object": (7, r"image 2: expected an object, got 7"),
    "no filename": (without(image(2), "filename"), r"image 2: 'filename' is missing"),
    "filename": (image(2, filename=5), r"image 2: 'filename': expected str, got 5"),
    "empty filename": (image(2, filename=""), r"image 2: 'filename' is empty"),
    "filepath": (image(2, filepath=None), r"image 2: 'filepath': expected str, got null"),
    "no split": (without(image(2), "split"), r"image 2 \(2\.jpg\): 'split' is missing"),
    "unknown split": (image(2, "holdout"), r"'split': expected train, restval, val, test, got 'holdout'"),
    "no sentences": (without(image(2), "sentences"), r"image 2 \(2\.jpg\): 'sentences' is missing"),
    "sentences": (image(2, sentences="a dog"), r"'sentences': expected list, got \"a dog\""),
    "no captions": (image(2, captions=0), r"image 2 \(2\.jpg\): no caption"),
    "cocoid": (image(2, cocoid=[1]), r"'cocoid': expected int or str, got \[1\]"),
    "sentence": (image(2, sentences=["a dog"]), r"image 2 \(2\.jpg\), caption 1: expected an object, got \"a dog\""),
    "no raw": (image(2, sentences=[{"sentid": 1}]), r"caption 1: 'raw' is missing"),
    "empty": (image(2, sentences=[{"sentid": 1, "raw": " \n"}]), r"caption 1: an empty caption"),
    "half a character": (image(2, sentences=[{"sentid": 1, "raw": "\ud83d"}]), r"caption 1: not a text that UTF-8"),
    "no sentid": (image(2, sentences=[{"raw": "a"}]), r"caption 1: 'sentid' is missing"),
    "same sentid": (image(2, sentences=[{"raw": "a", "sentid": 10}]), r"caption 1: another .* 'sentid' 10 too"),
    "upwards": (image(2, filename="../2.jpg"), r"image 2: '\.\./2\.jpg' leaves the folder"),
    "inside upwards": (image(2, filepath="a/../.."), r"'a/\.\./\.\./2\.jpg' leaves the folder"),
    "absolute": (image(2, filename="/etc/passwd"), r"'/etc/passwd' leaves the folder"),
    "Windows upwards": (image(2, filename="..\\2.jpg"), r"leaves the folder"),
    "Windows drive": (image(2, filename="C:2.jpg"), r"leaves the folder"),
    "same picture": (image(2, filename="1.jpg"), r"image 2 \(1\.jpg\): the same picture or id .* as image 1"),
    "same id": (image(2, "test", cocoid="1"), r"the same picture or id \(1\) as image 1"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_entry_is_named_and_the_others_are_read(write_json, case):
    entry, message = BAD[case]
    path = write_json([image(1), entry, image(3)])
    with pytest.raises(DataError, match=message):
        karpathy.read(path)
    problems = []
    splits = karpathy.read(path, problems.append)
    assert [part.size for part in splits.values()] == [2]
    assert splits["train"][IMAGE].ids == ["1", "3"]
    assert splits["train"][TEXT].groups.tolist() == [0] * 5 + [1] * 5
    assert problems
    assert not any(problem.fatal for problem in problems)


def test_one_bad_caption_leaves_the_others_and_a_file_without_any_is_refused(write_json):
    entry = image(2)
    entry["sentences"][1]["raw"] = ""
    problems = []
    texts = karpathy.read(write_json([image(1), entry]), problems.append)["train"][TEXT]
    assert texts.groups.tolist() == [0] * 5 + [1] * 4
    assert "caption 2.1" not in texts.values
    assert len(problems) == 1
    with pytest.raises(DataError, match="no image can be used"):
        karpathy.read(write_json([7, 8]), problems.append)


def test_folders_and_files_are_recognised_by_their_names(write_json, tmp_path):
    assert not karpathy.recognises(tmp_path)
    for name in ("dataset_info.json", "dataset_dict.json"):
        assert not karpathy.recognises(write_json([], name))
    assert not karpathy.recognises(tmp_path)
    path = write_json([image(1)])
    assert karpathy.recognises(tmp_path)
    assert karpathy.recognises(path)
    assert karpathy.read(tmp_path)["train"].size == 1
    write_json([], "dataset_other.json")
    with pytest.raises(DataError, match=r"one dataset_\*\.json, found dataset_other\.json, dataset_tiny\.json"):
        karpathy.read(tmp_path)
    with pytest.raises(DataError, match="no such file"):
        karpathy.read(tmp_path / "nothing.json")


def test_what_was_written_reads_as_it_was(tmp_path):
    paths = pictures(tmp_path / "source", 6)
    ids = ["12", "0012", "a/b", "A/B", "…/../" + "x" * 300, "picture 5"]
    splits = {
        "train": split(paths[:4], [5, 1, 2, 5], ids[:4]),
        "val": split([b"GIF8" + b"x" * 9, paths[5]], 3, ids[4:], start=50),
    }
    advanced = []
    karpathy.write(splits, tmp_path / "copy", advanced.append, workers=2)
    again = karpathy.read(tmp_path / "copy")
    assert contents(again) == contents(splits)
    assert sum(advanced) == 6
    assert {path.name for path in (tmp_path / "copy").iterdir()} == {"dataset_copy.json", "images", "maxmatch.json"}
    assert len(list((tmp_path / "copy" / "images").iterdir())) == 6
    entry = json.loads((tmp_path / "copy" / "dataset_copy.json").read_text())["images"][0]
    assert (entry["cocoid"], entry["sentids"][0]) == (12, 1000)
    assert entry["sentences"][1]["tokens"] == ["two", "cats", "on", "a", "mat", "1"]


def test_an_interrupted_write_keeps_its_pictures_and_is_not_taken_for_a_whole(tmp_path):
    paths = pictures(tmp_path / "source", 8)
    with pytest.raises(KeyboardInterrupt):
        karpathy.write({"train": split(paths, 5)}, tmp_path / "copy", interrupting(6))
    assert not (tmp_path / "copy").exists()
    partial = tmp_path / ".copy.partial" / "images"
    written = {path.name: path.stat().st_mtime_ns for path in partial.iterdir()}
    assert len(written) >= 6
    (partial / "3.jpg").write_bytes(b"cut")  # as a power cut may leave it
    karpathy.write({"train": split(paths, 5)}, tmp_path / "copy")
    assert content(karpathy.read(tmp_path / "copy")["train"]) == content(split(paths, 5))
    found = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "copy" / "images").iterdir()}
    assert {name for name, time in written.items() if found[name] == time} == written.keys() - {"3.jpg"}


def test_what_the_format_cannot_hold_is_refused_before_anything_is_written(tmp_path):
    paths = pictures(tmp_path / "source", 2)
    part = split(paths, 5)
    several = Split(
        {IMAGE: Items(paths, np.zeros(2, np.int64), ["a", "b"]), TEXT: Items(["a dog"], np.zeros(1, np.int64), ["0"])}
    )
    empty = Split({IMAGE: part[IMAGE], TEXT: Items(["a dog", " "], np.arange(2), ["0", "1"])})
    for splits, message in (
        ({}, "no split to write"),
        ({"testall": part}, r"split 'testall': Karpathy's JSON knows train, val, test"),
        ({"train": part, "val": part}, r"image '0' is in several splits"),
        ({"train": Split({**part.items, "sound": part[IMAGE]})}, "has image, text, sound: .* holds image and text"),
        ({"train": Split({IMAGE: part[IMAGE]})}, "has image: .* holds image and text"),
        ({"train": several}, "2 images in 1 groups"),
        ({"train": empty}, "caption '1' is empty"),
        ({"train": split([], 5)}, "split 'train' is empty"),
    ):
        with pytest.raises(ValueError, match=message):
            karpathy.write(splits, tmp_path / "copy")
        assert not (tmp_path / "copy").exists()
    with pytest.raises(ValueError, match=r"split 'train': image: expected files .* got ndarray. .* 'precomp'"):
        karpathy.write({"train": split(list(features(2)), 5)}, tmp_path / "copy")
    assert not karpathy.recognises(tmp_path / "copy")
