"""Tables that are wrong: what is left out is named with its line, and what cannot be used is refused."""

import json

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from read_tables import pairs, read, written
from sample_splits import picture

from maxmatch.data.dataset import DataError
from maxmatch.data.formats import tables

LATIN1 = "b.jpg,caf\xe9\n".encode("latin-1")

BAD_LINES = {
    "not UTF-8": (b"image,caption\na.jpg,one\n" + LATIN1, "c.csv:3: not UTF-8: the byte 0xe9 at place 10"),
    "not UTF-8 in quotes": (
        b'image,caption\na.jpg,one\nb.jpg,"x\n\xff"\n',
        "c.csv:4: not UTF-8: the byte 0xff at place 1 of the line",
    ),
    "empty caption": (
        b"image,caption\na.jpg,one\nb.jpg,\n",
        "c.csv:3: an empty caption. Write one, or remove the row.",
    ),
    "blank caption": (b"image,caption\na.jpg,one\nb.jpg,  \n", "c.csv:3: an empty caption."),
    "empty line": (b"image,caption\n\na.jpg,one\n", "c.csv:2: an empty line. Remove it."),
    "no image": (b"image,caption\na.jpg,one\n,two\n", "c.csv:3: expected the path of a file, found ''."),
    "too many": (
        b"image,caption\na.jpg,one\nb.jpg,two,three\n",
        "c.csv:3: 3 fields, where the first line has 2. Quote",
    ),
    "too few": (b"image,caption\na.jpg,one\nb.jpg\n", "c.csv:3: 1 fields, where the first line has 2."),
    "up": (b"image,caption\na.jpg,one\nx/../../b.jpg,two\n", "c.csv:3: 'x/../../b.jpg' leaves the folder"),
    "up as on Windows": (b"image,caption\na.jpg,one\n..\\b.jpg,two\n", "leaves the folder"),
    "absolute": (b"image,caption\na.jpg,one\n/etc/b.jpg,two\n", "c.csv:3: '/etc/b.jpg' leaves the folder"),
    "a drive": (b"image,caption\na.jpg,one\nC:\\b.jpg,two\n", "leaves the folder"),
    "an address": (
        b"image,caption\na.jpg,one\nhttp://x.org/b.jpg,two\n",
        "c.csv:3: 'http://x.org/b.jpg' is an address",
    ),
    "twice": (b"image,caption\na.jpg,one\na.jpg,one\n", "c.csv:3: the same image and caption as in line 2. Remove"),
    "open quote": (
        b'image,caption\nb.jpg,"two\na.jpg,one\n',
        "c.csv:2: a quote is left open, or stands within a field",
    ),
    "quote within": (
        b'image,caption\nb.jpg,"two" dogs\na.jpg,one\n',
        "c.csv:2: a quote is left open, or stands within",
    ),
    "no split": (b"image,caption,split\na.jpg,one,train\nb.jpg,two,\n", "c.csv:3: the column 'split' holds nothing."),
    "an id of two": (
        b"image,caption,image_id\na.jpg,one,1\nb.jpg,two,1\n",
        "c.csv:3: the id '1' is that of another item in line 2. Give each its own.",
    ),
    "two ids": (
        b"image,caption,image_id\na.jpg,one,1\na.jpg,two,2\n",
        "c.csv:3: the id '2' of what had the id '1' in line 2. Give it one id.",
    ),
    "a caption's id of two": (
        b"image,caption,caption_id\na.jpg,one,1\na.jpg,two,1\n",
        "c.csv:3: the id '1' is that of another caption in line 2. Give each its own.",
    ),
}


@pytest.mark.parametrize("name", BAD_LINES)
def test_a_bad_line_of_csv_is_named_and_left_out(name, tmp_path):
    data, message = BAD_LINES[name]
    path = written(tmp_path, "c.csv", data)
    splits, problems = read(path)
    assert pairs(splits["train"]) == [("a.jpg", "one")]
    assert len(problems) == 1
    assert message in problems[0]
    with pytest.raises(DataError, match=r"c\.csv:\d: "):
        tables.read(path)


