import gc
import io
import json
import pickle
import tarfile
import warnings
from pathlib import Path

import numpy as np
import pytest
import webdataset
from sample_splits import picture, plain, split_of

from maxmatch.data.dataset import IMAGE, TEXT, DataError, Items, Split
from maxmatch.data.formats import webdataset as shards


def make_tar(path: Path, files: dict[str, bytes] | list[tuple[str, bytes]]) -> Path:
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, data in files.items() if isinstance(files, dict) else files:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def numbered(count: int) -> dict[str, bytes]:
    """Samples of a picture and a caption each."""
    files = {}
    for number in range(count):
        files |= {f"{number}.png": picture(number), f"{number}.txt": f"caption {number}".encode()}
    return files


def read(path: Path) -> tuple[Split, list[str]]:
    problems = []
    splits = shards.read(path, problems.append)
    return splits["train"], [str(problem).replace(f"{path.parent}/", "") for problem in problems]


def test_lines_of_txt_are_captions_and_names_are_ids(tmp_path):
    files = {
        "x/1.v2.txt": b"no caption of this",
        "x/1.jpg": picture(0),
        "x/1.txt": b"\xef\xbb\xbfone\r\ntwo\n\n",
        "x/1.cls": b"3",
    }
    split = shards.read(make_tar(tmp_path / "a.tar", files))["train"]
    assert split[IMAGE].values[0] == picture(0)
    assert list(split[TEXT].values) == ["one", "two"]
    assert (split[IMAGE].ids, split[TEXT].ids) == (["a.tar/x/1"], ["a.tar/x/1#0", "a.tar/x/1#1"])


def test_json_holds_captions_ids_and_metadata(tmp_path):
    info = {"text": "one", "image_id": 17, "caption_id": 170, "url": "http://x", "width": 4}
    files = {"1.png": picture(0), "1.json": json.dumps(info).encode(), "1.txt": b"one\n"}
    split = shards.read(make_tar(tmp_path / "a.tar", files))["train"]
    assert (split[IMAGE].ids, split[TEXT].ids, split[TEXT].values) == (["17"], ["170"], ["one"])
    assert split[IMAGE].metadata == [{"url": "http://x", "width": 4}]
    assert split[TEXT].metadata is None


def test_json_of_others_may_hold_nothing_for_a_caption_and_an_image_of_its_own(tmp_path):
    info = {"Image": "1.png", "Caption": None, "texts": ["one", "two"], "sentence": "kept"}
    files = {"1.png": picture(0), "1.json": json.dumps(info).encode(), "2.png": picture(1), "2.txt": b"three"}
    split = shards.read(make_tar(tmp_path / "a.tar", files | {"2.json": b'{"caption": ""}'}))["train"]
    assert list(split[IMAGE].values) == [picture(0), picture(1)]
    assert split[TEXT].values == ["one", "two", "three"]


def test_names_and_folders_say_the_split(tmp_path):
    for name in ("train-000000.tar", "train-000001.tar", "validation_0.tar", "test.tar", "trainer.tar", "extra/0.tar"):
        make_tar(tmp_path / name, numbered(1))
    splits = shards.read(tmp_path)
    assert {name: split.size for name, split in splits.items()} == {"extra": 1, "test": 1, "train": 3, "val": 1}
    assert list(splits["train"][IMAGE].ids) == ["train-000000.tar/0", "train-000001.tar/0", "trainer.tar/0"]


def test_braces_name_a_range_of_tars(tmp_path):
    for number in range(4):
        make_tar(tmp_path / f"val-{number:03d}.tar", numbered(1))
    pattern = tmp_path / "val-{001..002}.tar"
    assert shards.recognises(pattern)
    assert list(shards.read(pattern)["val"][IMAGE].ids) == ["val-001.tar/0", "val-002.tar/0"]
    with pytest.raises(DataError, match=r"val-004\.tar: no such file\. Bring it back"):
        shards.read(tmp_path / "val-{003..004}.tar")


