"""Tables and image folders: columns, groups, metadata; what is left out is named with its line."""

import json
import tempfile
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_splits import picture, plain, sample_splits

from maxmatch.data.dataset import IMAGE, TEXT, DataError, Items, Split
from maxmatch.data.formats import imagefolder, tables


def written(folder: Path, name: str, data: str | bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def read(path: Path, **options: object) -> tuple[dict[str, Split], list[str]]:
    """What is read in spite of problems, and the problems, less the folder's name."""
    problems = []
    folder = path if path.is_dir() else path.parent
    splits = tables.read(path, problems.append, **options)
    return splits, [str(problem).replace(f"{folder}/", "") for problem in problems]


def pairs(split: Split) -> list[tuple[str, str]]:
    """Each caption with the name of its image."""
    names = [path.name for path in split[IMAGE].values]
    return [(names[group], text) for group, text in zip(split[TEXT].groups, split[TEXT].values, strict=True)]


def test_rows_of_an_image_are_one_group_in_order_of_first_appearance(tmp_path):
    path = written(tmp_path, "c.csv", "image,caption\nb.jpg,one\na.jpg,two\nb.jpg,three\n")
    split = tables.read(path)["train"]
    assert split[IMAGE].values == [tmp_path / "b.jpg", tmp_path / "a.jpg"]
    assert list(split[TEXT].values) == ["one", "three", "two"]
    assert split[TEXT].groups.tolist() == [0, 0, 1]
    assert list(split[IMAGE].ids) == ["b.jpg", "a.jpg"]
    assert list(split[TEXT].ids) == ["b.jpg#0", "b.jpg#1", "a.jpg#0"]
    assert split[IMAGE].metadata is None


def test_columns_have_many_names(tmp_path):
    images = ["image", "file_name", "FileName", "filepath", " path ", "image"]
    captions = ["caption", "Captions", "text", "texts", "sentence", "sentences"]
    for image, caption in zip(images, captions, strict=True):
        path = written(tmp_path, "c.tsv", f"{caption}\t{image}\na dog\ta.jpg\n")
        assert pairs(tables.read(path)["train"]) == [("a.jpg", "a dog")]


def test_a_list_is_several_captions(tmp_path):
    path = written(tmp_path, "c.jsonl", '{"image": "a.jpg", "captions": ["one", "two"], "caption_id": [7, 8]}\n')
    split = tables.read(path)["train"]
    assert pairs(split) == [("a.jpg", "one"), ("a.jpg", "two")]
    assert list(split[TEXT].ids) == ["7", "8"]


def test_splits_by_column_and_by_file_are_spelled_alike(tmp_path):
    rows = "image,caption,split\na.jpg,one,train\nb.jpg,two,Validation\nc.jpg,three,test\n"
    one = tables.read(written(tmp_path / "one", "c.csv", rows))
    for name, row in (("train.csv", "a.jpg,one"), ("dev.csv", "b.jpg,two"), ("test.csv", "c.jpg,three")):
        written(tmp_path / "three", name, f"image,caption\n{row}\n")
    three = tables.read(tmp_path / "three")
    assert list(one) == ["train", "val", "test"]
    assert {name: pairs(split) for name, split in one.items()} == {name: pairs(split) for name, split in three.items()}


def test_parts_of_a_split_are_joined(tmp_path):
    for number, name in enumerate("ab"):
        table = pa.table({"image": [f"{name}.jpg"], "caption": [name], "split": ["train"]})
        parquet.write_table(table, tmp_path / f"train-{number:05d}-of-00002.parquet")
    assert pairs(tables.read(tmp_path)["train"]) == [("a.jpg", "a"), ("b.jpg", "b")]


def test_other_columns_are_metadata_of_the_image_unless_they_vary_within_one(tmp_path):
    rows = "image,caption,licence,rank\na.jpg,one,3,0\na.jpg,two,3,1\nb.jpg,three,by,0\n"
    split = tables.read(written(tmp_path, "c.csv", rows))["train"]
    assert split[IMAGE].metadata == [{"licence": 3}, {"licence": "by"}]
    assert split[TEXT].metadata == [{"rank": 0}, {"rank": 1}, {"rank": 0}]


def test_a_cell_that_json_would_write_otherwise_is_a_text(tmp_path):
    for cell in ("007", "1e5", "1.50", "NaN", "-Infinity", "-", "yes", "[1,2]", "0x1", "1_000"):
        split = tables.read(written(tmp_path, "c.tsv", f"image\tcaption\tnote\na.jpg\ta dog\t{cell}\n"))["train"]
        assert split[IMAGE].metadata == [{"note": cell}]


def test_a_column_id_is_the_images_or_the_captions(tmp_path):
    rows = "id,image,caption\n1,a.jpg,one\n1,a.jpg,two\n2,b.jpg,three\n"
    split = tables.read(written(tmp_path, "c.csv", rows))["train"]
    assert (split[IMAGE].ids, split[TEXT].ids) == (["1", "2"], ["1#0", "1#1", "2#0"])
    rows = "id,image,caption\n1,a.jpg,one\n2,a.jpg,two\n3,b.jpg,three\n"
    split = tables.read(written(tmp_path, "c.csv", rows))["train"]
    assert (split[IMAGE].ids, split[TEXT].ids) == (["a.jpg", "b.jpg"], ["1", "2", "3"])


def test_a_group_joins_images(tmp_path):
    rows = "image,caption,group\na.jpg,one,x\nb.jpg,two,x\nc.jpg,three,y\n"
    split = tables.read(written(tmp_path, "c.csv", rows))["train"]
    assert (split[IMAGE].groups.tolist(), split[TEXT].groups.tolist()) == ([0, 0, 1], [0, 0, 1])
    _, problems = read(written(tmp_path, "c.csv", rows + "a.jpg,four,y\n"))
    assert problems == ["c.csv:5: 'a.jpg' belongs to another group in line 2. Put it into one of them."]


def test_another_modality_is_a_column_of_files(tmp_path):
    rows = "image,caption,sound\na.jpg,one,a.wav\na.jpg,two,b.wav\nb.jpg,three,c.wav\n"
    path = written(tmp_path, "c.csv", rows)
    split = tables.read(path, modalities={"audio": "sound"})["train"]
    assert split["audio"].values == [tmp_path / "a.wav", tmp_path / "b.wav", tmp_path / "c.wav"]
    assert split["audio"].groups.tolist() == [0, 0, 1]
    for name in ("a.jpg", "b.jpg", "a.wav", "b.wav", "c.wav"):
        written(tmp_path, name, name)
    tables.write({"train": split}, tmp_path / "copy")
    again = tables.read(tmp_path / "copy", modalities={"audio": "audio"})
    assert plain(again) == plain({"train": split})
    with pytest.raises(DataError, match="and speech; found image, caption, sound"):
        tables.read(path, modalities={"audio": "speech"})


def test_a_column_called_something_else_can_be_named(tmp_path):
    path = written(tmp_path, "c.csv", "photo,caption\na.jpg,one\n")
    assert pairs(tables.read(path, modalities={"image": "photo"})["train"]) == [("a.jpg", "one")]


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_windows_line_ends_and_a_byte_order_mark_change_nothing(kind, tmp_path):
    rows = {"csv": "image,caption\na.jpg,one\nb.jpg,two\n", "jsonl": '{"image": "a.jpg", "caption": "one"}\n'}[kind]
    odd = b"\xef\xbb\xbf" + rows.replace("\n", "\r\n").encode() + b"\r\n\r\n"
    expected, found = (
        tables.read(written(tmp_path / name, f"c.{kind}", data))["train"] for name, data in (("a", rows), ("b", odd))
    )
    assert pairs(found) == pairs(expected)


def test_a_path_may_wander_within_the_folder(tmp_path):
    path = written(tmp_path, "c.csv", "image,caption\n./x/../a.jpg,one\na.jpg,two\n")
    split = tables.read(path)["train"]
    assert split[IMAGE].values == [tmp_path / "a.jpg"]
    assert len(split[TEXT]) == 2


def test_pictures_keep_their_names_where_these_are_safe_and_unique(tmp_path):
    ids = ["images/Dog.JPG", "dog.png", "../etc/passwd", "犬.jpg", "a b", "a/b/dog"]
    images = Items([picture(number) for number in range(6)], np.arange(6), ids)
    texts = Items([str(number) for number in range(6)], np.arange(6), [str(number) for number in range(6)])
    tables.write({"train": Split({IMAGE: images, TEXT: texts})}, tmp_path / "data")
    split = tables.read(tmp_path / "data")["train"]
    names = [path.relative_to(tmp_path / "data" / "images").as_posix() for path in split[IMAGE].values]
    assert names == ["Dog.png", "dog-2.png", "passwd.png", "item.png", "a-b.png", "dog-3.png"]
    assert split[IMAGE].ids == ids


def test_an_unknown_kind_is_refused(tmp_path, without_shape_checks):
    with pytest.raises(ValueError, match="kind: expected one of csv, tsv, jsonl, parquet, got 'xlsx'"):
        tables.write({}, tmp_path / "data", kind="xlsx")


captions = st.lists(st.text(st.characters(codec="utf-8")).filter(lambda text: text.strip()), min_size=1, max_size=4)
values = st.recursive(
    st.text(st.characters(codec="utf-8"), max_size=5) | st.integers(-(2**60), 2**60) | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=2),
    max_leaves=4,
)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@given(groups=st.lists(captions, min_size=1, max_size=4), known=values)
def test_any_caption_and_any_metadata_survive(kind, groups, known):
    known = json.dumps(known) if kind == "parquet" else known  # which has one type a column
    count = len(groups)
    images = Items([b"GIF8"] * count, np.arange(count), [str(n) for n in range(count)], [{"known": known}] * count)
    texts = [caption for captions in groups for caption in captions]
    numbers = np.repeat(np.arange(count), [len(captions) for captions in groups])
    ids = [f'"{number}",' for number in range(len(texts))]
    splits = {"train": Split({IMAGE: images, TEXT: Items(texts, numbers, ids)})}
    with tempfile.TemporaryDirectory() as folder:
        tables.write(splits, Path(folder) / "data", kind=kind)
        assert plain(tables.read(Path(folder) / "data")) == plain(splits)


