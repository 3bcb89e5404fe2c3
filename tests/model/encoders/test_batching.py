"""An item's set does not depend on what it was encoded with: alone, in any batch, in any order, with any padding."""

import pytest
import torch
from tiny_backbones import TEXT, VISION, text_backbone, vision_backbone

from maxmatch.model.encoders import ConvEncoder, GRUEncoder, RegionEncoder, TransformerEncoder
from maxmatch.model.layers import GlobalHead, GPOHead, PIEHead, SetHead

D = 32
ITEMS = 12


def lengths():
    return torch.randint(1, 9, (ITEMS,)).tolist()


def region(ordered, **options):
    encoder = RegionEncoder(feature_width=20, width=D, ordered=ordered, **options)
    encoder(torch.randn(8, 6, 20))
    return encoder, [torch.randn(n, 20) for n in lengths()]


def text(encoder):
    return encoder, [torch.randint(5, 50, (n,)) for n in lengths()]


def conv(kind):
    return ConvEncoder(vision_backbone(kind), width=D), [torch.randn(3, 64, 64) for _ in range(ITEMS)]


ENCODERS = {
    **{
        f"transformer, {kind}": lambda kind=kind: text(TransformerEncoder(text_backbone(kind), width=D))
        for kind in TEXT
    },
    **{f"conv, {kind}": lambda kind=kind: conv(kind) for kind in VISION},
    "regions": lambda: region(False),
    "sequence of features": lambda: region(True),
    "gru, mean": lambda: text(GRUEncoder(50, word_width=10, width=D)),
    "regions, beside": lambda: region(False, mlp_reads="input"),
    "gru, states": lambda: text(GRUEncoder(50, word_width=10, width=D, local="states")),
    "gru, forward": lambda: text(GRUEncoder(50, word_width=10, width=D, directions="forward")),
    "gru, concatenated": lambda: text(GRUEncoder(50, word_width=10, width=D, directions="concatenate")),
}
HEADS = {
    "slots": lambda width: SetHead(width, D, 4, heads=2, head_width=8),
    "pie": lambda width: PIEHead(width, D, 4),
    "gpo": lambda width: GPOHead(width, D),
    "global": lambda width: GlobalHead(width, D),
}
OTHER_HEADS = [
    ("regions", "pie"),
    ("gru, mean", "pie"),
    ("regions, beside", "gpo"),
    ("gru, states", "gpo"),
    ("gru, forward", "global"),
]
every_tower = pytest.mark.parametrize(("encoder", "head"), [*((name, "slots") for name in ENCODERS), *OTHER_HEADS])


def made(encoder, head):
    """A tower of random weights, and items for it."""
    torch.manual_seed(0)
    below, items = ENCODERS[encoder]()
    return torch.nn.Sequential(below, HEADS[head](below.local_width)), items


def padded(items, extra):
    """Right-padded with something that is not zero, `extra` more than the longest item needs."""
    if items[0].ndim == 3:
        return torch.stack(items), None
    longest = max(map(len, items)) + extra
    batch = torch.full((len(items), longest, *items[0].shape[1:]), 7, dtype=items[0].dtype)
    mask = torch.zeros(len(items), longest, dtype=torch.bool)
    for row, item in enumerate(items):
        batch[row, : len(item)] = item
        mask[row, : len(item)] = True
    return batch, mask


def sets_of(tower, items, extra=0):
    below, head = tower
    return head(below(*padded(items, extra))).vectors


@every_tower
def test_an_item_does_not_depend_on_its_batch(encoder, head):
    tower, items = made(encoder, head)
    tower.eval()
    with torch.no_grad():
        alone = torch.cat([sets_of(tower, [item]) for item in items])
        for size, extra in ((1, 5), (5, 0), (ITEMS, 5)):
            order = torch.randperm(ITEMS).tolist()
            batches = [[items[i] for i in order[start : start + size]] for start in range(0, ITEMS, size)]
            together = torch.cat([sets_of(tower, batch, extra) for batch in batches])
            assert float((together - alone[order]).abs().max()) <= 1e-5


@every_tower
def test_gradients_reach_every_parameter(encoder, head):
    tower, items = made(encoder, head)
    vectors = sets_of(tower, items)
    (vectors * torch.randn_like(vectors)).sum().backward()
    parameters = tower.named_parameters()
    assert [name for name, p in parameters if p.requires_grad and (p.grad is None or not p.grad.any())] == []


@every_tower
def test_sets_of_mixed_precision_are_unit_vectors_in_float32(encoder, head):
    tower, items = made(encoder, head)
    tower.eval()
    with torch.no_grad():
        exact = sets_of(tower, items[:4], 1)
        with torch.autocast("cpu", torch.float16):
            mixed = sets_of(tower, items[:4], 1)
    torch.testing.assert_close(mixed.norm(dim=-1), torch.ones(4, mixed.shape[1]))
    torch.testing.assert_close(mixed, exact, rtol=0, atol=0.02)


@pytest.mark.parametrize("head", ["slots", "pie"])
@pytest.mark.parametrize(("encoder", "ordered"), [("regions", False), ("sequence of features", True)])
def test_the_order_of_regions_does_not_matter_and_that_of_a_sequence_does_to_slots(encoder, head, ordered):
    tower, items = made(encoder, head)
    tower.eval()
    several = [item for item in items if len(item) > 2]
    with torch.no_grad():
        apart = (sets_of(tower, [item.flip(0) for item in several]) - sets_of(tower, several)).abs().amax((1, 2))
    if ordered and head == "slots":  # PIE-Net reads no positions
        assert float(apart.min()) > 1e-4
    else:
        assert float(apart.max()) <= 1e-5
