"""What each slot does, against loops: cosines, one slot kept, retrieval by one slot, attention, projections."""

import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from made_splits import encoded, one_pair, pairs_of, random_split
from reference import random_sets, scores
from reference_ranking import slow_figures
from tiny_models import images_for, texts, tiny_model

from maxmatch.evaluation import slots
from maxmatch.evaluation.slots import (
    attention,
    attention_summary,
    between_sets,
    by_slot,
    element_analysis,
    project,
    within_sets,
)


@pytest.fixture(params=[4_096, 4])
def _block(request, monkeypatch):
    monkeypatch.setattr(slots, "_BLOCK", request.param)


@pytest.mark.usefixtures("_block")
def test_cosines_within_sets_agree_with_every_pair_looked_at():
    sets = random_sets(0, 11, 4, 5)
    ours = within_sets(sets, bins=8)
    counts, values, mean = [0] * 8, [], torch.zeros(4, 4).double()
    for set_ in sets.double():
        for i in range(4):
            for j in range(4):
                cosine = float(set_[i] @ set_[j])
                mean[i, j] += cosine / 11
                if i < j:
                    values.append(cosine)
                    counts[min(7, int((cosine + 1) * 4))] += 1
    assert ours.counts == counts
    assert ours.mean == pytest.approx(sum(values) / len(values))
    torch.testing.assert_close(ours.cosines, mean)
    assert ours.edges == [-1, -0.75, -0.5, -0.25, 0, 0.25, 0.5, 0.75, 1]


def test_rounding_beyond_one_stays_in_the_last_bin_and_one_vector_has_no_pairs():
    sets = torch.full((1, 2, 3), 1.0 / 3**0.5) * 1.0000002
    assert within_sets(sets, bins=4).counts == [0, 0, 0, 1]
    assert within_sets(sets * torch.tensor([1.0, -1.0])[:, None], bins=4).counts == [1, 0, 0, 0]
    assert within_sets(sets[:, :1]).mean is None


@pytest.mark.usefixtures("_block")
@pytest.mark.parametrize("size", [(3, 2), (1, 1)])
def test_between_sets_agrees_with_every_pair_looked_at(size):
    split = random_split(slots=size)
    true, wrong, best = (torch.zeros(*size).double() for _ in range(3))
    pairs = others = 0
    for image, group in zip(split.sets["image"].double(), split.groups["image"].tolist(), strict=True):
        for text, other in zip(split.sets["text"].double(), split.groups["text"].tolist(), strict=True):
            table = image @ text.T
            if group == other:
                true, pairs = true + table, pairs + 1
                best.view(-1)[table.argmax()] += 1
            else:
                wrong, others = wrong + table, others + 1
    ours = between_sets(pairs_of(split))
    assert ours.true_pairs == pairs
    torch.testing.assert_close(ours.true, true / pairs)
    torch.testing.assert_close(ours.wrong, wrong / others)
    torch.testing.assert_close(ours.best, best / pairs)
    assert ours.usage == {"image": (best / pairs).sum(1).tolist(), "text": (best / pairs).sum(0).tolist()}


def test_several_images_of_one_group_are_all_true_pairs():
    ours = between_sets(pairs_of(encoded(random_sets(0, 3, 2, 4), random_sets(1, 2, 2, 4), [5, 5, 5], [5, 5])))
    assert (ours.true_pairs, ours.wrong) == (6, None)


@pytest.mark.parametrize("similarity", ["maxmatch", "mil", "smooth_chamfer", "maxsim", "sinkhorn"])
def test_every_slot_kept_agrees_with_sets_of_one_vector_scored_pair_by_pair(similarity):
    split = random_split(dtype=torch.float64)
    images, captions = split.sets["image"], split.sets["text"]
    ours = element_analysis(pairs_of(split), similarity, {"rsum": 1.0})
    assert ours.whole == {"rsum": 1.0}
    kept = [(images[:, [i]], captions) for i in range(3)] + [(images, captions[:, [i]]) for i in range(2)]
    for found, sides in zip([*ours.kept["image"], *ours.kept["text"]], kept, strict=True):
        expected = slow_figures(scores(similarity, *sides), split.groups["image"], split.groups["text"])
        assert found == pytest.approx(expected)
    assert ours.rsum("text") == [figures["rsum"] for figures in ours.kept["text"]]


