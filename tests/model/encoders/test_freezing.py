import pytest
import torch
from tiny_backbones import TEXT, VISION, TimmLike, text_backbone, vision_backbone
from torch import nn

from maxmatch.model.encoders import ConvEncoder, TransformerEncoder

IMAGES = torch.randn(4, 3, 64, 64, generator=torch.Generator().manual_seed(0))


def resnet_encoder():
    return ConvEncoder(vision_backbone("resnet"), width=6)


def moved_by_a_step(model, inputs):
    """What one step of training moves, weight decay and statistics included."""
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimiser = torch.optim.AdamW(model.train().parameters(), lr=0.1, weight_decay=0.1)
    features = model(inputs)
    (features.local.square().sum() + features.pooled.square().sum()).backward()
    optimiser.step()
    return {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}


def test_a_frozen_backbone_stays_bit_identical_through_a_step():
    moved = moved_by_a_step(resnet_encoder().freeze(), IMAGES)
    assert moved == {f"{part}_projection.{kind}" for part in ("local", "pooled") for kind in ("weight", "bias")}
    for kind in ("bert", "clip"):
        moved = moved_by_a_step(TransformerEncoder(text_backbone(kind), 6).freeze(), torch.randint(5, 50, (4, 6)))
        assert moved == {"projection.weight", "projection.bias"}


def test_freezing_discards_old_gradients():
    encoder = resnet_encoder()
    encoder(IMAGES).pooled.sum().backward()
    encoder.freeze()
    assert all(p.grad is None for p in encoder.backbone.parameters())


def test_batchnorm_stays_in_evaluation_mode_when_the_model_around_it_trains():
    encoder = resnet_encoder().freeze()
    model = nn.Sequential(encoder).train()
    norms = [module for module in encoder.backbone.modules() if isinstance(module, nn.BatchNorm2d)]
    assert norms
    assert not any(norm.training for norm in norms)
    assert encoder.training
    model.eval().train()
    assert not any(norm.training for norm in norms)


def test_freezing_can_be_undone():
    encoder = resnet_encoder().train()
    encoder.freeze().unfreeze()
    assert all(module.training for module in encoder.modules())
    assert moved_by_a_step(encoder, IMAGES) == set(encoder.state_dict())
    encoder = ConvEncoder(vision_backbone("siglip"), width=6)  # part of it is frozen, as its features do not need it
    encoder.freeze().unfreeze()
    assert not any(p.requires_grad for p in encoder.backbone.head.parameters())


@pytest.mark.parametrize("stages", [0, 1, 2])
def test_the_first_stages_alone_can_be_frozen(stages):
    encoder = resnet_encoder().freeze(through=stages)
    frozen = ("backbone.embedder.", *(f"backbone.encoder.stages.{i}." for i in range(stages)))
    names = set(encoder.state_dict())
    assert moved_by_a_step(encoder, IMAGES) == {name for name in names if not name.startswith(frozen)}


@pytest.mark.parametrize("kind", [*(("vision", kind) for kind in VISION), *(("text", kind) for kind in TEXT)])
def test_every_backbone_has_stages(kind):
    modality, name = kind
    vision = modality == "vision"
    encoder = ConvEncoder(vision_backbone(name), 6) if vision else TransformerEncoder(text_backbone(name), 6)
    moving = [name for name, p in encoder.freeze(through=1).backbone.named_parameters() if p.requires_grad]
    assert moving
    assert not any(name.startswith("embed") if vision else "embed" in name for name in moving)


def test_a_later_freeze_replaces_an_earlier_one_and_the_last_module_can_be_named():
    def trained(encoder):
        return [p.requires_grad for p in encoder.parameters()]

    by_count, by_name = resnet_encoder().freeze().freeze(through=1), resnet_encoder().freeze("encoder.stages.0")
    assert trained(by_count) == trained(by_name)
    assert all(p.requires_grad for p in by_count.backbone.encoder.stages[1].parameters())
    assert not any(p.requires_grad for p in by_count.backbone.encoder.stages[0].parameters())


@pytest.mark.parametrize(
    ("through", "message"), [(3, "has 2 stages, got 3"), (-1, "has 2 stages"), ("layer9", "no part 'layer9'")]
)
def test_a_stage_that_is_not_there_is_refused(through, message):
    with pytest.raises(ValueError, match=message):
        resnet_encoder().freeze(through=through)


def test_a_backbone_without_a_list_of_stages_wants_a_name():
    encoder = ConvEncoder(TimmLike(False), width=6)
    with pytest.raises(ValueError, match="Name the last module"):
        encoder.freeze(through=1)
    assert not encoder.freeze(through="conv").backbone.conv.weight.requires_grad
