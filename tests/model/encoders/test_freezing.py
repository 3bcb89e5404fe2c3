import pytest
import torch
from tiny_backbones import TEXT, VISION, TimmLike, text_backbone, vision_backbone
from torch import nn

from maxmatch.model.encoders import ConvEncoder, TransformerEncoder

IMAGES = torch.randn(4, 3, 64, 64, generator=torch.Generator().manual_seed(0))


def copy_of(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


def changed(module, before):
    return {name for name, value in module.state_dict().items() if not torch.equal(value, before[name])}


def step(model, *inputs):
    """One step of training that moves everything it may, weight decay included."""
    model.train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
    features = model(*inputs)
    (features.local.square().sum() + features.pooled.square().sum()).backward()
    optimiser.step()


def test_a_frozen_backbone_stays_bit_identical_through_a_step_statistics_too():
    encoder = ConvEncoder(vision_backbone("resnet"), width=6).freeze()
    before = copy_of(encoder)
    step(encoder, IMAGES)
    moved = changed(encoder, before)
    assert moved == {f"{part}_projection.{kind}" for part in ("local", "pooled") for kind in ("weight", "bias")}


@pytest.mark.parametrize("kind", ["bert", "clip"])
def test_a_frozen_text_backbone_stays_bit_identical_through_a_step(kind):
    encoder = TransformerEncoder(text_backbone(kind), width=6).freeze()
    before = copy_of(encoder)
    step(encoder, torch.randint(5, 50, (4, 6)))
    assert changed(encoder, before) == {"projection.weight", "projection.bias"}


def test_freezing_lets_go_of_old_gradients():
    encoder = ConvEncoder(vision_backbone("resnet"), width=6)
    encoder(IMAGES).pooled.sum().backward()
    optimiser = torch.optim.AdamW(encoder.parameters(), lr=0.1)
    encoder.freeze()
    before = copy_of(encoder.backbone)
    optimiser.step()
    assert changed(encoder.backbone, before) == set()


def test_batchnorm_stays_in_evaluation_mode_when_the_model_around_it_trains():
    encoder = ConvEncoder(vision_backbone("resnet"), width=6).freeze()
    model = nn.Sequential(encoder).train()
    norms = [module for module in encoder.backbone.modules() if isinstance(module, nn.BatchNorm2d)]
    assert norms
    assert not any(norm.training for norm in norms)
    assert encoder.training
    model.eval().train()
    assert not any(norm.training for norm in norms)


def test_freezing_can_be_undone():
    encoder = ConvEncoder(vision_backbone("resnet"), width=6).train()
    trainable = {name for name, p in encoder.named_parameters() if p.requires_grad}
    encoder.freeze().unfreeze()
    assert {name for name, p in encoder.named_parameters() if p.requires_grad} == trainable
    assert all(module.training for module in encoder.modules())
    before = copy_of(encoder)
    step(encoder, IMAGES)
    assert changed(encoder, before) == set(before)


def test_undoing_leaves_frozen_what_was_frozen_before():
    encoder = ConvEncoder(vision_backbone("siglip"), width=6)
    encoder.freeze().unfreeze()
    assert not any(p.requires_grad for p in encoder.backbone.head.parameters())


@pytest.mark.parametrize("stages", [0, 1, 2])
def test_the_first_stages_alone_can_be_frozen(stages):
    encoder = ConvEncoder(vision_backbone("resnet"), width=6).freeze(through=stages)
    before = copy_of(encoder.backbone)
    step(encoder, IMAGES)
    moved = changed(encoder.backbone, before)
    frozen = ("embedder.", *(f"encoder.stages.{i}." for i in range(stages)))
    assert moved == {name for name in before if not name.startswith(frozen)}


@pytest.mark.parametrize("kind", VISION)
def test_every_vision_backbone_has_stages(kind):
    encoder = ConvEncoder(vision_backbone(kind), width=6).freeze(through=1)
    moving = [name for name, p in encoder.backbone.named_parameters() if p.requires_grad]
    assert moving
    assert not any(name.startswith("embed") for name in moving)


@pytest.mark.parametrize("kind", TEXT)
def test_every_text_backbone_has_layers(kind):
    encoder = TransformerEncoder(text_backbone(kind), width=6).freeze(through=1)
    moving = [name for name, p in encoder.backbone.named_parameters() if p.requires_grad]
    assert moving
    assert not any("embed" in name for name in moving)


def test_a_later_freeze_takes_the_place_of_an_earlier_one():
    encoder = ConvEncoder(vision_backbone("resnet"), width=6).freeze().freeze(through=1)
    assert all(p.requires_grad for p in encoder.backbone.encoder.stages[1].parameters())
    assert not any(p.requires_grad for p in encoder.backbone.encoder.stages[0].parameters())


def test_the_last_module_to_freeze_can_be_named():
    encoder = ConvEncoder(vision_backbone("resnet"), width=6).freeze(through="encoder.stages.0")
    by_count = ConvEncoder(vision_backbone("resnet"), width=6).freeze(through=1)
    for one, other in zip(encoder.parameters(), by_count.parameters(), strict=True):
        assert one.requires_grad == other.requires_grad


@pytest.mark.parametrize(
    ("through", "message"), [(3, "has 2 stages, got 3"), (-1, "has 2 stages"), ("layer9", "no part 'layer9'")]
)
def test_a_stage_that_is_not_there_is_refused(through, message):
    with pytest.raises(ValueError, match=message):
        ConvEncoder(vision_backbone("resnet"), width=6).freeze(through=through)


def test_a_backbone_without_a_list_of_stages_wants_a_name():
    encoder = ConvEncoder(TimmLike(False), width=6)
    with pytest.raises(ValueError, match="Name the last module"):
        encoder.freeze(through=1)
    assert not encoder.freeze(through="conv").backbone.conv.weight.requires_grad