def test_a_slot_kept_of_paired_sets_meets_the_same_slot():
    images, captions = random_sets(30, 7, 3, 8, dtype=torch.float64), random_sets(31, 7, 3, 8, dtype=torch.float64)
    split = encoded(images, captions, range(7), range(7))
    ours = element_analysis(pairs_of(split), "paired", {"rsum": 1.0})
    for slot in range(3):
        matrix = scores("maxmatch", images[:, [slot]], captions[:, [slot]])
        expected = slow_figures(matrix, split.groups["image"], split.groups["text"])
        assert ours.kept["image"][slot] == ours.kept["text"][slot] == pytest.approx(expected)


@pytest.mark.parametrize("turned", [False, True])
def test_each_slot_agrees_with_a_loop_over_everything(turned):
    data = pairs_of(random_split(3))
    data = data.turned() if turned else data
    asking, asked = (groups.tolist() for groups in data.groups)
    slow = [  # for every query and slot all items of the gallery, (−cosine, place) sorted
        [
            sorted((-max(float(vector @ other) for other in item), place) for place, item in enumerate(data.sets[1]))
            for vector in query
        ]
        for query in data.sets[0]
    ]
    ours = by_slot(data, queries=[4, 0], answers=3)
    assert (ours.query, ours.gallery) == data.names
    ranks = []  # 1 + the wrong answers above the first true one
    for query, orders in enumerate(slow):
        true = [[asked[place] == asking[query] for _, place in order] for order in orders]
        ranks.append([1 + sum(not one for one in row[: row.index(True)]) for row in true])
    for level in (1, 5, 10):
        for slot, recalls in enumerate(ours.recalls):
            assert recalls[f"r{level}"] == pytest.approx(100 * sum(r[slot] <= level for r in ranks) / len(ranks))
        best = sum(min(row) <= level for row in ranks)
        assert ours.any_slot[f"r{level}"] == pytest.approx(100 * best / len(ranks))
    firsts = [[order[0][1] for order in orders] for orders in slow]
    assert ours.distinct == pytest.approx(sum(len(set(row)) for row in firsts) / len(firsts))
    groups = [{asked[place] for place in row} for row in firsts]
    assert ours.distinct_groups == pytest.approx(sum(map(len, groups)) / len(groups))
    assert [example.item for example in ours.examples] == [4, 0]
    for example in ours.examples:
        assert example.id == f"{data.names[0]}-{example.item}"
        for answers, order in zip(example.answers, slow[example.item], strict=True):
            assert [answer.item for answer in answers] == [place for _, place in order[:3]]
            assert [answer.score for answer in answers] == pytest.approx([-score for score, _ in order[:3]], abs=1e-6)
            assert [answer.true for answer in answers] == [
                asked[place] == asking[example.item] for _, place in order[:3]
            ]
            assert answers[0].id == f"{data.names[1]}-{answers[0].item}"


def test_equal_slots_find_one_thing_and_ties_count_against_them():
    same = random_sets(0, 1, 1, 4).expand(12, 3, -1)
    ours = by_slot(pairs_of(encoded(same, same)), queries=[5])
    assert ours.distinct == 1
    assert [slot["r10"] for slot in ours.recalls] == [0, 0, 0]
    assert [answer.item for answer in ours.examples[0].answers[2]] == [0, 1, 2, 3, 4]


def test_attention_averages_over_maps_of_different_size_agree_with_loops():
    generator = torch.Generator().manual_seed(0)
    maps = [torch.rand(3, 2, 5, generator=generator), torch.rand(3, 7, generator=generator)]
    ours = attention_summary(maps)
    tables = [[[w / sum(row) for w in row] for row in one.double().flatten(1).tolist()] for one in maps]
    for i in range(3):
        entropies = [-sum(w * math.log(w) for w in table[i]) for table in tables]
        assert ours.entropy[i] == pytest.approx(sum(entropies) / 2)
        spreads = [math.exp(h) / len(table[i]) for h, table in zip(entropies, tables, strict=True)]
        assert ours.spread[i] == pytest.approx(sum(spreads) / 2)
        for j in range(3):
            overlaps = [sum(min(p, q) for p, q in zip(table[i], table[j], strict=True)) for table in tables]
            assert float(ours.overlap[i, j]) == pytest.approx(sum(overlaps) / 2)


