"""What a person is promised who keeps sets in an index, on every engine."""

import pickle
import re

import numpy as np
import pytest
import torch
from made_sets import unit_sets
from scipy.optimize import linear_sum_assignment
from tiny_models import tiny_config, tiny_model, tokenizer_for

from maxmatch import SetIndex, top_hits
from maxmatch.matching.similarity import with_options
from maxmatch.model.build import build_model
from maxmatch.model.config import ModelConfig
from maxmatch.model.names import model_identity
from maxmatch.search.engine import Match, proposes
from maxmatch.search.query import search_parts


def _ids(count):
    return [f"item {place}" for place in range(count)]


def test_an_exact_search_is_top_hits_of_the_raw_sets(make):
    items, queries = unit_sets(40), unit_sets(5, seed=1)
    index = make()
    index.add(_ids(40), items)
    expected = top_hits(queries, items, 7)
    found = index.search(queries, k=7, exact=True)
    assert [[hit.id for hit in hits] for hits in found] == [
        [f"item {place}" for place in row] for row in expected.indices.tolist()
    ]
    assert np.array([[hit.score for hit in hits] for hits in found]) == pytest.approx(expected.scores.numpy(), abs=1e-6)


def test_arrays_of_any_precision_and_lists_are_taken_and_filters_as_a_mapping(make, without_shape_checks):
    index, sets = make(), unit_sets(8)
    for place, given in enumerate((sets[:2].numpy().astype(np.float16), sets[2:4].numpy().astype(np.float64))):
        index.add(_ids(4)[2 * place : 2 * place + 2], given)
    known = [{"year": 2000 + place, "good": place > 1} for place in range(4)]
    index.add((f"listed {place}" for place in range(4)), sets[4:].tolist(), iter(known))
    index.add([], [])
    assert [hits[0].id for hits in index.search(sets[:4], k=1, exact=True)] == _ids(4)
    found = index.search(sets[:1].tolist(), k=9, where={"year": 2002, "good": True}, exact=True)
    assert [hit.id for hit in found[0]] == ["listed 2"]
    for wrong in (lambda metadata: True, {}, {"year": [2000]}, 3):
        with pytest.raises(ValueError, match="where"):
            index.search(sets[:1], where=wrong)


def test_a_hit_holds_the_matched_slots_their_cosines_and_the_metadata(make):
    items, queries = unit_sets(5, size=2), unit_sets(1, size=2, seed=1)
    index = make()
    known = [{"name": f"größer '{place}'", "tags": ["a", {"b": None}], "size": place, "ok": True} for place in range(5)]
    index.add(_ids(5), items, known)
    for hit in index.search(queries)[0]:
        place = int(hit.id.removeprefix("item "))
        cosines = (queries[0] @ items[place].T).numpy()
        rows, columns = linear_sum_assignment(cosines, maximize=True)
        assert [match[:2] for match in hit.matches] == list(zip(rows, columns, strict=True))
        assert [match.cosine for match in hit.matches] == pytest.approx(list(cosines[rows, columns]), abs=1e-6)
        assert all(isinstance(match, Match) for match in hit.matches)
        assert hit.score == pytest.approx(float(np.expm1(cosines[rows, columns]).mean()), abs=1e-6)
        assert hit.metadata == known[place]


def test_sets_of_another_size_than_the_index_are_matched_as_far_as_they_go(make):
    items, queries = unit_sets(9), unit_sets(3, size=3, seed=1)
    index = make()
    index.add(_ids(9), items)
    expected = top_hits(queries, items, 4)
    for row, hits in enumerate(index.search(queries, k=4)):
        assert [hit.id for hit in hits] == [f"item {place}" for place in expected.indices[row].tolist()]
        assert all(len(hit.matches) == 2 for hit in hits)


def test_paired_sets_are_found_in_the_order_of_their_slots(make):
    items, queries = unit_sets(9), unit_sets(3, seed=1)
    index = make(similarity="paired")
    index.add(_ids(9), items)
    expected = top_hits(queries, items, 4, "paired")
    for row, hits in enumerate(index.search(queries, k=4)):
        assert [hit.id for hit in hits] == [f"item {place}" for place in expected.indices[row].tolist()]
        assert [hit.score for hit in hits] == pytest.approx(expected.scores[row].tolist(), abs=1e-6)
        assert all(match.query_slot == match.item_slot for hit in hits for match in hit.matches)
        for hit in hits:
            assert np.expm1([match.cosine for match in hit.matches]).mean() == pytest.approx(hit.score, abs=1e-6)
    with pytest.raises(ValueError, match="paired: sets of 3 and of 2 vectors"):
        index.search(unit_sets(1, size=3), k=4)


