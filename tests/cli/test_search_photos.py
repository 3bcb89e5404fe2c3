"""`maxmatch search QUERY FOLDER`: photos found by words, the folder's index kept up to date on the way."""

import json

import numpy as np
import pytest
from commands import run
from PIL import Image

from maxmatch import SetIndex


@pytest.fixture
def given(model, tmp_path, monkeypatch):
    """A folder of photos, and the option that names a model."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "pictures"
    folder.mkdir()
    for seed in range(4):
        pixels = np.random.default_rng(seed).integers(0, 256, (40, 50, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{seed}.png")
    (folder / "broken.jpg").write_bytes(b"")
    return folder, ("--model", model)


def test_photos_of_a_folder_are_found_by_words_a_picture_and_weighted_words(given, capsys):
    folder, model = given
    (folder / "index.json").write_text('{"photos": ["0.png"]}')  # another program's makes no index of a folder
    first = run(capsys, "search", "two dogs", folder, "-k", "3", *model)
    paths = first.out.split()  # alone, where the output is no terminal
    assert len(set(paths)) == 3
    assert set(paths) <= {str(folder / f"{seed}.png") for seed in range(4)}
    assert first.err.count("broken.jpg: not a readable picture") == 1
    assert "4 photos: 4 new" in first.err
    again = run(capsys, "search", "two dogs", folder, "-k", "3", *model)
    assert again.out == first.out
    assert "broken" not in again.err, "what cannot be read is reported once"
    hits = json.loads(run(capsys, "search", "--image", folder / "2.png", folder, "--json", *model).out)["hits"]
    assert hits[0]["id"] == "2.png"
    assert hits[0]["metadata"]["path"] == str(folder / "2.png")
    weighted = run(capsys, "search", '"beach" + 2 "dog" - "people"', folder, "--json", *model)
    assert len(json.loads(weighted.out)["hits"]) == 4


@pytest.mark.parametrize(
    ("query", "unknown", "known"),
    [
        ("a dog", [], True),
        ("a Xqzzt, dog", ["Xqzzt"], True),
        ("dog -blorf", ["blorf"], True),
        ('"xqzzt" + 2 "blorf"', ["xqzzt", "blorf"], False),
        ("собака 🐶", ["собака", "🐶"], False),
        ("?!", [], False),
    ],
)
def test_words_that_the_model_does_not_know_are_named(query, unknown, known, given, capsys):
    folder, model = given
    answer = json.loads(run(capsys, "search", query, folder, "--json", *model).out)
    assert (answer["unknown_words"], answer["any_word_known"]) == (unknown, known)
    said = run(capsys, "search", query, folder, *model)
    assert len(said.out.split("\n")) == 5, "paths alone, for another program"
    assert all(word in said.err for word in unknown) or not known
    assert ("guess" in said.err) is not known
    assert len(said.err.splitlines()) == (not known or bool(unknown))


def test_a_picture_has_no_unknown_words(given, capsys):
    folder, model = given
    answer = json.loads(run(capsys, "search", "--image", folder / "2.png", folder, "--json", *model).out)
    assert (answer["unknown_words"], answer["any_word_known"]) == ([], None)


def test_where_knows_what_json_shows(given, capsys):
    folder, model = given
    facts = json.loads(run(capsys, "search", "--image", folder / "2.png", folder, "--json", *model).out)["hits"][0]
    for key, value in facts["metadata"].items():
        if value is not None:
            where = f"{key} = {value!r}"
            hits = json.loads(run(capsys, "search", "a dog", folder, "--json", "--where", where, *model).out)["hits"]
            assert facts["id"] in {hit["id"] for hit in hits}
    for where in ("yaer >= 2010", "taken >= 2024"):
        assert run(capsys, "search", "a dog", folder, "--where", where, *model).code == 2


def test_names_with_line_breaks_are_told_apart_by_null(given, capsys):
    folder, model = given
    (folder / "0.png").rename(folder / "a\nb.png")
    for option in ("-0", "--null"):
        names = run(capsys, "search", "two dogs", folder, option, *model).out.split("\0")
        assert sorted(names) == ["", *sorted(str(folder / name) for name in ("a\nb.png", "1.png", "2.png", "3.png"))]
    assert run(capsys, "search", "two dogs", folder, "-0", "--json", *model).code == 2


def test_what_is_no_folder_and_a_damaged_index_are_named_with_what_was_expected(given, tmp_path, capsys):
    folder, model = given
    for verb in (("search", "two dogs"), ("serve",)):
        for name, what in (("nowhere", "no such folder"), ("0.png", "a file")):
            code, _, err = run(capsys, *verb, folder / name, *model)
            assert code == 1
            assert f"{folder / name}: {what}. Expected a folder of photos, or an index" in err
    SetIndex.create(tmp_path / "index", dim=16, set_size=4).close()
    (tmp_path / "index" / "index.json").write_text("{")
    code, _, err = run(capsys, "search", "two dogs", tmp_path / "index", *model)
    assert code == 1
    assert "index.json: not readable as JSON" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], 'maxmatch search "two dogs" ~/Pictures'),
        (["two dogs"], "give a folder of photos or an index"),
        (["--image", "0.png"], "maxmatch search --image dog.jpg ~/Pictures"),
        (["two dogs", ".", "--image", "0.png"], "words or --image, not both"),
        (["  ", "."], "write some words"),
        ([".", "two dogs"], "the words come first, then the folder: maxmatch search 'two dogs' ."),
        (['"two dogs', "."], "quotes"),
        (['"dog" + 1000 "cat"', "."], "1000"),
        (["dog -cat", ".", "--exact"], "--exact"),
        (["dog", ".", "--where", "year >="], "where"),
    ],
)
def test_a_search_without_its_query_or_its_folder_is_wrong_use(arguments, words, capsys):
    code, _, err = run(capsys, "search", *arguments)
    assert code == 2
    assert words in err


def test_several_folders_are_searched_as_one_and_patterns_leave_photos_out(given, tmp_path, capsys):
    folder, model = given
    other = tmp_path / "more" / "photos"
    other.mkdir(parents=True)
    for seed in range(3):
        pixels = np.random.default_rng(50 + seed).integers(0, 256, (40, 50, 3), np.uint8)
        Image.fromarray(pixels).save(other / f"{seed}.png")
    both = json.loads(run(capsys, "search", "two dogs", folder, other, "-k", "20", "--json", *model).out)["hits"]
    assert {hit["id"] for hit in both} == {
        *(f"pictures/{n}.png" for n in range(4)),
        *(f"photos/{n}.png" for n in range(3)),
    }
    assert [hit["score"] for hit in both] == sorted((hit["score"] for hit in both), reverse=True)
    paths = run(capsys, "search", "two dogs", folder, other, folder / ".", *model).out.split()
    assert sorted(paths) == sorted(str(path) for root in (folder, other) for path in root.glob("*.png"))
    image = ("--image", other / "1.png")
    assert run(capsys, "search", *image, folder, other, "-k", "1", *model).out.strip() == str(other / "1.png")
    fewer = run(capsys, "search", "two dogs", folder, other, "--exclude", "1.*", "--exclude", "2.png", *model)
    assert sorted(fewer.out.split()) == sorted(map(str, [folder / "0.png", folder / "3.png", other / "0.png"]))
    SetIndex.create(tmp_path / "index", dim=16, set_size=4).close()
    for wrong in ((folder, tmp_path / "index"), (tmp_path / "index", "--exclude", "x")):
        for verb in (("search", "two dogs"), ("serve",)):
            assert run(capsys, *verb, *wrong, *model).code == 2


def test_photos_that_are_named_so_come_first_and_are_marked(given, capsys):
    folder, model = given
    run(capsys, "search", "rome", folder, *model)
    (folder / "Café Rome").mkdir()
    (folder / "3.png").rename(folder / "Café Rome" / "3.png")
    said = run(capsys, "search", "rome", folder, *model).err
    assert "1 renamed" in said
    assert "1 photo has them in its name" in said, "the model does not know the word"
    hits = json.loads(run(capsys, "search", "the rome", folder, "--json", *model).out)["hits"]
    assert [hit["name_match"] for hit in hits] == [True, False, False, False]
    assert hits[0]["id"] == "Café Rome/3.png"
    scores = {hit["id"]: hit["score"] for hit in hits}
    plain = json.loads(run(capsys, "search", "the rome", folder, "--json", "--no-names", *model).out)["hits"]
    assert {hit["id"]: hit["score"] for hit in plain} == pytest.approx(scores, abs=1e-5)
    assert [hit["score"] for hit in plain] == sorted(scores.values(), reverse=True)
    assert not any(hit["name_match"] for hit in plain)
    shown = run(capsys, "search", "rome -dog", folder, "--explain", "-k", "2", *model).out
    assert [line.endswith("(name)") for line in shown.splitlines() if ".png" in line and line[2].isdigit()] == [
        True,
        False,
    ]
