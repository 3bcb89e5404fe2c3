import pytest

from maxmatch.search.query import parse_query


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("two dogs in the snow", [("two dogs in the snow", 1)]),
        ('"beach" + "dog" - "people"', [("beach", 1), ("dog", 1), ("people", -1)]),
        ('+"beach" +"dog" -"people"', [("beach", 1), ("dog", 1), ("people", -1)]),
        ("“beach” − “people”", [("beach", 1), ("people", -1)]),
        ('2 "beach" - 0.5 * "a red bus"', [("beach", 2), ("a red bus", -0.5)]),
        ('"beach" + ""', [("beach", 1)]),
        ('500 "beach"', [("beach", 10)]),
        # What is not made of quoted parts alone is a text as it stands.
        ('a "dog" on a beach', [('a "dog" on a beach', 1)]),
        ('"beach" "dog"', [('"beach" "dog"', 1)]),
        ('"beach" + dog', [('"beach" + dog', 1)]),
        ('"beach', [('"beach', 1)]),
        ("7 - 3", [("7 - 3", 1)]),
        ("", [("", 1)]),
    ],
)
def test_quoted_parts_have_weights_and_anything_else_is_one_text(text, parts):
    assert parse_query(text) == parts


def test_parts_that_only_count_against_are_refused():
    with pytest.raises(ValueError, match="at least one part that is looked for"):
        parse_query('- "people"')


def test_too_many_parts_are_refused():
    with pytest.raises(ValueError, match="at most 8 parts, got 9"):
        parse_query(" + ".join(['"a"'] * 9))
