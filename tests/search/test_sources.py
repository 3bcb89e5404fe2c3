"""What is to be encoded: everything that a source has, each item once, and what is left out by name."""

import io
import json
import os
import tarfile
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from made_data import features, split
from PIL import Image
from sample_splits import picture, split_of

from maxmatch.data.dataset import DataError
from maxmatch.data.formats import karpathy, precomp
from maxmatch.search.photos.facts import photo_facts
from maxmatch.search.sources import list_source


def pictures(folder, *names):
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(picture(number))


def left_out(listing):
    return {one.id: one.reason for one in listing.left_out}


def tar(path, **members):
    with tarfile.open(path, "w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name.replace("_", "."))
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def test_a_folder_is_listed_in_the_order_of_names_without_what_is_hidden_or_junk(tmp_path):
    pictures(tmp_path, "b.png", "a/c.JPG", "a/d/e.webp", ".hidden/f.png", ".g.png", "__MACOSX/h.png", "@eaDir/i.jpg")
    for junk in ("Thumbs.db", "a/desktop.ini", ".DS_Store"):
        (tmp_path / junk).write_bytes(b"x")
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "song.mp3").write_bytes(b"x")
    listing = list_source(tmp_path)
    assert (listing.format, listing.modality) == ("folder", "image")
    assert list(listing.ids) == ["a/c.JPG", "a/d/e.webp", "b.png"]
    assert [path.name for path in listing.values] == ["c.JPG", "e.webp", "b.png"]
    found = left_out(listing)
    assert found.keys() == {"notes.txt", "song.mp3"}
    assert found["song.mp3"] == "not a picture: its name ends in .mp3."


def test_pictures_for_which_a_package_is_missing_are_left_out_with_the_cure(tmp_path, monkeypatch):
    pictures(tmp_path, "b.png")
    (tmp_path / "film.mov").write_bytes(b"x")
    monkeypatch.setattr("maxmatch.model.picture_files.find_spec", lambda name: None)
    listing = list_source(tmp_path)
    assert list(listing.ids) == ["b.png"]
    assert left_out(listing) == {"film.mov": "1 MOV not read: pip install 'maxmatch[video]'."}
    (tmp_path / "b.png").unlink()
    with pytest.raises(DataError, match=r"1 MOV not read: pip install 'maxmatch\[video\]'"):
        list_source(tmp_path)


def test_pictures_of_a_folder_have_the_facts_that_a_folder_of_photos_has(tmp_path):
    pictures(tmp_path, "rome/a.png")
    (tmp_path / "rome" / "broken.png").write_bytes(b"x")
    fine, broken = list_source(tmp_path).metadata
    assert fine == photo_facts(tmp_path / "rome" / "a.png", tmp_path)
    assert broken.keys() == {"path", "size", "mtime"}


def test_a_folder_below_that_cannot_be_read_is_left_out_by_name(tmp_path, monkeypatch):
    pictures(tmp_path, "a.png", "closed/b.png")

    def denied(real, place):
        if Path(place) == tmp_path / "closed":
            raise PermissionError(13, "Permission denied", str(place))
        return real(place)

    for name in ("listdir", "scandir"):
        monkeypatch.setattr(os, name, partial(denied, getattr(os, name)))
    listing = list_source(tmp_path)
    assert (listing.format, list(listing.ids)) == ("folder", ["a.png"])
    (reason,) = [reason for name, reason in left_out(listing).items() if "closed" in name]
    assert "Permission denied" in reason


def test_links_are_followed_once_and_loops_do_no_harm(tmp_path):
    pictures(tmp_path, "photos/a.png", "elsewhere/b.png")
    photos = tmp_path / "photos"
    (photos / "a_link").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    (photos / "a_loop").symlink_to(photos, target_is_directory=True)
    (tmp_path / "elsewhere" / "back").symlink_to(photos, target_is_directory=True)
    (photos / "another").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    assert list(list_source(photos).ids) == ["a.png", "a_link/b.png"]


