import pytest
import torch
from constructed_models import PAIR, encoded, random_split
from reference import random_sets

from maxmatch.evaluation import slots as cosines
from maxmatch.evaluation.slots import between_sets, within_sets


@pytest.fixture(params=[4_096, 4])
def _block(request, monkeypatch):
    monkeypatch.setattr(cosines, "_BLOCK", request.param)


@pytest.mark.usefixtures("_block")
def test_within_sets_agrees_with_every_pair_looked_at():
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


def test_rounding_beyond_one_stays_in_the_last_bin():
    sets = torch.full((1, 2, 3), 1.0 / 3**0.5) * 1.0000002
    assert within_sets(sets, bins=4).counts == [0, 0, 0, 1]
    assert within_sets(sets * torch.tensor([1.0, -1.0])[:, None], bins=4).counts == [1, 0, 0, 0]


def test_sets_of_one_vector_have_no_cosines_within():
    ours = within_sets(random_sets(0, 5, 1, 4))
    assert sum(ours.counts) == 0
    assert ours.mean is None


@pytest.mark.usefixtures("_block")
@pytest.mark.parametrize("slots", [(3, 2), (1, 1), (2, 4)])
def test_between_sets_agrees_with_every_pair_looked_at(slots):
    split = random_split(slots=slots)
    true, wrong, best = (torch.zeros(*slots).double() for _ in range(3))
    pairs = others = 0
    for image, group in zip(split.sets["image"].double(), split.groups["image"].tolist(), strict=True):
        for text, other in zip(split.sets["text"].double(), split.groups["text"].tolist(), strict=True):
            table = image @ text.T
            if group == other:
                true, pairs = true + table, pairs + 1
                best.view(-1)[table.argmax()] += 1
            else:
                wrong, others = wrong + table, others + 1
    ours = between_sets(split, PAIR)
    assert ours.true_pairs == pairs
    torch.testing.assert_close(ours.true, true / pairs)
    torch.testing.assert_close(ours.wrong, wrong / others)
    torch.testing.assert_close(ours.best, best / pairs)
    assert ours.usage == ((best / pairs).sum(1).tolist(), (best / pairs).sum(0).tolist())


def test_several_images_of_one_group_are_true_pairs_all():
    images, texts = random_sets(0, 3, 2, 4), random_sets(1, 2, 2, 4)
    ours = between_sets(encoded(images, texts, [5, 5, 5], [5, 5]), PAIR)
    assert ours.true_pairs == 6
    assert ours.wrong is None
