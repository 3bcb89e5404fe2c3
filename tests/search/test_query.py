"""Queries of several weighted parts."""

import pytest
from made_sets import unit_sets

from maxmatch import SetIndex
from maxmatch.core.array_checks import UsageError
from maxmatch.model.text import Words
from maxmatch.search.query import parse_query, search_parts, unknown_parts


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    folder = tmp_path_factory.mktemp("query") / "index"
    with SetIndex.create(folder, dim=8, set_size=2, engine="exhaustive") as index:
        ids = [f"item '{place}'" for place in range(50)]
        index.add(ids, unit_sets(50), [{"even": place % 2 == 0} for place in range(50)])
        yield index


def test_weighted_parts_are_the_sum_of_their_scores_over_every_item(index):
    queries, weights = unit_sets(3, seed=1), (1.0, 0.5, -2.0)
    hits = search_parts(index, list(queries), weights, k=50)
    every = [{hit.id: hit.score for hit in hits} for hits in index.search(queries, k=50, exact=True)]
    expected = {name: sum(w * scores[name] for w, scores in zip(weights, every, strict=True)) for name in every[0]}
    assert {hit.id: hit.score for hit in hits} == pytest.approx(expected, abs=1e-5)
    assert [hit.id for hit in hits] == sorted(expected, key=lambda name: -expected[name])


def test_parts_are_looked_for_among_what_passes(index):
    hits = search_parts(index, list(unit_sets(2, seed=1)), (1.0, -1.0), k=50, where="even = true")
    assert len(hits) == 25
    assert all(hit.metadata["even"] for hit in hits)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("two dogs in the snow", [("two dogs in the snow", 1)]),
        ('"beach" + "dog" - "people"', [("beach", 1), ("dog", 1), ("people", -1)]),
        ('+"beach" +"dog" -"people"', [("beach", 1), ("dog", 1), ("people", -1)]),
        ("“beach” − “people”", [("beach", 1), ("people", -1)]),
        ('2 "beach" - 0.5 * "a red bus"', [("beach", 2), ("a red bus", -0.5)]),
        ('"beach" + ""', [("beach", 1)]),
        ('"beach"-"people"', [("beach", 1), ("people", -1)]),
        ('10 "beach" + 0 "dog"', [("beach", 10)]),
        # A minus after a space and before a word: without it.
        ("beach -people", [("beach", 1), ("people", -1)]),
        ("-people beach at night -dogs", [("beach at night", 1), ("people", -1), ("dogs", -1)]),
        ('"beach" -people', [("beach", 1), ("people", -1)]),
        ('a beach -"two people" + 2 "dog"', [("a beach", 1), ("two people", -1), ("dog", 2)]),
        ("strand -häuser, bei nacht", [("strand bei nacht", 1), ("häuser", -1)]),
        # Anything else is a text as it stands.
        ("a t-shirt", [("a t-shirt", 1)]),
        ("a photo at -5 degrees", [("a photo at -5 degrees", 1)]),
        ("black + white -- a cat", [("black + white -- a cat", 1)]),
        ('a "dog"-friendly  beach', [('a "dog"-friendly  beach', 1)]),
        ('"beach" "dog"', [('"beach" "dog"', 1)]),
        ("7 - 3", [("7 - 3", 1)]),
        ("", [("", 1)]),
    ],
)
def test_quoted_parts_and_words_after_a_minus_count_and_the_rest_is_one_text(text, parts):
    assert parse_query(text) == parts


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ('- "people"', "at least one part that is looked for"),
        ("-people", "at least one part that is looked for"),
        (" + ".join(['"a"'] * 9), "at most 8 parts, got 9"),
        ('"beach', "quotes"),
        ('"beach" - "people', "quotes"),
        ("“beach", "quotes"),
        ('500 "beach"', "500"),
        ('"beach" + 1000 "dog"', "1000"),
        ('"beach" + 1e999 "dog"', "1e999"),
        ('"beach" + 2,5 "dog"', "2,5"),
        ('"beach" + 2.5.1 "dog"', "2.5.1"),
        ('"beach" + -2 "dog"', "[+]"),
        ('"beach" * 2', "[*]"),
        ('"beach" - people', "-"),
        ('"beach" + dog', "[+]"),
    ],
)
def test_what_cannot_be_meant_is_an_error_and_never_plain_text(text, fact):
    with pytest.raises(UsageError, match=fact):
        parse_query(text)


KNOWN = {"dog", "beach", "a", "two", "people", "photo"}


@pytest.mark.parametrize(
    ("query", "picture", "left_out"),
    [
        ('"dog" + "xqzzt"', False, ["xqzzt"]),
        ("dog -blorf", False, ["blorf"]),
        ('"dog" + "a xqzzt" - "two blorf"', False, ["a xqzzt", "two blorf"]),
        ('"dog" + "xqzzt beach"', False, []),
        ('"dog" + "two"', False, []),
        ('"dog" - "photo"', False, []),
        ('"dog" + "?!"', False, ["?!"]),
        ("xqzzt", False, []),
        ('"xqzzt" + "blorf"', False, []),
        ("xqzzt -dog", False, []),  # nothing that is known is looked for
        ("xqzzt", True, ["xqzzt"]),
        ("-xqzzt -people", True, ["xqzzt"]),
    ],
)
def test_a_part_without_a_known_word_is_left_out_where_others_are_looked_for(query, picture, left_out):
    def words_of(text):
        words = [word for word in text.split() if word.isalpha()]
        return Words([w for w in words if w in KNOWN], [w for w in words if w not in KNOWN])

    parts = parse_query(query, beside_picture=picture)
    assert [part.text for part in unknown_parts(parts, words_of, picture)] == left_out