def test_a_name_that_is_not_utf8_is_left_out_and_a_stray_table_ignored(tmp_path):
    pictures(tmp_path, "a.png")
    with open(os.fsencode(tmp_path) + b"/caf\xe9.png", "wb") as file:
        file.write(picture(1))
    (tmp_path / "budget.csv").write_text("month,money\nmay,7\n")
    listing = list_source(tmp_path)
    assert list(listing.ids) == ["a.png"]
    assert "its name is not UTF-8. Rename the file." in left_out(listing).values()


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_a_table_needs_pictures_alone_and_the_rest_is_metadata(tmp_path, kind):
    pictures(tmp_path, "images/a.png", "images/b.png")
    rows = [
        {"image": "images/a.png", "year": 2019, "place": "Bath"},
        {"image": "images/b.png", "year": 2024, "place": "York"},
        {"image": "images/b.png", "year": 1066, "place": "Hastings"},
        {"image": "../c.png", "year": 2000, "place": "outside"},
    ]
    path = tmp_path / f"things.{kind}"
    if kind == "csv":
        path.write_text("image,year,place\n" + "".join(f"{r['image']},{r['year']},{r['place']}\n" for r in rows))
    elif kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pa.parquet.write_table(pa.Table.from_pylist(rows), path)
    listing = list_source(path)
    assert list(listing.ids) == ["images/a.png", "images/b.png"]
    known = dict(listing.metadata[1])
    assert known.pop("mtime") == (tmp_path / "images" / "b.png").stat().st_mtime
    assert known == {"year": 2024, "place": "York", "path": str(tmp_path / "images/b.png"), "size": len(picture(1))}
    [(where, reason)] = left_out(listing).items()
    assert where == f"{path}:{5 if kind == 'csv' else 4}"
    assert "leaves the folder" in reason
    assert list(list_source(tmp_path).ids) == list(listing.ids)  # by its folder as well


