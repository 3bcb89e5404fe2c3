import torch

from maxmatch.core.types import Batch, Inputs


def batch():
    image = Inputs(torch.zeros(2, 3, 4, 4), None)
    text = Inputs(torch.zeros(5, 6, dtype=torch.long), torch.ones(5, 6, dtype=torch.bool))
    groups = {"image": torch.tensor([7, 3]), "text": torch.tensor([7, 7, 3, 3, 3])}
    return Batch({"image": image, "text": text}, groups)


def test_a_batch_is_moved_with_all_its_tensors():
    there = batch().to("meta")
    tensors = [*there.inputs["image"][:1], *there.inputs["text"], *there.groups.values()]
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert there.inputs["image"].mask is None
    assert there.inputs["text"].values.shape == (5, 6)
