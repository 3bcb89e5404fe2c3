"""Filters: what they mean, what is refused, and that every engine finds what the meaning says."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_sets import ENGINES, unit_sets

from maxmatch import SetIndex
from maxmatch.core.array_checks import UsageError
from maxmatch.search.engines.lance_files import column_of, literal
from maxmatch.search.filters import Among, Begins, Comparison, Every, Missing, Not, Some, parse_where, passes


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("year >= 2020", Comparison("year", ">=", 2020.0)),
        ("a = 1 AND b = 2 OR NOT c = 3", None),
        ("a=-1.5e3", Comparison("a", "=", -1500.0)),
        ("name = 'O''Hara'", Comparison("name", "=", "O'Hara")),
        ('"taken ""by""" == \'x\'', Comparison('taken "by"', "=", "x")),
        ("ok <> TRUE", Comparison("ok", "!=", True)),
        ("tag in ('a', 'b')", Among("tag", ("a", "b"))),
        ("tag not in ('a')", Not(Among("tag", ("a",)))),
        ("path LIKE 'holiday/%'", Begins("path", "holiday/")),
        ("path NOT LIKE '%'", Not(Begins("path", ""))),
        ("a IS NULL", Missing("a")),
        ("a is not null", Not(Missing("a"))),
        ("((größe < 3))", Comparison("größe", "<", 3.0)),
    ],
)
def test_a_filter_is_read_as_it_is_written(text, tree):
    if tree is None:
        first, second = Comparison("a", "=", 1.0), Comparison("b", "=", 2.0)
        tree = Some((Every((first, second)), Not(Comparison("c", "=", 3.0))))
    assert parse_where(text) == tree


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected the name of a key.*got the end"),
        ("year", "expected =, !=, <, <=, >, >=, IN, LIKE or IS, got the end"),
        ("year = ", "expected a value"),
        ("year = 2020 2021", "expected AND, OR or the end, got '2021'"),
        ("year = 2020; DROP TABLE items", "'; DROP TABLE' is not understood"),
        ("name = 'open", "A text needs a closing quote"),
        ('name = "x"', "expected a value: a number, true, false, or a text in single quotes"),
        ("(a = 1", r"expected \), got the end"),
        ("a LIKE '%x%'", "LIKE finds beginnings"),
        ("a LIKE 3", "LIKE finds beginnings"),
        ("a IN ()", "expected a value"),
        ("a IN (1, 'b')", "of different kinds"),
        ("a < true", "true and false have no order"),
        ("a = 1e999", "larger than numbers can be"),
        ("AND = 1", "got 'AND'"),
        ("(" * 60 + "a = 1" + ")" * 60, "more than 50 levels"),
    ],
)
def test_what_is_not_understood_is_shown_with_its_place(text, message):
    with pytest.raises(ValueError, match=message) as caught:
        parse_where(text)
    assert str(caught.value).splitlines()[-1].strip() == "^"


def test_a_filter_for_a_number_does_not_equal_one_for_a_boolean():
    for text in ("x {}", "NOT x {}", "y = 2 AND x {}"):
        number, boolean = (parse_where(text.format(end)) for end in ("= 1", "= true"))
        assert number == parse_where(text.format("= 1.0")) != boolean
        assert hash(number) == hash(parse_where(text.format("= 1.0")))
        assert parse_where(text.format("IN (1, 0)")) != parse_where(text.format("IN (true, false)"))


def test_a_comparison_holds_only_for_an_item_that_has_such_a_value():
    without, text, number = {}, {"year": "2020"}, {"year": 2020}
    for filter_, expected in (
        ("year = 2020", [False, False, True]),
        ("year != 2020", [False, False, False]),
        ("NOT year = 2020", [True, True, False]),
        ("year = '2020'", [False, True, False]),
        ("year IS NULL", [True, False, False]),
        ("year LIKE '20%'", [False, True, False]),
        ("year IN (2020, 2021)", [False, False, True]),
    ):
        assert [passes(parse_where(filter_), item) for item in (without, text, number)] == expected
    assert not passes(parse_where("ok = 1"), {"ok": True})
    assert passes(parse_where("tags IS NULL"), {"tags": ["a"]})


_KEYS = st.sampled_from(["year", "Year", "a key", "größe", 'quo"te', "text_year", "select", "id", "0x61"])
_TEXTS = st.one_of(
    st.sampled_from(["", "a", "ab", "b'c", "\\", "%", "a_", "é", "x' OR '1'='1", "\n", "日本"]), st.text(max_size=3)
)
_NUMBERS = st.one_of(st.integers(-3, 3), st.sampled_from([0.5, -1e300, 1e-300, 2.0**53]))
_VALUES = st.one_of(
    _TEXTS.filter(lambda text: ("\0" not in text and text.isprintable()) or text == "\n"), _NUMBERS, st.booleans()
)


@st.composite
def _leaves(draw):
    key, value = draw(_KEYS), draw(_VALUES)
    shape = draw(st.integers(0, 3))
    if shape == 0:
        return Missing(key)
    if shape == 1 and isinstance(value, str):
        return Begins(key, value)
    if shape == 2:
        return Among(key, (value, value))
    operators = ["=", "!="] if isinstance(value, bool) else ["=", "!=", "<", "<=", ">", ">="]
    return Comparison(key, draw(st.sampled_from(operators)), value)


