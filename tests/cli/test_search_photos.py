"""`maxmatch search QUERY FOLDER`: photos found by words, the folder's index kept up to date on the way."""

import json

import numpy as np
import pytest
from PIL import Image
from tiny_models import tiny_model

from maxmatch import SetIndex
from maxmatch.cli.main import main


@pytest.fixture
def given(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tiny_model("resnet152_bigru").save_pretrained(tmp_path / "model")
    folder = tmp_path / "pictures"
    folder.mkdir()
    for seed in range(4):
        pixels = np.random.default_rng(seed).integers(0, 256, (40, 50, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{seed}.png")
    (folder / "broken.jpg").write_bytes(b"")
    return folder, ["--model", str(tmp_path / "model")]


def run(*arguments):
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    return stopped.value.code or 0


def test_photos_of_a_folder_are_found_and_paths_alone_are_printed_to_a_pipe(given, capsys):
    folder, model = given
    assert run("search", "two dogs", str(folder), "-k", "3", *model) == 0
    said = capsys.readouterr()
    paths = said.out.split()
    assert len(set(paths)) == 3
    assert set(paths) <= {str(folder / f"{seed}.png") for seed in range(4)}
    assert said.err.count("broken.jpg: not a readable picture") == 1
    assert "4 photos: 4 new" in said.err
    assert run("search", "two dogs", str(folder), "-k", "3", *model) == 0
    again = capsys.readouterr()
    assert again.out == said.out
    assert "broken" not in again.err, "what cannot be read is said once"


def test_a_picture_finds_itself_and_weighted_words_are_taken(given, capsys):
    folder, model = given
    assert run("search", "--image", str(folder / "2.png"), str(folder), "--json", *model) == 0
    hits = json.loads(capsys.readouterr().out)["hits"]
    assert hits[0]["id"] == "2.png"
    assert hits[0]["metadata"]["path"] == str(folder / "2.png")
    assert run("search", '"beach" + 2 "dog" - "people"', str(folder), "--json", *model) == 0
    assert len(json.loads(capsys.readouterr().out)["hits"]) == 4


def test_an_index_json_of_another_program_makes_no_index_of_a_folder(given, capsys):
    folder, model = given
    (folder / "index.json").write_text('{"photos": ["0.png"]}')
    assert run("search", "two dogs", str(folder), *model) == 0
    assert len(capsys.readouterr().out.split()) == 4


def test_a_damaged_index_is_no_folder_of_photos(given, tmp_path, capsys):
    _, model = given
    SetIndex.create(tmp_path / "index", dim=16, set_size=4).close()
    (tmp_path / "index" / "index.json").write_text("{")
    assert run("search", "two dogs", str(tmp_path / "index"), *model) == 1
    assert "index.json: not readable as JSON" in capsys.readouterr().err


@pytest.mark.parametrize("verb", [["search", "two dogs"], ["serve"]], ids=["search", "serve"])
@pytest.mark.parametrize(("name", "what"), [("nowhere", "no such folder"), ("0.png", "a file")])
def test_what_is_no_folder_is_named_with_what_was_expected(given, capsys, verb, name, what):
    folder, model = given
    assert run(*verb, str(folder / name), *model) == 1
    assert f"{folder / name}: {what}. Expected a folder of photos, or an index" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], 'maxmatch search "two dogs" ~/Pictures'),
        (["two dogs"], "give a folder of photos or an index"),
        (["--image", "0.png"], "maxmatch search --image dog.jpg ~/Pictures"),
        (["two dogs", ".", "--image", "0.png"], "words or --image, not both"),
        (["  ", "."], "write some words"),
    ],
)
def test_a_search_without_its_query_or_its_folder_says_which(arguments, said, capsys):
    assert run("search", *arguments) == 2
    assert said in capsys.readouterr().err
