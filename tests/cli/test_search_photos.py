"""`maxmatch search QUERY FOLDER`: photos found by words, the folder's index kept up to date on the way."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from camera_files import halves, heic
from commands import run
from PIL import Image

from maxmatch import SetIndex
from maxmatch.search.plausible import CutOff, Limits


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
    assert "broken" not in again.err, "what cannot be read is named once"
    assert "1 photo or folder cannot be read" in again.err, "and counted every time"
    notes = Path(again.err.partition("why is in ")[2].splitlines()[0])
    assert "broken" in notes.read_text(encoding="utf-8"), "the count names the file with the reasons"
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
    lines = [line for line in said.err.splitlines() if "cannot be read" not in line]
    assert len(lines) == (not known or bool(unknown))


def test_the_model_that_ships_says_that_it_reads_english_where_it_knows_a_word_not(given, capsys):
    folder, (_, tiny) = given
    for query, told in (("ein Hund", True), ("dog -Hund", True), ("Hund", True), ("a dog", False)):
        said = run(capsys, "search", query, folder, "--model", "maxmatch-small").err
        assert ("reads English" in said) is told, query
    assert "reads" not in run(capsys, "search", "Hund", folder, "--model", tiny).err, "of others that is not known"


def test_a_part_without_a_known_word_weighs_nothing_and_is_named(given, capsys):
    folder, model = given

    def hits(*query):
        answer = json.loads(run(capsys, "search", *query, folder, "--json", *model).out)
        return [(hit["id"], pytest.approx(hit["score"], abs=1e-5)) for hit in answer["hits"]], answer["left_out"]

    alone, _ = hits("a dog")
    assert hits('"a dog" + 3 "xqzzt" - "blorf"') == (alone, ["xqzzt", "blorf"])
    assert hits("--image", folder / "2.png", "xqzzt") == (hits("--image", folder / "2.png")[0], ["xqzzt"])
    said = run(capsys, "search", '"a dog" + "xqzzt"', folder, *model).err
    assert "left out" in said
    assert "xqzzt" in said
    assert "none of these words" not in said


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
        (["two dogs", ".", "--image", "0.png", "--exact"], "--exact"),
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
    shutil.copy(other / "0.png", other / "copy.png")
    assert "4 photos: 0 new, 0 changed, 0 gone, 1 taken over" in run(capsys, "search", "two dogs", other, *model).err
    (other / "copy.png").unlink()
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
    by_score = [hit["score"] for hit in plain]
    assert by_score == sorted(by_score, reverse=True)
    assert not any(hit["name_match"] for hit in plain)
    shown = run(capsys, "search", "rome -dog", folder, "--explain", "-k", "2", *model).out
    assert [line.endswith("(name)") for line in shown.splitlines() if ".png" in line and line[2].isdigit()] == [
        True,
        False,
    ]


@pytest.fixture
def many(given):
    """Enough photos to tell what fits, three of them the same, a day apart each."""
    folder, model = given
    (folder / "broken.jpg").unlink()
    for seed in range(40):
        pixels = np.random.default_rng(seed % 38).integers(0, 256, (40, 50, 3), np.uint8)
        exif = Image.Exif()
        exif[0x0132] = f"2024:01:{1 + seed % 28:02d} 12:{seed:02d}:00"
        Image.fromarray(pixels).save(folder / f"{seed:02d}.png", exif=exif)
    return folder, model


def end_at(monkeypatch, limits):
    """As if this were known of the folder. The tiny model knows none of the words by which it is measured."""
    monkeypatch.setattr("maxmatch.search.plausible.calibrated", lambda index, model: CutOff(len(index), {}))
    monkeypatch.setattr(CutOff, "limits", lambda cut_off, words: limits)


def searched(capsys, *arguments):
    return json.loads(run(capsys, "search", *arguments, "--json").out)


def test_the_list_ends_where_photos_stop_to_fit(many, capsys, monkeypatch):
    folder, model = many
    whole = searched(capsys, "a dog", folder, "-k", "60", "--all", *model)
    scores = [hit["score"] for hit in whole["hits"]]
    assert len(scores) == 44
    assert (whole["fits"], whole["cut_off"]) == (None, None)
    limits = {"some": Limits(scores[0] - 1e-6, scores[9] - 1e-6), "none": Limits(scores[0] + 1e-3, scores[9])}
    for what, limit in limits.items():
        end_at(monkeypatch, limit)
        cut = searched(capsys, "a dog", folder, "-k", "60", *model)
        said = run(capsys, "search", "a dog", folder, "-k", "60", *model)
        assert (cut["fits"], cut["cut_off"]) == (what == "some", pytest.approx(limit.ends))
        expected = whole["hits"][:10] if what == "some" else []
        assert [hit["id"] for hit in cut["hits"]] == [hit["id"] for hit in expected]
        assert len(said.out.split()) == len(expected)
        assert "--all" in said.err
        assert "--all" not in run(capsys, "search", "a dog", folder, "-k", "5", "--all", *model).err
        assert len(searched(capsys, "a dog -cat", folder, "-k", "60", *model)["hits"]) == 44, "parts are not judged"
        assert len(searched(capsys, "--image", folder / "1.png", folder, "-k", "60", *model)["hits"]) == 44
    unknown = run(capsys, "search", "xqzzt", folder, *model)
    assert unknown.out == ""
    assert "knows none of these words" in unknown.err
    assert "guess" not in unknown.err


def test_a_least_score_ends_the_list_in_place_of_the_cut_off(many, capsys, monkeypatch):
    folder, model = many
    end_at(monkeypatch, Limits(9.0, 9.0))
    scores = [hit["score"] for hit in searched(capsys, "a dog", folder, "-k", "60", "--all", *model)["hits"]]
    hits = searched(capsys, "a dog", folder, "-k", "60", "--min-score", str(scores[6] - 1e-6), *model)["hits"]
    assert [hit["score"] for hit in hits] == scores[: len(hits)]
    assert 7 <= len(hits) < 44
    nothing = run(capsys, "search", "a dog", folder, "--min-score", "9", *model)
    assert nothing.out == ""
    assert "--min-score" in nothing.err


def test_sorted_by_date_the_newest_come_first(many, capsys):
    folder, model = many
    hits = searched(capsys, "a dog", folder, "-k", "12", "--sort", "date", "--all", *model)["hits"]
    dates = [hit["metadata"]["date"] for hit in hits]
    assert len(dates) == 12
    assert dates == sorted(dates, reverse=True)
    every = [hit["metadata"]["date"] for hit in searched(capsys, "a dog", folder, "-k", "60", "--all", *model)["hits"]]
    assert dates == sorted(every, reverse=True)[:12]


def test_near_duplicates_are_shown_as_one_if_asked_for(many, capsys, monkeypatch):
    folder, model = many

    def by_content(ids, sketches):  # to a model that has learned nothing all pictures look much alike
        assert set(ids) <= set(sketches)
        groups = {}
        for place, name in enumerate(ids):
            groups.setdefault(int(name[:-4]) % 38, []).append(place)
        return list(groups.values())

    monkeypatch.setattr("maxmatch.search.query.group_near_duplicates", by_content)
    hits = searched(capsys, "a dog", folder, "-k", "60", "--all", "--fold", *model)["hits"]
    same = {frozenset([hit["id"], *hit["duplicates"]]) for hit in hits if hit["duplicates"]}
    assert frozenset({"0.png", "00.png", "38.png"}) in same
    assert sum(1 + len(hit["duplicates"]) for hit in hits) == 44
    first = searched(capsys, "a dog", folder, "-k", "3", "--all", "--fold", *model)["hits"]
    assert [hit["id"] for hit in first] == [hit["id"] for hit in hits[:3]]
    assert "duplicates" not in searched(capsys, "a dog", folder, "--all", *model)["hits"][0]


def test_a_picture_and_words_are_searched_for_together(many, capsys):
    folder, model = many
    picture = ("--image", folder / "05.png")
    alone = searched(capsys, *picture, folder, "-k", "3", *model)
    both = searched(capsys, *picture, "a dog", folder, "-k", "3", "--without", "people", *model)
    assert alone["hits"][0]["id"] == "05.png"
    assert both["any_word_known"]
    with SetIndex.open(next((folder.parent / "cache" / "maxmatch").rglob("index.json")).parent) as index:
        from maxmatch import SetEncoder
        from maxmatch.search.query import search_parts

        encoder = SetEncoder.from_pretrained(model[1])
        sets = [*encoder.encode_images([folder / "05.png"]), *encoder.encode_texts(["a dog", "people"])]
        expected = search_parts(index, sets, [1, 1, -1], 3)
    assert [hit["id"] for hit in both["hits"]] == [hit.id for hit in expected]
    assert [hit["score"] for hit in both["hits"]] == pytest.approx([hit.score for hit in expected], abs=1e-4)


@pytest.mark.parametrize("image", [True, False])
def test_parts_need_no_quotes_around_all_of_them(given, capsys, image):
    folder, model = given
    options = ("--json", *model, *(("--image", folder / "2.png") if image else ()))
    first = () if image else ("a beach",)
    whole = '+ "at night" - "two people"' if image else '"a beach" + "at night" - "two people"'
    expected = json.loads(run(capsys, "search", whole, folder, *options).out)
    asked = run(capsys, "search", *first, "+", "at night", "-", "two people", folder, *options)
    assert json.loads(asked.out) == expected
    assert len(expected["hits"]) == 4
    failed = run(capsys, "search", *first, "+", folder, *options)  # a sign without words
    assert failed.code == 2


def test_photos_that_need_a_package_are_counted_every_time(given, capsys, monkeypatch):
    folder, model = given
    for name in ("a.HEIC", "b.heic", "c.mp4"):
        (folder / name).write_bytes(b"")
    monkeypatch.setattr("maxmatch.model.picture_files.find_spec", lambda name: None)
    for _ in range(2):
        said = run(capsys, "search", "two dogs", folder, *model).err
        assert "2 HEIC, 1 MP4 not read: pip install 'maxmatch[heic,video]'" in said


def test_photos_that_were_read_once_stay_without_their_package(given, capsys, monkeypatch):
    pytest.importorskip("pillow_heif", reason="HEIC files are read by the extra 'heic'")
    folder, model = given
    (folder / "a.heic").write_bytes(heic(halves()))
    assert "5 photos: 5 new" in run(capsys, "search", "two dogs", folder, *model).err
    monkeypatch.setattr("maxmatch.model.picture_files.find_spec", lambda name: None)
    (folder / "b.heic").write_bytes(heic(halves()))
    said = run(capsys, "search", "two dogs", folder, *model)
    assert "1 HEIC not read" in said.err
    assert str(folder / "a.heic") in said.out.split()


def test_photos_found_by_name_stay_when_sorted_by_date_and_the_newest_stands_for_copies(many, capsys, monkeypatch):
    folder, model = many
    end_at(monkeypatch, Limits(9.0, 9.0))
    (folder / "rome").mkdir()
    for name in ("03", "07", "05"):
        (folder / f"{name}.png").rename(folder / "rome" / f"{name}.png")
    found = json.loads(run(capsys, "search", "rome", folder, "--sort", "date", "--json", *model).out)
    assert [hit["id"] for hit in found["hits"]] == ["rome/07.png", "rome/05.png", "rome/03.png"]
    said = run(capsys, "search", "rome", folder, "-k", "2", *model)
    assert len(said.out.splitlines()) == 2
    assert "fit" not in said.err, "there are more of them"
    end_at(monkeypatch, Limits(-9.0, -9.0))
    newest = json.loads(run(capsys, "search", "a dog", folder, "--sort", "date", "--json", *model).out)["hits"][0]
    for fold in ("--fold", "--no-fold"):
        first = json.loads(run(capsys, "search", "a dog", folder, "--sort", "date", "--json", fold, *model).out)["hits"]
        assert first[0]["id"] == newest["id"]


def test_a_filter_that_nothing_passes_is_named(many, capsys, monkeypatch):
    folder, model = many
    end_at(monkeypatch, Limits(-9.0, -9.0))
    said = run(capsys, "search", "a dog", folder, "--where", "width > 1000", *model).err
    assert "--where" in said
    assert "fit" not in said


def test_words_without_quotes_a_score_that_is_none_and_an_empty_folder(given, tmp_path, capsys):
    folder, model = given
    failed = run(capsys, "search", "two", "dogs", folder, *model)
    assert (failed.code, "'two dogs'" in failed.err) == (2, True)
    failed = run(capsys, "search", "dogs", folder, "--min-score", "nan", *model)
    assert (failed.code, "--min-score" in failed.err) == (2, True)
    empty = tmp_path / "empty"
    empty.mkdir()
    for folders in ((folder, empty), (empty, folder)):
        said = run(capsys, "search", "two dogs", *folders, *model)
        assert len(said.out.split()) == 4
        assert f"{empty}: no pictures" in said.err


def test_a_photo_whose_name_is_not_text_is_reported_once(given, capsys):
    folder, model = given
    try:
        os.rename(os.fsencode(folder / "0.png"), os.fsencode(folder) + b"/caf\xe9.png")
    except OSError:
        pytest.skip("this file system takes only names in UTF-8")
    assert "not UTF-8" in run(capsys, "search", "two dogs", folder, *model).err
    assert "not UTF-8" not in run(capsys, "search", "two dogs", folder, *model).err