def test_what_is_added_is_there_when_the_folder_is_opened_again(make):
    index = make(similarity="mil", dtype="float16", model="some model", stability=0.75)
    items = unit_sets(6)
    index.add(_ids(6), items, [{"n": place} for place in range(6)])
    again = SetIndex.open(index.folder)
    assert again.manifest == index.manifest
    assert len(again) == 6
    expected = top_hits(items[:2], items.half().float(), 3, "mil")
    found = again.search(items[:2], k=3)
    assert [[hit.metadata["n"] for hit in hits] for hits in found] == expected.indices.tolist()
    assert np.array([[hit.score for hit in hits] for hits in found]) == pytest.approx(expected.scores.numpy(), abs=1e-6)
    again.close()


def test_an_index_travels_to_another_process_by_its_folder(make):
    index, sets = make(), unit_sets(6)
    index.add(_ids(6), sets)
    with pickle.loads(pickle.dumps(index)) as same:
        assert same.folder == index.folder
        assert same.search(sets[:2], k=3, exact=True) == index.search(sets[:2], k=3, exact=True)
    assert len(index) == 6  # it is still open


def test_the_version_changes_with_every_write_of_any_process_and_else_stays(make):
    index = make()
    seen = [index.engine.version()]
    with SetIndex.open(index.folder) as other:
        for write in (
            lambda: index.add(["a", "b"], unit_sets(2)),
            lambda: other.upsert(["a"], unit_sets(2)[1:]),
            lambda: other.upsert(["a"], unit_sets(2)[:1]),
            lambda: index.remove(["b"]),
            lambda: index.add(["b"], unit_sets(1)),
        ):
            write()
            seen.append(index.engine.version())
            assert index.engine.version() == seen[-1]
    assert len(set(seen)) == len(seen)


def test_sets_come_back_by_their_ids(make):
    items, index = unit_sets(4), make()
    index.add(_ids(4), items)
    found = index.fetch(["item 2", "no such item", "item 0"])
    assert set(found) == {"item 2", "item 0"}
    torch.testing.assert_close(found["item 2"], items[2])
    assert index.fetch([]) == {}


def test_an_empty_index_and_no_queries_find_nothing(make):
    index = make()
    assert index.search(unit_sets(2)) == [[], []]
    assert index.search(unit_sets(0)) == []
    index.add([], unit_sets(0))
    index.remove([])
    assert len(index) == 0


def test_queries_of_another_size_are_told_the_same_by_search_info_and_verify(make, caplog):
    index, queries = make(stability=1.0), unit_sets(2)[:, [0, 1, 0]]
    index.add(_ids(6), unit_sets(6))
    index.search(queries)
    scanned = "queries of 3 vectors .*sets of 2.*scan"
    if proposes(index.engine):
        assert re.search(scanned, caplog.text)
    with pytest.raises(ValueError, match=f"sets: {scanned}"):
        index.verify(queries)
    with pytest.raises(ValueError, match=r"sets: .*sets of 2 vectors, got 3.*Queries may"):
        index.add(_ids(2), queries)


