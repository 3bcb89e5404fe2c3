"""Captions and ids by line: what is wrong is named, and the lines after it keep their images."""

import numpy as np
import pytest
from made_data import captions, features
from precomp_folders import per_image, put, same_rows

from maxmatch.data.dataset import IMAGE, TEXT, DataError
from maxmatch.data.formats import precomp


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
    problems = []
    part = precomp.read(tmp_path, problems.append)["train"]
    assert part[IMAGE].ids == ["train_0", "train_1"]
    assert part[TEXT].ids == [f"train_{n}" for n in range(6)]
    assert len(problems) == 1
    assert "made from the numbers of rows and lines" in problems[0].cure


def test_ids_that_contradict_the_rows_are_reported_with_their_line(tmp_path):
    put(tmp_path, "train", np.repeat(features(2), [2, 1], axis=0), captions(3), ["a", "b", "b"])
    with pytest.raises(DataError, match=r"train_ids\.txt:3: the id 'b' of the line before, but another row"):
        precomp.read(tmp_path)
    assert per_image(precomp.read(tmp_path, lambda problem: None)["train"]) == [2, 1]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_line_ends_byte_order_mark_and_the_last_newline_make_no_difference(tmp_path, end, mark):
    put(tmp_path, "train", features(2), captions(6), end=end)
    file = tmp_path / "train_caps.txt"
    file.write_bytes(mark + file.read_bytes().removesuffix(end.encode()))
    assert precomp.read(tmp_path)["train"][TEXT].values == captions(6)


def test_a_line_that_is_not_utf_8_is_named_and_those_after_it_keep_their_images(tmp_path):
    put(tmp_path, "train", features(2), captions(6))
    lines = (tmp_path / "train_caps.txt").read_bytes().split(b"\n")
    lines[2] = b"caf\xe9"
    (tmp_path / "train_caps.txt").write_bytes(b"\n".join(lines))
    with pytest.raises(DataError, match=r"train_caps\.txt:3: not UTF-8"):
        precomp.read(tmp_path)
    part = precomp.read(tmp_path, lambda problem: None)["train"]
    assert part[TEXT].values == [text for n, text in enumerate(captions(6)) if n != 2]
    assert part[TEXT].groups.tolist() == [0, 0, 1, 1, 1]
    assert part[TEXT].ids == [f"train_{n}" for n in (0, 1, 3, 4, 5)]


def test_an_empty_line_is_named_and_those_after_it_keep_their_images(tmp_path):
    texts = captions(6)
    texts[1] = texts[4] = "  "
    put(tmp_path, "train", features(2), texts)
    with pytest.raises(DataError, match=r"train_caps\.txt:2: the line is empty.*Do not delete the line"):
        precomp.read(tmp_path)
    problems = []
    part = precomp.read(tmp_path, problems.append)["train"]
    assert [problem.line for problem in problems] == [2, 5]
    assert part[TEXT].values == [captions(6)[n] for n in (0, 2, 3, 5)]
    assert part[TEXT].groups.tolist() == [0, 0, 1, 1]


def test_an_image_that_loses_all_its_captions_is_named_and_left_out(tmp_path):
    texts = captions(6)
    texts[2] = texts[3] = ""
    array = features(3)
    put(tmp_path, "train", array, texts, ["a", "b", "c"])
    problems = []
    part = precomp.read(tmp_path, problems.append)["train"]
    assert str(problems[-1]).startswith(f"{tmp_path / 'train_ims.npy'}:2: no caption of this row can be used")
    assert part[IMAGE].ids == ["a", "c"]
    assert part[TEXT].groups.tolist() == [0, 0, 1, 1]
    assert same_rows(part, array[[0, 2]])
    put(tmp_path, "train", array, [""] * 3)
    with pytest.raises(DataError, match="no caption can be used"):
        precomp.read(tmp_path, lambda problem: None)


def test_empty_lines_at_the_end_that_no_row_is_meant_for_are_no_captions(tmp_path):
    put(tmp_path, "train", features(2), [*captions(6), "", ""][:7])
    assert precomp.read(tmp_path)["train"][TEXT].values == captions(6)
    put(tmp_path, "train", features(2), [*captions(5), ""])  # here a row is meant for it
    with pytest.raises(DataError, match=r"train_caps\.txt:6: the line is empty"):
        precomp.read(tmp_path)


@pytest.mark.parametrize("count", [0, 1, 19, 21])
def test_captions_that_are_no_multiple_of_the_rows_name_both_files_and_the_cure(tmp_path, count):
    put(tmp_path, "train", features(4), captions(count))
    with pytest.raises(
        DataError, match=rf"train_caps\.txt: {count} captions for the 4 rows of train_ims\.npy"
    ) as caught:
        precomp.read(tmp_path, lambda problem: None)
    assert caught.value.problem.fatal
    assert "fetch both files again" in caught.value.problem.cure
