import json
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from read_tables import pairs, plain_pairs, read, written
from sample_splits import picture, plain

from maxmatch.data.dataset import IMAGE, TEXT, DataError, Items, Split
from maxmatch.data.formats import tables


def test_rows_of_an_image_are_one_group_in_order_of_first_appearance(tmp_path):
    path = written(tmp_path, "c.csv", "image,caption\nb.jpg,one\na.jpg,two\nb.jpg,three\n")
    split = tables.read(path)["train"]
    assert split[IMAGE].values == [tmp_path / "b.jpg", tmp_path / "a.jpg"]
    assert list(split[TEXT].values) == ["one", "three", "two"]
    assert split[TEXT].groups.tolist() == [0, 0, 1]
    assert list(split[IMAGE].ids) == ["b.jpg", "a.jpg"]
    assert list(split[TEXT].ids) == ["b.jpg#0", "b.jpg#1", "a.jpg#0"]
    assert split[IMAGE].metadata is None


@pytest.mark.parametrize("image", ["image", "file_name", "FileName", "filepath", " path "])
@pytest.mark.parametrize("caption", ["caption", "Captions", "text", "texts", "sentence", "sentences"])
def test_columns_have_many_names(image, caption, tmp_path):
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


@pytest.mark.parametrize("cell", ["007", "1e5", "1.50", "NaN", "-Infinity", "-", "yes", "[1,2]", "0x1", "1_000"])
def test_a_cell_that_json_would_write_otherwise_is_a_text(cell, tmp_path):
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
    expected = plain_pairs(written(tmp_path / "a", f"c.{kind}", rows))
    odd = b"\xef\xbb\xbf" + rows.replace("\n", "\r\n").encode() + b"\r\n\r\n"
    assert plain_pairs(written(tmp_path / "b", f"c.{kind}", odd)) == expected


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


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
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