def test_what_is_refused_is_named_and_changes_nothing(make):
    index = make(model="one")
    items = unit_sets(2)
    index.add(["a", "b"], items)
    bad = items.clone()
    bad[1, 0, 3] = torch.nan
    for call, message in (
        (lambda: index.add(["c", "b"], items), "'b' is in the index already"),
        (lambda: index.add(["c", "c"], items), "'c' comes twice"),
        (lambda: index.add([1, 2], items), r"expected strings, got 1 \(int\) at 0. Use \[str\(id\)"),
        (lambda: index.add("ab", items), "got one str"),
        (lambda: index.add(["c", ""], items), "'' at 1: expected 1 to 1024 characters"),
        (lambda: index.add(["c", "\ud800"], items), "can be written as UTF-8"),
        (lambda: index.add(["c"], items), "1 ids for 2 sets"),
        (lambda: index.add(["c", "d"], bad), "item 1 holds NaN"),
        (lambda: index.add(["c", "d"], items * torch.tensor([1.0, 3.0])[:, None, None]), "'d' has vectors of length 3"),
        (lambda: index.add(["c", "d"], unit_sets(2, size=3)), "sets of 2 vectors, got 3"),
        (lambda: index.add(["c", "d"], unit_sets(2, width=4)), "vectors of width 8, got 4"),
        (lambda: index.add(["c", "d"], items[0]), "expected sets of shape"),
        (lambda: index.add(["c", "d"], items, [{}]), "a mapping for each of the 2 items, got 1"),
        (lambda: index.add(["c", "d"], items, [{}, {"x": float("nan")}]), "metadata of 'd': cannot be written as JSON"),
        (lambda: index.add(["c", "d"], items, [{}, {"x": object()}]), "metadata of 'd': .*object is not JSON"),
        (lambda: index.add(["c", "d"], items, [{}, {"x": 2**63}]), "metadata of 'd': .*'x': a number of more than 64"),
        (lambda: index.add(["c", "d"], items, [{}, {"x": np.uint64(2**63)}]), "'x': a number of more than 64 bits"),
        (lambda: index.add(["c", "d"], items, [{}, {"x": -(10**400)}]), "metadata of 'd': .*write it as a text"),
        (lambda: index.add(["c", "d"], items, [{}, {"x": np.longdouble(1)}]), ".*longdouble is not JSON"),
        (lambda: index.search(items, where={"x": 10**400}), "where: expected a finite number of 64 bits for 'x'"),
        (lambda: index.search(items, where={"x": float("nan")}), "where: expected a finite number of 64 bits for 'x'"),
        (lambda: index.search(items, k=2.5), "k: expected a whole number, got 2.5"),
        (lambda: index.search(items, k="3"), "k: expected a whole number, got '3'"),
        (lambda: index.search(items, k=2, candidates=2.5), "candidates: expected a whole number, got 2.5"),
        (lambda: index.verify(k=2.5), "k: expected a whole number, got 2.5"),
        (lambda: index.add(["c", "d"], items, [{}, {3: 1}]), "metadata of 'd': expected a mapping with strings"),
        (lambda: index.add(["c", "d"], items, model="two"), "model: .*one.*two.*maxmatch index rebuild"),
        (lambda: index.upsert(["c", "d"], items, model="two"), "model: .*one.*two"),
        (lambda: index.search(items, model="two"), "cannot be compared"),
        (lambda: index.remove(["a", "x"]), "'x' is not in the index"),
        (lambda: index.search(items, k=0), "k: expected at least 1"),
        (lambda: index.search(unit_sets(1, width=4)), "vectors of width 8, got 4"),
        (lambda: index.search(items * 2), "item 0 has vectors of length 2"),
        (lambda: index.search(items, where="a ="), "where: expected a value"),
        (lambda: index.search(items, k=5, candidates=3), "candidates: expected at least k = 5"),
        (lambda: index.search(items, effort=0), "effort: expected a positive number"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    assert {hit.id for hit in index.search(items, exact=True)[0]} == {"a", "b"}


def test_numbers_out_of_tables_are_metadata_and_an_item_may_have_none(make):
    index = make()
    index.add(["a", "b"], unit_sets(2), [{"n": np.int64(3), "x": np.float32(0.5), "b": np.bool_(True)}, None])
    (hit,) = index.search(unit_sets(1), where="n = 3 AND x = 0.5 AND b = true")[0]
    assert hit.metadata == {"n": 3, "x": 0.5, "b": True}
    assert [hit.metadata for hit in index.search(unit_sets(2)[1:])[0]] == [{}, {"n": 3, "x": 0.5, "b": True}]


def test_an_index_knows_the_model_it_was_made_for(tmp_path):
    model, other = tiny_model("region_bigru", seed=0), tiny_model("region_bigru", seed=1)
    index = SetIndex.create(tmp_path / "index", dim=model.dim, set_size=model.set_sizes["image"], model=model)
    assert index.manifest.model == model_identity(model) != model_identity(other)
    assert index.manifest.similarity == model.similarity_name
    items = unit_sets(2, model.set_sizes["image"], model.dim)
    index.add(["a", "b"], items, model=model)
    with pytest.raises(ValueError, match="Encode with that model"):
        index.add(["c", "d"], items, model=other)
    assert len(SetIndex.open(index.folder)) == 2
    other = tiny_model("region_bigru", seed=0)
    assert model_identity(model) == model_identity(other)
    other.tower("text").reader.tokenizer.enable_truncation(9)  # which divides texts otherwise
    with pytest.raises(ValueError, match="model: "):
        index.search(other.encode_texts(["a dog"]), model=other)


def test_wrong_wishes_for_a_new_index_are_refused(tmp_path):
    for options, message in (
        ({"dim": 0}, "dim: "),
        ({"set_size": 17}, "set_size: "),
        ({"similarity": "cosine"}, "similarity: "),
        ({"dtype": "int8"}, "dtype: "),
        ({"engine": "faiss"}, "engine: expected one of lance, exhaustive, milvus, got 'faiss'"),
        ({"stability": 1.5}, "stability: "),
        ({"settings": {"index": "hnsw"}}, "index: expected one of ivf_rq"),
        ({"model": " "}, "model: "),
    ):
        with pytest.raises(ValueError, match=message):
            SetIndex.create(tmp_path / "index", **{"dim": 8, "set_size": 2, **options})
    assert not (tmp_path / "index" / "index.json").exists()
    SetIndex.create(tmp_path / "index", dim=8, set_size=2)
    with pytest.raises(FileExistsError, match="holds an index already"):
        SetIndex.create(tmp_path / "index", dim=8, set_size=2)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").touch()
    with pytest.raises(FileExistsError, match=r"holds other files \(a.jpg\)"):
        SetIndex.create(tmp_path / "photos", dim=8, set_size=2)


def test_info_tells_what_there_is_and_how_it_is_searched(make, engine, tmp_path):
    index = make(model="m")
    index.add(["a", "b"], unit_sets(2), [{"year": 1}, {}])
    index.compact()
    info = index.info()
    assert (info["items"], info["dim"], info["set_size"], info["model"], info["engine"]) == (2, 8, 2, "m", engine)
    assert str(info["search"]).startswith("scans all items")
    with SetIndex.create(tmp_path / "scanned", 8, 2, engine="exhaustive", settings={"train_from": 2}) as scanned:
        scanned.add(_ids(20), unit_sets(20))
        assert not proposes(scanned.engine)
        assert "index" not in scanned.info()["storage"]


def test_a_search_scores_with_the_options_of_the_similarity(tmp_path):
    items, queries = unit_sets(40), unit_sets(3, seed=1)
    for similarity, options in (
        ("smooth_chamfer", {"alpha": 2.0}),
        ("top_k", {"k": 1}),
        ("sinkhorn", {"epsilon": 0.5, "iterations": 5}),
    ):
        expected = top_hits(queries, items, 5, with_options(similarity, options))
        assert not torch.allclose(expected.scores, top_hits(queries, items, 5, similarity).scores, atol=1e-3)
        created = {"dim": 8, "set_size": 2, "similarity": similarity, "similarity_options": options}
        SetIndex.create(tmp_path / similarity, **created, engine="exhaustive").add(_ids(40), items)
        index = SetIndex.open(tmp_path / similarity)
        assert index.info()["similarity_options"] == options
        for hits, scores in zip(index.search(queries, k=5), expected.scores.numpy(), strict=True):
            assert [hit.score for hit in hits] == pytest.approx(scores, abs=1e-6)
        parts = search_parts(index, list(queries[:1]), [1.0], 5)
        assert [hit.score for hit in parts] == pytest.approx(expected.scores[0].numpy(), abs=1e-6)


def test_an_index_of_a_model_keeps_the_options_it_was_trained_with(tmp_path):
    tiny = tiny_config("region_bigru")
    config = {**tiny.model_dump(), "similarity": "smooth_chamfer", "similarity_options": {"alpha": 4.0}}
    model = build_model(ModelConfig.model_validate(config), {"text": tokenizer_for(tiny)})
    made = {"dim": model.dim, "set_size": 2, "model": model, "engine": "exhaustive"}
    assert SetIndex.create(tmp_path / "own", **made).manifest.similarity_options == {"alpha": 4.0}
    assert SetIndex.create(tmp_path / "other", **made, similarity="mil").manifest.similarity_options == {}
    with pytest.raises(ValueError, match="alpha"):
        SetIndex.create(tmp_path / "wrong", 8, 2, similarity="mil", similarity_options={"alpha": 4.0})


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"key_from": 5}, "expected index, train_from or keys_from, got 'key_from'"),
        ({"train_from": "many"}, "train_from: expected a number of items, got 'many'"),
        ({"train_from": None}, "train_from: expected a number"),
        ({"keys_from": True}, r"keys_from: expected a number of items \(None: never\), got True"),
        ({"index": "hnsw"}, "index: expected one of ivf_rq"),
    ],
)
def test_settings_that_there_are_not_are_refused(tmp_path, given, told):
    with pytest.raises(ValueError, match=f"settings: {told}"):
        SetIndex.create(tmp_path / "index", dim=8, set_size=2, settings=given)
    SetIndex.create(tmp_path / "index", dim=8, set_size=2, settings={"keys_from": None, "train_from": 100}).close()
