"""The YAML of recipes: the scalars of YAML 1.2, and whatever is written reads back."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxmatch.recipe.yaml_files import dump, parse


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("2E5", 2e5),
        ("1.", 1.0),
        (".5", 0.5),
        ("-1.5e+2", -150.0),
        ("10", 10),
        ("-3", -3),
        ("007", 7),
        ("true", True),
        ("False", False),
        ("~", None),
        ("", None),
        ("no", "no"),
        ("on", "on"),
        ("12:30", "12:30"),
        ("2020-01-01", "2020-01-01"),
        ("1_000", "1_000"),
        ("'1e-3'", "1e-3"),
        ("<<", "<<"),
        ("[1e-3, {a: 1e2}]", [0.001, {"a": 100.0}]),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text, value):
    parsed = parse(text, "text").values
    assert parsed == value
    assert type(parsed) is type(value)


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**12), 10**12)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.sampled_from(["1e-3", "no", "~", "null", "12:30", "0x1", "1_0", "=", "<<", "- a", "a: b", "#", "1.", ".inf"])
)


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(["1e3", "on"]), SCALARS | st.lists(SCALARS)
    )
)
def test_whatever_is_written_reads_back(values):
    assert parse(dump(values), "text").values == values


@given(SCALARS.filter(lambda value: str(value).isascii()))
def test_json_is_read_as_json_reads_it(value):
    text = json.dumps({"a": [value]})
    assert parse(text, "text").values == json.loads(text)