def test_attention_on_one_place_has_no_entropy_and_slots_of_other_places_no_overlap():
    pointed = attention_summary([torch.eye(3)])
    assert (pointed.entropy, pointed.mean_overlap) == ([0, 0, 0], 0)
    assert attention_summary([torch.tensor([[0.5, 0.5]])]).mean_overlap is None


def test_a_models_attention_is_what_it_explains():
    model = tiny_model("region_bigru")
    pictures, words = images_for(model, 2), texts(2)
    found = attention(model, pictures, words)
    for explained, picture, text in zip(found.pairs, pictures, words, strict=True):
        again = model.explain(picture, text)
        torch.testing.assert_close(explained.image_attention, again.image_attention)
        assert explained.words == again.words
    expected = attention_summary([pair.image_attention for pair in found.pairs])
    assert found.sides["image"].entropy == expected.entropy
    assert len(found.sides["text"].entropy) == model.set_sizes["text"]
    for some in ([], words[:1]):
        with pytest.raises(ValueError, match="a text for each image"):
            attention(model, pictures[: 2 * len(some)], some)


def test_points_come_with_their_slot_modality_item_and_pair():
    split = random_split()
    first, again, other = (project(pairs_of(split), pairs=4, seed=seed) for seed in (1, 1, 2))
    assert first.points.shape == (4 * (3 + 2), 2)
    assert first.modality == (["image"] * 3 + ["text"] * 2) * 4
    assert first.slot == [0, 1, 2, 0, 1] * 4
    assert first.pair == [number for number in range(4) for _ in range(5)]
    for number in range(4):
        image, text = first.item[5 * number], first.item[5 * number + 3]
        assert first.item[5 * number : 5 * number + 5] == [image] * 3 + [text] * 2
        assert split.groups["image"][image] == split.groups["text"][text]
    assert len({first.item[5 * number] for number in range(4)}) == 4
    assert np.array_equal(first.points, again.points)
    assert first.item == again.item != other.item


def test_vectors_that_are_near_stay_near():
    """Of three clusters, the nearest points to a point are those of its own."""
    centres = random_sets(0, 3, 1, 16)[torch.arange(30) % 3]
    sides = (torch.nn.functional.normalize(centres + 0.1 * random_sets(seed, 30, 1, 16), dim=-1) for seed in (1, 2))
    found = project(pairs_of(encoded(*sides)))
    cluster = np.array(found.item) % 3
    distances = np.linalg.norm(found.points[:, None] - found.points, axis=2)
    nearest = np.argsort(distances, axis=1)[:, 1:6]
    assert (cluster[nearest] == cluster[:, None]).mean() > 0.95


def test_too_few_vectors_and_missing_packages_are_reported(monkeypatch):
    with pytest.raises(ValueError, match="at least 4 vectors, got 2"):
        project(pairs_of(one_pair(slots=(1, 1))))
    with pytest.raises(ValueError, match="expected one of tsne, umap, got 'pca'"):
        project(pairs_of(random_split()), method="pca")
    monkeypatch.setattr(slots, "find_spec", lambda name: None)
    for method, extra in (("tsne", "plots"), ("umap", "umap")):
        with pytest.raises(ImportError, match=rf"pip install 'maxmatch\[{extra}\]'"):
            project(pairs_of(random_split()), method=method)


def test_umap_is_given_all_vectors_and_the_seed(monkeypatch):
    """With a stand-in: to import UMAP takes half a minute."""
    given = {}

    class Standin:
        def __init__(self, **options):
            given.update(options)

        def fit_transform(self, vectors):
            return vectors[:, :2]

    monkeypatch.setitem(sys.modules, "umap", SimpleNamespace(UMAP=Standin, __spec__=SimpleNamespace()))
    split = random_split()
    found = project(pairs_of(split), pairs=1_000, method="umap", seed=5)
    assert given["random_state"] == 5
    assert sorted(set(found.item[0::5])) == list(range(9))  # one pair of every group
    places = zip(found.modality, found.item, found.slot, strict=True)
    expected = [split.sets[name][item, slot, :2] for name, item, slot in places]
    np.testing.assert_allclose(found.points, torch.stack(expected).numpy())
