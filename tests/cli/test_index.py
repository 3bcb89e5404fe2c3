import json
import sys

import numpy as np
import pytest
from commands import run
from made_shards import D, K, random_sets, write_shards
from PIL import Image
from tiny_models import tiny_model

from maxmatch.cli.main import main
from maxmatch.model.encoder import SetEncoder
from maxmatch.search.set_index import SetIndex


@pytest.fixture(scope="module")
def photos(model, heap, tmp_path_factory):
    """An index of the pictures, built from a source at once."""
    index = tmp_path_factory.mktemp("index") / "photos"
    given = ("--source", str(heap[0]), "--model", str(model), "--dtype", "fp32")
    with pytest.raises(SystemExit) as end:
        main(["index", "build", str(index), *given])
    assert not end.value.code
    return index


def ids_in(index):
    with SetIndex.open(index) as opened:
        return sorted(name for found in opened.engine.scan(100) for name in found.ids)


def test_shards_become_an_index_that_knows_what_made_them(tmp_path, capsys):
    expected = write_shards(tmp_path / "sets", 30, dtype="float16", stability=0.97)
    code, out, err = run(capsys, "index", "build", tmp_path / "index", "--from", tmp_path / "sets")
    assert code == 0, err
    assert out == f"{tmp_path / 'index'}: 27 added; 27 items, sets 3 × 8, lance\n"
    assert ids_in(tmp_path / "index") == sorted(expected)
    code, out, _ = run(capsys, "index", "info", tmp_path / "index", "--json")
    known = json.loads(out)
    assert code == 0
    assert (known["items"], known["model"], known["stability"], known["dtype"]) == (27, "a" * 64, 0.97, "float16")
    assert (known["model_path"], known["modality"]) == ("somewhere/model", "image")
    code, out, _ = run(capsys, "index", "info", tmp_path / "index")
    assert code == 0
    assert ["items", "27"] in [line.split() for line in out.splitlines()]


def test_items_are_added_removed_and_the_rest_compacted(tmp_path, capsys):
    write_shards(tmp_path / "a", 10)
    write_shards(tmp_path / "b", 20, seed=1)
    index = tmp_path / "index"
    run(capsys, "index", "build", index, "--from", tmp_path / "a", "--engine", "exhaustive")
    code, out, err = run(capsys, "index", "add", index, "--from", tmp_path / "b")
    assert (code, out) == (1, "")
    assert "'item0' is in the index already. Nothing was added: use --existing skip" in err
    code, out, _ = run(capsys, "index", "add", index, "--from", tmp_path / "b", "--existing", "skip", "--json")
    assert (code, json.loads(out)["items"]) == (0, 18)
    (tmp_path / "gone.txt").write_text("item3\nitem4\nnobody\n")
    code, out, err = run(capsys, "index", "remove", index, "--ids-file", tmp_path / "gone.txt")
    assert (code, out) == (1, "")
    assert "'nobody' is not in the index" in err
    gone = ("--ids-file", tmp_path / "gone.txt", "--ids", "item5", "--missing", "ignore")
    assert run(capsys, "index", "remove", index, *gone)[1] == f"{index}: 3 removed, 15 left\n"
    assert run(capsys, "index", "remove", index, "item6", "item7")[1] == f"{index}: 2 removed, 13 left\n"
    assert run(capsys, "index", "compact", index)[1] == f"{index}: 13 items\n"
    assert not {"item3", "item5", "item6"} & set(ids_in(index))


def test_another_models_sets_are_refused_with_the_cure(tmp_path, capsys):
    write_shards(tmp_path / "a", 10)
    write_shards(tmp_path / "b", 10, prefix="b", identity="b" * 64, model="elsewhere/model")
    run(capsys, "index", "build", tmp_path / "index", "--from", tmp_path / "a", "--engine", "exhaustive")
    code, _, err = run(capsys, "index", "add", tmp_path / "index", "--from", tmp_path / "b")
    assert code == 1
    for fact in ("another model made its sets", "somewhere/model", "elsewhere/model", "maxmatch index rebuild"):
        assert fact in err
    assert len(ids_in(tmp_path / "index")) == 9