def test_webdataset_reads_what_is_written_here(tmp_path, monkeypatch):
    splits = {"train": split_of(0, [5, 1, 2])}
    monkeypatch.setattr(shards, "_MOST_SAMPLES", 2)
    shards.write(splits, tmp_path / "data")
    urls = [str(path) for path in sorted((tmp_path / "data" / "train").glob("*.tar"))]
    assert len(urls) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # it leaves the tars to the garbage collector
        samples = list(webdataset.WebDataset(urls, shardshuffle=False, empty_check=False))
        gc.collect()
    images, texts = splits["train"][IMAGE], splits["train"][TEXT]
    assert [sample.get("png", sample.get("jpg")) for sample in samples] == list(images.values)
    captions = [caption for sample in samples for caption in json.loads(sample["json"])["caption"]]
    assert captions == list(texts.values)


def test_what_webdataset_writes_is_read_here(tmp_path):
    with webdataset.ShardWriter(str(tmp_path / "train-%06d.tar"), maxcount=2, verbose=0) as writer:
        for number in range(5):
            captions = {"caption": [f"one {number}", f"two {number}"]}
            writer.write({"__key__": f"sample{number}", "png": picture(number), "json": captions})
    split = shards.read(tmp_path)["train"]
    assert [split[IMAGE].values[number] for number in range(5)] == [picture(number) for number in range(5)]
    assert list(split[TEXT].values) == [f"{word} {number}" for number in range(5) for word in ("one", "two")]


@pytest.mark.parametrize(
    ("limits", "count"),
    [({"_MOST_SAMPLES": 4}, 3), ({"_MOST_BYTES": 5000}, 5), ({"_MOST_BYTES": 1}, 10), ({}, 1)],
)
def test_shards_are_bounded_in_samples_and_bytes_and_always_the_same(tmp_path, monkeypatch, limits, count):
    splits = {"train": split_of(0, [1] * 10)}
    for name, limit in limits.items():
        monkeypatch.setattr(shards, name, limit)
    shards.write(splits, tmp_path / "data", workers=3)
    shards.write(splits, tmp_path / "again")
    tars, again = (sorted((tmp_path / name / "train").iterdir()) for name in ("data", "again"))
    assert [tar.name for tar in tars] == [f"{number:06d}.tar" for number in range(count)]
    assert [tar.read_bytes() for tar in tars] == [tar.read_bytes() for tar in again]
    assert plain(shards.read(tmp_path / "data")) == plain(splits)
    if limits.get("_MOST_BYTES") == 5000:
        assert max(member.offset + member.size for tar in tars for member in shards.members(tar)[0]) <= 5000


def test_a_tar_that_ends_anywhere_keeps_the_samples_before_and_says_where(tmp_path):
    path = make_tar(tmp_path / "a.tar", numbered(4))
    whole, members = path.read_bytes(), shards.members(path)[0]
    last = members[-1].offset + 512
    for length in [1, *range(600, last, 777), *(member.offset - 512 for member in members), last]:
        path.write_bytes(whole[:length])
        found = [member.name for member in members if member.offset + member.size <= length]
        kept = sum(name.endswith(".txt") for name in found)
        problems = []
        if kept:
            split = shards.read(path, problems.append)["train"]
            assert [*split[IMAGE].values] == [picture(number) for number in range(kept)]
            assert split[TEXT].values == [f"caption {number}" for number in range(kept)]
        else:
            with pytest.raises(DataError, match="no sample with a picture and a caption"):
                shards.read(path, problems.append)
            assert problems.pop().fatal
        (problem,) = problems
        assert problem.file == path
        assert f"at byte {length}" in problem.what
        after = members[len(found)].name if len(found) < len(members) else ""
        assert (
            f"after {found[-1]}" if found else "after its beginning"
        ) in problem.what or f"within {after}" in problem.what
        with pytest.raises(DataError, match=r"a\.tar: ends early"):
            shards.read(path)
    path.write_bytes(whole)
    assert read(path)[1] == []


def test_a_damaged_header_is_named_with_its_place(tmp_path):
    path = make_tar(tmp_path / "a.tar", numbered(3))
    data = bytearray(path.read_bytes())
    header = shards.members(path)[0][2].offset - 512
    data[header : header + 8] = b"\xff" * 8
    path.write_bytes(data)
    split, problems = read(path)
    assert split.size == 1
    (problem,) = problems
    assert problem.startswith(f"a.tar: is damaged at byte {header}, after 0.txt. Copy or download it again")


