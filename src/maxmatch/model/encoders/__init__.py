"""Raw input -> Features: local features, which of them are real, and one global feature."""

from maxmatch.model.encoders.backbone import Encoder, backbone_from_config
from maxmatch.model.encoders.cnn import EfficientNetLite, ResNeXt
from maxmatch.model.encoders.language import GRUEncoder, TransformerEncoder, read_glove
from maxmatch.model.encoders.vision import ConvEncoder, RegionEncoder

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