def test_lines_are_counted_through_line_breaks_in_quotes_and_after_broken_records(tmp_path):
    rows = 'image,caption\na.jpg,"one\nand\r\nmore"\nb.jpg,\nc.jpg,"open\nd.jpg,"four"\ne.jpg,\n'
    splits, problems = read(written(tmp_path, "c.csv", rows))
    assert pairs(splits["train"]) == [("a.jpg", "one\nand\r\nmore"), ("d.jpg", "four")]
    assert sorted(problem.split(": ")[0] for problem in problems) == ["c.csv:5", "c.csv:6", "c.csv:8"]


def line(**cells: object) -> str:
    return json.dumps(cells) + "\n"


GOOD = line(image="a.jpg", caption="one")

BAD_OBJECTS = {
    "cut short": (GOOD + line(image="b.jpg", caption="two")[:-9], "c.jsonl:2: not a whole JSON object ("),
    "no object": (GOOD + '["b.jpg", "two"]\n', 'c.jsonl:2: expected a JSON object, {…}, found ["b.jpg", "two"].'),
    "empty line": (GOOD + "\n" + GOOD.replace("a.jpg", "a.jpg "), "c.jsonl:2: an empty line."),
    "too deep": (GOOD + '{"image": ' + "[" * 100_000 + "\n", "c.jsonl:2: not a whole JSON object ("),
    "no image": (GOOD + line(caption="two"), "c.jsonl:2: expected the path of a file, found None."),
    "a list of images": (
        GOOD + line(image=["b.jpg"], caption="two"),
        "c.jsonl:2: expected the path of a file, found [",
    ),
    "no caption": (GOOD + line(image="b.jpg"), "c.jsonl:2: the column 'caption' holds nothing, not a text."),
    "a number": (GOOD + line(image="b.jpg", caption=5), "c.jsonl:2: the column 'caption' holds 5, not a text."),
    "no captions": (GOOD + line(image="b.jpg", caption=[]), "c.jsonl:2: nothing usable in the column 'caption'."),
    "an empty one": (line(image="a.jpg", caption=["one", ""]), "c.jsonl:1: an empty caption."),
    "half a letter": (GOOD + '{"image": "b.jpg", "caption": "\\ud83d"}\n', "c.jsonl:2: not a text that UTF-8 can hold"),
    "too few ids": (
        GOOD + line(image="b.jpg", caption=["two", "three"], caption_id=[1]),
        "c.jsonl:2: the column 'caption_id' holds no list of 2, one for each item.",
    ),
}


@pytest.mark.parametrize("name", BAD_OBJECTS)
def test_a_bad_line_of_json_is_named_and_left_out(name, tmp_path):
    data, message = BAD_OBJECTS[name]
    splits, problems = read(written(tmp_path, "c.jsonl", data))
    assert ("a.jpg", "one") in pairs(splits["train"])
    assert "b.jpg" not in str(pairs(splits["train"]))
    assert len(problems) == 1
    assert problems[0].startswith(message)


def test_bytes_that_are_not_utf8_in_json_lines_are_named(tmp_path):
    _, problems = read(written(tmp_path, "c.jsonl", GOOD.encode() + b'{"image": "b.jpg", "caption": "caf\xe9"}\n'))
    assert len(problems) == 1
    assert problems[0].startswith("c.jsonl:2: not UTF-8: the byte 0xe9 at place 35 of the line.")


