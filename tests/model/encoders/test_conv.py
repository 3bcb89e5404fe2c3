import pytest
import reference_encoders as reference
import torch
from tiny_backbones import VISION, TimmLike, vision_backbone
from torch import nn
from transformers import SwinConfig, ViTConfig

from maxmatch.model.encoders import ConvEncoder, backbone_from_config
from maxmatch.model.layers import grid_positions

GRIDS = {"resnet": (8, 8), "convnext": (8, 8)}
SPECIAL_TOKENS = {"vit": 1, "dinov2": 1, "dinov2 with registers": 5, "clip": 1, "siglip": 0}
UNUSED = {"convnext": {"layernorm"}, "clip": {"post_layernorm"}, "siglip": {"head"}}


def resnet_encoder():
    torch.manual_seed(0)
    return ConvEncoder(vision_backbone("resnet"), width=6).eval()


@pytest.mark.parametrize("kind", VISION)
def test_conv_encoder_agrees_with_the_reference(kind):
    torch.manual_seed(0)
    images = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    for pooling in ("mean", "max", "none"):
        encoder = ConvEncoder(vision_backbone(kind), width=6, pooling=pooling).eval().double()
        with torch.no_grad():
            features, hidden = encoder(images), encoder.backbone(images).last_hidden_state
        rows = hidden.flatten(2).transpose(1, 2) if hidden.ndim == 4 else hidden[:, SPECIAL_TOKENS[kind] :]
        for place, cells in enumerate(rows.tolist()):
            reference.assert_item(features, place, reference.conv(cells, reference.parameters_of(encoder), pooling))
        assert features.grid == GRIDS.get(kind, (4, 4))
        assert torch.equal(features.positions[1], grid_positions(*features.grid, 6, dtype=torch.float64))
        assert features.mask.all()


@pytest.mark.parametrize("projection", ["none", "mlp"])
def test_cells_go_raw_or_through_the_mlp_of_regions(projection):
    torch.manual_seed(0)
    images = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    encoder = ConvEncoder(vision_backbone("resnet"), width=6, projection=projection).double()
    encoder(images)  # so that BatchNorm has statistics
    with torch.no_grad():
        features, hidden = encoder.eval()(images), encoder.backbone(images).last_hidden_state
    for place, cells in enumerate(hidden.flatten(2).transpose(1, 2).tolist()):
        expected = reference.conv(cells, reference.parameters_of(encoder), "mean", projection)
        reference.assert_item(features, place, expected)
    assert features.local.shape[2] == features.positions.shape[2] == encoder.local_width
    assert encoder.local_width == (hidden.shape[1] if projection == "none" else 6)


@pytest.mark.parametrize("kind", [kind for kind in VISION if not kind.startswith("dinov2")])
def test_what_the_features_do_not_need_is_frozen_and_nothing_else(kind):
    encoder = ConvEncoder(vision_backbone(kind), width=6)
    frozen = {name.split(".")[0] for name, p in encoder.backbone.named_parameters() if not p.requires_grad}
    assert frozen == UNUSED.get(kind, set())


def test_the_mask_token_of_dino_is_frozen():
    backbone = ConvEncoder(vision_backbone("dinov2"), width=6).backbone
    assert [name for name, p in backbone.named_parameters() if not p.requires_grad] == ["embeddings.mask_token"]


def test_cells_come_row_by_row_from_images_that_are_not_square():
    class Identity(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, images):
            return images * self.scale

    encoder = ConvEncoder(Identity(), width=4)
    nn.init.eye_(encoder.local_projection.weight)
    nn.init.zeros_(encoder.local_projection.bias)
    images = torch.randn(1, 3, 2, 5)
    features = encoder(images)
    assert features.grid == (2, 5)
    torch.testing.assert_close(features.local[0, 7, :3], images[0, :, 1, 2])
    tokens = backbone_from_config(ViTConfig(**{**VISION["vit"][1], "image_size": (32, 64)}))
    features = ConvEncoder(tokens, width=4)(torch.randn(2, 3, 32, 64))
    assert (features.grid, features.local.shape) == ((2, 4), (2, 8, 4))


def test_a_mask_leaves_cells_out():
    encoder = resnet_encoder()
    images, mask = torch.randn(2, 3, 64, 64), torch.rand(2, 64) < 0.5
    features = encoder(images, mask)
    cells = encoder.backbone(images).last_hidden_state.flatten(2).transpose(1, 2)
    expected = torch.stack([encoder.pooled_projection(cells[b][mask[b]].mean(0)) for b in range(2)])
    torch.testing.assert_close(features.pooled, expected)
    assert features.mask is mask


def test_cells_made_before_give_the_same_features_as_the_pixels_they_were_made_of():
    encoder = resnet_encoder()
    images = torch.randn(3, 3, 64, 64)
    cells, grid = encoder.cells(images)
    from_pixels, from_cells = encoder(images), encoder(cells)
    assert from_cells.grid == from_pixels.grid == grid
    for name in ("local", "pooled", "positions"):
        torch.testing.assert_close(getattr(from_cells, name), getattr(from_pixels, name), rtol=0, atol=1e-6)
    with pytest.raises(ValueError, match="square grid, got 5"):
        encoder(cells[:, :5])


@pytest.mark.parametrize("channels_last", [False, True])
def test_models_of_timm_are_taken_by_their_features(channels_last):
    encoder = ConvEncoder(TimmLike(channels_last), width=4)
    assert encoder.local_projection.in_features == 6
    assert encoder(torch.randn(2, 3, 32, 32)).grid == (4, 4)
    assert not encoder.backbone.classifier.weight.requires_grad


def test_building_an_encoder_leaves_its_backbone_as_it_was():
    backbone = vision_backbone("resnet").train()
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    with torch.inference_mode():
        ConvEncoder(backbone, width=6)
    ConvEncoder(backbone, width=6)
    assert all(torch.equal(value, before[name]) for name, value in backbone.state_dict().items())
    assert all(module.training for module in backbone.modules())
    assert all(p.requires_grad for p in backbone.parameters())


def test_a_backbone_with_merged_patches_needs_its_stride():
    def swin():
        return backbone_from_config(
            SwinConfig(image_size=32, patch_size=4, embed_dim=8, depths=[1, 1], num_heads=[2, 2], window_size=4)
        )

    with pytest.raises(ValueError, match="stride"):
        ConvEncoder(swin(), width=6)
    assert ConvEncoder(swin(), width=6, stride=8)(torch.randn(1, 3, 32, 32)).grid == (4, 4)


@pytest.mark.usefixtures("without_shape_checks")
def test_wrong_inputs_are_refused():
    encoder = resnet_encoder()
    width = encoder.local_projection.in_features
    with pytest.raises(ValueError, match="expected normalised pixels"):
        encoder(torch.zeros(2, 3, 64, 64, dtype=torch.uint8))
    with pytest.raises(ValueError, match="For one image use"):
        encoder(torch.zeros(3, 64, 64))
    with pytest.raises(ValueError, match=rf"features \(items, cells, {width}\).*got 2×4×{width + 1}"):
        encoder(torch.zeros(2, 4, width + 1))
    with pytest.raises(ValueError, match="pooling: expected one of max, mean"):
        ConvEncoder(vision_backbone("resnet"), pooling="sum")
    with pytest.raises(ValueError, match="projection: expected one of linear, mlp, none"):
        ConvEncoder(vision_backbone("resnet"), projection="two")
    with pytest.raises(ValueError, match="without its pooling and classifier"):
        ConvEncoder(nn.Sequential(nn.Flatten(), nn.Linear(3 * 64 * 64, 4)), width=6)
