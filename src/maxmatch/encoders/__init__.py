"""Raw input -> Features: local features, which of them are real, and one global feature."""

from maxmatch.encoders.backbone import backbone_from_config
from maxmatch.encoders.conv import ConvEncoder
from maxmatch.encoders.efficientnet_lite import EfficientNetLite
from maxmatch.encoders.glove import read_glove
from maxmatch.encoders.gru import GRUEncoder
from maxmatch.encoders.protocol import Encoder
from maxmatch.encoders.region import RegionEncoder
from maxmatch.encoders.resnext import ResNeXt
from maxmatch.encoders.transformer import TransformerEncoder

__all__ = [
    "ConvEncoder",
    "EfficientNetLite",
    "Encoder",
    "GRUEncoder",
    "RegionEncoder",
    "ResNeXt",
    "TransformerEncoder",
    "backbone_from_config",
    "read_glove",
]
