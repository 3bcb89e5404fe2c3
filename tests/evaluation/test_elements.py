import pytest
import torch
from constructed_models import PAIR, random_split
from reference import scores

from maxmatch.evaluation.slots import element_analysis


def _recalls(matrix, row_groups, column_groups):
    """By counting, for every query, the wrong answers that score as much as the best true one."""
    found = {}
    for way, table, asking, asked in (
        ("i2t", matrix, row_groups.tolist(), column_groups.tolist()),
        ("t2i", matrix.T, column_groups.tolist(), row_groups.tolist()),
    ):
        ranks = []
        for row, group in zip(table.tolist(), asking, strict=True):
            best = max(score for score, other in zip(row, asked, strict=True) if other == group)
            ranks.append(1 + sum(s >= best for s, other in zip(row, asked, strict=True) if other != group))
        for level in (1, 5, 10):
            found[f"{way}_r{level}"] = 100 * sum(rank <= level for rank in ranks) / len(ranks)
    return found | {"rsum": sum(found.values())}


@pytest.mark.parametrize("similarity", ["maxmatch", "mil", "smooth_chamfer", "maxsim"])
def test_every_slot_kept_agrees_with_sets_of_one_vector_scored_pair_by_pair(similarity):
    split = random_split(dtype=torch.float64)
    images, texts = split.sets["image"], split.sets["text"]
    groups = split.groups["image"], split.groups["text"]
    ours = element_analysis(split, PAIR, similarity)
    assert (len(ours.kept["image"]), len(ours.kept["text"])) == (3, 2)
    expected = [(ours.whole, scores(similarity, images, texts))]
    expected += [(ours.kept["image"][i], scores(similarity, images[:, i : i + 1], texts)) for i in range(3)]
    expected += [(ours.kept["text"][i], scores(similarity, images, texts[:, i : i + 1])) for i in range(2)]
    for figures, matrix in expected:
        for name, value in _recalls(matrix, *groups).items():
            assert figures[name] == pytest.approx(value), name
    assert ours.rsum("text") == [figures["rsum"] for figures in ours.kept["text"]]


def test_with_one_vector_a_set_the_slot_is_the_whole():
    ours = element_analysis(random_split(slots=(1, 1)), PAIR, "maxmatch")
    assert ours.kept == {"image": [ours.whole], "text": [ours.whole]}
