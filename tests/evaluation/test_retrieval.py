import math

import numpy as np
import pytest
import torch

from maxmatch.evaluation.metrics import chance, retrieval


def _unit(*shape, seed=0):
    return torch.nn.functional.normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


def _slow(images, texts, image_groups, text_groups):
    """R@k and ranks by sorting a list for every query; mean of the vectors' best products by hand for K = 1."""
    scores = np.exp((images[:, 0] @ texts[:, 0].T).double().numpy()) - 1
    ranks = {"i2t": [], "t2i": []}
    for i, group in enumerate(image_groups.tolist()):
        best = max(scores[i, j] for j in range(len(texts)) if text_groups[j] == group)
        ranks["i2t"].append(1 + sum(scores[i, j] >= best for j in range(len(texts)) if text_groups[j] != group))
    for j, group in enumerate(text_groups.tolist()):
        best = max(scores[i, j] for i in range(len(images)) if image_groups[i] == group)
        ranks["t2i"].append(1 + sum(scores[i, j] >= best for i in range(len(images)) if image_groups[i] != group))
    return {way: np.array(r) for way, r in ranks.items()}


def test_figures_agree_with_a_list_sorted_for_every_query():
    images, texts = _unit(20, 1, 6), _unit(57, 1, 6, seed=1)
    image_groups = torch.arange(20)
    text_groups = torch.cat([torch.arange(20), torch.randint(0, 20, (37,), generator=torch.Generator().manual_seed(2))])
    ranks = _slow(images, texts, image_groups, text_groups)
    ours = retrieval(images, texts, image_groups, text_groups)
    for way in ("i2t", "t2i"):
        for level in (1, 5, 10):
            assert ours[f"{way}_r{level}"] == pytest.approx(100 * np.mean(ranks[way] <= level))
        assert ours[f"{way}_median_rank"] == np.median(ranks[way])
        assert ours[f"{way}_mean_rank"] == pytest.approx(np.mean(ranks[way]))
    assert ours["rsum"] == pytest.approx(sum(ours[f"{w}_r{n}"] for w in ("i2t", "t2i") for n in (1, 5, 10)))


def test_collapsed_sets_tie_and_the_ties_count_against_them():
    same = _unit(1, 4, 6).expand(10, -1, -1)
    ours = retrieval(same, same, torch.arange(10), torch.arange(10))
    assert ours["i2t_r1"] == ours["t2i_r5"] == 0
    assert ours["i2t_r10"] == 100
    assert ours["i2t_ties"] == 10


def test_chance_is_what_random_scores_give_on_average():
    image_groups, text_groups = torch.arange(12), torch.arange(12).repeat_interleave(3)
    expected = chance(image_groups, text_groups)
    generator = torch.Generator().manual_seed(0)
    from maxmatch.evaluation.metrics import figures
    from maxmatch.evaluation.ranking import ranks_both_ways

    runs = [
        figures(*ranks_both_ways(torch.rand(12, 36, generator=generator), image_groups, text_groups))
        for _ in range(400)
    ]
    for name, value in expected.items():
        drawn = [run[name] for run in runs]
        assert abs(np.mean(drawn) - value) < 4 * np.std(drawn) / math.sqrt(400)


def test_chance_is_exact_in_double_precision():
    expected = chance(torch.arange(7), torch.arange(7).repeat_interleave(3))
    assert expected["i2t_r1"] == pytest.approx(100 * 3 / 21, rel=1e-14)
    assert expected["t2i_r5"] == pytest.approx(100 * 5 / 7, rel=1e-14)
    assert expected["i2t_r5"] == pytest.approx(100 * (1 - math.comb(18, 5) / math.comb(21, 5)), rel=1e-14)
