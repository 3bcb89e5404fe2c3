"""An item's set does not depend on what it was encoded with: alone, in any batch, in any order, with any padding."""

import pytest
import torch
from tiny_backbones import TEXT, VISION, text_backbone, vision_backbone

from maxmatch.model.encoders import ConvEncoder, GRUEncoder, RegionEncoder, TransformerEncoder
from maxmatch.model.layers import PIEHead, SetHead

D = 32
ITEMS = 64


def region(ordered):
    encoder = RegionEncoder(feature_width=20, width=D, ordered=ordered)
    encoder(torch.randn(8, 6, 20))
    lengths = torch.randint(1, 9, (ITEMS,))
    return encoder, [torch.randn(int(n), 20) for n in lengths]


def gru(directions):
    lengths = torch.randint(1, 9, (ITEMS,))
    return GRUEncoder(50, word_width=10, width=D, directions=directions), [
        torch.randint(0, 50, (int(n),)) for n in lengths
    ]


def transformer(kind):
    lengths = torch.randint(1, 9, (ITEMS,))
    items = [torch.randint(5, 50, (int(n),)) for n in lengths]
    return TransformerEncoder(text_backbone(kind), width=D), items


def conv(kind):
    return ConvEncoder(vision_backbone(kind), width=D), [torch.randn(3, 64, 64) for _ in range(ITEMS)]


ENCODERS = {
    **{f"transformer, {kind}": lambda kind=kind: transformer(kind) for kind in TEXT},
    **{f"conv, {kind}": lambda kind=kind: conv(kind) for kind in VISION},
    "regions": lambda: region(False),
    "sequence of features": lambda: region(True),
    "gru, mean": lambda: gru("mean"),
    "gru, concatenated": lambda: gru("concatenate"),
}
HEADS = {
    "slots": lambda width: SetHead(width, D, 4, heads=2, head_width=8),
    "pie": lambda width: PIEHead(width, D, 4),
}


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


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("encoder", ENCODERS)
def test_an_item_does_not_depend_on_its_batch(encoder, head):
    torch.manual_seed(0)
    tower, items = ENCODERS[encoder]()
    top = HEADS[head](tower.local_width).eval()
    tower.eval()

    def encode(chosen, extra=0):
        return top(tower(*padded(chosen, extra))).vectors

    with torch.no_grad():
        alone = torch.cat([encode([item]) for item in items])
        for size in (1, 7, 64):
            for extra in (0, 5):
                order = torch.randperm(ITEMS).tolist()
                together = torch.cat(
                    [encode([items[i] for i in order[s : s + size]], extra) for s in range(0, ITEMS, size)]
                )
                assert float((together - alone[order]).abs().max()) <= 1e-5


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("encoder", ENCODERS)
def test_gradients_reach_every_parameter(encoder, head):
    torch.manual_seed(0)
    tower, items = ENCODERS[encoder]()
    top = HEADS[head](tower.local_width)
    vectors = top(tower(*padded(items, 0))).vectors
    (vectors * torch.randn_like(vectors)).sum().backward()
    parameters = [*tower.named_parameters(), *top.named_parameters()]
    assert [name for name, p in parameters if p.requires_grad and (p.grad is None or not p.grad.any())] == []


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("encoder", ENCODERS)
def test_sets_of_mixed_precision_are_unit_vectors_in_float32(encoder, head):
    torch.manual_seed(0)
    tower, items = ENCODERS[encoder]()
    top = HEADS[head](tower.local_width).eval()
    tower.eval()
    with torch.no_grad():
        exact = top(tower(*padded(items[:4], 1))).vectors
        with torch.autocast("cpu", torch.float16):
            mixed = top(tower(*padded(items[:4], 1))).vectors
    torch.testing.assert_close(mixed.norm(dim=-1), torch.ones(4, 4))
    torch.testing.assert_close(mixed, exact, rtol=0, atol=0.02)
