"""What `maxmatch data check` counts and finds. Bad data of every kind is in tests/cli/test_data.py."""

import json
import shutil
from contextlib import contextmanager

import numpy as np
import pytest
from bad_data import BAD, pictures, table
from made_data import features, mapped, ragged_rows, split
from PIL import Image
from sample_splits import picture, sample_splits, split_of

from maxmatch.data.check import DataFinding, Spread, bad_rows, check
from maxmatch.data.dataset import IMAGE, TEXT, Items, Problem, Rows, Split
from maxmatch.data.formats import huggingface, imagefolder, karpathy, precomp, stored, tables, webdataset

WRITERS = {
    "table": tables.write,
    "imagefolder": imagefolder.write,
    "webdataset": webdataset.write,
    "huggingface": huggingface.write,
}


def found(report, level=None):
    return [finding.problem for finding in report.findings if level in (None, finding.level)]


@pytest.mark.parametrize("name", WRITERS)
def test_good_data_is_counted_in_every_format(name, tmp_path):
    WRITERS[name](sample_splits(), tmp_path / "data")
    report = check(tmp_path / "data")
    assert (report.format, report.usable, report.findings) == (name, True, [])
    counts = {name: (split.groups, dict(split.items)) for name, split in report.splits.items()}
    assert counts == {
        "train": (4, {"image": 4, "text": 11}),
        "val": (2, {"image": 2, "text": 2}),
        "test_b": (1, {"image": 1, "text": 5}),
    }
    each = report.splits["train"].captions_per_image
    assert (each.least, each.mean, each.most) == (1, 11 / 4, 5)
    assert report.pictures.count == 7
    assert report.pictures.kinds == {"JPEG": 4, "PNG": 3}
    assert report.pictures.decoded
    assert report.pictures.bytes == sum(len(one) for part in sample_splits().values() for one in part[IMAGE].values)


def test_avif_pictures_are_read_and_where_they_cannot_be_that_is_said(tmp_path, without_avif):
    (tmp_path / "a.avif").write_bytes(picture(0, "avif"))
    assert check(tmp_path).pictures.kinds == {"AVIF": 1}
    with without_avif():
        [finding] = check(tmp_path).findings
        assert finding.level == "error"
        assert all(word in finding.problem.what for word in ("AVIF", "Pillow>=11.3"))


def test_words_are_counted_as_the_tokenizer_divides_them(tmp_path):
    rows = b"image,caption\n" + b"".join(b"a.png,A dog's hat %d\n" % n for n in range(4)) + b"b.png,a CAT.\n"
    report = check(table(rows)(tmp_path))
    assert report.vocabulary.split == "train"
    words = {"a", "dog", "'s", "hat", "0", "1", "2", "3", "cat", "."}
    assert report.vocabulary.words == len(words)
    assert report.vocabulary.frequent == len({"a", "dog", "'s", "hat"})
    assert report.vocabulary.longest == 5


def test_sizes_of_pictures(tmp_path):
    for number, size in enumerate([(4, 9), (10, 3), (6, 7)]):
        Image.new("RGB", size, (number, 0, 0)).save(tmp_path / f"{number}.png")
    report = check(tmp_path)
    assert report.format == "folder"
    assert report.pictures.widths == Spread(4.0, 6.0, 10.0, 20 / 3)
    assert report.pictures.heights == Spread(3.0, 7.0, 9.0, 19 / 3)
    assert report.vocabulary is None


def test_a_picture_that_is_there_twice_is_a_note_and_in_two_splits_a_warning(tmp_path):
    pictures(tmp_path, "a.png", "b.png", "c.png")
    shutil.copy(tmp_path / "a.png", tmp_path / "d.png")
    shutil.copy(tmp_path / "b.png", tmp_path / "e.png")
    rows = "image,caption,split\na.png,1,train\nb.png,2,train\nc.png,3,train\nd.png,4,train\ne.png,5,test\n"
    (tmp_path / "captions.csv").write_text(rows)
    report = check(tmp_path)
    assert report.usable
    [note], [warning] = found(report, "note"), found(report, "warning")
    assert (note.file.name, note.what) == ("d.png", "the same picture as 'a.png' of the split 'train'")
    assert warning.file.name == "e.png"
    assert warning.what == "the same picture as 'b.png' of the split 'train', here in the split 'test'"


