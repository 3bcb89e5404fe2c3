import datasets
import pytest
from sample_splits import picture, plain, sample_splits

from maxmatch.data.dataset import IMAGE, TEXT, DataError
from maxmatch.data.formats import imagefolder


def make(folder, **texts):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name.replace("_", ".")).write_text(text)


def test_hugging_face_reads_what_is_written_here(tmp_path):
    imagefolder.write(sample_splits(), tmp_path / "data")
    folder = str(tmp_path / "data")
    loaded = datasets.load_dataset("imagefolder", data_dir=folder, split="train", cache_dir=str(tmp_path / "cache"))
    assert loaded[0]["caption"] == list(sample_splits()["train"][TEXT].values[:5])
    assert loaded[1]["image"].getpixel((0, 0)) == (1, 0, 7)
    assert list(loaded["image_id"]) == list(sample_splits()["train"][IMAGE].ids)


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_table_at_the_top_or_one_in_each_split_is_read(kind, tmp_path):
    rows = {"csv": "file_name,text\na.png,one\n", "jsonl": '{"file_name": "a.png", "text": "one"}\n'}[kind]
    make(tmp_path / "top", **{f"metadata_{kind}": rows})
    make(tmp_path / "splits" / "train", **{f"metadata_{kind}": rows})
    make(tmp_path / "splits" / "validation", **{f"metadata_{kind}": rows})
    top, splits = imagefolder.read(tmp_path / "top"), imagefolder.read(tmp_path / "splits")
    assert (list(top), list(splits)) == (["train"], ["train", "val"])
    assert top["train"][IMAGE].values == [tmp_path / "top" / "a.png"]
    assert splits["val"][IMAGE].values == [tmp_path / "splits" / "validation" / "a.png"]
    assert splits["val"][TEXT].values == ["one"]


def test_two_tables_that_disagree_are_refused_and_both_named(tmp_path):
    make(tmp_path, metadata_csv="file_name,text\na.png,one\n", metadata_jsonl='{"file_name": "a.png", "text": "two"}\n')
    with pytest.raises(DataError, match=r"metadata\.csv: holds other captions than metadata\.jsonl beside it"):
        imagefolder.read(tmp_path)


def test_a_path_that_leaves_the_folder_is_named_with_its_line(tmp_path):
    make(tmp_path / "train", metadata_csv="file_name,text\n../val/a.png,one\nb.png,two\n")
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
