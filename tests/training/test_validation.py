import pytest
import torch
from tiny_models import images_for, texts, tiny_model

from maxmatch.core.types import Batch
from maxmatch.evaluation.encoding import EncodedSplit, encode_split, in_order
from maxmatch.training.diagnostics import measures

PAIR = ("image", "text")


def test_partners_are_found_whatever_the_numbers_of_the_groups():
    groups = {"image": torch.tensor([7, 3, 9]), "text": torch.tensor([9, 9, 3, 7, 3])}
    assert EncodedSplit({}, groups).partners(PAIR).tolist() == [2, 2, 1, 0, 1]


class OneByOne:
    """A feed of two groups a batch."""

    def __init__(self, model, count):
        self.skipped = {}
        reader, self.pictures = model.tower("image").reader, images_for(model, count)
        self.words = texts(2 * count)
        self.model, self.reader = model, reader

    def batches(self, plans):
        text = self.model.tower("text").reader
        for plan in plans:
            assert plan.seed is None
            groups = plan.groups.tolist()
            owners = [group for group in groups for _ in range(2)]
            inputs = {
                "image": self.reader.collate([self.reader.read(self.pictures[group]) for group in groups]),
                "text": text.collate([text.read(self.words[2 * group + n]) for group in groups for n in range(2)]),
            }
            yield Batch(inputs, {"image": torch.tensor(groups), "text": torch.tensor(owners)})


def test_a_split_is_encoded_as_the_model_does_it_and_the_mode_is_as_before():
    model = tiny_model("region_bigru").train()
    feed = OneByOne(model, 5)
    found = encode_split(model, feed, 5, 2)
    assert model.training
    torch.testing.assert_close(found.sets["image"], model.encode_images(feed.pictures))
    torch.testing.assert_close(found.sets["text"], model.encode_texts(feed.words))
    assert found.groups["text"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    measured = measures(found, PAIR, "maxmatch")
    assert measured["chance_rsum"] == pytest.approx(2 * (20 + 100 + 100), rel=0.1)
    assert {"image_log_variance", "text_log_variance", "slots_used", "pairing_stability", "rsum"} <= measured.keys()


def test_plans_in_order_have_every_group_once_and_nothing_random():
    plans = in_order(7, 3)
    assert [plan.groups.tolist() for plan in plans] == [[0, 1, 2], [3, 4, 5], [6]]
    assert all(plan.seed is None for plan in plans)


def test_validation_ranks_by_the_options_that_training_has():
    generator = torch.Generator().manual_seed(0)
    sets = {name: torch.nn.functional.normalize(torch.randn(20, 4, 6, generator=generator), dim=-1) for name in PAIR}
    encoded = EncodedSplit(sets, {name: torch.arange(20) for name in PAIR})
    best, default = (measures(encoded, PAIR, "top_k", options) for options in ({"k": 1}, None))
    mil = measures(encoded, PAIR, "mil")
    assert (best["rsum"], best["i2t_mean_rank"]) == (mil["rsum"], mil["i2t_mean_rank"])
    assert best["i2t_mean_rank"] != default["i2t_mean_rank"]