# Tables that are wrong.

LATIN1 = "b.jpg,caf\xe9\n".encode("latin-1")

BAD_LINES = {
    "not UTF-8": (b"image,caption\na.jpg,one\n" + LATIN1, "c.csv:3: not UTF-8: the byte 0xe9 at place 10"),
    "not UTF-8 in quotes": (b'image,caption\na.jpg,one\nb.jpg,"x\n\xff"\n', "c.csv:4: not UTF-8: the byte 0xff at"),
    "empty caption": (b"image,caption\na.jpg,one\nb.jpg,\n", "c.csv:3: an empty caption. Write one, or remove"),
    "blank caption": (b"image,caption\na.jpg,one\nb.jpg,  \n", "c.csv:3: an empty caption."),
    "empty line": (b"image,caption\n\na.jpg,one\n", "c.csv:2: an empty line. Remove it."),
    "no image": (b"image,caption\na.jpg,one\n,two\n", "c.csv:3: expected the path of a file, found ''."),
    "too many": (b"image,caption\na.jpg,one\nb.jpg,two,three\n", "c.csv:3: 3 fields, where the first line has 2."),
    "too few": (b"image,caption\na.jpg,one\nb.jpg\n", "c.csv:3: 1 fields, where the first line has 2."),
    "up": (b"image,caption\na.jpg,one\nx/../../b.jpg,two\n", "c.csv:3: 'x/../../b.jpg' leaves the folder"),
    "up as on Windows": (b"image,caption\na.jpg,one\n..\\b.jpg,two\n", "leaves the folder"),
    "absolute": (b"image,caption\na.jpg,one\n/etc/b.jpg,two\n", "c.csv:3: '/etc/b.jpg' leaves the folder"),
    "a drive": (b"image,caption\na.jpg,one\nC:\\b.jpg,two\n", "leaves the folder"),
    "an address": (b"image,caption\na.jpg,one\nhttp://x.org/b.jpg,two\n", "c.csv:3: 'http://x.org/b.jpg' is an"),
    "twice": (b"image,caption\na.jpg,one\na.jpg,one\n", "c.csv:3: the same image and caption as in line 2. Remove"),
    "open quote": (b'image,caption\nb.jpg,"two\na.jpg,one\n', "c.csv:2: a quote is left open"),
    "quote within": (b'image,caption\nb.jpg,"two" dogs\na.jpg,one\n', "c.csv:2: a quote is left open, or stands"),
    "no split": (b"image,caption,split\na.jpg,one,train\nb.jpg,two,\n", "c.csv:3: the column 'split' holds nothing."),
    "an id of two": (b"image,caption,image_id\na.jpg,one,1\nb.jpg,two,1\n", "c.csv:3: the id '1' is that of another"),
    "two ids": (b"image,caption,image_id\na.jpg,one,1\na.jpg,two,2\n", "c.csv:3: the id '2' of what had the id '1'"),
    "a caption's id of two": (b"image,caption,caption_id\na.jpg,one,1\na.jpg,two,1\n", "c.csv:3: the id '1' is that"),
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
    "cut short": (GOOD + line(image="b.jpg", caption="two")[:-9], "c.jsonl:2: not a whole JSON object"),
    "no object": (GOOD + '["b.jpg", "two"]\n', "c.jsonl:2: expected a JSON object, {…}"),
    "empty line": (GOOD + "\n" + GOOD.replace("a.jpg", "a.jpg "), "c.jsonl:2: an empty line."),
    "too deep": (GOOD + '{"image": ' + "[" * 100_000 + "\n", "c.jsonl:2: not a whole JSON object"),
    "no image": (GOOD + line(caption="two"), "c.jsonl:2: expected the path of a file, found None."),
    "a list of images": (GOOD + line(image=["b.jpg"], caption="two"), "c.jsonl:2: expected the path of a file"),
    "no caption": (GOOD + line(image="b.jpg"), "c.jsonl:2: the column 'caption' holds nothing, not a text."),
    "a number": (GOOD + line(image="b.jpg", caption=5), "c.jsonl:2: the column 'caption' holds 5, not a text."),
    "no captions": (GOOD + line(image="b.jpg", caption=[]), "c.jsonl:2: nothing usable in the column 'caption'."),
    "an empty one": (line(image="a.jpg", caption=["one", ""]), "c.jsonl:1: an empty caption."),
    "not UTF-8": (
        GOOD.encode() + b'{"image": "b.jpg", "caption": "caf\xe9"}\n',
        "c.jsonl:2: not UTF-8: the byte 0xe9 at place 35 of the line.",
    ),
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


FATAL = {
    "a missing column": ("c.csv", b"picture,caption\na.jpg,one\n", r"c.csv: expected .*; found picture, caption"),
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


@pytest.mark.parametrize("stem", ["captions", "train", "metadata"])
def test_two_tables_that_disagree_are_refused_and_both_named(stem, tmp_path):
    reader = imagefolder if stem == "metadata" else tables
    written(tmp_path, f"{stem}.csv", "image,caption\na.jpg,one\n")
    written(tmp_path, f"{stem}.jsonl", GOOD)
    assert pairs(reader.read(tmp_path)["train"]) == [("a.jpg", "one")]
    written(tmp_path, f"{stem}.jsonl", GOOD.replace("one", "two"))
    with pytest.raises(DataError, match=rf"{stem}\.csv: holds other captions than {stem}\.jsonl beside it. Remove"):
        reader.read(tmp_path, lambda problem: None)


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


# Image folders.


def test_hugging_face_reads_what_is_written_here(tmp_path):
    imagefolder.write(sample_splits(), tmp_path / "data")
    folder = str(tmp_path / "data")
    loaded = datasets.load_dataset("imagefolder", data_dir=folder, split="train", cache_dir=str(tmp_path / "cache"))
    assert loaded[0]["caption"] == list(sample_splits()["train"][TEXT].values[:5])
    assert loaded[1]["image"].getpixel((0, 0)) == (1, 0, 7)
    assert list(loaded["image_id"]) == list(sample_splits()["train"][IMAGE].ids)


def test_a_table_of_metadata_at_the_top_or_one_in_each_split_is_read(tmp_path):
    rows = {"csv": "file_name,text\na.png,one\n", "jsonl": '{"file_name": "a.png", "text": "one"}\n'}
    for folder, kind in (("top", "csv"), ("splits/train", "jsonl"), ("splits/validation", "csv")):
        written(tmp_path / folder, f"metadata.{kind}", rows[kind])
    top, splits = imagefolder.read(tmp_path / "top"), imagefolder.read(tmp_path / "splits")
    assert (list(top), list(splits)) == (["train"], ["train", "val"])
    assert top["train"][IMAGE].values == [tmp_path / "top" / "a.png"]
    assert splits["val"][IMAGE].values == [tmp_path / "splits" / "validation" / "a.png"]
    assert splits["val"][TEXT].values == ["one"]


def test_a_path_that_leaves_the_split_is_named_with_its_line(tmp_path):
    written(tmp_path / "train", "metadata.csv", "file_name,text\n../val/a.png,one\nb.png,two\n")
    with pytest.raises(DataError, match=r"train/metadata\.csv:2: '\.\./val/a\.png' leaves the folder"):
        imagefolder.read(tmp_path)


def test_pictures_alone_are_no_image_folder(tmp_path):
    (tmp_path / "a.png").write_bytes(picture(0))
    assert not imagefolder.recognises(tmp_path)
    with pytest.raises(DataError, match=r"no metadata\.jsonl"):
        imagefolder.read(tmp_path)


def test_a_picture_called_metadata_does_not_get_in_the_way(tmp_path):
    splits = sample_splits()
    splits["train"][IMAGE].ids[0] = "metadata"
    imagefolder.write(splits, tmp_path / "data")
    assert plain(imagefolder.read(tmp_path / "data")) == plain(splits)
    assert (tmp_path / "data" / "train" / "metadata-2.jpg").is_file()