_CONDITIONS = st.recursive(
    _leaves(),
    lambda inner: st.one_of(
        st.builds(Not, inner),
        st.builds(Every, st.lists(inner, min_size=2, max_size=3).map(tuple)),
        st.builds(Some, st.lists(inner, min_size=2, max_size=3).map(tuple)),
    ),
    max_leaves=5,
)
_METADATA = st.lists(st.dictionaries(_KEYS, st.one_of(_VALUES, st.none(), st.just([1]))), min_size=6, max_size=6)


# Milvus's client works in threads of this process, and may draw a random number while a condition is being made up.
@pytest.mark.filterwarnings("ignore:Do not use the `random` module:hypothesis.errors.HypothesisDeprecationWarning")
def test_every_engine_finds_what_a_filter_means(engine, tmp_path):
    index = SetIndex.create(tmp_path / "index", dim=8, set_size=2, engine=engine, settings=ENGINES[engine])

    @settings(max_examples=5)
    @given(_METADATA, st.lists(_CONDITIONS, min_size=8, max_size=8))
    def check(metadata, conditions):
        names = [str(place) for place in range(len(metadata))]
        index.add(names, unit_sets(len(names)), metadata)
        for condition in conditions:
            expected = {name for name, values in zip(names, metadata, strict=True) if passes(condition, values)}
            found = index.search(unit_sets(1), k=10, where=condition)[0]
            assert {hit.id for hit in found} == expected, condition
            assert index.engine.count(condition) == len(expected)
            assert all(hit.metadata == json.loads(json.dumps(metadata[int(hit.id)])) for hit in found)
        index.remove(names)

    check()


@pytest.mark.parametrize("engine", [name for name in ENGINES if name != "milvus"])
def test_a_key_that_no_item_has_and_a_value_of_another_type_are_errors(engine, tmp_path):
    facts = [{"year": 2009 + n, "taken": str(2009 + n), "good": n > 1, "mixed": [n, str(n)][n % 2]} for n in range(4)]
    with SetIndex.create(tmp_path / "index", dim=8, set_size=2, engine=engine) as index:
        sets = unit_sets(4)
        assert index.search(sets[:1], where="yaer >= 2010") == [[]], "an empty index has no keys"
        index.add(list("abcd"), sets, facts)
        for where, names in (
            ("yaer >= 2010", ["yaer", "year"]),
            ("NOT yaer = 2010", ["yaer"]),
            ("year >= 2010 OR yaer IN (1, 2)", ["yaer"]),
            ({"yaer": 2010}, ["yaer"]),
            ("year >= '2010'", ["year", "number"]),
            ("taken >= 2010", ["taken", "text"]),
            ("good = 1", ["good", "boolean"]),
            ("year LIKE '20%'", ["year", "number"]),
        ):
            with pytest.raises(UsageError) as caught:
                index.search(sets[:1], where=where)
            assert all(name in str(caught.value) for name in names)
        for where, count in (("year >= 2010", 3), ("mixed = 2", 1), ("mixed = '1'", 1), ("yaer IS NULL", 4)):
            assert len(index.search(sets[:1], where=where)[0]) == count
        assert index.search(sets[:1], where=parse_where("yaer >= 2010")) == [[]], "a program's own tree is not checked"


@pytest.mark.parametrize("engine", [name for name in ENGINES if name != "milvus"])
def test_keys_are_those_of_all_items_however_they_were_added(engine, tmp_path):
    with SetIndex.create(tmp_path / "index", dim=8, set_size=2, engine=engine) as index:
        sets = unit_sets(200)
        index.add(["first"], sets[:1])
        index.add([f"{n}" for n in range(198)], sets[1:199], [{"year": n} for n in range(198)])
        index.add(["last"], sets[199:], [{"größe": [1], "place": None}])
        with pytest.raises(UsageError, match=r"no item has 'yaer'\. Items have year"):
            index.search(sets[:1], where="yaer = 1")
        with pytest.raises(UsageError, match="'größe' is a list"):
            index.search(sets[:1], where='"größe" = 1')
        assert index.search(sets[:1], where="place = 'Rome'") == [[]], "a key that is null may be of any kind"


@pytest.mark.parametrize("engine", [name for name in ENGINES if name != "milvus"])
def test_a_key_of_nulls_finds_nothing_and_one_of_lists_is_an_error(engine, tmp_path):
    facts = [{"rating": None, "tags": []}, {"rating": None, "tags": ["a"]}]
    with SetIndex.create(tmp_path / "index", dim=8, set_size=2, engine=engine) as index:
        sets = unit_sets(2)
        index.add(list("ab"), sets, facts)
        assert index.search(sets[:1], where="rating >= 3") == [[]]
        assert index.search(sets[:1], where="rating = 'good'") == [[]]
        with pytest.raises(UsageError) as caught:
            index.search(sets[:1], where="tags = 'a'")
        assert "'tags' is a list" in str(caught.value)


def test_a_column_is_named_so_that_no_key_can_be_mistaken_for_another():
    keys = ["year", "Year", "x", "0x78", "text_x", "", 'a"b', "a`b", "größe"]
    names = [column_of("text", key) for key in keys]
    assert len(set(names)) == len(keys)
    assert all(name.replace("_", "").isalnum() and name.isascii() and name == name.lower() for name in names)
    assert literal("a'b") == "'a''b'"
