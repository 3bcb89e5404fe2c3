"""Backbones of every kind that ConvEncoder and TransformerEncoder take, tiny and with random weights."""

import torch
from torch import nn
from transformers import (
    BertConfig,
    CLIPTextConfig,
    CLIPVisionConfig,
    ConvNextConfig,
    Dinov2Config,
    Dinov2WithRegistersConfig,
    DistilBertConfig,
    ResNetConfig,
    RobertaConfig,
    SiglipVisionConfig,
    ViTConfig,
)

from maxmatch.model.encoders import backbone_from_config

_SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
_PATCHES = {**_SMALL, "image_size": 64, "patch_size": 16}
_WORDS = {**_SMALL, "vocab_size": 50, "max_position_embeddings": 40}

VISION = {
    "resnet": (ResNetConfig, {"embedding_size": 8, "hidden_sizes": [16, 24], "depths": [1, 1]}),
    "convnext": (ConvNextConfig, {"hidden_sizes": [8, 12], "depths": [1, 1], "num_stages": 2}),
    "vit": (ViTConfig, _PATCHES),
    "dinov2": (Dinov2Config, _PATCHES),
    "dinov2 with registers": (Dinov2WithRegistersConfig, _PATCHES),
    "clip": (CLIPVisionConfig, _PATCHES),
    "siglip": (SiglipVisionConfig, _PATCHES),
}
TEXT = {
    "bert": (BertConfig, _WORDS),
    "roberta": (RobertaConfig, _WORDS),
    "distilbert": (
        DistilBertConfig,
        {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24, "vocab_size": 50, "max_position_embeddings": 40},
    ),
    "clip": (CLIPTextConfig, {**_WORDS, "bos_token_id": 1, "eos_token_id": 2}),
}


def vision_backbone(kind: str) -> nn.Module:
    config, options = VISION[kind]
    return _with_statistics(backbone_from_config(config(**options)))


def text_backbone(kind: str) -> nn.Module:
    config, options = TEXT[kind]
    return backbone_from_config(config(**options))


def _with_statistics(backbone: nn.Module) -> nn.Module:
    """BatchNorm as after some training."""
    for module in backbone.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 2)
            nn.init.normal_(module.weight, 1, 0.1)
    return backbone


class TimmLike(nn.Module):
    """The part of timm's interface that is used: `forward_features`, `num_features`, `pretrained_cfg`."""

    def __init__(self, channels_last: bool) -> None:
        super().__init__()
        self.num_features = 6
        self.pretrained_cfg = {"input_size": (3, 32, 32)}
        self.channels_last = channels_last
        self.conv = nn.Conv2d(3, 6, 8, 8)
        self.classifier = nn.Linear(6, 10)

    def forward_features(self, images: torch.Tensor) -> torch.Tensor:
        grid = self.conv(images)
        return grid.movedim(1, 3) if self.channels_last else grid