def test_an_image_in_two_splits_is_a_leak_and_an_id_alone_is_not(tmp_path):
    pictures(tmp_path)
    rows = "image,caption,split\na.png,one,train\nb.png,two,train\nb.png,three,test\nc.png,four,test\n"
    (tmp_path / "captions.csv").write_text(rows)
    assert "image 'b.png' is in the split 'train' and in 'test'" in [p.what for p in found(check(tmp_path), "warning")]
    precomp.write(
        {
            "train": split(features(2), 1),
            "test": split(features(2, seed=1), 1),
            "testall": split(features(2, seed=1), 1),
        },
        tmp_path / "numbers",
    )
    report = check(tmp_path / "numbers")
    assert [finding.level for finding in report.findings] == ["note", "note"]
    assert "2 images of the split 'train' have ids of others in 'test', such as '0'" in found(report)[0].what
    precomp.write({"train": split(features(2), 1), "val": split(features(2), 1)}, tmp_path / "leak")
    assert len(found(check(tmp_path / "leak"), "warning")) == 2


def test_captions_that_come_twice_or_are_longer_than_a_model_reads_are_notes(tmp_path):
    words = ["A dog.", "a  dog .", "a dog.", "a cat.", "dog " * 126, "dog " * 127]
    texts = Items(words, np.array([0, 0, 1, 1, 1, 1]), list("123456"))
    images = Items([picture(0), picture(1)], np.arange(2), ["a", "b"])
    tables.write({"train": Split({IMAGE: images, TEXT: texts})}, tmp_path / "data")
    report = check(tmp_path / "data")
    twice, long = found(report, "note")
    assert twice.what == "caption '2' of the split 'train' reads as '1' of the same image: 'a  dog .'"
    assert long.what.startswith("caption '6' of the split 'train' has 127 words: 'dog dog")
    assert report.usable


def test_all_pictures_missing_is_one_error_with_the_option_that_cures_it(tmp_path):
    karpathy.write({"train": split_of(0, [1, 2, 1], metadata=False)}, tmp_path / "data")
    (tmp_path / "data" / "images").rename(tmp_path / "photos")
    report = check(tmp_path / "data")
    [error] = found(report, "error")
    assert "not one of the 3 pictures is there" in error.what
    assert "--images DIR" in error.cure
    assert check(tmp_path / "data", images=tmp_path / "photos").usable
    assert check(tmp_path / "data", pictures=False).usable


def test_quick_opens_pictures_without_decoding_them_and_does_not_read_features(tmp_path):
    path = BAD["cut picture"].make(tmp_path / "pictures")
    assert check(path, quick=True).usable
    assert not check(path, quick=True).pictures.decoded
    (path / "images" / "COCO_001.png").write_bytes(b"no picture")
    assert not check(path, quick=True).usable
    (path / "images" / "COCO_001.png").unlink()
    assert not check(path, quick=True).usable
    (tmp_path / "features").mkdir()
    report = check(BAD["nan, precomp"].make(tmp_path / "features"), quick=True)
    assert report.usable
    assert not report.features["train"].scanned


@pytest.mark.parametrize("ragged", [False, True])
def test_shape_and_type_of_features(tmp_path, ragged):
    values = [features(1, 1 + n if ragged else 3, 5, dtype="float16")[0] for n in range(4)]
    stored.write({"train": split(values, 2)}, tmp_path / "store")
    about = check(tmp_path / "store").features["train"]
    assert (about.width, about.dtype, about.scanned) == (5, "float16", True)
    assert (about.per_image.least, about.per_image.most) == ((1, 4) if ragged else (3, 3))