def test_arrays_of_another_program_become_an_index(tmp_path, capsys):
    np.save(tmp_path / "sets.npy", random_sets(6))
    (tmp_path / "ids.txt").write_text("a\nb\nc\nd\ne\nf\n")
    (tmp_path / "meta.csv").write_text("year\n" + "".join(f"{2000 + n}\n" for n in range(6)))
    arguments = ("--sets", tmp_path / "sets.npy", "--ids", tmp_path / "ids.txt", "--metadata", tmp_path / "meta.csv")
    code, out, err = run(capsys, "index", "build", tmp_path / "index", *arguments, "--similarity", "chamfer")
    assert code == 0, err
    assert "6 added" in out
    with SetIndex.open(tmp_path / "index") as index:
        assert index.manifest.similarity == "chamfer"
        assert (index.manifest.set_size, index.manifest.dim, index.manifest.model) == (K, D, None)
        [hits] = index.search(random_sets(6)[:1], 2, where="year >= 2001")
        assert [hit.metadata["year"] >= 2001 for hit in hits] == [True, True]
    code, _, err = run(capsys, "search", "a dog", tmp_path / "index")
    assert code == 1
    assert "Name it with --model" in err


def test_sets_of_any_size_of_another_program_become_an_index_and_are_found_by_any_query(tmp_path, capsys):
    sizes = np.array([2, 30, 1, 5])
    vectors = random_sets(sum(sizes))[:, 0]
    np.savez(tmp_path / "sets.npz", vectors=vectors, sizes=sizes)
    (tmp_path / "ids.txt").write_text("a\nb\nc\nd\n")
    arguments = ("--sets", tmp_path / "sets.npz", "--ids", tmp_path / "ids.txt")
    code, out, err = run(capsys, "index", "build", tmp_path / "index", *arguments, "--similarity", "maxsim")
    assert code == 0, err
    assert out == f"{tmp_path / 'index'}: 4 added; 4 items, sets of any size × {D}, lance\n"
    assert json.loads(run(capsys, "index", "info", tmp_path / "index", "--json")[1])["set_size"] is None
    assert "finds all" in run(capsys, "index", "verify", tmp_path / "index", "-k", "2")[1]
    assert run(capsys, "index", "remove", tmp_path / "index", "a")[1].endswith("1 removed, 3 left\n")
    assert run(capsys, "index", "add", tmp_path / "index", *arguments, "--existing", "skip")[0] == 0
    with SetIndex.open(tmp_path / "index") as index:
        [hits] = index.search([vectors[32:33]], k=1)  # the only vector of c
        assert (hits[0].id, round(hits[0].score, 3)) == ("c", 1.0)
        assert {name: len(one) for name, one in index.fetch(list("abcd")).items()} == dict(
            zip("abcd", sizes, strict=True)
        )
    for spoiled, message in (
        ({"vectors": vectors, "sizes": sizes[:3]}, "add up to the 38 vectors"),
        ({"vectors": vectors}, "sizes"),
        ({"vectors": 2 * vectors, "sizes": sizes}, "vectors of length 2 to 2, of the item 'a'"),
    ):
        np.savez(tmp_path / "sets.npz", **spoiled)
        code, _, err = run(capsys, "index", "build", tmp_path / "other", *arguments)
        assert code == 1
        assert "sets.npz" in err
        assert message in err


def test_a_source_is_encoded_on_its_way_into_the_index_and_not_built_over(photos, heap, model, capsys):
    assert ids_in(photos) == heap[1]
    assert [path.name for path in photos.parent.iterdir()] == ["photos"]
    listed = [json.loads(line)["id"] for line in (photos / "skipped.jsonl").read_text().splitlines()]
    assert sorted(listed) == sorted(heap[2])
    code, out, err = run(capsys, "index", "build", photos, "--source", heap[0], "--model", model)
    assert (code, out) == (1, "")
    assert err.startswith(f"maxmatch: {photos}: is an index already. Add to it with `maxmatch index add`")
    assert [path.name for path in photos.parent.iterdir()] == ["photos"]