def test_captions_of_a_table_are_known_by_their_ids_or_lines(tmp_path):
    path = tmp_path / "captions.jsonl"
    rows = [
        {"text": "a dog ", "year": 1},
        {"text": ["a cat", "", "two cats"], "image": "a.png"},
        {"text": 7},
        {"text": "a bird", "id": "bird"},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    listing = list_source(path, "text")
    texts = {"1": "a dog", "2#0": "a cat", "2#2": "two cats", "bird": "a bird"}
    assert dict(zip(listing.ids, listing.values, strict=True)) == texts
    assert listing.metadata[0] == {"year": 1, "text": "a dog"}
    assert listing.metadata[1] == {"image": "a.png", "text": "a cat"}
    assert sorted(left_out(listing)) == [f"{path}:2", f"{path}:3"]


def test_a_table_without_pictures_and_captions_is_refused(tmp_path):
    (tmp_path / "things.csv").write_text("month,money\nmay,7\n")
    with pytest.raises(DataError, match=r"things.csv: expected a column with each image .*; found month, money\."):
        list_source(tmp_path / "things.csv")
    (tmp_path / "texts.csv").write_text("text\na dog\n")
    with pytest.raises(DataError, match="expected a column with each image"):
        list_source(tmp_path / "texts.csv", "image")
    assert list_source(tmp_path / "texts.csv").modality == "text"


def test_of_two_pictures_of_one_id_the_second_is_left_out(tmp_path):
    pictures(tmp_path, "a.png", "b.png")
    (tmp_path / "things.csv").write_text("image,id\na.png,7\nb.png,7\n")
    listing = list_source(tmp_path / "things.csv")
    assert list(listing.ids) == ["7"]
    assert "the id '7' is that of 'a.png', too" in left_out(listing)[f"{tmp_path}/things.csv:3"]


def test_tars_may_hold_pictures_alone_or_with_captions(tmp_path):
    first = tar(tmp_path / "0.tar", a_png=picture(0), b_png=picture(1), b_json=b'{"year": 2020}', c_txt=b"no picture")
    tar(tmp_path / "1.tar", a_png=picture(2), a_txt=b"a dog")
    listing = list_source(tmp_path)
    assert list(listing.ids) == ["0.tar/a.png", "0.tar/b.png", "1.tar/a.png"]
    assert [listing.values[place] for place in range(3)] == [picture(0), picture(1), picture(2)]
    assert listing.metadata[1] == {"year": 2020, "sample": "0.tar/b"}
    assert listing.metadata[2] == {"caption": ["a dog"], "sample": "1.tar/a"}
    assert "without a picture" in left_out(listing)[str(first / "c")]
    captions = list_source(tmp_path, "text")
    assert dict(zip(captions.ids, captions.values, strict=True)) == {"0.tar/c#0": "no picture", "1.tar/a#0": "a dog"}


def test_a_tar_that_is_cut_short_is_read_as_far_as_it_goes_and_named(tmp_path):
    path = tar(tmp_path / "0.tar", a_png=picture(0), b_png=picture(1))
    path.write_bytes(path.read_bytes()[:1600])
    listing = list_source(tmp_path)
    assert list(listing.ids) == ["0.tar/a.png"]
    assert "ends early" in left_out(listing)[str(path)]


def test_a_text_file_has_one_caption_per_line(tmp_path):
    path = tmp_path / "captions.txt"
    path.write_bytes("a dog\n\nein größeres Haus \n".encode() + b"caf\xe9\n")
    listing = list_source(path)
    assert (listing.format, listing.modality) == ("lines", "text")
    assert dict(zip(listing.ids, listing.values, strict=True)) == {"1": "a dog", "3": "ein größeres Haus"}
    found = left_out(listing)
    assert "an empty line" in found[f"{path}:2"]
    assert "not UTF-8" in found[f"{path}:4"]


def test_a_data_set_gives_the_items_of_all_its_splits_or_of_those_asked_for(tmp_path):
    splits = {"train": split_of(0, [2, 2], metadata=False), "val": split_of(2, [1], metadata=False)}
    karpathy.write(splits, tmp_path / "data")
    listing = list_source(tmp_path / "data")
    assert list(listing.ids) == ["COCO_000", "COCO_001", "COCO_002"]
    assert listing.metadata[2]["split"] == "val"
    assert listing.metadata[2]["path"] == str(listing.values[2])
    texts = list_source(tmp_path / "data", "text", splits=["val"])
    assert len(texts) == 1
    assert texts.metadata[0]["text"] == texts.values[0]
    with pytest.raises(ValueError, match="has the splits train, val, not 'test'"):
        list_source(tmp_path / "data", splits=["test"])
    # Ids that two splits share get the split before them.
    precomp.write({name: split(features(2), 1) for name in ("train", "val")}, tmp_path / "shared")
    assert list(list_source(tmp_path / "shared").ids) == ["train/0", "train/1", "val/0", "val/1"]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path / "nowhere", "nowhere: no such file or folder. Check the path"),
        (lambda path: path, "the folder is empty. Check the path, or put pictures there"),
        (lambda path: (path / "a.txt").write_text("") or path / "a.txt", "a.txt: no caption in it"),
        (lambda path: (path / "a.txt").write_bytes(b"caf\xe9\n") and path / "a.txt", "a.txt:1: not UTF-8"),
        (lambda path: (path / "a.txt").write_text("x") and path, "no pictures in it. Expected files of these formats"),
        (lambda path: (path / "a.csv").write_text("") or path / "a.csv", "a.csv: "),
        (lambda path: (path / "a.parquet").write_text("x") and path / "a.parquet", "not a readable Parquet file"),
        (lambda path: Image.new("RGB", (4, 4)).save(path / "a.png") or path / "a.png", "a.png: a picture; expected"),
        (lambda path: tar(path / "a.tar", c_zip=b"x").parent, "--format folder takes all pictures in it"),
    ],
)
def test_a_source_that_holds_nothing_is_refused_with_the_cure(tmp_path, make, words):
    with pytest.raises(DataError) as refused:
        list_source(make(tmp_path))
    assert words in str(refused.value)


def test_options_that_do_not_fit_the_source_are_refused(tmp_path):
    pictures(tmp_path, "a.png")
    with pytest.raises(DataError, match="holds pictures, and --modality asks for captions"):
        list_source(tmp_path, "text")
    with pytest.raises(ValueError, match=r"is read whole\. Leave it out"):
        list_source(tmp_path, splits=["train"])
    with pytest.raises(ValueError, match=r"format: expected one of lines, .*got 'xml'"):
        list_source(tmp_path, format="xml")
