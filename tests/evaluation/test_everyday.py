"""The count of hits among the first photos that models find for everyday queries."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "everyday.py"
QUERIES = {"pets": {"a cat": "a cat", "dog": "a dog"}, "food": {"pizza": "a pizza"}}
FOUND = {
    "old": {"a cat": ["x/1", "x/2"], "dog": ["x/3", "x/4"], "pizza": ["x/5", "x/1"]},
    "new": {"a cat": ["x/2", "x/6"], "dog": ["x/4", "x/3"], "pizza": ["x/7", "x/8"]},
}
JUDGED = {
    "a cat": {"x/1": False, "x/2": True, "x/6": True},
    "dog": {"x/3": True, "x/4": False},
    "pizza": {"x/5": False, "x/1": False, "x/7": True, "x/8": True},
}


@pytest.fixture(scope="module")
def everyday():
    spec = spec_from_file_location("everyday", SCRIPT)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cells(text):
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    return {name: values for name, *values in rows}


def test_the_table_counts_the_hits_of_each_model(everyday):
    table = everyday.table(QUERIES, FOUND, JUDGED)
    found = cells(table)
    assert found["category"] == found["query"] == ["old", "new"]
    assert found["pets (2)"] == ["2 of 4", "3 of 4"]
    assert found["food (1)"] == ["0 of 2", "2 of 2"]
    assert found["**all** (3)"] == ["2 of 6", "5 of 6"]
    assert found['"a cat"'] == ["1 of 2", "2 of 2"]
    assert "x/" not in table


def test_photos_that_nobody_judged_are_listed_and_counted_apart(everyday):
    judged = {**JUDGED, "a cat": {"x/2": True}}
    table = everyday.table(QUERIES, FOUND, judged)
    assert cells(table)["pets (2)"] == ["2 of 4, 1 not judged", "2 of 4, 1 not judged"]
    assert '- "a cat": x/1, x/6' in table
    assert everyday.unjudged(FOUND, JUDGED) == {}


def test_a_judgement_holds_for_one_query_alone_and_for_every_model(everyday):
    later = {"later": {"a cat": ["x/6", "x/1"], "dog": ["x/1", "x/3"], "pizza": ["x/8", "x/7"]}}
    assert everyday.unjudged(later, JUDGED) == {"dog": ["x/1"]}


def test_the_order_for_judging_does_not_depend_on_the_models(everyday):
    first = everyday.unjudged(FOUND, {})
    turned = {model: {query: ids[::-1] for query, ids in FOUND[model].items()} for model in ("new", "old")}
    assert everyday.unjudged(turned, {}) == first
    assert sorted(first["pizza"]) == ["x/1", "x/5", "x/7", "x/8"]


def test_judgements_are_read_as_they_were_written(everyday, tmp_path):
    path = tmp_path / "judged.yaml"
    assert everyday.read_judgements(path) == {}
    everyday.write_judgements(path, JUDGED)
    assert everyday.read_judgements(path) == JUDGED
    path.write_text("dog: {hit: [x/3], miss: [x/4, x/3]}")
    with pytest.raises(ValueError, match="x/3"):
        everyday.read_judgements(path)


def test_a_sheet_is_judged_by_its_numbers(everyday, tmp_path, monkeypatch):
    monkeypatch.setattr(everyday, "JUDGEMENTS", tmp_path / "judged.yaml")
    (tmp_path / "unjudged.json").write_text('{"dog": ["x/9", "x/3", "x/4"]}')
    for query, hits in (("dog", [4]), ("dog", [0]), ("a cat", [1])):
        with pytest.raises(SystemExit, match=query):
            everyday.judge(tmp_path, query, hits)
    everyday.judge(tmp_path, "dog", [1, 3])
    assert everyday.read_judgements(tmp_path / "judged.yaml") == {"dog": {"x/9": True, "x/3": False, "x/4": True}}
    with pytest.raises(SystemExit, match="dog"):
        everyday.judge(tmp_path, "dog", [1])


def test_the_stored_queries_are_sixty_and_all_are_judged(everyday):
    queries = everyday.read_queries()
    asked = [query for some in queries.values() for query in some]
    assert len(queries) == 11
    assert len(asked) == len(set(asked)) == 60
    assert set(everyday.read_judgements(everyday.JUDGEMENTS)) == set(asked)