def test_while_an_addition_is_unfinished_nothing_else_is_encoded_or_lost(model, tmp_path, capsys, monkeypatch):
    for name in ("first", "second", "third"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (40, 40), "red").save(tmp_path / name / f"{name}.png")
    index = tmp_path / "index"
    assert run(capsys, "index", "build", index, "--source", tmp_path / "first", "--model", model)[0] == 0
    with monkeypatch.context() as patch:
        patch.setattr(SetIndex, "add", lambda *_, **__: sys.exit(9))
        patch.setattr(SetIndex, "upsert", lambda *_, **__: sys.exit(9))
        assert run(capsys, "index", "add", index, "--source", tmp_path / "second")[0] == 9
    before = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*"))
    code, _, err = run(capsys, "index", "build", index, "--source", tmp_path / "third", "--model", model)
    assert (code, "is an index already" in err) == (1, True)
    code, _, err = run(capsys, "index", "add", index, "--source", tmp_path / "third")
    assert (code, "adding other items was interrupted" in err) == (1, True)
    assert sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*")) == before
    code, out, err = run(capsys, "index", "add", index, "--source", tmp_path / "second")
    assert (code, out[:40]) == (0, f"{index}: 1 added; 2 items"[:40]), err
    assert ids_in(index) == ["first.png", "second.png"]


def test_new_pictures_of_a_folder_are_added_by_the_models_own_path(model, heap, tmp_path, capsys):
    source, index = tmp_path / "more", tmp_path / "index"
    source.mkdir()
    Image.new("RGB", (40, 40), "red").save(source / "red.png")
    assert run(capsys, "index", "build", index, "--source", source, "--model", model)[0] == 0
    Image.new("RGB", (40, 40), "blue").save(source / "blue.png")
    code, out, err = run(capsys, "index", "add", index, "--source", source, "--existing", "skip")
    assert code == 0, err
    assert out.startswith(f"{index}: 1 added; 2 items")
    assert "1 items (image, folder)" in err
    code, out, _ = run(capsys, "index", "add", index, "--source", source, "--existing", "skip")
    assert code == 0
    assert out.startswith(f"{index}: 0 added; 2 items")
    assert ids_in(index) == ["blue.png", "red.png"]


def test_verify_measures_and_gives_an_interval(photos, tmp_path, capsys):
    code, out, _ = run(capsys, "index", "verify", photos, "-k", 3, "--sample", 8, "--json")
    measured = json.loads(out)
    assert code == 0
    assert measured["low"] <= measured["recall"] <= measured["high"]
    assert (measured["k"], measured["queries"], measured["real_queries"]) == (3, 8, False)
    (tmp_path / "queries.txt").write_text("a dog\na cat\n")
    code, out, err = run(capsys, "index", "verify", photos, "-k", 3, "--queries", tmp_path / "queries.txt")
    assert code == 0, err
    assert "2 searches for the 3 best" in out
    (tmp_path / "queries.txt").write_bytes(b"a dog\ncaf\xe9\na cat\n")
    code, out, err = run(capsys, "index", "verify", photos, "-k", 3, "--queries", tmp_path / "queries.txt")
    assert "2 searches for the 3 best" in out
    assert "queries.txt:2: not UTF-8" in err


def test_search_finds_what_the_model_scores_best_and_needs_no_model_named(photos, heap, model, capsys):
    encoder = SetEncoder.from_pretrained(model)
    scores = encoder.similarity(
        encoder.encode_texts(["a red bus"]), encoder.encode_images([heap[0] / name for name in heap[1]])
    )
    best = [heap[1][int(place)] for place in scores[0].argsort(descending=True)[:4]]
    code, out, err = run(capsys, "search", "a red bus", photos, "-k", 4, "--exact")
    assert code == 0, err
    lines = [line.split() for line in out.splitlines()]
    assert [line[2] for line in lines] == [str(heap[0] / name) for name in best]
    assert float(lines[0][1]) == pytest.approx(float(scores.max()), abs=1e-3)
    assert [line[0] for line in lines] == ["1", "2", "3", "4"]
    paths = run(capsys, "search", "a red bus", photos, "-k", 4, "--exact", "--paths")[1].split()
    assert paths == [line[2] for line in lines]


