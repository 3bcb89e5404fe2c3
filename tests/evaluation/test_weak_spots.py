"""Recalls of parts of the queries, and the worst queries, against plain loops."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_splits import galleries
from reference_ranking import sorted_ranks

from maxmatch.evaluation import evaluate_scores
from maxmatch.evaluation.labels import Labels
from maxmatch.evaluation.metrics import Scores
from maxmatch.evaluation.significance import ResultLine
from maxmatch.evaluation.weak_spots import (
    Part,
    part_table,
    parts_by_label,
    parts_by_length,
    parts_by_words,
    recall_curve,
    recalls_by_part,
    worst_cases,
)


@settings(max_examples=30)
@given(galleries(), st.integers(0, 2**16))
def test_the_recalls_of_a_part_are_those_of_its_queries_among_all_items(gallery, seed):
    scores, images, texts = gallery
    result = evaluate_scores(*gallery)
    rng = np.random.default_rng(seed)
    wanted = {"t2i": rng.random(len(texts)) < 0.5, "i2t": rng.random(len(images)) < 0.5}
    (found,) = recalls_by_part([ResultLine(result)], [Part("some", wanted)], draws=0)
    sides = {"t2i": (scores.T, texts, images), "i2t": (scores, images, texts)}
    for way, chosen in wanted.items():
        ranks = [rank for rank, take in zip(sorted_ranks(*sides[way])[0], chosen, strict=True) if take]
        if not ranks:
            assert way not in found
            continue
        assert found[way]["queries"] == len(ranks)
        for level in (1, 5, 10):
            share = 100 * sum(rank <= level for rank in ranks) / len(ranks)
            assert found[way][f"{way}_r{level}"] == pytest.approx(share)


def test_captions_are_divided_into_four_by_their_length_every_one_once():
    captions = [" ".join(["word"] * length) for length in (1, 2, 2, 3, 4, 5, 6, 9)]
    parts = parts_by_length(captions)
    assert [part.name for part in parts] == ["1 to 2 words", "3 words", "4 to 5 words", "6 to 9 words"]
    assert np.sum([part.wanted["t2i"] for part in parts], 0).tolist() == [1] * 8
    (alone,) = parts_by_length(["two words", "again two"])
    assert alone.name == "2 words"


def test_words_that_are_neither_rare_nor_everywhere_make_parts():
    captions = ["a dog"] * 6 + ["a cat"] * 3 + ["a bird"] * 51
    assert [part.name for part in parts_by_words(captions)] == ["dog"]
    (part,) = parts_by_words(captions)
    assert part.wanted["t2i"].tolist() == [True] * 6 + [False] * 54


def test_labels_make_parts_of_images_and_of_their_captions():
    labels = Labels(["cat", "sofa"], {"7": [0], "8": [0, 1]})
    groups = np.arange(12)
    parts = parts_by_label(labels, ["7", "0008"] * 6, groups, groups.repeat(2))
    assert [part.name for part in parts] == ["cat", "sofa"]
    assert parts[1].wanted["i2t"].tolist() == [False, True] * 6
    assert parts[1].wanted["t2i"].tolist() == [False, False, True, True] * 6


def test_the_weakest_words_stand_first_in_the_table():
    rows = [
        {"model": "m", "similarity": "s", "part": name, "t2i": {"queries": 5, "t2i_r1": 0, "t2i_r5": 0, "t2i_r10": r}}
        for name, r in (("dog", 60.0), ("cat", 20.0))
    ]
    rows[0]["t2i"]["t2i_r1"] = 30.0
    assert [row["part"] for row in part_table("words", rows).rows] == ["cat", "dog"]
    assert [row["part"] for row in part_table("length", rows).rows] == ["dog", "cat"]
    first = {**rows[0], "part": "zebra", "t2i": {**rows[0]["t2i"], "t2i_r1": 10.0}}  # as many in ten, fewer first
    assert [row["part"] for row in part_table("words", [*rows, first]).rows] == ["cat", "zebra", "dog"]


@settings(max_examples=40)
@given(galleries(), st.integers(1, 5), st.integers(1, 4))
def test_the_worst_queries_are_those_with_the_largest_ranks_and_what_stood_above(gallery, count, height):
    scores, images, texts = gallery
    result = evaluate_scores(*gallery)
    found = worst_cases(Scores(lambda rows: scores[rows], tuple(scores.shape), height), result, count)
    for way, (matrix, mine, others) in {"i2t": (scores, images, texts), "t2i": (scores.T, texts, images)}.items():
        ranks = sorted_ranks(matrix, mine, others)[0]
        order = sorted((n for n in range(len(ranks)) if ranks[n] > 1), key=lambda n: (-ranks[n], n))[:count]
        assert [case.item for case in found[way]] == order
        for case in found[way]:
            row, true = matrix[case.item], others == mine[case.item]
            assert case.rank == ranks[case.item]
            assert case.right.score == float(row[true].max())
            wrong = sorted(row[~true].tolist(), reverse=True)[: len(case.wrong)]
            assert [answer.score for answer in case.wrong] == wrong
            assert min(wrong) >= case.right.score
            assert not any(bool(true[answer.item]) for answer in case.wrong)


def test_a_curve_is_the_recall_at_every_depth():
    scores = torch.randn(6, 6, generator=torch.Generator().manual_seed(0))
    result = evaluate_scores(scores, range(6), range(6))
    curve = recall_curve(result.galleries[""], "t2i", 6)
    assert curve.tolist() == pytest.approx([result.at(depth)[f"t2i_r{depth}"] for depth in range(1, 7)])