@pytest.mark.parametrize("data", [b"", b"no tar" * 200, b"\x1f\x8b" + bytes(600)])
def test_what_is_no_tar_is_named(data, tmp_path):
    (tmp_path / "a.tar").write_bytes(data)
    make_tar(tmp_path / "b.tar", numbered(1))
    problems = []
    assert shards.read(tmp_path, problems.append)["train"].size == 1
    assert [problem.file.name for problem in problems] == ["a.tar"]


BAD_SAMPLES = {
    "no caption": ([("1.png", picture(1))], "a.tar/1: no caption. Expected a .txt, or a .json with 'caption'."),
    "empty caption": ([("1.png", picture(1)), ("1.txt", b"\n")], "a.tar/1: no caption."),
    "no picture": ([("1.txt", b"one")], "a.tar/1: no picture, only txt. Expected"),
    "not UTF-8": ([("1.png", picture(1)), ("1.txt", b"caf\xe9")], "a.tar/1: not UTF-8: the byte 0xe9 at place 4"),
    "JSON cut short": (
        [("1.png", picture(1)), ("1.json", b'{"caption": "on')],
        "a.tar/1: not a whole JSON object in 1.json",
    ),
    "JSON of a list": (
        [("1.png", picture(1)), ("1.json", b'["one"]')],
        "a.tar/1: expected a JSON object, {…}, in 1.json",
    ),
    "a key twice": ([("1.png", b"x"), ("1.png", b"y")], "a.tar/1: two members .png in one sample."),
    "a key again": ([("0.png", picture(1)), ("0.txt", b"one")], "a.tar/0: a second sample of this name in one tar."),
    "disagreement": (
        [("1.png", picture(1)), ("1.txt", b"one"), ("1.json", b'{"caption": "two"}')],
        "a.tar/1: the captions in .txt and in .json differ. Remove one of them.",
    ),
}


@pytest.mark.parametrize("name", BAD_SAMPLES)
def test_a_bad_sample_is_named_and_left_out(name, tmp_path):
    files, message = BAD_SAMPLES[name]
    path = make_tar(tmp_path / "a.tar", [*numbered(1).items(), ("9.png", picture(9)), ("9.txt", b"nine"), *files])
    split, problems = read(path)
    assert list(split[TEXT].values) == ["caption 0", "nine"]
    assert len(problems) == 1
    assert problems[0].startswith(message)
    with pytest.raises(DataError):
        shards.read(path)


def test_pictures_are_read_only_when_asked_for_in_any_order_and_by_any_process(tmp_path):
    path = make_tar(tmp_path / "a.tar", numbered(5))
    images = shards.read(path)["train"][IMAGE].values
    path.rename(tmp_path / "elsewhere.tar")
    with pytest.raises(FileNotFoundError):
        images[0]
    (tmp_path / "elsewhere.tar").rename(path)
    assert [images[number] for number in (3, 0, np.int64(2), -1)] == [picture(number) for number in (3, 0, 2, 4)]
    assert list(images[1:3]) == [picture(1), picture(2)]
    assert list(pickle.loads(pickle.dumps(images))) == [picture(number) for number in range(5)]


def test_a_tar_that_shrinks_after_it_was_opened_is_named(tmp_path):
    path = make_tar(tmp_path / "a.tar", numbered(2))
    images = shards.read(path)["train"][IMAGE].values
    path.write_bytes(path.read_bytes()[:600])
    with pytest.raises(DataError, match=r"a\.tar: 1\.png has 0 bytes in place of"):
        images[1]


def test_other_modalities_are_refused(tmp_path):
    split = split_of(0, [1])
    audio = Items([b"RIFF"], np.arange(1), ["a"])
    with pytest.raises(ValueError, match=r"webdataset holds image and text.*'table'"):
        shards.write({"train": Split({**split.items, "audio": audio})}, tmp_path / "data")
