"""Recorded steps need a GPU; what can be said without one."""

import pytest
import torch
from small_runs import recipe_for

from maxmatch.core.types import Batch, Inputs
from maxmatch.training.step import can_record, padded


def test_texts_are_padded_to_a_multiple_and_nothing_else_is_touched():
    ids, mask = torch.arange(1, 23).view(2, 11), torch.arange(11) < torch.tensor([[11], [4]])
    pictures = Inputs(torch.randn(2, 3, 4, 4), None)
    regions = Inputs(torch.randn(2, 5, 6), torch.ones(2, 5, dtype=torch.bool))
    groups = {"text": torch.arange(2)}
    batch = Batch({"text": Inputs(ids, mask), "image": pictures, "region": regions}, groups)
    found = padded(batch)
    assert found.inputs["text"].values.shape == found.inputs["text"].mask.shape == (2, 16)
    assert torch.equal(found.inputs["text"].values[:, :11], ids)
    assert torch.equal(found.inputs["text"].mask[:, :11], mask)
    assert not found.inputs["text"].values[:, 11:].any()
    assert not found.inputs["text"].mask[:, 11:].any()
    assert found.inputs["image"] is pictures
    assert found.inputs["region"] is regions
    assert found.groups is groups
    whole = Batch({"text": Inputs(ids[:, :8], mask[:, :8])}, groups)
    assert torch.equal(padded(whole).inputs["text"].values, ids[:, :8])
    assert padded(batch, 5).inputs["text"].values.shape == (2, 15)


@pytest.mark.parametrize(
    ("options", "negatives", "device", "can"),
    [
        ({}, "hardest", "cuda", True),
        ({"precision": "bf16"}, "hardest", "cuda", True),
        ({}, "hardest", "cpu", False),
        ({}, "mean", "cuda", False),
        ({}, "semi_hard", "cuda", False),
        ({"precision": "fp16"}, "hardest", "cuda", False),
        ({"accumulate": 2}, "hardest", "cuda", False),
    ],
)
def test_steps_are_recorded_on_a_gpu_where_nothing_looks_at_values(options, negatives, device, can):
    assert can_record(recipe_for("nowhere", **options).train, negatives, torch.device(device)) is can
