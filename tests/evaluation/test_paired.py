"""What every analysis refuses, and says how to mend."""

import pytest
import torch
from constructed_models import PAIR, encoded, random_split
from reference import random_sets

from maxmatch.evaluation.analysis import analyse, specialisation
from maxmatch.evaluation.encoding import EncodedSplit
from maxmatch.evaluation.slots import between_sets, by_slot, element_analysis, project

ANALYSES = {
    "analyse": lambda split: analyse(split, PAIR, "maxmatch"),
    "by_slot": lambda split: by_slot(split, PAIR),
    "between_sets": lambda split: between_sets(split, PAIR),
    "elements": lambda split: element_analysis(split, PAIR, "maxmatch"),
    "project": lambda split: project(split, PAIR),
    "specialisation": lambda split: specialisation(split, PAIR, ["a"] * len(split.sets["text"])),
}


@pytest.mark.parametrize("analysis", ANALYSES)
def test_nan_is_refused_and_its_item_named(analysis):
    split = random_split()
    split.sets["text"][7, 1, 2] = torch.nan
    with pytest.raises(ValueError, match="text: item 7 holds NaN"):
        ANALYSES[analysis](split)


@pytest.mark.parametrize("analysis", ANALYSES)
def test_an_empty_split_is_refused(analysis):
    with pytest.raises(ValueError, match="image: the split has no items of it"):
        ANALYSES[analysis](encoded(torch.empty(0, 2, 4), torch.empty(0, 2, 4)))


def test_a_modality_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="pair: the split has image, text, got 'audio'"):
        analyse(random_split(), ("image", "audio"), "maxmatch")


@pytest.mark.parametrize("groups", [([0, 1, 2], [0, 1, 1]), ([0, 1, 1], [0, 1, 2])])
def test_an_item_without_a_true_partner_is_refused(groups):
    with pytest.raises(ValueError, match="some image has no true text, or some text no true image"):
        analyse(encoded(random_sets(0, 3, 2, 4), random_sets(1, 3, 2, 4), *groups), PAIR, "maxmatch")


def test_vectors_of_different_width_are_refused():
    split = EncodedSplit({"image": random_sets(0, 3, 2, 4), "text": random_sets(0, 3, 2, 5)}, random_split().groups)
    with pytest.raises(ValueError, match="width 4 and b of width 5"):
        analyse(split, PAIR, "maxmatch")