def test_an_unfinished_store_and_what_is_no_data_set_are_errors_and_not_exceptions(tmp_path):
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "features.journal").write_bytes(b"")
    [error] = found(check(tmp_path / "store"))
    assert "unfinished" in error.what
    assert "resumes" in error.cure
    for path in (tmp_path, tmp_path / "nowhere"):
        report = check(path)
        assert (report.format, report.usable, len(report.findings)) == (None, False, 1)


def test_all_captions_are_counted_and_an_option_of_another_format_is_refused(tmp_path):
    karpathy.write({"train": split_of(0, [7, 2], metadata=False)}, tmp_path / "data")
    assert check(tmp_path / "data").splits["train"].items == {"image": 2, "text": 9}
    with pytest.raises(ValueError, match="images: data in the format 'folder' takes no such option"):
        check(tmp_path / "data", "folder", images=tmp_path)


def test_problems_that_differ_in_names_and_numbers_are_of_one_kind(tmp_path):
    kinds = {
        DataFinding("note", Problem(tmp_path, what, "Mend it.")).kind
        for what in (
            "image 'a.png' of the split 'train': 5 words (cut, at 7)",
            "image \"a's.png\" of the split 'val': 1,234 words (open)",
        )
    }
    assert len(kinds) == 1


def test_the_report_as_json(tmp_path):
    report = check(BAD["missing"].make(tmp_path))
    said = json.loads(json.dumps(report.as_json()))
    assert said["usable"] is False
    assert said["splits"]["train"]["items"] == {"image": 3, "text": 4}
    [finding] = said["findings"]
    assert finding["level"] == "error"
    assert finding["file"].endswith("COCO_001.png")
    assert finding.keys() == {"level", "kind", "file", "line", "what", "cure"}


def test_progress_counts_every_picture(tmp_path):
    seen = []

    @contextmanager
    def bar(what, total):
        counted = []
        yield counted.append
        seen.append((what, total, sum(counted)))

    imagefolder.write(sample_splits(), tmp_path / "data")
    check(tmp_path / "data", bar=bar)
    check(BAD["zeros"].make(tmp_path), bar=bar)
    assert seen == [("pictures", 7, 7), ("features", 3, 3)]


@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8", ">f4"])
@pytest.mark.parametrize("chunk", [1, 300, 10**9])
def test_bad_rows_are_those_that_numpy_finds(tmp_path, dtype, chunk):
    array = features(40, 3, 5).astype(dtype)
    array[3, 1, 2], array[10, 0, 0], array[11, 2], array[20], array[30, :2] = np.nan, np.inf, -np.inf, 0, 0
    array[39] = -0.0
    expected = {
        n: "zero" if not row.any() else f"{(~np.isfinite(row)).any(axis=1).sum()} of 3"
        for n, row in enumerate(array)
        if not row.any() or not np.isfinite(row).all()
    }
    assert set(expected) == {3, 10, 11, 20, 39}
    numbers = np.random.default_rng(0).permutation(40)
    flat = mapped(tmp_path / "flat", array.reshape(-1, 5))
    for rows in (Rows(mapped(tmp_path, array), numbers), Rows(array, numbers), ragged_rows(flat, [3] * 40, numbers)):
        found = dict(bad_rows(rows, chunk))
        assert list(found) == sorted(expected)
        assert all(expected[n] in what for n, what in found.items())


def test_padding_is_not_taken_for_zeros():
    array = np.ones((6, 4), np.float32)
    array[4:] = 0
    assert list(bad_rows(ragged_rows(array, [1, 3, 2], [0, 1, 2]))) == [(2, "all values are zero")]
    array[5, 0] = np.nan
    [(number, what)] = bad_rows(ragged_rows(array, [1, 3, 2], [0, 1, 2]))
    assert (number, "1 of 2" in what) == (2, True)