FATAL = {
    "a missing column": (
        "c.csv",
        b"picture,caption\na.jpg,one\n",
        r"c.csv: expected .*file_name.*; found picture, caption",
    ),
    "no header": ("c.csv", b"a.jpg,one\nb.jpg,two\n", r"c.csv: expected the columns .*; found a.jpg, one"),
    "an empty file": ("c.csv", b"", r"c.csv: no row that can be read"),
    "names alone": ("c.csv", b"image,caption\n", r"c.csv: no row that can be read"),
    "a column twice": ("c.csv", b"image,caption,caption\na.jpg,one,two\n", r"c.csv:1: the columns caption come twice"),
    "UTF-16": ("c.csv", "image,caption\na.jpg,one\n".encode("utf-16"), r"c.csv:1: the text is UTF-16, expected UTF-8"),
    "no good row": ("c.csv", b"image,caption\n../a.jpg,one\n", r"no row of it can be used"),
    "a missing key": ("c.jsonl", b'{"caption": "one", "url": "x"}\n', r"c.jsonl: expected .*; found caption, url"),
    "no Parquet": ("c.parquet", b"PAR1 and no more", r"c.parquet: not a readable Parquet file"),
}


@pytest.mark.parametrize("name", FATAL)
def test_a_table_that_cannot_be_used_is_refused_however_lenient_the_report(name, tmp_path):
    file, data, message = FATAL[name]
    path = written(tmp_path, file, data)
    problems = []
    with pytest.raises(DataError, match=message) as refusal:
        tables.read(path, problems.append)
    assert problems[-1] == refusal.value.problem
    assert problems[-1].fatal


def test_parquet_cut_short_is_refused(tmp_path):
    path = tmp_path / "c.parquet"
    parquet.write_table(pa.table({"image": ["a.jpg"] * 50, "caption": [str(n) for n in range(50)]}), path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"c\.parquet: not a readable Parquet file .*copy or write it again"):
        tables.read(path)


def test_a_bad_row_of_parquet_is_counted_from_one(tmp_path):
    path = tmp_path / "c.parquet"
    parquet.write_table(pa.table({"image": ["a.jpg", "b.jpg"], "caption": [["one"], None]}), path)
    splits, problems = read(path)
    assert pairs(splits["train"]) == [("a.jpg", "one")]
    assert problems == [
        "c.parquet:2: the column 'caption' holds nothing, not a text. Write a caption there, or remove it."
    ]


def test_pictures_within_parquet_are_pointed_to_hugging_face(tmp_path):
    table = pa.table({"image": [{"bytes": picture(0), "path": None}], "caption": ["one"]})
    parquet.write_table(table, tmp_path / "c.parquet")
    with pytest.raises(DataError, match=r"'image' holds struct<.*huggingface\.from_loaded"):
        tables.read(tmp_path)


@pytest.mark.parametrize("names", [("captions.csv", "captions.jsonl"), ("train.csv", "train.jsonl")])
def test_two_tables_that_disagree_are_refused_and_both_named(names, tmp_path):
    written(tmp_path, names[0], "image,caption\na.jpg,one\n")
    written(tmp_path, names[1], GOOD)
    assert pairs(tables.read(tmp_path)["train"]) == [("a.jpg", "one")]
    written(tmp_path, names[1], GOOD.replace("one", "two"))
    with pytest.raises(DataError, match=rf"{names[0]}: holds other captions than {names[1]} beside it. Remove one"):
        tables.read(tmp_path, lambda problem: None)


@pytest.mark.parametrize("name", ["nowhere", "nowhere.csv", "."])
def test_a_missing_table_is_reported(name, tmp_path):
    assert not tables.recognises(tmp_path / name)
    with pytest.raises(DataError, match=r"no table there\. Expected a file that ends in \.csv"):
        tables.read(tmp_path / name)


def test_a_table_of_something_else_beside_the_captions_is_passed_over(tmp_path):
    written(tmp_path, "a_prices.csv", "product,price\nrice,3\n")
    written(tmp_path, "captions.csv", "image,caption\na.jpg,one\n")
    assert pairs(tables.read(tmp_path)["train"]) == [("a.jpg", "one")]


def test_a_split_in_two_files_is_refused(tmp_path):
    written(tmp_path, "train.csv", "image,caption,split\na.jpg,one,train\nb.jpg,two,val\n")
    written(tmp_path, "val.csv", "image,caption\nc.jpg,three\n")
    with pytest.raises(DataError, match=r"holds rows of the split 'val', which has a table of its own"):
        tables.read(tmp_path)