def test_search_by_a_picture_finds_it_and_explain_shows_the_pairs(photos, heap, capsys):
    path = heap[0] / heap[1][5]
    code, out, err = run(capsys, "search", "--image", path, photos, "-k", 1, "--explain")
    assert code == 0, err
    assert str(path) in out
    assert out.count("cosine  1.000") == 4
    assert f"size: {path.stat().st_size}" in out
    hits = json.loads(run(capsys, "search", "--image", path, photos, "-k", 2, "--json")[1])["hits"]
    assert hits[0]["id"] == heap[1][5]
    assert [one["cosine"] for one in hits[0]["matches"]] == pytest.approx([1] * 4, abs=1e-3)


def test_search_keeps_to_the_filter(photos, heap, capsys):
    sizes = {name: (heap[0] / name).stat().st_size for name in heap[1]}
    middle = sorted(sizes.values())[len(sizes) // 2]
    code, out, _ = run(capsys, "search", "a dog", photos, "-k", 100, "--where", f"size > {middle}", "--json")
    assert code == 0
    assert {hit["id"] for hit in json.loads(out)["hits"]} == {name for name, size in sizes.items() if size > middle}
    code, out, err = run(capsys, "search", "a dog", photos, "--where", "size > 1e12")
    assert (code, out) == (0, "")
    assert f"maxmatch: nothing in {photos} that passes --where\n" in err
    assert "no item has" not in err
    code, out, err = run(capsys, "search", "a dog", photos, "--where", "sise > 5 AND NOT (size = 3 OR sise = 4)")
    assert (code, out) == (2, "")
    assert "no item has 'sise'" in err
    code, _, err = run(capsys, "search", "a dog", photos, "--where", "size >")
    assert code == 2
    assert "where" in err


def test_a_wrong_model_is_refused_with_the_cure_and_one_that_moved_is_asked_for(photos, model, tmp_path, capsys):
    tiny_model("resnet152_bigru", seed=2).save_pretrained(tmp_path / "other")
    code, out, err = run(capsys, "search", "a dog", photos, "--model", tmp_path / "other")
    assert (code, out) == (1, "")
    assert f"{photos}: another model than {tmp_path / 'other'}" in err
    assert f"made its sets: {model}" in err
    assert "Name the right one with --model" in err
    assert f"maxmatch index rebuild {photos} --model {tmp_path / 'other'}" in err
    noted = (photos / "encoder.json").read_text()
    (photos / "encoder.json").write_text(noted.replace("tiny", "moved"))
    code, _, err = run(capsys, "search", "a dog", photos)
    assert code == 1
    assert "If it has moved" in err
    assert run(capsys, "search", "a dog", photos, "--model", model)[0] == 0
    (photos / "encoder.json").write_text(noted)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("search", "a dog", "nowhere"), "nowhere: no such folder"),
        (("index", "info", "nowhere"), "nowhere: no such folder"),
        (("index", "build", "x", "--from", "nowhere"), "nowhere: no such folder (manifest.json is missing)"),
        (("index", "build", "x", "--source", "nowhere", "--model", "{model}"), "nowhere: no such file or folder"),
        (("index", "build", "x", "--sets", "s.npy", "--ids", "i.txt"), "s.npy"),
        (("search", "--image", "nowhere.jpg", "{photos}"), "nowhere.jpg: no such file"),
    ],
)
def test_bad_input_ends_with_one_and_names_what_is_wrong(
    photos, model, tmp_path, capsys, monkeypatch, arguments, words
):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *(one.format(photos=photos, model=model) for one in arguments))
    assert (code, out) == (1, "")
    assert words in err.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("search", "a dog"),
        ("search", " ", "photos"),
        ("search", "a dog", "photos", "-k", "0"),
        ("index", "build", "x"),
        ("index", "build", "x", "--from", "a", "--sets", "b.npy"),
        ("index", "build", "x", "--sets", "b.npy"),
        ("index", "build", "x", "--from", "a", "--ids", "b.txt"),
        ("index", "build", "x", "--from", "a", "--engine", "milvus"),
        ("index", "remove", "x"),
    ],
)
def test_wrong_use_ends_with_two(capsys, arguments):
    assert run(capsys, *arguments)[0] == 2
