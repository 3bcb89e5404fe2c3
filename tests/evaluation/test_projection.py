import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from constructed_models import PAIR, encoded, random_split
from reference import random_sets

from maxmatch.evaluation.slots import project


def test_points_come_with_their_slot_modality_item_and_pair():
    split = random_split()
    found = project(split, PAIR, pairs=4)
    assert found.points.shape == (4 * (3 + 2), 2)
    assert found.modality == (["image"] * 3 + ["text"] * 2) * 4
    assert found.slot == [0, 1, 2, 0, 1] * 4
    assert found.pair == [number for number in range(4) for _ in range(5)]
    for number in range(4):
        image, text = found.item[5 * number], found.item[5 * number + 3]
        assert found.item[5 * number : 5 * number + 5] == [image] * 3 + [text] * 2
        assert split.groups["image"][image] == split.groups["text"][text]
    assert len({found.item[5 * number] for number in range(4)}) == 4


def test_the_same_seed_gives_the_same_points_and_another_draws_others():
    first, again, other = (project(random_split(), PAIR, pairs=5, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(first.points, again.points)
    assert first.item == again.item != other.item


def test_more_pairs_than_there_are_gives_one_of_every_group():
    found = project(random_split(), PAIR, pairs=1_000)
    assert sorted(set(found.item[0::5])) == list(range(9))


def test_vectors_that_are_near_stay_near():
    """Of three clusters, the nearest points to a point are those of its own."""
    centres = random_sets(0, 3, 1, 16)[torch.arange(30) % 3]
    images, texts = (
        torch.nn.functional.normalize(centres + 0.1 * random_sets(seed, 30, 1, 16), dim=-1) for seed in (1, 2)
    )
    found = project(encoded(images, texts), PAIR)
    cluster = np.array(found.item) % 3
    distances = np.linalg.norm(found.points[:, None] - found.points, axis=2)
    nearest = np.argsort(distances, axis=1)[:, 1:6]
    assert (cluster[nearest] == cluster[:, None]).mean() > 0.95


def test_too_few_vectors_and_unknown_methods_are_refused():
    with pytest.raises(ValueError, match="at least 4 vectors, got 2"):
        project(encoded(random_sets(0, 1, 1, 4), random_sets(1, 1, 1, 4)), PAIR)
    with pytest.raises(ValueError, match="method: expected one of tsne, umap, got 'pca'"):
        project(random_split(), PAIR, method="pca")


@pytest.mark.parametrize(
    ("method", "package", "extra"), [("tsne", "sklearn.manifold", "plots"), ("umap", "umap", "umap")]
)
def test_a_missing_package_is_reported_with_the_cure(method, package, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"pip install 'maxmatch\[{extra}\]'"):
        project(random_split(), PAIR, method=method)


def test_umap_is_given_all_vectors_and_the_seed(monkeypatch):
    """With a stand-in: to import UMAP takes half a minute."""
    given = {}

    class Standin:
        def __init__(self, **options):
            given.update(options)

        def fit_transform(self, vectors):
            return vectors[:, :2]

    monkeypatch.setitem(sys.modules, "umap", SimpleNamespace(UMAP=Standin))
    split = random_split()
    found = project(split, PAIR, pairs=9, method="umap", seed=5)
    assert given["random_state"] == 5
    expected = [
        split.sets[name][item, slot, :2]
        for name, item, slot in zip(found.modality, found.item, found.slot, strict=True)
    ]
    np.testing.assert_allclose(found.points, torch.stack(expected).numpy())
